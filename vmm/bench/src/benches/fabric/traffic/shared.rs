//! A node with the router that networks share, and a generator of packets.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::{LinkSpec, Ports},
    ids::{Address, AttachmentId},
    spec::FunctionSpec,
};
use nicforge_network::{
    router::{
        FifoSpec, Router, RouterPlan, RouterSpec,
        policies::{ChannelClass, Fixed, TorusPolicy, TorusRules, TorusWord},
    },
    shape::{Cabling, Torus},
};

use super::{CHANNELS, PACKET, Random};

/// Packets that an injection FIFO holds: one in service, and the next one.
const INJECTION: u16 = 2;
/// Packets that a reception FIFO holds.
const RECEPTION: u16 = 8;

/// The parts that the nodes of a torus share.
pub(super) struct Nodes {
    torus: Torus,
    plan: RouterPlan,
    /// The policy of node 0.
    policy: TorusPolicy,
}

impl Nodes {
    pub(super) fn new(torus: &Torus, link: &LinkSpec) -> Result<Self, Failure> {
        let fifo =
            |packets: u16| FifoSpec { bytes: u32::from(packets) * PACKET as u32, packets, priority: 0 };
        let spec = RouterSpec {
            ports: torus.ports(),
            link: link.clone(),
            framing: 0,
            priorities: vec![0; CHANNELS],
            bubble_vcs: 0,
            through_ratio: 1,
            injection: vec![fifo(INJECTION)],
            reception: vec![fifo(RECEPTION)],
        };
        let class = ChannelClass { fixed: Fixed::Dateline { vcs: [0, 1] }, adaptive: 0 };

        Ok(Self {
            torus: *torus,
            plan: RouterPlan::new(&spec).context(|| "the routers".into())?,
            policy: TorusPolicy::new(torus, 0, TorusRules::shared(class)).context(|| "the routes".into())?,
        })
    }

    /// Returns the device of a node.
    pub(super) fn node(&self, node: u32, random: Random) -> Result<Node, Failure> {
        let policy = self.policy.at(node).context(|| "the routes of a node".into())?;
        let router = Router::with_plan(&self.plan, policy);
        Ok(Node { router, torus: self.torus, node, random })
    }
}

/// A node: a router, and a generator that keeps its injection FIFO full.
pub(super) struct Node {
    router: Router<TorusPolicy>,
    torus: Torus,
    node: u32,
    random: Random,
}

impl Node {
    /// Fills the injection FIFO with packets to random other nodes.
    fn inject(&mut self, ports: &mut Ports<'_>) {
        let (now, nodes) = (ports.now(), self.torus.nodes());
        while self.router.injection_room(0, now).1 > 0 {
            let random = self.random.next();
            let ahead = (u64::from(random as u32) * u64::from(nodes - 1)) >> 32;
            let target = (self.node + 1 + ahead as u32) % nodes;

            // Where both directions are equally short, a packet takes a random one.
            let ties = (random >> 32) as u8;
            let Ok(word) = TorusWord::between(&self.torus, self.node, target, ties) else { return };
            let Ok(mut packet) = ports.new_packet(PACKET) else { return };
            packet.header = word.0;
            if let Err(refused) = self.router.inject(0, packet, now) {
                ports.recycle(refused.packet);
                return;
            }
        }
    }
}

impl Device for Node {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(super::IDENTITY)
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut ports = context.ports();
        let now = ports.now();
        self.inject(&mut ports);
        let outcome = self.router.step(&mut ports, budget);
        while let Some(packet) = self.router.take(0, now) {
            ports.recycle(packet);
        }

        context.wake_at(outcome.wake);
        if outcome.has_more { Progress::Busy } else { Progress::Idle }
    }
}
