//! Class routes: broadcasts, reductions over all nodes and over some, on both channels.

use nicforge_hwi::{
    tree::{Header, PAYLOAD, opcode},
    tree_dcr::{CLASS_RDR0, dcr, rdr},
};
use nicforge_test_body::body;
use nicforge_tree::topology::{CLASS_ALL, CLASS_COMPUTE, CLASS_PSET, CLASS_PSET_COMPUTE};
use proptest::prelude::*;

use super::{Core, MACHINE, Payload, TWO_PSETS, counter, name, payload, run_until_idle};
use crate::{backing::Rig, random::runner};

/// A class that no machine configures.
const CLASS_OWN: usize = 8;
/// The combining operations.
const OPERATIONS: [u32; 5] = [opcode::OR, opcode::AND, opcode::XOR, opcode::MAX, opcode::ADD];

/// Returns the header of an operation of a class on operands of this size.
fn header(class: usize, operation: u32, operand_bytes: usize) -> Header {
    Header::collective(class as u32, operation, operand_bytes as u32 / 2, 5, false)
}

/// Returns the expected result: each operand is combined on its own, as a big-endian integer.
fn reduce(operation: u32, operand_bytes: usize, contributions: &[Payload]) -> Payload {
    let mut result = [0; PAYLOAD];
    for (index, operand) in result.chunks_mut(operand_bytes).enumerate() {
        let start = index * operand_bytes;
        let numbers: Vec<&[u8]> =
            contributions.iter().map(|bytes| &bytes[start..start + operand.len()]).collect();

        match operation {
            opcode::MAX => operand.copy_from_slice(numbers.iter().max().unwrap()),
            opcode::ADD => {
                let mut carry = 0;
                for (digit, sum) in operand.iter_mut().enumerate().rev() {
                    let total = carry + numbers.iter().map(|number| u32::from(number[digit])).sum::<u32>();
                    *sum = (total % 256) as u8;
                    carry = total / 256;
                }
            }
            _ => {
                for (digit, out) in operand.iter_mut().enumerate() {
                    let digits = numbers.iter().map(|number| number[digit]);
                    *out = match operation {
                        opcode::OR => digits.fold(0, |a, b| a | b),
                        opcode::AND => digits.fold(0xff, |a, b| a & b),
                        _ => digits.fold(0, |a, b| a ^ b),
                    };
                }
            }
        }
    }

    result
}

/// Contributes on every member, checks that all get the same result, and returns it.
fn allreduce(members: &[&Core], header: Header, contributions: &[Payload]) -> Payload {
    for (member, contribution) in members.iter().zip(contributions) {
        member.send(header, contribution);
    }

    let results: Vec<_> = members.iter().map(|member| member.receive()).collect();
    assert!(results.iter().all(|result| *result == results[0]), "the members have different results");
    assert_eq!(results[0].0, header);

    results[0].1
}

/// Generates bytes in whose words all ones, all zeros and 1 are frequent, for long carries.
fn contribution() -> impl Strategy<Value = Payload> {
    let word = prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()];
    prop::collection::vec(word, PAYLOAD / 8).prop_map(|words| {
        words.into_iter().flat_map(u64::to_be_bytes).collect::<Vec<_>>().try_into().unwrap()
    })
}

/// Generates an operation, an operand size in bytes, and a contribution of each of `nodes` nodes on
/// both channels.
fn reduction(nodes: usize) -> impl Strategy<Value = (u32, usize, Vec<Payload>, Vec<Payload>)> {
    let size =
        prop_oneof![Just(1_usize), Just(2), Just(4), Just(128), 1_usize..=128].prop_map(|words| 2 * words);
    let contributions = || prop::collection::vec(contribution(), nodes);
    (prop::sample::select(&OPERATIONS[..]), size, contributions(), contributions())
}

/// Runs reductions of any operation and operand size over the nodes `members` of `class`, on both
/// channels at once.
fn reductions_equal_the_arithmetic_of_big_numbers(rig: &dyn Rig, class: usize, members: &[usize]) {
    let users = Core::everywhere(rig, "core0");
    let admins = Core::everywhere(rig, "admin");
    let (of_users, of_admins): (Vec<_>, Vec<_>) =
        members.iter().map(|&member| (&users[member], &admins[member])).unzip();

    let outcome = runner(rig, 64).run(&reduction(members.len()), |(operation, size, first, second)| {
        let header = header(class, operation, size);
        for (index, (user, admin)) in of_users.iter().zip(&of_admins).enumerate() {
            user.send(header, &first[index]);
            admin.send(header, &second[index]);
        }

        for (receivers, contributions) in [(&of_admins, &second), (&of_users, &first)] {
            let expected = reduce(operation, size, contributions);
            for receiver in receivers {
                prop_assert_eq!(receiver.receive(), (header, expected));
            }
        }

        Ok(())
    });

    outcome.unwrap();
    run_until_idle(rig);

    assert!(users.iter().chain(&admins).all(|node| node.try_receive().is_none()));
}

/// Reductions over all nodes equal the arithmetic of big integers.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn reductions_over_all_nodes_equal_big_arithmetic(rig: &dyn Rig) {
    reductions_equal_the_arithmetic_of_big_numbers(rig, CLASS_ALL, &[0, 1, 2, 3, 4]);
}

/// Reductions over the compute nodes equal the arithmetic of big integers. The I/O node, in the
/// middle of the tree, forwards packets and does not participate.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn reductions_over_the_compute_nodes_equal_big_arithmetic(rig: &dyn Rig) {
    reductions_equal_the_arithmetic_of_big_numbers(rig, CLASS_COMPUTE, &[1, 2, 3, 4]);
}

/// The admins configure a class over three nodes of one branch at run time.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_class_set_up_by_the_admins_reduces_over_its_nodes(rig: &dyn Rig) {
    let local = rdr::SRCL | rdr::TGTL;
    // Node 1 is the root; nodes 3 and 4 are at its ports 1 and 2.
    let routes = [(1, rdr::SRC1 | rdr::SRC2 | local), (3, rdr::TGT0 | local), (4, rdr::TGT0 | local)];
    let admins: Vec<_> = routes.iter().map(|&(node, _)| Core::open(rig, &name(node), "admin")).collect();

    for (admin, (_, route)) in admins.iter().zip(routes) {
        // The even class of the pair is in the high half.
        admin.write(dcr(CLASS_RDR0 + CLASS_OWN as u64 / 2), u32::from(route) << 16);
    }

    drop(admins);
    reductions_equal_the_arithmetic_of_big_numbers(rig, CLASS_OWN, &[1, 3, 4]);
}

/// A packet that is not combined reaches every node of its class once, its sender included, from
/// any sender.
#[body]
pub fn a_broadcast_from_anywhere_reaches_every_node_once(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    for (number, sender) in (0..).zip(&nodes) {
        let header = Header::collective(CLASS_ALL as u32, opcode::NONE, 1, number, true);

        sender.send(header, &payload(number));
        nodes.iter().for_each(|node| assert_eq!(node.receive(), (header, payload(number))));
    }

    run_until_idle(rig);
    assert!(nodes.iter().all(|node| node.try_receive().is_none()));
}

/// A receiver that reads late holds broadcasts up and loses none. All nodes get them in the same
/// order.
#[body]
pub fn a_slow_receiver_loses_no_broadcast(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let header = header(CLASS_ALL, opcode::NONE, 2);
    let [sender, slow, others @ ..] = &nodes[..] else { panic!("the machine has too few nodes") };
    let mut sent = 0;

    // Every node but one reads.
    loop {
        while sender.try_send(header, &payload(sent)) {
            sent += 1;
        }
        run_until_idle(rig);
        let read = |node: &Core| std::iter::from_fn(|| node.try_receive()).count();
        if read(sender) + others.iter().map(read).sum::<usize>() == 0 {
            break;
        }
        run_until_idle(rig);
    }

    // The slow node's FIFO of 8 packets is full, and so is all on the way to it.
    assert!(!sender.has_room() && slow.unread_packets() == 8);

    slow.receive_numbers(0, sent);
}

/// No result comes down before the last node has contributed.
#[body]
pub fn a_reduction_waits_for_its_last_contribution(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let header = header(CLASS_ALL, opcode::ADD, 2);

    for node in &nodes[..4] {
        run_until_idle(rig);
        assert!(nodes.iter().all(|node| node.unread_packets() == 0));
        node.send(header, &[1; PAYLOAD]);
    }

    nodes[4].send(header, &[1; PAYLOAD]);
    nodes.iter().for_each(|node| assert_eq!(node.receive(), (header, [5; PAYLOAD])));
}

/// Nodes may be several reductions ahead of others; the results come in order.
#[body]
pub fn reductions_in_a_row_keep_their_order(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let header = header(CLASS_ALL, opcode::MAX, 2);

    for (index, node) in (0..).zip(&nodes) {
        for round in 0..8 {
            node.send(header, &[10 * round + index; PAYLOAD]);
        }
    }

    for round in 0..8 {
        nodes.iter().for_each(|node| assert_eq!(node.receive(), (header, [10 * round + 4; PAYLOAD])));
    }
}

/// An incomplete reduction on one channel does not block a reduction on the other.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn an_unfinished_reduction_does_not_block_the_other_channel(rig: &dyn Rig) {
    let users = Core::everywhere(rig, "core0");
    let admins = Core::everywhere(rig, "admin");
    let header = header(CLASS_ALL, opcode::XOR, 8);
    users[1..].iter().for_each(|node| node.send(header, &payload(1)));

    let members: Vec<_> = admins.iter().collect();
    let contributions: Vec<_> = (0..5).map(payload).collect();
    assert_eq!(allreduce(&members, header, &contributions), reduce(opcode::XOR, 8, &contributions));

    assert!(users.iter().all(|node| node.unread_packets() == 0));

    users[0].send(header, &payload(2));
    users.iter().for_each(|node| assert_eq!(node.receive(), (header, payload(2))));
}

/// One contribution with the irq bit gives every node a result with it.
#[body]
pub fn the_irq_bit_of_one_contribution_is_in_the_result(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    for (index, node) in nodes.iter().enumerate() {
        node.send(Header::collective(CLASS_ALL as u32, opcode::OR, 1, 0, index == 3), &payload(0));
    }
    nodes.iter().for_each(|node| assert!(node.receive().0.irq()));
}

/// Contributions with different operations give some result, are counted, and block no node.
#[body]
pub fn mismatched_contributions_block_no_other_node(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    for (node, operation) in nodes.iter().zip(OPERATIONS) {
        node.send(header(CLASS_ALL, operation, 4), &payload(operation));
    }

    nodes.iter().for_each(|node| {
        node.receive();
    });

    let mismatched: u64 = (0..5).map(|node| counter(rig, &name(node), "vc1_mismatched")).sum();
    assert!(mismatched > 0);

    let (members, same): (Vec<_>, _) = (nodes.iter().collect(), [[1; PAYLOAD]; 5]);
    assert_eq!(allreduce(&members, header(CLASS_ALL, opcode::ADD, 2), &same), [5; PAYLOAD]);
}

/// Contributions of different classes are never combined, even if their routes are equal. Each
/// waits for its own class.
#[body]
pub fn contributions_of_different_classes_wait_for_their_own(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    for (node, class) in nodes.iter().zip([CLASS_ALL, CLASS_ALL, CLASS_ALL, CLASS_ALL, CLASS_PSET]) {
        node.send(header(class, opcode::OR, 2), &payload(1));
    }

    run_until_idle(rig);
    assert!(nodes.iter().all(|node| node.unread_packets() == 0));
    assert_eq!(counter(rig, "cn0", "vc1_combined"), 0);
}

/// Psets on one tree reduce concurrently in their own classes, and all together in the machine's
/// class.
#[body(on(TWO_PSETS))]
pub fn psets_reduce_concurrently_in_their_own_classes(rig: &dyn Rig) {
    let names = ["io0", "cn0", "cn1", "io1", "cn2", "cn3", "cn4"];
    let nodes = Core::of(rig, names);
    let (first, second): (Vec<_>, Vec<_>) = (nodes[..3].iter().collect(), nodes[3..].iter().collect());
    let contributions: Vec<_> = (0..7).map(payload).collect();
    let pset = header(CLASS_PSET, opcode::ADD, 8);

    first.iter().zip(&contributions).for_each(|(node, bytes)| node.send(pset, bytes));
    assert_eq!(allreduce(&second, pset, &contributions[3..]), reduce(opcode::ADD, 8, &contributions[3..]));

    let expected = reduce(opcode::ADD, 8, &contributions[..3]);
    first.iter().for_each(|node| assert_eq!(node.receive(), (pset, expected)));

    let compute = header(CLASS_PSET_COMPUTE, opcode::MAX, 256);
    assert_eq!(
        allreduce(&second[1..], compute, &contributions[4..]),
        reduce(opcode::MAX, 256, &contributions[4..])
    );

    let all: Vec<_> = nodes.iter().collect();
    let whole = header(CLASS_ALL, opcode::ADD, 16);

    assert_eq!(allreduce(&all, whole, &contributions), reduce(opcode::ADD, 16, &contributions));
}

/// Count of floating-point numbers that a packet sums, in operands of 16 bytes.
const NUMBERS: usize = PAYLOAD / 16;
/// Maximum left shift of the mantissas. It keeps the bits of numbers smaller than the largest.
const HEADROOM: i32 = 60;
/// Offset that makes all exponents positive, so that they compare as unsigned operands.
const EXPONENT_BIAS: i32 = 2000;

/// Splits a number into {mantissa, exponent}: mantissa times 2 to the exponent.
fn split(number: f64) -> (i128, i32) {
    let bits = number.to_bits();
    let biased = ((bits >> 52) & 0x7ff) as i32;
    let fraction = (bits & ((1 << 52) - 1)) | u64::from(biased > 0) << 52;
    let sign = if number.is_sign_negative() { -1 } else { 1 };
    (sign * i128::from(fraction), biased.max(1) - 1075)
}

/// Sums over all nodes: first the maximum of the exponents, then the mantissas, aligned to it, as
/// two's complement integers.
fn sum(members: &[&Core], numbers: &[[f64; NUMBERS]]) -> [f64; NUMBERS] {
    let exponents: Vec<Payload> = numbers
        .iter()
        .map(|numbers| {
            let mut bytes = [0; PAYLOAD];
            for (operand, number) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
                *operand = ((split(*number).1 + EXPONENT_BIAS) as u16).to_be_bytes();
            }
            bytes
        })
        .collect();

    let greatest = allreduce(members, header(CLASS_ALL, opcode::MAX, 2), &exponents);
    let scale = |index: usize| {
        i32::from(u16::from_be_bytes(greatest.as_chunks::<2>().0[index])) - EXPONENT_BIAS - HEADROOM
    };

    let mantissas: Vec<Payload> = numbers
        .iter()
        .map(|numbers| {
            let mut bytes = [0; PAYLOAD];
            for (index, operand) in bytes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let (mantissa, exponent) = split(numbers[index]);
                let shift = exponent - scale(index);
                let aligned = if shift >= 0 { mantissa << shift } else { mantissa >> (-shift).min(127) };
                *operand = aligned.to_be_bytes();
            }
            bytes
        })
        .collect();

    let sums = allreduce(members, header(CLASS_ALL, opcode::ADD, 16), &mantissas);
    std::array::from_fn(|index| {
        i128::from_be_bytes(sums.as_chunks::<16>().0[index]) as f64 * f64::powi(2.0, scale(index))
    })
}

/// The two-phase sum of floating-point numbers is the exact sum, rounded once.
#[body]
pub fn a_two_phase_floating_point_sum_is_exact(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let members: Vec<_> = nodes.iter().collect();

    // Each number is a 32-bit integer over a power of two, so the exact sum fits an i128 at a
    // common scale.
    let number = (any::<i32>(), 0_i32..56);
    let numbers = prop::collection::vec(prop::collection::vec(number, NUMBERS), nodes.len());

    let outcome = runner(rig, 64).run(&numbers, |numbers| {
        let of = |(integer, power): (i32, i32)| f64::from(integer) * f64::powi(2.0, -power);
        let expected: [f64; NUMBERS] = std::array::from_fn(|index| {
            let exact: i128 =
                numbers.iter().map(|node| i128::from(node[index].0) << (56 - node[index].1)).sum();
            exact as f64 * f64::powi(2.0, -56)
        });

        let contributions: Vec<[f64; NUMBERS]> =
            numbers.iter().map(|node| std::array::from_fn(|index| of(node[index]))).collect();

        prop_assert_eq!(sum(&members, &contributions), expected);
        Ok(())
    });

    outcome.unwrap();
}
