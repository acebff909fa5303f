//! A node: a router, and a generator of packets. It is a device of a machine, or the node of a
//! network alone.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::{LinkSpec, Packet, Ports},
    ids::{Address, AttachmentId},
    spec::FunctionSpec,
};
use nicforge_network::{
    alone::{self, NodeLinks, Parcel, Turn},
    router::{
        FifoSpec, Links, Outcome, RoutedPacket, Router, RouterPlan, RouterSpec,
        policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord},
    },
    shape::{Cabling, Torus},
};

use super::{CHANNELS, PACKET_BYTES, Random};

/// Packets that the injection FIFO holds: one in service, and the next one.
const INJECTION_PACKETS: u16 = 2;
/// Packets that the reception FIFO holds.
const RECEPTION_PACKETS: u16 = 8;
/// Number of the injection FIFO, and of the reception FIFO.
const FIFO: u8 = 0;
/// Maximum number of packets that a router moves in a turn. If it has more to do, it has another
/// turn at the same time.
const BUDGET: u32 = 64;

/// The parts that the nodes of a torus share.
pub(super) struct Nodes {
    torus: Torus,
    plan: RouterPlan,
    /// The policy of node 0.
    policy: TorusPolicy,
}

impl Nodes {
    /// Returns the shared parts of a torus's nodes: their routers have two virtual channels as
    /// datelines, and a FIFO in each direction.
    pub(super) fn new(torus: &Torus, link: &LinkSpec) -> Result<Self, Failure> {
        let fifo =
            |packets: u16| FifoSpec { bytes: u32::from(packets) * PACKET_BYTES as u32, packets, priority: 0 };
        let spec = RouterSpec {
            ports: torus.ports(),
            link: link.clone(),
            framing: 0,
            priorities: vec![0; CHANNELS],
            bubble_vcs: 0,
            through_ratio: 1,
            injection: vec![fifo(INJECTION_PACKETS)],
            reception: vec![fifo(RECEPTION_PACKETS)],
        };
        let class = ChannelClass { fixed: Fixed::Dateline { vcs: [0, 1] }, adaptive: 0 };

        Ok(Self {
            torus: *torus,
            plan: RouterPlan::new(&spec).context(|| "the routers".into())?,
            policy: TorusPolicy::new(torus, 0, TorusRules::shared(class)).context(|| "the routes".into())?,
        })
    }

    /// Returns a node. Its random numbers follow from `seed` and its number.
    pub(super) fn node<K: RoutedPacket>(&self, node: u32, seed: u64) -> Result<Node<K>, Failure> {
        let policy = self.policy.at(node).context(|| "the routes of a node".into())?;
        let router = Router::of_packets(&self.plan, policy);
        Ok(Node { router, torus: self.torus, node, random: Random::of_node(seed, node) })
    }
}

/// A node: a router, and a generator that keeps its injection FIFO full.
pub(in crate::benches::fabric) struct Node<K> {
    router: Router<TorusPolicy, K>,
    torus: Torus,
    node: u32,
    random: Random,
}

impl<K: RoutedPacket> Node<K> {
    /// Returns the route word of a packet to a random other node.
    fn next_word(&mut self) -> Option<u64> {
        let nodes = self.torus.nodes();
        let random = self.random.next();
        // The lower half of the random number, scaled to the number of other nodes.
        let ahead = (u64::from(random as u32) * u64::from(nodes - 1)) >> 32;
        let target = (self.node + 1 + ahead as u32) % nodes;

        // One bit for each dimension: where both directions are equally short, a packet takes a
        // random one.
        let ties = (random >> 32) as u8;
        TorusWord::between(&self.torus, self.node, target, ties).ok().map(|word| word.0)
    }

    /// Fills the injection FIFO, moves packets, and takes those that have arrived. `new_packet`
    /// makes a packet with a route word, if there is memory for one.
    #[inline(always)]
    fn turn<L: Links<Packet = K>>(
        &mut self,
        links: &mut L,
        budget: u32,
        new_packet: impl Fn(&mut L, u64) -> Option<K>,
    ) -> Outcome {
        // Most turns have neither packets to make nor packets to take.
        if self.router.injection_room(FIFO, links.now()).packets > 0 {
            self.fill(links, new_packet);
        }
        let outcome = self.router.step(links, budget);
        if self.router.received() != 0 {
            self.drain(links);
        }
        outcome
    }

    /// Fills the injection FIFO with packets to random nodes, which `new_packet` makes.
    #[inline(never)]
    fn fill<L: Links<Packet = K>>(&mut self, links: &mut L, new_packet: impl Fn(&mut L, u64) -> Option<K>) {
        let now = links.now();
        while self.router.injection_room(FIFO, now).packets > 0
            && let Some(word) = self.next_word()
            && let Some(packet) = new_packet(links, word)
        {
            if let Err(refused) = self.router.inject(FIFO, packet, now) {
                links.recycle(refused.packet);
                break;
            }
        }
    }

    /// Takes the packets that have arrived.
    #[inline(never)]
    fn drain<L: Links<Packet = K>>(&mut self, links: &mut L) {
        let now = links.now();
        while let Some(packet) = self.router.take(FIFO, now) {
            links.recycle(packet);
        }
    }
}

impl alone::Node for Node<Parcel> {
    fn turn(&mut self, links: &mut NodeLinks<'_>) -> Turn {
        let outcome =
            Node::turn(self, links, BUDGET, |_, word| Some(Parcel::new(word, PACKET_BYTES as u32, 0)));
        Turn { wake: outcome.wake, has_more: outcome.has_more }
    }

    fn arrive(&mut self, links: &mut NodeLinks<'_>, input: u8) -> bool {
        self.router.arrive(links, input)
    }

    #[inline(always)]
    fn prefetch(&self, arrived: u64, freed: u64) {
        self.router.prefetch(arrived, freed);
    }
}

impl Device for Node<Packet> {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(super::IDENTITY)
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let new_packet = |ports: &mut Ports<'_>, word: u64| {
            let mut packet = ports.new_packet(PACKET_BYTES).ok()?;
            packet.header = word;
            Some(packet)
        };
        let outcome = self.turn(&mut context.ports(), budget, new_packet);

        context.wake_at(outcome.wake);
        if outcome.has_more { Progress::Busy } else { Progress::Idle }
    }
}
