//! Connections are drained for a checkpoint.

#![allow(clippy::unwrap_used, reason = "tests")]

mod network;

use nicforge_bgl::message::{Config, wire::Kind};
use proptest::prelude::*;

use network::{Layout, Packet, Policy, Program, World, filled, software_header};

const LIMIT: usize = 100_000;
const SIZES: [usize; 5] = [0, 100, 700, 2500, 20_000];

fn config() -> Config {
    Config { eager: 800, mid_size: 3000, ..Config::default() }
}

/// Posts messages between all nodes, numbered from `first` on. Returns their number.
fn post_messages(world: &mut World, first: u32, turns: usize) -> u32 {
    let nodes = world.layers.len();
    let mut number = first;
    for len in SIZES {
        for from in 0..nodes {
            world.post(from, (from + 1) % nodes, number, filled(Layout::At(1), number, len));
            world.post(from, (from + 2) % nodes, number + 1, filled(Layout::At(2), number + 1, len));
            number += 2;
        }
        world.turns(turns);
    }
    number - first
}

fn count_finished(world: &World) -> usize {
    world.programs.iter().map(|program| program.finished.len()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn packets_that_are_on_their_way_after_a_drain_are_not_needed(seed: u64, turns in 0usize..40, before in 0usize..10) {
        let mut world = World::new(3, seed, config());
        world.programs[1] = Program::with(Policy::Later(30));
        let posted = post_messages(&mut world, 0, before);
        world.turns(turns);

        // The ranks begin to drain one after the other, and post more messages meanwhile.
        for node in 0..3 {
            world.layers[node].begin_drain();
            world.turns(turns / 4);
        }
        let posted = posted + post_messages(&mut world, posted, 1);
        world.run_until(LIMIT, |world| world.layers.iter().all(|layer| layer.is_drained()));

        // Nothing is in progress, and the network loses the packets that are left.
        for (layer, program) in world.layers.iter().zip(&world.programs) {
            prop_assert_eq!(layer.receives_in_progress(), 0);
            prop_assert_eq!(program.presented.len(), program.finished.len());
        }
        for node in 0..3 {
            for packet in world.network.take_packets_for(World::rank(node)) {
                prop_assert_eq!(software_header(&packet).kind, Kind::Credit);
            }
        }

        world.layers.iter_mut().for_each(|layer| layer.end_drain());
        world.run_until(LIMIT, |world| count_finished(world) == posted as usize);
        world.settle(LIMIT);
        prop_assert!(world.programs.iter().all(|program| program.errors() == 0));
        prop_assert!(world.layers.iter().all(|layer| layer.statistics().malformed == 0));
    }
}

#[test]
fn drain_waits_for_a_message_that_is_postponed() {
    let mut world = World::new(2, 1, config());
    world.programs[1] = Program::with(Policy::Later(1000));
    world.post(0, 1, 0, filled(Layout::At(0), 0, 2500));
    world.turns(50);
    world.layers[0].begin_drain();
    world.turns(500);
    assert!(!world.layers[0].is_drained());

    world.run_until(LIMIT, |world| world.layers[0].is_drained());
    assert_eq!(world.programs[1].numbers(), [0]);
}

#[test]
fn drain_ends_when_a_peer_is_lost() {
    let mut world = World::new(2, 1, config());
    world.programs[1] = Program::with(Policy::Never);
    world.post(0, 1, 0, filled(Layout::At(0), 0, 2500));
    world.turns(50);
    world.layers[0].begin_drain();
    world.network.end_process(World::rank(1), false);
    world.check_peers(0);
    assert!(world.layers[0].is_drained());
}

#[test]
fn connection_without_messages_is_drained_at_once() {
    let mut world = World::new(2, 1, config());
    assert!(!world.layers[0].is_drained());
    world.layers[0].begin_drain();
    assert!(world.layers[0].is_drained());
}

#[test]
fn marker_of_a_drain_that_was_ended_does_not_replace_a_later_one() {
    let mut world = World::new(2, 1, config());
    world.programs[1] = Program::with(Policy::Later(50));
    let send_marker = |world: &mut World| {
        world.layers[0].begin_drain();
        world.advance(0);
        let packets = world.network.take_packets_for(World::rank(1));
        let is_marker = |packet: &Packet| software_header(packet).kind == Kind::Marker;
        let (markers, others): (Vec<_>, Vec<_>) = packets.into_iter().partition(is_marker);
        assert_eq!(markers.len(), 1);
        (markers, others)
    };

    world.post(0, 1, 0, filled(Layout::At(0), 0, 100));
    let (first, earlier) = send_marker(&mut world);
    world.layers[0].end_drain();

    world.post(0, 1, 1, filled(Layout::At(0), 1, 100));
    world.advance(0);
    let (second, later) = send_marker(&mut world);

    // The later marker overtakes the earlier one, and both overtake the messages.
    for packets in [second, first, earlier, later] {
        deliver(&world, packets);
    }
    world.run_until(LIMIT, |world| world.layers[0].is_drained());
    assert_eq!(world.programs[1].numbers(), [0, 1]);
}

/// Puts packets into the reception FIFO of node 1.
fn deliver(world: &World, packets: Vec<Packet>) {
    for packet in packets {
        world.network.deliver(World::rank(1), packet.header, &packet.payload);
    }
}
