//! The error of operations on an attachment.

use nicforge_shm::{MemoryError, RingError};
use thiserror::Error;

use crate::{dma::DmaMapError, interrupt::IrqError, panic::DevicePanic};

/// Reason why an operation on an attachment failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The function or the attachment does not exist.
    #[error("there is no attachment {attachment} of function {function}")]
    NoSuchAttachment {
        /// Number of the function.
        function: u32,
        /// Number of the attachment.
        attachment: u16,
    },
    /// Another client has the attachment.
    #[error("attachment {attachment} of function {function} has a client already; wait until it is gone")]
    Taken {
        /// Number of the function.
        function: u32,
        /// Number of the attachment.
        attachment: u16,
    },
    /// The attachment has no client.
    #[error("attachment {attachment} of function {function} has no client")]
    NotAttached {
        /// Number of the function.
        function: u32,
        /// Number of the attachment.
        attachment: u16,
    },
    /// The function's device has panicked: see [`crate::machine::Machine::device_panic`].
    #[error("device {name} {panic}; it takes no client and no reset until its machine is started anew")]
    OutOfService {
        /// Name of the function.
        name: String,
        /// The panic.
        panic: Box<DevicePanic>,
    },
    /// The attachment's memory could not be created.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A ring could not be created: the device's description is wrong.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The DMA map refused the operation.
    #[error(transparent)]
    DmaMap(#[from] DmaMapError),
    /// The interrupts refused the operation.
    #[error(transparent)]
    Irq(#[from] IrqError),
}
