//! The fabric: links between the ports of functions, with virtual channels, credits, time and
//! faults; and the wires of the global interrupt network.
//!
//! In: packets that devices send through their [`Ports`], and the time. Out: packets that have
//! arrived, credits that have come back, and the functions that should therefore be stepped
//! ([`Fabric::pop_woken`]). It may touch nothing else: no clock, no thread, no lock. Whoever holds
//! the machine holds the fabric.
//!
//! Rules
//! - A packet is owned: it moves from the sender to a buffer at the receiving end, and from there
//!   to whoever takes it.
//! - A virtual channel holds as many packets as it has credits. A sender without credit keeps its
//!   packet; nothing is dropped, and no virtual channel waits for another one. The order within a
//!   virtual channel is kept whatever happens.
//! - There is one path for all timings. A packet sent at `now` is visible at max(now, link free) +
//!   bytes / bandwidth + delay; with zero delay and infinite bandwidth that is at once. Packets
//!   that go or come in a row ([`Run`], [`Arrivals`]) share what is the same for all of them, and
//!   nothing else: their order, credits and faults are those of packets that go one by one.
//! - After the first packets nothing allocates: queues have room for all credits, buffers come from
//!   a pool.
//! - [`Fabric::advance`] costs what is due, not what exists.

mod fault;
mod link;
mod packet;
mod ports;
mod queue;
mod schedule;
#[cfg(test)]
mod tests;
mod wires;

use std::collections::VecDeque;

use thiserror::Error;

pub use self::{
    fault::{Fault, FaultHook, MAX_RETRIES},
    link::{Direction, LaneStats, LinkId, LinkSpec, MAX_CHANNELS, MAX_CREDITS},
    packet::{Contents, Packet},
    ports::{Arrivals, Ports, Run},
    wires::{Combine, GI_WIRES, WireState},
};
use self::{
    link::{Lane, Path},
    packet::Pool,
    schedule::{Event, Schedule},
    wires::Wire,
};
use crate::{device::FunctionId, time::Nanos};

/// Function numbers that a fabric takes: 0 to this, less one.
pub const MAX_FUNCTIONS: u32 = 1 << 16;
/// Ports of a function at most.
pub const MAX_PORTS: u8 = 64;
/// Size of packet buffers in bytes unless [`Fabric::set_max_packet`] says otherwise.
pub const DEFAULT_MAX_PACKET: usize = 2048;
/// Packets that a fabric's pool makes at most, beside as many as its links have credits, unless
/// [`Fabric::set_pool_bound`] says otherwise.
pub const DEFAULT_POOL_BOUND: usize = 1 << 16;

/// Why a fabric can't be built as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FabricError {
    /// A port can hold one link.
    #[error("port {port} of function {} has a link already", function.0)]
    PortTaken {
        /// The function.
        function: FunctionId,
        /// Its port.
        port: u8,
    },
    /// A function has at most [`MAX_PORTS`] ports.
    #[error("port {port} of function {} is not below {MAX_PORTS}", function.0)]
    PortOutOfRange {
        /// The function.
        function: FunctionId,
        /// Its port.
        port: u8,
    },
    /// The function's number is too high.
    #[error("function {} is not below {MAX_FUNCTIONS}", function.0)]
    FunctionOutOfRange {
        /// The function.
        function: FunctionId,
    },
    /// A link has 1 to [`MAX_CHANNELS`] virtual channels.
    #[error("{count} virtual channels: a link has 1 to {MAX_CHANNELS}")]
    Channels {
        /// Channels asked for.
        count: usize,
    },
    /// A virtual channel has 1 to [`MAX_CREDITS`] credits.
    #[error("{credits} credits: a virtual channel has 1 to {MAX_CREDITS}")]
    Credits {
        /// Credits asked for.
        credits: u32,
    },
    /// There is no such link.
    #[error("there is no link {}", link.0)]
    NoLink {
        /// The link.
        link: LinkId,
    },
    /// There is no such virtual channel.
    #[error("link {} has no virtual channel {channel}", link.0)]
    NoChannel {
        /// The link.
        link: LinkId,
        /// The virtual channel.
        channel: usize,
    },
}

/// A port's link.
#[derive(Clone, Copy, Debug)]
struct End {
    /// First lane out, and first lane in.
    out: u32,
    inward: u32,
    /// Virtual channels.
    channels: u8,
    /// Whether it takes packets.
    up: bool,
}

/// What the fabric knows of a function.
#[derive(Debug)]
struct Node {
    function: FunctionId,
    ends: Vec<Option<End>>,
    /// Ports with a link, a bit a port.
    plugged: u64,
    /// Ports at which packets wait, a bit a port, by virtual channel.
    arrived: [u64; MAX_CHANNELS],
    /// It is in [`Fabric::woken`], or its function is looked at anyway ([`Fabric::take_woken`]).
    woken: bool,
    /// Wires it takes part in, those it drives high, and those where it fired: a bit a wire.
    member: u8,
    high: u8,
    fired_and: u8,
    fired_or: u8,
}

impl Node {
    /// Queues the node, whose index is `index`, to be stepped.
    #[inline]
    fn wake(&mut self, index: u32, woken: &mut VecDeque<u32>) {
        if !self.woken {
            self.woken = true;
            woken.push_back(index);
        }
    }
}

/// The links of a machine. See the module.
pub struct Fabric {
    /// Index into `nodes` by function number.
    index: Vec<Option<u32>>,
    nodes: Vec<Node>,
    /// Two a link: forward, backward.
    paths: Vec<Path>,
    lanes: Vec<Lane>,
    /// Credits of all lanes together.
    credits: usize,
    pool: Pool,
    schedule: Schedule,
    woken: VecDeque<u32>,
    wires: [Wire; GI_WIRES as usize],
    wire_delay: u64,
    wire_changes: u64,
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Fabric {
    /// A fabric without links.
    pub fn new() -> Self {
        Self {
            index: Vec::new(),
            nodes: Vec::new(),
            paths: Vec::new(),
            lanes: Vec::new(),
            credits: 0,
            pool: Pool::new(DEFAULT_MAX_PACKET, DEFAULT_POOL_BOUND),
            schedule: Schedule::default(),
            woken: VecDeque::new(),
            wires: Default::default(),
            wire_delay: 0,
            wire_changes: 0,
        }
    }

    /// Puts a link between two ports. The first end is where [`Direction::Forward`] starts.
    pub fn connect(
        &mut self,
        a: (FunctionId, u8),
        b: (FunctionId, u8),
        spec: LinkSpec,
    ) -> Result<LinkId, FabricError> {
        if spec.credits.is_empty() || spec.credits.len() > MAX_CHANNELS {
            return Err(FabricError::Channels { count: spec.credits.len() });
        }

        if let Some(&credits) = spec.credits.iter().find(|&&credits| credits == 0 || credits > MAX_CREDITS) {
            return Err(FabricError::Credits { credits });
        }

        if a == b {
            return Err(FabricError::PortTaken { function: b.0, port: b.1 });
        }

        for (function, port) in [a, b] {
            if port >= MAX_PORTS {
                return Err(FabricError::PortOutOfRange { function, port });
            }
            let node = self.node_of(function)?;
            if matches!(self.nodes[node as usize].ends.get(usize::from(port)), Some(Some(_))) {
                return Err(FabricError::PortTaken { function, port });
            }
        }

        let (from, to) = (self.node_of(a.0)?, self.node_of(b.0)?);
        let (forward, out) = self.add_path((from, a.1), (to, b), &spec);
        let (_, back) = self.add_path((to, b.1), (from, a), &spec);
        let channels = spec.credits.len() as u8;
        self.plug(from, a.1, End { out, inward: back, channels, up: true });
        self.plug(to, b.1, End { out: back, inward: out, channels, up: true });
        self.wake(from);
        self.wake(to);

        Ok(LinkId(forward / 2))
    }

    fn plug(&mut self, node: u32, port: u8, end: End) {
        let node = &mut self.nodes[node as usize];
        node.plugged |= 1 << (port % MAX_PORTS);
        let ends = &mut node.ends;
        if ends.len() <= usize::from(port) {
            ends.resize(usize::from(port) + 1, None);
        }
        ends[usize::from(port)] = Some(end);
    }

    /// Adds a path and its lanes; returns its index and that of its first lane.
    fn add_path(&mut self, from: (u32, u8), to: (u32, (FunctionId, u8)), spec: &LinkSpec) -> (u32, u32) {
        let (path, first_lane) = (self.paths.len() as u32, self.lanes.len() as u32);
        self.paths.push(Path::new(from, to.1, first_lane, spec));
        for (channel, &credits) in spec.credits.iter().enumerate() {
            let ends = (from.0, to.0, to.1.1);
            self.lanes.push(Lane::new(path, ends, channel as u8, credits, spec));
            self.credits += credits as usize;
            self.pool.raise_bound(credits as usize);
        }

        // A credit is with the sender, under a packet, or on its way back: one event at a time.
        self.schedule.reserve(self.credits + self.wires.len());

        (path, first_lane)
    }

    /// The node of a function, made if need be.
    fn node_of(&mut self, function: FunctionId) -> Result<u32, FabricError> {
        if function.0 >= MAX_FUNCTIONS {
            return Err(FabricError::FunctionOutOfRange { function });
        }

        let slot = function.0 as usize;
        if self.index.len() <= slot {
            self.index.resize(slot + 1, None);
        }

        if let Some(node) = self.index[slot] {
            return Ok(node);
        }

        let node = self.nodes.len() as u32;
        self.nodes.push(Node {
            function,
            ends: Vec::new(),
            plugged: 0,
            arrived: [0; MAX_CHANNELS],
            woken: false,
            member: 0,
            high: 0,
            fired_and: 0,
            fired_or: 0,
        });

        self.woken.reserve(self.nodes.len());
        self.index[slot] = Some(node);

        Ok(node)
    }

    /// Size of packet buffers from now on, in bytes; 1 to 65,536 and limited to that.
    pub fn set_max_packet(&mut self, bytes: usize) {
        self.pool.set_size(bytes.clamp(1, 1 << 16));
    }

    /// Size of packet buffers in bytes.
    pub fn max_packet(&self) -> usize {
        self.pool.size()
    }

    /// The most packets that may exist at once, whatever links are added later.
    pub fn set_pool_bound(&mut self, packets: usize) {
        self.pool.set_bound(packets);
    }

    /// Packets that exist and are not in the pool.
    pub fn packets_in_use(&self) -> usize {
        self.pool.in_use()
    }

    /// A function's ports at the time `now`.
    #[inline]
    pub fn ports(&mut self, function: FunctionId, now: Nanos) -> Ports<'_> {
        let node = self.index.get(function.0 as usize).copied().flatten();
        Ports::new(self, node.map_or(Ports::NOWHERE, |node| node as usize), function, now)
    }

    /// Makes what is due until `now` visible and wakes whom it concerns.
    #[inline]
    pub fn advance(&mut self, now: Nanos) {
        if self.next_event() <= now {
            self.advance_until(now);
        }
    }

    fn advance_until(&mut self, now: Nanos) {
        while let Some((due, event)) = self.schedule.pop(now) {
            self.happen(due, event);
        }
    }

    /// When [`Fabric::advance`] has something to do next; [`Nanos::NEVER`] if nothing is under way.
    #[inline]
    pub fn next_event(&self) -> Nanos {
        self.schedule.next()
    }

    /// Gives `wake` the functions that [`Fabric::pop_woken`] would give. They are looked at every
    /// turn from now on, so that they need not be named again, until [`Fabric::let_rest`].
    #[inline]
    pub(crate) fn take_woken(&mut self, wake: impl FnMut(FunctionId)) {
        if !self.woken.is_empty() {
            self.take_all_woken(wake);
        }
    }

    fn take_all_woken(&mut self, mut wake: impl FnMut(FunctionId)) {
        for node in self.woken.drain(..) {
            wake(self.nodes[node as usize].function);
        }
    }

    /// The function is not looked at by itself any more: it has to be named when there is something
    /// for it.
    pub(crate) fn let_rest(&mut self, function: FunctionId) {
        if let Some(node) = self.index.get(function.0 as usize).copied().flatten()
            && !self.woken.contains(&node)
        {
            self.nodes[node as usize].woken = false;
        }
    }

    /// A function to step: a packet arrived, a channel without credit has one again, a wire
    /// changed, or a link was plugged in, went down or came up. Each is named once until it is
    /// taken here.
    #[inline]
    pub fn pop_woken(&mut self) -> Option<FunctionId> {
        let node = &mut self.nodes[self.woken.pop_front()? as usize];
        node.woken = false;
        Some(node.function)
    }

    /// Puts a fault hook on a direction of a link, or takes it off.
    pub fn set_fault(
        &mut self,
        link: LinkId,
        direction: Direction,
        hook: Option<FaultHook>,
    ) -> Result<(), FabricError> {
        let path = self.path(link, direction)?;
        let path = &mut self.paths[path];
        path.hook = hook;
        path.transmissions = 0;
        let (lanes, plain) = (path.lanes(), path.is_plain());
        for lane in &mut self.lanes[lanes] {
            lane.plain = plain;
        }

        Ok(())
    }

    /// Takes a link down or up. While it is down nothing can be sent over it in either direction;
    /// what was sent arrives.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) -> Result<(), FabricError> {
        for direction in [Direction::Forward, Direction::Backward] {
            let path = self.path(link, direction)?;
            let (node, port) = self.paths[path].sender;
            if let Some(Some(end)) = self.nodes[node as usize].ends.get_mut(usize::from(port)) {
                end.up = up;
            }
            self.wake(node);
        }

        Ok(())
    }

    /// What a virtual channel of a link has carried.
    pub fn link_stats(
        &self,
        link: LinkId,
        direction: Direction,
        channel: usize,
    ) -> Result<LaneStats, FabricError> {
        let path = &self.paths[self.path(link, direction)?];
        let lane = path.lanes().nth(channel).ok_or(FabricError::NoChannel { link, channel })?;
        Ok(self.lanes[lane].stats)
    }

    /// The links there are: 0 to this, less one.
    pub fn links(&self) -> u32 {
        (self.paths.len() / 2) as u32
    }

    /// The two ends of a link.
    pub fn link_ends(&self, link: LinkId) -> Result<[(FunctionId, u8); 2], FabricError> {
        let (forward, backward) =
            (self.path(link, Direction::Forward)?, self.path(link, Direction::Backward)?);
        Ok([self.paths[backward].receiver_end, self.paths[forward].receiver_end])
    }

    /// Time until members of a wire see a change, in nanoseconds. 0 unless set.
    pub fn set_wire_delay(&mut self, nanoseconds: u64) {
        self.wire_delay = nanoseconds;
    }

    fn path(&self, link: LinkId, direction: Direction) -> Result<usize, FabricError> {
        let path = link.0 as usize * 2 + usize::from(direction == Direction::Backward);
        if path < self.paths.len() { Ok(path) } else { Err(FabricError::NoLink { link }) }
    }

    /// Lets `event` happen at `due`: now, or when [`Fabric::advance`] comes to it.
    #[inline]
    fn at(&mut self, now: Nanos, due: Nanos, event: Event) {
        if due <= now {
            self.happen(due, event);
        } else {
            self.schedule.add(due, event);
        }
    }

    #[inline]
    fn happen(&mut self, due: Nanos, event: Event) {
        match event {
            Event::Arrival { lane } => self.lanes[lane as usize].show(1, &mut self.nodes, &mut self.woken),
            Event::Credit { lane } => {
                self.lanes[lane as usize].give_credits(1, &mut self.nodes, &mut self.woken)
            }
            Event::Wire { wire } => self.show_wire(wire, due),
        }
    }

    fn wake(&mut self, node: u32) {
        self.nodes[node as usize].wake(node, &mut self.woken);
    }

    /// Sets the level a node drives a wire with. `fire` tells whether it is to fall by itself.
    fn drive(&mut self, node: u32, wire: u8, level: bool, fire: Option<Combine>, now: Nanos) {
        let bit = 1u8 << wire;
        let entry = &mut self.nodes[node as usize];
        if entry.member & bit == 0 {
            return;
        }

        let line = &mut self.wires[usize::from(wire)];
        line.high -= u32::from(entry.high & bit != 0);
        line.high += u32::from(level);
        set(&mut entry.high, bit, level);
        set(&mut entry.fired_and, bit, level && fire == Some(Combine::And));
        set(&mut entry.fired_or, bit, level && fire == Some(Combine::Or));
        self.wire_changed(wire, now);
    }

    /// Makes a node a member of a wire that drives it low, or no member.
    fn set_member(&mut self, node: u32, wire: u8, member: bool, now: Nanos) {
        self.drive(node, wire, false, None, now);
        let bit = 1u8 << wire;
        let entry = &mut self.nodes[node as usize];
        let line = &mut self.wires[usize::from(wire)];
        if (entry.member & bit != 0) != member {
            set(&mut entry.member, bit, member);
            if member {
                line.members.push(node);
            } else {
                line.members.retain(|&other| other != node);
            }
            self.wire_changed(wire, now);
        }
    }

    fn wire_changed(&mut self, wire: u8, now: Nanos) {
        self.wire_changes += 1;
        let line = &mut self.wires[usize::from(wire)];
        let driven = line.driven();
        let seen_at = now.after(self.wire_delay);
        if line.coming.is_some() {
            line.later = Some((seen_at, driven));
        } else if driven != (line.shown.and, line.shown.or) {
            line.coming = Some(driven);
            self.at(now, seen_at, Event::Wire { wire });
        }
    }

    fn show_wire(&mut self, wire: u8, due: Nanos) {
        let bit = 1u8 << wire;
        let line = &mut self.wires[usize::from(wire)];
        let Some((and, or)) = line.coming.take() else { return };
        self.wire_changes += 1;
        let rises = (and && !line.shown.and, or && !line.shown.or);
        line.shown.and_rises += u64::from(rises.0);
        line.shown.or_rises += u64::from(rises.1);
        let mut fell = false;
        for &member in &line.members {
            let entry = &mut self.nodes[member as usize];
            let falls = (rises.0 && entry.fired_and & bit != 0) || (rises.1 && entry.fired_or & bit != 0);
            if falls {
                fell = true;
                line.high -= u32::from(entry.high & bit != 0);
                set(&mut entry.high, bit, false);
                set(&mut entry.fired_and, bit, false);
                set(&mut entry.fired_or, bit, false);
            }
            entry.wake(member, &mut self.woken);
        }

        (line.shown.and, line.shown.or) = (and, or);
        if fell {
            // What fell by itself did so at this moment: nobody can see it high any more.
            (line.shown.and, line.shown.or) = line.driven();
            line.later = line.later.map(|(at, _)| (at, line.driven()));
        }

        if let Some((at, levels)) = line.later.take()
            && levels != (line.shown.and, line.shown.or)
        {
            line.coming = Some(levels);
            self.at(due, at, Event::Wire { wire });
        }
    }
}

fn set(word: &mut u8, bit: u8, on: bool) {
    if on {
        *word |= bit;
    } else {
        *word &= !bit;
    }
}
