//! The nodes of the fabric: the functions that have a port or a wire.

use super::{MAX_CHANNELS, wake::WakeQueue};
use crate::ids::FunctionId;

/// A port of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePort {
    /// Index of the node in the fabric's table.
    pub(super) node: u32,
    /// Number of the port.
    pub(super) port: u8,
}

/// The link of a port, seen from that port. A node has one for each port up to its highest.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortLink {
    /// Index of the first lane out of the port, that of virtual channel 0. The others follow.
    pub(super) out: u32,
    /// Index of the first lane into the port.
    pub(super) inward: u32,
    /// Index of the path out of the port.
    pub(super) path: u32,
    /// Number of virtual channels, or 0 if there is no link.
    pub(super) channels: u8,
    /// Number of virtual channels that take packets: all of them, or none while the link is down.
    pub(super) open: u8,
}

impl PortLink {
    /// No link.
    pub(super) const NONE: Self = Self { out: 0, inward: 0, path: 0, channels: 0, open: 0 };

    /// Returns the index of a virtual channel's lane into the port, if it exists.
    #[inline]
    pub(super) fn lane_in(&self, channel: usize) -> Option<usize> {
        (channel < usize::from(self.channels)).then_some(self.inward as usize + channel)
    }

    /// Returns the index of a virtual channel's lane out of the port, if it exists and is up.
    #[inline]
    pub(super) fn lane_out(&self, channel: usize) -> Option<usize> {
        (channel < usize::from(self.open)).then_some(self.out as usize + channel)
    }
}

/// State of one function in the fabric.
///
/// The fields that each event uses come first, on one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Node {
    pub(super) function: FunctionId,
    /// The node needs no further wake-up: it is in the fabric's queue, or the machine polls its
    /// function ([`super::Fabric::take_woken`]).
    pub(super) woken: bool,
    /// Bit mask of the wires that the node is a member of.
    pub(super) member: u8,
    /// Bit mask of the wires that it drives high.
    pub(super) high: u8,
    /// Bit mask of the wires on which it fired and waits for the AND.
    pub(super) fired_and: u8,
    /// Bit mask of the wires on which it fired and waits for the OR.
    pub(super) fired_or: u8,
    /// Bit mask of the ports with a link.
    pub(super) plugged: u64,
    /// Bit mask of the ports whose link has come, gone up or gone down since the machine called the
    /// device. The node is in the fabric's queue while there are any.
    pub(super) changed: u64,
    /// Bit mask of the ports at which a wait has ended: credits have returned that the function
    /// waited for, the wire has fallen idle, or the link has changed.
    pub(super) freed: u64,
    /// Bit mask of the ports with a packet of which only the head has arrived, for each virtual
    /// channel.
    pub(super) heads: [u64; MAX_CHANNELS],
    /// Bit mask of the ports with a packet to take, for each virtual channel.
    pub(super) arrived: [u64; MAX_CHANNELS],
}

impl Node {
    /// Returns a node without links.
    pub(super) fn new(function: FunctionId) -> Self {
        Self {
            function,
            plugged: 0,
            changed: 0,
            freed: 0,
            arrived: [0; MAX_CHANNELS],
            heads: [0; MAX_CHANNELS],
            woken: false,
            member: 0,
            high: 0,
            fired_and: 0,
            fired_or: 0,
        }
    }

    /// Queues the node, whose index is `index`, for a wake-up of its function.
    #[inline]
    pub(super) fn wake(&mut self, index: u32, woken: &mut WakeQueue) {
        if !self.woken {
            self.woken = true;
            woken.push(index);
        }
    }
}
