//! Errors of the libraries as numbers of errno.h.

use nicforge_bgl::Error as LayerError;
use nicforge_bgl_transport::Error as BglError;
use nicforge_extoll_transport::Error as TransportError;
use nicforge_matching::Error;
use nicforge_mpi_programs::Error as ProgramError;
use nicforge_mu_transport::Error as MuError;
use nicforge_spi::Error as SpiError;
use nicforge_velo::Error as VeloError;

use crate::support::{Failure, driver_errno};

/// Translates an error of matching into a failure with a number of errno.h.
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
        Error::TooManyRequests { .. } | Error::WindowFull { .. } => libc::ENOBUFS,
        Error::BadConfig { .. } => libc::EINVAL,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}

/// Translates the error of a request that is over. EIO means that the endpoint as a whole has
/// failed, so a failed transfer has another number.
pub(crate) fn of_request(error: Error) -> Failure {
    match error {
        Error::Transport(_) => Failure::new(libc::EREMOTEIO, error.to_string()),
        other => failure(other),
    }
}

/// Translates an error of the transport over the Message Unit.
pub(crate) fn of_mu_transport(error: MuError) -> Failure {
    let errno = match &error {
        MuError::BadConfig { .. } | MuError::SameAddress { .. } => libc::EINVAL,
        MuError::NoSuchAddress { .. } | MuError::NotOfJob { .. } => libc::EADDRNOTAVAIL,
        MuError::Spi(SpiError::Driver(error)) => driver_errno(error),
        MuError::Spi(SpiError::WrongDevice { .. }) => libc::ENXIO,
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}

/// Translates an error of the transport over the torus of Blue Gene/L.
pub(crate) fn of_bgl_transport(error: BglError) -> Failure {
    let errno = match &error {
        BglError::BadConfig { .. } | BglError::SameNode { .. } => libc::EINVAL,
        BglError::NoSuchCore { .. } | BglError::NotOfJob { .. } => libc::EADDRNOTAVAIL,
        BglError::Layer(LayerError::Device(error)) => driver_errno(error),
        BglError::Layer(LayerError::WrongDevice { .. }) => libc::ENXIO,
        _ => libc::EIO,
    };
    Failure::new(errno, error.to_string())
}

/// Translates an error of the transport over the EXTOLL card.
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

/// Translates an error of a collective operation.
pub(crate) fn of_program(error: ProgramError<Error>) -> Failure {
    match error {
        ProgramError::Endpoint(error) => failure(error),
        other => Failure::new(libc::EIO, other.to_string()),
    }
}
