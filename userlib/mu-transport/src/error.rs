//! Errors.

use nicforge_driver::Error as DriverError;
use nicforge_matching::TransportError;
use nicforge_spi::{DescriptorError, Error as SpiError};
use thiserror::Error;

use crate::RankAddress;

/// Error of opening or using a transport.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of range.
    #[error("{what} is {value}; it must be {rule}")]
    BadConfig {
        /// Name of the parameter.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The rule that it violates.
        rule: &'static str,
    },
    /// An address of the job does not exist in this network.
    #[error(
        "rank {rank} has the address {address}, but the network has {nodes} nodes of 64 subgroups at most"
    )]
    NoSuchAddress {
        /// The rank with this address.
        rank: u32,
        /// The address.
        address: RankAddress,
        /// Nodes of the network.
        nodes: u32,
    },
    /// Two ranks of the job have the same address.
    #[error("ranks {first} and {second} are both {address}")]
    SameAddress {
        /// The first rank.
        first: u32,
        /// The second rank.
        second: u32,
        /// Their address.
        address: RankAddress,
    },
    /// The device's address is not in the job.
    #[error("{address} is no rank of this job of {size}; open the device of one")]
    NotOfJob {
        /// The device's address.
        address: RankAddress,
        /// Number of ranks of the job.
        size: u32,
    },
    /// An error of the SPI library.
    #[error(transparent)]
    Spi(#[from] SpiError),
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Spi(error.into())
    }
}

impl From<DescriptorError> for Error {
    fn from(error: DescriptorError) -> Self {
        Self::Spi(error.into())
    }
}

impl Error {
    /// Translates the error into one of the matching layer, which has fewer details.
    pub(crate) fn short(&self) -> TransportError {
        let what = match self {
            Error::Spi(SpiError::Driver(error)) if error.is_gone() => "the device is gone",
            Error::Spi(SpiError::Reset) => "this rank's device was reset",
            Error::Spi(SpiError::Stopped { .. } | SpiError::ReceptionStopped { .. }) => {
                "the unit has stopped a FIFO; MuTransport::failure says why"
            }
            _ => "the transport failed; MuTransport::failure says how",
        };
        TransportError { what, value: 0 }
    }
}
