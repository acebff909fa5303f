//! Messages to other ranks.

use std::collections::VecDeque;

use nicforge_matching::Rank;
use nicforge_portals::{Event, Failure, MemoryDescriptor, Target};

use super::{
    Endpoint,
    objects::{MESSAGES, REPEATED, Source},
    requests::State,
    window::InFlight,
};
use crate::{
    Buffer, Error, Loss,
    bits::{self, Protocol},
    pool::Handle,
};

/// Memory that messages leave from, and the ranks for which something waits.
pub(super) struct Sends {
    /// Free slots for short messages.
    free_slots: Vec<u16>,
    /// Ranks for which something waits for room.
    listed: VecDeque<Rank>,
    /// Memory of messages that have failed, and which the card may still read.
    retained: Vec<Retained>,
}

/// Memory of a message that has failed, which the card may still read.
struct Retained {
    /// The receiver.
    to: Rank,
    /// Id of the message among those to its receiver.
    id: u64,
    /// A put of the message is in progress.
    is_put_in_progress: bool,
    /// The descriptor from which the receiver gets the message.
    exposed: Option<MemoryDescriptor>,
    source: Source,
    /// The buffer of a message without a slot, which is only kept.
    _buffer: Option<Buffer>,
}

impl Sends {
    pub(super) fn new(slots: u16) -> Self {
        Self { free_slots: (0..slots).rev().collect(), listed: VecDeque::new(), retained: Vec::new() }
    }

    /// Returns the number of messages that have failed, and whose memory the card may still read.
    pub(super) fn retained(&self) -> usize {
        self.retained.len()
    }

    /// Frees memory that the card reads no more: a slot is used again, a buffer needs nothing.
    fn release(&mut self, source: Source) {
        if let Source::Slot(slot) = source {
            self.free_slots.push(slot);
        }
    }

    /// Applies `change` to the retained memory of a message, and frees the memory if the card reads
    /// it no more.
    fn change_retained(&mut self, to: Rank, id: u64, change: impl FnOnce(&mut Retained)) {
        let is_this = |retained: &Retained| retained.to == to && retained.id == id;
        let Some(position) = self.retained.iter().position(is_this) else { return };
        let retained = &mut self.retained[position];
        change(retained);

        if !retained.is_put_in_progress && retained.exposed.is_none() {
            let source = self.retained.swap_remove(position).source;
            self.release(source);
        }
    }
}

impl Endpoint {
    /// Starts a new send: the message leaves at once, or waits behind others to the same rank.
    pub(super) fn start_send(&mut self, handle: Handle, to: Rank) -> Result<(), Error> {
        let Some(peer) = self.peers.get(to) else { return Ok(()) };
        if let Some(why) = peer.loss() {
            self.fail(handle, Error::PeerGone { peer: to, why });
            return Ok(());
        }

        if peer.waiting.sends.is_empty() {
            match self.try_send(handle, to) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.requests.discard(handle);
                    return Err(error);
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(to) {
            peer.waiting.sends.push_back(handle);
            self.list_waiting(to);
        }
        Ok(())
    }

    /// Lists a rank for which something waits.
    pub(super) fn list_waiting(&mut self, rank: Rank) {
        let Some(peer) = self.peers.get_mut(rank) else { return };
        if !std::mem::replace(&mut peer.waiting.is_listed, true) {
            self.sends.listed.push_back(rank);
        }
    }

    /// Sends a message, if the peer's window and the card have room. Returns `false` if it must
    /// wait.
    fn try_send(&mut self, handle: Handle, to: Rank) -> Result<bool, Error> {
        let Some(peer) = self.peers.get(to).filter(|_| self.peers.has_room(to)) else { return Ok(false) };
        let (Some(id), process) = (peer.window.next_id(), peer.process) else { return Ok(false) };
        let Some(entry) = self.requests.get(handle) else { return Ok(true) };
        let (buffer, length, envelope) = (&entry.buffer, entry.buffer.len(), entry.envelope);

        let slot = if length <= self.config.short { self.sends.free_slots.last().copied() } else { None };
        let source = self.objects.prepare_source(buffer, slot)?;
        // A long message is sent as a medium one if the card can't expose the buffer for the
        // receiver's get. The receiver requests a medium message if no receive is posted for it.
        let exposed =
            if length > self.config.medium { self.objects.expose(buffer, process, id)? } else { None };
        let protocol = if exposed.is_some() { Protocol::Long } else { Protocol::Eager };

        let match_bits = bits::of_message(protocol, self.peers.local_rank(), envelope, bits::number(id));
        let target = Target::new(process, MESSAGES, match_bits);
        let sent = self.objects.put(source, length as u64, &target, id);
        // If the put was not started, the message is not exposed any longer. A receiver that breaks
        // the protocol may have begun to get the message already. The message then counts as sent,
        // also if the card is lost, and its memory is free when the get has ended.
        let is_got = match &exposed {
            Some(exposed) if sent != Ok(true) => !self.objects.unlink(exposed)?,
            _ => false,
        };
        if sent != Ok(true) && !is_got {
            return sent;
        }
        let is_put_in_progress = matches!(sent, Ok(true));

        self.statistics.count_sent(slot.is_some(), protocol);
        let request = if slot.is_some() { None } else { Some(handle) };
        let length = length as u64;
        let message = InFlight {
            id,
            match_bits,
            source,
            length,
            request,
            exposed,
            is_put_in_progress,
            is_taken: false,
        };
        self.enter_window(to, message);

        // The send of a short message is complete, because its data were copied.
        if slot.is_some() {
            self.sends.free_slots.pop();
            self.complete(handle, length as usize, Ok(()));
        } else if let Some(entry) = self.requests.get_mut(handle) {
            entry.state = State::InFlight;
        }
        Ok(true)
    }

    /// Records a message as in flight to a peer.
    fn enter_window(&mut self, to: Rank, message: InFlight) {
        let is_put_in_progress = message.is_put_in_progress;
        if let Some(peer) = self.peers.get_mut(to) {
            peer.window.insert(message);
        }
        if is_put_in_progress {
            self.peers.begin_put(to);
        }
    }

    /// Sends what waits, as far as there is room, to one rank after the other.
    pub(super) fn send_waiting(&mut self) -> Result<(), Error> {
        for _ in 0..self.sends.listed.len() {
            let Some(rank) = self.sends.listed.pop_front() else { break };
            let sent = self.send_waiting_to(rank);

            if let Some(peer) = self.peers.get_mut(rank) {
                peer.waiting.is_listed = !peer.waiting.is_empty();
                if peer.waiting.is_listed {
                    self.sends.listed.push_back(rank);
                }
            }
            sent?;
        }
        Ok(())
    }

    /// Sends what waits for a rank, as far as there is room: notices first, then data that the rank
    /// has asked for, then new messages.
    fn send_waiting_to(&mut self, rank: Rank) -> Result<(), Error> {
        self.send_notices(rank)?;
        self.send_again(rank)?;
        while let Some(handle) = self.peers.get(rank).and_then(|peer| peer.waiting.sends.front().copied())
            && self.try_send(handle, rank)?
        {
            if let Some(peer) = self.peers.get_mut(rank) {
                peer.waiting.sends.pop_front();
            }
        }
        Ok(())
    }

    /// Removes a send from its queue. Returns whether it was there.
    pub(super) fn remove_queued(&mut self, handle: Handle) -> bool {
        let Some(to) = self.requests.get(handle).map(|entry| entry.envelope.peer) else { return false };
        let Some(peer) = self.peers.get_mut(to) else { return false };
        let sends = &mut peer.waiting.sends;
        let Some(position) = sends.iter().position(|&other| other == handle) else { return false };

        sends.remove(position);
        true
    }

    /// Handles a receiver's request for the data of a message.
    pub(super) fn handle_request(&mut self, from: Rank, id: u64) {
        if self.deny_if_absent(from, id)
            && let Some(peer) = self.peers.get_mut(from)
            && !peer.waiting.repeats.contains(&id)
        {
            peer.waiting.repeats.push_back(id);
            self.list_waiting(from);
        }
    }

    /// Sends messages again that a receiver has asked for. A message of which a put is in progress
    /// waits for the put's end, so that at most one put reads a message at a time.
    fn send_again(&mut self, to: Rank) -> Result<(), Error> {
        let count = self.peers.get(to).map_or(0, |peer| peer.waiting.repeats.len());
        for _ in 0..count {
            let has_room = self.peers.has_room(to);
            let Some(peer) = self.peers.get_mut(to) else { break };
            let Some(id) = peer.waiting.repeats.pop_front() else { break };
            let Some(message) = peer.window.find(id) else { continue };

            let target = Target::new(peer.process, REPEATED, id);
            let can_leave = has_room && !message.is_put_in_progress;
            if can_leave && self.objects.put(message.source, message.length, &target, id)? {
                message.is_put_in_progress = true;
                self.peers.begin_put(to);
            } else {
                peer.waiting.repeats.push_back(id);
            }
        }
        Ok(())
    }

    /// Records that the receiver has acknowledged a message.
    pub(super) fn acknowledged(&mut self, from: Rank, id: u64) -> Result<(), Error> {
        if let Some(message) = self.peers.get_mut(from).and_then(|peer| peer.window.find(id)) {
            message.is_taken = true;
        }
        self.end_if_complete(from, id)
    }

    /// Records the end of a receiver's get of a message.
    pub(super) fn end_get_of_message(&mut self, from: Rank, event: &Event) -> Result<(), Error> {
        let (id, descriptor) = (event.message.match_bits, event.descriptor);
        let Some(peer) = self.peers.get_mut(from) else { return Ok(()) };
        let Some(message) = peer.window.find(id).filter(|message| message.is_exposed_by(descriptor)) else {
            self.sends.change_retained(from, id, |retained| retained.exposed = None);
            return Ok(());
        };

        // The get has removed the descriptor.
        message.exposed = None;
        match event.failure {
            None => {
                message.is_taken = true;
                self.end_if_complete(from, id)
            }
            // The caller ends all messages to the node.
            Some(Failure::Node) => Ok(()),
            Some(failure) => self.fail_send(from, id, failure),
        }
    }

    /// Records the end of a put of a message's data. The card no longer reads the memory for it.
    pub(super) fn end_put_of_message(
        &mut self,
        to: Rank,
        id: u64,
        failure: Option<Failure>,
    ) -> Result<(), Error> {
        match self.peers.get_mut(to).and_then(|peer| peer.window.find(id)) {
            Some(message) => message.is_put_in_progress = false,
            None => self.sends.change_retained(to, id, |retained| retained.is_put_in_progress = false),
        }
        match failure {
            None | Some(Failure::Node) => self.end_if_complete(to, id),
            Some(failure) => self.fail_send(to, id, failure),
        }
    }

    /// Ends the send of a message, if the message is complete.
    fn end_if_complete(&mut self, to: Rank, id: u64) -> Result<(), Error> {
        let Some(peer) = self.peers.get_mut(to) else { return Ok(()) };
        let is_complete = peer.window.find(id).is_some_and(|message| message.is_complete());
        match if is_complete { peer.window.remove(id) } else { None } {
            Some(message) => self.end_send(to, message, Ok(())),
            None => Ok(()),
        }
    }

    /// Ends the send of a message whose transfer has failed.
    fn fail_send(&mut self, to: Rank, id: u64, failure: Failure) -> Result<(), Error> {
        match self.peers.get_mut(to).and_then(|peer| peer.window.remove(id)) {
            Some(message) => self.end_send(to, message, Err(Error::Failed(failure))),
            None => Ok(()),
        }
    }

    /// Ends the send of a message that was removed from its window. Memory that the card may still
    /// read is retained until the put or the get has ended.
    pub(super) fn end_send(
        &mut self,
        to: Rank,
        message: InFlight,
        mut result: Result<(), Error>,
    ) -> Result<(), Error> {
        let InFlight { id, source, length, request, exposed, is_put_in_progress, .. } = message;
        // A get that is in progress prevents the removal of the descriptor.
        let removed = exposed.as_ref().map_or(Ok(true), |exposed| self.objects.unlink(exposed));
        let exposed = exposed.filter(|_| removed != Ok(true));
        if exposed.is_some() && result.is_ok() {
            // The receiver has acknowledged the message, and gets it all the same.
            let broken = Error::PeerGone { peer: to, why: Loss::BrokeProtocol };
            result = Err(removed.clone().err().unwrap_or(broken));
        }

        if is_put_in_progress || exposed.is_some() {
            let entry = request.and_then(|handle| self.requests.get_mut(handle));
            let buffer = entry.map(|entry| entry.buffer.take());
            self.sends.retained.push(Retained {
                to,
                id,
                is_put_in_progress,
                exposed,
                source,
                _buffer: buffer,
            });
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
