//! The links of a network as a node sees them.

use nicforge_core::{fabric::PortChannel, time::Nanos};

use super::{
    lane::{Lane, Parcel, Shown},
    net::{LinkProperties, NO_LANE, NodeStatus, Wire},
    wheel::{Kind, Wheel},
};
use crate::router::Links;

/// The links of a network as one node sees them.
#[derive(Debug)]
pub struct NodeLinks<'a> {
    pub(super) properties: &'a LinkProperties,
    /// The wires out of the node's ports.
    pub(super) wires: &'a mut [Wire],
    /// The lanes of the network.
    pub(super) lanes: &'a mut [Lane],
    pub(super) status: &'a mut NodeStatus,
    pub(super) wheel: &'a mut Wheel,
    pub(super) now: Nanos,
    pub(super) node: u32,
    /// Index of the wire out of the node's first port.
    pub(super) first: u32,
}

impl NodeLinks<'_> {
    /// Returns the number of the node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Returns the index of a lane out of a port.
    #[inline(always)]
    fn lane_out(&self, port: u8, vc: usize) -> usize {
        (self.first as usize + usize::from(port)) * self.properties.vcs + vc
    }

    /// Returns the index of a lane into a port, which need not exist.
    #[inline(always)]
    fn lane_in(&self, port: u8, vc: usize) -> usize {
        self.wires.get(usize::from(port)).map_or(NO_LANE, |wire| wire.inward) as usize + vc
    }

    /// Returns whether a lane out has the credits for a packet. The node is woken when it has.
    #[inline(never)]
    fn await_credits(&mut self, index: usize, credits: u32) -> bool {
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        lane.count_returns(self.now);
        if lane.credits >= credits {
            return true;
        }
        lane.wake_sender_at(credits);
        watch_credits(lane, index, self.wheel);
        false
    }

    /// Returns the lanes, and what else a packet concerns that leaves by a port.
    #[inline(always)]
    fn parts(&mut self, port: u8) -> Option<(&mut [Lane], Parts<'_>)> {
        let wire = self.wires.get_mut(usize::from(port))?;
        let parts = Parts {
            properties: self.properties,
            wire,
            status: self.status,
            wheel: self.wheel,
            now: self.now,
        };
        Some((self.lanes, parts))
    }
}

/// The parts of a network that a packet concerns which a node forwards, sends or takes.
struct Parts<'a> {
    properties: &'a LinkProperties,
    /// The wire out.
    wire: &'a mut Wire,
    status: &'a mut NodeStatus,
    wheel: &'a mut Wheel,
    now: Nanos,
}

impl Parts<'_> {
    /// Removes the first packet of a lane in, which leaves the buffer at `end`, and shows the head
    /// of the next one. Returns whether that can be seen now.
    #[inline(always)]
    fn pop(&mut self, lane: &mut Lane, index: usize, end: Nanos) -> bool {
        let next = lane.pop(end.after(self.properties.delay));
        watch_credits(lane, index, self.wheel);

        let bit = 1 << (lane.input % 64);
        self.status.whole &= !bit;
        self.status.heads &= !bit;

        let Some(due) = next else { return false };
        if due <= self.now {
            lane.shown = Shown::Head;
            self.status.heads |= bit;
            return true;
        }
        self.show_at(lane, index, due);
        false
    }

    /// Has a part of a lane's first packet shown to the receiver at a time.
    #[inline(always)]
    fn show_at(&mut self, lane: &mut Lane, index: usize, due: Nanos) {
        lane.due = due;
        if !lane.has_event {
            lane.has_event = true;
            self.wheel.add(due, Kind::Arrival(index as u32));
        }
    }

    /// Transmits a packet over a lane that has the credits. The packet's tail comes in at `tail`,
    /// or has arrived. Returns the time at which it has left.
    #[inline(always)]
    fn transmit(
        &mut self,
        lane: &mut Lane,
        index: usize,
        parcel: &Parcel,
        credits: u32,
        tail: Nanos,
    ) -> Nanos {
        let start = self.wire.busy_until.from(self.now, true);
        let (passage, busy_until) = self.properties.speed.transmit_alike(start, parcel.bytes.into(), tail);
        self.wire.busy_until = busy_until;

        // A wire carries one packet after the other, so that they arrive in their order.
        let (head, tail) = (passage.head, passage.tail);
        let is_only = lane.push(Parcel { head, tail, credits, ..*parcel });
        self.status.sent += 1;
        if is_only {
            self.show_at(lane, index, head);
        }
        watch_credits(lane, index, self.wheel);
        passage.end
    }
}

/// Adds the event for the return of a lane's credits, if the sender waits for it.
#[inline(always)]
fn watch_credits(lane: &mut Lane, index: usize, wheel: &mut Wheel) {
    if let Some(due) = lane.next_credit_event() {
        wheel.add(due, Kind::Credit(index as u32));
    }
}

impl Links for NodeLinks<'_> {
    type Packet = Parcel;

    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    #[inline]
    fn arrived_inputs(&self, _: u8, _: u8) -> [u64; 2] {
        [self.status.whole, self.status.heads]
    }

    #[inline]
    fn take_freed(&mut self) -> u64 {
        std::mem::take(&mut self.status.freed)
    }

    #[inline]
    fn route_head(&mut self, port: u8, vc: u8) -> Option<(u64, u32)> {
        let lane = self.lanes.get(self.lane_in(port, vc.into()))?;
        lane.shown_first().map(|parcel| (parcel.word, parcel.bytes))
    }

    #[inline]
    fn has_head(&self, port: u8, vc: u8) -> bool {
        let lane = self.lanes.get(self.lane_in(port, vc.into()));
        lane.is_some_and(|lane| lane.shown != Shown::Nothing)
    }

    #[inline]
    fn await_tail(&mut self, port: u8, vc: u8) -> bool {
        let index = self.lane_in(port, vc.into());
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        let Some(tail) = lane.shown_first().map(|parcel| parcel.tail) else { return false };
        if lane.shown == Shown::Whole {
            return true;
        }

        if tail > self.now {
            lane.due = tail;
            if !std::mem::replace(&mut lane.has_event, true) {
                self.wheel.add(tail, Kind::Arrival(index as u32));
            }
            return false;
        }
        lane.shown = Shown::Whole;
        let bit = 1 << (lane.input % 64);
        self.status.heads &= !bit;
        self.status.whole |= bit;
        true
    }

    fn tail_due(&self, port: u8, vc: u8) -> Option<Nanos> {
        let lane = self.lanes.get(self.lane_in(port, vc.into()))?;
        let tail = lane.shown_first().filter(|_| lane.shown != Shown::Whole)?.tail;
        (tail > self.now).then_some(tail)
    }

    #[inline]
    fn credits(&self, port: u8, vc: u8) -> u32 {
        let lane = self.lanes.get(self.lane_out(port, vc.into()));
        lane.map_or(0, |lane| lane.credits_at(self.now))
    }

    #[inline(always)]
    fn update_credits(&mut self, port: u8, vc: u8) -> u32 {
        let index = self.lane_out(port, vc.into());
        let Some(lane) = self.lanes.get_mut(index) else { return 0 };
        lane.count_returns(self.now);
        lane.credits
    }

    fn request_credits(&mut self, port: u8, vc: u8, credits: u32) {
        let index = self.lane_out(port, vc.into());
        // A virtual channel never has more credits than at first, so the node would never wake.
        if credits <= self.properties.credits.get(usize::from(vc)).copied().unwrap_or(0) {
            self.await_credits(index, credits);
        }
    }

    #[inline(always)]
    fn await_wire(&mut self, port: u8) -> Nanos {
        let Some(wire) = self.wires.get_mut(usize::from(port)) else { return Nanos::NEVER };
        let idle_at = wire.busy_until.rounded_up();
        if idle_at <= self.now {
            return self.now;
        }

        if !wire.has_event && idle_at < Nanos::NEVER {
            wire.has_event = true;
            self.wheel.add(idle_at, Kind::Idle(self.first + u32::from(port)));
        }
        idle_at
    }

    #[inline]
    fn forward_first(&mut self, from: PortChannel, to: PortChannel) -> Option<bool> {
        let forwarded = self.forward_within(from, to, 0);
        if forwarded.is_none() {
            let lane = self.lanes.get(self.lane_in(from.port, from.channel))?;
            let credits = lane.shown_first()?.credits;
            self.await_credits(self.lane_out(to.port, to.channel), credits);
        }
        forwarded
    }

    #[inline(always)]
    fn forward_within(&mut self, from: PortChannel, to: PortChannel, least: u32) -> Option<bool> {
        let (index, out) = (self.lane_in(from.port, from.channel), self.lane_out(to.port, to.channel));
        let now = self.now;
        let (lanes, mut parts) = self.parts(to.port)?;
        let [lane, out_lane] = lanes.get_disjoint_mut([index, out]).ok()?;
        let parcel = lane.shown_first()?;
        let credits = parcel.credits;

        out_lane.count_returns(now);
        if out_lane.credits < credits.max(least) {
            return None;
        }

        let tail = if parcel.tail > now { parcel.tail } else { Nanos::ZERO };
        let end = parts.transmit(out_lane, out, parcel, credits, tail);
        Some(parts.pop(lane, index, end))
    }

    fn send(&mut self, to: PortChannel, parcel: Parcel) -> Result<(), Parcel> {
        let out = self.lane_out(to.port, to.channel);
        let credits = self.properties.unit.needed(parcel.bytes.into());
        if !self.await_credits(out, credits) {
            return Err(parcel);
        }

        let Some((lanes, mut parts)) = self.parts(to.port) else { return Err(parcel) };
        let Some(lane) = lanes.get_mut(out) else { return Err(parcel) };
        parts.transmit(lane, out, &parcel, credits, Nanos::ZERO);
        Ok(())
    }

    #[inline]
    fn take(&mut self, port: u8, vc: u8) -> Option<Parcel> {
        let (index, now) = (self.lane_in(port, vc.into()), self.now);
        let (lanes, mut parts) = self.parts(port)?;
        let lane = lanes.get_mut(index).filter(|lane| lane.shown == Shown::Whole)?;
        let parcel = *lane.shown_first()?;
        parts.pop(lane, index, now);
        Some(parcel)
    }

    fn copy(&mut self, packet: &Parcel) -> Option<Parcel> {
        Some(*packet)
    }

    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Parcel> {
        self.lanes.get(self.lane_in(port, vc.into()))?.shown_first().copied()
    }

    #[inline]
    fn recycle(&mut self, _: Parcel) {}
}
