//! Notices to other ranks about messages whose data are of no more use to one side.
//!
//! A receiver that has got the data damaged each time, or that counts the sender as silent, has
//! *given the message up*: its sender ends the request. A sender that is asked for a message which
//! it has ended says that its data are *no longer there*: the receiver ends the fetch.
//!
//! Portals drops a get that nothing matches, and answers nothing. A receiver whose get takes long
//! therefore asks once whether the message is there. The question follows the get in order: a
//! sender that still has the message then had it exposed for the get.

use nicforge_matching::Rank;

use super::{
    Endpoint,
    objects::{BLOCKED, GIVEN_UP, IS_THERE, KEPT, NO_LONGER_THERE, WINDOW_FULL},
};
use crate::{Error, Loss};

/// Maximum number of notices that wait for one rank. A rank that keeps to the protocol causes
/// fewer.
const MAX_WAITING: usize = 512;

/// The event that a notice reports, or the question that it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The receiver will not ask for the message any more.
    GivenUp,
    /// The sender no longer has the message.
    NoLongerThere,
    /// The receiver asks whether the sender has the message.
    IsThere,
    /// The receiver keeps the message's header, so that the message leaves the sender's window.
    Kept,
    /// The sender's window is full, and the receiver keeps no more headers.
    Full,
    /// Sends have failed because of the receiver's notice of a full window.
    Blocked,
}

impl Notice {
    /// Returns the match bits of the notice.
    fn bits(self) -> u64 {
        match self {
            Self::GivenUp => GIVEN_UP,
            Self::NoLongerThere => NO_LONGER_THERE,
            Self::IsThere => IS_THERE,
            Self::Kept => KEPT,
            Self::Full => WINDOW_FULL,
            Self::Blocked => BLOCKED,
        }
    }
}

impl Endpoint {
    /// Queues a notice about a message, which is sent when there is room for it. Returns `false` if
    /// too many wait for the rank.
    pub(super) fn notify(&mut self, to: Rank, notice: Notice, id: u64) -> bool {
        let Some(peer) = self.peers.get_mut(to) else { return false };
        let notices = &mut peer.waiting.notices;
        if notices.contains(&(notice, id)) {
            return true;
        }
        if notices.len() >= MAX_WAITING {
            return false;
        }

        notices.push_back((notice, id));
        self.list_waiting(to);
        self.has_work = true;
        true
    }

    /// Sends the notices that wait for a rank, as far as there is room. A rank that counts as
    /// silent gets them, too: it may still run, and wait for them.
    pub(super) fn send_notices(&mut self, to: Rank) -> Result<(), Error> {
        while let Some(peer) = self.peers.get_mut(to)
            && let Some(&(notice, id)) = peer.waiting.notices.front()
        {
            let may_run = peer.loss() != Some(Loss::NodeEnded);
            if may_run && !self.send_control(to, notice.bits(), id)? {
                return Ok(());
            }
            if let Some(peer) = self.peers.get_mut(to) {
                peer.waiting.notices.pop_front();
            }
        }
        Ok(())
    }

    /// Returns whether this rank still has a message that a receiver asks about. If not, notifies
    /// the receiver.
    pub(super) fn deny_if_absent(&mut self, from: Rank, id: u64) -> bool {
        let is_there = self.peers.get(from).is_some_and(|peer| peer.window.has(id));
        if !is_there {
            self.notify(from, Notice::NoLongerThere, id);
        }
        is_there
    }

    /// Handles a receiver's notice that it has given a message up: ends the send.
    pub(super) fn handle_given_up(&mut self, from: Rank, id: u64) -> Result<(), Error> {
        match self.peers.get_mut(from).and_then(|peer| peer.window.remove(id)) {
            Some(message) => self.end_send(from, message, Err(Error::GivenUp { peer: from })),
            None => Ok(()),
        }
    }
}
