//! The track of the packets on a lane that cuts through or whose credits count bytes.

use std::collections::VecDeque;

use super::{CreditUnit, LinkSpec};
use crate::time::Nanos;

/// Times, credits and heads of the packets on a tracked lane.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) unit: CreditUnit,
    /// Credits of the lane in total.
    pub(super) total: u32,
    /// Number of packets of which only the head has arrived. They are behind the visible ones.
    pub(super) heads: u32,
    /// The packets in the lane's queue, in order.
    flights: VecDeque<Flight>,
    /// Packets that were forwarded before their tails arrived. The events of these tails are
    /// scheduled, and concern no packet.
    pub(super) forwarded_heads: u32,
}

/// A packet of a tracked lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    /// Time at which the tail arrives.
    pub(super) tail: Nanos,
    /// Credits that the packet has taken.
    pub(super) credits: u32,
}

impl Track {
    /// Returns the track of a lane with this many credits, if a link of this kind needs one.
    pub(super) fn needed_for(spec: &LinkSpec, credits: u32) -> Option<Self> {
        if spec.cut_through.is_none() && spec.credit_unit == CreditUnit::Packets {
            return None;
        }

        let flights = VecDeque::with_capacity(credits as usize);
        Some(Self { unit: spec.credit_unit, total: credits, heads: 0, flights, forwarded_heads: 0 })
    }

    /// Adds a packet.
    pub(super) fn push(&mut self, tail: Nanos, credits: u32) {
        self.flights.push_back(Flight { tail, credits });
    }

    /// Removes the first packet.
    pub(super) fn pop(&mut self) -> Flight {
        self.flights.pop_front().unwrap_or_default()
    }

    /// Returns the first packet.
    pub(super) fn first(&self) -> Option<Flight> {
        self.flights.front().copied()
    }
}
