//! A client's posted-write ring.

use std::sync::atomic::Ordering;

use nicforge_hwi::{attachment::mirror, extoll::RING_CELLS, posted::CELL};
use nicforge_shm::{Producer, SharedCells, SharedU32};

use super::Client;

/// The producer's side of a client's ring.
pub(crate) struct Posting {
    producer: Producer<SharedCells>,
    consumed: SharedU32,
}

impl Posting {
    pub(crate) fn of(client: &Client) -> Self {
        let cells = client.windows.window(0, u64::from(RING_CELLS) * CELL as u64).unwrap();
        let producer = Producer::new(SharedCells::new(cells).unwrap());
        Self { producer, consumed: client.mirror.u32(mirror::RING_HEAD).unwrap() }
    }

    /// Posts a write. Returns false if the ring is full.
    pub(crate) fn offer(&mut self, bar: u8, offset: u64, data: &[u8]) -> bool {
        let consumed = || self.consumed.load(Ordering::Acquire);
        self.producer.try_push(consumed, bar, offset as u32, data).is_ok()
    }

    /// Posts a write into a ring that must have room.
    pub(crate) fn post(&mut self, bar: u8, offset: u64, data: &[u8]) {
        assert!(self.offer(bar, offset, data), "the ring is full");
    }
}
