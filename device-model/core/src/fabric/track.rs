//! The track of a lane that takes time: the packets that are coming, and the credits on their way
//! back.
//!
//! Only the first coming packet of a lane is an event of the schedule, and the first return of
//! credits only while the sender waits for one. All other credits are counted when the sender
//! looks, or when others follow them.

use std::collections::VecDeque;

use super::{
    CreditUnit, LinkSpec,
    returns::Returns,
    schedule::{Place, Schedule},
};
use crate::time::Nanos;

/// The packets and credits that are in progress on a lane.
///
/// Large networks have more tracks than a cache holds. Most lanes have up to three returns in
/// progress, and then need only this cache line. The times of packets are in the packets.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Track {
    /// Credits on their way back.
    pub(super) returns: Returns,
    /// Time of the first event for credits, or [`Nanos::NEVER`] if none is scheduled.
    pub(super) credit_event: Nanos,
    /// Place in the schedule of the event for the first coming packet, or [`Place::NONE`]. The
    /// event is not later than that packet's next time.
    pub(super) arrival_place: Place,
    /// Whether the receiver has been shown the head of the first packet after the visible ones.
    pub(super) has_head: bool,
    /// The part of what has arrived that the receiver is shown.
    pub(super) view: View,
    /// The credits of packets, if credits count bytes.
    costs: Option<Box<Costs>>,
}

// A track has one cache line.
const _: () = assert!(size_of::<Track>() == 64);

/// The credits of the packets in a lane's queue, in order.
#[derive(Debug, Default)]
struct Costs {
    credits: VecDeque<u32>,
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

impl Default for Track {
    fn default() -> Self {
        Self {
            returns: Returns::default(),
            credit_event: Nanos::NEVER,
            arrival_place: Place::NONE,
            has_head: false,
            view: View::All,
            costs: None,
        }
    }
}

impl Track {
    /// Cancels the event for the first coming packet, unless it is far away.
    #[inline]
    pub(super) fn cancel_arrival(&mut self, schedule: &mut Schedule) {
        if self.arrival_place != Place::NONE && schedule.cancel(self.arrival_place) {
            self.arrival_place = Place::NONE;
        }
    }

    /// Adds the credits of the last packet of the lane's queue.
    #[inline]
    pub(super) fn push_cost(&mut self, credits: u32) {
        self.costs.get_or_insert_default().credits.push_back(credits);
    }

    /// Removes the credits of the first packets of the lane's queue, and returns their sum.
    #[inline]
    pub(super) fn pop_costs(&mut self, packets: u32) -> u32 {
        let costs = &mut self.costs.get_or_insert_default().credits;
        (0..packets).filter_map(|_| costs.pop_front()).sum()
    }
}

/// Returns whether each packet of a link takes one credit, and arrives as a whole.
pub(super) fn is_simple(spec: &LinkSpec) -> bool {
    spec.cut_through.is_none() && spec.credit_unit == CreditUnit::Packets
}
