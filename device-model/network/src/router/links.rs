//! The links of a router: what it asks of the network around it.
//!
//! A router in a NIC's device has the ports of the machine's fabric ([`Ports`]). A router in a
//! network without a machine has [`crate::alone::NodeLinks`]. The rules of the router are the same.

use nicforge_core::{
    fabric::{Packet, PortChannel, Ports},
    time::Nanos,
};

use super::requests::Inputs;

/// A packet, as far as a router looks at it.
pub trait Carried {
    /// Returns the route word.
    fn word(&self) -> u64;
    /// Returns the bytes of the packet with its framing.
    fn wire_bytes(&self) -> u32;
}

/// The links at the ports of a node, and the packets on them.
///
/// The methods do what those of [`Ports`] with the same names do.
pub trait Links {
    /// A packet that the caller owns.
    type Packet: Carried;

    /// Returns the present time.
    fn now(&self) -> Nanos;

    /// Returns the inputs with a whole packet, and those with the head of one. The bit of a port's
    /// virtual channel is `vc * ports + port`.
    fn arrived_inputs(&self, ports: u8, vcs: u8) -> [Inputs; 2];

    /// Returns a bit mask of the ports at which a wait has ended since the last call.
    fn take_freed(&mut self) -> u64;

    /// Returns the route word of the first packet of a virtual channel, and its bytes with the
    /// framing, if its head has arrived. Only heads are shown from then on.
    fn route_head(&mut self, port: u8, vc: u8) -> Option<(u64, u32)>;

    /// Returns whether the head of the first packet of a virtual channel has arrived.
    fn has_head(&self, port: u8, vc: u8) -> bool;

    /// Lets the first packet of a virtual channel arrive as a whole. Returns whether it has.
    fn await_tail(&mut self, port: u8, vc: u8) -> bool;

    /// Returns the time at which the tail of the first packet of a virtual channel arrives, if its
    /// head has arrived and its tail has not.
    fn tail_due(&self, port: u8, vc: u8) -> Option<Nanos>;

    /// Returns the credits of a virtual channel out.
    fn credits(&self, port: u8, vc: u8) -> u32;

    /// Returns the credits as [`Links::credits`] does, for a caller that sends next.
    fn update_credits(&mut self, port: u8, vc: u8) -> u32;

    /// Has the node woken when a virtual channel out has this many credits, unless it has them now.
    fn request_credits(&mut self, port: u8, vc: u8, credits: u32);

    /// Returns the time from which the wire out of a port is idle. The node is woken then.
    fn await_wire(&mut self, port: u8) -> Nanos;

    /// Forwards the first packet of a virtual channel, whose head has arrived. Returns whether the
    /// head of another packet can be seen there then, or `None` if no packet was forwarded.
    fn forward_first(&mut self, from: PortChannel, to: PortChannel) -> Option<bool>;

    /// Sends a packet.
    ///
    /// # Errors
    /// The packet, if it can't be sent now.
    fn send(&mut self, to: PortChannel, packet: Self::Packet) -> Result<(), Self::Packet>;

    /// Takes the first packet of a virtual channel, if it has arrived as a whole.
    fn take(&mut self, port: u8, vc: u8) -> Option<Self::Packet>;

    /// Returns a copy of a packet, if there is memory for one.
    fn copy(&mut self, packet: &Self::Packet) -> Option<Self::Packet>;

    /// Returns a copy of the first packet of a virtual channel, if its head has arrived and there
    /// is memory for a copy.
    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Self::Packet>;

    /// Ends a packet.
    fn recycle(&mut self, packet: Self::Packet);
}

impl Carried for Packet {
    #[inline]
    fn word(&self) -> u64 {
        self.header
    }

    #[inline]
    fn wire_bytes(&self) -> u32 {
        self.len() as u32 + self.framing
    }
}

impl Links for Ports<'_> {
    type Packet = Packet;

    #[inline]
    fn now(&self) -> Nanos {
        Ports::now(self)
    }

    #[inline(always)]
    fn arrived_inputs(&self, ports: u8, vcs: u8) -> [Inputs; 2] {
        let all_ports = u64::MAX >> (64 - u32::from(ports.max(1)));
        self.arrivals_and_heads().map(|masks| {
            // Most routers have one or two virtual channels, for which a loop costs more than its
            // body.
            let mut inputs = masks[0] & all_ports;
            if vcs > 1 {
                inputs |= (masks[1] & all_ports) << ports;
            }
            if vcs > 2 {
                inputs |= further_inputs(masks, ports, vcs, all_ports);
            }
            inputs
        })
    }

    #[inline]
    fn take_freed(&mut self) -> u64 {
        Ports::take_freed(self)
    }

    #[inline]
    fn route_head(&mut self, port: u8, vc: u8) -> Option<(u64, u32)> {
        Ports::route_head(self, port, vc.into()).map(|packet| (packet.header, packet.wire_bytes()))
    }

    #[inline]
    fn has_head(&self, port: u8, vc: u8) -> bool {
        self.peek_head(port, vc.into()).is_some()
    }

    #[inline]
    fn await_tail(&mut self, port: u8, vc: u8) -> bool {
        Ports::await_tail(self, port, vc.into())
    }

    #[inline]
    fn tail_due(&self, port: u8, vc: u8) -> Option<Nanos> {
        Ports::tail_due(self, port, vc.into())
    }

    #[inline]
    fn credits(&self, port: u8, vc: u8) -> u32 {
        Ports::credits(self, port, vc.into())
    }

    #[inline(always)]
    fn update_credits(&mut self, port: u8, vc: u8) -> u32 {
        Ports::update_credits(self, port, vc.into())
    }

    #[inline]
    fn request_credits(&mut self, port: u8, vc: u8, credits: u32) {
        Ports::request_credits(self, port, vc.into(), credits);
    }

    #[inline(always)]
    fn await_wire(&mut self, port: u8) -> Nanos {
        Ports::await_wire(self, port)
    }

    #[inline]
    fn forward_first(&mut self, from: PortChannel, to: PortChannel) -> Option<bool> {
        Ports::forward_first(self, from, to)
    }

    #[inline]
    fn send(&mut self, to: PortChannel, packet: Packet) -> Result<(), Packet> {
        Ports::send(self, to.port, to.channel, packet).map_err(|unsent| unsent.packet)
    }

    #[inline]
    fn take(&mut self, port: u8, vc: u8) -> Option<Packet> {
        Ports::take(self, port, vc.into())
    }

    fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        self.copy_packet(packet).ok()
    }

    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Packet> {
        copy_head(self, port, vc.into())
    }

    #[inline]
    fn recycle(&mut self, packet: Packet) {
        Ports::recycle(self, packet);
    }
}

/// Returns the inputs with a set bit on virtual channels from the third on.
#[inline(never)]
fn further_inputs(masks: &[u64], ports: u8, vcs: u8, all_ports: u64) -> Inputs {
    let channels = masks.iter().zip(0..u32::from(vcs)).skip(2);
    channels.fold(0, |inputs, (mask, vc)| inputs | (mask & all_ports) << (vc * u32::from(ports)))
}

/// Returns a copy of the first packet of a virtual channel, if its head has arrived and the fabric
/// has a packet.
pub(crate) fn copy_head(ports: &mut Ports<'_>, port: u8, channel: usize) -> Option<Packet> {
    let length = ports.peek_head(port, channel)?.len();
    let mut copy = ports.new_packet(length).ok()?;
    let Some(original) = ports.peek_head(port, channel) else {
        ports.recycle(copy);
        return None;
    };

    copy.bytes_mut().copy_from_slice(original.bytes());
    copy.header = original.header;
    copy.framing = original.framing;
    copy.memory.clone_from(&original.memory);
    Some(copy)
}
