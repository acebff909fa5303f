//! Messages of all sizes, alignments and protocols arrive once, in order, with the right bytes.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod network;

use std::collections::BTreeMap;

use nicforge_bgl::message::{Config, MAX_SINGLE, WINDOW};
use proptest::prelude::*;

use network::{Layout, Policy, Program, World, filled, pattern};

/// Limits of the protocols that small messages reach.
const CONFIG: Config = Config { eager: 800, mid_size: 3000, ..DEFAULT };
const DEFAULT: Config = Config {
    single: MAX_SINGLE,
    eager: 1024,
    mid_size: 16_384,
    round_trip: std::time::Duration::from_micros(10),
    link_rate: 1_400_000_000,
    lead_has_priority: false,
};

/// Number of turns after which a run counts as stuck.
const LIMIT: usize = 400_000;

#[derive(Clone, Debug)]
struct Message {
    from: usize,
    to: usize,
    len: usize,
    layout: Layout,
    policy: Policy,
}

/// Posts all messages, runs, and checks what each program has seen.
fn exchange(nodes: u8, seed: u64, config: Config, messages: &[Message]) {
    let mut world = World::new(nodes, seed, config);
    for (number, message) in messages.iter().enumerate() {
        world.programs[message.to].policies.insert(number as u32, message.policy);
    }

    for (number, message) in messages.iter().enumerate() {
        let buffer = filled(message.layout, number as u32, message.len);
        world.post(message.from, message.to, number as u32, buffer);
        world.turns(number % 3);
    }
    world.settle(LIMIT);

    for (node, program) in world.programs.iter().enumerate() {
        check_program(node, program, messages);
        let posted = messages.iter().filter(|message| message.from == node).count();
        assert_eq!((program.sent.len(), program.errors()), (posted, 0));
        assert_eq!(world.layers[node].statistics().malformed, 0);
    }
}

/// Checks that a program has received each of its messages once, in each sender's order.
fn check_program(node: usize, program: &Program, messages: &[Message]) {
    let mut expected: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (number, message) in messages.iter().enumerate().filter(|(_, message)| message.to == node) {
        expected.entry(message.from).or_default().push(number as u32);
    }
    for (from, numbers) in &expected {
        let presented = program.presented.iter().filter(|(source, _)| *source == World::rank(*from));
        assert_eq!(presented.map(|(_, number)| *number).collect::<Vec<_>>(), *numbers);
    }

    let mut finished = program.numbers();
    finished.sort_unstable();
    let mut all: Vec<u32> = expected.into_values().flatten().collect();
    all.sort_unstable();
    assert_eq!(finished, all);

    for message in &program.finished {
        let sent = &messages[message.number as usize];
        assert_eq!((message.source, message.length), (World::rank(sent.from), sent.len));
        match (sent.policy, &message.bytes) {
            (Policy::Discard, bytes) => assert!(bytes.is_none() && message.stored == 0),
            (policy, Some(bytes)) => {
                let len = if let Policy::Truncate(len) = policy { len.min(sent.len) } else { sent.len };
                assert_eq!(message.stored, len);
                let right =
                    bytes[..len].iter().enumerate().all(|(at, byte)| *byte == pattern(message.number, at));
                assert!(right, "message {} of {} bytes", message.number, sent.len);
            }
            (policy, None) => panic!("no bytes with {policy:?}"),
        }
    }
}

/// Returns sizes at the limits of the protocols, and any others.
fn size() -> impl Strategy<Value = usize> {
    let limits = [
        0, 1, 15, 16, 17, 31, 32, 33, 207, 208, 209, 223, 224, 225, 239, 240, 241, 799, 800, 801, 1039, 1040,
        2999, 3000, 3001,
    ];
    prop_oneof![3 => prop::sample::select(limits.to_vec()), 2 => 0usize..5000, 1 => 5000usize..20_000]
}

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![(0usize..33).prop_map(Layout::At), (1usize..60).prop_map(Layout::Scattered)]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        6 => layout().prop_map(Policy::Receive),
        1 => (0usize..2000).prop_map(Policy::Truncate),
        1 => Just(Policy::Discard),
        2 => (0usize..200).prop_map(Policy::Later),
    ]
}

fn message(nodes: usize) -> impl Strategy<Value = Message> {
    (0..nodes, 0..nodes, size(), layout(), policy()).prop_map(move |(from, distance, len, layout, policy)| {
        Message { from, to: (from + distance) % nodes, len, layout, policy }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn messages_between_many_ranks_arrive_once_and_in_order(
        messages in prop::collection::vec(message(5), 1..80), seed: u64, lead_has_priority: bool,
    ) {
        exchange(5, seed, Config { lead_has_priority, ..CONFIG }, &messages);
    }

    #[test]
    fn messages_of_one_pair_arrive_once_and_in_order(
        messages in prop::collection::vec(message(2), 1..150), seed: u64, round_trip in 0u64..100,
    ) {
        let round_trip = std::time::Duration::from_micros(round_trip);
        exchange(2, seed, Config { round_trip, ..CONFIG }, &messages);
    }
}

/// Returns a message from node 0 to node 1.
fn simple(len: usize, layout: Layout, policy: Policy) -> Message {
    Message { from: 0, to: 1, len, layout, policy }
}

#[test]
fn sizes_at_all_limits_arrive_with_all_phases() {
    let limits = [DEFAULT.single, DEFAULT.eager, DEFAULT.mid_size];
    let sizes = limits.iter().flat_map(|limit| [limit - 1, *limit, limit + 1]);
    let mut messages = Vec::new();
    for len in sizes {
        for (send, receive) in [(0, 0), (5, 5), (1, 15), (15, 2)] {
            messages.push(simple(len, Layout::At(send), Policy::Receive(Layout::At(receive))));
        }
    }
    exchange(2, 1, DEFAULT, &messages);
}

#[test]
fn a_mebibyte_arrives_in_every_layout() {
    let len = 1 << 20;
    let messages = [
        simple(len, Layout::At(0), Policy::Receive(Layout::At(0))),
        simple(len + 3, Layout::At(7), Policy::Receive(Layout::At(3))),
        simple(len, Layout::Scattered(1000), Policy::Receive(Layout::Scattered(777))),
    ];
    exchange(2, 2, DEFAULT, &messages);
}

#[test]
fn a_mebibyte_arrives_by_the_eager_protocol() {
    let config = Config { eager: 1 << 21, mid_size: 1 << 21, ..DEFAULT };
    exchange(2, 3, config, &[simple(1 << 20, Layout::At(1), Policy::Receive(Layout::At(2)))]);
    exchange(2, 3, config, &[simple(1 << 20, Layout::At(1), Policy::Later(50))]);
}

#[test]
fn ids_wrap_around_while_a_message_is_postponed() {
    // The postponed message is decided about after more messages than there are ids to wait with.
    let mut world = World::new(2, 4, DEFAULT);
    world.programs[1].policies.insert(0, Policy::Later(60_000));
    for number in 0..70_000_u32 {
        world.post(0, 1, number, filled(Layout::At(0), number, 5));
        if number % 16 == 0 {
            world.turns(2);
        }
    }
    world.run_until(LIMIT, |world| world.programs[1].finished.len() == 70_000);

    let mut numbers = world.programs[1].numbers();
    let late = numbers.iter().position(|&number| number == 0).unwrap();
    assert!((10_000..16_385).contains(&late), "decided after {late} messages");
    numbers.remove(late);
    assert!(numbers.iter().copied().eq(1..70_000));
}

#[test]
fn receiver_that_never_decides_holds_a_window_and_others_go_on() {
    let mut world = World::new(3, 5, CONFIG);
    world.programs[1] = Program::with(Policy::Never);
    for number in 0..200 {
        world.post(0, 1, number, filled(Layout::At(0), number, [5, 700, 2500, 9000][number as usize % 4]));
        world.post(2, 1, number, filled(Layout::At(0), number, 200));
        world.post(0, 2, number, filled(Layout::At(0), number, 2500));
    }
    world.run_until(LIMIT, |world| world.programs[2].finished.len() == 200);
    world.turns(2000);

    // Each sender has used up its places at rank 1, and no more.
    let window = usize::from(WINDOW);
    assert_eq!(world.layers[1].packet_places(), 2 * window);
    assert!(world.layers[1].receives_in_progress() <= 2 * window);
    assert!(world.programs[1].finished.is_empty() && world.network.is_empty());
    assert_eq!(
        world.programs[1].presented.iter().filter(|(source, _)| *source == World::rank(2)).count(),
        window
    );

    // Rank 1 still takes messages from a rank to which it owes nothing, and sends.
    world.post(1, 2, 1000, filled(Layout::At(0), 1000, 9000));
    world.run_until(LIMIT, |world| world.programs[2].numbers().contains(&1000));
}

#[test]
fn sender_with_few_places_left_goes_on() {
    let mut world = World::new(2, 9, CONFIG);
    // All places but one are held for good.
    let held = u32::from(WINDOW) - 1;
    world.programs[1].policies.extend((0..held).map(|number| (number, Policy::Never)));
    for number in 0..held + 100 {
        world.post(0, 1, number, filled(Layout::At(0), number, 100));
    }
    world.run_until(LIMIT, |world| world.programs[1].finished.len() == 100);
}

#[test]
fn postponed_messages_continue_when_they_are_decided() {
    let messages: Vec<_> = (0..120)
        .map(|number| {
            simple([10, 500, 1500, 6000][number % 4], Layout::At(number % 16), Policy::Later(number * 7 % 90))
        })
        .collect();
    exchange(2, 6, CONFIG, &messages);
}

#[test]
fn rendezvous_sends_no_more_than_the_receiver_wants() {
    let mut world = World::new(2, 7, CONFIG);
    world.programs[1] = Program::with(Policy::Truncate(100));
    world.post(0, 1, 0, filled(Layout::At(0), 0, 1 << 20));
    world.settle(LIMIT);

    assert_eq!((world.programs[1].finished[0].stored, world.programs[1].finished[0].length), (100, 1 << 20));
    assert!(world.layers[0].statistics().packets_sent <= 4);
}

#[test]
fn one_way_messages_cost_few_packets_of_credit() {
    let mut world = World::new(2, 8, DEFAULT);
    for number in 0..1000 {
        world.post(0, 1, number, filled(Layout::At(0), number, 100));
    }
    world.settle(LIMIT);
    let credits = world.layers[1].statistics().credits_sent;
    assert!(credits <= 1000 / u64::from(WINDOW / 4) + 1, "{credits} packets");
}

#[test]
fn count_of_freed_places_that_was_overtaken_by_many_adds_no_credit() {
    let mut world = World::new(2, 10, CONFIG);
    world.post(0, 1, 0, filled(Layout::At(0), 0, 100));
    let late = world.network.take_packets_for(World::rank(1));
    assert_eq!(late.len(), 1);

    // Node 0 has freed 240 places when the packet that says 0 is still on its way.
    for number in 1..=240 {
        world.post(1, 0, number, filled(Layout::At(0), number, 100));
    }
    world.run_until(LIMIT, |world| world.programs[0].finished.len() == 240);
    world.turns(100);

    world.programs[0].default = Some(Policy::Never);
    for number in 241..=304 {
        world.post(1, 0, number, filled(Layout::At(0), number, 100));
    }
    world.turns(200);
    for packet in late {
        world.network.deliver(World::rank(1), packet.header, &packet.payload);
    }
    world.turns(200);

    assert_eq!(world.layers[0].statistics().malformed, 0);
    assert_eq!(world.layers[0].receives_in_progress(), usize::from(WINDOW));
    assert_eq!(world.programs[1].numbers(), [0]);
}
