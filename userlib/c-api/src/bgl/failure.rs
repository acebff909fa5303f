//! Errors of the library as numbers of errno.h.

use nicforge_bgl::Error;
use nicforge_driver::Error as DriverError;

use crate::support::{Failure, driver_errno};

/// Translates an error of the library into a failure with a number of errno.h.
pub(crate) fn failure(error: Error) -> Failure {
    let errno = match &error {
        Error::PeerGone { .. } => libc::ECONNRESET,
        Error::PeerDown { .. } => libc::ECONNREFUSED,
        Error::Unreachable { .. } => libc::EADDRNOTAVAIL,
        Error::MessageTooLong { .. } => libc::EMSGSIZE,
        Error::NoSuchMessage => libc::EBADF,
        Error::BadConfig { .. } => libc::EINVAL,
        Error::WrongDevice { .. } => libc::ENXIO,
        Error::Device(DriverError::Cancelled) => libc::EINTR,
        Error::Device(error) => driver_errno(error),
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}
