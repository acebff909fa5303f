//! A client's posted-write ring.

use std::sync::atomic::Ordering;

use nicforge_hwi::{attachment, extoll::RING_CELLS, posted::CELL};
use nicforge_shm::{Producer, SharedCells, SharedU32};

use super::Client;

/// A client's ring, into which it posts.
pub(crate) struct Posting {
    producer: Producer<SharedCells>,
    consumed: SharedU32,
}

impl Posting {
    pub(crate) fn of(client: &Client) -> Self {
        let cells = client.windows.window(0, u64::from(RING_CELLS) * CELL as u64).unwrap();
        let producer = Producer::new(SharedCells::new(cells).unwrap());
        Self { producer, consumed: client.mirror.u32(attachment::mirror::RING_HEAD).unwrap() }
    }

    pub(crate) fn post(&mut self, bar: u8, offset: u64, data: &[u8]) {
        let consumed = || self.consumed.load(Ordering::Acquire);
        self.producer.try_push(consumed, bar, offset as u32, data).unwrap();
    }
}
