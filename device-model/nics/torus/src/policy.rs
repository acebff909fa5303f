//! The routes of a node.
//!
//! | virtual channel | packets |
//! | --- | --- |
//! | 0, 1 | those that choose their way by load; they escape to channel 2 |
//! | 2 | in dimension order, with the bubble rule |
//! | 3 | of high priority, in dimension order, with the bubble rule |

use nicforge_hwi::torus::{CHANNELS, Channel, PORTS, PRIORITY_RECEPTION, RECEPTION_FIFOS};
use nicforge_network::{
    deadlock::{NodeChannels, WaitGraph, bubble},
    router::{
        Decision, Exit, FifoSpec, Policy, RouterSpec, Source,
        policies::{ChannelClass, Fixed, PolicyError, TorusPolicy, TorusRules, TorusWord, escape_routes},
    },
    shape::Torus,
};

use crate::{
    config::{MAX_ON_LINK, NetworkError, Options},
    group::{ALL_INJECTION_FIFOS, ALL_RECEPTION_FIFOS, GROUPS},
};

/// Classes of packets in a route word.
pub(crate) mod class {
    /// Normal priority.
    pub(crate) const NORMAL: u8 = 0;
    /// High priority.
    pub(crate) const HIGH_PRIORITY: u8 = 1;
}

/// Priorities of the senders, 0 first.
mod priority {
    pub(super) const HIGH: u8 = 0;
    pub(super) const NORMAL: u8 = 1;
}

/// Packets from links that an output sends between two injected ones.
const THROUGH_RATIO: u8 = 1;
/// Packets between the router and a reception FIFO in memory.
const RECEPTION_PACKETS: u16 = 2;

/// A route word: a [`TorusWord`] whose free bits say where the packet is delivered.
///
/// | free bits | contents |
/// | --- | --- |
/// | 0 | FIFO group of the destination |
/// | 1 to 3 | reception FIFO of a packet that a node sends to itself |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteWord(pub(crate) TorusWord);

impl RouteWord {
    /// Returns the word with the place of delivery.
    pub(crate) fn new(word: TorusWord, group: usize, own_fifo: u8) -> Self {
        Self(word.with_free_bits(group as u16 & 1 | u16::from(own_fifo & 0b111) << 1))
    }

    /// Returns the FIFO group of the destination.
    #[inline]
    pub(crate) fn group(self) -> usize {
        usize::from(self.0.free_bits() & 1)
    }

    /// Returns the reception FIFO of a packet that the node sends to itself.
    #[inline]
    fn own_fifo(self) -> usize {
        usize::from(self.0.free_bits() >> 1 & 0b111)
    }
}

/// The routing policy of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodePolicy(TorusPolicy);

/// Returns the rules of the torus: the virtual channels of each class of packets.
fn rules() -> TorusRules {
    // Packets in dimension order, on a virtual channel with the bubble rule.
    let fixed = |channel: Channel| ChannelClass { fixed: Fixed::Bubble { vc: channel as u8 }, adaptive: 0 };
    let dynamic = 1 << Channel::Dynamic0 as u16 | 1 << Channel::Dynamic1 as u16;

    let mut rules = TorusRules::shared(ChannelClass { adaptive: dynamic, ..fixed(Channel::BubbleNormal) });
    rules.classes[usize::from(class::HIGH_PRIORITY)] = fixed(Channel::BubblePriority);
    rules
}

impl NodePolicy {
    /// Returns the policy of node 0, from which those of the others are made.
    pub(crate) fn new(torus: &Torus) -> Result<Self, PolicyError> {
        Ok(Self(TorusPolicy::new(torus, 0, rules())?))
    }

    /// Returns the policy of another node of the same network.
    pub(crate) fn at(&self, node: u32) -> Result<Self, PolicyError> {
        Ok(Self(self.0.at(node)?))
    }
}

impl Policy for NodePolicy {
    #[inline]
    fn decide(&self, word: u64, from: Source) -> Decision {
        self.0.decide(word, from)
    }

    #[inline]
    fn only_exit(&self, word: u64, from: Source) -> Option<Exit> {
        self.0.only_exit(word, from)
    }

    #[inline]
    fn is_local(&self, word: u64, from: Source) -> bool {
        self.0.is_local(word, from)
    }

    #[inline]
    fn reception(&self, word: u64, from: Source) -> u8 {
        let word = RouteWord(TorusWord(word));
        let fifo = match from {
            _ if word.0.class() == usize::from(class::HIGH_PRIORITY) => PRIORITY_RECEPTION,
            Source::Link { port, .. } => usize::from(port),
            Source::Injection { .. } => word.own_fifo(),
        };
        (word.group() * RECEPTION_FIFOS + fifo) as u8
    }
}

/// Returns the description of the routers of a network.
pub(crate) fn router_spec(options: &Options) -> RouterSpec {
    let longest = MAX_ON_LINK as u32;
    let fifo = |packets: u16, priority| FifoSpec { bytes: longest * u32::from(packets), packets, priority };

    // The FIFOs for high priority come last in each group.
    let of_group = [priority::NORMAL, priority::NORMAL, priority::NORMAL, priority::HIGH];
    let injection = of_group.repeat(GROUPS).into_iter().map(|priority| fifo(options.staged(), priority));
    let reception = (0..ALL_RECEPTION_FIFOS).map(|_| fifo(RECEPTION_PACKETS, priority::NORMAL));

    let mut priorities = vec![priority::NORMAL; CHANNELS];
    priorities[Channel::BubblePriority as usize] = priority::HIGH;
    RouterSpec {
        ports: PORTS,
        link: options.link.clone(),
        framing: 0,
        priorities,
        bubble_vcs: 1 << Channel::BubbleNormal as u16 | 1 << Channel::BubblePriority as u16,
        through_ratio: THROUGH_RATIO,
        injection: injection.collect(),
        reception: reception.collect(),
    }
}

/// Checks that packets in dimension order cannot wait for each other in a circle. The two channels
/// of such packets have the same routes, and dynamic packets escape to the first.
pub(crate) fn check_deadlock(torus: &Torus) -> Result<(), NetworkError> {
    let mut graph = WaitGraph::new(torus, NodeChannels { vcs: CHANNELS as u8, fifos: 0 })?;
    graph.add_routes(&escape_routes(torus, rules(), class::NORMAL)?)?;
    graph.check_with(bubble(torus, Channel::BubbleNormal as u8))?;
    Ok(())
}

const _: () = assert!(ALL_INJECTION_FIFOS == 4 * GROUPS);

#[cfg(test)]
mod tests {
    use nicforge_network::shape::Dimension;

    use super::*;

    #[test]
    fn each_group_has_its_reception_fifos() {
        let torus = Torus::new(&[Dimension::torus(4), Dimension::torus(3), Dimension::mesh(2)]).unwrap();
        let policy = NodePolicy::new(&torus).unwrap().at(5).unwrap();
        let word = TorusWord::between(&torus, 0, 5, 0).unwrap();

        let link = Source::Link { port: 4, vc: 0 };
        let own = Source::Injection { fifo: 1 };
        let [group0, group1] = [0, 1].map(|group| RouteWord::new(word, group, 2));
        assert_eq!([group0, group1].map(|word| policy.reception(word.0.0, link)), [4, 11]);
        assert_eq!([group0, group1].map(|word| policy.reception(word.0.0, own)), [2, 9]);

        let priority = group1.0.with_class(class::HIGH_PRIORITY);
        assert_eq!([link, own].map(|from| policy.reception(priority.0, from)), [13, 13]);
    }

    #[test]
    fn tori_and_meshes_have_no_deadlock() {
        for wraps in [[true; 3], [false; 3], [true, false, true]] {
            for lengths in [[1, 1, 1], [2, 2, 2], [4, 3, 5]] {
                let dimension = |index: usize| {
                    let length = lengths[index];
                    if wraps[index] && length > 1 {
                        Dimension::torus(length)
                    } else {
                        Dimension::mesh(length)
                    }
                };
                let torus = Torus::new(&[0, 1, 2].map(dimension)).unwrap();
                check_deadlock(&torus).unwrap();
            }
        }
    }
}
