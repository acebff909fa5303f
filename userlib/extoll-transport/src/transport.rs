//! The transport: opening it, and the calls of the matching layer.

#![allow(
    unsafe_code,
    reason = "implements a trait that promises not to touch memory after its deregistration"
)]

use std::{collections::VecDeque, fmt};

use nicforge_driver::{Cancel, Deadline, Device, OpenOptions, Relax, Waiter, environment};
use nicforge_matching::{
    Access, Get, Gone, Loss, Memory, Rank, Region, Taken, Transport, TransportError,
    losses::{Health, LossWatch},
    staging::Staging,
};
use nicforge_velo::{Error as VeloError, MAX_MESSAGE, Message, Port, Statistics as VeloStatistics};

use crate::{
    Config, Error, Job, Statistics,
    gets::Gets,
    job::{NetworkPosition, RankTable},
    memory::{RegisteredMemory, staging},
    messages::{needs_no_padding, pad, unframe},
    peers::Peer,
};

/// Slots for VELO's control messages of each VPID, beside its messages.
const CONTROL_SLOTS: u32 = 4;
/// The event that [`ExtollTransport::wait_for_all`] waits for.
const ALL_RANKS: &str = "all ranks of the job";
/// Least number of slots of a transport's receive ring.
const MIN_SLOTS: u32 = 512;
/// Greatest number of slots of a receive ring.
const MAX_SLOTS: u32 = 1 << 16;

/// A rank's VELO and RMA endpoints. Nothing else of the process may use VELO or RMA of the device
/// meanwhile.
///
/// Dropping the transport ends this rank for the others. Messages sent before are delivered.
pub struct ExtollTransport {
    // Declared in the order of dropping: the memory of gets, the memory that peers may read, then
    // RMA and VELO.
    pub(crate) gets: Gets,
    pub(crate) registered: Staging<RegisteredMemory>,
    pub(crate) rma: nicforge_rma::Port,
    pub(crate) velo: Port,
    /// This rank.
    pub(crate) rank: Rank,
    pub(crate) ranks: RankTable,
    pub(crate) peers: Vec<Peer>,
    pub(crate) losses: LossWatch,
    pub(crate) refused: RefusedRanks,
    /// The first error of the transport as a whole.
    pub(crate) failure: Option<Error>,
    pub(crate) statistics: Statistics,
}

/// Limit of [`RefusedRanks`], in windows of credits of a rank.
const HELD_WINDOWS: usize = 8;

/// The ranks with messages that the matching layer has refused.
///
/// Invariant: a rank is in `ranks` once while its peer holds messages.
pub(crate) struct RefusedRanks {
    pub(crate) ranks: Vec<Rank>,
    /// Maximum number of held messages of a rank. A rank that sends more is lost, so that it
    /// neither fills this process's memory nor keeps messages of other ranks in the ring.
    limit: usize,
}

impl RefusedRanks {
    /// Returns the state of `size` ranks without held messages.
    fn new(size: usize, limit: usize) -> Self {
        Self { ranks: Vec::with_capacity(size), limit }
    }
}

/// The size of a receive ring.
#[derive(Debug, PartialEq, Eq)]
struct RingSize {
    /// Number of slots.
    slots: u32,
    /// Credits that each rank gets.
    credits: u32,
}

/// Returns the size of a receive ring that grants `window` credits to each of `ranks_per_node`
/// ranks of a node, or as many as fit.
fn ring_size(nodes: u32, vpids: u32, ranks_per_node: u32, window: u32) -> RingSize {
    // VELO grants less than half of a node's share, and reserves part of that for control messages.
    let wanted_half = ranks_per_node.saturating_mul(window).saturating_add(CONTROL_SLOTS * vpids);
    let wanted_slots = nodes.saturating_mul(wanted_half.saturating_mul(2));
    let slots = wanted_slots.clamp(MIN_SLOTS, MAX_SLOTS).next_power_of_two();

    let half = slots / nodes.max(1) / 2;
    let budget = half.saturating_sub((CONTROL_SLOTS * vpids).min(half / 2));
    RingSize { slots, credits: window.min(budget / ranks_per_node.max(1)).max(1) }
}

impl ExtollTransport {
    /// Opens VELO and RMA of the VPID that `device` is, as the rank that it has in `job`. The other
    /// ranks need not be there yet: [`ExtollTransport::wait_for_all`] waits for them.
    ///
    /// # Errors
    /// [`Error::BadConfig`], [`Error::NoSuchAddress`], [`Error::SameAddress`], [`Error::NotOfJob`];
    /// errors of the libraries.
    pub fn open(device: Device, job: &Job, config: Config) -> Result<Self, Error> {
        config.check()?;

        let position = NetworkPosition::of(&device)?;
        let ranks = job.table(&position)?;
        let not_of_job = Error::NotOfJob { address: position.address, size: job.size() };
        let rank = job.rank(position.address).ok_or(not_of_job)?;

        let rma = nicforge_rma::Port::without_poster(&device, nicforge_rma::Options::default())?;
        let RingSize { slots, credits: window } =
            ring_size(position.nodes, position.vpids, job.max_ranks_per_node(), config.window);
        let registered = staging(&device, &rma, &config)?;
        let gets = Gets::new(&device, &rma, &config)?;

        let mut peers: Vec<_> = (0..job.size())
            .filter_map(|rank| job.address(rank))
            .map(|address| {
                let target = rma.connect(address.node, address.vpid)?;
                let held = VecDeque::new();
                Ok(Peer { address, target, generation: 0, link: None, health: Health::Alive, held, gets: 0 })
            })
            .collect::<Result<_, Error>>()?;

        // VELO is opened last, because peers send from then on.
        let velo = nicforge_velo::Config { slots: Some(slots), window, ..Default::default() };
        let mut velo = Port::open(device, velo)?;
        // The ring has the length that the job needs. Other VPIDs of its nodes would use up its
        // credits.
        velo.admit(|address| job.rank(address).is_some());

        peers[rank as usize].generation = velo.tenant_of(position.address);
        // VELO keeps as many messages as the ring has slots.
        let drain_limit = 2 * u64::from(slots);
        Ok(Self {
            gets,
            registered,
            rma,
            velo,
            rank,
            ranks,
            losses: LossWatch::new(peers.len(), drain_limit),
            refused: RefusedRanks::new(peers.len(), HELD_WINDOWS * window as usize),
            peers,
            failure: None,
            statistics: Statistics::default(),
        })
    }

    /// Opens the transport of a program that `nicforge run` has started: the first device of its
    /// node, in the job of [`Job::from_environment`]. Waits until every rank has come.
    ///
    /// # Errors
    /// As [`ExtollTransport::open`] and [`ExtollTransport::wait_for_all`];
    /// [`nicforge_driver::Error::Environment`].
    pub fn from_environment(config: Config, deadline: Deadline) -> Result<Self, Error> {
        let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
        let job = Job::from_environment(&device)?;
        let mut transport = Self::open(device, &job, config)?;
        transport.wait_for_all(deadline, None)?;
        Ok(transport)
    }

    /// Waits until every rank has come and messages can be sent to it. A rank that answered and
    /// went counts; the endpoint reports it.
    ///
    /// # Errors
    /// [`VeloError::Timeout`], [`VeloError::Cancelled`]; errors of the libraries.
    pub fn wait_for_all(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        let mut waiter = Waiter::new(self.velo.device(), deadline, cancel);
        while !self.is_complete() {
            if self.check_ranks().is_err()
                && let Some(failure) = &self.failure
            {
                return Err(failure.clone());
            }
            self.velo.progress()?;

            waiter.check().map_err(|end| VeloError::of_wait(end, ALL_RANKS))?;
            waiter.pause(self.velo.device())?;
        }
        Ok(())
    }

    /// Returns whether every other rank is connected or lost, as far as this rank knows.
    /// [`Transport::poll`] and [`Transport::poll_gone`] update this.
    pub fn is_complete(&self) -> bool {
        let can_send_to = |(rank, peer): (usize, &Peer)| {
            rank == self.rank as usize
                || peer.health != Health::Alive
                || peer.link.is_some_and(|link| self.velo.credits(link) != Some(0))
        };
        self.peers.iter().enumerate().all(can_send_to)
    }

    /// Returns the error of the transport as a whole, if it has failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Returns the counters of VELO.
    pub fn velo_statistics(&self) -> VeloStatistics {
        self.velo.statistics()
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.velo.device()
    }

    /// Offers up to `budget` held messages to `sink` again. Returns the number of messages taken.
    #[cold]
    fn offer_held(&mut self, budget: usize, sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken) -> usize {
        let mut count = 0;

        let peers = &mut self.peers;
        self.refused.ranks.retain(|&rank| {
            let held = &mut peers[rank as usize].held;
            while count < budget
                && let Some(message) = held.front()
            {
                let offered =
                    unframe(message.tag, message.bytes()).map(|(tag, bytes)| sink(rank, tag, bytes));
                if offered == Some(Taken::NotNow) {
                    break;
                }
                held.pop_front();
                count += 1;
            }
            !held.is_empty()
        });

        self.statistics.taken += count as u64;
        count
    }

    /// Holds a message that the matching layer has refused. Drops it, and counts its rank as lost,
    /// when too many of the rank are held: the rank ignores its window.
    #[cold]
    fn hold(&mut self, rank: Rank, message: Message) {
        let held = &mut self.peers[rank as usize].held;
        if held.len() >= self.refused.limit {
            self.statistics.strays += 1;
            self.mark_lost(rank, Loss::Overrun);
            return;
        }
        if held.is_empty() {
            self.refused.ranks.push(rank);
        }
        held.push_back(message);
        self.statistics.held += 1;
    }

    /// Sends a VELO message. Returns false without a credit or a connection. A message to a lost
    /// rank is dropped, and counts as sent.
    #[inline]
    fn send_framed(&mut self, to: Rank, tag: u8, bytes: &[u8]) -> Result<bool, TransportError> {
        let Some(peer) = self.peers.get(to as usize) else {
            return Err(TransportError { what: "there is no such rank to send to", value: to.into() });
        };

        if !peer.is_alive() {
            return Ok(true);
        }

        let Some(link) = peer.link else {
            self.check_rank(to)?;
            return Ok(false);
        };

        match self.velo.send_nb(link, tag, bytes) {
            Ok(()) => {
                self.statistics.sent += 1;
                Ok(true)
            }
            Err(VeloError::WouldBlock) => Ok(false),
            Err(error) => self.handle_unsent(to, error),
        }
    }

    /// Handles an error that prevented a send to a rank. An earlier message may have caused it.
    /// Returns whether the rank is lost: the message is dropped then, and counts as sent. Otherwise
    /// the matching layer sends it again.
    #[cold]
    fn handle_unsent(&mut self, to: Rank, error: VeloError) -> Result<bool, TransportError> {
        self.handle_velo_error(error)?;
        self.check_rank(to)?;
        Ok(self.peers[to as usize].health != Health::Alive)
    }
}

// SAFETY: the card reaches only memory of this transport. A source is read once, in `register`. A
// destination is written only in `Gets`, in the range of a get that has ended, while it is
// registered. `deregister` and dropping this transport end that.
unsafe impl Transport for ExtollTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    fn max_message_bytes(&self) -> usize {
        MAX_MESSAGE
    }

    fn max_get_bytes(&self) -> usize {
        self.gets.max_bytes()
    }

    fn try_send(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, TransportError> {
        if needs_no_padding(tag, message) {
            return self.send_framed(to, tag, message);
        }

        let mut buffer = [0; MAX_MESSAGE];
        let Some(framed) = pad(tag, message, &mut buffer) else {
            return Err(TransportError { what: "a message is too long", value: message.len() as u64 });
        };
        self.send_framed(to, framed.tag, framed.bytes)
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(failure.to_transport_error());
        }

        let mut count = 0;
        if !self.refused.ranks.is_empty() {
            count = self.offer_held(budget, sink);
        }

        let remaining = budget - count;
        let mut message = Message::ROOM;
        for _ in 0..remaining {
            match self.velo.poll_into(&mut message) {
                Ok(true) => {}
                Ok(false) => {
                    self.losses.mark.empty_polls += 1;
                    break;
                }
                Err(error) => {
                    self.handle_velo_error(error)?;
                    break;
                }
            };

            self.losses.mark.polled += 1;
            let (source, content) = (self.identify_source(&message), unframe(message.tag, message.bytes()));
            let (Some(rank), Some((tag, bytes))) = (source, content) else {
                self.statistics.strays += 1;
                continue;
            };

            if !self.peers[rank as usize].held.is_empty() || sink(rank, tag, bytes) == Taken::NotNow {
                self.hold(rank, message);
                continue;
            }

            self.statistics.taken += 1;
            count += 1;
        }
        Ok(count)
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError> {
        match access {
            Access::Destination => Ok(Some(self.registered.add_destination(memory))),
            Access::Source => {
                let (device, rma) = (self.velo.device(), &self.rma);
                let allocate =
                    |bytes, has_others| RegisteredMemory::for_source(device, rma, bytes, has_others);
                // SAFETY: by the caller's contract a source is valid for reads and not written.
                match unsafe { self.registered.stage(memory, allocate) } {
                    Ok(Some(staged)) => {
                        let has_own_area = u64::from(staged.has_own_area);
                        self.statistics.registered += has_own_area;
                        self.statistics.staged += 1 - has_own_area;
                        Ok(Some(staged.region))
                    }
                    Ok(None) => Ok(None),
                    Err(error) => Err(error.to_transport_error()),
                }
            }
        }
    }

    fn deregister(&mut self, region: Region) {
        if self.registered.remove(region.handle) == Some(Access::Destination) {
            self.gets.withdraw(region.handle);
        }
    }

    fn abandon(&mut self, region: Region, peer: Rank) {
        if self.is_process_attached(peer) {
            self.registered.abandon(region.handle, peer);
        } else {
            self.deregister(region);
        }
    }

    fn start_get(&mut self, get: &Get) -> Result<bool, TransportError> {
        self.post_get(get)
    }

    fn poll_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        self.finish_gets(budget, sink)
    }

    fn poll_gone(&mut self) -> Option<Gone> {
        // The next poll reports a failure of the transport as a whole.
        let _ = self.check_ranks();
        if self.losses.has_unreported() { self.next_lost_rank() } else { None }
    }

    fn relax(&mut self, relax: &mut Relax) -> Result<(), TransportError> {
        match self.velo.device().relax(relax) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error.into())),
        }
    }
}

impl Drop for ExtollTransport {
    fn drop(&mut self) {
        // Sent messages are still in the posted-write ring, and the card must take them before VELO
        // is disabled. Without the card there is no receiver. In a child of `fork`, this fails at
        // once.
        let _ = self.velo.device().flush();
    }
}

impl fmt::Debug for ExtollTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.peers.iter().filter(|peer| peer.health != Health::Alive).count();
        f.debug_struct("ExtollTransport")
            .field("rank", &self.rank)
            .field("size", &self.peers.len())
            .field("gone", &lost)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_granted_its_window_while_the_ring_can_be_long_enough() {
        for (nodes, vpids, ranks_per_node) in [(2, 4, 1), (8, 8, 8), (8, 16, 1), (1, 256, 256)] {
            let RingSize { slots, credits } = ring_size(nodes, vpids, ranks_per_node, 64);
            assert!(slots.is_power_of_two() && slots <= MAX_SLOTS);
            assert_eq!(credits, 64, "{nodes} nodes, {ranks_per_node} of {vpids} VPIDs");
        }

        // Rings of the greatest length, in which fewer credits fit.
        assert_eq!(ring_size(2048, 256, 256, 64), RingSize { slots: MAX_SLOTS, credits: 1 });
        assert_eq!(ring_size(64, 64, 64, 64), RingSize { slots: MAX_SLOTS, credits: 4 });
    }
}
