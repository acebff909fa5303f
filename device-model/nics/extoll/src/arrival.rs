//! Packets that have arrived at a card, and the queues in which they wait.

use nicforge_hwi::extoll::LINKS;

use crate::wire::{Class, LANES, Wire};

/// A packet for this card, in front of the queue in which it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The input link and lane; `None` for a packet of this card itself.
    pub(crate) input: Option<(u8, u8)>,
    pub(crate) class: Class,
    /// The packet's header.
    pub wire: Wire,
}

impl Arrival {
    /// Returns the input at which the packet waits: a link, or [`LINKS`] for this card itself.
    #[inline]
    pub fn source(self) -> u8 {
        self.input.map_or(LINKS as u8, |(input, _)| input)
    }

    /// Returns the index of the packet's queue, 0 to [`QUEUES`] less one.
    #[inline]
    pub fn queue(self) -> usize {
        let (source, lane) = self.input.map_or((LINKS, 0), |(input, lane)| (usize::from(input), lane));
        (self.class as usize * (LINKS + 1) + source) * LANES + usize::from(lane)
    }
}

/// Number of queues at which packets for a card arrive.
pub const QUEUES: usize = Class::ALL.len() * (LINKS + 1) * LANES;
