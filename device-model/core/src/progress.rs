//! The result of bounded work.

/// Result of a step of a device, or of a poll of a companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The step did work, and more may be possible at once.
    Busy,
    /// There is nothing to do until a client writes, the fabric delivers, DMA completes or a timer
    /// fires.
    Idle,
}
