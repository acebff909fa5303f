//! Opening a transport, waiting for the other ranks, and closing it.

use std::time::Duration;

use nicforge_bgl::{message::MessageLayer, packet::Torus};
use nicforge_driver::{Cancel, Deadline, Device, OpenOptions, environment};
use nicforge_matching::Rank;

use crate::{BglTransport, Config, Error, Job, peers::Presence, program::Program};

/// Time limit of the waits when the transport is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl BglTransport {
    /// Opens the core that `device` is, as the rank that the core has in `job`. The other ranks
    /// need not be there yet: [`BglTransport::wait_for_all`] waits for them.
    ///
    /// # Errors
    /// [`Error::BadConfig`], [`Error::NoSuchCore`], [`Error::SameNode`], [`Error::NotOfJob`];
    /// errors of the message layer.
    pub fn open(device: Device, job: &Job, config: Config) -> Result<Self, Error> {
        config.check()?;
        let torus = Torus::open(device)?;
        Self::on(torus, job, config)
    }

    /// Opens the transport on a core's packet layer.
    fn on(torus: Torus, job: &Job, config: Config) -> Result<Self, Error> {
        let layer = MessageLayer::init(torus, config.layer)?;
        let place = *layer.place();
        job.check(&place.shape)?;
        let rank = job.rank(place.rank).ok_or(Error::NotOfJob { core: place.rank, size: job.size() })?;

        let program = Program::new(job.cores(), place.ranks(), place.life, &config);
        let mut transport = Self {
            layer,
            program,
            rank,
            config,
            checked_changes: None,
            calls: 0,
            has_moved: false,
            failure: None,
        };
        transport.check_lives()?;
        Ok(transport)
    }

    /// Opens the transport of a program that `nicforge run` has started: the first device of its
    /// node, in a job with a rank on each node. Waits until every rank has come.
    ///
    /// # Errors
    /// As [`BglTransport::open`] and [`BglTransport::wait_for_all`];
    /// [`nicforge_driver::Error::Environment`].
    pub fn from_environment(config: Config, deadline: Deadline) -> Result<Self, Error> {
        let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
        Self::of_node(device, config, deadline)
    }

    /// Opens the transport of the node that `device` is of, in a job with a rank on each node.
    /// Waits until every rank has come.
    ///
    /// # Errors
    /// As [`BglTransport::open`] and [`BglTransport::wait_for_all`].
    pub fn of_node(device: Device, config: Config, deadline: Deadline) -> Result<Self, Error> {
        config.check()?;
        let torus = Torus::open(device)?;
        let nodes = nicforge_bgl::packet::PacketDevice::place(&torus).shape.nodes();
        let mut transport = Self::on(torus, &Job::of_nodes(nodes), config)?;
        transport.wait_for_all(deadline, None)?;
        Ok(transport)
    }

    /// Waits until every rank has come. A rank that came and is gone again counts as one that has
    /// come; the endpoint reports its loss.
    ///
    /// # Errors
    /// [`nicforge_driver::Error::Timeout`], [`nicforge_driver::Error::Cancelled`]; errors of the
    /// message layer.
    pub fn wait_for_all(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        let device = self.device().clone();
        device.wait_for(deadline, cancel, "all ranks of the job", || {
            self.check_lives()?;
            Ok(self.is_complete().then_some(()))
        })
    }

    /// Returns whether every rank has come, as far as this rank knows.
    /// [`nicforge_matching::Transport::poll_gone`] updates this.
    pub fn is_complete(&self) -> bool {
        let has_come = |(rank, peer): (Rank, &crate::peers::Peer)| {
            rank == self.rank || peer.presence != Presence::Absent
        };
        (0..).zip(&self.program.peers).all(has_come)
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.layer.device().device()
    }

    /// Waits until the torus has all messages. The card delivers them after this rank's end.
    fn close(&mut self) -> Result<(), Error> {
        let (device, deadline) = (self.device().clone(), Deadline::after(CLOSE_TIMEOUT));
        device.wait_for(deadline, None, "the end of all sends", || {
            self.layer.advance(&mut self.program)?;
            Ok(self.layer.has_sent_all().then_some(()))
        })
    }
}

impl Drop for BglTransport {
    fn drop(&mut self) {
        // A transport that has failed can't send its messages any more. In a child of `fork`, they
        // are the parent's.
        if self.failure.is_none() && !self.device().is_inherited() {
            let _ = self.close();
        }
    }
}
