//! The track of a lane that takes time: the packets that are coming, and the credits on their way
//! back.
//!
//! Only the first coming packet of a lane is an event of the schedule, and the first return of
//! credits only while the sender waits for one. All other credits are counted when the sender
//! looks, or when others follow them.

use std::collections::VecDeque;

use super::{
    CreditUnit, LinkSpec,
    schedule::{Place, Schedule},
};
use crate::time::Nanos;

/// Credits that return at different times and that a track holds itself.
const RETURNS: usize = 3;

/// The packets and credits that are in progress on a lane.
///
/// Large networks have more tracks than a cache holds. Most lanes have up to three returns in
/// progress, and then need only this cache line. The times of packets are in the packets.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Track {
    /// Times of the first credits on their way back, in order. Those after the last are
    /// [`Nanos::NEVER`].
    return_times: [Nanos; RETURNS],
    /// Time of the first event for credits, or [`Nanos::NEVER`] if none is scheduled.
    pub(super) credit_event: Nanos,
    /// Place in the schedule of the event for the first coming packet, or [`Place::NONE`]. The
    /// event is not later than that packet's next time.
    pub(super) arrival_place: Place,
    /// The credits of [`Track::return_times`], at most [`super::MAX_CREDITS`] each.
    return_credits: [u16; RETURNS],
    /// Number of packets that have arrived as a whole and that the receiver has not been shown,
    /// because of [`Track::view`]. They are in front of the coming ones.
    /// Whether the receiver has been shown the head of the first packet after the visible ones.
    pub(super) has_head: bool,
    pub(super) view: View,
    /// [`More::returns`] is not empty.
    has_returns: bool,
    more: Option<Box<More>>,
}

// A track has one cache line.
const _: () = assert!(size_of::<Track>() == 64);
// The credits of a return fit into 16 bits.
const _: () = assert!(super::MAX_CREDITS <= u16::MAX as u32);

/// The credits that only few lanes have in progress.
#[derive(Debug, Default)]
struct More {
    /// The credits after those of [`Track::return_times`], in order of time.
    returns: VecDeque<Return>,
    /// Credits of the packets in the lane's queue, in order, if credits count bytes.
    costs: VecDeque<u32>,
}

/// The part of what has arrived that the receiver is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All heads and tails.
    All,
    /// The head of the first packet alone: see [`super::Ports::route_head`].
    Head,
    /// That head, and then the tail: see [`super::Ports::await_tail`].
    HeadAndTail,
}

/// Credits on their way back.
#[derive(Clone, Copy, Debug)]
struct Return {
    due: Nanos,
    credits: u16,
}

impl Default for Track {
    fn default() -> Self {
        Self {
            return_times: [Nanos::NEVER; RETURNS],
            credit_event: Nanos::NEVER,
            arrival_place: Place::NONE,
            return_credits: [0; RETURNS],
            has_head: false,
            view: View::All,
            has_returns: false,
            more: None,
        }
    }
}

impl Track {
    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Cancels the event for the first coming packet, unless it is far away.
    #[inline]
    pub(super) fn cancel_arrival(&mut self, schedule: &mut Schedule) {
        if self.arrival_place != Place::NONE && schedule.cancel(self.arrival_place) {
            self.arrival_place = Place::NONE;
        }
    }

    /// Adds credits that are back at `due`.
    #[inline]
    pub(super) fn push_return(&mut self, due: Nanos, credits: u32) {
        // A lane has at most `MAX_CREDITS` credits.
        let mut last = Return { due, credits: credits as u16 };
        for (due, credits) in self.return_times.iter_mut().zip(&mut self.return_credits) {
            if last.due < *due {
                std::mem::swap(&mut last.due, due);
                std::mem::swap(&mut last.credits, credits);
                if last.due == Nanos::NEVER {
                    return;
                }
            }
        }
        self.push_other_return(last);
    }

    /// Adds credits after those that the track holds itself.
    #[inline(never)]
    fn push_other_return(&mut self, last: Return) {
        let returns = &mut self.more().returns;
        let is_last = returns.back().is_none_or(|back| back.due <= last.due);
        returns.push_back(last);
        self.has_returns = true;
        if !is_last {
            self.sort_last_return();
        }
    }

    /// Moves the last return to its place. Packets can leave in another order than that in which
    /// their transmissions end.
    #[inline(never)]
    fn sort_last_return(&mut self) {
        let returns = &mut self.more().returns;
        let mut at = returns.len().saturating_sub(1);
        while at > 0 && returns[at - 1].due > returns[at].due {
            returns.swap(at - 1, at);
            at -= 1;
        }
    }

    /// Removes the first credits that are back at `now`, and returns their number.
    #[inline]
    pub(super) fn pop_return(&mut self, now: Nanos) -> Option<u32> {
        let [due, second, third] = self.return_times;
        if due > now || due == Nanos::NEVER {
            return None;
        }

        let [credits, second_credits, third_credits] = self.return_credits;
        let behind = if self.has_returns { self.other_return() } else { None };
        let last = behind.unwrap_or(Return { due: Nanos::NEVER, credits: 0 });
        self.return_times = [second, third, last.due];
        self.return_credits = [second_credits, third_credits, last.credits];
        Some(credits.into())
    }

    /// Removes the credits behind those that the track holds itself.
    #[inline(never)]
    fn other_return(&mut self) -> Option<Return> {
        let returns = &mut self.more().returns;
        let next = returns.pop_front();
        let has_returns = !returns.is_empty();
        self.has_returns = has_returns;
        next
    }

    /// Returns the number of credits that are back at `now`.
    pub(super) fn count_returned(&self, now: Nanos) -> u32 {
        let own = self.return_times.into_iter().zip(self.return_credits);
        let others = self.more.iter().flat_map(|more| &more.returns);
        let all = own.chain(others.map(|back| (back.due, back.credits)));
        all.take_while(|(due, _)| *due <= now).map(|(_, credits)| u32::from(credits)).sum()
    }

    /// Returns the time of the next return of credits, or [`Nanos::NEVER`].
    #[inline]
    pub(super) fn next_return(&self) -> Nanos {
        self.return_times[0]
    }

    /// Adds the credits of the last packet of the lane's queue.
    #[inline]
    pub(super) fn push_cost(&mut self, credits: u32) {
        self.more().costs.push_back(credits);
    }

    /// Removes the credits of the first packets of the lane's queue, and returns their sum.
    #[inline]
    pub(super) fn pop_costs(&mut self, packets: u32) -> u32 {
        let costs = &mut self.more().costs;
        (0..packets).filter_map(|_| costs.pop_front()).sum()
    }
}

/// Returns whether each packet of a link takes one credit, and arrives as a whole.
pub(super) fn is_simple(spec: &LinkSpec) -> bool {
    spec.cut_through.is_none() && spec.credit_unit == CreditUnit::Packets
}
