//! The errors of the library as C errors.

use nicforge_fcnp::Error;

use crate::support::{Failure, driver_errno};

/// Returns the error number of errno.h, and the text, for an error of the library.
pub(crate) fn failure(error: Error) -> Failure {
    let errno = match &error {
        Error::PeerGone { .. } => libc::ECONNRESET,
        Error::Aborted { .. } => libc::ECONNABORTED,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        Error::Cancelled { .. } => libc::ECANCELED,
        Error::Busy { .. } => libc::EBUSY,
        Error::NoSuchCore { .. } => libc::EINVAL,
        Error::WrongDevice { .. } => libc::ENXIO,
        Error::AlreadyServed { .. } => libc::EADDRINUSE,
        Error::BadDevice { .. } | Error::BadPeer { .. } => libc::EPROTO,
        Error::Thread { .. } => libc::EAGAIN,
        Error::Device(error) => driver_errno(error),
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}
