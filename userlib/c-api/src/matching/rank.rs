//! The rank of a C program, over the network that its device is on.

use nicforge_bgl_transport::{BglTransport, Config as BglConfig};
use nicforge_driver::{Cancel, Deadline, Device, OpenOptions, environment};
use nicforge_extoll_transport::{Config as ExtollConfig, ExtollTransport, Job};
use nicforge_hwi::pci;
use nicforge_matching::{Buffer, Completion, Config, Endpoint, Envelope, Error, Mode, Request, Selector};
use nicforge_mpi_programs::{Error as ProgramError, collective::Barrier};
use nicforge_mu_transport::{Config as MuConfig, MuTransport};

use super::failure::{failure, of_bgl_transport, of_mu_transport, of_transport};
use crate::support::Failure;

/// The value of a request for its completion that the program does not use.
const NO_COOKIE: u64 = 0;

/// A rank, over one of the networks.
pub(crate) enum Rank {
    /// Over the EXTOLL card.
    Extoll(Box<Endpoint<ExtollTransport>>),
    /// Over the Message Unit of Blue Gene/Q.
    Mu(Box<Endpoint<MuTransport>>),
    /// Over the torus of Blue Gene/L.
    Bgl(Box<Endpoint<BglTransport>>),
}

/// Evaluates `$call` for the endpoint of the rank's network.
macro_rules! with_endpoint {
    ($rank:expr, $endpoint:ident => $call:expr) => {
        match $rank {
            Rank::Extoll($endpoint) => $call,
            Rank::Mu($endpoint) => $call,
            Rank::Bgl($endpoint) => $call,
        }
    };
}

impl Rank {
    /// Opens the rank of this program, which `nicforge run` has started, by the kind of its first
    /// device. Waits until all ranks have come.
    pub(super) fn from_environment(config: Config, deadline: Deadline) -> Result<Self, Failure> {
        let device = Device::open_env(environment::SOCKET, OpenOptions::default());
        let device = device.map_err(|error| of_transport(error.into()))?;
        let identity = device.identity();

        match (identity.vendor, identity.device) {
            (pci::VENDOR_ID, pci::DEVICE_MU) => {
                let transport = MuTransport::of_node(&device, MuConfig::default(), deadline);
                Self::of_mu(transport.map_err(of_mu_transport)?, config)
            }
            (pci::VENDOR_ID, pci::DEVICE_TORUS) => {
                let transport = BglTransport::of_node(device, BglConfig::default(), deadline);
                Self::of_bgl(transport.map_err(of_bgl_transport)?, config)
            }
            // Opening a transport over the EXTOLL card refuses devices of all other kinds.
            _ => Self::from_extoll_environment(device, config, deadline),
        }
    }

    /// Opens the rank of a program whose first device is on an EXTOLL card.
    fn from_extoll_environment(device: Device, config: Config, deadline: Deadline) -> Result<Self, Failure> {
        let job = Job::from_environment(&device).map_err(of_transport)?;
        let transport = ExtollTransport::open(device, &job, ExtollConfig::default());
        let mut transport = transport.map_err(of_transport)?;
        transport.wait_for_all(deadline, None).map_err(of_transport)?;
        Self::of_extoll(transport, config)
    }

    /// Returns the rank of a transport over the EXTOLL card.
    pub(super) fn of_extoll(transport: ExtollTransport, config: Config) -> Result<Self, Failure> {
        Ok(Self::Extoll(Box::new(Endpoint::new(transport, config).map_err(failure)?)))
    }

    /// Returns the rank of a transport over the Message Unit.
    pub(super) fn of_mu(transport: MuTransport, config: Config) -> Result<Self, Failure> {
        Ok(Self::Mu(Box::new(Endpoint::new(transport, config).map_err(failure)?)))
    }

    /// Returns the rank of a transport over the torus of Blue Gene/L.
    pub(super) fn of_bgl(transport: BglTransport, config: Config) -> Result<Self, Failure> {
        Ok(Self::Bgl(Box::new(Endpoint::new(transport, config).map_err(failure)?)))
    }

    /// Returns the number of this rank.
    pub(super) fn number(&self) -> u32 {
        with_endpoint!(self, endpoint => endpoint.rank())
    }

    /// Returns the number of ranks.
    pub(super) fn size(&self) -> u32 {
        with_endpoint!(self, endpoint => endpoint.size())
    }

    // The following are the endpoint's functions of the same names. Their requests have no cookie.
    pub(super) fn isend(&mut self, to: Envelope, data: Buffer) -> Result<Request, Error> {
        with_endpoint!(self, endpoint => endpoint.isend(to, Mode::Standard, data, NO_COOKIE))
    }

    pub(super) fn irecv(&mut self, selector: Selector, buffer: Buffer) -> Result<Request, Error> {
        with_endpoint!(self, endpoint => endpoint.irecv(selector, buffer, NO_COOKIE))
    }

    pub(super) fn wait(
        &mut self,
        request: Request,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<Completion, Error> {
        with_endpoint!(self, endpoint => endpoint.wait(request, deadline, cancel))
    }

    pub(super) fn test(&mut self, request: Request) -> Result<Option<Completion>, Error> {
        with_endpoint!(self, endpoint => endpoint.test(request))
    }

    pub(super) fn cancel(&mut self, request: Request) -> Result<bool, Error> {
        with_endpoint!(self, endpoint => endpoint.cancel(request))
    }

    pub(super) fn progress(&mut self) -> Result<usize, Error> {
        with_endpoint!(self, endpoint => endpoint.progress())
    }

    /// Waits until all ranks have entered the barrier.
    pub(super) fn wait_for_barrier(
        &mut self,
        barrier: &mut Barrier<Request>,
        deadline: Deadline,
    ) -> Result<(), ProgramError<Error>> {
        with_endpoint!(self, endpoint => barrier.wait(&mut **endpoint, deadline))
    }
}
