//! Copies of memory, as the peer of transfers.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_shm::SharedMemory;

/// Two memories of the same size, through which copies cycle like the transfers that they are
/// compared with. Caches then help both alike.
pub struct Copies {
    from: SharedMemory,
    to: SharedMemory,
    memory: usize,
}

impl Copies {
    /// Allocates two touched memories of `memory` bytes.
    ///
    /// # Errors
    /// Returns an error when there is not so much memory.
    pub fn new(memory: usize) -> Result<Self, Failure> {
        let touched = || {
            let shared = SharedMemory::create("bench", memory).context(|| "memory to copy".into())?;
            shared.whole().zero(0, memory as u64).context(|| "touching memory".into())?;
            Ok::<_, Failure>(shared)
        };
        Ok(Self { from: touched()?, to: touched()?, memory })
    }

    /// Makes `count` copies of `size` bytes, one after the other. The size must divide the memory.
    ///
    /// # Errors
    /// Returns an error when the memory is gone.
    pub fn copy(&self, size: usize, count: usize) -> Result<(), Failure> {
        let (from, to) = (self.from.whole(), self.to.whole());
        for number in 0..count {
            let offset = (number * size % self.memory) as u64;
            from.copy_to(offset, &to, offset, size as u64).context(|| "copying".into())?;
        }
        Ok(())
    }
}
