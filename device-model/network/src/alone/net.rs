//! The tables of a network's links, and their events.

use nicforge_core::{
    cache::{prefetch_entry, prefetch_lines},
    fabric::{
        CreditUnit, LinkSpec,
        timing::{Start, WireSpeed},
    },
    time::Nanos,
};

use super::{
    lane::{Lane, Shown},
    links::NodeLinks,
    network::Node,
    wheel::{Event, Events, Kind, Wheel},
};
use crate::shape::CableEnd;

/// Number of events by which an event's memory is prefetched ahead of its execution.
pub(super) const PREFETCH_DISTANCE: usize = 6;
/// Cache lines of a node's wires that are prefetched: they hold those of six ports.
const WIRE_LINES: usize = 3;
/// No lane: the port has no cable.
pub(super) const NO_LANE: u32 = u32::MAX;

/// The state of the wire out of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Time from which it is idle, or [`Start::NEVER`] without a cable.
    pub(super) busy_until: Start,
    /// There is an event for the time at which it falls idle, or it has no cable and never does.
    pub(super) has_event: bool,
    /// Index of its lane of the first virtual channel, or [`NO_LANE`]. That of the next virtual
    /// channel is larger by the number of ports.
    pub(super) outward: u32,
}

/// Inputs with packets, ports whose waits have ended, and packets sent by a node.
///
/// The sets have one bit for each input or port. A router has at most 64 of them; that numbers are
/// taken modulo 64 only keeps shifts in range.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// Inputs with a whole packet, and those with the head of one, which include the former.
    pub(super) whole: u64,
    pub(super) heads: u64,
    /// Ports at which a wait has ended.
    pub(super) freed: u64,
    /// Packets sent over links.
    pub(super) sent: u64,
}

/// The state of a node: the wires out of its ports, the packets that it has been shown, and its
/// next turn.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct NodeStatus {
    /// The wires out of its ports.
    pub(super) wires: Box<[Wire]>,
    /// Index of the first lane into the node.
    pub(super) first_lane: u32,
    pub(super) marks: Marks,
    /// Time of the node's first timer event, or [`Nanos::NEVER`].
    pub(super) timer: Nanos,
    /// The node is in [`Net::woken`], or its turn has not begun since.
    pub(super) is_woken: bool,
}

const _: () = assert!(size_of::<NodeStatus>() == 64);

impl NodeStatus {
    /// Records that a wait at a port has ended. The caller must wake the node.
    #[inline]
    fn free(&mut self, port: u8) {
        self.marks.freed |= 1 << (port % 64);
    }

    /// Adds the node, whose number is `node`, to the woken nodes, unless it is woken.
    #[inline]
    fn wake(&mut self, node: u32, woken: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_woken, true) {
            woken.push(node);
        }
    }
}

/// Bits of a port in the number of a wire. The node is above them.
const PORT_BITS: u32 = u8::BITS;

/// Returns the number of the wire out of a port.
#[inline(always)]
pub(super) const fn wire_of(node: u32, port: u8) -> u32 {
    node << PORT_BITS | port as u32
}

/// Returns the node and the port of a wire.
#[inline(always)]
const fn port_of(wire: u32) -> (u32, u8) {
    (wire >> PORT_BITS, wire as u8)
}

/// The properties that all links of a network have.
#[derive(Clone, Debug)]
pub(super) struct LinkProperties {
    pub(super) speed: WireSpeed,
    /// Nanoseconds that a packet or a credit takes along a link.
    pub(super) delay: u64,
    pub(super) unit: CreditUnit,
    /// Credits of each virtual channel.
    pub(super) credits: Vec<u32>,
    /// Ports of a node.
    pub(super) ports: usize,
    /// Virtual channels of a link.
    pub(super) vcs: usize,
}

/// The part of a network's links that all nodes share.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) properties: LinkProperties,
    /// By node, virtual channel and port: the lanes into the node.
    pub(super) lanes: Vec<Lane>,
    pub(super) wheel: Wheel,
    /// The present time.
    pub(super) now: Nanos,
}

/// The links of a network, their packets and their events.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) tables: Tables,
    status: Vec<NodeStatus>,
    /// Nodes that are to have a turn.
    pub(super) woken: Vec<u32>,
}

impl Net {
    /// Returns nodes of `ports` ports without cables. The router serves `vcs` virtual channels.
    pub(super) fn new(nodes: u32, ports: u8, vcs: usize, link: &LinkSpec) -> Self {
        let (nodes, ports) = (nodes as usize, usize::from(ports));
        let properties = LinkProperties {
            speed: WireSpeed::new(link),
            delay: link.delay,
            unit: link.credit_unit,
            credits: link.credits.clone(),
            ports,
            vcs,
        };

        let wire = Wire { busy_until: Start::NEVER, has_event: true, outward: NO_LANE };
        let inputs = ports * vcs;
        // Ports without a cable keep these values. [`Net::connect`] replaces the others.
        let no_sender = CableEnd { node: 0, port: 0 };
        let status = (0..nodes).map(|node| NodeStatus {
            wires: vec![wire; ports].into_boxed_slice(),
            first_lane: (node * inputs) as u32,
            marks: Marks::default(),
            timer: Nanos::NEVER,
            is_woken: false,
        });
        let lanes = (0..nodes * inputs).map(|lane| {
            let vc = lane % inputs / ports;
            let credits = link.credits.get(vc).copied().unwrap_or(0);
            Lane::new(no_sender, 0, 0, credits)
        });

        Self {
            tables: Tables { properties, lanes: lanes.collect(), wheel: Wheel::new(), now: Nanos::ZERO },
            status: status.collect(),
            // A run of the woken nodes adds two turns behind theirs, to load ahead without a check.
            woken: Vec::with_capacity(nodes + 2),
        }
    }

    /// Returns whether an event can hold the index of each lane and the number of each wire.
    pub(super) fn fits_events(nodes: u32, ports: u8, vcs: usize) -> bool {
        (nodes as usize).saturating_mul(usize::from(ports) * vcs.max(1)) < Event::INDICES
            && nodes as usize <= Event::INDICES >> PORT_BITS
    }

    /// Adds the wire from one port to another, with its lanes.
    pub(super) fn connect(&mut self, from: CableEnd, to: CableEnd) {
        let LinkProperties { ports, vcs, .. } = self.tables.properties;
        let first_lane = to.node as usize * ports * vcs + usize::from(to.port);
        let wire = &mut self.status[from.node as usize].wires[usize::from(from.port)];
        *wire = Wire { busy_until: Start::FIRST, has_event: false, outward: first_lane as u32 };

        for vc in 0..vcs {
            let input = (vc * ports + usize::from(to.port)) as u8;
            let credits = self.tables.properties.credits[vc];
            self.tables.lanes[first_lane + vc * ports] = Lane::new(from, to.node, input, credits);
        }
    }

    /// Begins a node's turn. Returns the links as the node sees them.
    #[inline(always)]
    pub(super) fn begin_turn(&mut self, node: u32) -> Option<NodeLinks<'_>> {
        let links = self.node_links(node)?;
        links.status.is_woken = false;
        Some(links)
    }

    /// Returns the links as a node sees them.
    #[inline(always)]
    pub(super) fn node_links(&mut self, node: u32) -> Option<NodeLinks<'_>> {
        let status = self.status.get_mut(node as usize)?;
        let now = self.tables.now;
        Some(NodeLinks { tables: &mut self.tables, status, now, node })
    }

    /// Returns the number of packets sent over all links.
    pub(super) fn hops(&self) -> u64 {
        self.status.iter().map(|node| node.marks.sent).sum()
    }

    /// Wakes a node.
    #[inline]
    pub(super) fn wake(&mut self, node: u32) {
        self.status[node as usize].wake(node, &mut self.woken);
    }

    /// Has a node woken at `time`. An earlier time that was set before stays.
    #[inline]
    pub(super) fn wake_at(&mut self, node: u32, time: Nanos) {
        let timer = &mut self.status[node as usize].timer;
        if time < *timer {
            *timer = time;
            self.tables.wheel.add(time, Kind::Timer(node));
        }
    }

    /// Has the processor load the lane of an arrival. The tables of a large network are in no
    /// cache.
    #[inline(always)]
    pub(super) fn prefetch_lane(&self, lane: u32) {
        prefetch_entry::<1, _>(&self.tables.lanes, lane as usize);
    }

    /// Returns the inputs of a node with the head of a packet, and the ports at which a wait has
    /// ended, one bit for each.
    #[inline(always)]
    pub(super) fn heads_and_freed(&self, node: u32) -> (u64, u64) {
        self.status.get(node as usize).map_or((0, 0), |status| (status.marks.heads, status.marks.freed))
    }

    /// Has the processor load the links of a node that is to have a turn.
    #[inline(always)]
    pub(super) fn prefetch_node(&self, node: u32) {
        if let Some(status) = self.status.get(node as usize) {
            prefetch_lines::<WIRE_LINES, _>(&*status.wires);
        }
    }

    /// Wakes the nodes again whose turns were not carried out.
    #[cold]
    pub(super) fn postpone(&mut self, nodes: &[u32]) {
        for &node in nodes {
            self.status[node as usize].is_woken = true;
            self.woken.push(node);
        }
    }

    /// Returns the events of the next time, if it is at most `limit`, and goes on to that time. The
    /// caller must return the memory: [`Net::recycle_events`].
    #[inline]
    pub(super) fn take_events(&mut self, limit: Nanos) -> Option<Events> {
        let (due, events) = self.tables.wheel.take(limit)?;
        self.go_on_to(due);
        Some(events)
    }

    /// Sets the present time to `time`, unless it is later already.
    pub(super) fn go_on_to(&mut self, time: Nanos) {
        self.tables.now = self.tables.now.max(time);
    }

    /// Keeps the memory of events that were carried out.
    pub(super) fn recycle_events(&mut self, events: Events) {
        self.tables.wheel.recycle(events);
    }

    /// Carries out the events of a time that are no arrivals.
    #[inline(always)]
    pub(super) fn carry_out_others(&mut self, events: &Events) {
        for &lane in events.arrivals.iter().take(PREFETCH_DISTANCE) {
            self.prefetch_lane(lane);
        }
        for (index, &event) in events.others.iter().enumerate() {
            if let Some(&ahead) = events.others.get(index + PREFETCH_DISTANCE) {
                // Most are of wires. What is loaded for the others has no use.
                let (node, _) = port_of(ahead.index());
                prefetch_entry::<1, _>(&self.status, node as usize);
            }
            match event.kind() {
                Kind::Idle(wire) => self.fall_idle(wire),
                rare => self.carry_out_rare(rare),
            }
        }
    }

    /// Carries out an event of a kind that is rare.
    #[cold]
    #[inline(never)]
    fn carry_out_rare(&mut self, event: Kind) {
        match event {
            Kind::Credit(lane) => self.return_credits(lane),
            Kind::Timer(node) => {
                self.status[node as usize].timer = Nanos::NEVER;
                self.wake(node);
            }
            Kind::Arrival(_) | Kind::Idle(_) => {}
        }
    }

    /// Carries out an arrival: shows the receiver of a lane what has arrived. The event may be that
    /// of a former packet. A receiver that has no turn yet decides on a head here.
    #[inline(always)]
    pub(super) fn arrive<N: Node>(&mut self, nodes: &mut [N], index: u32) {
        let Self { tables, status, woken } = self;
        let now = tables.now;
        let lane = &mut tables.lanes[index as usize];
        if lane.due > now {
            lane.has_event = lane.due < Nanos::NEVER;
            if lane.has_event {
                tables.wheel.add_arrival(lane.due, index);
            }
            return;
        }
        lane.has_event = false;
        lane.due = Nanos::NEVER;

        let (receiver, input) = (lane.receiver, lane.input);
        let status = &mut status[receiver as usize];
        if lane.shown != Shown::Nothing {
            lane.shown = Shown::Whole;
            status.marks.whole |= 1 << (input % 64);
            return status.wake(receiver, woken);
        }

        lane.shown = Shown::Head;
        status.marks.heads |= 1 << (input % 64);
        if !status.is_woken
            && let Some(node) = nodes.get_mut(receiver as usize)
        {
            let mut links = NodeLinks { tables, status, now, node: receiver };
            if node.arrive(&mut links, input) {
                links.status.wake(receiver, woken);
            }
        }
    }

    /// Wakes the sender of a wire that has fallen idle. If the wire has begun another transmission
    /// since the event was added, adds an event for the end of that one.
    #[inline(always)]
    fn fall_idle(&mut self, number: u32) {
        let (node, port) = port_of(number);
        let status = &mut self.status[node as usize];
        let wire = &mut status.wires[usize::from(port)];
        let due = wire.busy_until.rounded_up();
        if due > self.tables.now {
            return self.tables.wheel.add(due, Kind::Idle(number));
        }

        wire.has_event = false;
        status.free(port);
        status.wake(node, &mut self.woken);
    }

    /// Returns credits to the sender of a lane, and wakes the sender if it has waited for them.
    fn return_credits(&mut self, index: u32) {
        let Tables { lanes, wheel, now, .. } = &mut self.tables;
        let lane = &mut lanes[index as usize];
        let wakes = lane.return_credits(*now);
        let next = if lane.sender_waits() { lane.next_credit_event() } else { None };
        let (sender, port) = (lane.sender, lane.port);

        if let Some(due) = next {
            wheel.add(due, Kind::Credit(index));
        }
        if wakes {
            self.status[sender as usize].free(port);
            self.wake(sender);
        }
    }
}
