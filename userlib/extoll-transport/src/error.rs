//! Errors.

use nicforge_driver::Error as DriverError;
use nicforge_matching::TransportError;
use nicforge_rma::Error as RmaError;
use nicforge_velo::{Address, Error as VeloError};
use thiserror::Error;

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
    #[error("rank {rank} has the address {address}, but the network has {nodes} nodes of {vpids} VPIDs")]
    NoSuchAddress {
        /// The rank with this address.
        rank: u32,
        /// The address.
        address: Address,
        /// Nodes of the network.
        nodes: u32,
        /// VPIDs of each node.
        vpids: u32,
    },
    /// Two ranks of the job have the same address.
    #[error("ranks {first} and {second} are both {address}")]
    SameAddress {
        /// The first rank.
        first: u32,
        /// The second rank.
        second: u32,
        /// Their address.
        address: Address,
    },
    /// The device's address is not in the job.
    #[error("{address} is no rank of this job of {size}; open the device of one")]
    NotOfJob {
        /// The device's address.
        address: Address,
        /// Number of ranks of the job.
        size: u32,
    },
    /// An error of the VELO library.
    #[error(transparent)]
    Velo(#[from] VeloError),
    /// An error of the RMA library.
    #[error(transparent)]
    Rma(#[from] RmaError),
    /// An error of the driver library.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Error {
    /// Translates the error into one of the matching layer, which has fewer details.
    pub(crate) fn to_transport_error(&self) -> TransportError {
        let (what, value) = match self {
            Error::Velo(error) if error.is_device_gone() => ("the card is gone", 0),
            Error::Driver(error) | Error::Rma(RmaError::Driver(error)) if error.is_gone() => {
                ("the card is gone", 0)
            }
            Error::Velo(VeloError::Reset) => ("this rank's device was reset", 0),
            Error::Velo(_) => ("VELO failed; ExtollTransport::failure says how", 0),
            Error::Rma(RmaError::Translation { status, .. }) => {
                ("the card did not register memory; ExtollTransport::failure says why", *status)
            }
            Error::Rma(_) => ("RMA failed; ExtollTransport::failure says how", 0),
            _ => ("the driver failed; ExtollTransport::failure says how", 0),
        };
        TransportError { what, value }
    }
}
