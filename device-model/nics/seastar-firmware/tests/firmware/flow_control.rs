//! Flow control as a node shows it: pauses, limits, and firmware without it.

use nicforge_hwi::seastar::{
    KernelCommand, MAX_IN_FLIGHT, code, event, kernel_command, kernel_event, message, option,
};
use nicforge_seastar_firmware::{
    chip::MAX_TRANSMISSIONS,
    firmware::{Settings, TIMEOUT_NS},
};

use crate::network::{KERNEL_EVENTS, Network, Put};

/// Nanoseconds of a sender's pause for each place in line.
const PAUSE: u64 = 2_000;

fn kinds(events: &[nicforge_hwi::seastar::Event]) -> Vec<u8> {
    events.iter().map(|event| event.kind).collect()
}

/// Polls a node until negative acknowledgements have moved its send queues back this many times:
/// the firmware counts each such move as a repetition. Returns the times before and after the last
/// poll.
fn poll_until_rejected(network: &mut Network, node: u32, repetitions: u64) -> (u64, u64) {
    for _ in 0..100 {
        let before = network.nodes[node as usize].chip.now;
        network.poll(node);
        let node = &network.nodes[node as usize];
        if node.firmware.statistics().repetitions == repetitions {
            return (before, node.chip.now);
        }
    }
    panic!("no negative acknowledgement has come");
}

#[test]
fn sender_pauses_by_its_place_in_line() {
    const TARGET: u32 = 4;
    let mut network = Network::new(TARGET + 1, 1, 1);
    network.start_all();
    for sender in 0..TARGET {
        let descriptor = network.bind(sender, 0);
        assert_eq!(network.put(sender, 0, descriptor, Put::new(TARGET, 2, 64)), code::OK);
        while network.poll(sender) {}
    }

    // Sender 0 has the only stream. The others are refused one after the other.
    for sender in 0..TARGET {
        network.begin(sender, TARGET);
        while network.poll(TARGET) {}
        network.answer(TARGET, sender);
    }
    let target = &network.nodes[TARGET as usize];
    assert_eq!((target.firmware.statistics().messages, target.firmware.statistics().dropped), (1, 3));

    for sender in 1..TARGET {
        // The engine still has the message. It ends before the message is repeated.
        network.finish_sending(sender);
        let (before, after) = poll_until_rejected(&mut network, sender, 1);
        while network.poll(sender) {}
        let node = &mut network.nodes[sender as usize];
        let resumes = node.chip.timer().unwrap();
        assert!((before..=after).contains(&(resumes - u64::from(sender) * PAUSE)), "{sender}: {resumes}");
        assert_eq!(node.firmware.statistics().transmissions, 1);

        node.chip.now = resumes - 1;
        while network.poll(sender) {}
        assert_eq!(network.nodes[sender as usize].firmware.statistics().transmissions, 1);
        network.nodes[sender as usize].chip.now = resumes;
        while network.poll(sender) {}
        assert_eq!(network.nodes[sender as usize].firmware.statistics().transmissions, 2);
    }
    network.settle();
    assert_eq!(network.events(TARGET, 0).len(), TARGET as usize);
}

#[test]
fn messages_in_flight_to_a_node_are_bounded_by_the_pool() {
    for processes in [1, 2, 4] {
        let settings = Settings { processes, ..Settings::default() };
        let mut network = Network::with(2, 4, 1, settings);
        network.boot(0);
        for process in 0..processes {
            network.start(0, process);
        }
        // Nothing is answered, so that all that is sent stays in flight.
        network.nodes[1].is_off = true;

        let mut sent = 0;
        for process in 0..processes {
            let descriptor = network.bind(0, process);
            while network.put(0, process, descriptor, Put::new(1, 2, 8)) == code::OK {
                sent += 1;
                assert!(sent < 10_000, "there is no limit");
            }
        }
        let send = |token| Network::host_send(token, 0, 1, 0, 8);
        while network.kernel(0, send(sent)).code == code::OK {
            sent += 1;
            assert!(sent < 10_000, "there is no limit");
        }

        assert_eq!(network.nodes[0].firmware.pending(), sent as usize);
        assert!((64..u32::from(MAX_IN_FLIGHT)).contains(&sent), "{sent}");
    }
}

#[test]
fn firmware_without_flow_control_acknowledges_and_repeats_nothing() {
    let settings = Settings { flow_control: false, ..Settings::default() };
    let mut network = Network::with(2, 4, 1, settings);
    network.start_all();
    let descriptor = network.bind(0, 0);

    // The second of three messages finds no stream.
    for match_bits in 1..=3 {
        network.drop_one_of = (match_bits == 2).then_some(1);
        network.put(0, 0, descriptor, Put::new(1, match_bits, 500));
        network.settle();
    }

    assert_eq!(kinds(&network.events(0, 0)), [event::SEND_END; 3]);
    let received: Vec<u64> = network.events(1, 0).iter().map(|event| event.match_bits).collect();
    assert_eq!(received, [1, 3]);
    assert_eq!(network.control_packets, 0);
    let statistics = network.nodes[1].firmware.statistics();
    assert_eq!((statistics.dropped, statistics.lost), (1, 1));
    assert_eq!(network.nodes[0].firmware.statistics().transmissions, 3);
    assert_eq!(network.nodes[0].firmware.pending(), 0);
}

#[test]
fn lost_message_without_an_acknowledgement_does_not_stop_the_next_ones() {
    let settings = Settings { implicit_acknowledgements: true, ..Settings::default() };
    let mut network = Network::with(2, 4, 1, settings);
    for node in 0..2 {
        network.boot(node);
        network.start_host_based(node, 0);
    }
    network.settle();

    // The kernel of node 1 takes no events until its queue is full. That of node 0 takes all.
    let mut ends = 0;
    for token in 0..2 * KERNEL_EVENTS {
        assert_eq!(network.kernel(0, Network::host_send(token, 0, 1, 0, 8)).code, code::OK);
        network.settle();
        ends += network.kernel_events(0).len() as u32;
    }
    let lost = network.nodes[1].firmware.statistics().lost;
    assert_eq!((ends, network.control_packets), (2 * KERNEL_EVENTS, 0));
    assert!(lost >= u64::from(KERNEL_EVENTS));

    let messages = |events: &[nicforge_hwi::seastar::KernelEvent]| {
        events.iter().filter(|event| event.kind == kernel_event::MESSAGE).count()
    };
    assert_eq!(messages(&network.kernel_events(1)) as u64, u64::from(2 * KERNEL_EVENTS) - lost);

    // The kernel takes its events, and a message with an acknowledgement arrives.
    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    assert_eq!(network.kernel(1, take).code, code::OK);
    assert_eq!(network.kernel(0, Network::host_send(7, 0, 1, 0, 64)).code, code::OK);
    network.settle();
    assert_eq!(messages(&network.kernel_events(1)), 1);
}

#[test]
fn short_message_after_a_refused_get_is_acknowledged_and_arrives() {
    let settings = Settings { implicit_acknowledgements: true, ..Settings::default() };
    let mut network = Network::with(2, 4, 1, settings);
    for node in 0..2 {
        network.boot(node);
        network.start_host_based(node, 0);
    }
    network.settle();

    // The queue of node 1's kernel is full, so that its firmware refuses the get once.
    for token in 0..KERNEL_EVENTS {
        assert_eq!(network.kernel(0, Network::host_send(token, 0, 1, 0, 8)).code, code::OK);
        network.settle();
        network.kernel_events(0);
    }
    let get = KernelCommand { message: message::GET, ..Network::host_send(100, 0, 1, 0, 0) };
    assert_eq!(network.kernel(0, get).code, code::OK);
    while network.poll(0) {}
    network.begin(0, 1);
    while network.poll(1) {}
    assert_eq!(network.nodes[1].firmware.statistics().refused, 1);

    assert_eq!(network.kernel(0, Network::host_send(101, 0, 1, 0, 8)).code, code::OK);
    network.finish_sending(0);
    while network.poll(0) {}
    network.begin(0, 1);
    while network.poll(1) {}
    assert_eq!(network.kernel_events(1).len(), KERNEL_EVENTS as usize);
    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    assert_eq!(network.kernel(1, take).code, code::OK);
    network.settle();

    let kinds: Vec<u8> = network.kernel_events(1).iter().map(|event| event.packet.trusted.kind).collect();
    assert_eq!(kinds, [message::GET, message::PUT]);
    assert_eq!(network.nodes[1].firmware.statistics().lost, 0);
}

#[test]
fn node_to_which_nothing_was_sent_yet_is_not_silent() {
    let mut network = Network::new(3, 4, 1);
    network.start_all();
    let descriptor = network.bind(0, 0);

    // The transmit engine has as many messages to node 1 as it takes, and sends none of them.
    for _ in 0..MAX_TRANSMISSIONS {
        assert_eq!(network.put(0, 0, descriptor, Put::new(1, 2, 8)), code::OK);
    }
    assert_eq!(network.put(0, 0, descriptor, Put::new(2, 2, 8)), code::OK);
    while network.poll(0) {}
    for _ in 0..12 {
        network.nodes[0].chip.now += TIMEOUT_NS / 4;
        while network.poll(0) {}
    }
    assert_eq!(network.nodes[0].firmware.statistics().timeouts, 0);

    network.settle();
    let events = network.events(0, 0);
    assert_eq!(events.len(), usize::from(MAX_TRANSMISSIONS) + 1);
    assert!(events.iter().all(|event| event.failure == 0));

    // A message that was sent has the whole time for its answer.
    network.nodes[2].is_off = true;
    assert_eq!(network.put(0, 0, descriptor, Put::new(2, 3, 8)), code::OK);
    network.nodes[0].chip.now += 2 * TIMEOUT_NS;
    while network.poll(0) {}
    network.start_sending(0);
    network.finish_sending(0);
    while network.poll(0) {}
    assert_eq!(network.nodes[0].firmware.statistics().timeouts, 0);
    network.settle();
    assert_eq!(network.nodes[0].firmware.statistics().timeouts, 1);
}

#[test]
fn nodes_whose_processes_flood_each_other_answer_all() {
    for (nodes, processes) in [(2, 1), (2, 2), (2, 4), (3, 1), (3, 2)] {
        flood_in_a_circle(nodes, processes, false);
        flood_in_a_circle(nodes, processes, true);
    }
}

/// Lets the processes of each node put to those of the next one, or get from them, as often as
/// there is room. Checks that all requests are answered.
fn flood_in_a_circle(nodes: u32, processes: u16, is_get: bool) {
    let settings = Settings { processes, ..Settings::default() };
    let mut network = Network::with(nodes, 4, u64::from(processes), settings);
    let all: Vec<_> =
        (0..nodes).flat_map(|node| (0..processes).map(move |process| (node, process))).collect();
    (0..nodes).for_each(|node| network.boot(node));
    for &(node, process) in &all {
        network.start(node, process);
        network.receive_all(node, process);
    }
    network.settle();

    // All nodes fill their pools before anything moves.
    let mut requests = 0;
    for &(node, process) in &all {
        let descriptor = network.bind(node, process);
        let put = Put { process, options: option::ACK, ..Put::new((node + 1) % nodes, 2, 8) };
        let mut request = || match is_get {
            true => network.get(node, process, descriptor, put),
            false => network.put(node, process, descriptor, put),
        };
        while request() == code::OK {
            requests += 1;
            assert!(requests < 10_000, "there is no limit");
        }
    }

    let (mut answers, mut failures) = (0, 0);
    network.settle_with(|network| {
        for &(node, process) in &all {
            for taken in network.events(node, process) {
                answers += u32::from(matches!(taken.kind, event::ACK | event::REPLY_END));
                failures += u32::from(taken.failure != 0);
            }
        }
    });
    assert_eq!((answers, failures), (requests, 0), "{nodes} nodes, {processes} processes, gets: {is_get}");
    assert!(network.nodes.iter().all(|node| node.firmware.pending() == 0));
}
