//! The transport, and the calls of the matching layer.

#![allow(
    unsafe_code,
    reason = "implements a trait that promises not to touch memory after its deregistration"
)]

use std::fmt;

use nicforge_bgl::{
    Error as LayerError,
    message::{Buffer, Disposition, MAX_SINGLE, MessageLayer},
    packet::{PacketDevice, Torus},
};
use nicforge_driver::Relax;
use nicforge_matching::{Access, Get, Gone, Memory, Rank, Region, Taken, Transport, TransportError};
use zerocopy::IntoBytes;

use crate::{
    Config, Error, Statistics,
    gets::Asked,
    information::{Information, Kind, Question},
    peers::Presence,
    program::{Program, TAGS},
};

/// Calls of [`Transport::poll_gone`] between two looks at the lives of the ranks, which take a
/// trapped access.
const CALLS_PER_CHECK: u32 = 64;

/// A rank's core. Nothing else of the process may use the core meanwhile.
///
/// Dropping the transport ends this rank for the others. Messages sent before are delivered.
pub struct BglTransport {
    pub(crate) layer: MessageLayer<Torus>,
    pub(crate) program: Program,
    /// This rank.
    pub(crate) rank: Rank,
    pub(crate) config: Config,
    /// The card's number of changes of lives when all lives were read last.
    pub(crate) checked_changes: Option<u32>,
    /// Number of calls of [`Transport::poll_gone`].
    pub(crate) calls: u32,
    /// The message layer has moved packets since the last call of [`Transport::relax`].
    pub(crate) has_moved: bool,
    /// The first error of the transport as a whole.
    pub(crate) failure: Option<Error>,
}

impl BglTransport {
    /// Returns the error of the transport as a whole, if it has failed.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Returns the counters.
    pub fn statistics(&self) -> Statistics {
        self.program.statistics
    }

    /// Notes the first failure, and translates it.
    fn fail(&mut self, error: Error) -> TransportError {
        let short = error.short();
        self.failure.get_or_insert(error);
        short
    }

    /// Updates the state of the ranks from the lives that the card shows.
    ///
    /// The card shows another life when all packets of the former one have arrived. The layer
    /// receives them after the lives were read, and before it ends its connections.
    pub(crate) fn check_lives(&mut self) -> Result<(), Error> {
        let changes = self.layer.device_mut().life_changes()?;
        if self.checked_changes == Some(changes) && !self.program.must_look {
            return Ok(());
        }
        self.program.must_look = false;

        let mut lives = Vec::with_capacity(self.program.peers.len());
        for peer in &self.program.peers {
            lives.push((peer.presence, self.layer.device_mut().life(peer.core)?));
        }

        // The messages that the layer keeps would end with their connections.
        for (rank, &(_, life)) in (0..).zip(&lives) {
            let peer = &mut self.program.peers[rank as usize];
            if rank != self.rank && peer.has_ended(life) {
                peer.is_ending = true;
                self.take_held(rank)?;
            }
        }
        self.layer.advance(&mut self.program)?;
        self.layer.check_peers(&mut self.program)?;
        if !self.layer.is_check_complete() {
            // Messages of a rank that has ended may still be in the FIFOs, so no loss is noted yet.
            self.program.must_look = true;
            return Ok(());
        }

        for (rank, (presence, life)) in (0..).zip(lives) {
            let peer = &mut self.program.peers[rank as usize];
            // A rank that has come with a message meanwhile may be newer than the life that was
            // read. The next look is about it.
            if rank != self.rank && peer.presence == presence && peer.note_life(life) {
                self.program.statistics.failed_gets += self.program.gets.fail_all(rank);
            }
        }
        self.checked_changes = Some(changes);
        Ok(())
    }

    /// Posts a message to a rank's present life. Returns false if the rank turns out to be gone.
    fn post(&mut self, to: Rank, information: Information, bytes: Vec<u8>) -> Result<bool, Error> {
        let core = self.program.peers[to as usize].core;
        match self.layer.postsend(core, information.to_bytes(), Buffer::from(bytes)) {
            Ok(_) => {
                self.program.peers[to as usize].sends += 1;
                Ok(true)
            }
            Err(rejected) => {
                self.program.pool.give(rejected.buffer.into_memory());
                match rejected.error {
                    // The next look at the lives finds the loss.
                    LayerError::PeerDown { .. } | LayerError::PeerGone { .. } => {
                        self.checked_changes = None;
                        Ok(false)
                    }
                    error => Err(error.into()),
                }
            }
        }
    }

    /// Returns whether a rank is present and few messages to it wait.
    fn has_room(&self, to: Rank) -> bool {
        let peer = &self.program.peers[to as usize];
        peer.life().is_some() && peer.sends < self.config.sends
    }

    /// Answers the gets of other ranks, as far as there is room for messages to them. Copies no
    /// more bytes than the answers to one rank have.
    fn answer_gets(&mut self) -> Result<(), Error> {
        let limit = self.config.longest_answer();
        let mut copied: usize = 0;
        for _ in 0..self.program.gets.asked.len() {
            let Some(asked) = self.program.gets.asked.pop_front() else { break };
            let bytes = (asked.length as usize).min(limit);
            let peer = &mut self.program.peers[asked.rank as usize];

            let has_room = peer.sends < self.config.sends && peer.answering + bytes <= limit;
            if peer.life().is_some() && (!has_room || copied + bytes > limit) {
                self.program.gets.asked.push_back(asked);
                continue;
            }
            peer.asked -= 1;
            if let Some(life) = peer.life() {
                copied += self.answer_get(asked, life)?;
            }
        }
        Ok(())
    }

    /// Answers a get: with the data, or with a refusal if the memory is not registered. Returns the
    /// bytes of the answer.
    fn answer_get(&mut self, asked: Asked, life: u16) -> Result<usize, Error> {
        let Asked { rank, get, key, offset, length } = asked;
        let length = length as usize;
        let is_possible = length <= self.config.longest_answer()
            && self.program.regions.contains(key, Access::Source, offset, length);

        let mut bytes = self.program.pool.take(if is_possible { length } else { 0 });
        let is_read = is_possible && self.program.regions.read(key, offset, length, &mut bytes);
        let kind = if is_read { Kind::Data } else { Kind::Refusal };
        let counter = if is_read {
            &mut self.program.statistics.served_gets
        } else {
            &mut self.program.statistics.refused_gets
        };
        *counter += 1;

        let information = Information { get: get.into(), ..Information::new(kind, life) };
        let length = bytes.len();
        if self.post(rank, information, bytes)? && length > MAX_SINGLE {
            self.program.peers[rank as usize].answering += length;
        }
        Ok(length)
    }

    /// Offers the messages that have arrived to `sink`, until it has taken `budget` messages. The
    /// ranks take turns, and a rank whose message is refused has no other turn in this call.
    /// Returns the number of messages taken.
    fn offer(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, Error> {
        let mut taken = 0;
        while taken < budget
            && let Some(rank) = self.program.ready.pop_front()
        {
            let Some(message) = self.program.peers[rank as usize].inbox.front() else { continue };
            if sink(rank, message.tag, &message.bytes) == Taken::NotNow {
                self.program.refused.push(rank);
                continue;
            }

            let inbox = &mut self.program.peers[rank as usize].inbox;
            let message = inbox.pop_front();
            // A message that comes into an empty inbox gives the rank its next turn.
            if !inbox.is_empty() {
                self.program.ready.push_back(rank);
            }
            if let Some(message) = message {
                self.program.pool.give(message.bytes);
            }
            self.program.statistics.taken += 1;
            taken += 1;
            self.take_held(rank)?;
        }
        self.program.ready.extend(self.program.refused.drain(..));
        Ok(taken)
    }

    /// Takes messages that the message layer keeps into a rank's inbox, while that has room.
    fn take_held(&mut self, rank: Rank) -> Result<(), Error> {
        while let Some((held, buffer)) = self.program.next_held(rank) {
            let disposition = Disposition::Receive(buffer);
            match self.layer.decide(held.handle, disposition, &mut self.program) {
                // The connection has ended meanwhile.
                Ok(()) | Err(LayerError::NoSuchMessage) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Does the work of [`Transport::poll`].
    fn poll_messages(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, Error> {
        self.has_moved |= self.layer.advance(&mut self.program)? > 0;
        self.answer_gets()?;
        self.offer(budget, sink)
    }

    /// Does the work of [`Transport::try_send`].
    fn send_message(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, Error> {
        let peer = &self.program.peers[to as usize];
        if peer.is_lost() {
            return Ok(true);
        }
        let Some(life) = peer.life().filter(|_| self.has_room(to)) else {
            self.program.statistics.without_room += 1;
            return Ok(false);
        };

        let mut bytes = self.program.pool.take(message.len());
        bytes.extend_from_slice(message);
        let information = Information { tag, ..Information::new(Kind::Message, life) };
        self.program.statistics.sent += u64::from(self.post(to, information, bytes)?);
        Ok(true)
    }

    /// Does the work of [`Transport::start_get`]. Returns false when there is no room.
    fn send_get(&mut self, get: &Get, life: u16) -> Result<bool, Error> {
        let Some(number) = self.program.gets.add(*get) else { return Ok(false) };
        let question = Question { key: get.remote.key.into(), offset: get.remote.offset.into() };
        let mut bytes = self.program.pool.take(size_of_val(&question));
        bytes.extend_from_slice(question.as_bytes());

        let information = Information {
            get: number.into(),
            length: (get.length as u32).into(),
            ..Information::new(Kind::Get, life)
        };
        self.program.statistics.gets += 1;
        if !self.post(get.peer, information, bytes)? {
            // The rank is gone. The get ends as those in flight do.
            self.program.statistics.failed_gets += self.program.gets.fail_all(get.peer);
        }
        Ok(true)
    }
}

// SAFETY: registered memory is reached through `Regions` alone, which checks each range and each
// access against the registration, and forgets it in `deregister`. A source is read only to answer
// a get. A destination is written only with the data of a get in flight that names it.
unsafe impl Transport for BglTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.program.peers.len() as u32
    }

    fn max_message_bytes(&self) -> usize {
        MAX_SINGLE
    }

    fn max_get_bytes(&self) -> usize {
        self.config.get_bytes
    }

    fn try_send(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, TransportError> {
        if self.program.peers.get(to as usize).is_none() || to == self.rank {
            return Err(TransportError { what: "there is no such rank to send to", value: to.into() });
        }
        if message.len() > self.max_message_bytes() {
            let value = message.len() as u64;
            return Err(TransportError { what: "a message is too long", value });
        }
        if !TAGS.contains(&tag) {
            return Err(TransportError { what: "no message has this tag", value: tag.into() });
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
        self.poll_messages(budget, sink).map_err(|error| self.fail(error))
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError> {
        Ok(self.program.regions.add(memory, access))
    }

    fn deregister(&mut self, region: Region) {
        // A get in flight that uses the region ends with an error when its data arrive.
        self.program.regions.remove(region.handle);
    }

    fn start_get(&mut self, get: &Get) -> Result<bool, TransportError> {
        let Some(peer) = self.program.peers.get(get.peer as usize) else {
            return Err(TransportError { what: "there is no such rank to get from", value: get.peer.into() });
        };
        if get.length == 0 || get.length > self.config.get_bytes {
            let value = get.length as u64;
            return Err(TransportError { what: "a get is impossible", value });
        }
        if peer.is_lost() {
            return Err(TransportError { what: "the rank of a get is lost", value: get.peer.into() });
        }

        let life = peer.life().filter(|_| self.has_room(get.peer));
        let Some(life) = life.filter(|_| self.program.gets.has_room(get.peer)) else { return Ok(false) };
        self.send_get(get, life).map_err(|error| self.fail(error))
    }

    fn poll_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError> {
        let mut ended = 0;
        while ended < budget
            && let Some((cookie, result)) = self.program.gets.take_ended()
        {
            sink(cookie, result);
            ended += 1;
        }
        Ok(ended)
    }

    fn poll_gone(&mut self) -> Option<Gone> {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS_PER_CHECK)
            && let Err(error) = self.check_lives()
        {
            // The next poll reports a failure of the transport as a whole.
            self.fail(error);
        }

        let mut peers = (0..).zip(&mut self.program.peers);
        peers.find_map(|(rank, peer)| Some(Gone { rank, why: peer.take_loss()? }))
    }

    fn relax(&mut self, relax: &mut Relax) -> Result<(), TransportError> {
        // The endpoint sees no step while the packets of a long message move. A pause that grew
        // meanwhile would delay each of its FIFOs' turns.
        if std::mem::take(&mut self.has_moved) {
            relax.reset();
        }
        match self.device().relax(relax) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error.into())),
        }
    }
}

impl fmt::Debug for BglTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |is_counted: fn(Presence) -> bool| {
            self.program.peers.iter().filter(|peer| is_counted(peer.presence)).count()
        };
        f.debug_struct("BglTransport")
            .field("rank", &self.rank)
            .field("size", &self.program.peers.len())
            .field("present", &count(|presence| matches!(presence, Presence::Present(_))))
            .field("lost", &count(|presence| matches!(presence, Presence::Lost(_) | Presence::Gone)))
            .finish_non_exhaustive()
    }
}
