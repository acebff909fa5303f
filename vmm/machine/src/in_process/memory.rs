//! The clients' DMA memory, and the answers to DMA messages.
//!
//! The machine itself copies to and from shared memory. For a client's private memory it makes a
//! DMA message, as for a client in another process. The thread that steps the machine answers the
//! message here.

use std::{collections::BTreeMap, sync::Arc};

use nicforge_core::{
    dma::{DmaError, MAX_DMA},
    machine::Outgoing,
};
use nicforge_driver::PrivateMemory;
use nix::errno::Errno;

use super::Inner;

/// The memory that a client has mapped for DMA.
#[derive(Default)]
pub(super) struct ClientMemory {
    /// The ranges by their first IOVA.
    ranges: BTreeMap<u64, Range>,
}

/// A range of the client's DMA map.
struct Range {
    length: u64,
    memory: Arc<dyn PrivateMemory>,
}

impl ClientMemory {
    /// Adds a range.
    pub(super) fn insert(&mut self, iova: u64, length: u64, memory: Arc<dyn PrivateMemory>) {
        self.ranges.insert(iova, Range { length, memory });
    }

    /// Removes the ranges that begin within these addresses.
    pub(super) fn remove(&mut self, iova: u64, length: u64) {
        let last = iova.saturating_add(length.saturating_sub(1));
        self.ranges.retain(|start, _| !(iova..=last).contains(start));
    }

    /// Cuts an access of `length` bytes at the borders of ranges, and calls `access_piece` for each
    /// piece: with the range's memory, the offset in it, and the piece's bytes within the access.
    fn for_each_piece(
        &self,
        iova: u64,
        length: usize,
        mut access_piece: impl FnMut(
            &dyn PrivateMemory,
            u64,
            std::ops::Range<usize>,
        ) -> Result<(), nicforge_driver::Error>,
    ) -> Result<(), DmaError> {
        let mut done = 0;
        while done < length {
            let address = iova.checked_add(done as u64).ok_or(not_mapped())?;
            let (start, range) = self.ranges.range(..=address).next_back().ok_or(not_mapped())?;

            let offset = address - start;
            let remaining =
                range.length.checked_sub(offset).filter(|remaining| *remaining > 0).ok_or(not_mapped())?;
            let piece = (length - done).min(usize::try_from(remaining).unwrap_or(usize::MAX));

            access_piece(range.memory.as_ref(), offset, done..done + piece).map_err(|_| not_mapped())?;
            done += piece;
        }
        Ok(())
    }

    fn read(&self, iova: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.for_each_piece(iova, out.len(), |memory, offset, part| memory.read(offset, &mut out[part]))
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.for_each_piece(iova, data.len(), |memory, offset, part| memory.write(offset, &data[part]))
    }
}

/// Returns the client's answer to a message for memory that it has not mapped.
fn not_mapped() -> DmaError {
    DmaError::Refused { errno: Errno::EFAULT as i32 }
}

impl Inner {
    /// Answers the machine's DMA messages to clients. Returns whether there were any.
    pub(super) fn answer_dma_messages(&mut self) -> bool {
        let mut has_answered = false;
        while let Some(message) = self.machine.pop_outgoing() {
            has_answered = true;

            // The machine refuses an answer after the attachment's client has gone. Then no device
            // waits for it, so the error does not matter.
            let _ = match message {
                Outgoing::DmaRead { id, function, attachment, iova, length } => {
                    let mut data = vec![0; length.min(MAX_DMA)];
                    let result = match self.tenants.get(&(function, attachment)) {
                        Some(tenant) => tenant.memory.read(iova, &mut data),
                        None => Err(DmaError::Gone),
                    };
                    self.machine.dma_read_done(function, attachment, id, result.map(|()| data.as_slice()))
                }
                Outgoing::DmaWrite { id, function, attachment, iova, data } => {
                    let result = match self.tenants.get(&(function, attachment)) {
                        Some(tenant) => tenant.memory.write(iova, &data),
                        None => Err(DmaError::Gone),
                    };
                    self.machine.dma_write_done(function, attachment, id, result)
                }
            };
        }
        has_answered
    }
}
