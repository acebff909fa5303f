//! The clients' DMA memory, and DMA by messages over the socket.
//!
//! The machine copies to and from memory with a file itself. For other memory it sends a message to
//! the client. The thread that drives the machine answers it here.

use std::{collections::BTreeMap, sync::Arc};

use nicforge_core::{
    dma::{DmaError, MAX_DMA},
    machine::Outgoing,
};
use nicforge_driver::PrivateMemory;
use nix::errno::Errno;

use super::Inner;

/// A client's memory by IOVA, from the client's point of view.
#[derive(Default)]
pub(super) struct ClientMemory {
    ranges: BTreeMap<u64, Range>,
}

/// A registered range. The map has its first address.
struct Range {
    length: u64,
    memory: Arc<dyn PrivateMemory>,
}

impl ClientMemory {
    pub(super) fn insert(&mut self, iova: u64, length: u64, memory: Arc<dyn PrivateMemory>) {
        self.ranges.insert(iova, Range { length, memory });
    }

    pub(super) fn remove(&mut self, iova: u64, length: u64) {
        let last = iova.saturating_add(length.saturating_sub(1));
        self.ranges.retain(|start, _| !(iova..=last).contains(start));
    }

    /// Cuts an access at the borders of ranges, and calls `f` for each piece: with the range's
    /// memory, the offset in it, and the piece's bytes within the access.
    fn for_each_piece(
        &self,
        iova: u64,
        length: usize,
        mut f: impl FnMut(&dyn PrivateMemory, u64, std::ops::Range<usize>) -> Result<(), nicforge_driver::Error>,
    ) -> Result<(), DmaError> {
        let mut done = 0;
        while done < length {
            let at = iova.checked_add(done as u64).ok_or(refused())?;
            let (start, range) = self.ranges.range(..=at).next_back().ok_or(refused())?;

            let offset = at - start;
            let remaining =
                range.length.checked_sub(offset).filter(|remaining| *remaining > 0).ok_or(refused())?;
            let piece = (length - done).min(usize::try_from(remaining).unwrap_or(usize::MAX));

            f(range.memory.as_ref(), offset, done..done + piece).map_err(|_| refused())?;
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

/// Returns the client's answer for memory that it does not have.
fn refused() -> DmaError {
    DmaError::Refused { errno: Errno::EFAULT as i32 }
}

impl Inner {
    /// Answers the messages to clients. Returns whether there were any.
    pub(super) fn answer_messages(&mut self) -> bool {
        let mut has_answered = false;
        while let Some(message) = self.machine.pop_outgoing() {
            has_answered = true;

            // The machine refuses an answer after the end of its attachment, and no call waits for
            // it.
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
