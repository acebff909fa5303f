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
    control::{Clock, Presence},
    fifos::{CONTROL, Fifos, MAX_PACKET, MESSAGES, Route, Sizes},
    gets::Gets,
    packet::MAX_RANKS,
    peers::{HeldRanks, MAX_UNANSWERED, Peer},
};

/// Descriptors that a rank's gets (two each) and questions need in another one's FIFO for gets.
const DESCRIPTORS_OF_A_RANK: u64 = 2 * MAX_GETS as u64 + MAX_UNANSWERED as u64;
/// Further descriptors of that FIFO.
const SPARE_DESCRIPTORS: u64 = 16;
/// Maximum number of bytes of the reception FIFO, of which each other rank has a share.
const MAX_RECEPTION: u64 = 32 << 20;
/// Bytes of the shortest packet in a reception FIFO: a header.
const MIN_PACKET: u64 = 32;
/// Time limit of the waits when the transport is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Memory of the transport in which sources are staged, because the unit reaches it.
pub(crate) struct StagingArea(DmaBuffer);

impl Area for StagingArea {
    fn memory(&self) -> &DmaBuffer {
        &self.0
    }

    fn address(&self) -> u64 {
        self.0.iova()
    }
}

/// Allocates memory for sources. When the kernel has no such piece of memory, returns `None` if
/// `may_fail`, that is if the caller can do with less or wait for other sources to free some; else
/// an error.
pub(crate) fn area(subgroup: &Subgroup, bytes: usize, may_fail: bool) -> Result<Option<StagingArea>, Error> {
    match subgroup.memory(bytes) {
        Ok(memory) => Ok(Some(StagingArea(memory))),
        Err(SpiError::Driver(DriverError::Refused { errno, .. }))
            if errno == Errno::ENOMEM as i32 && may_fail =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the number of packets that each other rank may send ahead: `window`, unless the
/// reception FIFO can't be long enough for `others` ranks.
fn possible_window(others: u32, window: u32) -> u32 {
    u64::from(window).min(MAX_RECEPTION / MAX_PACKET / u64::from(others.max(1))).max(1) as u32
}

/// Returns the sizes of the FIFOs for `others` other ranks, each of which may send `window` packets
/// ahead.
fn fifo_sizes(others: u32, window: u32) -> Sizes {
    let others = u64::from(others.max(1));
    // Room for a packet more than is granted: equal pointers mean an empty FIFO.
    let reception_bytes = ((others * u64::from(window) + 1) * MAX_PACKET).min(MAX_FIFO);
    let descriptors = others * DESCRIPTORS_OF_A_RANK + SPARE_DESCRIPTORS;
    Sizes { reception_bytes, get_descriptors: descriptors.min(MAX_FIFO / DESCRIPTOR - 1) as u32 }
}

impl MuTransport {
    /// Opens the subgroup that `device` is, as the rank that the subgroup has in `job`. The other
    /// ranks need not be there yet: [`MuTransport::wait_for_all`] waits for them.
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

        let position = Subgroup::open(device, Options::default())?.position();
        job.check(&position)?;
        let subgroup = (device.attachment() as u16).saturating_sub(FIRST_SUBGROUP);
        let address = RankAddress { node: position.rank(), subgroup };
        let rank = job.rank(address).ok_or(Error::NotOfJob { address, size })?;

        let window = possible_window(size - 1, config.window);
        let sizes = fifo_sizes(size - 1, window);
        // A session number is never 0.
        let session = runtime::random() | 1;
        let fifos = Fifos::open(device, rank, size, session, &sizes)?;
        let gets = Gets::new(&fifos.subgroup, &config)?;
        let staging = Staging::new(config.staging, config.longest_staging, |bytes, is_last| {
            area(&fifos.subgroup, bytes, !is_last)
        })?;

        let clock = Clock::new();
        let peer = |address: &RankAddress| Peer::new(Route::new(position, *address), clock.now);
        Ok(Self {
            gets,
            staging,
            rank,
            window,
            patience: config.patience,
            losses: LossWatch::new(size as usize, 2 * sizes.reception_bytes / MIN_PACKET),
            held_ranks: HeldRanks::default(),
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

    /// Waits until every rank has come and messages can be sent to it. A rank that came and is gone
    /// again counts as one that has come; the endpoint reports its loss.
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`]; errors of the SPI library.
    pub fn wait_for_all(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        let device = self.device().clone();
        device.wait_for(deadline, cancel, "all ranks of the job", || {
            self.check_regularly()?;
            Ok(self.is_complete().then_some(()))
        })
    }

    /// Returns whether every rank has come and messages can be sent to it, as far as this rank
    /// knows. [`nicforge_matching::Transport::poll_gone`] updates this.
    pub fn is_complete(&self) -> bool {
        let has_come =
            |(rank, peer): (Rank, &Peer)| rank == self.rank || !peer.is_alive() || peer.is_connected();
        (0..).zip(&self.peers).all(has_come)
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.fifos.subgroup.device()
    }

    /// Waits until the unit has read all messages, and puts a last row to each rank: it says that
    /// this one leaves.
    fn close(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(CLOSE_TIMEOUT);
        self.wait_for_fifo(MESSAGES, deadline)?;

        let device = self.device().clone();
        for rank in 0..self.peers.len() as Rank {
            let peer = &self.peers[rank as usize];
            if rank == self.rank || !peer.is_alive() || peer.link.is_none() {
                continue;
            }
            device.wait_for(deadline, None, "room for a row", || {
                Ok::<_, Error>(self.put_row(rank, Presence::Leaving)?.then_some(()))
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
        // The unit must have read the messages before the FIFOs are disabled. A transport that has
        // failed can't send them any more. In a child of `fork`, the FIFOs are the parent's.
        if self.failure.is_none() && !self.device().is_inherited() {
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
            let granted = possible_window(others, window);
            let sizes = fifo_sizes(others, granted);
            assert!(granted >= 1 && granted <= window);
            let all = u64::from(others) * u64::from(granted) * MAX_PACKET;
            assert!(sizes.reception_bytes > all.min(MAX_FIFO - 1), "{others} of {granted}");
            assert!(sizes.reception_bytes.is_multiple_of(32) && sizes.reception_bytes <= MAX_FIFO);
        }
        assert_eq!(possible_window(31, 64), 64);
    }
}
