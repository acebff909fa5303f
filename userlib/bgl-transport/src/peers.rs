//! State of the ranks: absent, present, lost.

use std::collections::VecDeque;

use nicforge_bgl::message::ReceiveHandle;
use nicforge_hwi::torus::presence;
use nicforge_matching::Loss;

use crate::Core;

/// State of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It has not come yet, as far as this rank knows.
    Absent,
    /// Its software has this life.
    Present(u16),
    /// It is lost, which was not reported yet: messages of it may wait for the endpoint.
    Lost(Loss),
    /// The loss was reported.
    Gone,
}

/// A message of the matching layer that waits for the endpoint.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) tag: u8,
    pub(crate) bytes: Vec<u8>,
}

/// Another rank.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) core: Core,
    pub(crate) presence: Presence,
    /// The life of its core when this rank looked first, if it was absent then.
    first_life: Option<u16>,
    /// Messages to it that the message layer has not sent yet.
    pub(crate) sends: usize,
    /// Its end was seen, and all its messages are accepted, beyond the window too. The message
    /// layer's credits bound their number.
    pub(crate) is_ending: bool,
    /// Messages from it that wait for the endpoint, at most [`crate::Config::window`] before its
    /// end.
    pub(crate) inbox: VecDeque<Message>,
    /// Messages from it that the message layer keeps. They come after those of `inbox`.
    pub(crate) held: VecDeque<Held>,
    /// Its gets that wait for an answer.
    pub(crate) asked: usize,
    /// Bytes of long answers to its gets that the message layer has not sent yet.
    pub(crate) answering: usize,
}

/// A message that the message layer keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) handle: ReceiveHandle,
    /// Bytes of the message.
    pub(crate) length: usize,
}

impl Peer {
    /// Returns a rank that has not come yet.
    pub(crate) fn new(core: Core) -> Self {
        Self {
            core,
            presence: Presence::Absent,
            first_life: None,
            sends: 0,
            is_ending: false,
            inbox: VecDeque::new(),
            held: VecDeque::new(),
            asked: 0,
            answering: 0,
        }
    }

    /// Returns the life of the rank, while it is present.
    pub(crate) fn life(&self) -> Option<u16> {
        match self.presence {
            Presence::Present(life) => Some(life),
            _ => None,
        }
    }

    /// Returns whether the rank is lost.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.presence, Presence::Lost(_) | Presence::Gone)
    }

    /// Returns whether the inbox has room for a message, if its maximum is `window`.
    pub(crate) fn has_room(&self, window: usize) -> bool {
        self.is_ending || self.inbox.len() < window
    }

    /// Returns whether the rank was present, and the card shows another life now.
    pub(crate) fn has_ended(&self, life: u16) -> bool {
        self.life().is_some_and(|known| known != life)
    }

    /// Updates the state from the life that the card shows. Returns whether the rank was lost by
    /// that.
    pub(crate) fn note_life(&mut self, life: u16) -> bool {
        match self.presence {
            Presence::Absent if presence::is_up(life) => {
                self.presence = Presence::Present(life);
                false
            }
            // It has come and gone between two looks.
            Presence::Absent if *self.first_life.get_or_insert(life) != life => {
                self.presence = Presence::Lost(Loss::Ended);
                true
            }
            Presence::Present(known) if known != life => {
                let replaced = Loss::Replaced { previous: known.into(), current: life.into() };
                let why = if presence::is_up(life) { replaced } else { Loss::Ended };
                self.presence = Presence::Lost(why);
                true
            }
            _ => false,
        }
    }

    /// Takes the reason of a loss that can be reported: all messages of the rank were offered.
    pub(crate) fn take_loss(&mut self) -> Option<Loss> {
        match self.presence {
            Presence::Lost(why) if self.inbox.is_empty() && self.held.is_empty() => {
                self.presence = Presence::Gone;
                Some(why)
            }
            _ => None,
        }
    }
}
