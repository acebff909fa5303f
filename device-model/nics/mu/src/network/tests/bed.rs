//! A machine of network units whose devices send what a test tells them to.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
};

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    ids::{Address, AttachmentId, FunctionId},
    machine::{Machine, TurnLimits},
    spec::{FunctionSpec, Identity},
    time::Nanos,
};
use nicforge_hwi::mu_packet::{
    Destination, HEADER, PacketHeader, channel, fifo_map, kind, packet_type, reception_fifo, routing,
};
use nicforge_network::collective::CollectiveError;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    config::{Network, Options},
    network::{Arriving, NetworkUnit, RouteError, registers::RegisterError},
};

/// A packet that a test sends.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) header: PacketHeader,
    pub(super) map: u64,
    pub(super) is_system: bool,
    pub(super) payload: Vec<u8>,
}

impl Message {
    /// Returns a packet to a node on a virtual channel, with a mark as its payload.
    pub(super) fn to(network: &Network, target: u32, number: u8, mark: u64) -> Self {
        let coordinates = network.shape().coordinates(target).unwrap();
        let mut header = PacketHeader {
            data_packet_type: kind::POINT_TO_POINT,
            destination: Destination::new(std::array::from_fn(|dimension| coordinates[dimension] as u8)),
            byte2: if number == channel::DYNAMIC { routing::DYNAMIC } else { 0 },
            ..PacketHeader::default()
        };
        header.set_channel(number);
        header.set_packet_type(packet_type::FIFO);

        let map = match number {
            channel::HIGH_PRIORITY => fifo_map::PRIORITY,
            channel::SYSTEM => fifo_map::SYSTEM,
            _ => fifo_map::TORUS,
        };
        let payload = mark.to_le_bytes().to_vec();
        Self { header, map, is_system: number == channel::SYSTEM, payload }
    }

    /// Returns the packet for a node on the sender itself.
    pub(super) fn local(self) -> Self {
        let is_user = self.map == fifo_map::TORUS;
        Self { map: if is_user { fifo_map::LOCAL0 } else { self.map }, ..self }
    }

    /// Returns the packet with a hint bit.
    pub(super) fn with_hint(mut self, dimension: usize, is_down: bool) -> Self {
        self.header.set_hint(dimension, is_down);
        self
    }

    /// Returns the packet with bits of byte 2.
    pub(super) fn with_routing(mut self, bits: u8) -> Self {
        self.header.byte2 |= bits;
        self
    }
}

/// Work of a node.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Send(Message),
    Enter(u8),
    Write { offset: u64, value: u64 },
    Reset,
}

/// A packet that a node has received.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Receipt {
    pub(super) time: Nanos,
    pub(super) fifo: u8,
    pub(super) header: PacketHeader,
    pub(super) payload: Vec<u8>,
}

impl Receipt {
    /// Returns the first 8 bytes of the payload.
    pub(super) fn mark(&self) -> u64 {
        u64::from_le_bytes(self.payload[..8].try_into().unwrap())
    }
}

/// The test's side of a node.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) orders: VecDeque<Order>,
    pub(super) received: Vec<Receipt>,
    /// Reception FIFOs from which the device takes nothing, one bit for each.
    pub(super) deaf: u16,
    pub(super) refused: Vec<RouteError>,
    pub(super) register_errors: Vec<RegisterError>,
    pub(super) barrier_errors: Vec<CollectiveError>,
    /// Completed barriers of class 3.
    pub(super) barriers: u64,
    /// A register to read in each step, and its value.
    pub(super) watched: (u64, Option<u64>),
    pub(super) pending_errors: u64,
    pub(super) counters: Vec<(&'static str, u64)>,
}

/// Barrier class of [`Node::barriers`].
pub(super) const BARRIER: u8 = 3;

struct UnitNode {
    unit: NetworkUnit,
    node: Arc<Mutex<Node>>,
}

impl UnitNode {
    /// Carries out an order. Returns false if it has to wait.
    fn carry_out(&mut self, context: &mut Context<'_>, node: &mut Node, order: &Order) -> bool {
        let mut ports = context.ports();
        match order {
            Order::Send(message) => {
                let route = match self.unit.route(&message.header, message.map, message.is_system) {
                    Ok(route) => route,
                    Err(error) => {
                        node.refused.push(error);
                        return true;
                    }
                };
                let possible = self.unit.room(route.fifos(), ports.now());
                if possible == 0 {
                    return false;
                }

                let mut header = message.header;
                header.set_payload_bytes(message.payload.len());
                let mut packet = ports.new_packet(HEADER + header.payload_bytes()).unwrap();
                packet.bytes_mut().fill(0);
                packet.bytes_mut()[..HEADER].copy_from_slice(header.as_bytes());
                packet.bytes_mut()[HEADER..][..message.payload.len()].copy_from_slice(&message.payload);
                let fifo = possible.trailing_zeros() as u8;
                self.unit.inject(fifo, route, packet, ports.now()).unwrap();
            }
            Order::Enter(class) => {
                if let Err(error) = self.unit.enter_barrier(*class) {
                    node.barrier_errors.push(error);
                }
            }
            Order::Write { offset, value } => {
                if let Err(error) = self.unit.write_register(&ports, *offset, *value) {
                    node.register_errors.push(error);
                }
            }
            Order::Reset => self.unit.reset(&mut ports),
        }
        true
    }

    fn receive(&mut self, context: &mut Context<'_>, node: &mut Node) {
        let mut ports = context.ports();
        let now = ports.now();
        for fifo in (0..reception_fifo::COUNT).filter(|fifo| node.deaf >> fifo & 1 == 0) {
            while self.unit.fifos_with_packets(now) >> fifo & 1 == 1 {
                let packet = self.unit.take(fifo, now).unwrap();
                let (header, payload) = PacketHeader::read_from_prefix(packet.bytes()).unwrap();
                node.received.push(Receipt { time: now, fifo, header, payload: payload.to_vec() });
                ports.recycle(packet);
            }
        }
    }
}

impl Device for UnitNode {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(Identity {
            vendor: 0x1234,
            device: 0x7e59,
            subsystem_vendor: 0x1234,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 0,
        })
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let shared = Arc::clone(&self.node);
        let mut node = shared.lock().unwrap();
        self.receive(context, &mut node);
        while let Some(order) = node.orders.pop_front() {
            if !self.carry_out(context, &mut node, &order) {
                node.orders.push_front(order);
                break;
            }
        }

        let arriving = Arriving::at(&context.ports());
        let outcome = self.unit.step(&mut context.ports(), arriving, budget);
        self.receive(context, &mut node);
        context.wake_at(outcome.wake);

        node.barriers = self.unit.completed_barriers(BARRIER);
        node.pending_errors = self.unit.pending_errors();
        node.counters = self.unit.counters();
        node.watched.1 = self.unit.read_register(&context.ports(), node.watched.0);
        if outcome.moved > 0 || outcome.has_more { Progress::Busy } else { Progress::Idle }
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.unit.reset(&mut context.ports());
    }
}

/// A network of units.
pub(super) struct Bed {
    pub(super) machine: Machine,
    pub(super) network: Network,
    functions: Vec<FunctionId>,
    nodes: Vec<Arc<Mutex<Node>>>,
}

impl Bed {
    /// Returns a torus of units.
    pub(super) fn torus(lengths: &[u32], wraps: &[bool], options: Options) -> Self {
        Self::new(Network::torus(lengths, wraps, options).unwrap())
    }

    pub(super) fn new(network: Network) -> Self {
        let mut machine = Machine::new();
        let (mut functions, mut nodes) = (Vec::new(), Vec::new());
        for number in 0..network.nodes() {
            let node = Arc::new(Mutex::new(Node::default()));
            let unit = NetworkUnit::new(&network.node(number).unwrap()).unwrap();
            let device = Box::new(UnitNode { unit, node: Arc::clone(&node) });
            functions.push(machine.add_function(&format!("node{number}"), device).unwrap());
            nodes.push(node);
        }

        for cable in network.cables() {
            let [a, b] = [cable.a, cable.b].map(|end| (functions[end.node as usize], end.port));
            machine.fabric().connect(a, b, network.options().link.clone()).unwrap();
        }
        Self { machine, network, functions, nodes }
    }

    /// Returns the test's side of a node.
    pub(super) fn node(&self, node: u32) -> MutexGuard<'_, Node> {
        self.nodes[node as usize].lock().unwrap()
    }

    /// Has a node carry out an order.
    pub(super) fn order(&mut self, node: u32, order: Order) {
        self.node(node).orders.push_back(order);
        self.machine.wake(self.functions[node as usize]);
    }

    pub(super) fn send(&mut self, node: u32, message: Message) {
        self.order(node, Order::Send(message));
    }

    /// Has a node take packets from all reception FIFOs but these.
    pub(super) fn set_deaf(&mut self, node: u32, fifos: u16) {
        self.node(node).deaf = fifos;
        self.machine.wake(self.functions[node as usize]);
    }

    /// Returns the value of a register.
    pub(super) fn register(&mut self, node: u32, offset: u64) -> Option<u64> {
        self.node(node).watched = (offset, None);
        self.machine.wake(self.functions[node as usize]);
        self.run();
        self.node(node).watched.1
    }

    /// Runs until nothing is due.
    pub(super) fn run(&mut self) {
        self.machine.run_until(Nanos::NEVER, TurnLimits::default()).unwrap();
    }

    /// Returns the marks that a node has received with the FIFO of each, in order.
    pub(super) fn marks(&self, node: u32) -> Vec<(u8, u64)> {
        self.node(node).received.iter().map(|receipt| (receipt.fifo, receipt.mark())).collect()
    }

    /// Returns a counter of a node.
    pub(super) fn counter(&self, node: u32, name: &str) -> u64 {
        self.node(node).counters.iter().find(|(counter, _)| *counter == name).unwrap().1
    }
}

/// Returns options of links of a bandwidth and a delay as those of Blue Gene/Q.
pub(super) fn timed() -> Options {
    let mut options = Options::default();
    options.link.bits_per_second = 16_000_000_000;
    options.link.delay = 24;
    options.link.cut_through = Some(32);
    options
}
