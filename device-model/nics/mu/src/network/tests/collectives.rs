//! Collective operations and barriers.

use nicforge_hwi::{
    mu_packet::{
        Destination, PacketHeader, channel, collective_type, fifo_map, kind, operation, packet_type,
        reception_fifo,
    },
    nd_dcr::{self, ClassRoute, LOCAL, class_link, class_type, error},
};
use nicforge_network::{
    collective::CollectiveError,
    shape::{Cabling, Shape, Torus},
};
use proptest::prelude::*;

use super::bed::{BARRIER, Bed, Message, Order, timed};
use crate::{config::Options, network::RouteError};

/// Class of the operations here.
const CLASS: u8 = 6;

/// The part of a tree at a node: ports to children, and the port to the parent.
fn tree(torus: &Torus, root: u32, node: u32) -> (Vec<u8>, Option<u8>) {
    let leads_here = |&(port, end): &(u8, nicforge_network::shape::CableEnd)| {
        torus.far_end(node, port).is_some() && torus.port_towards(end.node, root) == Some(end.port)
    };
    let children = torus.neighbours(node).filter(leads_here).map(|(port, _)| port).collect();
    (children, torus.port_towards(node, root))
}

/// Returns the class route of a node in a tree over all nodes.
fn route(torus: &Torus, root: u32, node: u32, of_type: u16) -> ClassRoute {
    let (children, parent) = tree(torus, root, node);
    let local = LOCAL | of_type << class_type::SHIFT;
    ClassRoute {
        input: children.iter().fold(local, |mask, &port| mask | class_link(port)),
        output: parent.map_or(0, class_link),
    }
}

/// Writes a class route into a pair register at `first`.
fn set_class(bed: &mut Bed, node: u32, first: u64, class: u8, route: ClassRoute) {
    let mut of = [ClassRoute::default(); 2];
    of[usize::from(class % 2)] = route;
    let offset = first + 8 * u64::from(class / 2);
    bed.order(node, Order::Write { offset, value: ClassRoute::register(of) });
}

/// Returns a torus with a class over all nodes.
fn bed(lengths: &[u32], options: Options, root: u32, of_type: u16) -> Bed {
    let mut bed = Bed::torus(lengths, &[], options);
    let torus = *bed.network.shape();
    for node in 0..torus.nodes() {
        set_class(&mut bed, node, nd_dcr::CTRL_COLL_CLASS, CLASS, route(&torus, root, node, of_type));
    }
    bed.run();
    bed
}

/// Returns a contribution.
fn contribution(number: u8, code: u8, exponent: u8, of_type: u8, payload: Vec<u8>) -> Message {
    let is_system = number == channel::SYSTEM_COLLECTIVE;
    let mut header = PacketHeader {
        data_packet_type: kind::COLLECTIVE,
        byte1: code << 4 | exponent,
        byte2: CLASS << 4,
        byte3: of_type << 3,
        ..PacketHeader::default()
    };
    header.set_channel(number);
    header.set_packet_type(packet_type::PUT);
    let map = if is_system { fifo_map::COLLECTIVE_SYSTEM } else { fifo_map::COLLECTIVE_USER };
    Message { header, map, is_system, payload }
}

/// Sends the contributions of all nodes, and returns the results of each.
fn run(bed: &mut Bed, message: impl Fn(u32) -> Message) -> Vec<Vec<Vec<u8>>> {
    let nodes = bed.network.nodes();
    for node in 0..nodes {
        bed.send(node, message(node));
    }
    bed.run();
    let take = |node| std::mem::take(&mut bed.node(node).received);
    (0..nodes).map(|node| take(node).into_iter().map(|receipt| receipt.payload).collect()).collect()
}

/// Combines two words of up to 16 bytes.
fn scalar(code: u8, a: &[u8], b: &[u8]) -> Vec<u8> {
    let unsigned =
        |bytes: &[u8]| bytes.iter().rev().fold(0_u128, |number, &byte| number << 8 | u128::from(byte));
    let shift = 128 - 8 * a.len() as u32;
    let signed = |bytes: &[u8]| (unsigned(bytes) << shift) as i128 >> shift;
    let (x, y) = (unsigned(a), unsigned(b));

    let float = |bytes: &[u8]| f64::from_le_bytes(bytes[..8].try_into().unwrap());
    let number = match code {
        operation::AND => x & y,
        operation::OR => x | y,
        operation::XOR => x ^ y,
        operation::UNSIGNED_ADD | operation::SIGNED_ADD => x.wrapping_add(y),
        operation::UNSIGNED_MIN => x.min(y),
        operation::UNSIGNED_MAX => x.max(y),
        operation::SIGNED_MIN => signed(a).min(signed(b)) as u128,
        operation::SIGNED_MAX => signed(a).max(signed(b)) as u128,
        operation::FLOATING_ADD => u128::from((float(a) + float(b)).to_bits()),
        operation::FLOATING_MIN => u128::from(float(a).min(float(b)).to_bits()),
        operation::FLOATING_MAX => u128::from(float(a).max(float(b)).to_bits()),
        _ => unreachable!(),
    };
    number.to_le_bytes()[..a.len()].to_vec()
}

/// Combines the contributions below a node, in the order of the hardware: its own, and then its
/// children's by port.
fn model(torus: &Torus, root: u32, node: u32, code: u8, words: &dyn Fn(u32) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut sum = words(node);
    for port in tree(torus, root, node).0 {
        let child = torus.far_end(node, port).unwrap().node;
        for (a, b) in sum.iter_mut().zip(model(torus, root, child, code, words)) {
            *a = scalar(code, a, &b);
        }
    }
    sum
}

/// All operations, with whether they are on floating-point numbers.
const OPERATIONS: [(u8, bool); 12] = [
    (operation::AND, false),
    (operation::OR, false),
    (operation::XOR, false),
    (operation::UNSIGNED_ADD, false),
    (operation::UNSIGNED_MIN, false),
    (operation::UNSIGNED_MAX, false),
    (operation::SIGNED_ADD, false),
    (operation::SIGNED_MIN, false),
    (operation::SIGNED_MAX, false),
    (operation::FLOATING_ADD, true),
    (operation::FLOATING_MIN, true),
    (operation::FLOATING_MAX, true),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn each_operation_equals_the_scalar_model(seed in any::<u64>(), root in 0_u32..12) {
        let mut bed = bed(&[3, 2, 2], Options::default(), root, class_type::SUB_COMM);
        let torus = *bed.network.shape();

        for (code, is_float) in OPERATIONS {
            for exponent in if is_float { 1..=1_u8 } else { 0..=2 } {
                let size = 4 << exponent;
                let words = |node: u32| -> Vec<Vec<u8>> {
                    (0..64 / size as u64).map(|word| {
                        let mixed = (seed ^ u64::from(node) << 20 ^ word << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        if is_float {
                            return ((mixed >> 11) as f64 - 4.5e15).to_le_bytes().to_vec();
                        }
                        let bits = u128::from(mixed) << 64 | u128::from(mixed.rotate_left(17));
                        bits.to_le_bytes()[16 - size..].to_vec()
                    }).collect()
                };
                let expected = model(&torus, root, root, code, &words).concat();

                let message = |node| contribution(
                    channel::USER_SUB_COMM, code, exponent, collective_type::ALLREDUCE, words(node).concat(),
                );
                let results = run(&mut bed, message);
                for result in results {
                    prop_assert_eq!(&result, &vec![expected.clone()], "operation {} of {} bytes", code, size);
                }
            }
        }
    }
}

#[test]
fn reduction_reaches_its_destination_and_a_broadcast_reaches_all() {
    for (number, of_type, fifo) in [
        (channel::USER_COMM_WORLD, class_type::USER, reception_fifo::COLLECTIVE_USER),
        (channel::USER_SUB_COMM, class_type::SUB_COMM, reception_fifo::COLLECTIVE_USER),
        (channel::SYSTEM_COLLECTIVE, class_type::SYSTEM, reception_fifo::COLLECTIVE_SYSTEM),
    ] {
        let mut bed = bed(&[2, 3, 2], timed(), 4, of_type);
        let reduction = |node: u32| {
            let payload = u64::from(node).to_le_bytes().to_vec();
            let mut message =
                contribution(number, operation::SIGNED_ADD, 1, collective_type::REDUCE, payload);
            message.header.destination = Destination::new([1, 2, 0, 0, 0]);
            message
        };
        for node in 0..12 {
            bed.send(node, reduction(node));
        }
        bed.run();
        for node in 0..12 {
            let expected = if node == 5 { vec![(fifo, 66)] } else { vec![] };
            assert_eq!(bed.marks(node), expected);
        }

        bed.node(5).received.clear();
        let payload = vec![7; 512];
        bed.send(9, contribution(number, operation::AND, 0, collective_type::BROADCAST, payload.clone()));
        bed.run();
        for node in 0..12 {
            let received = &bed.node(node).received;
            assert_eq!(received.len(), 1, "node {node}");
            assert_eq!((received[0].fifo, &received[0].payload), (fifo, &payload));
        }
    }
}

#[test]
fn empty_packets_and_broadcast_gets_pass_through() {
    let mut bed = bed(&[2, 2], Options::default(), 0, class_type::USER);
    let empty =
        |_| contribution(channel::USER_COMM_WORLD, operation::OR, 0, collective_type::ALLREDUCE, Vec::new());
    assert!(run(&mut bed, empty).into_iter().all(|results| results == [Vec::new()]));

    let descriptor = vec![0xd5; 64];
    let mut get =
        contribution(channel::USER_COMM_WORLD, 0, 0, collective_type::BROADCAST, descriptor.clone());
    get.header.set_packet_type(packet_type::GET);
    get.header.unit.set_get_fifo(3);
    bed.send(2, get);
    bed.run();
    for node in 0..4 {
        let received = &bed.node(node).received[..];
        let [receipt] = received else { panic!("{} packets", received.len()) };
        assert_eq!((receipt.header.packet_type(), receipt.header.unit.get_fifo()), (packet_type::GET, 3));
        assert_eq!(receipt.payload, descriptor);
    }
}

#[test]
fn sums_of_floating_point_numbers_are_the_same_bits_whatever_the_order_of_arrival() {
    let results = |order: &dyn Fn(u32) -> u32| {
        let mut bed = bed(&[4, 3, 2], timed(), 7, class_type::USER);
        for index in 0..24 {
            let node = order(index);
            let number = f64::from(node + 1).powi(40 - 3 * node as i32)
                * if node.is_multiple_of(2) { 1.0 } else { -1.0 };
            let payload = number.to_le_bytes().to_vec();
            let code = operation::FLOATING_ADD;
            bed.send(
                node,
                contribution(channel::USER_COMM_WORLD, code, 1, collective_type::ALLREDUCE, payload),
            );
            bed.run();
        }
        (0..24).map(|node| bed.marks(node)).collect::<Vec<_>>()
    };

    let first = results(&|index| index);
    assert!(first.iter().all(|marks| marks == &first[0] && marks.len() == 1));
    assert_eq!(results(&|index| 23 - index), first);
    assert_eq!(results(&|index| index * 7 % 24), first);
}

#[test]
fn exceptions_reach_all_nodes_and_can_be_cleared() {
    let mut bed = bed(&[3], Options::default(), 0, class_type::USER);
    for node in 0..3 {
        bed.order(node, Order::Write { offset: nd_dcr::NON_FATAL_ERR_ENABLE, value: error::USER_NAN });
    }
    let message = |node: u32| {
        let number = if node == 0 { f64::INFINITY } else { f64::NEG_INFINITY };
        let payload = number.to_le_bytes().to_vec();
        contribution(
            channel::USER_COMM_WORLD,
            operation::FLOATING_ADD,
            1,
            collective_type::ALLREDUCE,
            payload,
        )
    };
    run(&mut bed, message);

    assert_eq!(bed.register(0, nd_dcr::NON_FATAL_ERR0), Some(error::NAN | error::USER_NAN));
    assert_eq!(bed.register(1, nd_dcr::NON_FATAL_ERR0), Some(error::USER_NAN));
    assert_eq!(bed.node(1).pending_errors, error::USER_NAN);

    bed.order(1, Order::Write { offset: nd_dcr::CTRL_CLEAR0, value: error::USER_NAN });
    assert_eq!(bed.register(1, nd_dcr::NON_FATAL_ERR0), Some(0));
    assert_eq!(bed.node(1).pending_errors, 0);

    let sums = |node: u32| {
        let payload = if node == 0 { vec![0xff; 4] } else { vec![1, 0, 0, 0] };
        contribution(
            channel::USER_COMM_WORLD,
            operation::UNSIGNED_ADD,
            0,
            collective_type::ALLREDUCE,
            payload,
        )
    };
    run(&mut bed, sums);
    assert_eq!(bed.register(2, nd_dcr::NON_FATAL_ERR0), Some(error::USER_NAN | error::USER_OVERFLOW));

    let codes = [operation::AND, operation::OR, operation::OR];
    let differing = |node: u32| {
        let code = codes[node as usize];
        contribution(channel::USER_COMM_WORLD, code, 0, collective_type::ALLREDUCE, vec![0; 4])
    };
    run(&mut bed, differing);
    assert!(bed.register(0, nd_dcr::NON_FATAL_ERR0).unwrap() & error::MISMATCH != 0);
}

#[test]
fn classes_of_different_planes_run_at_the_same_time() {
    // Class 6 of each AB plane: four planes of a 3x2x4 torus.
    let mut bed = Bed::torus(&[3, 2, 4], &[], timed());
    let torus = *bed.network.shape();
    for node in 0..24 {
        let root = node / 6 * 6;
        set_class(&mut bed, node, nd_dcr::CTRL_COLL_CLASS, CLASS, {
            let in_plane = |port: u8| port < 4;
            let ClassRoute { input, output } = route(&torus, root, node, class_type::SUB_COMM);
            let planar = (0..10).filter(|&port| in_plane(port)).fold(0, |mask, port| mask | class_link(port));
            ClassRoute { input: input & (planar | LOCAL | 3 << class_type::SHIFT), output: output & planar }
        });
    }
    bed.run();

    let message = |node: u32| {
        let payload = (1_u64 << node).to_le_bytes().to_vec();
        contribution(channel::USER_SUB_COMM, operation::OR, 1, collective_type::ALLREDUCE, payload)
    };
    for (node, results) in run(&mut bed, message).into_iter().enumerate() {
        let plane = 0x3f_u64 << (node / 6 * 6);
        assert_eq!(results[0][..8], plane.to_le_bytes());
        assert_eq!(results.len(), 1);
    }
}

#[test]
fn contributions_without_a_class_route_or_an_operation_are_refused() {
    let mut bed = bed(&[2], Options::default(), 0, class_type::USER);
    let world = channel::USER_COMM_WORLD;
    let of = |number, code, exponent, of_type| contribution(number, code, exponent, of_type, vec![0; 32]);
    let mut refusal = |message: Message| {
        bed.send(0, message);
        bed.run();
        bed.node(0).refused.pop().unwrap()
    };

    for number in [channel::USER_SUB_COMM, channel::SYSTEM_COLLECTIVE] {
        let error = RouteError::ClassRoute { class: CLASS, channel: number };
        assert_eq!(refusal(of(number, 0, 0, collective_type::ALLREDUCE)), error);
    }
    let mut other = of(world, 0, 0, collective_type::ALLREDUCE);
    other.header.byte2 = 5 << 4;
    assert_eq!(refusal(other), RouteError::ClassRoute { class: 5, channel: world });
    let system =
        Message { is_system: false, ..of(channel::SYSTEM_COLLECTIVE, 0, 0, collective_type::ALLREDUCE) };
    assert!(matches!(refusal(system), RouteError::Permission { .. }));

    for (code, exponent, of_type) in [
        (3, 0, collective_type::ALLREDUCE),
        (15, 0, collective_type::REDUCE),
        (operation::AND, 8, collective_type::ALLREDUCE),
        (operation::FLOATING_ADD, 0, collective_type::ALLREDUCE),
        (operation::FLOATING_ADD, 2, collective_type::BROADCAST),
        (operation::AND, 0, 1),
    ] {
        assert!(matches!(refusal(of(world, code, exponent, of_type)), RouteError::Operation { .. }));
    }
    let mut nowhere = of(world, 0, 0, collective_type::REDUCE);
    nowhere.header.destination = Destination::new([2, 0, 0, 0, 0]);
    assert!(matches!(refusal(nowhere), RouteError::Destination { .. }));
    let map = fifo_map::COLLECTIVE_USER | fifo_map::TORUS;
    let wrong_map = Message { map, ..of(world, 0, 0, collective_type::ALLREDUCE) };
    assert!(matches!(refusal(wrong_map), RouteError::Fifos { possible: 2, .. }));
    let mut point = of(world, 0, 0, collective_type::ALLREDUCE);
    point.header.set_channel(channel::DETERMINISTIC);
    assert!(matches!(refusal(point), RouteError::Channel { .. }));
}

#[test]
fn barrier_completes_when_all_nodes_have_entered() {
    for options in [Options::default(), timed()] {
        let mut bed = Bed::torus(&[3, 3, 1, 1, 2], &[], options);
        let torus = *bed.network.shape();
        for node in 0..18 {
            let route = route(&torus, 5, node, 0);
            set_class(&mut bed, node, nd_dcr::CTRL_GI_CLASS, BARRIER, route);
        }

        for round in 1..=3 {
            for node in 0..18 {
                assert!((0..18).all(|other| bed.node(other).barriers == round - 1));
                bed.order(node, Order::Enter(BARRIER));
                bed.run();
            }
            assert!((0..18).all(|other| bed.node(other).barriers == round));
        }

        bed.order(4, Order::Enter(BARRIER));
        bed.order(4, Order::Enter(BARRIER));
        bed.order(4, Order::Enter(0));
        bed.order(4, Order::Enter(16));
        bed.run();
        assert_eq!(
            bed.node(4).barrier_errors,
            [
                CollectiveError::Entered { class: BARRIER },
                CollectiveError::NoMember { class: 0 },
                CollectiveError::Class { class: 16 },
            ]
        );
    }
}

#[test]
fn slow_receiver_stalls_collectives_and_loses_none() {
    let mut bed = bed(&[2, 2], timed(), 0, class_type::USER);
    bed.set_deaf(3, u16::MAX);
    let message = |node: u32, round: u64| {
        let payload = (round + u64::from(node)).to_le_bytes().to_vec();
        contribution(
            channel::USER_COMM_WORLD,
            operation::UNSIGNED_MAX,
            1,
            collective_type::ALLREDUCE,
            payload,
        )
    };
    for round in 0..100 {
        for node in 0..4 {
            bed.send(node, message(node, round));
        }
    }
    bed.run();
    assert!(bed.marks(0).len() < 50);

    bed.set_deaf(3, 0);
    bed.run();
    for node in 0..4 {
        let expected: Vec<_> = (0..100).map(|round| (reception_fifo::COLLECTIVE_USER, round + 3)).collect();
        assert_eq!(bed.marks(node), expected);
    }
    assert_eq!(bed.machine.fabric().packets_in_use(), 0);
}
