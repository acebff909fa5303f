//! A device's view of the fabric.

use std::sync::Arc;

use super::{
    Arrivals, ForwardedRow, MAX_CHANNELS, Node, Packet, PortLink, Refusal, Run, Traffic, Unsent,
    wires::{Combine, GI_WIRES, WireState},
};
use crate::{ids::FunctionId, time::Nanos};

/// Number of handles of a lease to which one packet refers: the packet's, and that of the function
/// of [`crate::dma::Term::waking`].
const LAST_REFERENCE: usize = 2;

/// The ports and wires of a function, for one call of its device.
///
/// Ports and virtual channels that do not exist have no credits and deliver no packets.
pub struct Ports<'a> {
    pub(super) traffic: &'a mut Traffic,
    /// Links of the node, by port.
    links: &'a [PortLink],
    /// Index of the node. It is out of range if the function has no port or wire.
    node: usize,
    function: FunctionId,
    pub(super) now: Nanos,
}

/// A virtual channel of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortChannel {
    /// Number of the port.
    pub port: u8,
    /// Number of the virtual channel.
    pub channel: usize,
}

impl<'a> Ports<'a> {
    /// Index of no node.
    const NO_NODE: usize = Traffic::NO_NODE as usize;

    /// Returns the ports of a function, whose links are `links`, at the time `now`.
    #[inline]
    pub(super) fn new(
        traffic: &'a mut Traffic,
        links: &'a [PortLink],
        node: usize,
        function: FunctionId,
        now: Nanos,
    ) -> Self {
        Self { traffic, links, node, function, now }
    }

    #[inline]
    pub(super) fn node(&self) -> Option<&Node> {
        self.traffic.nodes.get(self.node)
    }

    #[inline]
    pub(super) fn node_mut(&mut self) -> Option<&mut Node> {
        self.traffic.nodes.get_mut(self.node)
    }

    /// Returns the time of this call.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the highest connected port plus 1.
    pub fn count(&self) -> u8 {
        self.links.len() as u8
    }

    /// Returns whether a port has a link.
    pub fn connected(&self, port: u8) -> bool {
        self.link(port).is_some()
    }

    /// Returns a bit mask of the ports with a link.
    #[inline]
    pub fn plugged(&self) -> u64 {
        self.node().map_or(0, |node| node.plugged)
    }

    /// Returns whether a port has a link that takes packets.
    pub fn is_up(&self, port: u8) -> bool {
        self.link(port).is_some_and(|end| end.open > 0)
    }

    /// Returns the longest packet that a port's link takes in bytes, or 0 if the port has no link.
    pub fn max_packet(&self, port: u8) -> usize {
        self.link(port).map_or(0, |end| self.traffic.lanes[end.out as usize].limits.longest as usize)
    }

    /// Returns the link of a port, if it has one.
    #[inline]
    pub(super) fn link(&self, port: u8) -> Option<&'a PortLink> {
        self.links.get(usize::from(port)).filter(|link| link.channels > 0)
    }

    /// Returns the index of the lane out of a port, if it exists and is up.
    #[inline]
    pub(super) fn lane_out(&self, port: u8, channel: usize) -> Option<usize> {
        self.links.get(usize::from(port))?.lane_out(channel)
    }

    /// Returns the index of the lane into a port, if it exists.
    #[inline]
    pub(super) fn lane_in(&self, port: u8, channel: usize) -> Option<usize> {
        self.links.get(usize::from(port))?.lane_in(channel)
    }

    /// Returns whether a packet, or the head of one, has arrived on one of the first `channels`
    /// virtual channels.
    #[inline]
    pub fn has_arrivals(&self, channels: usize) -> bool {
        let ports_of =
            |masks: &[u64; MAX_CHANNELS]| masks.iter().take(channels).fold(0, |all, mask| all | mask);
        self.node().is_some_and(|node| ports_of(&node.arrived) | ports_of(&node.heads) != 0)
    }

    /// Returns a bit mask of the ports with a packet to take on a virtual channel.
    #[inline]
    pub fn arrived(&self, channel: usize) -> u64 {
        self.node().and_then(|node| node.arrived.get(channel)).copied().unwrap_or(0)
    }

    /// Returns the masks of [`Ports::arrived`] for all virtual channels.
    #[inline]
    pub fn arrivals(&self) -> &[u64; MAX_CHANNELS] {
        const NONE: &[u64; MAX_CHANNELS] = &[0; MAX_CHANNELS];
        self.node().map_or(NONE, |node| &node.arrived)
    }

    /// Returns the credits of a virtual channel: the number of packets that can be sent now, or of
    /// [`super::CreditUnit::Bytes`]. After 0, the function is woken when a credit returns.
    #[inline]
    pub fn credits(&self, port: u8, channel: usize) -> u32 {
        self.lane_out(port, channel).map_or(0, |lane| self.traffic.lanes[lane].credits_at(self.now))
    }

    /// Returns whether a packet can be sent now. A negative result counts as a stall. If credits
    /// count bytes, [`Ports::request_credits`] gives the answer for a packet.
    #[inline]
    pub fn ready(&mut self, port: u8, channel: usize) -> bool {
        let Some(lane) = self.lane_out(port, channel) else { return false };
        let lane = &mut self.traffic.lanes[lane];
        if lane.credits == 0 {
            lane.record_stall();
        }
        lane.credits > 0
    }

    /// Sends a packet. It arrives when the link has become free and carried it, and the delay has
    /// passed.
    ///
    /// # Errors
    /// [`Unsent`] with the packet, and one of these reasons: [`Refusal::NoLink`],
    /// [`Refusal::NoChannel`], [`Refusal::LinkDown`], [`Refusal::NoCredit`], [`Refusal::TooLong`].
    #[inline]
    pub fn send(&mut self, port: u8, channel: usize, packet: Packet) -> Result<(), Unsent> {
        let Some(index) = self.lane_out(port, channel) else {
            return Err(Unsent { packet, reason: self.reason_for_no_lane(port, channel) });
        };

        let lane = &mut self.traffic.lanes[index];
        if packet.is_longer_than(lane.limits.longest) {
            return Err(Unsent { packet, reason: Refusal::TooLong { longest: lane.limits.longest } });
        }

        if lane.credits == 0 {
            lane.refuse(&packet, index as u32, self.now, &mut self.traffic.schedule);
            return Err(Unsent { packet, reason: Refusal::NoCredit });
        }

        if lane.is_instant(self.now) {
            // The same as `send_timed`, for a packet that arrives at once.
            lane.push(self.now, packet);
            lane.deliver(1, &mut self.traffic.nodes, &mut self.traffic.woken);
            return Ok(());
        }

        self.send_timed(index, packet)
    }

    /// Returns the reason why [`Ports::lane_out`] returned `None`.
    #[cold]
    fn reason_for_no_lane(&self, port: u8, channel: usize) -> Refusal {
        match self.link(port) {
            None => Refusal::NoLink,
            Some(end) if channel >= usize::from(end.channels) => Refusal::NoChannel,
            Some(_) => Refusal::LinkDown,
        }
    }

    /// Returns the way out of a port on a virtual channel, for sending several packets at once.
    /// Returns `None` if packets take time there, or none can be sent. The caller must then use
    /// [`Ports::send`].
    #[inline]
    pub fn run(&mut self, port: u8, channel: usize) -> Option<Run<'_>> {
        let index = self.lane_out(port, channel)?;
        let Traffic { lanes, nodes, woken, pool, .. } = &mut *self.traffic;
        let lane = lanes.get_mut(index).filter(|lane| lane.is_instant(self.now))?;
        let room = lane.credits;
        Some(Run { lane, nodes, woken, pool, now: self.now, room, initial_room: room, bytes: 0 })
    }

    /// Forwards the first packet that arrived at port `from` through port `to`. Returns false, and
    /// changes nothing, if there is none, it can't be sent now, or it is longer than the link of
    /// port `to` permits.
    ///
    /// Over a link that cuts through, the packet's head is enough.
    #[inline]
    pub fn forward(&mut self, from: u8, to: u8, channel: usize) -> bool {
        self.forward_row(from, channel, 1, |_| Some((to, |_: &Packet| true)))
            .is_some_and(|row| row.moved == 1)
    }

    /// Forwards the first packet as [`Ports::forward`] does, to any virtual channel.
    #[inline]
    pub fn forward_between(&mut self, from: PortChannel, to: PortChannel) -> bool {
        self.forward_first(from, to).is_some()
    }

    /// Forwards the first packet as [`Ports::forward_between`] does. Returns whether the function
    /// can see another packet on the virtual channel, or the head of one. Returns `None` if no
    /// packet was forwarded.
    #[inline]
    pub fn forward_first(&mut self, from: PortChannel, to: PortChannel) -> Option<bool> {
        let from_index = self.lane_in(from.port, from.channel)?;
        let to_index = self.lane_out(to.port, to.channel)?;

        // `forward_row_between` has a faster path for links that take no time.
        if self.traffic.lanes[to_index].is_instant(self.now) {
            let row = self.forward_row_between(from, 1, |_| Some((to, |_: &Packet| true)));
            return row.and_then(|row| (row.moved == 1).then_some(row.has_more));
        }
        self.forward_head(from_index, to_index)
    }

    /// Forwards up to `limit` packets that arrived at port `from`.
    ///
    /// `way` receives the first packet. It returns the port to forward through, and a function that
    /// says of each packet whether it goes there too. Forwarding ends at the first packet that goes
    /// elsewhere or can't be sent.
    ///
    /// A packet that is too long for the other link can't be sent at any time. The device must take
    /// it. Only a device between links with different longest packets meets one.
    ///
    /// Returns `None` if no packet was waiting, or `way` returned `None`.
    #[inline]
    pub fn forward_row<G: Fn(&Packet) -> bool>(
        &mut self,
        from: u8,
        channel: usize,
        limit: u32,
        way: impl FnOnce(&Packet) -> Option<(u8, G)>,
    ) -> Option<ForwardedRow> {
        self.forward_row_between(PortChannel { port: from, channel }, limit, |packet| {
            let (port, goes) = way(packet)?;
            Some((PortChannel { port, channel }, goes))
        })
    }

    /// Forwards packets as [`Ports::forward_row`] does, to any virtual channel. `way` returns the
    /// port and the channel to forward through.
    #[inline]
    pub fn forward_row_between<G: Fn(&Packet) -> bool>(
        &mut self,
        from: PortChannel,
        limit: u32,
        way: impl FnOnce(&Packet) -> Option<(PortChannel, G)>,
    ) -> Option<ForwardedRow> {
        let Traffic { lanes, nodes, woken, .. } = &mut *self.traffic;
        let from_index = self.links.get(usize::from(from.port))?.lane_in(from.channel)?;
        let lane = lanes.get(from_index).filter(|lane| lane.has_head())?;

        let (to, goes) = way(lane.queue.front()?)?;
        let to_link = self.links.get(usize::from(to.port));
        let Some(to_index) = to_link.and_then(|link| link.lane_out(to.channel)) else {
            return Some(ForwardedRow { moved: 0, has_more: true });
        };

        let Ok([lane, out_lane]) = lanes.get_disjoint_mut([from_index, to_index]) else { return None };
        let all_fit = lane.limits.longest <= out_lane.limits.longest;
        if out_lane.is_instant(self.now) && lane.returns_at_once && all_fit {
            // The same as `forward_one_by_one`, for lanes on which packets and credits arrive at
            // once.
            let moved = lane.forward(out_lane, self.now, limit, (nodes, woken), goes);
            return Some(ForwardedRow { moved, has_more: lane.visible > 0 });
        }

        let moved = self.forward_one_by_one(from_index, to_index, limit, goes);
        let has_more = self.traffic.lanes.get(from_index).is_some_and(|lane| lane.has_head());

        Some(ForwardedRow { moved, has_more })
    }

    /// Returns the statistics of a virtual channel out of a port, which include the link errors.
    pub fn sent(&self, port: u8, channel: usize) -> super::LaneStats {
        let end = self.link(port).filter(|end| channel < usize::from(end.channels));
        end.map_or_else(Default::default, |end| self.traffic.lanes[end.out as usize + channel].stats)
    }

    /// Returns the first packet that arrived on a virtual channel.
    #[inline]
    pub fn peek(&self, port: u8, channel: usize) -> Option<&Packet> {
        let lane = &self.traffic.lanes[self.lane_in(port, channel)?];
        if lane.visible == 0 { None } else { lane.queue.front() }
    }

    /// Returns the packet of [`Ports::peek`] for changes in place.
    #[inline]
    pub fn peek_mut(&mut self, port: u8, channel: usize) -> Option<&mut Packet> {
        let lane = self.lane_in(port, channel)?;
        let lane = &mut self.traffic.lanes[lane];
        if lane.visible == 0 { None } else { lane.queue.front_mut() }
    }

    /// Takes the first packet that arrived. Its credits return to the sender, after the delay of
    /// the link if it has one.
    #[inline]
    pub fn take(&mut self, port: u8, channel: usize) -> Option<Packet> {
        let index = self.lane_in(port, channel)?;
        let Traffic { lanes, nodes, woken, schedule, .. } = &mut *self.traffic;
        let lane = &mut lanes[index];
        let packet = lane.pop_arrived(nodes)?;

        if lane.returns_at_once {
            lane.return_credits(1, nodes, woken);
        } else {
            let credits = lane.take_costs(1);
            lane.show_next_head(index as u32, self.now, nodes, schedule);
            self.return_credits_at(index, credits, self.now);
        }
        Some(packet)
    }

    /// Returns access to the packets that arrived at a port on a virtual channel, at most
    /// `limit`. Their credits return together.
    #[inline]
    pub fn take_run(&mut self, port: u8, channel: usize, limit: u32) -> Option<Arrivals<'_>> {
        let index = self.lane_in(port, channel)?;
        let Traffic { lanes, nodes, woken, pool, schedule, .. } = &mut *self.traffic;
        let lane = lanes.get_mut(index)?;
        let remaining = limit.min(lane.visible);

        Some(Arrivals {
            lane,
            lane_index: index as u32,
            nodes,
            woken,
            pool,
            schedule,
            now: self.now,
            remaining,
            taken: 0,
        })
    }

    /// Passes the packets that arrived at a port on a virtual channel to `take`, in order, at most
    /// `limit`, until it returns false.
    ///
    /// A packet for which it returns true goes back to the pool, and its credit to the sender.
    /// Returns the number of these packets.
    #[inline]
    pub fn take_while(
        &mut self,
        port: u8,
        channel: usize,
        limit: u32,
        mut take: impl FnMut(&Packet) -> bool,
    ) -> u32 {
        // The drop of the arrivals completes the packets that were taken, also if `take` panics.
        let Some(mut arrivals) = self.take_run(port, channel, limit) else { return 0 };
        let maximum = arrivals.remaining;
        while arrivals.taken < maximum
            && let Some(packet) = arrivals.lane.queue.take_if(arrivals.taken as usize, &mut take)
        {
            arrivals.pool.put_back(packet);
            arrivals.taken += 1;
        }

        arrivals.taken
    }

    /// Returns a packet of `length` bytes with arbitrary content, which the caller must overwrite.
    ///
    /// # Errors
    /// [`Refusal::TooLong`] if it exceeds [`super::Fabric::max_packet`], [`Refusal::PoolEmpty`].
    #[inline]
    pub fn new_packet(&mut self, length: usize) -> Result<Packet, Refusal> {
        match self.traffic.pool.take(length) {
            Some(packet) => Ok(packet),
            None => Err(self.reason_for_no_packet(length)),
        }
    }

    /// Returns a copy of a packet with its headers, for sending it through several ports. The copy
    /// comes from the pool, and refers to the same [`super::Contents::memory`].
    ///
    /// # Errors
    /// [`Refusal::PoolEmpty`].
    pub fn copy_packet(&mut self, packet: &Packet) -> Result<Packet, Refusal> {
        let mut copy = self.new_packet(packet.len())?;
        copy.copy_from(packet);
        Ok(copy)
    }

    /// Returns a copy of the packet of [`Ports::peek_head`], as [`Ports::copy_packet`] does.
    /// Returns `None` if there is none, or the pool has no buffer for the copy.
    pub fn copy_head(&mut self, port: u8, channel: usize) -> Option<Packet> {
        let index = self.lane_in(port, channel)?;
        let Traffic { lanes, pool, .. } = &mut *self.traffic;
        let original = lanes.get(index).filter(|lane| lane.has_head())?.queue.front()?;

        let mut copy = pool.take(original.len())?;
        copy.copy_from(original);
        Some(copy)
    }

    /// Returns the reason why the pool has no packet of `length` bytes.
    #[cold]
    fn reason_for_no_packet(&self, length: usize) -> Refusal {
        let longest = self.traffic.pool.largest_size();
        if length > longest { Refusal::TooLong { longest: longest as u32 } } else { Refusal::PoolEmpty }
    }

    /// Returns a packet's buffer to the pool. If it was the last packet that refers to a lease of
    /// [`crate::dma::Term::waking`], this wakes the function that the lease's term names.
    #[inline]
    pub fn recycle(&mut self, packet: Packet) {
        if let Some(memory) = &packet.memory
            && let Some(function) = memory.waiting_function()
            && Arc::strong_count(memory) <= LAST_REFERENCE
            && let Some(node) = self.traffic.find_node(function)
        {
            self.traffic.nodes[node as usize].wake(node, &mut self.traffic.woken);
        }
        self.traffic.pool.put_back(packet);
    }

    /// Makes the function a member of a wire of the global interrupt network, or ends its
    /// membership. A new member drives the wire low. A wire that does not exist is ignored.
    pub fn join_wire(&mut self, wire: u8, member: bool) {
        if wire < GI_WIRES {
            if self.node == Self::NO_NODE
                && let Ok(node) = self.traffic.node_of(self.function)
            {
                self.node = node as usize;
            }

            if self.node != Self::NO_NODE {
                self.traffic.set_member(self.node as u32, wire, member, self.now);
            }
        }
    }

    /// Drives a wire with a level. Only members of the wire can; others are ignored.
    pub fn drive_wire(&mut self, wire: u8, level: bool) {
        if wire < GI_WIRES && self.node != Self::NO_NODE {
            self.traffic.drive(self.node as u32, wire, level, None, self.now);
        }
    }

    /// Drives a wire high until its AND or OR has risen. Only members of the wire can; others are
    /// ignored.
    pub fn fire_wire(&mut self, wire: u8, until: Combine) {
        if wire < GI_WIRES && self.node != Self::NO_NODE {
            self.traffic.drive(self.node as u32, wire, true, Some(until), self.now);
        }
    }

    /// Returns a counter that changes whenever a wire's visible state or its driven levels change.
    #[inline]
    pub fn wire_changes(&self) -> u64 {
        self.traffic.wire_changes
    }

    /// Returns whether the function drives a wire high.
    pub fn drives_wire(&self, wire: u8) -> bool {
        wire < GI_WIRES && self.node().is_some_and(|node| node.high & (1 << wire) != 0)
    }

    /// Returns the visible state of a wire. A wire that does not exist is low.
    pub fn wire(&self, wire: u8) -> WireState {
        self.traffic.wires.get(usize::from(wire)).map_or(WireState::default(), |wire| wire.shown)
    }
}
