//! Processes in NIC-based mode.

use nicforge_hwi::seastar::{
    Command, KernelCommand, NO_HANDLE, THRESHOLD_INFINITE, code, command, event, failure, kernel_command,
    kernel_event, option, status,
};
use nicforge_seastar_firmware::{costs, firmware::Settings};

use crate::network::{KERNEL_EVENTS, Network, Put, RECEIVE, SEND};

fn kinds(events: &[nicforge_hwi::seastar::Event]) -> Vec<u8> {
    events.iter().map(|event| event.kind).collect()
}

#[test]
fn put_of_each_length_arrives_with_its_data() {
    for length in [0, 1, 8, 16, 17, 64, 4096] {
        let (mut network, descriptor) = Network::pair(length + 1);
        let data: Vec<u8> = (0..length).map(|byte| byte as u8 ^ 0x5a).collect();
        network.nodes[0].chip.memory(1)[SEND as usize..][..data.len()].copy_from_slice(&data);

        assert_eq!(network.put(0, 0, descriptor, Put::new(1, 0x77, length)), code::OK);
        network.settle();

        let sent = network.events(0, 0);
        assert_eq!(kinds(&sent), [event::SEND_END]);
        assert_eq!(sent[0].failure, 0);
        let received = network.events(1, 0);
        assert_eq!(kinds(&received), [event::PUT_END]);
        assert_eq!((received[0].match_bits, u64::from(received[0].moved)), (0x77, length));
        assert_eq!(received[0].user_pointer, 7);
        assert_eq!(network.nodes[1].chip.memory(1)[RECEIVE as usize..][..data.len()], data);
        assert_eq!(network.nodes[0].firmware.pending(), 0);
        assert_eq!([0, 1].map(|node: usize| network.nodes[node].chip.interrupts), [0, 0]);
    }
}

#[test]
fn put_with_its_data_in_the_command_reads_no_memory() {
    let (mut network, descriptor) = Network::pair(3);
    let put = Command {
        kind: command::PUT,
        handle: descriptor,
        length: 5,
        node: 1,
        portal: 4,
        options: option::INLINE,
        inline: *b"helloworld123456",
        ..Command::default()
    };

    assert_eq!(network.process(0, 0, put).code, code::OK);
    network.settle();

    assert_eq!(&network.nodes[1].chip.memory(1)[RECEIVE as usize..][..6], b"hello\0");
}

#[test]
fn room_in_the_answer_to_a_put_is_kept_for_its_process() {
    let (mut network, descriptor) = Network::pair(9);
    network.start(0, 1);
    let of_other = network.bind(0, 1);
    network.nodes[1].is_off = true;
    let put = Command { kind: command::PUT, length: 8, node: 1, portal: 4, ..Command::default() };
    let put_of_process = Command { handle: descriptor, ..put };

    let first = network.process(0, 0, put_of_process).value;
    while network.process(0, 1, Command { handle: of_other, ..put }).code == code::OK {}
    assert!(first > 0);
    for remaining in (0..first).rev() {
        let answer = network.process(0, 0, put_of_process);
        assert_eq!((answer.code, answer.value), (code::OK, remaining));
    }
    assert_eq!(network.process(0, 0, put_of_process).code, code::NO_SPACE);

    // Messages of a process that has ended take the room of its successor.
    let stop = KernelCommand { kind: kernel_command::STOP_PROCESS, process: 1, ..KernelCommand::default() };
    assert_eq!(network.kernel(0, stop).code, code::OK);
    network.start(0, 1);
    let of_successor = network.bind(0, 1);
    let put_of_successor = Command { handle: of_successor, ..put };
    assert_eq!(network.process(0, 1, put_of_successor).code, code::NO_SPACE);
    network.nodes[1].is_off = false;
    network.settle();
    assert_eq!(network.process(0, 1, put_of_successor).code, code::OK);
}

#[test]
fn get_is_answered_with_the_data_of_the_target() {
    for length in [0, 8, 100] {
        let (mut network, descriptor) = Network::pair(length);
        network.nodes[1].chip.memory(1)[RECEIVE as usize..][..100].fill(0x3c);
        let get = Command {
            kind: command::GET,
            handle: descriptor,
            length,
            node: 1,
            portal: 4,
            ..Command::default()
        };

        assert_eq!(network.process(0, 0, get).code, code::OK);
        network.settle();

        let received = network.events(0, 0);
        assert_eq!(kinds(&received), [event::REPLY_END]);
        assert_eq!((received[0].failure, u64::from(received[0].moved)), (0, length));
        assert_eq!(kinds(&network.events(1, 0)), [event::GET_END]);
        let memory = &network.nodes[0].chip.memory(1)[SEND as usize..][..101];
        assert_eq!(memory.iter().filter(|byte| **byte == 0x3c).count() as u64, length);
    }
}

#[test]
fn put_that_asks_for_it_is_acknowledged() {
    for length in [8, 1000] {
        let (mut network, descriptor) = Network::pair(length);

        network.put(0, 0, descriptor, Put { options: option::ACK, ..Put::new(1, 5, length) });
        network.settle();

        let mut sent = kinds(&network.events(0, 0));
        sent.sort_unstable();
        assert_eq!(sent, [event::SEND_END, event::ACK]);
    }
}

#[test]
fn message_without_a_match_is_dropped_and_counted() {
    let (mut network, descriptor) = Network::pair(1);
    let drops = Command { kind: command::STATUS, handle: status::DROP_COUNT, ..Command::default() };

    // One goes beyond the end of the descriptor, which does not truncate.
    let far = Command {
        kind: command::PUT,
        handle: descriptor,
        length: 100,
        offset: SEND,
        node: 1,
        portal: 4,
        ..Command::default()
    };
    assert_eq!(network.process(0, 0, far).code, code::OK);
    // The process of the other one does not exist.
    network.put(0, 0, descriptor, Put { process: 1, ..Put::new(1, 5, 100) });
    network.settle();

    assert_eq!(kinds(&network.events(0, 0)), [event::SEND_END; 2]);
    assert_eq!(network.process(1, 0, drops).value, 1);
    assert_eq!(network.nodes[1].firmware.statistics().without_process, 2);
    assert!(network.events(1, 0).is_empty());
}

#[test]
fn each_visited_match_entry_costs_30_ns() {
    let cycles = |entries: u64| {
        let mut network = Network::new(2, 4, 1);
        network.boot(0);
        network.start(0, 0);
        network.boot(1);
        network.start(1, 0);
        let attach = Command {
            kind: command::ATTACH_ENTRY,
            portal: 4,
            node: u32::MAX,
            process: u16::MAX,
            match_bits: 1,
            ..Command::default()
        };
        for _ in 0..entries {
            assert_eq!(network.process(1, 0, attach).code, code::OK);
        }
        network.receive_all(1, 0);
        network.settle();
        let descriptor = network.bind(0, 0);
        let before = network.nodes[1].chip.cycles;

        network.put(0, 0, descriptor, Put::new(1, 2, 8));
        network.settle();
        assert_eq!(network.events(1, 0).len(), 1);
        network.nodes[1].chip.cycles - before
    };

    // The embedded processor has 500 MHz: a cycle takes 2 ns.
    assert_eq!(cycles(51) - cycles(1), 50 * u64::from(costs::MATCH_ENTRY));
    assert_eq!(costs::MATCH_ENTRY * 2, 30);
    assert_eq!(costs::POLL * 2, 130);
}

#[test]
fn put_to_a_node_without_a_kernel_fails() {
    let mut network = Network::new(2, 4, 1);
    network.boot(0);
    network.start(0, 0);
    let descriptor = network.bind(0, 0);

    for length in [8, 1000] {
        network.put(0, 0, descriptor, Put::new(1, 2, length));
    }
    network.settle();

    let events = network.events(0, 0);
    assert_eq!(kinds(&events), [event::SEND_END; 2]);
    assert!(events.iter().all(|event| event.failure == failure::NODE));
    assert_eq!(network.nodes[0].firmware.pending(), 0);
}

#[test]
fn messages_to_a_node_that_is_off_fail_after_the_time_out() {
    let (mut network, descriptor) = Network::pair(1);
    network.nodes[1].is_off = true;
    let free = network.nodes[0].firmware.free_scratch();

    for length in [8, 1000, 4000] {
        network.put(0, 0, descriptor, Put::new(1, 2, length));
    }
    let get = Command { kind: command::GET, handle: descriptor, node: 1, portal: 4, ..Command::default() };
    network.process(0, 0, get);
    network.settle();

    let events = network.events(0, 0);
    assert_eq!(events.len(), 4);
    assert!(events.iter().all(|event| event.failure == failure::NODE));
    assert_eq!(network.nodes[0].firmware.pending(), 0);
    assert_eq!(network.nodes[0].firmware.free_scratch(), free);
    assert_eq!(network.nodes[0].firmware.statistics().timeouts, 1);

    // The node was only slow. The next message resynchronises it.
    network.nodes[1].is_off = false;
    network.put(0, 0, descriptor, Put::new(1, 3, 1000));
    network.settle();
    assert_eq!(network.events(0, 0)[0].failure, 0);
}

#[test]
fn get_that_waits_for_a_reply_fails_with_the_incarnation_of_its_target() {
    let (mut network, descriptor) = Network::pair(1);
    let far = Command {
        kind: command::GET,
        handle: descriptor,
        length: 100,
        offset: SEND,
        node: 1,
        portal: 4,
        ..Command::default()
    };
    assert_eq!(network.process(0, 0, far).code, code::OK);
    network.settle();
    assert!(network.events(0, 0).is_empty());

    network.detach(1, 0);
    network.settle();

    let events = network.events(0, 0);
    assert_eq!(kinds(&events), [event::REPLY_END]);
    assert_eq!(events[0].failure, failure::NODE);
}

#[test]
fn end_of_an_incarnation_fails_no_get_to_the_next_one_while_the_kernel_takes_no_events() {
    let mut network = Network::new(3, 4, 1);
    network.start_all();
    network.start_host_based(0, 1);
    network.start_host_based(2, 1);
    let descriptor = network.bind(0, 0);
    let far = |node| Command {
        kind: command::GET,
        handle: descriptor,
        length: 100,
        offset: SEND,
        node,
        portal: 4,
        ..Command::default()
    };

    // The queue of node 0's kernel is full.
    for token in 0..KERNEL_EVENTS {
        let send = KernelCommand { target: 1, ..Network::host_send(token, 1, 0, SEND, 8) };
        assert_eq!(network.kernel(2, send).code, code::OK);
        network.settle();
        network.kernel_events(2);
    }
    assert_eq!(network.process(0, 0, far(2)).code, code::OK);
    network.settle();

    // Node 1 begins another incarnation, and the kernel cannot be told yet.
    network.detach(1, 0);
    network.settle();
    network.boot(1);
    network.start(1, 0);
    network.receive_all(1, 0);
    network.settle();
    assert_eq!(network.process(0, 0, Command { offset: 0, ..far(1) }).code, code::OK);
    network.settle();
    let events = network.events(0, 0);
    assert_eq!(kinds(&events), [event::REPLY_END]);
    assert_eq!((events[0].node, events[0].failure), (1, 0));

    // The end of node 2 fails the get that waits for its reply.
    network.detach(2, 0);
    network.settle();
    let events = network.events(0, 0);
    assert_eq!(kinds(&events), [event::REPLY_END]);
    assert_eq!((events[0].node, events[0].failure), (2, failure::NODE));

    let ends = |events: &[nicforge_hwi::seastar::KernelEvent]| -> Vec<u32> {
        let ends = events.iter().filter(|event| event.kind == kernel_event::NODE_DOWN);
        ends.map(|event| event.token).collect()
    };
    assert!(ends(&network.kernel_events(0)).is_empty());
    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    assert_eq!(network.kernel(0, take).code, code::OK);
    network.settle();
    assert_eq!(ends(&network.kernel_events(0)), [1, 2]);
}

#[test]
fn implicitly_acknowledged_message_needs_no_control_message() {
    let settings = Settings { implicit_acknowledgements: true, ..Settings::default() };
    let mut network = Network::with(2, 4, 1, settings);
    network.start_all();
    let descriptor = network.bind(0, 0);
    network.put(0, 0, descriptor, Put::new(1, 2, 8));
    network.settle();
    assert_eq!(kinds(&network.events(0, 0)), [event::SEND_END]);
    assert_eq!(kinds(&network.events(1, 0)), [event::PUT_END]);
    assert_eq!(network.control_packets, 0);

    // After a long message, a short one is acknowledged.
    network.put(0, 0, descriptor, Put::new(1, 2, 80));
    network.put(0, 0, descriptor, Put::new(1, 2, 8));
    network.settle();
    assert_eq!(network.control_packets, 2);
}

#[test]
fn process_that_ends_keeps_its_place_in_line_without_its_data() {
    let (mut network, descriptor) = Network::pair(1);
    network.nodes[0].chip.memory(1)[SEND as usize..][..100].fill(0x11);
    let free = network.nodes[0].firmware.free_scratch();
    // The first message is dropped once, so that it must be sent again.
    network.drop_one_of = Some(1);
    network.drops_left = 1;
    for _ in 0..3 {
        network.put(0, 0, descriptor, Put::new(1, 2, 100));
    }
    while network.nodes[1].firmware.statistics().dropped == 0 {
        network.step();
    }

    network.detach(0, 1);
    network.settle();
    assert_eq!(network.nodes[0].firmware.pending(), 0);
    assert!(network.events(1, 0).is_empty());
    assert!(network.nodes[1].chip.memory(1)[RECEIVE as usize..][..100].iter().all(|byte| *byte == 0));

    // The kernel stops a process that has already ended, and the next process finds all memory
    // free.
    let stop = KernelCommand { kind: kernel_command::STOP_PROCESS, ..KernelCommand::default() };
    assert_eq!(network.kernel(0, stop).code, code::PROCESS_INVALID);
    network.start(0, 0);
    assert_eq!(network.nodes[0].firmware.free_scratch(), free);
    let descriptor = network.bind(0, 0);
    network.put(0, 0, descriptor, Put::new(1, 2, 100));
    network.settle();
    assert_eq!(kinds(&network.events(0, 0)), [event::SEND_END]);
}

#[test]
fn a_thousand_receives_fit_and_then_there_is_no_space() {
    let mut network = Network::new(2, 4, 1);
    network.boot(0);
    for process in 0..2 {
        network.start(0, process);
        let post = Command {
            kind: command::POST,
            handle: NO_HANDLE,
            portal: 4,
            node: u32::MAX,
            process: u16::MAX,
            start: RECEIVE,
            length: 64,
            threshold: THRESHOLD_INFINITE,
            options: option::OP_PUT,
            queue: NO_HANDLE,
            test_queue: NO_HANDLE,
            ..Command::default()
        };

        let mut posted = 0;
        while network.process(0, process, post).code == code::OK {
            posted += 1;
        }
        println!(
            "process {process}: {posted} receives, {} bytes left",
            network.nodes[0].firmware.free_scratch()
        );
        assert_eq!(network.process(0, process, post).code, code::NO_SPACE);
        assert!(posted >= 1000);
    }
}
