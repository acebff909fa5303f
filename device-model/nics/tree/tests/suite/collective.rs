//! Class routes: reductions on the way up, broadcasts on the way down.

use crate::common::{Client, Payload, Rig, payload};
use nicforge_hwi::{
    tree::{Header, PAYLOAD, opcode},
    tree_dcr::{CLASS_RDR0, dcr},
};
use nicforge_tree::{
    alu,
    topology::{CLASS_ALL, CLASS_COMPUTE, CLASS_PSET, CLASS_PSET_COMPUTE},
};

/// Returns the header of an operation on operands of `words` 16-bit words.
fn header(class: usize, operation: u32, words: u32) -> Header {
    Header::collective(class as u32, operation, words, 5, false)
}

/// Attaches core 0 of every node.
fn cores(rig: &mut Rig) -> Vec<Client> {
    (0..rig.functions.len() as u32).map(|node| rig.core(node)).collect()
}

/// Returns the reduction of the nodes' contributions, computed one after the other.
fn reduce(operation: u32, words: usize, contributions: &[Payload]) -> Payload {
    let mut result = contributions[0];
    for contribution in &contributions[1..] {
        alu::combine(operation, 2 * words, &mut result, contribution);
    }
    result
}

#[test]
fn every_operation_reduces_over_all_nodes_and_reaches_them_all() {
    let mut rig = Rig::psets(&[5, 3]);
    let clients = cores(&mut rig);
    let contributions: Vec<Payload> = (0..clients.len() as u32).map(|node| payload(node * 77 + 1)).collect();

    for operation in [opcode::OR, opcode::AND, opcode::XOR, opcode::MAX, opcode::ADD] {
        for words in [1, 2, 4, 8, 128] {
            let header = header(CLASS_ALL, operation, words);
            for (client, contribution) in clients.iter().zip(&contributions) {
                assert!(client.try_send(header, contribution));
            }
            rig.run();

            let expected = reduce(operation, words as usize, &contributions);
            for client in &clients {
                assert_eq!(client.receive(), Some((header, expected)));
                assert_eq!(client.receive(), None);
            }
        }
    }
}

#[test]
fn no_result_is_sent_before_the_last_node_has_contributed() {
    let mut rig = Rig::psets(&[4]);
    let clients = cores(&mut rig);
    let header = header(CLASS_ALL, opcode::ADD, 2);

    for client in &clients[1..] {
        rig.send_all(client, &[(header, [1; PAYLOAD])]);
    }
    assert!(clients.iter().all(|client| client.unread_packets() == 0));

    rig.send_all(&clients[0], &[(header, [1; PAYLOAD])]);

    assert!(clients.iter().all(|client| client.receive().unwrap().1 == [5; PAYLOAD]));
}

#[test]
fn reductions_in_a_row_keep_their_order() {
    let mut rig = Rig::psets(&[6]);
    let clients = cores(&mut rig);
    let header = header(CLASS_ALL, opcode::MAX, 1);

    for round in 0..6u8 {
        for (node, client) in clients.iter().enumerate() {
            assert!(client.try_send(header, &[round * 10 + node as u8; PAYLOAD]));
        }
    }
    rig.run();

    for client in &clients {
        for round in 0..6u8 {
            assert_eq!(client.receive().unwrap().1, [round * 10 + 6; PAYLOAD]);
        }
    }
}

#[test]
fn a_broadcast_from_anywhere_reaches_every_node_once() {
    let mut rig = Rig::psets(&[5, 4]);
    let clients = cores(&mut rig);
    let header = header(CLASS_ALL, opcode::NONE, 1);
    for (node, sender) in clients.iter().enumerate() {
        rig.send_all(sender, &[(header, payload(node as u32))]);

        for client in &clients {
            assert_eq!(client.receive(), Some((header, payload(node as u32))));
            assert_eq!(client.receive(), None);
        }
    }
}

#[test]
fn io_nodes_pass_the_compute_nodes_class_on_without_taking_part() {
    let mut rig = Rig::psets(&[2, 2]);
    let clients = cores(&mut rig);
    let header = header(CLASS_COMPUTE, opcode::ADD, 1);
    for node in [1, 2, 4, 5] {
        rig.send_all(&clients[node], &[(header, [1; PAYLOAD])]);
    }

    for node in [1, 2, 4, 5] {
        assert_eq!(clients[node].receive().unwrap().1, [4; PAYLOAD]);
    }
    assert_eq!(clients[0].unread_packets() + clients[3].unread_packets(), 0);
}

#[test]
fn psets_reduce_concurrently_in_their_own_classes() {
    let mut rig = Rig::psets(&[2, 3]);
    let clients = cores(&mut rig);
    let header = header(CLASS_PSET, opcode::ADD, 1);
    for client in &clients {
        assert!(client.try_send(header, &[1; PAYLOAD]));
    }
    rig.run();

    for (node, client) in clients.iter().enumerate() {
        let expected = if node < 3 { 3 } else { 4 };
        assert_eq!(client.receive().unwrap().1, [expected; PAYLOAD]);
    }
}

#[test]
fn a_slow_receiver_delays_a_broadcast_and_loses_nothing() {
    let mut rig = Rig::psets(&[6]);
    let clients = cores(&mut rig);
    let header = header(CLASS_ALL, opcode::NONE, 1);
    let packets: Vec<_> = (0..60).map(|number| (header, payload(number))).collect();
    let sent = rig.send_all(&clients[0], &packets) as u32;
    assert!(sent < 60);

    for number in 0..sent {
        for client in &clients {
            assert_eq!(client.receive().unwrap().1, payload(number));
            rig.run();
        }
    }
    assert!(clients.iter().all(|client| client.unread_packets() == 0));
}

#[test]
fn the_irq_bit_of_one_contribution_is_in_the_result() {
    let mut rig = Rig::psets(&[1]);
    let clients = cores(&mut rig);
    let plain = header(CLASS_ALL, opcode::ADD, 1);
    let marked = Header::collective(CLASS_ALL as u32, opcode::ADD, 1, 5, true);

    rig.send_all(&clients[0], &[(plain, [1; PAYLOAD])]);
    rig.send_all(&clients[1], &[(marked, [1; PAYLOAD])]);

    assert_eq!(clients[0].receive(), Some((marked, [2; PAYLOAD])));
}

#[test]
fn contributions_of_different_operations_are_counted_and_do_not_block() {
    let mut rig = Rig::psets(&[1]);
    let clients = cores(&mut rig);

    rig.send_all(&clients[0], &[(header(CLASS_ALL, opcode::ADD, 1), [1; PAYLOAD])]);
    rig.send_all(&clients[1], &[(header(CLASS_ALL, opcode::XOR, 4), [1; PAYLOAD])]);

    assert_eq!(rig.counter(0, "vc1_mismatched"), 1);
    assert_eq!(clients[1].unread_packets(), 1);
}

#[test]
fn a_reduction_on_one_channel_does_not_wait_for_the_other() {
    let mut rig = Rig::psets(&[2]);
    let users = cores(&mut rig);
    let admins: Vec<_> = (0..3).map(|node| rig.admin(node)).collect();
    let header = header(CLASS_PSET_COMPUTE, opcode::ADD, 2);
    // One node's contribution is missing on the user channel.
    rig.send_all(&users[1], &[(header, [9; PAYLOAD])]);

    for admin in &admins[1..] {
        rig.send_all(admin, &[(header, [1; PAYLOAD])]);
    }

    assert!(admins[1..].iter().all(|admin| admin.receive().unwrap().1 == [2; PAYLOAD]));
    assert_eq!(users[1].unread_packets(), 0);
}

#[test]
fn a_class_without_a_route_is_discarded() {
    let mut rig = Rig::psets(&[2]);
    let clients = cores(&mut rig);

    rig.send_all(&clients[1], &[(header(9, opcode::ADD, 1), [1; PAYLOAD])]);

    assert_eq!(rig.counter(1, "vc1_no_target"), 1);
}

#[test]
fn the_admin_can_set_up_a_class_and_a_core_cannot() {
    let mut rig = Rig::psets(&[1]);
    let clients = cores(&mut rig);
    let admins: Vec<_> = (0..2).map(|node| rig.admin(node)).collect();
    let routes = rig.read32(&admins[0], dcr(CLASS_RDR0));
    let leaf = rig.read32(&admins[1], dcr(CLASS_RDR0));

    // Class 8 gets the routes of class 0.
    rig.write32(&clients[0], dcr(CLASS_RDR0 + 4), routes & 0xffff_0000);
    assert_eq!(rig.read32(&clients[0], dcr(CLASS_RDR0 + 4)), 0);

    rig.write32(&admins[0], dcr(CLASS_RDR0 + 4), routes & 0xffff_0000);
    rig.write32(&admins[1], dcr(CLASS_RDR0 + 4), leaf & 0xffff_0000);

    for client in &clients {
        rig.send_all(client, &[(header(8, opcode::ADD, 1), [2; PAYLOAD])]);
    }

    assert!(clients.iter().all(|client| client.receive().unwrap().1 == [4; PAYLOAD]));
}
