//! Errors of the library as numbers of errno.h.

use nicforge_rma::Error;

use crate::support::{Failure, driver_errno};

/// Translates an error of the library into a failure with a number of errno.h.
pub(crate) fn failure(error: Error) -> Failure {
    let errno = match &error {
        Error::NotExtoll { .. } => libc::ENXIO,
        Error::QueueLength { .. } | Error::Unaligned { .. } | Error::Length { .. } => libc::EINVAL,
        Error::QueueRefused { .. } => libc::EBUSY,
        Error::NoSuchTarget { .. } => libc::EADDRNOTAVAIL,
        Error::Translation { .. } => libc::ENOMEM,
        Error::OutsideRegion { .. } => libc::ERANGE,
        Error::Overflow { .. } => libc::EOVERFLOW,
        Error::QueueGone | Error::Reset => libc::ENOTCONN,
        Error::Driver(error) => driver_errno(error),
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}
