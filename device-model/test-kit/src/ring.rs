//! The producer's end of a posted-write ring.

use std::sync::atomic::Ordering;

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
};
use nicforge_hwi::{attachment::mirror, posted::CELL};
use nicforge_shm::{Producer, PushError, SharedCells, SharedU32, Window};

/// The producer of one of a client's posted-write rings.
///
/// A record takes effect when the machine takes it: in a step, or before the client's next trapped
/// access. A function that has gone cold needs a doorbell, which any trapped access is.
pub struct PostedRing {
    producer: Producer<SharedCells>,
    cells: Window,
    consumed: SharedU32,
}

impl PostedRing {
    /// Returns the producer of the first ring of an attachment that has a client. The ring must be
    /// unused, or reset.
    #[track_caller]
    pub fn new(machine: &Machine, function: FunctionId, attachment: AttachmentId) -> Self {
        Self::numbered(machine, function, attachment, 0)
    }

    /// Returns the producer of the ring with this number, as [`PostedRing::new`] does.
    #[track_caller]
    pub fn numbered(machine: &Machine, function: FunctionId, attachment: AttachmentId, ring: u8) -> Self {
        let rings = machine.spec(function).unwrap().rings.expect("the function has no posted-write ring");
        assert!(ring < rings.count, "the function has {} rings", rings.count);

        let memory = |bar: u8| machine.region(function, attachment, bar.into()).unwrap().memory.unwrap();
        let bytes = u64::from(rings.cells) * CELL as u64;
        let offset = u64::from(rings.offset) + u64::from(ring) * bytes;
        let cells = memory(rings.bar).window(offset, bytes).unwrap();
        let head = mirror::RING_HEAD + mirror::RING_HEAD_STRIDE * u64::from(ring);
        let consumed = memory(rings.mirror_bar).u32(head).unwrap();

        Self { producer: producer(&cells), cells, consumed }
    }

    /// Posts a write of `data`, 1 to 512 bytes, to a BAR. It does not wake the function.
    ///
    /// # Errors
    /// [`PushError::Full`] until the machine has taken records.
    pub fn push(&mut self, bar: u8, offset: u32, data: &[u8]) -> Result<(), PushError> {
        let consumed = &self.consumed;
        self.producer.try_push(|| consumed.load(Ordering::Acquire), bar, offset, data)
    }

    /// Posts a write of 32 bits. The ring must have room.
    #[track_caller]
    pub fn push32(&mut self, bar: u8, offset: u32, value: u32) {
        self.push(bar, offset, &value.to_le_bytes()).unwrap();
    }

    /// Posts a write of 64 bits. The ring must have room.
    #[track_caller]
    pub fn push64(&mut self, bar: u8, offset: u32, value: u64) {
        self.push(bar, offset, &value.to_le_bytes()).unwrap();
    }

    /// Restarts at cell 0, after a reset of the attachment or of the ring.
    pub fn restart(&mut self) {
        self.producer = producer(&self.cells);
    }
}

/// Returns a producer that starts at cell 0 of a ring.
#[track_caller]
fn producer(cells: &Window) -> Producer<SharedCells> {
    Producer::new(SharedCells::new(cells.clone()).unwrap())
}
