//! Packets that take time, and the calls for routers that choose by time, room and wire.

use super::{
    MAX_CHANNELS, Node, Packet, Ports, Refusal, Traffic, Unsent,
    lane::{Departure, Lane, PoppedHead},
    packet::Flight,
    path::Path,
    schedule::{Event, EventKind, Schedule},
    tap::TappedPackets,
    timing::{Incoming, Passage},
    wake::WakeQueue,
};
use crate::time::Nanos;

impl Ports<'_> {
    /// Returns a bit mask of the ports at which only the head of a packet has arrived on a virtual
    /// channel. A router can forward it, if no packet is in front of it: see
    /// [`super::LinkSpec::cut_through`].
    #[inline]
    pub fn heads(&self, channel: usize) -> u64 {
        self.node().and_then(|node| node.heads.get(channel)).copied().unwrap_or(0)
    }

    /// Returns the masks of [`Ports::heads`] for all virtual channels.
    #[inline]
    pub fn head_arrivals(&self) -> &[u64; MAX_CHANNELS] {
        const NONE: &[u64; MAX_CHANNELS] = &[0; MAX_CHANNELS];
        self.node().map_or(NONE, |node| &node.heads)
    }

    /// Returns the masks of [`Ports::arrivals`] and [`Ports::head_arrivals`].
    #[inline]
    pub fn arrivals_and_heads(&self) -> [&[u64; MAX_CHANNELS]; 2] {
        const NONE: &[u64; MAX_CHANNELS] = &[0; MAX_CHANNELS];
        self.node().map_or([NONE, NONE], |node| [&node.arrived, &node.heads])
    }

    /// Returns the first packet on a virtual channel if its head has arrived: the packet that
    /// [`Ports::forward`] moves. [`Ports::take`] gives it only when its tail has arrived, and the
    /// function is woken then.
    #[inline]
    pub fn peek_head(&self, port: u8, channel: usize) -> Option<&Packet> {
        let lane = &self.traffic.lanes[self.lane_in(port, channel)?];
        if lane.has_head() { lane.queue.front() } else { None }
    }

    /// Returns the time at which the tail of the packet of [`Ports::peek_head`] arrives, or `None`
    /// if there is no packet or all of it has arrived.
    pub fn tail_due(&self, port: u8, channel: usize) -> Option<Nanos> {
        self.traffic.lanes[self.lane_in(port, channel)?].tail_due(self.now)
    }

    /// Returns the packet of [`Ports::peek_head`] for a router, which decides on one packet of a
    /// virtual channel at a time.
    ///
    /// From the first call on, the virtual channel shows the function heads alone, one at a time. A
    /// head is shown when it has arrived and the packet before it has left. A router that waits for
    /// a wire or for credits has no use for the tail, and none for the packets after it: neither is
    /// an event. [`Ports::await_tail`] asks for the tail. On a link without a delay whose packets
    /// arrive as a whole and take one credit each, the function sees all packets as before.
    #[inline]
    pub fn route_head(&mut self, port: u8, channel: usize) -> Option<&Packet> {
        let index = self.lane_in(port, channel)?;
        let Traffic { lanes, schedule, .. } = &mut *self.traffic;
        let lane = &mut lanes[index];
        if !lane.has_head() {
            return None;
        }
        if lane.shows_tails() {
            lane.show_heads(schedule);
        }
        lane.queue.front()
    }

    /// Lets the packet of [`Ports::route_head`] arrive as a whole: [`Ports::take`] gives it then,
    /// and the function is woken. Returns whether it is there now.
    pub fn await_tail(&mut self, port: u8, channel: usize) -> bool {
        let Some(index) = self.lane_in(port, channel) else { return false };
        let Traffic { lanes, nodes, schedule, .. } = &mut *self.traffic;
        let lane = &mut lanes[index];
        if lane.visible == 0 {
            lane.await_tail(index as u32, self.now, nodes, schedule);
        }
        lane.visible > 0
    }

    /// Returns whether a virtual channel has at least `credits` credits. If it has fewer, the
    /// function is woken once it has as many, and the stall is counted.
    ///
    /// A router that must leave room in a ring (the bubble rule) asks for the credits of two
    /// packets. If it asks for several numbers, it is woken at the smallest of them, and asks
    /// again. More credits than [`Ports::credit_limit`] never come.
    pub fn request_credits(&mut self, port: u8, channel: usize, credits: u32) -> bool {
        let limit = self.credit_limit(port, channel);
        let Some(index) = self.lane_out(port, channel) else { return false };
        let lane = &mut self.traffic.lanes[index];
        lane.add_returned_credits(self.now);
        if lane.credits >= credits {
            return true;
        }

        lane.record_stall();
        if credits <= limit {
            lane.await_credits(credits, index as u32, self.now, &mut self.traffic.schedule);
        }
        false
    }

    /// Returns the credits of a virtual channel as [`Ports::credits`] does. The call is cheaper for
    /// a caller that sends next.
    #[inline(always)]
    pub fn update_credits(&mut self, port: u8, channel: usize) -> u32 {
        let Some(index) = self.lane_out(port, channel) else { return 0 };
        let lane = &mut self.traffic.lanes[index];
        lane.add_returned_credits(self.now);
        lane.credits
    }

    /// Returns a bit mask of the ports at which a wait has ended since the last call: the wire has
    /// fallen idle, enough credits have returned, or the link has changed.
    ///
    /// A router need not look at other ports that it found busy or without room.
    #[inline]
    pub fn take_freed(&mut self) -> u64 {
        self.node_mut().map_or(0, |node| std::mem::take(&mut node.freed))
    }

    /// Returns whether [`Ports::take_freed`] would return any port.
    #[inline]
    pub fn has_freed(&self) -> bool {
        self.node().is_some_and(|node| node.freed != 0)
    }

    /// Returns the credits that a packet takes on a virtual channel, or 0 if it does not exist or
    /// is down.
    pub fn credits_for(&self, port: u8, channel: usize, packet: &Packet) -> u32 {
        self.lane_out(port, channel).map_or(0, |lane| self.traffic.lanes[lane].credits_for(packet))
    }

    /// Returns the credits of a virtual channel whose buffers are all empty, or 0 if it does not
    /// exist or is down.
    pub fn credit_limit(&self, port: u8, channel: usize) -> u32 {
        self.lane_out(port, channel).map_or(0, |lane| self.traffic.lanes[lane].capacity.total())
    }

    /// Returns whether the wire out of a port is idle, so that a packet sent now starts now. If it
    /// is not, the function is woken when the wire falls idle. Returns false if there is no link.
    ///
    /// A router that sends only on an idle wire chooses among its packets each time, instead of
    /// booking the wire for the packet that came first. If a packet has to be repeated, the wire is
    /// idle after the repetition.
    #[inline]
    pub fn request_wire(&mut self, port: u8) -> bool {
        self.await_wire(port) <= self.now
    }

    /// Requests the wire as [`Ports::request_wire`] does. Returns the time from which it is idle,
    /// as far as it is booked now, or [`Nanos::NEVER`] if there is no link.
    #[inline(always)]
    pub fn await_wire(&mut self, port: u8) -> Nanos {
        let Some(index) = self.link(port).map(|end| end.path) else { return Nanos::NEVER };
        let path = &mut self.traffic.paths[index as usize];
        path.arbitrate();

        let idle_at = path.idle_at();
        if idle_at <= self.now {
            return self.now;
        }
        if !path.idle_scheduled {
            path.idle_scheduled = true;
            let lane = path.first_lane;
            self.schedule_idle(lane, idle_at);
        }
        idle_at
    }

    /// Schedules the event for a wire that falls idle at `idle_at`. `lane` is the first lane of its
    /// path, by which the event names the path.
    #[inline(never)]
    fn schedule_idle(&mut self, lane: u32, idle_at: Nanos) {
        let event = Event::of_lane(lane, EventKind::Idle);
        self.traffic.schedule.add(self.now, idle_at, event);
    }

    /// Returns the time from which the wire out of a port is idle, as far as it is booked now.
    /// Returns [`Nanos::NEVER`] if there is no link.
    pub fn wire_idle_at(&self, port: u8) -> Nanos {
        let Some(end) = self.link(port) else { return Nanos::NEVER };
        self.traffic.paths[end.path as usize].idle_at().max(self.now)
    }

    /// Sends a packet over a lane of any kind.
    pub(super) fn send_timed(&mut self, index: usize, packet: Packet) -> Result<(), Unsent> {
        let lane = &mut self.traffic.lanes[index];
        let credits = lane.credits_for(&packet);
        if let Some(longest) = lane.limit_exceeded_by(credits) {
            return Err(Unsent { packet, reason: Refusal::TooLong { longest } });
        }

        lane.add_returned_credits(self.now);
        if lane.credits < credits {
            lane.refuse(&packet, index as u32, self.now, &mut self.traffic.schedule);
            return Err(Unsent { packet, reason: Refusal::NoCredit });
        }

        let Traffic { lanes, paths, nodes, woken, schedule, tapped, .. } = &mut *self.traffic;
        let index = index as u32;
        let transmission = Transmission { index, now: self.now, paths, nodes, woken, schedule, tapped };
        transmission.put(&mut lanes[index as usize], packet, credits, Incoming::WHOLE);
        Ok(())
    }

    /// Does the work of [`Ports::forward_row`] over links that take time, or to a link with shorter
    /// packets. `from_index` and `to_index` are the indices of the lanes in and out.
    #[cold]
    #[inline(never)]
    pub(super) fn forward_one_by_one(
        &mut self,
        from_index: usize,
        to_index: usize,
        limit: u32,
        goes: impl Fn(&Packet) -> bool,
    ) -> u32 {
        let mut moved = 0;
        while moved < limit {
            let lane = self.traffic.lanes.get(from_index).filter(|lane| lane.has_head());
            let front = lane.and_then(|lane| lane.queue.front());
            if !front.is_some_and(&goes) || self.forward_head(from_index, to_index).is_none() {
                break;
            }
            moved += 1;
        }
        moved
    }

    /// Forwards the first packet of the lane `from_index` over the lane `to_index`, each of any
    /// kind. Returns whether the function then sees the head of another packet on the lane
    /// `from_index`. Returns `None`, and moves nothing, if the packet's head has not arrived, or it
    /// cannot be sent now.
    #[inline]
    pub(super) fn forward_head(&mut self, from_index: usize, to_index: usize) -> Option<bool> {
        let now = self.now;
        let Traffic { lanes, paths, nodes, woken, schedule, tapped, .. } = &mut *self.traffic;
        let [lane, out_lane] = lanes.get_disjoint_mut([from_index, to_index]).ok()?;
        let packet = lane.queue.front().filter(|_| lane.has_head())?;

        let needed = out_lane.credits_for(packet);
        if packet.is_longer_than(out_lane.limits.longest) || out_lane.limit_exceeded_by(needed).is_some() {
            return None;
        }

        out_lane.add_returned_credits(now);
        if out_lane.credits < needed {
            out_lane.record_stall();
            out_lane.await_credits(needed, to_index as u32, now, schedule);
            return None;
        }

        let PoppedHead { packet, credits, tail_due } =
            lane.pop_head(from_index as u32, now, nodes, schedule)?;
        let incoming = tail_due.map_or(Incoming::WHOLE, |tail| paths[lane.path as usize].incoming(tail));

        let index = to_index as u32;
        let transmission = Transmission { index, now, paths, nodes, woken, schedule, tapped };
        let end = transmission.put(out_lane, packet, needed, incoming);
        // The credits return when the tail has left the buffer.
        lane.return_later(credits, from_index as u32, Departure { now, end }, nodes, woken, schedule);
        Some(lane.has_head())
    }

    /// Returns credits of a lane whose packet leaves the buffer at `end`.
    pub(super) fn return_credits_at(&mut self, index: usize, credits: u32, end: Nanos) {
        let Traffic { lanes, nodes, woken, schedule, .. } = &mut *self.traffic;
        let departure = Departure { now: self.now, end };
        lanes[index].return_later(credits, index as u32, departure, nodes, woken, schedule);
    }
}

/// The parts of the fabric that change when a packet is put on a lane.
struct Transmission<'a> {
    /// Index of the lane.
    index: u32,
    now: Nanos,
    paths: &'a mut [Path],
    nodes: &'a mut [Node],
    woken: &'a mut WakeQueue,
    schedule: &'a mut Schedule,
    tapped: &'a mut TappedPackets,
}

impl Transmission<'_> {
    /// Puts a packet on a lane of any kind, which must have `credits` credits. Returns the time at
    /// which the packet's tail has left this node.
    #[inline]
    fn put(self, lane: &mut Lane, mut packet: Packet, credits: u32, incoming: Incoming) -> Nanos {
        let Self { index, now, paths, nodes, woken, schedule, tapped } = self;
        let mut tap = None;
        let passage = if lane.is_plain() && incoming.is_whole() {
            Passage::plain(now, lane.delay)
        } else {
            let path = &mut paths[lane.path as usize];
            let (passage, repeats) = path.transmit(now, &mut packet, incoming);
            lane.stats.retransmissions += repeats;
            tap = path.tap().map(|bytes| (bytes, repeats));
            passage
        };

        // A packet does not overtake the one in front of it, which a fault may have delayed.
        let head = passage.head.max(lane.last_arrival);
        let tail = passage.tail.max(head);
        if let Some((bytes, repeats)) = tap {
            tapped.record((lane.path, lane.ends.channel), tail, repeats, &mut packet, bytes);
        }
        let event_due = lane.push_timed(Flight { head, tail }, credits, packet);
        lane.watch_credits(index, now, schedule);

        // A head that arrives at once is shown now, and the next event is for its tail.
        if let Some(due) = event_due
            && let Some(due) = if due > now { Some(due) } else { lane.arrive_at_once(now, nodes, woken) }
        {
            lane.schedule_arrival(index, now, due, schedule);
        }
        passage.end
    }
}
