//! What can go wrong.

use nicforge_driver::Error as DriverError;
use nicforge_matching::TransportError;
use nicforge_rma::Error as RmaError;
use nicforge_velo::{Address, Error as VeloError};
use thiserror::Error;

/// Why a transport could not be opened, or has failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter does not work.
    #[error("{what} is {value}; it must be {rule}")]
    BadConfig {
        /// Which.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What works.
        rule: &'static str,
    },
    /// An address of the job is not one of this network.
    #[error("rank {rank} is to be {address}; the network has {nodes} nodes of {vpids} VPIDs")]
    NoSuchAddress {
        /// Whose.
        rank: u32,
        /// The address.
        address: Address,
        /// Nodes.
        nodes: u32,
        /// VPIDs of each.
        vpids: u32,
    },
    /// Two ranks of the job have the same address.
    #[error("ranks {first} and {second} are both {address}")]
    SameAddress {
        /// One.
        first: u32,
        /// The other.
        second: u32,
        /// Where both are.
        address: Address,
    },
    /// The device is not of the job.
    #[error("{address} is no rank of this job of {size}; open the device of one")]
    NotOfJob {
        /// The device's address.
        address: Address,
        /// Ranks of the job.
        size: u32,
    },
    /// VELO's.
    #[error(transparent)]
    Velo(#[from] VeloError),
    /// RMA's.
    #[error(transparent)]
    Rma(#[from] RmaError),
    /// The driver's.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl Error {
    /// In the words of the matching layer, which have no room for all.
    pub(crate) fn short(&self) -> TransportError {
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
