//! Who is there, connected, and gone.
//!
//! Each rank is looked at now and then: it is connected to when it has come, and lost when the directory shows another tenant. The news of its end
//! come behind all that it has sent, so it is reported when what was in the receive ring then has been offered.

use std::{
    collections::VecDeque,
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use nicforge_driver::Deadline;
use nicforge_hwi::extoll::reg;
use nicforge_matching::{Gone, Loss, Rank, TransportError};
use nicforge_rma::Target;
use nicforge_velo::{Address, DeviceError, Error as VeloError, Link, Message};

use crate::{Error, ExtollTransport, job::NOBODY};

/// BAR of the register file.
const BAR_REGISTERS: u8 = 0;
/// Ranks that are looked at in one call.
const LOOKS: usize = 4;

/// Whether a rank is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It is, or has not come yet.
    Alive,
    /// It went, when so much had been taken; what it has sent may still be in the ring.
    Going(Mark, Loss),
    /// It was reported.
    Gone,
}

/// Why the rank that was the tenant `before` is gone when the directory shows `now`, a generation that is odd while there is a tenant.
fn ended(before: u8, now: u8) -> Loss {
    if now & 1 == 0 { Loss::Ended } else { Loss::Replaced { before: before.into(), tenant: now.into() } }
}

/// How far this side has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// VELO messages taken.
    pub(crate) polled: u64,
    /// Times there was none.
    pub(crate) dry: u64,
}

/// A rank.
pub(crate) struct Peer {
    pub(crate) address: Address,
    pub(crate) target: Target,
    /// The tenant of its address that it is; 0 as long as nobody was there.
    pub(crate) tenant: u8,
    pub(crate) link: Option<Link>,
    pub(crate) health: Health,
    /// Messages that the matching layer did not want yet.
    pub(crate) held: VecDeque<Message>,
}

impl Peer {
    /// Whether it is there, or has not come yet.
    #[inline]
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.health, Health::Alive)
    }
}

impl ExtollTransport {
    /// The rank that sent a message, if it is to be listened to.
    #[inline]
    pub(crate) fn source_of(&mut self, message: &Message) -> Option<Rank> {
        let index = message.from.node as usize * self.vpids as usize + usize::from(message.from.vpid);
        let rank = self.ranks.get(index).copied().filter(|rank| *rank != NOBODY)?;
        let sender = self.velo.sender_of(message.from);
        let peer = &mut self.peers[rank as usize];
        if matches!(peer.health, Health::Gone) {
            return None;
        }
        if peer.tenant != sender {
            if peer.tenant == 0 {
                peer.tenant = sender;
            } else if sender != 0 {
                // A successor's. 0: the promise was taken back already.
                return None;
            }
        }
        Some(rank)
    }

    /// Looks at some ranks, and at what the card found wrong: nobody may send anything any more that would tell.
    pub(crate) fn look_around(&mut self) -> Result<(), TransportError> {
        if let Err(error) = self.velo.check() {
            self.wrong(error)?;
        }
        if self.registered.has_abandoned() {
            self.forget_abandoned();
        }
        for _ in 0..LOOKS.min(self.peers.len()) {
            self.look_at = if self.look_at + 1 < self.peers.len() { self.look_at + 1 } else { 0 };
            self.look(self.look_at as Rank)?;
        }
        Ok(())
    }

    /// Whether the tenant that is a rank still has its address: it may be there although it was given up.
    pub(crate) fn is_there(&self, rank: Rank) -> bool {
        self.peers
            .get(rank as usize)
            .is_some_and(|peer| peer.tenant & 1 != 0 && self.velo.tenant_of(peer.address) == peer.tenant)
    }

    #[cold]
    fn forget_abandoned(&mut self) {
        let Self { registered, peers, velo, .. } = self;
        registered.forget_abandoned(|rank| {
            peers.get(rank as usize).is_none_or(|peer| velo.tenant_of(peer.address) != peer.tenant)
        });
    }

    /// Whether a rank has come or gone.
    #[inline]
    pub(crate) fn look(&mut self, rank: Rank) -> Result<(), TransportError> {
        let peer = &self.peers[rank as usize];
        if peer.health != Health::Alive {
            return Ok(());
        }
        let now = self.velo.tenant_of(peer.address);
        if rank == self.rank {
            return if peer.tenant == now { Ok(()) } else { self.not_this_tenant() };
        }
        if peer.tenant != 0 && peer.tenant != now {
            let why = ended(peer.tenant, now);
            self.lose(rank, why);
            return Ok(());
        }
        match peer.link {
            None if now & 1 != 0 => return self.connect_to(rank),
            Some(link) if self.velo.is_refused(link) => self.lose(rank, Loss::Refused),
            _ => {}
        }
        Ok(())
    }

    /// The directory shows this rank's address without it: nobody can send to it any more.
    #[cold]
    fn not_this_tenant(&mut self) -> Result<(), TransportError> {
        // A device that was taken away does not answer.
        let gone =
            self.velo.device().bar(BAR_REGISTERS).and_then(|registers| registers.read64(reg::IDENTITY));
        Err(self.fail(gone.map_or_else(Error::from, |_| VeloError::Reset.into())))
    }

    /// Connects to a rank that has come, if that is possible at once.
    #[cold]
    fn connect_to(&mut self, rank: Rank) -> Result<(), TransportError> {
        let peer = &mut self.peers[rank as usize];
        match self.velo.connect(peer.address, Deadline::after(Duration::ZERO), None) {
            Ok(link) => {
                if peer.tenant == 0 {
                    peer.tenant = link.tenant();
                }
                if peer.tenant == link.tenant() {
                    peer.link = Some(link);
                } else {
                    let why = ended(peer.tenant, link.tenant());
                    self.lose(rank, why);
                }
                Ok(())
            }
            Err(VeloError::Timeout { .. }) => Ok(()),
            Err(error) => self.wrong(error),
        }
    }

    /// A rank went, or can't be relied on any more.
    #[cold]
    pub(crate) fn lose(&mut self, rank: Rank, why: Loss) {
        // What it has sent was in the ring before the directory told of its end.
        fence(Ordering::Acquire);
        let peer = &mut self.peers[rank as usize];
        if peer.health == Health::Alive {
            peer.health = Health::Going(self.mark, why);
            self.going.push(rank);
        }
    }

    /// A lost rank of which nothing will be offered any more.
    pub(crate) fn next_gone(&mut self) -> Option<Gone> {
        let (mark, behind) = (self.mark, self.behind);
        let peers = &mut self.peers;
        let over = |health| match health {
            Health::Going(then, why) if mark.dry > then.dry || mark.polled - then.polled > behind => {
                Some(why)
            }
            _ => None,
        };
        let going = self.going.iter().enumerate();
        let (index, why) =
            going.filter_map(|(index, rank)| Some((index, over(peers[*rank as usize].health)?))).next()?;
        let rank = self.going.swap_remove(index);
        let peer = &mut peers[rank as usize];
        peer.health = Health::Gone;
        peer.link = None;
        // They were offered, and refused.
        peer.held = VecDeque::new();
        self.holding.retain(|other| *other != rank);
        Some(Gone { rank, why })
    }

    /// What VELO says is wrong: with a rank, with nothing that matters, or with the whole.
    #[cold]
    pub(crate) fn wrong(&mut self, error: VeloError) -> Result<(), TransportError> {
        match &error {
            VeloError::PeerGone { address } => {
                if let Some(rank) = self.rank_at(*address) {
                    // A look may connect to it, and no message has gone over that link.
                    let had_link = self.peers[rank as usize].link.is_some();
                    self.look(rank)?;
                    if had_link {
                        // A message for it was dropped although the directory still shows it: what follows would be out of order.
                        self.lose(rank, Loss::Undelivered);
                    }
                }
            }
            VeloError::NoCredit { address } => {
                if let Some(rank) = self.rank_at(*address) {
                    self.lose(rank, Loss::Refused);
                }
            }
            // A message for it was lost, and with it the order.
            VeloError::Device { error: DeviceError::Watchdog { to }, .. } => {
                if let Some(rank) = self.rank_at(*to) {
                    self.lose(rank, Loss::TimedOut);
                }
            }
            // What others do can make the card count errors here: notifications that do not fit, for one.
            VeloError::Device {
                error: DeviceError::Other { .. } | DeviceError::NoReceiver { .. }, ..
            } => {
                self.statistics.errors += 1;
            }
            _ => return Err(self.fail(error.into())),
        }
        Ok(())
    }

    fn rank_at(&self, address: Address) -> Option<Rank> {
        let index = address.node as usize * self.vpids as usize + usize::from(address.vpid);
        self.ranks.get(index).copied().filter(|rank| *rank != NOBODY)
    }

    /// The whole has failed.
    pub(crate) fn fail(&mut self, error: Error) -> TransportError {
        self.failure.get_or_insert(error).short()
    }
}
