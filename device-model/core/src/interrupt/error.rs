//! Requests that make no sense.

use thiserror::Error;

/// Why an interrupt request was refused (VFIO: `EINVAL`). Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IrqError {
    /// There is no such index.
    #[error("interrupt index {index} does not exist: 0 (INTx) to 4 (request)")]
    Index {
        /// The index asked for.
        index: u32,
    },
    /// Some of the interrupts don't exist.
    #[error("interrupts {start} to {start} + {count} of index {index} go past its {available}")]
    Range {
        /// The index.
        index: u32,
        /// First interrupt asked for.
        start: u32,
        /// How many were asked for.
        count: u32,
        /// How many the index has.
        available: u32,
    },
    /// No interrupt was named.
    #[error("the request for index {index} names no interrupt: give at least one, or disable the index")]
    Empty {
        /// The index.
        index: u32,
    },
    /// The interrupts of this index can't be masked this way.
    #[error("interrupts of index {index} can't be masked here: only INTx can, MSI-X is masked in its table")]
    NotMaskable {
        /// The index.
        index: u32,
    },
}
