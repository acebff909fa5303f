//! Notices to other ranks about messages whose data are of no more use to one side.
//!
//! A receiver that has got the data damaged each time, or that counts the sender as silent, has
//! *given the message up*: its sender ends the request. A sender that is asked for a message which
//! it has ended says that its data are *no longer there*: the receiver ends the fetch.
//!
//! Portals drops a get that nothing matches, and answers nothing. A receiver whose get takes long
//! therefore asks once whether the message is there. The question follows the get in order: a
//! sender that still has the message then had it exposed for the get.

use std::collections::VecDeque;

use nicforge_matching::Rank;

use super::{
    Endpoint,
    card::{GIVEN_UP, NO_LONGER_THERE},
};
use crate::{Error, Loss, bits};

/// Most notices that wait for one rank. A rank that keeps to the protocol causes fewer.
const MAX: usize = 512;

/// The event that a notice reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The receiver asks for the message no more.
    GivenUp,
    /// The sender no longer has the message.
    NoLongerThere,
}

impl Notice {
    /// Returns the match bits of the notice.
    fn bits(self) -> u64 {
        match self {
            Self::GivenUp => GIVEN_UP,
            Self::NoLongerThere => NO_LONGER_THERE,
        }
    }
}

/// The notices that wait for room in the card, in order, with the names of their messages.
#[derive(Debug, Default)]
pub(super) struct Notices(VecDeque<(Rank, Notice, u64)>);

impl Notices {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Endpoint {
    /// Sends a notice about a message when the card has room for it.
    pub(super) fn notify(&mut self, to: Rank, notice: Notice, id: u64) {
        let waiting = &mut self.notices.0;
        let has_room = waiting.iter().filter(|(rank, ..)| *rank == to).count() < MAX;
        if has_room && !waiting.contains(&(to, notice, id)) {
            waiting.push_back((to, notice, id));
            self.has_work = true;
        }
    }

    /// Sends the queued notices, as far as the card has space. A rank that was silent may still
    /// run, and wait for them.
    pub(super) fn send_notices(&mut self) -> Result<(), Error> {
        while let Some(&(to, notice, id)) = self.notices.0.front() {
            if let Some(peer) = self.peers.get(to).filter(|peer| peer.loss() != Some(Loss::NodeEnded))
                && !self.card.control(peer.process, notice.bits(), id)?
            {
                return Ok(());
            }
            self.notices.0.pop_front();
        }
        Ok(())
    }

    /// Answers the question of a receiver whether a message still exists. A message that exists
    /// needs no answer.
    pub(super) fn answer_question(&mut self, from: Rank, id: u64) {
        let is_there = self.peers.get(from).is_some_and(|peer| peer.has(id));
        if !is_there {
            self.notify(from, Notice::NoLongerThere, id);
        }
    }

    /// Ends a message that its receiver has given up.
    pub(super) fn given_up(&mut self, from: Rank, id: u64) -> Result<(), Error> {
        let Some(peer) = self.peers.get_mut(from).filter(|peer| peer.has(id)) else { return Ok(()) };
        match peer.leave(bits::number(id)) {
            Some(message) => self.end_send(from, message, Err(Error::GivenUp { peer: from })),
            None => Ok(()),
        }
    }
}
