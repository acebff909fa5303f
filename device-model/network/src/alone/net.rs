//! The tables of a network's links, and their events.

use nicforge_core::{
    cache::{prefetch, prefetch_lines},
    fabric::{
        CreditUnit, LinkSpec,
        timing::{Start, WireSpeed},
    },
    time::Nanos,
};

use super::{
    lane::{Lane, Shown},
    links::NodeLinks,
    wheel::{Event, Kind, Wheel},
};

/// Events between the request for the memory of one and its execution.
const AHEAD: usize = 6;
/// No lane: the port has no cable.
pub(super) const NO_LANE: u32 = u32::MAX;

/// The state of the wire out of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Time from which it is idle, or [`Start::NEVER`] without a cable.
    pub(super) busy_until: Start,
    /// There is an event for the time at which it falls idle.
    pub(super) has_event: bool,
    /// First lane of the wire into the port, or [`NO_LANE`].
    pub(super) inward: u32,
    /// The node and its port.
    node: u32,
    port: u8,
}

/// The state of a node: the packets that it has been shown, and its next turn.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct NodeStatus {
    /// Inputs with a whole packet, and those with the head of one.
    pub(super) whole: u64,
    pub(super) heads: u64,
    /// Ports at which a wait has ended.
    pub(super) freed: u64,
    /// Time of the node's first timer event, or [`Nanos::NEVER`].
    pub(super) timer: Nanos,
    /// Packets sent over links.
    pub(super) sent: u64,
    /// The node is in [`Net::woken`].
    pub(super) is_woken: bool,
}

/// The properties that all links of a network have.
#[derive(Clone, Debug)]
pub(super) struct LinkProperties {
    pub(super) speed: WireSpeed,
    pub(super) delay: u64,
    pub(super) unit: CreditUnit,
    pub(super) credits: Vec<u32>,
    pub(super) ports: usize,
    pub(super) vcs: usize,
}

/// The links of a network, their packets and their events.
#[derive(Debug)]
pub(super) struct Net {
    properties: LinkProperties,
    /// By node and port.
    wires: Vec<Wire>,
    /// By node, port and virtual channel: the lanes out of the node.
    lanes: Vec<Lane>,
    status: Vec<NodeStatus>,
    wheel: Wheel,
    /// Nodes that are to have a turn.
    pub(super) woken: Vec<u32>,
}

impl Net {
    /// Returns nodes of `ports` ports without cables. The router serves `vcs` virtual channels.
    pub(super) fn new(nodes: u32, ports: u8, vcs: usize, link: &LinkSpec) -> Self {
        let (nodes, ports) = (nodes as usize, usize::from(ports));
        let status =
            NodeStatus { whole: 0, heads: 0, freed: 0, timer: Nanos::NEVER, sent: 0, is_woken: false };
        let properties = LinkProperties {
            speed: WireSpeed::new(link),
            delay: link.delay,
            unit: link.credit_unit,
            credits: link.credits.clone(),
            ports,
            vcs,
        };

        let mut wires = Vec::with_capacity(nodes * ports);
        let mut lanes = Vec::with_capacity(nodes * ports * vcs);
        for index in 0..nodes * ports {
            let (node, port) = ((index / ports) as u32, (index % ports) as u8);
            wires.push(Wire { busy_until: Start::NEVER, has_event: false, inward: NO_LANE, node, port });
            lanes.extend(link.credits.iter().take(vcs).map(|&credits| Lane::new((0, 0), (0, 0), credits)));
        }
        Self {
            properties,
            wires,
            lanes,
            status: vec![status; nodes],
            wheel: Wheel::new(),
            woken: Vec::with_capacity(nodes),
        }
    }

    /// Returns whether the events have numbers for the lanes of a network.
    pub(super) fn has_room(nodes: u32, ports: u8, vcs: usize) -> bool {
        (nodes as usize).saturating_mul(usize::from(ports) * vcs.max(1)) < Event::INDICES
    }

    /// Adds the wire from one port to another.
    pub(super) fn connect(&mut self, from: (u32, u8), to: (u32, u8)) {
        let [wire, inward] =
            [from, to].map(|(node, port)| node as usize * self.properties.ports + usize::from(port));
        self.wires[wire].busy_until = Start::FIRST;

        let first = wire * self.properties.vcs;
        self.wires[inward].inward = first as u32;
        for vc in 0..self.properties.vcs {
            let input = (vc * self.properties.ports + usize::from(to.1)) as u8;
            self.lanes[first + vc] = Lane::new(from, (to.0, input), self.properties.credits[vc]);
        }
    }

    /// Returns the links as a node sees them, at the beginning of its turn.
    #[inline(always)]
    pub(super) fn of_node(&mut self, node: u32, now: Nanos) -> Option<NodeLinks<'_>> {
        let Self { properties, wires, lanes, status, wheel, .. } = self;
        let first = node as usize * properties.ports;
        let status = status.get_mut(node as usize)?;
        status.is_woken = false;
        let wires = wires.get_mut(first..first + properties.ports)?;
        Some(NodeLinks { properties, wires, lanes, first: first as u32, status, wheel, node, now })
    }

    /// Returns the number of packets sent over all links.
    pub(super) fn hops(&self) -> u64 {
        self.status.iter().map(|node| node.sent).sum()
    }

    /// Wakes a node.
    #[inline]
    pub(super) fn wake(&mut self, node: u32) {
        if !std::mem::replace(&mut self.status[node as usize].is_woken, true) {
            self.woken.push(node);
        }
    }

    /// Has a node woken at a time, or earlier.
    #[inline]
    pub(super) fn wake_at(&mut self, node: u32, time: Nanos) {
        let timer = &mut self.status[node as usize].timer;
        if time < *timer {
            *timer = time;
            self.wheel.add(time, Kind::Timer(node));
        }
    }

    /// Has the processor load what an event concerns. The tables of a large network are in no
    /// cache.
    #[inline(always)]
    fn prefetch_event(&self, event: Event) {
        match event.kind() {
            Kind::Arrival(lane) | Kind::Credit(lane) => {
                if let Some(lane) = self.lanes.get(lane as usize) {
                    prefetch(lane);
                }
            }
            Kind::Idle(wire) => {
                if let Some(wire) = self.wires.get(wire as usize) {
                    prefetch(wire);
                }
                // Its sender looks at the credits.
                if let Some(lane) = self.lanes.get(wire as usize * self.properties.vcs) {
                    prefetch_lines::<2, _>(lane);
                }
            }
            Kind::Timer(_) => {}
        }
    }

    /// Has the processor load the links of a node that is to have a turn.
    #[inline(always)]
    pub(super) fn prefetch_node(&self, node: u32) {
        if let Some(status) = self.status.get(node as usize) {
            prefetch(status);
        }
        if let Some(wire) = self.wires.get(node as usize * self.properties.ports) {
            prefetch_lines::<3, _>(wire);
        }
    }

    /// Wakes nodes whose turns were not carried out.
    #[cold]
    pub(super) fn postpone(&mut self, nodes: &[u32]) {
        for &node in nodes {
            self.status[node as usize].is_woken = true;
            self.woken.push(node);
        }
    }

    /// Carries out the events of the next time if that time is at most `limit`. Returns the time.
    pub(super) fn carry_out_next(&mut self, limit: Nanos) -> Option<Nanos> {
        let (now, events) = self.wheel.take(limit)?;
        for (index, &event) in events.iter().enumerate() {
            if let Some(&ahead) = events.get(index + AHEAD) {
                self.prefetch_event(ahead);
            }
            self.carry_out(now, event);
        }
        self.wheel.recycle(events);
        Some(now)
    }

    /// Carries out an event.
    #[inline(always)]
    fn carry_out(&mut self, now: Nanos, event: Event) {
        match event.kind() {
            Kind::Arrival(lane) => self.arrive(now, lane),
            Kind::Idle(wire) => self.fall_idle(now, wire),
            Kind::Credit(lane) => self.return_credits(now, lane),
            Kind::Timer(node) => {
                self.status[node as usize].timer = Nanos::NEVER;
                self.wake(node);
            }
        }
    }

    /// Shows the receiver of a lane what has arrived. The event may be that of a former packet.
    #[inline]
    fn arrive(&mut self, now: Nanos, index: u32) {
        let lane = &mut self.lanes[index as usize];
        if lane.due > now {
            lane.has_event = lane.due < Nanos::NEVER;
            if lane.has_event {
                self.wheel.add(lane.due, Kind::Arrival(index));
            }
            return;
        }
        lane.has_event = false;
        lane.due = Nanos::NEVER;

        let (receiver, bit) = (lane.receiver, 1 << (lane.input % 64));
        let status = &mut self.status[receiver as usize];
        if lane.shown == Shown::Nothing {
            lane.shown = Shown::Head;
            status.heads |= bit;
        } else {
            lane.shown = Shown::Whole;
            status.heads &= !bit;
            status.whole |= bit;
        }
        self.wake(receiver);
    }

    /// Wakes the sender of a wire that has fallen idle.
    #[inline]
    fn fall_idle(&mut self, now: Nanos, index: u32) {
        let wire = &mut self.wires[index as usize];
        let due = wire.busy_until.rounded_up();
        if due > now {
            return self.wheel.add(due, Kind::Idle(index));
        }

        wire.has_event = false;
        let (node, port) = (wire.node, wire.port);
        self.free(node, port);
    }

    /// Returns credits to the sender of a lane, which waits for some.
    fn return_credits(&mut self, now: Nanos, index: u32) {
        let lane = &mut self.lanes[index as usize];
        let wakes = lane.return_due(now);
        let next = lane.next_credit_event();
        let (sender, port) = (lane.sender, lane.port);

        if let Some(due) = next {
            self.wheel.add(due, Kind::Credit(index));
        }
        if wakes {
            self.free(sender, port);
        }
    }

    /// Records the end of a wait at a node's port, and wakes the node.
    #[inline]
    fn free(&mut self, node: u32, port: u8) {
        self.status[node as usize].freed |= 1 << (port % 64);
        self.wake(node);
    }
}
