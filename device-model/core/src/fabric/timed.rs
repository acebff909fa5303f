//! Packets that take time, and the calls for routers that choose by time, room and wire.

use super::{
    Event, EventKind, Fabric, Packet, Ports, Refusal, Unsent,
    path::{Incoming, Passage},
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

    /// Returns the first packet on a virtual channel if its head has arrived: the packet that
    /// [`Ports::forward`] moves. [`Ports::take`] gives it only when its tail has arrived, and the
    /// function is woken then.
    #[inline]
    pub fn peek_head(&self, port: u8, channel: usize) -> Option<&Packet> {
        let lane = &self.fabric.lanes[self.lane_in(port, channel)?];
        if lane.has_head() { lane.queue.front() } else { None }
    }

    /// Returns the time at which the tail of the packet of [`Ports::peek_head`] arrives, or `None`
    /// if there is no packet or all of it has arrived.
    pub fn tail_due(&self, port: u8, channel: usize) -> Option<Nanos> {
        let lane = &self.fabric.lanes[self.lane_in(port, channel)?];
        let only_head = lane.visible == 0 && lane.heads() > 0;
        if only_head { Some(lane.track.as_ref()?.first()?.tail) } else { None }
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
        let lane = &mut self.fabric.lanes[index];
        if lane.credits >= credits {
            return true;
        }

        lane.count_stall();
        if credits <= limit {
            lane.wake_sender_at(credits);
        }
        false
    }

    /// Returns the credits that a packet takes on a virtual channel, or 0 if it does not exist or
    /// is down.
    pub fn credits_for(&self, port: u8, channel: usize, packet: &Packet) -> u32 {
        self.lane_out(port, channel).map_or(0, |lane| self.fabric.lanes[lane].credits_for(packet))
    }

    /// Returns the credits of a virtual channel whose buffers are all empty, or 0 if it does not
    /// exist or is down.
    pub fn credit_limit(&self, port: u8, channel: usize) -> u32 {
        let Some(lane) = self.lane_out(port, channel) else { return 0 };
        let path = self.fabric.lanes[lane].path;
        self.fabric.paths[path as usize].credits.get(channel).copied().unwrap_or(0)
    }

    /// Returns whether the wire out of a port is idle, so that a packet sent now starts now. If it
    /// is not, the function is woken when the wire falls idle. Returns false if there is no link.
    ///
    /// A router that sends only on an idle wire chooses among its packets each time, instead of
    /// booking the wire for the packet that came first. If a packet has to be repeated, the wire is
    /// idle after the repetition.
    pub fn request_wire(&mut self, port: u8) -> bool {
        let Some(end) = self.end(port) else { return false };
        let Fabric { lanes, paths, schedule, .. } = &mut *self.fabric;
        let path = &mut paths[lanes[end.out as usize].path as usize];
        path.arbitrate();

        let idle_at = path.idle_at();
        if idle_at <= self.now {
            return true;
        }

        if !path.idle_scheduled {
            path.idle_scheduled = true;
            schedule.add(idle_at, Event::of_lane(path.first_lane, EventKind::Idle));
        }
        false
    }

    /// Returns the time from which the wire out of a port is idle, as far as it is booked now.
    /// Returns [`Nanos::NEVER`] if there is no link.
    pub fn wire_idle_at(&self, port: u8) -> Nanos {
        let Some(end) = self.end(port) else { return Nanos::NEVER };
        let path = self.fabric.lanes[end.out as usize].path;
        self.fabric.paths[path as usize].idle_at().max(self.now)
    }

    /// Sends a packet over a lane of any kind.
    pub(super) fn send_timed(&mut self, index: usize, packet: Packet) -> Result<(), Unsent> {
        let lane = &mut self.fabric.lanes[index];
        let credits = lane.credits_for(&packet);
        if let Some(longest) = lane.longest_for(credits) {
            return Err(Unsent { packet, reason: Refusal::TooLong { longest } });
        }

        if lane.credits < credits {
            lane.refuse(&packet);
            return Err(Unsent { packet, reason: Refusal::NoCredit });
        }

        self.put(index, packet, credits, Incoming::WHOLE);
        Ok(())
    }

    /// Does the work of [`Ports::forward_row`] over links that take time, or to a link with shorter
    /// packets. `index` and `out` are the indices of the lanes in and out.
    #[cold]
    #[inline(never)]
    pub(super) fn forward_one_by_one(
        &mut self,
        index: usize,
        out: usize,
        limit: u32,
        goes: impl Fn(&Packet) -> bool,
    ) -> u32 {
        let mut moved = 0;
        while moved < limit {
            let Ok([lane, out_lane]) = self.fabric.lanes.get_disjoint_mut([index, out]) else { break };
            let Some(packet) = lane.queue.front().filter(|_| lane.has_head()) else { break };
            let needed = out_lane.credits_for(packet);
            let is_too_long =
                packet.is_longer_than(out_lane.limits.longest) || out_lane.longest_for(needed).is_some();
            if is_too_long || !goes(packet) {
                break;
            }

            if out_lane.credits < needed {
                out_lane.count_stall();
                out_lane.wake_sender_at(needed);
                break;
            }

            let Some((packet, credits, tail)) = lane.pop_head(&mut self.fabric.nodes) else { break };
            let path = &self.fabric.paths[lane.path as usize];
            let incoming = tail.map_or(Incoming::WHOLE, |tail| path.incoming(tail));
            let end = self.put(out, packet, needed, incoming);

            self.return_credits_at(index, credits, end);
            moved += 1;
        }
        moved
    }

    /// Returns credits of a lane whose packet leaves the buffer at `end`.
    pub(super) fn return_credits_at(&mut self, index: usize, credits: u32, end: Nanos) {
        let due = end.max(self.now).after(self.fabric.lanes[index].delay);
        let event = Event::of_lane(index as u32, EventKind::Credit { credits });
        self.fabric.carry_out_at(self.now, due, event);
    }

    /// Puts a packet on a lane, which must have `credits` credits. Returns the time at which the
    /// packet's tail has left this node.
    fn put(&mut self, index: usize, mut packet: Packet, credits: u32, incoming: Incoming) -> Nanos {
        let fabric = &mut *self.fabric;
        let lane = &mut fabric.lanes[index];
        let passage = if lane.is_plain() && lane.track.is_none() && incoming.is_whole() {
            Passage::plain(self.now, lane.delay)
        } else {
            let path = &mut fabric.paths[lane.path as usize];
            let (passage, repeats) = path.transmit(self.now, &mut packet, incoming);
            lane.stats.retransmissions += repeats;
            passage
        };

        // A packet stays behind the one in front of it, which a fault may have delayed.
        let head = passage.head.max(lane.last_arrival);
        let tail = passage.tail.max(head);
        lane.push_timed(tail, credits, packet);

        let index = index as u32;
        if head < tail {
            fabric.carry_out_at(self.now, head, Event::of_lane(index, EventKind::Head));
            fabric.carry_out_at(self.now, tail, Event::of_lane(index, EventKind::Tail));
        } else {
            fabric.carry_out_at(self.now, tail, Event::of_lane(index, EventKind::Arrival));
        }
        passage.end
    }
}
