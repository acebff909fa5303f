//! A client's posted-write ring.

use nicforge_test_kit::PostedRing;

use super::{Client, Rig};

/// The producer's side of a client's ring.
pub(crate) struct Posting(PostedRing);

impl Posting {
    pub(crate) fn of(rig: &Rig, client: &Client) -> Self {
        Self(client.id().ring(&rig.machine))
    }

    /// Posts a write. Returns false if the ring is full.
    pub(crate) fn offer(&mut self, bar: u8, offset: u64, data: &[u8]) -> bool {
        self.0.push(bar, offset as u32, data).is_ok()
    }

    /// Posts a write into a ring that must have room.
    #[track_caller]
    pub(crate) fn post(&mut self, bar: u8, offset: u64, data: &[u8]) {
        assert!(self.offer(bar, offset, data), "the ring is full");
    }
}
