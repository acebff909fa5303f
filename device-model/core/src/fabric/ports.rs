//! The fabric as one function's device sees it.

use super::{
    Event, Fabric, Fault, MAX_RETRIES, Packet,
    wires::{Combine, GI_WIRES, WireState},
};
use crate::{device::FunctionId, time::Nanos};

/// A function's ports and wires, for the time of one call of its device.
///
/// Ports and virtual channels that do not exist have no credits and deliver nothing.
pub struct Ports<'a> {
    fabric: &'a mut Fabric,
    /// Index of the node, if the function has any port or wire.
    node: Option<u32>,
    function: FunctionId,
    now: Nanos,
}

impl<'a> Ports<'a> {
    pub(super) fn new(fabric: &'a mut Fabric, node: Option<u32>, function: FunctionId, now: Nanos) -> Self {
        Self { fabric, node, function, now }
    }

    /// The time of this call.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Highest connected port and one.
    pub fn count(&self) -> u8 {
        self.node.map_or(0, |node| self.fabric.nodes[node as usize].ends.len() as u8)
    }

    /// Whether a link is plugged in.
    pub fn connected(&self, port: u8) -> bool {
        self.end(port).is_some()
    }

    #[inline]
    fn end(&self, port: u8) -> Option<super::End> {
        let node = self.fabric.nodes.get(self.node? as usize)?;
        *node.ends.get(usize::from(port))?
    }

    /// Index of the lane out of a port, if it is there and up.
    #[inline]
    fn lane_out(&self, port: u8, channel: usize) -> Option<usize> {
        let path = &self.fabric.paths[self.end(port)?.out as usize];
        (channel < usize::from(path.channels) && path.up).then_some(path.first_lane as usize + channel)
    }

    #[inline]
    fn lane_in(&self, port: u8, channel: usize) -> Option<usize> {
        let path = &self.fabric.paths[self.end(port)?.inward as usize];
        (channel < usize::from(path.channels)).then_some(path.first_lane as usize + channel)
    }

    /// Packets that can be sent now on a virtual channel. When it is 0, the function is woken once it no longer is.
    #[inline]
    pub fn credits(&self, port: u8, channel: usize) -> u32 {
        self.lane_out(port, channel).map_or(0, |lane| self.fabric.lanes[lane].credits)
    }

    /// Whether a packet can be sent now; counts a stall if not.
    #[inline]
    pub fn ready(&mut self, port: u8, channel: usize) -> bool {
        let Some(lane) = self.lane_out(port, channel) else { return false };
        let lane = &mut self.fabric.lanes[lane];
        if lane.credits == 0 {
            lane.note_stall();
        }
        lane.credits > 0
    }

    /// Sends a packet: it is visible at the other end when the link has been free, has carried it, and its delay has passed.
    /// Gives the packet back when there is no credit, no such channel, or the link is down.
    #[inline]
    pub fn send(&mut self, port: u8, channel: usize, packet: Packet) -> Result<(), Packet> {
        let Some(index) = self.lane_out(port, channel) else { return Err(packet) };
        let fabric = &mut *self.fabric;
        let lane = &mut fabric.lanes[index];
        if lane.credits == 0 {
            lane.note_stall();
            return Err(packet);
        }
        lane.credits -= 1;
        let path = &mut fabric.paths[lane.path as usize];
        let bytes = packet.wire_bytes();
        let mut packet = packet;
        let mut arrival = if path.hook.is_none() {
            path.transmit(self.now, bytes)
        } else {
            let (arrival, repeats) = transmit_with_faults(path, self.now, &mut packet);
            lane.stats.retransmissions += repeats;
            arrival
        };
        arrival = arrival.max(lane.last_arrival);
        lane.last_arrival = arrival;
        lane.stats.packets += 1;
        lane.stats.bytes += bytes;
        lane.queue.push_back(packet);
        fabric.at(self.now, arrival, Event::Arrival { lane: index as u32 });
        Ok(())
    }

    /// What a virtual channel out of a port has carried, as the function's link errors show it.
    pub fn sent(&self, port: u8, channel: usize) -> super::LaneStats {
        let lane = self
            .end(port)
            .map(|end| &self.fabric.paths[end.out as usize])
            .filter(|path| channel < usize::from(path.channels));
        lane.map_or_else(Default::default, |path| self.fabric.lanes[path.first_lane as usize + channel].stats)
    }

    /// The packet that arrived first on a virtual channel.
    #[inline]
    pub fn peek(&self, port: u8, channel: usize) -> Option<&Packet> {
        let lane = &self.fabric.lanes[self.lane_in(port, channel)?];
        if lane.visible == 0 { None } else { lane.queue.front() }
    }

    /// As [`Ports::peek`], to be changed in place.
    #[inline]
    pub fn peek_mut(&mut self, port: u8, channel: usize) -> Option<&mut Packet> {
        let lane = self.lane_in(port, channel)?;
        let lane = &mut self.fabric.lanes[lane];
        if lane.visible == 0 { None } else { lane.queue.front_mut() }
    }

    /// Takes the packet that arrived first; its buffer's credit goes back to the sender.
    #[inline]
    pub fn take(&mut self, port: u8, channel: usize) -> Option<Packet> {
        let index = self.lane_in(port, channel)?;
        let lane = &mut self.fabric.lanes[index];
        if lane.visible == 0 {
            return None;
        }
        lane.visible -= 1;
        let packet = lane.queue.pop_front()?;
        let delay = self.fabric.paths[lane.path as usize].delay;
        self.fabric.at(self.now, self.now.after(delay), Event::Credit { lane: index as u32 });
        Some(packet)
    }

    /// A packet of `length` bytes whose content is arbitrary and must be overwritten. `None` when it is longer than the
    /// fabric's packets, or when the pool has no more.
    #[inline]
    pub fn new_packet(&mut self, length: usize) -> Option<Packet> {
        self.fabric.pool.take(length)
    }

    /// Gives a packet's buffer back to the pool.
    #[inline]
    pub fn recycle(&mut self, packet: Packet) {
        self.fabric.pool.give(packet);
    }

    /// Takes part in a wire of the global interrupt network, driving it low at first, or no longer. Ignored if there is no
    /// such wire.
    pub fn join_wire(&mut self, wire: u8, member: bool) {
        if wire < GI_WIRES {
            if self.node.is_none() {
                self.node = self.fabric.node_of(self.function).ok();
            }
            if let Some(node) = self.node {
                self.fabric.set_member(node, wire, member, self.now);
            }
        }
    }

    /// Drives a wire with a level. Ignored unless the function takes part in it.
    pub fn drive_wire(&mut self, wire: u8, level: bool) {
        if let (true, Some(node)) = (wire < GI_WIRES, self.node) {
            self.fabric.drive(node, wire, level, None, self.now);
        }
    }

    /// Drives a wire high until its AND or OR has been seen to rise. Ignored unless the function takes part in it.
    pub fn fire_wire(&mut self, wire: u8, until: Combine) {
        if let (true, Some(node)) = (wire < GI_WIRES, self.node) {
            self.fabric.drive(node, wire, true, Some(until), self.now);
        }
    }

    /// Counts up whenever what any wire shows, or what is driven, changes.
    #[inline]
    pub fn wire_changes(&self) -> u64 {
        self.fabric.wire_changes
    }

    /// Whether the function drives a wire high.
    pub fn drives_wire(&self, wire: u8) -> bool {
        self.node
            .is_some_and(|node| wire < GI_WIRES && self.fabric.nodes[node as usize].high & (1 << wire) != 0)
    }

    /// What a wire shows; low if there is no such wire.
    pub fn wire(&self, wire: u8) -> WireState {
        self.fabric.wires.get(usize::from(wire)).map_or(WireState::default(), |wire| wire.shown)
    }
}

/// Transmits until the hook lets the packet pass; returns its arrival and how often it was repeated.
#[cold]
fn transmit_with_faults(path: &mut super::link::Path, now: Nanos, packet: &mut Packet) -> (Nanos, u64) {
    let mut repeats = 0;
    let mut extra = 0;
    let bytes = packet.wire_bytes();
    loop {
        let transmission = path.transmissions;
        let fault = path.hook.as_mut().map_or(Fault::None, |hook| hook(packet, transmission));
        let arrival = path.transmit(now, bytes);
        match fault {
            Fault::Corrupt if repeats < u64::from(MAX_RETRIES) => {
                repeats += 1;
                path.wait_for_repeat(now);
            }
            Fault::Delay(nanoseconds) => extra = nanoseconds,
            Fault::None | Fault::Corrupt => {}
        }
        if fault != Fault::Corrupt || repeats == u64::from(MAX_RETRIES) {
            return (arrival.after(extra), repeats);
        }
    }
}
