//! Collective units on trees of links.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::LinkSpec,
    ids::{Address, AttachmentId},
    machine::{Machine, TurnLimits},
    spec::{FunctionSpec, Identity},
    time::Nanos,
};
use nicforge_network::{
    collective::{
        ByteOrder, ClassRoute, CollectiveCounters, CollectiveError, CollectiveSpec, CollectiveUnit,
        CollectiveWord, Flags, Kind, Number, Operand, Operation, combine,
    },
    router::FifoSpec,
    shape::{Cabling, Tree},
};
use proptest::prelude::*;

use crate::{
    bed::{LONGEST, link},
    properties::cases,
};

/// Class of all operations here.
const CLASS: u8 = 5;

/// The task of a node.
#[derive(Clone, Debug)]
enum Order {
    /// Send a contribution into the collective unit.
    Contribute { word: CollectiveWord, bytes: Vec<u8> },
    /// Enter the barrier.
    Enter,
}

/// A result that a node has received.
#[derive(Clone, Debug, PartialEq)]
struct Output {
    time: Nanos,
    word: CollectiveWord,
    bytes: Vec<u8>,
}

/// The test's side of a node.
#[derive(Debug, Default)]
struct Node {
    /// The work, each with the time at which it begins.
    orders: VecDeque<(Nanos, Order)>,
    outputs: Vec<Output>,
    /// Times at which barriers were complete.
    barriers: Vec<Nanos>,
    counters: CollectiveCounters,
}

/// The device: a collective unit and its orders.
struct UnitNode {
    unit: CollectiveUnit,
    node: Arc<Mutex<Node>>,
}

impl UnitNode {
    /// Carries out an order. Returns false if it has to wait.
    fn carry_out(&mut self, context: &mut Context<'_>, order: &Order) -> bool {
        match order {
            Order::Enter => self.unit.enter_barrier(CLASS).is_ok(),
            Order::Contribute { word, bytes } => {
                let mut ports = context.ports();
                let mut packet = ports.new_packet(bytes.len()).unwrap();
                packet.bytes_mut().copy_from_slice(bytes);
                packet.header = word.bits();
                match self.unit.inject(0, packet, ports.now()) {
                    Ok(()) => true,
                    Err(refused) => {
                        ports.recycle(refused.packet);
                        false
                    }
                }
            }
        }
    }
}

impl Device for UnitNode {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(Identity {
            vendor: 0x1234,
            device: 0x7e58,
            subsystem_vendor: 0x1234,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 0,
        })
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let node = Arc::clone(&self.node);
        let mut node = node.lock().unwrap();
        let now = context.now();

        while let Some(packet) = self.unit.take(0, now) {
            let word = CollectiveWord::from_bits(packet.header).unwrap();
            node.outputs.push(Output { time: now, word, bytes: packet.bytes().to_vec() });
            context.ports().recycle(packet);
        }
        while let Some((time, order)) = node.orders.front().cloned() {
            if time > now || !self.carry_out(context, &order) {
                context.wake_at(if time > now { time } else { Nanos::NEVER });
                break;
            }
            node.orders.pop_front();
        }

        let outcome = self.unit.step(&mut context.ports(), budget);
        while (node.barriers.len() as u64) < self.unit.barriers_completed(CLASS) {
            node.barriers.push(now);
        }
        node.counters = self.unit.counters();
        context.wake_at(outcome.wake);
        if outcome.moved > 0 { Progress::Busy } else { Progress::Idle }
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.unit.reset(&mut context.ports());
    }
}

/// Returns a collective unit with one injection and one reception FIFO, and a barrier channel.
fn spec(node: u32, ports: u8, link: &LinkSpec) -> CollectiveSpec {
    let fifo = FifoSpec { bytes: 4 * LONGEST as u32, packets: 4, priority: 0 };
    CollectiveSpec {
        node,
        ports,
        link: link.clone(),
        framing: 0,
        vcs: vec![0],
        barrier_vc: 1,
        barrier_framing: 8,
        delays: [18, 6],
        recovery: 0,
        prefix: 0,
        injection: vec![fifo],
        reception: vec![fifo],
    }
}

/// Returns the class route of a node of a tree, of which all nodes are members.
fn route(tree: &Tree, node: u32) -> ClassRoute {
    let inputs = tree.neighbours(node).filter(|(port, _)| *port != 0);
    ClassRoute {
        inputs: inputs.fold(0, |set, (port, _)| set | 1 << port),
        output: (node != 0).then_some(0),
        is_member: true,
        ..ClassRoute::default()
    }
}

/// Returns what the nodes have received after carrying out their orders.
fn run(tree: &Tree, orders: &[Vec<(Nanos, Order)>]) -> Vec<Node> {
    let link = link(&[1, 1]);
    let mut machine = Machine::new();
    let mut functions = Vec::new();
    let mut nodes = Vec::new();
    for number in 0..tree.nodes() {
        let mut unit = CollectiveUnit::new(spec(number, tree.ports(), &link)).unwrap();
        unit.set_route(CLASS, route(tree, number)).unwrap();
        unit.set_barrier_route(CLASS, route(tree, number)).unwrap();
        let orders = orders[number as usize].clone().into();
        let node = Arc::new(Mutex::new(Node { orders, ..Node::default() }));
        let device = UnitNode { unit, node: Arc::clone(&node) };
        functions.push(machine.add_function(&format!("node{number}"), Box::new(device)).unwrap());
        nodes.push(node);
    }

    for cable in tree.cables() {
        let [a, b] = [cable.a, cable.b].map(|end| (functions[end.node as usize], end.port));
        machine.fabric().connect(a, b, link.clone()).unwrap();
    }
    for &function in &functions {
        machine.wake(function);
    }
    machine.run_until(Nanos::NEVER, TurnLimits::default()).unwrap();
    assert_eq!(machine.fabric().packets_in_use(), 0);

    drop(machine);
    nodes.into_iter().map(|node| Arc::into_inner(node).unwrap().into_inner().unwrap()).collect()
}

/// Returns the result of a subtree: the node's own operands, and then those of its children in
/// their order.
fn expected(
    tree: &Tree,
    node: u32,
    operation: Operation,
    operand: Operand,
    values: &[Vec<u8>],
) -> (Vec<u8>, Flags) {
    let mut result = values[node as usize].clone();
    let mut flags = Flags::default();
    for (_, child) in tree.neighbours(node).filter(|(port, _)| *port != 0) {
        let (other, exceptions) = expected(tree, child.node, operation, operand, values);
        flags |= exceptions;
        flags |= combine(operation, operand, &mut result, &other);
    }
    (result, flags)
}

/// Operations with the operands that they take.
fn operation() -> impl Strategy<Value = (Operation, Operand)> {
    use Operation::{Add, And, Max, Min, Or, Xor};
    let operation = prop_oneof![Just(Or), Just(And), Just(Xor), Just(Min), Just(Max), Just(Add)];
    let number = prop_oneof![Just(Number::Unsigned), Just(Number::Signed), Just(Number::Float)];
    let order = prop_oneof![Just(ByteOrder::Big), Just(ByteOrder::Little)];
    (operation, number, prop_oneof![Just(1_u16), Just(2), Just(4), Just(8), Just(16)], order).prop_map(
        |(operation, number, bytes, order)| {
            let bytes = if number == Number::Float { 8 } else { bytes };
            (operation, Operand { number, bytes, order })
        },
    )
}

/// Contents of four numbers of 8 bytes, which are often floating-point numbers of similar size.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![
        (-1.0e6..1.0e6_f64).prop_map(f64::to_bits),
        any::<f64>().prop_map(f64::to_bits),
        any::<u64>(),
    ];
    proptest::collection::vec(number, 4)
        .prop_map(|numbers| numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn allreduce_gives_the_same_bits_in_each_order_of_arrival(
        nodes in 1_u32..=24,
        fan_out in 1_u32..=6,
        (operation, operand) in operation(),
        values in proptest::collection::vec(content(), 24),
        starts in proptest::collection::vec(proptest::collection::vec(0_u64..3000, 24), 2),
    ) {
        let tree = Tree::new(nodes, fan_out).unwrap();
        let (bytes, flags) = expected(&tree, 0, operation, operand, &values);
        let word = CollectiveWord::allreduce(CLASS, operation, operand);

        for starts in &starts {
            let order = |node: usize| {
                let order = Order::Contribute { word, bytes: values[node].clone() };
                vec![(Nanos(starts[node]), order)]
            };
            let orders: Vec<_> = (0..nodes as usize).map(order).collect();
            for node in run(&tree, &orders) {
                prop_assert_eq!(node.outputs.len(), 1);
                prop_assert_eq!(&node.outputs[0].bytes, &bytes);
                prop_assert_eq!(node.outputs[0].word.flags, flags);
                prop_assert_eq!(node.counters.dropped + node.counters.mismatched, 0);
            }
        }
    }

    #[test]
    fn no_node_leaves_a_barrier_before_the_last_has_entered(
        nodes in 1_u32..=24,
        fan_out in 1_u32..=6,
        starts in proptest::collection::vec((0_u64..3000, 0_u64..3000), 24),
    ) {
        let tree = Tree::new(nodes, fan_out).unwrap();
        let starts = &starts[..nodes as usize];
        let orders: Vec<_> = starts.iter().map(|&(first, second)| {
            vec![(Nanos(first), Order::Enter), (Nanos(first + second), Order::Enter)]
        }).collect();

        let nodes = run(&tree, &orders);

        let last = starts.iter().map(|&(first, _)| first).max().unwrap();
        let last_second = starts.iter().map(|&(first, second)| first + second).max().unwrap();
        for node in &nodes {
            prop_assert_eq!(node.barriers.len(), 2);
            prop_assert!(node.barriers[0] >= Nanos(last) && node.barriers[1] >= Nanos(last_second));
            prop_assert_eq!(node.counters.dropped, 0);
        }
    }
}

/// Returns the number that a node contributes. It is not 0, so that each contribution counts in a
/// sum.
fn value_of(node: u32) -> u64 {
    u64::from(node) + 1
}

/// Returns orders in which each node contributes [`value_of`] it, at time 0 and with the word that
/// `word` returns for the node, or nothing.
fn contributions(nodes: u32, word: impl Fn(u32) -> Option<CollectiveWord>) -> Vec<Vec<(Nanos, Order)>> {
    let of = |node: u32| {
        let bytes = value_of(node).to_le_bytes().to_vec();
        word(node).map(|word| (Nanos(0), Order::Contribute { word, bytes })).into_iter().collect()
    };
    (0..nodes).map(of).collect()
}

/// The word of a sum of 64-bit numbers whose result all nodes receive.
const SUM: CollectiveWord = CollectiveWord::allreduce(
    CLASS,
    Operation::Add,
    Operand { number: Number::Unsigned, bytes: 8, order: ByteOrder::Little },
);

#[test]
fn reduce_gives_its_result_to_one_node() {
    const TARGET: u32 = 7;
    let tree = Tree::new(13, 3).unwrap();
    let word = CollectiveWord { kind: Kind::Reduce, target: TARGET, ..SUM };

    let nodes = run(&tree, &contributions(13, |_| Some(word)));

    for (number, node) in (0..).zip(&nodes) {
        assert_eq!(node.outputs.len(), usize::from(number == TARGET), "node {number}");
    }
    let sum: u64 = (0..13).map(value_of).sum();
    assert_eq!(nodes[TARGET as usize].outputs[0].bytes, sum.to_le_bytes());
}

#[test]
fn broadcast_reaches_all_nodes_once() {
    const SENDER: u32 = 11;
    let tree = Tree::new(13, 3).unwrap();
    let word = CollectiveWord { kind: Kind::Broadcast, ..SUM };

    let nodes = run(&tree, &contributions(13, |node| (node == SENDER).then_some(word)));

    for node in &nodes {
        assert_eq!(node.outputs.len(), 1);
        assert_eq!(node.outputs[0].bytes, value_of(SENDER).to_le_bytes());
    }
}

#[test]
fn operations_of_one_class_follow_each_other() {
    let tree = Tree::new(7, 2).unwrap();
    let mut orders = contributions(7, |_| Some(SUM));
    for orders in &mut orders {
        *orders = std::iter::repeat_n(orders.clone(), 10).flatten().collect();
    }

    let nodes = run(&tree, &orders);

    for node in &nodes {
        let sums: Vec<_> = node.outputs.iter().map(|output| output.bytes.clone()).collect();
        let expected: u64 = (0..7).map(value_of).sum();
        assert_eq!(sums, vec![expected.to_le_bytes().to_vec(); 10]);
    }
}

#[test]
fn packets_are_combined_when_their_heads_have_come() {
    // A chain of three nodes, and packets of 128 bytes at a byte in a nanosecond.
    let tree = Tree::new(3, 1).unwrap();
    let order = || vec![(Nanos(0), Order::Contribute { word: SUM, bytes: vec![1; LONGEST] })];

    let nodes = run(&tree, &[order(), order(), order()]);

    // A head takes 52 ns for a hop, and a tail 148. On the way up, each unit adds 18 ns, and on the
    // way down each below the root 6. The rest of the packet is 96 ns after its head.
    let at_root = 3 * 18 + 2 * 52;
    let times: Vec<_> = nodes.iter().map(|node| node.outputs[0].time.0).collect();
    assert_eq!(times, [at_root + 96, at_root + 148 + 6, at_root + 52 + 6 + 148 + 6]);
    assert_eq!(nodes[0].outputs[0].bytes, vec![3; LONGEST]);
}

#[test]
fn overflow_at_one_node_is_flagged_at_all() {
    let tree = Tree::new(7, 2).unwrap();
    let orders: Vec<_> = (0..7)
        .map(|node| {
            let number = [1, 1, 1, 1, 1, u64::MAX, 0][node];
            let bytes = number.to_le_bytes().to_vec();
            vec![(Nanos(0), Order::Contribute { word: SUM, bytes })]
        })
        .collect();

    let nodes = run(&tree, &orders);

    let overflow = Flags { not_a_number: false, overflow: true };
    assert!(nodes.iter().all(|node| node.outputs[0].word.flags == overflow));
    // Node 2 adds the large number to its own.
    let exceptions: Vec<_> = nodes.iter().map(|node| node.counters.exceptions).collect();
    assert_eq!(exceptions, [0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn a_packet_of_another_operation_and_length_is_counted_once() {
    let tree = Tree::new(2, 1).unwrap();
    let order = |word, length| vec![(Nanos(0), Order::Contribute { word, bytes: vec![1; length] })];
    let other = CollectiveWord { operation: Operation::Xor, ..SUM };

    let nodes = run(&tree, &[order(SUM, 8), order(other, 16)]);

    assert_eq!(nodes.iter().map(|node| node.counters.mismatched).sum::<u64>(), 1);
}

#[test]
fn packets_without_a_route_are_dropped_and_counted() {
    let tree = Tree::new(3, 2).unwrap();
    let stray = CollectiveWord { class: CLASS + 1, ..SUM };

    let nodes = run(&tree, &contributions(3, |node| (node == 1).then_some(stray)));

    assert_eq!(nodes[1].counters.dropped, 1);
    assert!(nodes.iter().all(|node| node.outputs.is_empty()));
}

#[test]
fn wrong_descriptions_and_routes_are_refused() {
    let link = link(&[1, 1]);
    let refused = |change: &dyn Fn(&mut CollectiveSpec)| {
        let mut spec = spec(0, 3, &link);
        change(&mut spec);
        CollectiveUnit::new(spec).map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(&|spec| spec.ports = 64), CollectiveError::Inputs { ports: 64, channels: 1 });
    assert_eq!(
        refused(&|spec| spec.barrier_vc = 0),
        CollectiveError::Channels { vc: 0, barrier_vc: 0, channels: 2 }
    );
    assert_eq!(
        refused(&|spec| spec.framing = 1),
        CollectiveError::SmallBuffer { vc: 0, credits: 4, needed: 5 }
    );

    let mut unit = CollectiveUnit::new(spec(0, 3, &link)).unwrap();
    let route = ClassRoute { inputs: 0b110, output: Some(0), is_member: true, ..ClassRoute::default() };
    assert_eq!(unit.set_route(16, route), Err(CollectiveError::Class { class: 16 }));
    let looped = ClassRoute { output: Some(2), ..route };
    assert_eq!(unit.set_route(0, looped), Err(CollectiveError::RoutePort { class: 0, port: 2 }));
    let outside = ClassRoute { inputs: 0b1000, ..route };
    assert_eq!(unit.set_route(0, outside), Err(CollectiveError::RoutePort { class: 0, port: 3 }));

    assert_eq!(unit.enter_barrier(1), Err(CollectiveError::NoMember { class: 1 }));
    unit.set_barrier_route(1, route).unwrap();
    assert_eq!(unit.enter_barrier(1), Ok(()));
    assert_eq!(unit.enter_barrier(1), Err(CollectiveError::Entered { class: 1 }));
}
