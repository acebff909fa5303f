//! Links that cut through: the times of packets on their way, and their order at saturation.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{Client, Payload, Rig, payload, to};
use nicforge_core::{
    fabric::{Direction, Fault, LinkSpec},
    machine::Next,
};
use nicforge_hwi::tree::{Header, opcode};
use nicforge_tree::topology::CLASS_ALL;

/// The delay of each link in nanoseconds.
const DELAY: u64 = 100;
/// The time of a packet on a link with a byte in a nanosecond: 256 bytes of payload, 4 of header.
const PACKET: u64 = 260;
/// Bytes of a packet's head, and their time on such a link.
const HEAD: u32 = 32;
/// A node at one hop from node 0.
const NEAR: u32 = 1;
/// A node at three hops from node 0.
const FAR: u32 = 7;

/// Returns links with a byte in a nanosecond.
fn links(cut_through: Option<u32>) -> LinkSpec {
    LinkSpec { delay: DELAY, bits_per_second: 8_000_000_000, cut_through, ..LinkSpec::default() }
}

/// Returns the time from the send of a packet at node 0 to its arrival at another node.
fn time_to(node: u32, header: Header, cut_through: Option<u32>) -> u64 {
    let mut rig = Rig::with(&[8], links(cut_through), |_| {});
    let clients: Vec<_> = (0..9).map(|node| rig.core(node)).collect();
    let start = rig.machine.now();

    assert!(clients[0].try_send(header, &payload(1)));
    rig.machine.run_until(|_| clients[node as usize].unread_packets() > 0);

    assert_eq!(clients[node as usize].receive(), Some((header, payload(1))));
    rig.machine.now().0 - start.0
}

#[test]
fn packet_takes_its_whole_length_at_each_hop_without_cut_through_and_once_with_it() {
    let hop = PACKET + DELAY;
    let head = u64::from(HEAD) + DELAY;

    assert_eq!(time_to(NEAR, to(NEAR), None), hop);
    assert_eq!(time_to(NEAR, to(NEAR), Some(HEAD)), hop);
    assert_eq!(time_to(FAR, to(FAR), None), 3 * hop);
    assert_eq!(time_to(FAR, to(FAR), Some(HEAD)), 2 * head + hop);
}

#[test]
fn packet_with_several_targets_waits_for_its_tail_at_each_node() {
    let broadcast = Header::collective(CLASS_ALL as u32, opcode::NONE, 1, 5, false);
    for cut_through in [None, Some(HEAD)] {
        assert_eq!(time_to(FAR, broadcast, cut_through), 3 * (PACKET + DELAY), "{cut_through:?}");
    }
}

#[test]
fn reduction_over_links_that_cut_through_waits_for_all_of_each_operand() {
    let mut rig = Rig::with(&[8], links(Some(HEAD)), |_| {});
    let clients: Vec<_> = (0..9).map(|node| rig.core(node)).collect();
    let header = Header::collective(CLASS_ALL as u32, opcode::OR, 128, 5, false);

    for (node, client) in clients.iter().enumerate() {
        // The contributions are long, so the last byte of each counts.
        let mut contribution = [0; 256];
        contribution[255 - node] = 1 << (node % 8);
        assert!(client.try_send(header, &contribution));
    }
    rig.run();

    let mut expected = [0; 256];
    for node in 0..9 {
        expected[255 - node] = 1 << (node % 8);
    }
    for client in &clients {
        assert_eq!(client.receive(), Some((header, expected)));
    }
}

/// Packets that each node sends to each other node.
const PACKETS: u32 = 20;

/// Returns a packet that names its sender and its number.
fn numbered(from: usize, number: u32) -> Payload {
    let mut data = payload(number);
    data[0] = from as u8;
    data[1..5].copy_from_slice(&number.to_le_bytes());
    data
}

/// All nodes send to all others, as fast as their FIFOs take packets.
struct AllToAllTraffic {
    clients: Vec<Client>,
    /// Packets sent, by sender and target.
    sent: Vec<Vec<u32>>,
    /// Packets received, by receiver and sender.
    received: Vec<Vec<u32>>,
}

impl AllToAllTraffic {
    fn new(rig: &mut Rig) -> Self {
        let nodes = rig.functions.len();
        let clients = (0..nodes as u32).map(|node| rig.core(node)).collect();
        Self { clients, sent: vec![vec![0; nodes]; nodes], received: vec![vec![0; nodes]; nodes] }
    }

    /// Sends packets of each node to its targets in turn, until its FIFO is full.
    fn send(&mut self) {
        for (from, client) in self.clients.iter().enumerate() {
            loop {
                let sent = &mut self.sent[from];
                let remaining = (0..sent.len()).filter(|&target| target != from && sent[target] < PACKETS);
                let Some(target) = remaining.min_by_key(|&target| sent[target]) else { break };
                if !client.try_send(to(target as u32), &numbered(from, sent[target])) {
                    break;
                }
                sent[target] += 1;
            }
        }
    }

    /// Receives at most `maximum` packets at each node, and checks that each is the next of its
    /// flow.
    fn receive(&mut self, maximum: usize) {
        for (client, received) in self.clients.iter().zip(&mut self.received) {
            for (_, data) in std::iter::from_fn(|| client.receive()).take(maximum) {
                let from = usize::from(data[0]);
                assert_eq!(data, numbered(from, received[from]), "from {from} to {}", client.node);
                received[from] += 1;
            }
        }
    }

    /// Returns whether each node has received all packets of all others.
    fn is_done(&self) -> bool {
        let all = |(node, received): (usize, &Vec<u32>)| {
            received.iter().enumerate().all(|(from, &count)| from == node || count == PACKETS)
        };
        self.received.iter().enumerate().all(all)
    }
}

/// Corrupts each seventh transmission on each link, in one direction.
fn corrupt_some(rig: &mut Rig) {
    for &link in &rig.links {
        let hook = |_: &mut _, number| if number % 7 == 3 { Fault::Corrupt } else { Fault::None };
        rig.machine.fabric().set_fault(link, Direction::Forward, Some(Box::new(hook))).unwrap();
    }
}

#[test]
fn crowded_links_that_cut_through_lose_nothing_and_keep_the_order_of_each_flow() {
    // Presence symbols are longer than a head of 4 bytes, and packets one byte longer than 259. A
    // node that receives one packet at a time keeps the links full.
    for (cut_through, received_at_once) in [(Some(4), 8), (Some(HEAD), 1), (Some(259), 8), (None, 8)] {
        let mut rig = Rig::with(&[4, 3], links(cut_through), |_| {});
        corrupt_some(&mut rig);
        let mut traffic = AllToAllTraffic::new(&mut rig);
        let mut steps = 0;

        while !traffic.is_done() {
            steps += 1;
            assert!(steps < 100_000, "{cut_through:?}: {:?}", traffic.received);
            traffic.send();
            if rig.machine.step(64) != Next::Now {
                traffic.receive(received_at_once);
                let step_end = rig.machine.now().after(1000);
                let next = rig.machine.fabric().next_event();
                rig.machine.advance_to(next.min(step_end));
            }
        }

        rig.run();
        assert_eq!(rig.machine.fabric().packets_in_use(), 0);
        assert!(traffic.clients.iter().all(|client| client.unread_packets() == 0));
        assert!(traffic.clients.iter().all(|client| (0..9).all(|node| client.presence(node, 0) == 1)));
    }
}
