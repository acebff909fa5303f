//! Messages to other ranks.

use std::collections::VecDeque;

use nicforge_matching::Rank;
use nicforge_portals::Target;

use super::{
    Endpoint,
    card::{MESSAGES, REPEATED, Source},
    notices::Notice,
    peers::InFlight,
    requests::State,
};
use crate::{
    Buffer, Error, Loss,
    bits::{self, Protocol},
    pool::Handle,
};

/// Messages that wait for room.
pub(super) struct Sends {
    /// Free slots for short messages.
    slots: Vec<u16>,
    /// Peers with queued sends.
    active: VecDeque<Rank>,
    /// Messages that receivers have asked for.
    again: VecDeque<(Rank, u64)>,
    /// Memory of messages that have ended before their puts.
    retained: Vec<Retained>,
}

/// Memory of a message that has ended, which the card may read until its puts end.
struct Retained {
    to: Rank,
    id: u64,
    /// Puts whose end the card has not reported.
    puts: u32,
    source: Source,
    /// The buffer of a message without a slot.
    _buffer: Option<Buffer>,
}

impl Sends {
    pub(super) fn new(slots: u16) -> Self {
        Self {
            slots: (0..slots).rev().collect(),
            active: VecDeque::new(),
            again: VecDeque::new(),
            retained: Vec::new(),
        }
    }

    /// Returns the number of messages that have ended, and whose memory the card may still read.
    pub(super) fn retained(&self) -> usize {
        self.retained.len()
    }

    /// Makes memory free that the card reads no more.
    fn release(&mut self, source: Source) {
        if let Source::Slot(slot) = source {
            self.slots.push(slot);
        }
    }

    /// Counts the end of a put of a message that has ended before. The end of the last one frees
    /// the message's memory.
    fn end_retained_put(&mut self, to: Rank, id: u64) {
        let is_this = |retained: &Retained| retained.to == to && retained.id == id;
        let Some(position) = self.retained.iter().position(is_this) else { return };
        let retained = &mut self.retained[position];
        retained.puts = retained.puts.saturating_sub(1);

        if retained.puts == 0 {
            let source = self.retained.swap_remove(position).source;
            self.release(source);
        }
    }

    /// Returns whether no send waits.
    pub(super) fn is_idle(&self) -> bool {
        self.active.is_empty() && self.again.is_empty()
    }
}

impl Endpoint {
    /// Starts a new send, after those that wait.
    pub(super) fn start_send(&mut self, handle: Handle, to: Rank) -> Result<(), Error> {
        let Some(peer) = self.peers.get(to) else { return Ok(()) };
        if let Some(why) = peer.loss() {
            self.fail(handle, Error::PeerGone { peer: to, why });
            return Ok(());
        }

        if peer.queue.is_empty() {
            match self.launch(handle, to) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.requests.discard(handle);
                    return Err(error);
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(to) {
            if peer.queue.is_empty() {
                self.sends.active.push_back(to);
            }
            peer.queue.push_back(handle);
        }
        Ok(())
    }

    /// Sends a message, if the peer's window and the card have room.
    fn launch(&mut self, handle: Handle, to: Rank) -> Result<bool, Error> {
        let Some(peer) = self.peers.get(to) else { return Ok(false) };
        let (Some(id), process) = (peer.next_id(), peer.process) else { return Ok(false) };
        let Some(entry) = self.requests.get(handle) else { return Ok(true) };
        let (buffer, length, envelope) = (&entry.buffer, entry.buffer.len(), entry.envelope);

        let slot = if length <= self.config.short { self.sends.slots.last().copied() } else { None };
        let source = match slot {
            Some(slot) => {
                self.card.fill_slot(slot, buffer)?;
                Source::Slot(slot)
            }
            None => Source::Segment { segment: buffer.segment(), offset: buffer.start() },
        };
        // A long message is sent as a medium one if the card can't expose the buffer for the
        // receiver's get. The receiver requests a medium message if no receive is posted for it.
        let exposed = if length > self.config.medium { self.card.expose(buffer, process, id)? } else { None };
        let protocol = if exposed.is_some() { Protocol::Long } else { Protocol::Eager };

        let bits = bits::of_message(protocol, self.peers.own(), envelope, bits::number(id));
        let target = Target::new(process, MESSAGES, bits);
        let sent = self.card.put(source, length as u64, &target, id);
        if sent != Ok(true) {
            let removed = exposed.map_or(Ok(true), |exposed| self.card.unlink(&exposed));
            return sent.and_then(|_| removed.map(|_| false));
        }

        let counter = match (source, protocol) {
            (Source::Slot(_), _) => &mut self.statistics.short,
            (_, Protocol::Eager) => &mut self.statistics.medium,
            (_, Protocol::Long) => &mut self.statistics.long,
        };
        *counter += 1;
        let request = if slot.is_some() { None } else { Some(handle) };
        let mut message = InFlight::new(id, source, length as u64, request);
        message.exposed = exposed;
        if let Some(peer) = self.peers.get_mut(to) {
            peer.enter(message);
        }

        if slot.is_some() {
            self.sends.slots.pop();
            self.complete(handle, length, Ok(()));
        } else if let Some(entry) = self.requests.get_mut(handle) {
            entry.state = State::InFlight;
        }
        Ok(true)
    }

    /// Sends messages that wait.
    pub(super) fn send_queued(&mut self) -> Result<(), Error> {
        for _ in 0..self.sends.active.len() {
            let Some(rank) = self.sends.active.pop_front() else { break };
            while let Some(handle) = self.peers.get(rank).and_then(|peer| peer.queue.front().copied()) {
                match self.launch(handle, rank) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        self.sends.active.push_front(rank);
                        return Err(error);
                    }
                }
                if let Some(peer) = self.peers.get_mut(rank) {
                    peer.queue.pop_front();
                }
            }

            if self.peers.get(rank).is_some_and(|peer| !peer.queue.is_empty()) {
                self.sends.active.push_back(rank);
            }
        }
        Ok(())
    }

    /// Removes a send from its queue. Returns whether it was there.
    pub(super) fn unqueue(&mut self, handle: Handle) -> bool {
        let Some(to) = self.requests.get(handle).map(|entry| entry.envelope.peer) else { return false };
        let Some(peer) = self.peers.get_mut(to) else { return false };
        let Some(position) = peer.queue.iter().position(|&other| other == handle) else { return false };

        peer.queue.remove(position);
        if peer.queue.is_empty() {
            self.sends.active.retain(|&rank| rank != to);
        }
        true
    }

    /// Handles a receiver's request for the data of a message.
    pub(super) fn requested(&mut self, from: Rank, id: u64) {
        let is_there = self.peers.get(from).is_some_and(|peer| peer.has(id));
        if !is_there {
            self.notify(from, Notice::NoLongerThere, id);
        } else if !self.sends.again.contains(&(from, id)) {
            self.sends.again.push_back((from, id));
        }
    }

    /// Sends messages that receivers have asked for.
    pub(super) fn send_again(&mut self) -> Result<(), Error> {
        while let Some(&(to, id)) = self.sends.again.front() {
            if let Some(peer) = self.peers.get_mut(to) {
                let target = Target::new(peer.process, REPEATED, id);
                if let Some(message) = peer.find(id) {
                    if !self.card.put(message.source, message.length, &target, id)? {
                        return Ok(());
                    }
                    message.puts += 1;
                }
            }
            self.sends.again.pop_front();
        }
        Ok(())
    }

    /// Handles the acknowledgement of a message, or the end of its get.
    pub(super) fn acknowledged(&mut self, from: Rank, number: u8, is_fetched: bool) -> Result<(), Error> {
        let Some(mut message) = self.peers.get_mut(from).and_then(|peer| peer.leave(number)) else {
            return Ok(());
        };
        if is_fetched {
            // The get has removed the descriptor.
            message.exposed = None;
        }
        self.end_send(from, message, Ok(()))
    }

    /// Counts the end of a put, after which the card reads the message's memory no more for it.
    pub(super) fn put_ended(&mut self, to: Rank, id: u64) {
        match self.peers.get_mut(to).and_then(|peer| peer.find(id)) {
            Some(message) => message.puts = message.puts.saturating_sub(1),
            None => self.sends.end_retained_put(to, id),
        }
    }

    /// Ends a message that has left its window. After a failure, memory that the card may still
    /// read stays in use until the message's puts have ended.
    pub(super) fn end_send(
        &mut self,
        to: Rank,
        message: InFlight,
        mut result: Result<(), Error>,
    ) -> Result<(), Error> {
        let InFlight { id, source, length, request, exposed, puts } = message;
        self.sends.again.retain(|waiting| *waiting != (to, id));

        let removed = exposed.map_or(Ok(true), |exposed| self.card.unlink(&exposed));
        let is_exposed = removed != Ok(true);
        if is_exposed && result.is_ok() {
            let broken = Error::PeerGone { peer: to, why: Loss::BrokeProtocol };
            result = Err(removed.clone().err().unwrap_or(broken));
        }

        // The acknowledgement of a put that was taken comes after the card has read all of it.
        let is_read = puts > 0 && result.is_err();
        let entry = request.and_then(|handle| self.requests.get_mut(handle));
        let buffer = if is_exposed || is_read { entry.map(|entry| entry.buffer.take()) } else { None };
        if is_exposed {
            self.fetches.keep(buffer);
            self.sends.release(source);
        } else if is_read {
            self.sends.retained.push(Retained { to, id, puts, source, _buffer: buffer });
        } else {
            self.sends.release(source);
        }

        if let Some(handle) = request {
            let length = if result.is_ok() { length as usize } else { 0 };
            self.complete(handle, length, result);
        }
        removed.map(drop)
    }
}
