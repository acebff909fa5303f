//! The links of a router: what it asks of the network around it.
//!
//! A router in a NIC's device has the ports of the machine's fabric ([`Ports`]). A router in a
//! network without a machine has [`crate::alone::NodeLinks`]. The rules of the router are the same.

use nicforge_core::{
    fabric::{MAX_CHANNELS, Packet, PortChannel, Ports},
    time::Nanos,
};

use super::{Row, requests::Inputs};

/// The properties of a packet that a router reads.
pub trait RoutedPacket {
    /// Returns the route word.
    fn word(&self) -> u64;
    /// Returns the bytes of the packet with its framing.
    fn wire_bytes(&self) -> u32;
}

/// An input of a router that is a virtual channel of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInput {
    /// `vc * ports + port`, with the number of the router's ports.
    pub number: u8,
    /// The port.
    pub port: u8,
    /// The virtual channel.
    pub vc: u8,
}

/// The links at the ports of a node, and the packets on them.
///
/// The methods do what those of [`Ports`] with the same names do.
pub trait Links {
    /// A packet that the caller owns.
    type Packet: RoutedPacket;

    /// Whether each packet takes time on these links, so that none move in rows.
    const TAKES_TIME: bool = false;

    /// Returns the present time.
    fn now(&self) -> Nanos;

    /// Returns the inputs with a whole packet, and those with the head of one. A whole packet can
    /// be in both. The bit of a port's virtual channel is [`LinkInput::number`].
    fn arrived_inputs(&self, ports: u8, vcs: u8) -> [Inputs; 2];

    /// Returns a bit mask of the ports at which a wait has ended since the last call: for the wire,
    /// or for credits.
    fn take_freed(&mut self) -> u64;

    /// Returns whether a wait has ended at some port since the last call of [`Links::take_freed`].
    fn has_freed(&self) -> bool;

    /// Returns the route word of the first packet of an input, and its bytes with the framing, if
    /// its head has arrived. Only heads are shown from then on.
    fn route_head(&mut self, input: LinkInput) -> Option<(u64, u32)>;

    /// Requests the arrival of the whole first packet of an input, not of its head alone. Returns
    /// whether it has arrived.
    fn await_tail(&mut self, input: LinkInput) -> bool;

    /// Returns whether the head of the first packet of a virtual channel has arrived.
    fn has_head(&self, port: u8, vc: u8) -> bool;

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

    /// Forwards the first packet as [`Links::forward_first`] does, if the virtual channel out has
    /// `least` credits or more.
    #[inline(always)]
    fn forward_within(&mut self, from: LinkInput, to: PortChannel, least: u32) -> Option<bool> {
        let has_room = self.update_credits(to.port, to.channel as u8) >= least;
        let LinkInput { port, vc, .. } = from;
        if has_room { self.forward_first(PortChannel { port, channel: vc.into() }, to) } else { None }
    }

    /// Returns whether a virtual channel out has `least` credits or more, for a caller that sends
    /// next.
    #[inline(always)]
    fn update_room(&mut self, port: u8, vc: u8, least: u32) -> bool {
        self.update_credits(port, vc) >= least
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// The packet, if it can't be sent now.
    fn send(&mut self, to: PortChannel, packet: Self::Packet) -> Result<(), Self::Packet>;

    /// Takes the first packet of a virtual channel, if it has arrived as a whole.
    fn take(&mut self, port: u8, vc: u8) -> Option<Self::Packet>;

    /// Takes the first packet as [`Links::take`] does. Returns it, and whether the head of another
    /// packet can be seen there then.
    #[inline(always)]
    fn take_first(&mut self, from: LinkInput) -> Option<(Self::Packet, bool)> {
        let packet = self.take(from.port, from.vc)?;
        Some((packet, self.has_head(from.port, from.vc)))
    }

    /// Forwards up to `limit` packets with a route word, which have arrived as a whole. Links that
    /// take time forward none this way.
    fn forward_row(&mut self, _from: PortChannel, _to: PortChannel, _limit: u32, _word: u64) -> Row {
        Row::default()
    }

    /// Sends up to `limit` packets that `next` returns, as long as there are credits. Returns the
    /// packet that ended the row because the link does not take it, if there is one. Links that
    /// take time send none this way.
    fn send_row(
        &mut self,
        _to: PortChannel,
        _limit: u32,
        _next: impl FnMut() -> Option<Self::Packet>,
    ) -> (Row, Option<Self::Packet>) {
        (Row::default(), None)
    }

    /// Passes up to `limit` packets that have arrived as a whole to `put`, while `wanted` returns
    /// true. Links that take time pass none this way.
    fn take_row(
        &mut self,
        _from: PortChannel,
        _limit: u32,
        _wanted: impl FnMut(&Self::Packet) -> bool,
        _put: impl FnMut(Self::Packet),
    ) -> Row {
        Row::default()
    }

    /// Returns a copy of a packet, if there is memory for one.
    fn copy(&mut self, packet: &Self::Packet) -> Option<Self::Packet>;

    /// Returns a copy of the first packet of a virtual channel, if its head has arrived and there
    /// is memory for a copy.
    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Self::Packet>;

    /// Returns a packet's buffer to the network.
    fn recycle(&mut self, packet: Self::Packet);
}

impl RoutedPacket for Packet {
    #[inline]
    fn word(&self) -> u64 {
        self.header
    }

    #[inline]
    fn wire_bytes(&self) -> u32 {
        self.len() as u32 + self.framing
    }
}

/// Returns the inputs of the ports in the masks of all virtual channels.
#[inline(always)]
fn inputs_of(masks: &[u64; MAX_CHANNELS], ports: u8, vcs: u8) -> Inputs {
    if masks.iter().fold(0, |all, mask| all | mask) == 0 {
        return 0;
    }

    // Most routers have one or two virtual channels, for which a loop costs more than its body.
    let all_ports = u64::MAX >> (64 - u32::from(ports.max(1)));
    let mut inputs = masks[0] & all_ports;
    if vcs > 1 {
        inputs |= (masks[1] & all_ports) << ports;
    }
    let mut first = u32::from(ports) * 2;
    for mask in masks.get(2..vcs.into()).unwrap_or_default() {
        inputs |= (mask & all_ports) << (first % 64);
        first += u32::from(ports);
    }
    inputs
}

impl Links for Ports<'_> {
    type Packet = Packet;

    #[inline]
    fn now(&self) -> Nanos {
        Ports::now(self)
    }

    #[inline(always)]
    fn arrived_inputs(&self, ports: u8, vcs: u8) -> [Inputs; 2] {
        let [whole, heads] = self.arrivals_and_heads();
        [inputs_of(whole, ports, vcs), inputs_of(heads, ports, vcs)]
    }

    #[inline]
    fn take_freed(&mut self) -> u64 {
        Ports::take_freed(self)
    }

    #[inline]
    fn has_freed(&self) -> bool {
        Ports::has_freed(self)
    }

    #[inline]
    fn route_head(&mut self, LinkInput { port, vc, .. }: LinkInput) -> Option<(u64, u32)> {
        Ports::route_head(self, port, vc.into()).map(|packet| (packet.header, packet.wire_bytes()))
    }

    #[inline]
    fn has_head(&self, port: u8, vc: u8) -> bool {
        self.peek_head(port, vc.into()).is_some()
    }

    #[inline]
    fn await_tail(&mut self, LinkInput { port, vc, .. }: LinkInput) -> bool {
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

    #[inline]
    fn forward_row(&mut self, from: PortChannel, to: PortChannel, limit: u32, word: u64) -> Row {
        let bytes = |ports: &Self| ports.sent(to.port, to.channel).bytes;
        let before = bytes(self);
        let has_word = |packet: &Packet| packet.header == word;
        let row = self.forward_row_between(from, limit, |_| Some((to, has_word)));
        let packets = row.map_or(0, |row| row.moved);
        Row { packets, bytes: bytes(self) - before }
    }

    #[inline]
    fn send_row(
        &mut self,
        to: PortChannel,
        limit: u32,
        mut next: impl FnMut() -> Option<Packet>,
    ) -> (Row, Option<Packet>) {
        let mut row = Row::default();
        let Some(run) = self.run(to.port, to.channel) else { return (row, None) };
        let mut run = run.at_most(limit);
        while run.room() > 0
            && let Some(packet) = next()
        {
            let bytes = packet.wire_bytes();
            if let Err(unsent) = run.send_packet(packet) {
                return (row, Some(unsent.packet));
            }
            row.add(bytes);
        }
        (row, None)
    }

    #[inline]
    fn take_row(
        &mut self,
        from: PortChannel,
        limit: u32,
        mut wanted: impl FnMut(&Packet) -> bool,
        mut put: impl FnMut(Packet),
    ) -> Row {
        let mut row = Row::default();
        let Some(mut arrivals) = self.take_run(from.port, from.channel, limit) else { return row };
        while arrivals.front().is_some_and(&mut wanted)
            && let Some(packet) = arrivals.take()
        {
            row.add(packet.wire_bytes());
            put(packet);
        }
        row
    }

    fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        self.copy_packet(packet).ok()
    }

    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Packet> {
        Ports::copy_head(self, port, vc.into())
    }

    #[inline]
    fn recycle(&mut self, packet: Packet) {
        Ports::recycle(self, packet);
    }
}
