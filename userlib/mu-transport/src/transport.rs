//! The transport, and the calls of the matching layer.

#![allow(
    unsafe_code,
    reason = "implements a trait that promises not to touch memory after its deregistration"
)]

use std::{fmt, time::Duration};

use nicforge_driver::Relax;
use nicforge_matching::{
    Access, Get, Gone, Memory, Rank, Region, Taken, Transport, TransportError,
    losses::{Health, LossWatch},
    staging::Staging,
};
use nicforge_spi::Packet;

use crate::{
    Error, Statistics,
    control::Clock,
    fifos::{Fifos, MAX_MESSAGE, RECEPTION},
    gets::Gets,
    open::{StagingArea, area},
    packet::Header,
    peers::{HeldRanks, Peer},
};

/// The tags that the matching layer gives its messages.
const TAGS: std::ops::RangeInclusive<u8> = 1..=7;

/// A rank's subgroup. Nothing else of the process may use the subgroup meanwhile.
///
/// Dropping the transport ends this rank for the others. Messages sent before are delivered.
pub struct MuTransport {
    /// Declared before the other memory, so that it is dropped first: the unit then leaves all
    /// memory alone.
    pub(crate) fifos: Fifos,
    pub(crate) gets: Gets,
    pub(crate) staging: Staging<StagingArea>,
    /// This rank.
    pub(crate) rank: Rank,
    /// Packets that each rank may send ahead.
    pub(crate) window: u32,
    /// [`Config::patience`](crate::Config::patience).
    pub(crate) patience: Duration,
    /// State of each rank. The entry of this one has no meaning.
    pub(crate) peers: Vec<Peer>,
    pub(crate) losses: LossWatch,
    pub(crate) held_ranks: HeldRanks,
    /// Ranks to which this one will put a row.
    pub(crate) due: Vec<Rank>,
    pub(crate) clock: Clock,
    /// The first error of the transport as a whole.
    pub(crate) failure: Option<Error>,
    pub(crate) statistics: Statistics,
}

/// A message of a packet.
struct Received<'a> {
    rank: Rank,
    tag: u8,
    bytes: &'a [u8],
}

/// Reads the message of a packet into `buffer`. Returns `None` unless the present process of a rank
/// of the job has sent it to this process.
#[inline]
fn read_message<'a>(
    peers: &[Peer],
    packet: &Packet<'_>,
    buffer: &'a mut [u8; MAX_MESSAGE],
) -> Option<Received<'a>> {
    let header = Header::from_software(&packet.software())?;
    let peer = peers.get(header.rank as usize)?;
    let link = peer.link.filter(|link| link.receive_connection == header.connection)?;
    if peer.health == Health::Gone || link.session == 0 || !TAGS.contains(&header.tag) {
        return None;
    }

    let length = usize::from(header.length);
    let bytes = buffer.get_mut(..length)?;
    let is_complete = packet.read(bytes) == Ok(length);
    is_complete.then_some(Received { rank: header.rank, tag: header.tag, bytes })
}

impl MuTransport {
    /// Returns the error of the transport as a whole, if it has failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Counts a message that the matching layer has taken.
    #[inline]
    fn count_taken(&mut self, rank: Rank) {
        let peer = &mut self.peers[rank as usize];
        peer.flow.taken = peer.flow.taken.wrapping_add(1);
        self.statistics.taken += 1;
        if peer.flow.is_grant_due(self.window) {
            self.mark_due(rank);
        }
    }

    /// Offers the held messages to `sink` again, until it has taken `budget` messages. Returns the
    /// number of messages taken.
    #[cold]
    fn offer_held(&mut self, budget: usize, sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken) -> usize {
        let mut taken = 0;
        let mut ranks = std::mem::take(&mut self.held_ranks.ranks);

        // Ranks whose messages were all taken leave the list.
        ranks.retain(|&rank| {
            while taken < budget {
                let Some(held) = self.peers[rank as usize].held.front() else { return false };
                if sink(rank, held.tag, &held.bytes) == Taken::NotNow {
                    return true;
                }
                self.peers[rank as usize].held.pop_front();
                self.count_taken(rank);
                taken += 1;
            }
            !self.peers[rank as usize].held.is_empty()
        });

        self.held_ranks.ranks = ranks;
        taken
    }

    /// Takes up to `limit` packets, and offers their messages to `sink`. Those that it does not
    /// take are held. Returns the number of messages taken.
    fn take_packets(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, Error> {
        let Self { fifos, peers, held_ranks, due, statistics, window, .. } = self;
        let taken_before = statistics.taken;

        let received = fifos.subgroup.receive(RECEPTION, limit as u32, |packet, _| {
            let mut buffer = [0; MAX_MESSAGE];
            let Some(Received { rank, tag, bytes }) = read_message(peers, packet, &mut buffer) else {
                statistics.strays += 1;
                return;
            };

            // A rank that sends more than was granted must not fill this process's memory.
            let peer = &mut peers[rank as usize];
            if peer.holds_grant(*window) {
                statistics.strays += 1;
                return;
            }
            // The connection number shows that the rank knows this session, even if its row that
            // says so was not read yet.
            if let Some(link) = &mut peer.link {
                link.is_answered = true;
            }
            // A message must not overtake those of its rank that are held.
            if !peer.held.is_empty() || sink(rank, tag, bytes) == Taken::NotNow {
                held_ranks.hold(rank, peer, tag, bytes);
                statistics.held += 1;
                return;
            }

            statistics.taken += 1;
            peer.flow.taken = peer.flow.taken.wrapping_add(1);
            if peer.flow.is_grant_due(*window) && !peer.row.is_due {
                peer.row.is_due = true;
                due.push(rank);
            }
        })? as usize;

        self.losses.mark.polled += received as u64;
        self.losses.mark.empty_polls += u64::from(received < limit);
        Ok((self.statistics.taken - taken_before) as usize)
    }

    /// Sends a message to a rank. Returns false when there is no credit or no room now. A message
    /// to a lost rank is dropped, and true is returned.
    #[inline]
    fn send_message(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, Error> {
        let peer = &self.peers[to as usize];
        if !peer.is_connected() || !peer.flow.has_credit() {
            self.check_rank(to)?;
        }

        let peer = &mut self.peers[to as usize];
        let Some(link) = peer.link.filter(|link| link.is_answered && peer.flow.has_credit()) else {
            self.statistics.without_credit += 1;
            return Ok(!peer.is_alive());
        };
        if !peer.is_alive() {
            return Ok(true);
        }

        let header =
            Header { rank: self.rank, tag, length: message.len() as u16, connection: link.send_connection };
        let is_sent = self.fifos.send(&peer.route, header, message)?;
        if is_sent {
            peer.flow.sent = peer.flow.sent.wrapping_add(1);
            self.statistics.sent += 1;
        }
        Ok(is_sent)
    }
}

// SAFETY: the unit reaches only memory of this transport. A source is read once, in `register`. A
// destination is written only in `Gets`, in the range of a get that has ended, while it is
// registered. `deregister` and dropping this transport end that.
unsafe impl Transport for MuTransport {
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
        let Some(peer) = self.peers.get(to as usize) else {
            return Err(TransportError { what: "there is no such rank to send to", value: to.into() });
        };
        if message.len() > MAX_MESSAGE {
            let value = message.len() as u64;
            return Err(TransportError { what: "a message is too long", value });
        }
        if !TAGS.contains(&tag) {
            return Err(TransportError { what: "no message has this tag", value: tag.into() });
        }

        if !peer.is_alive() {
            return Ok(true);
        }
        self.send_message(to, tag, message).map_err(|error| self.fail(error))
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, TransportError> {
        if let Some(failure) = &self.failure {
            return Err(failure.short());
        }

        let held = if self.held_ranks.ranks.is_empty() { 0 } else { self.offer_held(budget, sink) };
        let taken = self.take_packets(budget - held, sink).map_err(|error| self.fail(error))?;

        if !self.due.is_empty() {
            self.put_due_rows().map_err(|error| self.fail(error))?;
        }
        Ok(held + taken)
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError> {
        match access {
            Access::Destination => Ok(Some(self.staging.add_destination(memory))),
            Access::Source => {
                let subgroup = &self.fifos.subgroup;
                let allocate = |bytes, may_fail| area(subgroup, bytes, may_fail);
                // SAFETY: by the caller's contract a source is valid for reads and not written.
                match unsafe { self.staging.stage(memory, allocate) } {
                    Ok(Some(staged)) => {
                        let counter = if staged.has_own_area {
                            &mut self.statistics.own_areas
                        } else {
                            &mut self.statistics.staged
                        };
                        *counter += 1;
                        Ok(Some(staged.region))
                    }
                    Ok(None) => Ok(None),
                    Err(error) => Err(error.short()),
                }
            }
        }
    }

    fn deregister(&mut self, region: Region) {
        if self.staging.remove(region.handle) == Some(Access::Destination) {
            self.gets.withdraw(region.handle);
        }
    }

    fn abandon(&mut self, region: Region, peer: Rank) {
        // The unit of a process that has not left may still fetch the source.
        let may_fetch = self.peers.get(peer as usize).is_some_and(|peer| !peer.has_left);
        if may_fetch {
            self.staging.abandon(region.handle, peer);
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
        if let Err(error) = self.check_regularly() {
            // The next poll reports a failure of the transport as a whole.
            self.fail(error);
        }
        if self.losses.has_unreported() { self.next_gone() } else { None }
    }

    fn relax(&mut self, relax: &mut Relax) -> Result<(), TransportError> {
        match self.device().relax(relax) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error.into())),
        }
    }
}

impl fmt::Debug for MuTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |is_counted: fn(&Peer) -> bool| self.peers.iter().filter(|peer| is_counted(peer)).count();
        f.debug_struct("MuTransport")
            .field("rank", &self.rank)
            .field("size", &self.peers.len())
            .field("connected", &count(Peer::is_connected))
            .field("gone", &count(|peer| !peer.is_alive()))
            .finish_non_exhaustive()
    }
}
