//! A machine of routers whose devices send what a test tells them to.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::{LinkSpec, Packet},
    ids::{Address, AttachmentId, FunctionId},
    machine::{Machine, TurnLimits},
    spec::{FunctionSpec, Identity},
    time::Nanos,
};
use nicforge_network::{
    router::{
        FifoSpec, InputCounters, Outcome, OutputCounters, Policy, Router, RouterCounters, RouterSpec, Source,
    },
    shape::Cabling,
};

/// Bytes of a message's mark, which each packet carries.
pub(crate) const MARK: usize = 8;
/// Longest packet of the links of [`link`], in bytes.
pub(crate) const LONGEST: usize = 128;

/// Returns a link of a byte in a nanosecond, with cut-through and credits of 32 bytes. Each of its
/// virtual channels has room for this many of the longest packets.
pub(crate) fn link(packets: &[u32]) -> LinkSpec {
    LinkSpec {
        delay: 20,
        bits_per_second: 8_000_000_000,
        credits: packets.iter().map(|packets| packets * 4).collect(),
        credit_unit: nicforge_core::fabric::CreditUnit::Bytes(32),
        max_packet: LONGEST,
        cut_through: Some(32),
    }
}

/// Returns a router with one injection and one reception FIFO, for links of [`link`].
pub(crate) fn spec(ports: u8, link: &LinkSpec, bubble_vcs: u16) -> RouterSpec {
    let fifo = FifoSpec { bytes: 2 * LONGEST as u32, packets: 4, priority: 0 };
    RouterSpec {
        ports,
        link: link.clone(),
        framing: 0,
        priorities: vec![0; link.credits.len()],
        bubble_vcs,
        through_ratio: 1,
        injection: vec![fifo],
        reception: vec![fifo],
    }
}

/// A packet that a test sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) fifo: u8,
    pub(crate) word: u64,
    /// Length in bytes, at least [`MARK`].
    pub(crate) bytes: usize,
    pub(crate) mark: u64,
}

/// A packet that a node has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) time: Nanos,
    pub(crate) fifo: u8,
    pub(crate) bytes: usize,
    pub(crate) mark: u64,
}

/// When a device takes packets out of its reception FIFOs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Taking {
    /// In front of the router's step.
    #[default]
    Before,
    /// After it.
    After,
    /// After it, except for packets that pass in front of it ([`Router::bypass_row`]). The device
    /// refuses to let packets pass whose marks are a multiple of this.
    Bypass(u64),
}

/// The test's side of a node.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) taking: Taking,
    pub(crate) to_send: VecDeque<Message>,
    pub(crate) received: Vec<Receipt>,
    /// Packets that have passed.
    pub(crate) passed: u64,
    /// The device takes nothing out of its reception FIFOs.
    pub(crate) takes_nothing: bool,
    pub(crate) outputs: Vec<OutputCounters>,
    pub(crate) counters: RouterCounters,
    /// Counters of virtual channel 0 of each port.
    pub(crate) links: Vec<InputCounters>,
    /// Counters of injection FIFO 0, and the integral of its packets over time.
    pub(crate) injection: (InputCounters, u64),
}

/// Returns the mark of a packet.
fn mark_of(packet: &Packet) -> u64 {
    u64::from_le_bytes(packet.bytes()[..MARK].try_into().unwrap())
}

/// The device: a router and its traffic.
struct RouterNode<P> {
    router: Router<P>,
    fifos: u8,
    node: Arc<Mutex<Node>>,
}

impl<P: Policy + Send> RouterNode<P> {
    /// Takes complete packets out of the reception FIFOs.
    fn receive(&mut self, context: &mut Context<'_>, node: &mut Node) {
        let mut ports = context.ports();
        let now = ports.now();
        for fifo in 0..self.fifos {
            while let Some(packet) = self.router.take(fifo, now) {
                let mark = mark_of(&packet);
                node.received.push(Receipt { time: now, fifo, bytes: packet.len(), mark });
                ports.recycle(packet);
            }
        }
    }

    /// Lets packets pass, and makes the router's step. At most `budget` packets move.
    fn bypass_and_step(&mut self, context: &mut Context<'_>, node: &mut Node, budget: u32) -> Outcome {
        let mut ports = context.ports();
        let now = ports.now();
        let Taking::Bypass(refused) = node.taking else { return self.router.step(&mut ports, budget) };
        let Some(mut bypass) = self.router.bypass(&ports, |_| true).filter(|_| !node.takes_nothing) else {
            return self.router.step(&mut ports, budget);
        };

        let (mut passed, mut kept) = (0, 0);
        while passed < budget {
            let fifo = bypass.fifo;
            // Every third packet is taken alone. One that is refused then ends in its FIFO.
            let one =
                self.router.bypass_one(&mut ports, &mut bypass, |packet| mark_of(packet).is_multiple_of(3));
            if let Some(packet) = one {
                let (mark, bytes) = (mark_of(&packet), packet.len());
                if mark.is_multiple_of(refused) {
                    self.router.put_in_fifo(&bypass, packet, now);
                    kept = 1;
                    break;
                }
                node.received.push(Receipt { time: now, fifo, bytes, mark });
                ports.recycle(packet);
                passed += 1;
                continue;
            }

            let row = self.router.bypass_row(&mut ports, &mut bypass, budget - passed, |packet| {
                let mark = mark_of(packet);
                let is_taken = !mark.is_multiple_of(refused) && !mark.is_multiple_of(3);
                if is_taken {
                    node.received.push(Receipt { time: now, fifo, bytes: packet.len(), mark });
                }
                is_taken
            });
            passed += row;
            if row == 0 {
                break;
            }
        }

        node.passed += u64::from(passed);
        let moved = passed + kept;
        let outcome = if moved < budget {
            let outcome = self.router.step(&mut ports, budget - moved);
            Outcome { moved: outcome.moved + moved, ..outcome }
        } else {
            Outcome { moved, has_more: true, wake: Nanos::NEVER }
        };
        self.router.end_bypass(&bypass);
        outcome
    }

    /// Puts messages into the injection FIFOs.
    fn inject(&mut self, context: &mut Context<'_>, node: &mut Node) {
        let mut ports = context.ports();
        while let Some(message) = node.to_send.front() {
            let mut packet = ports.new_packet(message.bytes).unwrap();
            packet.bytes_mut()[..MARK].copy_from_slice(&message.mark.to_le_bytes());
            packet.header = message.word;
            if let Err(refused) = self.router.inject(message.fifo, packet, ports.now()) {
                ports.recycle(refused.packet);
                return;
            }
            node.to_send.pop_front();
        }
    }
}

impl<P: Policy + Send> Device for RouterNode<P> {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(Identity {
            vendor: 0x1234,
            device: 0x7e57,
            subsystem_vendor: 0x1234,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 0,
        })
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let node = Arc::clone(&self.node);
        let mut node = node.lock().unwrap();
        if !node.takes_nothing && node.taking == Taking::Before {
            self.receive(context, &mut node);
        }
        self.inject(context, &mut node);

        let outcome = self.bypass_and_step(context, &mut node, budget);
        context.wake_at(outcome.wake);
        if !node.takes_nothing && node.taking != Taking::Before {
            self.receive(context, &mut node);
        }
        node.counters = self.router.counters();
        node.links = (0..2).map(|port| self.router.input_counters(Source::Link { port, vc: 0 })).collect();
        let queued = self.router.injection_level(0).integral_until(context.now());
        node.injection = (self.router.input_counters(Source::Injection { fifo: 0 }), queued);
        node.outputs = (0..64).map(|port| self.router.output_counters(port)).collect();
        if outcome.moved > 0 { Progress::Busy } else { Progress::Idle }
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.router.reset(&mut context.ports());
    }
}

/// A network of routers.
pub(crate) struct Bed {
    pub(crate) machine: Machine,
    functions: Vec<FunctionId>,
    nodes: Vec<Arc<Mutex<Node>>>,
}

impl Bed {
    /// Returns the routers of a network, joined by its cables.
    pub(crate) fn new<P: Policy + Send + 'static>(
        cabling: &impl Cabling,
        spec: &RouterSpec,
        policy: impl Fn(u32) -> P,
    ) -> Self {
        let mut bed = Self { machine: Machine::new(), functions: Vec::new(), nodes: Vec::new() };
        for number in 0..cabling.nodes() {
            let node = Arc::new(Mutex::new(Node::default()));
            let router = Router::new(spec, policy(number)).unwrap();
            let fifos = spec.reception.len() as u8;
            let device = Box::new(RouterNode { router, fifos, node: Arc::clone(&node) });
            bed.functions.push(bed.machine.add_function(&format!("node{number}"), device).unwrap());
            bed.nodes.push(node);
        }

        for cable in cabling.cables() {
            let end = |end: nicforge_network::shape::CableEnd| (bed.functions[end.node as usize], end.port);
            let (a, b) = (end(cable.a), end(cable.b));
            bed.machine.fabric().connect(a, b, spec.link.clone()).unwrap();
        }
        bed
    }

    /// Returns the test's side of a node.
    pub(crate) fn node(&self, node: u32) -> MutexGuard<'_, Node> {
        self.nodes[node as usize].lock().unwrap()
    }

    /// Has a node send a message.
    pub(crate) fn send(&mut self, node: u32, message: Message) {
        self.node(node).to_send.push_back(message);
        self.machine.wake(self.functions[node as usize]);
    }

    /// Wakes a node after a change of its [`Node`].
    pub(crate) fn wake(&mut self, node: u32) {
        self.machine.wake(self.functions[node as usize]);
    }

    /// Resets a node.
    pub(crate) fn reset(&mut self, node: u32) {
        self.machine.reset_function(self.functions[node as usize]).unwrap();
    }

    /// Runs until nothing is due.
    pub(crate) fn run(&mut self) {
        self.run_until(Nanos::NEVER);
    }

    /// Runs until a time.
    pub(crate) fn run_until(&mut self, time: Nanos) {
        self.machine.run_until(time, TurnLimits::default()).unwrap();
    }

    /// Returns the marks that a node has received, in order.
    pub(crate) fn marks(&self, node: u32) -> Vec<u64> {
        self.node(node).received.iter().map(|receipt| receipt.mark).collect()
    }

    /// Returns the number of packets that are on the links or in FIFOs.
    pub(crate) fn packets_in_use(&mut self) -> usize {
        self.machine.fabric().packets_in_use()
    }
}
