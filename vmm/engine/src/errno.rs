//! Error numbers for a client when the machine refuses a request.

use nicforge_core::{
    dma::{DmaError, DmaMapError},
    machine::{AccessError, MachineError},
};
use nicforge_shm::MemoryError;
use nicforge_vfio_user::Errno;

/// Returns the error number for a client whose request the machine refused.
pub(crate) fn of_machine(error: &MachineError) -> Errno {
    match error {
        MachineError::NotAttached { .. } | MachineError::NoSuchAttachment { .. } => Errno::ENODEV,
        MachineError::Taken { .. } => Errno::EBUSY,
        MachineError::OutOfService { .. } => Errno::EIO,
        MachineError::Memory(_) => Errno::ENOMEM,
        MachineError::DmaMap(error) => of_dma_map(error),
        _ => Errno::EINVAL,
    }
}

/// Returns the error number for a client whose access of a region was refused.
pub(crate) fn of_access(error: &AccessError) -> Errno {
    match error {
        AccessError::Machine(error) => of_machine(error),
        AccessError::ReadOnly { .. } => Errno::EACCES,
        AccessError::OutOfRange { .. } | AccessError::TooWide { .. } => Errno::EINVAL,
    }
}

/// Returns the error number for a client whose map or unmap of a DMA range was refused.
fn of_dma_map(error: &DmaMapError) -> Errno {
    match error {
        DmaMapError::Overlap { .. } => Errno::EEXIST,
        DmaMapError::Quota { .. } => Errno::ENOSPC,
        DmaMapError::NotWritable { .. } => Errno::EACCES,
        DmaMapError::NotFound { .. } => Errno::ENOENT,
        DmaMapError::Zero { .. }
        | DmaMapError::Wraps { .. }
        | DmaMapError::BadBacking { .. }
        | DmaMapError::Partial { .. } => Errno::EINVAL,
    }
}

/// Returns the error number for a client whose file could not be mapped.
pub(crate) fn of_memory(error: &MemoryError) -> Errno {
    match error {
        MemoryError::File { errno } | MemoryError::Map { errno, .. } => (*errno).into(),
        MemoryError::Guard(_) => Errno::ENOSPC,
        _ => Errno::EINVAL,
    }
}

/// Returns the error for a device whose client refuses a DMA message.
pub(crate) fn refused(errno: Errno) -> DmaError {
    DmaError::Refused { errno: errno.raw() }
}
