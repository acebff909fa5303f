//! Lost ranks that a transport has not reported yet: those whose messages may still be in a receive
//! ring that all senders share.

use crate::{Loss, Rank};

/// State of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The rank is there, or has not come yet.
    Alive,
    /// The rank is gone, and messages of the rank may still be in the ring. The mark says how far
    /// the ring had been read when the loss was noticed.
    Lost(ReadMark, Loss),
    /// The loss was reported.
    Gone,
}

/// Progress of reading the receive ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadMark {
    /// Messages taken out of the ring.
    pub polled: u64,
    /// Number of times that the ring was empty.
    pub empty_polls: u64,
}

/// The ranks that are checked for a loss, and the losses that are not reported yet.
///
/// Invariant: a rank is in `unreported` once, from its loss until all messages that it had sent by
/// then have been offered.
#[derive(Debug)]
pub struct LossWatch {
    /// How far the ring has been read by now. The transport advances it.
    pub mark: ReadMark,
    /// Number of messages after which everything that was in the receive ring, or kept by the
    /// library below, has been taken.
    drain_limit: u64,
    unreported: Vec<Rank>,
    /// The rank that was checked last.
    last_checked: usize,
}

impl LossWatch {
    /// Creates the watch of `size` ranks. After `drain_limit` messages, everything that was in the
    /// ring at any time before has been taken.
    pub fn new(size: usize, drain_limit: u64) -> Self {
        Self { mark: ReadMark::default(), drain_limit, unreported: Vec::with_capacity(size), last_checked: 0 }
    }

    /// Advances to the next of `size` ranks in turn, and returns it.
    pub fn next_checked(&mut self, size: usize) -> Rank {
        self.last_checked = if self.last_checked + 1 < size { self.last_checked + 1 } else { 0 };
        self.last_checked as Rank
    }

    /// Adds a rank that was lost at the present mark.
    pub fn add(&mut self, rank: Rank) {
        self.unreported.push(rank);
    }

    /// Returns whether there is a loss to report.
    #[inline]
    pub fn has_unreported(&self) -> bool {
        !self.unreported.is_empty()
    }

    /// Takes a lost rank whose messages have all been offered, and the reason of its loss. This is
    /// known when the ring was empty since the loss, or when more than `drain_limit` messages were
    /// taken.
    pub fn take_drained(&mut self, health: impl Fn(Rank) -> Health) -> Option<(Rank, Loss)> {
        let (now, drain_limit) = (self.mark, self.drain_limit);
        // Returns the reason of a loss, if all messages of the rank have been offered.
        let drained = |rank: Rank| match health(rank) {
            Health::Lost(at_loss, why)
                if now.empty_polls > at_loss.empty_polls || now.polled - at_loss.polled > drain_limit =>
            {
                Some(why)
            }
            _ => None,
        };

        let mut lost = self.unreported.iter().enumerate();
        let (index, why) = lost.find_map(|(index, rank)| Some((index, drained(*rank)?)))?;
        Some((self.unreported.swap_remove(index), why))
    }
}
