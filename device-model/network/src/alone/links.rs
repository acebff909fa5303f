//! The links of a network as a node sees them.

use nicforge_core::{
    fabric::{PortChannel, timing::WireSpeed},
    time::Nanos,
};

use super::{
    lane::{Lane, Parcel, Shown},
    net::{LinkProperties, Marks, NO_LANE, NodeStatus, Tables, Wire, wire_of},
    wheel::{Kind, Wheel},
};
use crate::router::{LinkInput, Links};

/// The links of a network as one node sees them.
#[derive(Debug)]
pub struct NodeLinks<'a> {
    pub(super) tables: &'a mut Tables,
    pub(super) status: &'a mut NodeStatus,
    /// The present time.
    pub(super) now: Nanos,
    pub(super) node: u32,
}

impl NodeLinks<'_> {
    /// Returns the number of the node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Returns the index of a lane out of a port, which need not exist.
    #[inline(always)]
    fn lane_out(&self, port: u8, vc: usize) -> usize {
        self.status.wires.get(usize::from(port)).map_or(NO_LANE, |wire| wire.outward) as usize
            + vc * self.tables.properties.ports
    }

    /// Returns the index of the lane of an input.
    #[inline(always)]
    fn lane_of(&self, input: LinkInput) -> usize {
        self.status.first_lane as usize + usize::from(input.number)
    }

    /// Returns the index of a lane into a port, which need not exist.
    #[inline(always)]
    fn lane_in(&self, port: u8, vc: usize) -> usize {
        let LinkProperties { ports, vcs, .. } = self.tables.properties;
        let exists = usize::from(port) < ports && vc < vcs;
        if exists {
            self.status.first_lane as usize + vc * ports + usize::from(port)
        } else {
            NO_LANE as usize
        }
    }

    /// Returns whether a lane out has the credits for a packet. If not, the node is woken when it
    /// has them.
    #[inline(never)]
    fn await_credits(&mut self, index: usize, credits: u32) -> bool {
        let Tables { lanes, wheel, now, .. } = self.tables;
        let Some(lane) = lanes.get_mut(index) else { return false };
        lane.count_returns(*now);
        if lane.credits >= credits {
            return true;
        }
        lane.wake_sender_at(credits);
        watch_credits(lane, index, wheel);
        false
    }

    /// Forwards the first packet of a lane to another lane, if that has `least` credits or more.
    /// Returns whether another head can be seen then.
    #[inline(never)]
    fn forward_lane(&mut self, from: usize, port: u8, vc: usize, least: u32) -> Option<bool> {
        let (now, out) = (self.now, self.lane_out(port, vc));
        let NodeStatus { wires, marks, .. } = self.status;
        let wire = wires.get_mut(usize::from(port))?;
        let Tables { properties, lanes, wheel, .. } = self.tables;
        let [lane, out_lane] = lanes.get_disjoint_mut([from, out]).ok()?;
        let (slot, parcel) = lane.shown_slot()?;
        let credits = parcel.credits;

        let needed = credits.max(least);
        if out_lane.credits < needed && out_lane.credits_after_returns(now) < needed {
            return None;
        }

        // Zero stands for a tail that has arrived.
        let tail = if parcel.tail > now { parcel.tail } else { Nanos::ZERO };
        let parcel = wire.transmit(&properties.speed, parcel, tail, now);
        let mut shown = ShownLanes { marks, wheel, now };
        // The credits are back when the tail arrives: both leave when the transmission ends.
        let has_next = shown.pop(lane, (from, slot), parcel.tail);
        shown.push(out_lane, out, parcel);
        Some(has_next)
    }

    /// Takes the first packet of a lane, if it is shown as a whole. Returns whether another head
    /// can be seen then.
    #[inline(always)]
    fn take_lane(&mut self, index: usize) -> Option<(Parcel, bool)> {
        let due = self.now.after(self.tables.properties.delay);
        let Tables { lanes, wheel, .. } = self.tables;
        let lane = lanes.get_mut(index).filter(|lane| lane.shown == Shown::Whole)?;
        let (slot, &parcel) = lane.shown_slot()?;
        let mut shown = ShownLanes { marks: &mut self.status.marks, wheel, now: self.now };
        Some((parcel, shown.pop(lane, (index, slot), due)))
    }
}

impl Wire {
    /// Transmits a packet, whose tail comes in at `tail`, or has arrived. Returns the packet with
    /// the times at which it arrives.
    #[inline(always)]
    fn transmit(&mut self, speed: &WireSpeed, parcel: &Parcel, tail: Nanos, now: Nanos) -> Parcel {
        // Without a gap, if the last transmission ends in this nanosecond.
        let has_waited = true;
        let start = self.busy_until.from(now, has_waited);
        let (passage, busy_until) = speed.transmit_alike(start, parcel.bytes.into(), tail);
        self.busy_until = busy_until;
        Parcel { head: passage.head, tail: passage.tail, ..*parcel }
    }
}

/// The marks of a node's lanes that show packets, and the schedule of the events for them.
struct ShownLanes<'a> {
    marks: &'a mut Marks,
    wheel: &'a mut Wheel,
    now: Nanos,
}

impl ShownLanes<'_> {
    /// Removes the first packet of a lane in, whose credits are back at `due`, from its slot, and
    /// shows the head of the next one. Returns whether that can be seen now.
    #[inline(always)]
    fn pop(&mut self, lane: &mut Lane, (index, slot): (usize, usize), due: Nanos) -> bool {
        let bit = 1 << (lane.input % 64);
        let next = lane.pop(slot, due);
        watch_credits(lane, index, self.wheel);

        self.marks.whole &= !bit;
        if next <= self.now {
            lane.shown = Shown::Head;
            self.marks.heads |= bit;
            return true;
        }
        self.marks.heads &= !bit;
        if next < Nanos::NEVER {
            self.show_at(lane, index, next);
        }
        false
    }

    /// Has the next part of a lane's first packet, its head or its tail, shown to the receiver at
    /// `due`.
    #[inline(always)]
    fn show_at(&mut self, lane: &mut Lane, index: usize, due: Nanos) {
        lane.due = due;
        if !lane.has_event {
            lane.has_event = true;
            self.wheel.add_arrival(due, index as u32);
        }
    }

    /// Adds a packet to a lane out that has the credits. A wire carries one packet after the other,
    /// so that they arrive in their order.
    #[inline(always)]
    fn push(&mut self, lane: &mut Lane, index: usize, parcel: Parcel) {
        self.marks.sent += 1;
        let head = parcel.head;
        if lane.push(parcel, self.now) {
            self.show_at(lane, index, head);
        }
        // If the sender has too few credits now, those that are back may be enough. Otherwise it
        // waits for more.
        if lane.sender_waits() {
            lane.credits_after_returns(self.now);
            watch_credits(lane, index, self.wheel);
        }
    }
}

/// Adds the event for the return of a lane's credits, if the sender waits for it.
#[inline(always)]
fn watch_credits(lane: &mut Lane, index: usize, wheel: &mut Wheel) {
    if lane.sender_waits() {
        add_credit_event(lane, index, wheel);
    }
}

/// Adds the event for the next return of a lane's credits.
#[cold]
#[inline(never)]
fn add_credit_event(lane: &mut Lane, index: usize, wheel: &mut Wheel) {
    if let Some(due) = lane.next_credit_event() {
        wheel.add(due, Kind::Credit(index as u32));
    }
}

/// [`Links`] documents the methods.
impl Links for NodeLinks<'_> {
    type Packet = Parcel;

    const TAKES_TIME: bool = true;

    #[inline]
    fn now(&self) -> Nanos {
        self.now
    }

    #[inline]
    fn arrived_inputs(&self, _: u8, _: u8) -> [u64; 2] {
        [self.status.marks.whole, self.status.marks.heads]
    }

    #[inline]
    fn take_freed(&mut self) -> u64 {
        std::mem::take(&mut self.status.marks.freed)
    }

    #[inline]
    fn has_freed(&self) -> bool {
        self.status.marks.freed != 0
    }

    #[inline(always)]
    fn route_head(&mut self, input: LinkInput) -> Option<(u64, u32)> {
        let lane = self.tables.lanes.get(self.lane_of(input))?;
        lane.shown_first().map(|parcel| (parcel.word, parcel.bytes))
    }

    #[inline]
    fn has_head(&self, port: u8, vc: u8) -> bool {
        let lane = self.tables.lanes.get(self.lane_in(port, vc.into()));
        lane.is_some_and(|lane| lane.shown != Shown::Nothing)
    }

    #[inline]
    fn await_tail(&mut self, input: LinkInput) -> bool {
        let index = self.lane_of(input);
        let Some(lane) = self.tables.lanes.get_mut(index) else { return false };
        let Some(tail) = lane.shown_first().map(|parcel| parcel.tail) else { return false };
        if lane.shown == Shown::Whole {
            return true;
        }

        if tail > self.now {
            lane.due = tail;
            if !std::mem::replace(&mut lane.has_event, true) {
                self.tables.wheel.add_arrival(tail, index as u32);
            }
            return false;
        }
        lane.shown = Shown::Whole;
        self.status.marks.whole |= 1 << (lane.input % 64);
        true
    }

    fn tail_due(&self, port: u8, vc: u8) -> Option<Nanos> {
        let lane = self.tables.lanes.get(self.lane_in(port, vc.into()))?;
        let tail = lane.shown_first().filter(|_| lane.shown != Shown::Whole)?.tail;
        (tail > self.now).then_some(tail)
    }

    #[inline]
    fn credits(&self, port: u8, vc: u8) -> u32 {
        let lane = self.tables.lanes.get(self.lane_out(port, vc.into()));
        lane.map_or(0, |lane| lane.credits_at(self.now))
    }

    #[inline(always)]
    fn update_credits(&mut self, port: u8, vc: u8) -> u32 {
        let index = self.lane_out(port, vc.into());
        let Some(lane) = self.tables.lanes.get_mut(index) else { return 0 };
        lane.count_returns(self.now);
        lane.credits
    }

    #[inline(always)]
    fn update_room(&mut self, port: u8, vc: u8, least: u32) -> bool {
        let index = self.lane_out(port, vc.into());
        let Some(lane) = self.tables.lanes.get_mut(index) else { return least == 0 };
        lane.credits >= least || lane.credits_after_returns(self.now) >= least
    }

    fn request_credits(&mut self, port: u8, vc: u8, credits: u32) {
        let index = self.lane_out(port, vc.into());
        // A virtual channel never has more credits than at first, so the node would never wake.
        if credits <= self.tables.properties.credits.get(usize::from(vc)).copied().unwrap_or(0) {
            self.await_credits(index, credits);
        }
    }

    #[inline(always)]
    fn await_wire(&mut self, port: u8) -> Nanos {
        let Some(wire) = self.status.wires.get_mut(usize::from(port)) else { return Nanos::NEVER };
        let idle_at = wire.busy_until.rounded_up();
        if idle_at <= self.now {
            return self.now;
        }

        if !wire.has_event {
            wire.has_event = true;
            self.tables.wheel.add(idle_at, Kind::Idle(wire_of(self.node, port)));
        }
        idle_at
    }

    #[inline]
    fn forward_first(&mut self, from: PortChannel, to: PortChannel) -> Option<bool> {
        let index = self.lane_in(from.port, from.channel);
        let forwarded = self.forward_lane(index, to.port, to.channel, 0);

        // If the packet was not forwarded for want of credits, the node is woken when it has them.
        if forwarded.is_none() {
            let credits = self.tables.lanes.get(index)?.shown_first()?.credits;
            self.await_credits(self.lane_out(to.port, to.channel), credits);
        }
        forwarded
    }

    #[inline(always)]
    fn forward_within(&mut self, from: LinkInput, to: PortChannel, least: u32) -> Option<bool> {
        self.forward_lane(self.lane_of(from), to.port, to.channel, least)
    }

    #[inline(always)]
    fn send(&mut self, to: PortChannel, parcel: Parcel) -> Result<(), Parcel> {
        let out = self.lane_out(to.port, to.channel);
        let credits = self.tables.properties.unit.needed(parcel.bytes.into());
        if self.tables.lanes.get(out).is_none_or(|lane| lane.credits < credits)
            && !self.await_credits(out, credits)
        {
            return Err(parcel);
        }

        let NodeStatus { wires, marks, .. } = self.status;
        let Tables { properties, lanes, wheel, .. } = self.tables;
        let (Some(wire), Some(lane)) = (wires.get_mut(usize::from(to.port)), lanes.get_mut(out)) else {
            return Err(parcel);
        };
        let parcel = wire.transmit(&properties.speed, &Parcel { credits, ..parcel }, Nanos::ZERO, self.now);
        ShownLanes { marks, wheel, now: self.now }.push(lane, out, parcel);
        Ok(())
    }

    #[inline]
    fn take(&mut self, port: u8, vc: u8) -> Option<Parcel> {
        let index = self.lane_in(port, vc.into());
        self.take_lane(index).map(|(parcel, _)| parcel)
    }

    #[inline(always)]
    fn take_first(&mut self, from: LinkInput) -> Option<(Parcel, bool)> {
        self.take_lane(self.lane_of(from))
    }

    fn copy(&mut self, packet: &Parcel) -> Option<Parcel> {
        Some(*packet)
    }

    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Parcel> {
        self.tables.lanes.get(self.lane_in(port, vc.into()))?.shown_first().copied()
    }

    #[inline]
    fn recycle(&mut self, _: Parcel) {}
}
