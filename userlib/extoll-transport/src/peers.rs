//! State of the ranks: absent, connected, gone.
//!
//! The transport checks each rank now and then. It connects to a rank that has come. It marks a
//! rank as lost when the directory shows another generation for its address: the process has ended
//! or was replaced. The directory changes only after everything that the process has sent is in the
//! receive ring. So the loss is reported after the messages that are then in the ring have been
//! offered.

use std::{
    collections::VecDeque,
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use nicforge_driver::Deadline;
use nicforge_hwi::extoll::reg;
use nicforge_matching::{Gone, Loss, Rank, TransportError, losses::Health};
use nicforge_rma::Target;
use nicforge_velo::{Address, DeviceError, Error as VeloError, Message, PeerLink};

use crate::{Error, ExtollTransport};

/// BAR of the register file.
const BAR_REGISTERS: u8 = 0;
/// Number of ranks checked in one call.
const RANKS_PER_CHECK: usize = 4;

/// Returns the loss of a rank of generation `before`. The directory shows the generation `now`,
/// which is odd while a process has the address.
fn loss_of(before: u8, now: u8) -> Loss {
    if now & 1 == 0 { Loss::Ended } else { Loss::Replaced { previous: before.into(), current: now.into() } }
}

/// State of a rank.
pub(crate) struct Peer {
    pub(crate) address: Address,
    pub(crate) target: Target,
    /// Generation of the process that is this rank; 0 while none has come.
    pub(crate) generation: u8,
    pub(crate) link: Option<PeerLink>,
    pub(crate) health: Health,
    /// Messages that the matching layer has refused so far.
    pub(crate) held: VecDeque<Message>,
    /// Gets from it in flight.
    pub(crate) gets: usize,
}

impl Peer {
    /// Returns whether the rank takes part in the job, or has not connected yet.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.health, Health::Alive)
    }
}

impl ExtollTransport {
    /// Returns the rank that has sent a message, or `None` if the message must be dropped. The
    /// first message of a process makes it the rank at its address.
    #[inline]
    pub(crate) fn identify_source(&mut self, message: &Message) -> Option<Rank> {
        let rank = self.ranks.at(message.from)?;

        let sender = self.velo.sender_of(message.from);
        let peer = &mut self.peers[rank as usize];
        if matches!(peer.health, Health::Gone) {
            return None;
        }

        if peer.generation != sender {
            if peer.generation == 0 {
                peer.generation = sender;
            } else if sender != 0 && !self.has_connected(rank) {
                self.await_successor(rank, sender);
            } else if sender != 0 {
                // The message is a successor's. With `sender` 0 the grant has ended already, and
                // the message is the rank's own.
                return None;
            }
        }
        Some(rank)
    }

    /// Checks some ranks, and errors of the card. It is called regularly, because no message may
    /// arrive that would show them.
    pub(crate) fn check_ranks(&mut self) -> Result<(), TransportError> {
        if let Err(error) = self.velo.check() {
            self.handle_velo_error(error)?;
        }

        if self.registered.has_abandoned() {
            self.free_abandoned();
        }

        for _ in 0..RANKS_PER_CHECK.min(self.peers.len()) {
            let rank = self.losses.next_checked(self.peers.len());
            self.check_rank(rank)?;
        }
        Ok(())
    }

    /// Returns whether the process that is a rank still has its address. This may be so after the
    /// rank was given up.
    pub(crate) fn is_process_attached(&self, rank: Rank) -> bool {
        self.peers.get(rank as usize).is_some_and(|peer| {
            peer.generation & 1 != 0 && self.velo.tenant_of(peer.address) == peer.generation
        })
    }

    /// Frees abandoned sources of ranks that are gone.
    #[cold]
    fn free_abandoned(&mut self) {
        let Self { registered, peers, velo, .. } = self;
        registered.free_abandoned(|rank| {
            peers.get(rank as usize).is_none_or(|peer| velo.tenant_of(peer.address) != peer.generation)
        });
    }

    /// Connects to a rank that has become present, and records a rank that is lost.
    #[inline]
    pub(crate) fn check_rank(&mut self, rank: Rank) -> Result<(), TransportError> {
        let peer = &self.peers[rank as usize];

        if peer.health != Health::Alive {
            return Ok(());
        }

        let now = self.velo.tenant_of(peer.address);
        if rank == self.rank {
            return if peer.generation == now { Ok(()) } else { self.fail_without_address() };
        }

        if peer.generation != 0 && peer.generation != now {
            let why = loss_of(peer.generation, now);
            if self.has_connected(rank) {
                self.mark_lost(rank, why);
            } else {
                self.await_successor(rank, 0);
            }
            return Ok(());
        }

        match peer.link {
            None if now & 1 != 0 => return self.connect_to(rank),
            Some(link) if self.velo.is_refused(link) => self.mark_lost(rank, Loss::Refused),
            _ => {}
        }
        Ok(())
    }

    /// Returns whether the process that counts as a rank has answered this rank, or has connected
    /// to it.
    ///
    /// A process that has done neither may belong to an earlier job: the directory did not show its
    /// end yet when this rank connected to it.
    fn has_connected(&self, rank: Rank) -> bool {
        let peer = &self.peers[rank as usize];
        peer.link.is_some_and(|link| self.velo.has_answered(link))
            || self.velo.sender_of(peer.address) == peer.generation
    }

    /// Forgets a process of an earlier job. The rank is the next process at its address, of
    /// generation `generation`, or 0 if it is not known.
    #[cold]
    fn await_successor(&mut self, rank: Rank, generation: u8) {
        let peer = &mut self.peers[rank as usize];
        (peer.generation, peer.link) = (generation, None);
    }

    /// Fails the transport: this process no longer has its address, so no rank can send to it.
    #[cold]
    fn fail_without_address(&mut self) -> Result<(), TransportError> {
        // A device that was removed does not answer.
        let device_error =
            self.velo.device().bar(BAR_REGISTERS).and_then(|registers| registers.read64(reg::IDENTITY));
        Err(self.fail(device_error.map_or_else(Error::from, |_| VeloError::Reset.into())))
    }

    /// Connects to a rank that has come, if that is possible without waiting.
    #[cold]
    fn connect_to(&mut self, rank: Rank) -> Result<(), TransportError> {
        let peer = &mut self.peers[rank as usize];
        match self.velo.connect(peer.address, Deadline::after(Duration::ZERO), None) {
            Ok(link) => {
                if peer.generation == 0 {
                    peer.generation = link.tenant();
                }
                if peer.generation == link.tenant() {
                    peer.link = Some(link);
                } else {
                    let why = loss_of(peer.generation, link.tenant());
                    self.mark_lost(rank, why);
                }
                Ok(())
            }
            Err(VeloError::Timeout { .. }) => Ok(()),
            Err(error) => self.handle_velo_error(error),
        }
    }

    /// Marks a rank as lost, because it is gone or no longer reliable.
    #[cold]
    pub(crate) fn mark_lost(&mut self, rank: Rank, why: Loss) {
        // Its messages were in the ring before the directory changed.
        fence(Ordering::Acquire);

        let peer = &mut self.peers[rank as usize];
        if peer.health == Health::Alive {
            peer.health = Health::Lost(self.losses.mark, why);
            self.losses.add(rank);
        }
    }

    /// Returns a lost rank whose messages have all been offered.
    pub(crate) fn next_lost_rank(&mut self) -> Option<Gone> {
        let peers = &mut self.peers;
        let (rank, why) = self.losses.take_drained(|rank| peers[rank as usize].health)?;

        let peer = &mut peers[rank as usize];
        peer.health = Health::Gone;

        peer.link = None;
        // The matching layer has refused these messages.
        peer.held = VecDeque::new();
        self.refused.ranks.retain(|other| *other != rank);

        Some(Gone { rank, why })
    }

    /// Handles an error of VELO. It concerns one rank, or nothing of this transport, or the
    /// transport as a whole.
    #[cold]
    pub(crate) fn handle_velo_error(&mut self, error: VeloError) -> Result<(), TransportError> {
        match &error {
            VeloError::PeerGone { address } => {
                if let Some(rank) = self.ranks.at(*address) {
                    self.check_rank(rank)?;
                }
            }

            VeloError::NoCredit { address } => {
                if let Some(rank) = self.ranks.at(*address) {
                    self.mark_lost(rank, Loss::Refused);
                }
            }

            // A message for it was lost, and the order with it.
            VeloError::Device { error: DeviceError::Watchdog { to }, .. } => {
                if let Some(rank) = self.ranks.at(*to) {
                    self.mark_lost(rank, Loss::TimedOut);
                }
            }

            // Peers can cause errors on this card, for example by notifications that do not fit.
            VeloError::Device {
                error: DeviceError::Other { .. } | DeviceError::NoReceiver { .. }, ..
            } => {
                self.statistics.errors += 1;
            }
            _ => return Err(self.fail(error.into())),
        }
        Ok(())
    }

    /// Records the first error of the transport as a whole.
    pub(crate) fn fail(&mut self, error: Error) -> TransportError {
        self.failure.get_or_insert(error).to_transport_error()
    }
}
