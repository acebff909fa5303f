//! Packets that have arrived at a card, and the queues in which they wait.

use nicforge_hwi::extoll::LINKS;

use crate::packet::{LANES, PacketHeader, TrafficClass};

/// The input queue of a link for the packets of a class: the class has one for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InputLane {
    pub(crate) link: u8,
    pub(crate) lane: u8,
}

/// A packet for this card, in front of the queue in which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The link's queue; `None` for a packet of this card itself.
    pub(crate) input: Option<InputLane>,
    pub(crate) class: TrafficClass,
    /// The packet's header, decoded.
    pub header: PacketHeader,
}

impl Arrival {
    /// Returns the input at which the packet waits: a link, or [`LINKS`] for this card itself.
    #[inline]
    pub fn source(self) -> u8 {
        self.input.map_or(LINKS as u8, |input| input.link)
    }

    /// Returns the index of the packet's queue, 0 to [`QUEUES`] less one.
    #[inline]
    pub fn queue(self) -> usize {
        let lane = self.input.map_or(0, |input| input.lane);
        (self.class as usize * (LINKS + 1) + usize::from(self.source())) * LANES + usize::from(lane)
    }
}

/// Number of queues at which packets for a card arrive.
pub const QUEUES: usize = TrafficClass::ALL.len() * (LINKS + 1) * LANES;
