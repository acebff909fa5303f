//! Opening a transport, waiting for the other ranks, and closing it.

use std::time::Duration;

use nicforge_driver::{
    Cancel, Deadline, Device, DmaBuffer, Error as DriverError, OpenOptions, environment, runtime,
};
use nicforge_hwi::mu::{DESCRIPTOR, FIRST_SUBGROUP, MAX_FIFO};
use nicforge_matching::{
    Rank,
    losses::LossWatch,
    staging::{Area, Staging},
};
use nicforge_spi::{Error as SpiError, Options, Subgroup};
use nix::errno::Errno;

use crate::{
    Config, Error, Job, MuTransport, RankAddress, Statistics,
    config::MAX_GETS,
    control::Clock,
    fifos::{CONTROL, Fifos, MAX_PACKET, MESSAGES, Route, Sizes},
    gets::Gets,
    packet::MAX_RANKS,
    peers::{Holding, Peer, TRIES},
};

/// Descriptors that a rank's gets and questions need at another one.
const DESCRIPTORS_OF_A_RANK: u64 = 2 * MAX_GETS as u64 + TRIES as u64;
/// Greatest size of a reception FIFO, of which each rank has a share.
const MAX_RECEPTION: u64 = 32 << 20;
/// Shortest packet in a reception FIFO, in bytes.
const MIN_PACKET: u64 = 32;
/// Time for which closing waits for the unit.
const CLOSING: Duration = Duration::from_secs(1);

/// Memory of the transport that the unit reaches.
pub(crate) struct Reachable(DmaBuffer);

impl Area for Reachable {
    fn memory(&self) -> &DmaBuffer {
        &self.0
    }

    fn address(&self) -> u64 {
        self.0.iova()
    }
}

/// Allocates memory for sources. Returns `None` when the kernel has no such piece of memory, and
/// less may do or other sources will free some.
pub(crate) fn area(subgroup: &Subgroup, bytes: usize, may_be_none: bool) -> Result<Option<Reachable>, Error> {
    match subgroup.memory(bytes) {
        Ok(memory) => Ok(Some(Reachable(memory))),
        Err(SpiError::Driver(DriverError::Refused { errno, .. }))
            if errno == Errno::ENOMEM as i32 && may_be_none =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the window of each rank, and the sizes of the FIFOs for others.
fn sizes(others: u32, window: u32) -> (u32, Sizes) {
    let others = u64::from(others.max(1));
    let window = u64::from(window).min(MAX_RECEPTION / MAX_PACKET / others).max(1);

    // A packet more than all grants: equal pointers mean an empty FIFO.
    let reception_bytes = ((others * window + 1) * MAX_PACKET).min(MAX_FIFO);
    let gets = (others * DESCRIPTORS_OF_A_RANK + 16).min(MAX_FIFO / DESCRIPTOR - 1);
    (window as u32, Sizes { reception_bytes, gets: gets as u32 })
}

impl MuTransport {
    /// Opens the FIFOs of the subgroup that `device` is, as the rank that it has in `job`. The
    /// other ranks need not be there yet: [`MuTransport::wait_for_all`] waits for them.
    ///
    /// # Errors
    /// [`Error::BadConfig`], [`Error::NoSuchAddress`], [`Error::SameAddress`], [`Error::NotOfJob`];
    /// errors of the SPI library.
    pub fn open(device: &Device, job: &Job, config: Config) -> Result<Self, Error> {
        config.check()?;
        let size = job.size();
        if size > MAX_RANKS {
            return Err(Error::BadConfig { what: "ranks", value: size as usize, rule: "at most 2^24" });
        }

        let place = Subgroup::open(device, Options::default())?.position();
        job.check(&place)?;
        let subgroup = (device.attachment() as u16).saturating_sub(FIRST_SUBGROUP);
        let address = RankAddress { node: place.rank(), subgroup };
        let rank = job.rank(address).ok_or(Error::NotOfJob { address, size })?;

        let (window, sizes) = sizes(size - 1, config.window);
        let session = runtime::random() | 1;
        let fifos = Fifos::open(device, rank, size, session, &sizes)?;
        let gets = Gets::new(&fifos.subgroup, &config)?;
        let staging = Staging::new(config.staging, config.longest_staging, |bytes, is_last| {
            area(&fifos.subgroup, bytes, !is_last)
        })?;

        let clock = Clock::new();
        let peer = |address: &RankAddress| Peer::new(Route::new(place, *address), clock.now);
        Ok(Self {
            gets,
            staging,
            rank,
            window,
            patience: config.patience,
            losses: LossWatch::new(size as usize, 2 * sizes.reception_bytes / MIN_PACKET),
            holding: Holding::default(),
            due: Vec::with_capacity(size as usize),
            peers: job.addresses().iter().map(peer).collect(),
            clock,
            failure: None,
            statistics: Statistics::default(),
            fifos,
        })
    }

    /// Opens the transport of a program that `nicforge run` has started: the first device of its
    /// node, in a job with a rank on each node, in subgroup 0. Waits until every rank has come.
    ///
    /// # Errors
    /// As [`MuTransport::open`] and [`MuTransport::wait_for_all`];
    /// [`nicforge_driver::Error::Environment`].
    pub fn from_environment(config: Config, deadline: Deadline) -> Result<Self, Error> {
        let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
        Self::of_node(&device, config, deadline)
    }

    /// Opens the transport of the node that `device` is of, in a job with a rank on each node, in
    /// subgroup 0. Waits until every rank has come.
    ///
    /// # Errors
    /// As [`MuTransport::open`] and [`MuTransport::wait_for_all`].
    pub fn of_node(device: &Device, config: Config, deadline: Deadline) -> Result<Self, Error> {
        let nodes = Subgroup::open(device, Options::default())?.position().nodes();
        let mut transport = Self::open(device, &Job::of_nodes(nodes, 1), config)?;
        transport.wait_for_all(deadline, None)?;
        Ok(transport)
    }

    /// Waits until every rank has come and messages can be sent to it. A rank that answered and
    /// went counts; the endpoint reports it.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`]; errors of the SPI library.
    pub fn wait_for_all(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        let device = self.device().clone();
        device.wait_for(deadline, cancel, "all ranks of the job", || {
            self.look()?;
            Ok(self.is_complete().then_some(()))
        })
    }

    /// Returns whether every rank has come and messages can be sent to it, as far as this rank
    /// knows. [`nicforge_matching::Transport::poll_gone`] updates this.
    pub fn is_complete(&self) -> bool {
        let there =
            |(rank, peer): (Rank, &Peer)| rank == self.rank || !peer.is_alive() || peer.is_connected();
        (0..).zip(&self.peers).all(there)
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.fifos.subgroup.device()
    }

    /// Waits for messages in progress, and puts a last row to each rank.
    fn close(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(CLOSING);
        self.wait_for_fifo(MESSAGES, deadline)?;

        let device = self.device().clone();
        for rank in 0..self.peers.len() as Rank {
            let peer = &self.peers[rank as usize];
            if rank == self.rank || !peer.is_alive() || peer.link.is_none() {
                continue;
            }
            device.wait_for(deadline, None, "room for a row", || {
                Ok::<_, Error>(self.put_row(rank, true)?.then_some(()))
            })?;
        }
        self.wait_for_fifo(CONTROL, deadline)
    }

    /// Waits until the unit has read all messages of a FIFO.
    fn wait_for_fifo(&mut self, fifo: u8, deadline: Deadline) -> Result<(), Error> {
        let injection = self.fifos.subgroup.injection();
        let last = injection.injected(fifo)?;
        Ok(injection.wait_done(fifo, last, deadline, None)?)
    }
}

impl Drop for MuTransport {
    fn drop(&mut self) {
        // The unit must have read the messages before the FIFOs are disabled. Without the device
        // there is no receiver.
        if self.failure.is_none() {
            let _ = self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reception_fifo_has_room_for_all_grants() {
        for (others, window) in [(0, 64), (1, 1), (31, 64), (2047, 64), (100_000, 4096)] {
            let (granted, sizes) = sizes(others, window);
            assert!(granted >= 1 && granted <= window);
            let all = u64::from(others) * u64::from(granted) * MAX_PACKET;
            assert!(sizes.reception_bytes > all.min(MAX_FIFO - 1), "{others} of {granted}");
            assert!(sizes.reception_bytes.is_multiple_of(32) && sizes.reception_bytes <= MAX_FIFO);
        }
        assert_eq!(sizes(31, 64).0, 64);
    }
}
