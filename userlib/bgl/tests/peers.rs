//! Processes end and restart in every phase of every protocol.

#![allow(clippy::unwrap_used, reason = "tests")]

mod network;

use nicforge_bgl::{
    Error,
    message::{
        Config, Disposition, MessageLayer, WINDOW,
        wire::{Kind, MessageId, SoftwareHeader},
    },
    packet::Rank,
};
use nicforge_hwi::torus::PacketHeader;
use proptest::prelude::*;

use network::{Layout, Network, Packet, Policy, Program, World, filled, information};

/// One message of each protocol.
const SIZES: [usize; 4] = [100, 700, 2500, 20_000];
const LIMIT: usize = 100_000;

fn config() -> Config {
    Config { eager: 800, mid_size: 3000, ..Config::default() }
}

fn gone(node: usize) -> Error {
    Error::PeerGone { rank: World::rank(node).0 }
}

/// Checks that node 0 and node 1 exchange messages, numbered from 1000 on.
fn check_exchange(world: &mut World) {
    for (number, len) in (1000..).zip(SIZES) {
        world.post(0, 1, number, filled(Layout::At(1), number, len));
        world.post(1, 0, number, filled(Layout::At(2), number, len));
    }
    for node in [0, 1] {
        world.run_until(LIMIT, |world| {
            let numbers = world.programs[node].numbers();
            (1000..1004).all(|number| numbers.contains(&number))
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn receiver_that_restarts_ends_the_messages_to_it_and_gets_new_ones(seed: u64, turns in 0usize..60, later: bool) {
        let mut world = World::new(2, seed, config());
        if later {
            world.programs[1] = Program::with(Policy::Later(20));
        }
        for (number, len) in (0..).zip(SIZES) {
            world.post(0, 1, number, filled(Layout::At(0), number, len));
        }
        world.turns(turns);

        world.restart(1);
        world.turns(5);
        world.check_peers(0);

        // Each message has ended, with success or with the error.
        prop_assert_eq!((world.layers[0].sends_in_progress(), world.programs[0].sent.len()), (0, SIZES.len()));
        for (_, result) in &world.programs[0].sent {
            prop_assert!(*result == Ok(()) || *result == Err(gone(1)));
        }
        check_exchange(&mut world);
        world.settle(LIMIT);
        prop_assert_eq!(world.programs[0].sent.len(), 2 * SIZES.len());
    }

    #[test]
    fn sender_that_restarts_ends_its_messages_at_the_receiver(seed: u64, turns in 0usize..60, later: bool) {
        let mut world = World::new(2, seed, config());
        if later {
            world.programs[1] = Program::with(Policy::Later(20));
        }
        for (number, len) in (0..).zip(SIZES) {
            world.post(0, 1, number, filled(Layout::At(0), number, len));
        }
        world.turns(turns);

        world.restart(0);
        world.turns(5);
        world.check_peers(1);

        // Each presented message has ended once.
        let program = &world.programs[1];
        prop_assert_eq!(world.layers[1].receives_in_progress(), 0);
        prop_assert_eq!(program.presented.len(), program.finished.len());
        for message in &program.finished {
            prop_assert!(message.result == Ok(()) || message.result == Err(gone(0)));
        }
        check_exchange(&mut world);
    }

    #[test]
    fn ranks_that_restart_at_random_leave_the_others_working(
        seed: u64, restarts in prop::collection::vec((0usize..3, 0usize..40), 1..12),
    ) {
        let mut world = World::new(3, seed, config());
        for (number, (node, turns)) in (0_u32..).zip(restarts) {
            for (pair, (from, to)) in (0..).zip([(0, 1), (1, 2), (2, 0), (0, 2)]) {
                let number = 4 * number + pair;
                let len = SIZES[number as usize % SIZES.len()];
                let buffer = filled(Layout::At(0), number, len);
                // The peer's old connection may not have ended yet.
                let _ = world.layers[from].postsend(World::rank(to), information(number), buffer);
            }
            world.turns(turns);
            world.restart(node);
        }

        world.turns(200);
        for node in 0..3 {
            world.check_peers(node);
        }
        world.settle(LIMIT);
        check_exchange(&mut world);
        prop_assert!(world.layers.iter().all(|layer| layer.statistics().malformed == 0));
    }
}

#[test]
fn message_to_a_peer_without_a_process_is_refused_with_its_buffer() {
    let mut world = World::new(2, 1, config());
    let rank = World::rank(1);
    world.network.end_process(rank, false);

    let rejected = world.layers[0].postsend(rank, information(0), filled(Layout::At(0), 0, 10)).unwrap_err();
    assert_eq!((rejected.error, rejected.buffer.len()), (Error::PeerDown { rank: rank.0 }, 10));
    assert_eq!(world.layers[0].is_up(rank), Ok(false));
}

#[test]
fn ranks_that_no_packet_reaches_are_refused() {
    let mut world = World::new(2, 1, config());
    for rank in [Rank::new(2, 0), Rank(u16::MAX)] {
        let rejected = world.layers[0].postsend(rank, information(0), Vec::new().into()).unwrap_err();
        assert_eq!(rejected.error, Error::Unreachable { rank: rank.0, ranks: 4 });
    }
}

#[test]
fn message_of_a_process_that_has_just_ended_is_still_received() {
    let mut world = World::new(2, 1, config());
    world.post(0, 1, 7, filled(Layout::At(0), 7, 100));
    while !world.layers[0].has_sent_all() {
        world.network.step();
        world.advance(0);
    }
    world.network.end_process(World::rank(0), false);

    world.run_until(LIMIT, |world| !world.programs[1].finished.is_empty());
    assert_eq!(world.programs[1].finished[0].result, Ok(()));
    assert_eq!(world.check_peers(1), 1);
}

#[test]
fn packets_of_a_process_whose_connection_has_ended_are_dropped() {
    let mut world = World::new(2, 1, config());
    world.post(0, 1, 0, filled(Layout::At(0), 0, 700));
    world.settle(LIMIT);
    world.post(0, 1, 1, filled(Layout::At(0), 1, 100));

    // The packets arrive only after the receiver has noticed the end of the sender.
    let late = world.network.take_packets_for(World::rank(1));
    world.network.end_process(World::rank(0), false);
    world.check_peers(1);
    for packet in late {
        world.network.deliver(World::rank(1), packet.header, &packet.payload);
    }
    world.turns(10);

    assert_eq!(world.programs[1].numbers(), [0]);
    assert_eq!(world.layers[1].statistics().stale, 1);
}

#[test]
fn packets_that_have_arrived_are_received_before_a_connection_ends() {
    let mut world = World::new(2, 1, config());
    world.post(0, 1, 7, filled(Layout::At(0), 7, 20_000));
    world.run_until(LIMIT, |world| world.layers[0].has_sent_all());
    let late = world.network.take_packets_for(World::rank(1));
    assert!(!late.is_empty());

    world.network.end_process(World::rank(0), false);
    for packet in late {
        world.network.deliver(World::rank(1), packet.header, &packet.payload);
    }
    assert_eq!(world.check_peers(1), 1);
    assert_eq!(world.programs[1].finished[0].result, Ok(()));
}

#[test]
fn senders_that_restart_leave_the_memory_for_packets_whole() {
    let mut world = World::new(2, 1, config());
    world.programs[1] = Program::with(Policy::Never);
    for _ in 0..10 {
        for number in 0..40 {
            world.post(0, 1, number, filled(Layout::At(0), number, 100));
        }
        world.turns(100);
        world.restart(0);
        world.check_peers(1);
    }

    let statistics = world.layers[1].statistics();
    assert_eq!((statistics.packets_stored, statistics.malformed), (10 * u64::from(WINDOW), 0));
    world.programs[1] = Program::default();
    check_exchange(&mut world);
}

#[test]
fn packets_for_an_earlier_life_are_dropped_by_the_network() {
    let mut world = World::new(2, 1, config());
    world.post(0, 1, 0, filled(Layout::At(0), 0, 100));
    world.restart(1);
    world.turns(20);
    assert!(world.programs[1].presented.is_empty() && world.network.dropped() == 1);
}

#[test]
fn postponed_message_of_a_lost_peer_can_not_be_decided_about() {
    let mut world = World::new(2, 1, config());
    world.programs[1] = Program::with(Policy::Later(usize::MAX));
    world.post(0, 1, 0, filled(Layout::At(0), 0, 700));
    world.run_until(LIMIT, |world| !world.programs[1].postponed.is_empty());
    let handle = world.programs[1].postponed[0].1;

    world.network.end_process(World::rank(0), false);
    world.check_peers(1);

    assert_eq!(world.programs[1].finished[0].result, Err(gone(0)));
    let result = world.layers[1].decide(handle, Disposition::Discard, &mut world.programs[1]);
    assert_eq!(result, Err(Error::NoSuchMessage));
}

#[test]
fn peers_are_asked_about_only_after_a_change() {
    let network = Network::new(2, 1);
    let mut layer = MessageLayer::init(network.port(Rank::new(0, 0)), config()).unwrap();
    let mut program = Program::default();
    layer.postsend(Rank::new(1, 0), information(0), vec![0; 10].into()).unwrap();
    assert_eq!(layer.check_peers(&mut program), Ok(0));

    network.end_process(Rank::new(1, 0), true);
    assert_eq!((layer.check_peers(&mut program), layer.check_peers(&mut program)), (Ok(1), Ok(0)));
    assert_eq!(program.sent.len(), 1);
}

/// Puts packets of unknown processes into the FIFO of node 1, and then the last packet of node 0.
/// Node 0 has a connection with node 1, and its process has ended.
fn hide_last_packet(world: &mut World, lives: impl Iterator<Item = u8>) {
    world.post(0, 1, 0, filled(Layout::At(0), 0, 100));
    world.settle(LIMIT);
    world.check_peers(1);
    world.post(0, 1, 1, filled(Layout::At(0), 1, 100));
    let last = world.network.take_packets_for(World::rank(1));
    world.network.end_process(World::rank(0), false);

    deliver_claims(world, lives);
    deliver(world, last);
}

/// Puts packets of other lives of node 0 into the FIFO of node 1.
fn deliver_claims(world: &World, lives: impl Iterator<Item = u8>) {
    let (kind, source, id) = (Kind::Single, World::rank(0), MessageId::new(0));
    for life in lives {
        let software = SoftwareHeader { kind, source, life, id, field: 0 }.encode();
        let header = PacketHeader { software, ..PacketHeader::to([0; 3], 0) };
        world.network.deliver(World::rank(1), header, &information(9));
    }
}

fn deliver(world: &World, packets: Vec<Packet>) {
    for packet in packets {
        world.network.deliver(World::rank(1), packet.header, &packet.payload);
    }
}

#[test]
fn last_packet_behind_alternating_claims_of_nobody_is_received_before_the_connection_ends() {
    let mut world = World::new(2, 1, config());
    hide_last_packet(&mut world, (0..40).map(|index| 100 + index % 2));

    // Two claims are two questions, however often they alternate.
    assert_eq!(world.check_peers(1), 1);
    assert!(world.layers[1].is_check_complete());
    assert_eq!((world.programs[1].numbers(), world.programs[1].errors()), (vec![0, 1], 0));
    assert_eq!(world.layers[1].statistics().stale, 40);
}

#[test]
fn check_that_meets_too_many_claims_says_that_it_is_not_complete() {
    let mut world = World::new(2, 1, config());
    hide_last_packet(&mut world, 100..120);

    assert_eq!(world.check_peers(1), 0);
    assert!(!world.layers[1].is_check_complete());
    assert_eq!(world.programs[1].numbers(), [0]);

    assert_eq!(world.check_peers(1), 1);
    assert!(world.layers[1].is_check_complete());
    assert_eq!((world.programs[1].numbers(), world.programs[1].errors()), (vec![0, 1], 0));
}

#[test]
fn last_packet_behind_an_unknown_rank_is_received_before_a_successor_ends_the_connection() {
    let mut world = World::new(3, 1, config());
    let post = |world: &mut World, from: usize, number: u32| {
        world.post(from, 1, number, filled(Layout::At(0), number, 100));
        world.network.take_packets_for(World::rank(1))
    };
    world.post(0, 1, 0, filled(Layout::At(0), 0, 100));
    world.settle(LIMIT);
    let last = post(&mut world, 0, 1);
    let unknown = post(&mut world, 2, 2);
    world.restart(0);
    let successor = post(&mut world, 0, 3);

    deliver(&world, unknown);
    deliver(&world, last);
    for packet in successor {
        world.network.deliver_to_other(World::rank(1), packet);
    }
    world.advance(1);

    let (statistics, mut numbers) = (world.layers[1].statistics(), world.programs[1].numbers());
    numbers.sort_unstable();
    assert_eq!((numbers, world.programs[1].errors()), (vec![0, 1, 2, 3], 0));
    assert_eq!((statistics.stale, statistics.peers_lost), (0, 1));
}

#[test]
fn successor_is_met_while_claims_of_nobody_keep_coming() {
    let mut world = World::new(2, 1, config());
    world.post(0, 1, 0, filled(Layout::At(0), 0, 100));
    world.settle(LIMIT);
    world.restart(0);
    world.post(0, 1, 1, filled(Layout::At(0), 1, 100));
    for packet in world.network.take_packets_for(World::rank(1)) {
        world.network.deliver_to_other(World::rank(1), packet);
    }

    // More claims come than one call asks about.
    for _ in 0..10 {
        deliver_claims(&world, 100..120);
        world.advance(1);
    }
    assert_eq!((world.programs[1].numbers(), world.programs[1].errors()), (vec![0, 1], 0));
}
