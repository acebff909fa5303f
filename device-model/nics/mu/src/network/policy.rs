//! The routes of a node.
//!
//! Deterministic, high-priority and system packets go in dimension order, each on a virtual channel
//! of their own with the bubble rule. Dynamic packets choose among the dimensions of their zone,
//! and escape to the deterministic channel.

use std::cell::Cell;

use nicforge_hwi::mu_packet::{DIMENSIONS, IO_PORT, channel, reception_fifo};
use nicforge_network::{
    deadlock::{Channel, Exits, NodeChannels, Routing, WaitGraph, bubble},
    router::{
        Candidates, Decision, Exit, Policy, Room, Source,
        policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord},
    },
    shape::{Cabling, Torus},
};

use super::{
    Place, dynamic_queues,
    word::{RouteWord, class},
};
use crate::config::{Cables, EXIT_PORTS, NetworkError, Options};

/// The four zones. Each has sets of dimensions, in the order in which dynamic packets go along
/// them.
pub(crate) type Zones = [[u8; DIMENSIONS]; 4];

/// The routing policy of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodePolicy {
    torus: TorusPolicy,
    pub(crate) zones: Zones,
    /// Virtual channels of dynamic packets, one bit for each.
    dynamic_vcs: u16,
    role: Role,
}

/// The role of a node for packets to I/O nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It has no I/O link.
    Compute,
    /// It is attached to an I/O node.
    Exit,
    /// It is an I/O node.
    IoNode,
}

/// Returns the rules of the torus: the virtual channels of each class of packets.
fn rules(options: &Options) -> TorusRules {
    // Packets in dimension order, on a virtual channel with the bubble rule.
    let fixed = |vc| ChannelClass { fixed: Fixed::Bubble { vc }, adaptive: 0 };
    let user = ChannelClass { adaptive: dynamic_queues(options), ..fixed(channel::DETERMINISTIC) };

    let mut rules = TorusRules::shared(user);
    rules.classes[usize::from(class::HIGH_PRIORITY)] = fixed(channel::HIGH_PRIORITY);
    rules.classes[usize::from(class::SYSTEM)] = fixed(channel::SYSTEM);
    rules.order = options.order;
    rules
}

impl NodePolicy {
    /// Returns the policy of node 0, from which those of the others are made.
    pub(crate) fn new(cables: &Cables, options: &Options) -> Result<Self, NetworkError> {
        let torus = TorusPolicy::new(&cables.torus, 0, rules(options))?;
        let dynamic_vcs = dynamic_queues(options);
        Ok(Self { torus, zones: options.zones, dynamic_vcs, role: Role::Compute })
    }

    /// Returns the place of another node, and its policy.
    pub(crate) fn at(&self, cables: &Cables, node: u32) -> Result<(Place, Self), NetworkError> {
        let attached = cables.attached_to(node);
        let Some(&first) = attached.first() else {
            let role = if cables.has_io(node) { Role::Exit } else { Role::Compute };
            let policy = Self { torus: self.torus.at(node)?, role, ..self.clone() };
            return Ok((Place::Compute, policy));
        };

        let mut exits = [None; EXIT_PORTS.len()];
        for (exit, &node) in exits.iter_mut().zip(attached) {
            *exit = Some(node);
        }
        let policy = Self { torus: self.torus.at(first)?, role: Role::IoNode, ..self.clone() };
        Ok((Place::IoNode(exits), policy))
    }

    /// Returns those of `ports` that belong to the first set of a zone that has any of them.
    fn ports_of_zone(&self, zone: usize, ports: u64) -> u64 {
        // Port `2 d` leads up dimension `d`, and port `2 d + 1` down.
        let of_set = |&set: &u8| {
            let dimensions = (0..DIMENSIONS).filter(|dimension| set >> dimension & 1 == 1);
            ports & dimensions.fold(0, |mask, dimension| mask | 0b11 << (2 * dimension))
        };
        self.zones[zone].iter().map(of_set).find(|&ports| ports != 0).unwrap_or(0)
    }

    /// Returns the decision of a compute node.
    fn decide_at_compute_node(&self, word: RouteWord, from: Source) -> Decision {
        if let (Some(port), Source::Injection { .. }) = (word.loop_port(), from) {
            return self.loop_decision(word, port);
        }

        // A dynamic packet on the deterministic channel has escaped there at an earlier node.
        let has_escaped = matches!(from, Source::Link { vc: channel::DETERMINISTIC, .. });
        let torus_word = if has_escaped && word.stays() { word.0.in_order() } else { word.0 };
        match self.torus.decide(torus_word.0, from) {
            Decision::Any(candidates) => {
                let ports = self.ports_of_zone(word.0.zone(), candidates.ports);
                Decision::Any(Candidates { ports, ..candidates })
            }
            // The packet is at its compute node, and leaves it by the I/O link.
            Decision::Local if word.is_to_io() => match self.role {
                Role::Exit => Decision::One(Exit { port: IO_PORT, vc: channel::SYSTEM, room: Room::One }),
                Role::Compute | Role::IoNode => Decision::Drop,
            },
            other => other,
        }
    }

    /// Returns the decision on a packet that takes a loop cable, which is a ring of one node. A
    /// packet that enters a ring needs room for two packets.
    fn loop_decision(&self, word: RouteWord, port: u8) -> Decision {
        let escape = Exit { port, vc: word.fixed_vc(), room: Room::Two };
        if word.0.is_adaptive() {
            let (ports, vcs) = (1 << port, self.dynamic_vcs);
            return Decision::Any(Candidates { ports, vcs, escape: Some(escape) });
        }
        Decision::One(escape)
    }
}

impl Policy for NodePolicy {
    #[inline]
    fn decide(&self, word: u64, from: Source) -> Decision {
        let word = RouteWord::from_bits(word);
        if self.role != Role::IoNode {
            return self.decide_at_compute_node(word, from);
        }

        // This is an I/O node: packets of links are for it, and its own leave by an I/O link.
        match (from, word.exit_port()) {
            (Source::Link { .. }, _) | (_, None) => Decision::Local,
            (Source::Injection { .. }, Some(port)) => {
                Decision::One(Exit { port, vc: channel::SYSTEM, room: Room::One })
            }
        }
    }

    #[inline]
    fn reception(&self, word: u64, from: Source) -> u8 {
        match (RouteWord::from_bits(word).0.class() as u8, from) {
            (class::SYSTEM, _) => reception_fifo::SYSTEM,
            (class::HIGH_PRIORITY, _) => reception_fifo::PRIORITY,
            (_, Source::Link { port, .. }) => port,
            (_, Source::Injection { .. }) => reception_fifo::LOCAL,
        }
    }
}

/// A decision, with the arguments that it was made for.
#[derive(Clone, Copy, Debug)]
struct Decided {
    word: u64,
    /// The port and virtual channel of a packet from a link; `None` for a packet of the device. Its
    /// injection FIFO has no part in a decision, and messages that may take several FIFOs take them
    /// in turns.
    link: Option<Source>,
    decision: Decision,
}

/// The policy of a node, with a cache of its last decisions: the packets of a message have the same
/// route word.
#[derive(Debug)]
pub(crate) struct CachingPolicy {
    policy: NodePolicy,
    /// The last decision on a packet of the device.
    of_device: Cell<Option<Decided>>,
    /// The last decision on a packet of a link.
    of_links: Cell<Option<Decided>>,
}

impl CachingPolicy {
    /// Returns the policy with an empty cache.
    pub(crate) fn new(policy: NodePolicy) -> Self {
        Self { policy, of_device: Cell::new(None), of_links: Cell::new(None) }
    }

    /// Returns the zones.
    pub(crate) fn zones(&self) -> &Zones {
        &self.policy.zones
    }

    /// Returns the zones for a change, after which no earlier decision holds.
    pub(crate) fn zones_mut(&mut self) -> &mut Zones {
        self.of_device.set(None);
        self.of_links.set(None);
        &mut self.policy.zones
    }
}

impl Policy for CachingPolicy {
    #[inline]
    fn decide(&self, word: u64, from: Source) -> Decision {
        let (cache, link) = match from {
            Source::Injection { .. } => (&self.of_device, None),
            Source::Link { .. } => (&self.of_links, Some(from)),
        };
        match cache.get() {
            Some(decided) if decided.word == word && decided.link == link => decided.decision,
            _ => {
                let decision = self.policy.decide(word, from);
                cache.set(Some(Decided { word, link, decision }));
                decision
            }
        }
    }

    #[inline]
    fn reception(&self, word: u64, from: Source) -> u8 {
        self.policy.reception(word, from)
    }
}

/// Sets of directions of a packet in the five dimensions; a bit is set for down. For any two
/// dimensions, each of the four pairs of their directions is in one of the sets.
const DIRECTIONS: [u8; 6] = [0b00000, 0b11111, 0b00101, 0b01010, 0b10011, 0b11100];

/// Checks that packets in dimension order cannot wait for each other in a circle, whatever their
/// hint bits are.
///
/// The deterministic, high-priority and system channels have the same routes. One of them is
/// checked, with the I/O links, which only system packets use. Receivers take packets without
/// waiting for their own transmission. Collective packets have a channel of their own, whose class
/// routes are the software's.
pub(crate) fn check_deadlock(cables: &Cables, policy: &NodePolicy) -> Result<(), NetworkError> {
    let policy_of = |node| policy.at(cables, node).map(|(_, policy)| policy);
    let policies = (0..cables.nodes()).map(policy_of).collect::<Result<Vec<_>, _>>()?;
    let routes = Routes { cables, policies };

    let mut graph = WaitGraph::new(cables, NodeChannels { vcs: 1, fifos: 0 })?;
    graph.add_routes(&routes)?;
    // The bubble rule keeps the rings of the torus moving. I/O links are in no ring.
    let on_torus = bubble(&cables.torus, 0);
    graph.check_with(|channel: Channel| match channel {
        Channel::Link { node, port, .. } if node >= cables.torus.nodes() || port == IO_PORT => None,
        _ => on_torus(channel),
    })?;
    Ok(())
}

/// The routes of packets in dimension order, for the deadlock check, which numbers its route words:
/// one for each compute node as destination and each set of directions, and then one for each I/O
/// link.
struct Routes<'a> {
    cables: &'a Cables,
    policies: Vec<NodePolicy>,
}

/// An I/O link.
struct IoLink {
    compute_node: u32,
    io_node: u32,
}

impl Routes<'_> {
    /// Returns the number of words to compute nodes.
    fn compute_words(&self) -> u32 {
        self.cables.torus.nodes() * DIRECTIONS.len() as u32
    }

    /// Returns the link of a word to an I/O node; `None` if the word is to a compute node.
    fn io_link(&self, word: u32) -> Option<IoLink> {
        let first = self.cables.torus.nodes();
        let attached = self.cables.io_nodes.iter().zip(first..);
        let mut links = attached.flat_map(|(computes, io_node)| {
            computes.iter().map(move |&compute_node| IoLink { compute_node, io_node })
        });
        links.nth(word.checked_sub(self.compute_words())? as usize)
    }

    /// Returns the route word from a compute node to another, with these directions along the
    /// dimensions that are rings.
    fn word(&self, from: u32, to: u32, directions: u8) -> Option<RouteWord> {
        let torus: &Torus = &self.cables.torus;
        let shortest = TorusWord::between(torus, from, to, 0).ok()?;
        let rings = (0..DIMENSIONS).filter(|&dimension| torus.dimensions()[dimension].wraps);
        let directed = rings.fold(shortest, |word, dimension| {
            word.with_direction(dimension, directions >> dimension & 1 == 1)
        });
        Some(RouteWord(directed.with_class(class::SYSTEM)))
    }
}

impl Routing for Routes<'_> {
    fn words(&self) -> u32 {
        self.compute_words() + self.cables.io_nodes.iter().map(Vec::len).sum::<usize>() as u32
    }

    fn target(&self, word: u32) -> Option<u32> {
        match self.io_link(word) {
            Some(IoLink { io_node, .. }) => Some(io_node),
            None => Some(word / DIRECTIONS.len() as u32),
        }
    }

    fn exits(&self, node: u32, word: u32, exits: &mut Exits) {
        let io_link = self.io_link(word);
        if io_link.as_ref().is_some_and(|link| link.io_node == node) {
            exits.deliver();
            return;
        }

        // At an I/O node, any of its links may be the packet's.
        let attached = self.cables.attached_to(node);
        if !attached.is_empty() {
            for &port in &EXIT_PORTS[..attached.len()] {
                exits.link(port, 0);
            }
            return;
        }

        let to = io_link.as_ref().map_or(word / DIRECTIONS.len() as u32, |link| link.compute_node);
        let directions = DIRECTIONS[word as usize % DIRECTIONS.len()];
        let Some(route) = self.word(node, to, directions) else { return };
        let route = if io_link.is_some() { route.to_io() } else { route };
        match self.policies[node as usize].decide(route.0.0, Source::Injection { fifo: 0 }) {
            Decision::Local => exits.deliver(),
            Decision::One(exit) => exits.link(exit.port, 0),
            Decision::Any(_) | Decision::Many(_) | Decision::Drop => {}
        }
    }
}
