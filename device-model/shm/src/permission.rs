//! The accesses that a device may make to memory of a client.

/// The accesses that a device may make to a range of memory by DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaPermission {
    /// The device may read the memory.
    pub read: bool,
    /// The device may write the memory.
    pub write: bool,
}

impl DmaPermission {
    /// The device reads and writes the memory.
    pub const READ_WRITE: Self = Self { read: true, write: true };
    /// The device only reads the memory.
    pub const READ: Self = Self { read: true, write: false };
    /// The device only writes the memory.
    pub const WRITE: Self = Self { read: false, write: true };

    /// Returns whether the device may make an access: a write if `write`, else a read.
    #[inline]
    pub const fn allows(self, write: bool) -> bool {
        if write { self.write } else { self.read }
    }
}
