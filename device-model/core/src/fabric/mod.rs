//! The fabric: links between the ports of functions, with virtual channels, credits, time and
//! faults. It also holds the wires of the global interrupt network.
//!
//! Devices send packets through their [`Ports`], and the machine supplies the time. The fabric
//! delivers the packets, returns the credits, and queues the functions that should run because of
//! that ([`Fabric::pop_woken`]). It has no clock, thread or lock: it belongs to the machine.
//!
//! A *lane* is one virtual channel in one direction of a link. A *path* is one direction of a link,
//! with all its lanes. A *node* is a function that has links or wires.
//!
//! Rules
//!
//! - A packet has one owner. It moves from the sender to a buffer at the receiving end, and from
//!   there to the receiver.
//! - A virtual channel holds as many packets as it has credits, or as many bytes
//!   ([`LinkSpec::credit_unit`]). A sender without credit keeps its packet. Nothing is dropped, and
//!   no virtual channel waits for another. Packets of one virtual channel stay in order.
//! - A packet sent at `now` arrives at max(now, link free) + bytes / bandwidth + delay. With zero
//!   delay and infinite bandwidth it arrives at once.
//! - A router can forward a packet when its head has arrived, if the link cuts through
//!   ([`LinkSpec::cut_through`]). Its transmission ends after the packet's tail has arrived. A
//!   device takes packets as a whole.
//! - A credit returns when the tail of its packet has left the buffer, and takes the link's delay.
//! - A sender books the wire when it sends, or waits until the wire is idle
//!   ([`Ports::request_wire`]) and then chooses what to send.
//! - Events of one time are in the order of their lanes, and never in that of their scheduling.
//! - Each link has a longest packet. Packets of all links come from one pool, which has buffers of
//!   the links' sizes.
//! - Operations on several packets in a row ([`Run`], [`Arrivals`]) share fixed costs only. Order,
//!   credits and faults are those of single packets.
//! - Nothing allocates after the first packets: queues grow to the most packets that they have
//!   held, and buffers come from a pool. A link without packets has no memory for them.
//! - Only the first coming packet of a lane is an event. Credits on their way back are one only for
//!   a sender that waits for them.
//! - The cost of [`Fabric::advance`] grows with the events that are due, not with the size of the
//!   fabric.

mod error;
mod events;
mod fault;
mod lane;
mod link;
mod node;
mod packet;
mod path;
mod ports;
mod queue;
pub mod returns;
mod rows;
mod schedule;
mod tap;
#[cfg(test)]
mod tests;
mod timed;
pub mod timing;
mod track;
mod wake;
pub mod wheel;
mod wires;

pub use self::{
    error::{FabricError, PortCount, Refusal, Unsent},
    fault::{Fault, FaultHook, MAX_RETRIES},
    link::{CreditUnit, Direction, LaneStats, LinkId, LinkSpec, MAX_CHANNELS, MAX_CREDITS},
    packet::{Contents, Packet},
    ports::{PortChannel, Ports},
    rows::{Arrivals, ForwardedRow, Run},
    tap::Crossing,
    wires::{Combine, GI_WIRES, WireState},
};
use self::{
    lane::{Ends, Lane},
    link::check_packet_size,
    node::{Node, NodePort, PortLink},
    packet::Pool,
    path::{NewPath, Path},
    schedule::Schedule,
    tap::TappedPackets,
    wake::WakeQueue,
    wires::Wire,
};
use crate::{ids::FunctionId, time::Nanos};

/// Limit of function numbers: a fabric takes numbers below this.
pub const MAX_FUNCTIONS: u32 = 1 << 16;
/// Largest number of ports of a function.
pub const MAX_PORTS: u8 = 64;
/// Largest number of bytes that the packets of a link can have.
pub const MAX_PACKET: usize = 1 << 16;
/// Default of [`LinkSpec::max_packet`], and longest packet of a fabric without links, in bytes.
pub const DEFAULT_MAX_PACKET: usize = 2048;
/// Default bound of a fabric's packet pool, beyond the credits of its links.
/// [`Fabric::set_pool_bound`] changes it.
pub const DEFAULT_POOL_BOUND: usize = 1 << 16;

/// The links of a machine, and the packets on them. The module documentation states the rules.
#[derive(Default)]
pub struct Fabric {
    /// Links by node and port. A device's view borrows those of its node.
    links: Vec<Vec<PortLink>>,
    traffic: Traffic,
    /// Numbers of ports by function number. A function beyond has [`MAX_PORTS`].
    port_counts: Vec<u8>,
}

/// The part of a fabric that packets change, and that a device's view shares with all others.
struct Traffic {
    /// Index into `nodes` by function number, or [`Traffic::NO_NODE`].
    node_indices: Vec<u32>,
    /// Functions that have a port or a wire.
    nodes: Vec<Node>,
    /// Directions of links, two for each link: forward, then backward.
    paths: Vec<Path>,
    /// Virtual channels of the paths.
    lanes: Vec<Lane>,
    pool: Pool,
    schedule: Schedule,
    /// Indices of the nodes whose functions should run.
    woken: WakeQueue,
    wires: [Wire; GI_WIRES as usize],
    /// Time until members of a wire see a change, in nanoseconds.
    wire_delay: u64,
    /// Counter behind [`Ports::wire_changes`].
    wire_changes: u64,
    /// Packets on tapped links, for the trace.
    tapped: TappedPackets,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            node_indices: Vec::new(),
            nodes: Vec::new(),
            paths: Vec::new(),
            lanes: Vec::new(),
            pool: Pool::new(DEFAULT_MAX_PACKET, DEFAULT_POOL_BOUND),
            schedule: Schedule::default(),
            woken: WakeQueue::default(),
            wires: Default::default(),
            wire_delay: 0,
            wire_changes: 0,
            tapped: TappedPackets::default(),
        }
    }
}

impl Traffic {
    /// Index of no node. It is out of the range of every list of nodes.
    const NO_NODE: u32 = u32::MAX;

    /// Returns the index of a function's node, and creates the node if necessary.
    fn node_of(&mut self, function: FunctionId) -> Result<u32, FabricError> {
        if function.0 >= MAX_FUNCTIONS {
            return Err(FabricError::FunctionOutOfRange { function });
        }

        let number = function.0 as usize;
        if self.node_indices.len() <= number {
            self.node_indices.resize(number + 1, Self::NO_NODE);
        }

        if let Some(node) = self.find_node(function) {
            return Ok(node);
        }

        let node = self.nodes.len() as u32;
        self.nodes.push(Node::new(function));
        // Each node is in the queue at most once, so that a wake-up never allocates.
        self.woken.reserve(self.nodes.len());
        self.node_indices[number] = node;

        Ok(node)
    }

    /// Returns the index of a function's node, if it has one.
    #[inline]
    fn find_node(&self, function: FunctionId) -> Option<u32> {
        Some(self.find_node_index(function)).filter(|&node| node != Self::NO_NODE)
    }

    /// Returns the index of a function's node, or [`Traffic::NO_NODE`].
    #[inline]
    fn find_node_index(&self, function: FunctionId) -> u32 {
        self.node_indices.get(function.0 as usize).copied().unwrap_or(Self::NO_NODE)
    }
}

impl Fabric {
    /// Returns a fabric without links.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of a function's ports, at most [`MAX_PORTS`]. Links that the function has
    /// stay.
    pub fn set_port_count(&mut self, function: FunctionId, ports: u8) {
        let number = function.0 as usize;
        if self.port_counts.len() <= number {
            self.port_counts.resize(number + 1, MAX_PORTS);
        }
        self.port_counts[number] = ports.min(MAX_PORTS);
    }

    /// Connects two ports, each given as its function and its number, by a link.
    /// [`Direction::Forward`] is from `a` to `b`.
    pub fn connect(
        &mut self,
        a: (FunctionId, u8),
        b: (FunctionId, u8),
        spec: LinkSpec,
    ) -> Result<LinkId, FabricError> {
        spec.check()?;

        if a == b {
            return Err(FabricError::PortTaken { function: b.0, port: b.1 });
        }

        for (function, port) in [a, b] {
            if port >= MAX_PORTS {
                return Err(FabricError::PortOutOfRange { function, port });
            }
            let ports = self.port_counts.get(function.0 as usize).copied().unwrap_or(MAX_PORTS);
            if port >= ports {
                return Err(FabricError::NoPort { function, port, ports });
            }
            let node = self.traffic.node_of(function)?;
            if self.link_at(node, port).is_some() {
                return Err(FabricError::PortTaken { function, port });
            }
        }

        let a = NodePort { node: self.traffic.node_of(a.0)?, port: a.1 };
        let b = NodePort { node: self.traffic.node_of(b.0)?, port: b.1 };
        self.add_buffers(spec.max_packet);
        let NewPath { path: forward, first_lane: out } = self.add_path(a, b, &spec);
        let NewPath { path: backward, first_lane: back } = self.add_path(b, a, &spec);

        // The check has refused links without channels, and with more than 16.
        let channels = spec.credits.len() as u8;
        let link = PortLink { out, inward: back, path: forward, channels, open: channels };
        self.record_link(a, link);
        self.record_link(b, PortLink { out: back, inward: out, path: backward, ..link });
        self.record_change(a);
        self.record_change(b);

        // Each link has two paths, the forward one first.
        Ok(LinkId(forward / 2))
    }

    /// Returns the link at a node's port, if there is one.
    fn link_at(&self, node: u32, port: u8) -> Option<&PortLink> {
        let link = self.links.get(node as usize)?.get(usize::from(port))?;
        (link.channels > 0).then_some(link)
    }

    /// Records the link of a port.
    fn record_link(&mut self, NodePort { node, port }: NodePort, link: PortLink) {
        self.traffic.nodes[node as usize].plugged |= 1 << (port % MAX_PORTS);
        if self.links.len() < self.traffic.nodes.len() {
            self.links.resize(self.traffic.nodes.len(), Vec::new());
        }

        let links = &mut self.links[node as usize];
        if links.len() <= usize::from(port) {
            links.resize(usize::from(port) + 1, PortLink::NONE);
        }
        links[usize::from(port)] = link;
    }

    /// Adds a path and its lanes.
    fn add_path(&mut self, from: NodePort, to: NodePort, spec: &LinkSpec) -> NewPath {
        let (path, first_lane) = (self.traffic.paths.len() as u32, self.traffic.lanes.len() as u32);
        self.traffic.paths.push(Path::new(from, first_lane, spec));
        for (channel, &credits) in spec.credits.iter().enumerate() {
            let ends = Ends {
                sender: from.node,
                sender_port: from.port,
                receiver: to.node,
                port: to.port,
                channel: channel as u8,
            };
            let mut lane = Lane::new(path, ends, credits, spec);
            lane.limits.set_smallest_buffer(self.traffic.pool.smallest_size());
            self.traffic.lanes.push(lane);
            self.traffic.pool.raise_bound(credits as usize);
        }

        NewPath { path, first_lane }
    }

    /// Adds packets of up to `bytes` bytes to the pool, for functions whose packets are longer than
    /// those of the links, or that have no links. [`Fabric::connect`] does the same for each link.
    /// The first size that is added replaces the pool's initial one.
    ///
    /// # Errors
    /// [`FabricError::PacketSize`].
    pub fn add_packet_size(&mut self, bytes: usize) -> Result<(), FabricError> {
        check_packet_size(bytes)?;
        self.add_buffers(bytes);
        Ok(())
    }

    /// Adds buffers of a size to the pool, and reports a new smallest size to all lanes.
    fn add_buffers(&mut self, bytes: usize) {
        let former_smallest = self.traffic.pool.smallest_size();
        self.traffic.pool.add_size(bytes);

        let smallest = self.traffic.pool.smallest_size();
        if smallest != former_smallest {
            for lane in &mut self.traffic.lanes {
                lane.limits.set_smallest_buffer(smallest);
            }
        }
    }

    /// Returns the longest packet that the pool has a buffer for, in bytes: that of the links with
    /// the longest ones.
    pub fn max_packet(&self) -> usize {
        self.traffic.pool.largest_size()
    }

    /// Sets the largest number of packets that may exist at once, of all sizes together. Links
    /// added later do not raise it.
    pub fn set_pool_bound(&mut self, packets: usize) {
        self.traffic.pool.set_bound(packets);
    }

    /// Returns the number of packets that are not in the pool.
    pub fn packets_in_use(&self) -> usize {
        self.traffic.pool.in_use()
    }

    /// Returns a function's ports at the time `now`.
    #[inline]
    pub fn ports(&mut self, function: FunctionId, now: Nanos) -> Ports<'_> {
        let node = self.traffic.find_node_index(function) as usize;
        let links = self.links.get(node).map_or(&[][..], Vec::as_slice);
        Ports::new(&mut self.traffic, links, node, function, now)
    }

    /// Returns the time of the next event, or [`Nanos::NEVER`] if there is none.
    #[inline]
    pub fn next_event(&self) -> Nanos {
        self.traffic.schedule.next()
    }

    /// Returns whether events have woken functions, for [`Fabric::take_woken`].
    #[inline(always)]
    pub(crate) fn has_woken(&self) -> bool {
        !self.traffic.woken.is_empty()
    }

    /// Passes the functions of [`Fabric::pop_woken`] to `wake`, each with a bit mask of the ports
    /// whose link has changed. The caller polls the functions from now on. Their further events do
    /// not queue them again before [`Fabric::end_polling`], except for a change of a link.
    pub(crate) fn take_woken(&mut self, mut wake: impl FnMut(FunctionId, u64)) {
        while let Some(node) = self.traffic.woken.pop() {
            let node = &mut self.traffic.nodes[node as usize];
            wake(node.function, std::mem::take(&mut node.changed));
        }
    }

    /// Reports that the machine no longer polls the function. Its next event wakes it again.
    pub(crate) fn end_polling(&mut self, function: FunctionId) {
        if let Some(node) = self.traffic.find_node(function)
            && !self.traffic.woken.contains(node)
        {
            self.traffic.nodes[node as usize].woken = false;
        }
    }

    /// Takes the next function that should run, with a bit mask of the ports whose link has
    /// changed. Its next event queues it again.
    #[inline]
    pub(crate) fn take_next_woken(&mut self) -> Option<(FunctionId, u64)> {
        while let Some(node) = self.traffic.woken.pop() {
            let node = &mut self.traffic.nodes[node as usize];
            // The caller may have run the function for another reason: see `Fabric::rearm_wake_up`.
            if std::mem::take(&mut node.woken) {
                return Some((node.function, std::mem::take(&mut node.changed)));
            }
        }
        None
    }

    /// Lets the function's next event queue it again, and returns a bit mask of the ports whose
    /// link has changed. The caller runs the function now, so that earlier events need not wake it:
    /// [`Fabric::take_next_woken`] passes over it.
    #[inline]
    pub(crate) fn rearm_wake_up(&mut self, function: FunctionId) -> u64 {
        let Some(node) = self.traffic.find_node(function) else { return 0 };
        let node = &mut self.traffic.nodes[node as usize];
        node.woken = false;
        std::mem::take(&mut node.changed)
    }

    /// Returns the largest number of functions that [`Fabric::take_next_woken`] can return now.
    #[inline]
    pub(crate) fn count_woken(&self) -> usize {
        self.traffic.woken.len()
    }

    /// Returns the next function to run. A packet arrived there, a virtual channel has credit
    /// again, a wire changed, or a link was connected or changed its state. A function is queued at
    /// most once at a time.
    #[inline]
    pub fn pop_woken(&mut self) -> Option<FunctionId> {
        let node = &mut self.traffic.nodes[self.traffic.woken.pop()? as usize];
        node.woken = false;
        node.changed = 0;
        Some(node.function)
    }

    /// Sets or removes the fault hook on one direction of a link.
    pub fn set_fault(
        &mut self,
        link: LinkId,
        direction: Direction,
        hook: Option<FaultHook>,
    ) -> Result<(), FabricError> {
        let path = self.path(link, direction)?;
        self.traffic.paths[path].set_hook(hook);
        self.update_plain(path);
        Ok(())
    }

    /// Taps one direction of a link: the machine's trace receives each packet that is put on it,
    /// with its first `bytes` bytes. `None` ends that.
    ///
    /// # Errors
    /// [`FabricError::NoLink`].
    pub fn set_tap(
        &mut self,
        link: LinkId,
        direction: Direction,
        bytes: Option<usize>,
    ) -> Result<(), FabricError> {
        let path = self.path(link, direction)?;
        self.traffic.paths[path].set_tap(bytes);
        self.update_plain(path);
        Ok(())
    }

    /// Taps both directions of all links, or ends that: see [`Fabric::set_tap`].
    pub fn set_taps(&mut self, bytes: Option<usize>) {
        for path in 0..self.traffic.paths.len() {
            self.traffic.paths[path].set_tap(bytes);
            self.update_plain(path);
        }
    }

    /// Passes the packets on tapped links since the last call to `show`, in order.
    #[cold]
    pub(crate) fn take_tapped(&mut self, show: impl FnMut(Crossing<'_>)) {
        self.traffic.tapped.take(show);
    }

    /// Lets the lanes of a path know whether a send can skip the path.
    fn update_plain(&mut self, path: usize) {
        let path = &self.traffic.paths[path];
        let (lanes, is_plain) = (path.lanes(), path.is_plain());
        for lane in &mut self.traffic.lanes[lanes] {
            lane.set_plain(is_plain);
        }
    }

    /// Takes a link down or up. A link that is down accepts no packet in either direction. Packets
    /// sent earlier still arrive.
    ///
    /// The machine reports a change to the devices at both ends, in its next step
    /// ([`crate::device::Device::link_changed`]).
    pub fn set_link_up(&mut self, link: LinkId, up: bool) -> Result<(), FabricError> {
        for direction in [Direction::Forward, Direction::Backward] {
            let path = self.path(link, direction)?;
            let sender = self.traffic.paths[path].sender();
            let links = self.links.get_mut(sender.node as usize);
            let Some(link) = links.and_then(|links| links.get_mut(usize::from(sender.port))) else {
                continue;
            };

            let open = if up { link.channels } else { 0 };
            if std::mem::replace(&mut link.open, open) != open {
                self.record_change(sender);
            }
        }

        Ok(())
    }

    /// Makes all packets and heads that arrive at a function's ports visible to it again, also
    /// after [`Ports::route_head`]. The function has another device now.
    pub(crate) fn show_all(&mut self, function: FunctionId, now: Nanos) {
        let Some(node) = self.traffic.find_node(function) else { return };
        let Traffic { lanes, nodes, schedule, .. } = &mut self.traffic;
        for link in self.links.get(node as usize).into_iter().flatten() {
            for index in (0..usize::from(link.channels)).filter_map(|channel| link.lane_in(channel)) {
                lanes[index].show_all(index as u32, now, nodes, schedule);
            }
        }
    }

    /// Returns the statistics of a virtual channel of a link.
    pub fn link_stats(
        &self,
        link: LinkId,
        direction: Direction,
        channel: usize,
    ) -> Result<LaneStats, FabricError> {
        let path = &self.traffic.paths[self.path(link, direction)?];
        let lane = path.lanes().nth(channel).ok_or(FabricError::NoChannel { link, channel })?;
        Ok(self.traffic.lanes[lane].stats)
    }

    /// Returns the number of links. Their ids are the numbers below it.
    pub fn links(&self) -> u32 {
        (self.traffic.paths.len() / 2) as u32
    }

    /// Returns the two ends of a link, in the order given to [`Fabric::connect`].
    pub fn link_ends(&self, link: LinkId) -> Result<[(FunctionId, u8); 2], FabricError> {
        let (forward, backward) =
            (self.path(link, Direction::Forward)?, self.path(link, Direction::Backward)?);
        Ok([forward, backward].map(|path| {
            let NodePort { node, port } = self.traffic.paths[path].sender();
            (self.traffic.nodes[node as usize].function, port)
        }))
    }

    /// Sets the time until members of a wire see a change, in nanoseconds. The default is 0.
    pub fn set_wire_delay(&mut self, nanoseconds: u64) {
        self.traffic.wire_delay = nanoseconds;
    }

    /// Returns the index of a path.
    fn path(&self, link: LinkId, direction: Direction) -> Result<usize, FabricError> {
        let path = link.0 as usize * 2 + usize::from(direction == Direction::Backward);
        if path < self.traffic.paths.len() { Ok(path) } else { Err(FabricError::NoLink { link }) }
    }

    /// Records that a port's link has changed. The function is woken even if the machine polls it.
    fn record_change(&mut self, NodePort { node, port }: NodePort) {
        let entry = &mut self.traffic.nodes[node as usize];
        let is_queued = entry.changed != 0 || entry.woken && self.traffic.woken.contains(node);
        entry.changed |= 1 << (port % MAX_PORTS);
        entry.freed |= 1 << (port % MAX_PORTS);
        entry.woken = true;

        if !is_queued {
            self.traffic.woken.push(node);
        }
    }
}
