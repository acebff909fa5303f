//! Errors of interrupt requests.

use thiserror::Error;

/// Reason why an interrupt request was refused (VFIO: `EINVAL`). Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IrqError {
    /// The index does not exist.
    #[error("interrupt index {index} does not exist: 0 (INTx) to 4 (request)")]
    Index {
        /// Index of the request.
        index: u32,
    },
    /// Some of the interrupts do not exist.
    #[error("interrupts {start} to {start} + {count} of index {index} go past its {available}")]
    Range {
        /// Index of the request.
        index: u32,
        /// First interrupt of the request.
        start: u32,
        /// Number of interrupts requested.
        count: u32,
        /// Number of interrupts of the index.
        available: u32,
    },
    /// The request names no interrupt.
    #[error("the request for index {index} names no interrupt: give at least one, or disable the index")]
    Empty {
        /// Index of the request.
        index: u32,
    },
    /// Interrupts of this index can't be masked by this request.
    #[error("interrupts of index {index} can't be masked here: only INTx can, MSI-X is masked in its table")]
    NotMaskable {
        /// Index of the request.
        index: u32,
    },
}
