//! The libraries' errors as C has them.

use nicforge_c_support::{Failure, driver_errno};
use nicforge_extoll_transport::Error as TransportError;
use nicforge_matching::Error;
use nicforge_mpi_programs::Error as ProgramError;
use nicforge_velo::Error as VeloError;

/// An error of matching with its number of errno.h.
pub(crate) fn failure(error: Error) -> Failure {
    let errno = match &error {
        Error::Truncated { .. } => libc::EMSGSIZE,
        Error::Cancelled => libc::ECANCELED,
        Error::Interrupted { .. } => libc::EINTR,
        Error::PeerGone { .. } => libc::ECONNRESET,
        Error::BadPeer { .. } => libc::EPROTO,
        Error::NotFetched { .. } => libc::EREMOTEIO,
        Error::NoSuchPeer { .. } => libc::EADDRNOTAVAIL,
        Error::NoSuchRequest { .. } | Error::NoSuchMessage { .. } => libc::EBADF,
        Error::TooManyRequests { .. } => libc::ENOBUFS,
        Error::BadConfig { .. } => libc::EINVAL,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}

/// Why a request, which is over, has failed: what EIO says of the whole endpoint has a number of its own.
pub(crate) fn of_request(error: Error) -> Failure {
    match error {
        Error::Transport(_) => Failure::new(libc::EREMOTEIO, error.to_string()),
        other => failure(other),
    }
}

/// An error of the transport.
pub(crate) fn of_transport(error: TransportError) -> Failure {
    let errno = match &error {
        TransportError::BadConfig { .. } | TransportError::SameAddress { .. } => libc::EINVAL,
        TransportError::NoSuchAddress { .. } | TransportError::NotOfJob { .. } => libc::EADDRNOTAVAIL,
        TransportError::Velo(VeloError::Timeout { .. }) => libc::ETIMEDOUT,
        TransportError::Velo(VeloError::WrongDevice { .. }) => libc::ENXIO,
        TransportError::Driver(error) => driver_errno(error),
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}

/// An error of what all ranks do together.
pub(crate) fn of_program(error: ProgramError) -> Failure {
    match error {
        ProgramError::Matching(error) => failure(error),
        other => Failure::new(libc::EIO, other.to_string()),
    }
}
