//! Errors of the library as numbers of errno.h.

use nicforge_velo::{DeviceError, Error};

use crate::support::{Failure, driver_errno};

/// Translates an error of the library into a failure with a number of errno.h.
pub(crate) fn failure(error: Error) -> Failure {
    let errno = match &error {
        Error::WouldBlock => libc::EAGAIN,
        Error::BadLength { .. } => libc::EMSGSIZE,
        Error::BadTag { .. } | Error::BadRing { .. } => libc::EINVAL,
        Error::NoSuchPeer { .. } => libc::EADDRNOTAVAIL,
        Error::PeerGone { .. } => libc::ECONNRESET,
        Error::NoCredit { .. } => libc::ECONNREFUSED,
        Error::Device { error: DeviceError::Watchdog { .. }, .. } => libc::EHOSTUNREACH,
        Error::Device { .. } => libc::EPROTO,
        Error::KeptFull { .. } => libc::ENOBUFS,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        Error::Cancelled { .. } => libc::ECANCELED,
        Error::Reset => libc::ENOTCONN,
        Error::WrongDevice { .. } => libc::ENXIO,
        Error::Driver(error) => driver_errno(error),
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}
