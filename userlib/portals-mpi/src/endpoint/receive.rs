//! The posting of receives.
//!
//! A receive is posted by one call, `PtlPost`, if no unexpected message has arrived that this rank
//! has not seen (section *MPI receive posting*). Until then, and while the card has no room, it is
//! *pending*: messages that arrive are offered to pending receives first, in their order.

use std::collections::VecDeque;

use nicforge_matching::{Envelope, Selector};

use super::{Endpoint, objects::Posting, peers::Peer, requests::State};
use crate::{Error, bits, pool::Handle};

/// Maximum number of calls of `PtlPost` for one receive in a call of `progress`.
const MAX_TRIES: u32 = 4;

/// Receives that are not matched.
#[derive(Debug, Default)]
pub(super) struct Receives {
    /// Those that are not posted, in order.
    pending: VecDeque<Handle>,
    /// Number of those that are posted.
    pub(super) posted: u32,
    /// Number of outstanding receives from any source.
    pub(super) from_any: u32,
}

impl Endpoint {
    /// Starts a new receive: gives it a message that has arrived, or appends it to the pending
    /// ones.
    pub(super) fn start_receive(&mut self, handle: Handle, selector: Selector) -> Result<(), Error> {
        match selector.source.map(|source| self.peers.get_mut(source)) {
            None => self.receives.from_any += 1,
            Some(Some(peer)) => peer.awaited += 1,
            Some(None) => {}
        }

        self.take_unexpected()?;
        if let Some(message) = self.messages.take_match(&selector) {
            return self.match_message(message, handle);
        }
        if let Some(source) = selector.source
            && let Some(why) = self.peers.get(source).and_then(Peer::loss)
        {
            self.fail(handle, Error::PeerGone { peer: source, why });
            return Ok(());
        }

        self.receives.pending.push_back(handle);
        // Receives are posted in order: behind another one, this one has to wait.
        if self.receives.pending.len() == 1 { self.post_pending() } else { Ok(()) }
    }

    /// Removes a receive that is pending, as if it had never been started. Returns `false` if it is
    /// posted, or has matched.
    pub(super) fn take_back_receive(&mut self, handle: Handle) -> bool {
        let Some(entry) = self.requests.get(handle) else { return true };
        if !matches!(entry.state, State::Pending) {
            return false;
        }

        let source = entry.selector.source;
        match source.map(|source| self.peers.get_mut(source)) {
            None => self.receives.from_any = self.receives.from_any.saturating_sub(1),
            Some(Some(peer)) => peer.awaited = peer.awaited.saturating_sub(1),
            Some(None) => {}
        }
        self.receives.pending.retain(|&pending| pending != handle);
        self.requests.discard(handle);
        true
    }

    /// Posts pending receives, as far as there is room.
    pub(super) fn post_pending(&mut self) -> Result<(), Error> {
        if self.receives.pending.is_empty() || !self.objects.refill_reserve()? {
            return Ok(());
        }

        let mut tries = 0;
        while let Some(&handle) = self.receives.pending.front()
            && self.receives.posted < self.config.receives
            && tries < MAX_TRIES
        {
            let Some(entry) = self.requests.get_mut(handle) else {
                self.receives.pending.pop_front();
                continue;
            };
            let mut criteria = bits::of_selector(&entry.selector);
            if let Some(peer) = entry.selector.source.and_then(|source| self.peers.get(source)) {
                criteria.initiator = peer.process.into();
            }

            match self.objects.post_receive(criteria, &entry.buffer, handle.to_bits())? {
                Posting::Posted(descriptor) => {
                    entry.state = State::Posted(descriptor);
                    self.receives.posted += 1;
                    self.receives.pending.pop_front();
                    tries = 0;
                }
                // The events that have been handled may have matched the receive to a message. The
                // next iteration posts the receive that is first then.
                Posting::Unexpected if self.take_unexpected()? > 0 => tries += 1,
                Posting::Unexpected | Posting::NoRoom => return Ok(()),
            }
        }
        Ok(())
    }

    /// Removes the first pending receive that matches a message, and returns it.
    pub(super) fn take_pending(&mut self, envelope: &Envelope) -> Option<Handle> {
        let matches = |handle: &Handle| {
            self.requests.get(*handle).is_some_and(|entry| entry.selector.matches(envelope))
        };
        let position = self.receives.pending.iter().position(matches)?;
        self.receives.pending.remove(position)
    }

    /// Withdraws a receive that is pending or posted. Returns `false` if a message has matched it.
    pub(super) fn withdraw(&mut self, handle: Handle) -> Result<bool, Error> {
        if let Some(position) = self.receives.pending.iter().position(|&other| other == handle) {
            self.receives.pending.remove(position);
            self.has_work = true;
            return Ok(true);
        }

        let Some(State::Posted(descriptor)) = self.requests.get(handle).map(|entry| &entry.state) else {
            return Ok(false);
        };
        let is_withdrawn = self.objects.unlink(descriptor)?;
        if is_withdrawn {
            self.receives.posted -= 1;
            self.has_work = true;
        }
        Ok(is_withdrawn)
    }
}
