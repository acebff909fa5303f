//! Copies of memory, as the peer of transfers.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_shm::SharedMemory;

/// Two memories of the same size, through which copies cycle like the transfers that they are
/// compared with. Caches then help both alike.
pub struct Copies {
    from: SharedMemory,
    to: SharedMemory,
    bytes: usize,
}

impl Copies {
    /// Allocates two memories of `bytes` bytes, and writes to them, so that no page of them is
    /// missing during copies.
    ///
    /// # Errors
    /// Returns an error when there is not so much memory.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let allocate_touched = || {
            let shared = SharedMemory::create("bench", bytes).context(|| "memory to copy".into())?;
            shared.whole().zero(0, bytes as u64).context(|| "touching memory".into())?;
            Ok::<_, Failure>(shared)
        };
        Ok(Self { from: allocate_touched()?, to: allocate_touched()?, bytes })
    }

    /// Makes `count` copies of `size` bytes, one after the other. The size must divide the memory.
    ///
    /// # Errors
    /// Returns an error when the memory is gone.
    pub fn copy(&self, size: usize, count: usize) -> Result<(), Failure> {
        let (from, to) = (self.from.whole(), self.to.whole());
        for number in 0..count {
            let offset = (number * size % self.bytes) as u64;
            from.copy_to(offset, &to, offset, size as u64).context(|| "copying".into())?;
        }
        Ok(())
    }
}
