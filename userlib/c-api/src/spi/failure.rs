//! Errors as numbers of errno.h.

use nicforge_spi::{DescriptorError, Error};

use crate::support::{Failure, driver_errno};

/// Translates an error of the library.
pub(super) fn failure(error: Error) -> Failure {
    let errno = match &error {
        Error::Driver(driver) => driver_errno(driver),
        Error::WrongDevice { .. } | Error::Reset => libc::ENODEV,
        Error::Taken { .. } | Error::InBarrier { .. } => libc::EBUSY,
        Error::NotAllocated { .. } | Error::NotInitialised { .. } => libc::ENXIO,
        Error::NoSuch { .. }
        | Error::NoLine { .. }
        | Error::NoSuchSubgroup { .. }
        | Error::FifoMemory { .. }
        | Error::Batch { .. }
        | Error::TooManyRanges { .. }
        | Error::ClassRoute { .. }
        | Error::ClassRouteRefused { .. }
        | Error::BaseAddressTooHigh { .. }
        | Error::Descriptor(_) => libc::EINVAL,
        Error::LineRefused { .. } | Error::ReceptionRefused { .. } | Error::BarrierRefused { .. } => {
            libc::EACCES
        }
        Error::Withdrawn { .. } => libc::ECANCELED,
        Error::AddressTooHigh { .. } => libc::EFAULT,
        Error::NoHandler { .. } => libc::ENOMSG,
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}

/// Translates an error of a descriptor.
pub(super) fn descriptor_failure(error: DescriptorError) -> Failure {
    failure(error.into())
}

/// Returns the failure of a call with an invalid argument.
pub(super) fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(libc::EINVAL, text)
}
