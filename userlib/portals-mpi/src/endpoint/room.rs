//! Windows that are full of messages whose data only their sender has.
//!
//! Such a message stays in its sender's window until a receive has matched it. A receive of a later
//! message would wait for ever, because that has no place in the window. So while a receive waits
//! for a peer whose window is full, this rank tells the peer which messages it *keeps* the headers
//! of. The peer takes these out of its window, and has their data until they are fetched.
//!
//! [`crate::Config::headers`] bounds the number of headers. Without room for more, the peer is told
//! that its window is full. Then it fails the sends that wait for the window, and answers, if there
//! are any. On the answer this rank fails the receives that wait for the peer.

use nicforge_driver::runtime::Instant;
use nicforge_matching::Rank;

use super::{Endpoint, notices::Notice, requests::State};
use crate::Error;

/// Number of peers with full windows that one call checks.
const CHECKED_PEERS: usize = 4;
/// Parts of [`crate::Config::patience`] after which a peer is told again that its window is full.
const REPETITIONS: u32 = 16;

impl Endpoint {
    /// Keeps the headers of messages of peers whose windows are full, and for which a receive
    /// waits.
    #[cold]
    pub(super) fn relieve_full_windows(&mut self) {
        for _ in 0..CHECKED_PEERS.min(self.messages.full.len()) {
            let Some(rank) = self.messages.full.pop_front() else { return };
            let is_alive = self.peers.get(rank).is_some_and(|peer| peer.loss().is_none());
            if !is_alive || !self.messages.is_full(rank) {
                self.messages.unlist_full(rank);
                continue;
            }

            self.messages.full.push_back(rank);
            if self.is_awaited(rank) && !self.keep_headers(rank) {
                self.tell_full(rank);
            }
        }
    }

    /// Returns whether a receive waits that a message of this rank may match.
    fn is_awaited(&self, rank: Rank) -> bool {
        self.receives.from_any > 0 || self.peers.get(rank).is_some_and(|peer| peer.awaited > 0)
    }

    /// Keeps the headers of the messages in a peer's window. Returns `false` without room for more.
    fn keep_headers(&mut self, rank: Rank) -> bool {
        let ids = self.messages.list_unkept(rank);
        if !self.messages.has_room(self.config.headers, rank, ids.len() as u32) {
            return false;
        }
        for (handle, id) in ids {
            // Without room for the notice, a later call keeps the header.
            if !self.notify(rank, Notice::Kept, id) {
                break;
            }
            self.messages.keep(handle);
            self.statistics.kept += 1;
        }
        true
    }

    /// Tells a peer now and then that its window is full, and that no more of its headers are kept.
    fn tell_full(&mut self, rank: Rank) {
        let (now, interval) = (Instant::now(), self.config.patience / REPETITIONS);
        let Some(peer) = self.peers.get_mut(rank) else { return };
        if peer.told_full.is_none_or(|time| now >= time + interval)
            && self.notify(rank, Notice::Full, 0)
            && let Some(peer) = self.peers.get_mut(rank)
        {
            peer.told_full = Some(now);
        }
    }

    /// Returns the error of requests that wait for the window of rank `sender` at `receiver`.
    fn window_error(sender: Rank, receiver: Rank) -> Error {
        Error::WindowFull { sender, receiver }
    }

    /// Handles a receiver's notice that this rank's window there is full: the sends that wait for
    /// it fail.
    pub(super) fn handle_full(&mut self, from: Rank) {
        let own = self.rank();
        let Some(peer) = self.peers.get_mut(from) else { return };
        if peer.window.next_id().is_some() || peer.waiting.sends.is_empty() {
            return;
        }
        for handle in std::mem::take(&mut peer.waiting.sends) {
            self.fail(handle, Self::window_error(own, from));
        }
        self.notify(from, Notice::Blocked, 0);
    }

    /// Handles a sender's answer that sends have failed because its window is full: the receives
    /// that wait for the sender fail, unless the window has room by now.
    pub(super) fn handle_blocked(&mut self, from: Rank) -> Result<(), Error> {
        let own = self.rank();
        let was_told = self.peers.get_mut(from).is_some_and(|peer| peer.told_full.take().is_some());
        if !was_told {
            return Ok(());
        }
        for handle in self.requests.receives_of(|source| source.is_none_or(|source| source == from)) {
            let is_waiting = self
                .requests
                .get(handle)
                .is_some_and(|entry| matches!(entry.state, State::Pending | State::Posted(_)));
            if is_waiting && self.withdraw(handle)? {
                self.fail(handle, Self::window_error(from, own));
            }
        }
        Ok(())
    }

    /// Handles a receiver's notice that it keeps the header of a message.
    pub(super) fn handle_kept(&mut self, from: Rank, id: u64) {
        if let Some(peer) = self.peers.get_mut(from)
            && peer.window.set_aside(id)
        {
            self.has_work = true;
        }
    }
}
