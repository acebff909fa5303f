//! Processes in host-based mode: the kernel matches their messages.

use nicforge_hwi::seastar::{
    KERNEL, KernelCommand, KernelEvent, PIECES, Piece, code, failure, kernel_command, kernel_event, message,
};

use crate::network::{KERNEL_EVENTS, Network, RECEIVE, SEND};

fn started() -> Network {
    let mut network = Network::new(2, 4, 5);
    for node in 0..2 {
        network.boot(node);
        network.start_host_based(node, 1);
    }
    network.settle();
    network
}

/// Returns the kernel's command that receives a message at [`RECEIVE`] of its memory.
fn receive(token: u32, length: u32) -> KernelCommand {
    let mut pieces = [Piece::default(); PIECES];
    pieces[0] = Piece { address: RECEIVE, length, attachment: KERNEL, reserved: 0 };
    KernelCommand {
        kind: kernel_command::RECEIVE,
        token,
        length,
        count: 1,
        pieces,
        ..KernelCommand::default()
    }
}

fn summary(events: &[KernelEvent]) -> Vec<(u16, u32, u16)> {
    events.iter().map(|event| (event.kind, event.moved, event.failure)).collect()
}

#[test]
fn short_message_takes_one_interrupt() {
    let mut network = started();
    network.nodes[0].chip.memory(KERNEL)[SEND as usize..][..16].fill(0x42);

    let send = KernelCommand { target: 1, ..Network::host_send(77, 1, 1, SEND, 16) };
    assert_eq!(network.kernel(0, send).code, code::OK);
    network.settle();

    let arrived = network.kernel_events(1);
    assert_eq!(summary(&arrived), [(kernel_event::MESSAGE, 16, 0)]);
    assert_eq!(arrived[0].packet.inline, [0x42; 16]);
    let trusted = arrived[0].packet.trusted;
    assert_eq!((trusted.source_node, trusted.source_process, trusted.target_process), (0, 1, 1));
    assert_eq!(network.nodes[1].chip.interrupts, 1);

    let sent = network.kernel_events(0);
    assert_eq!(summary(&sent), [(kernel_event::SENT, 0, 0)]);
    assert_eq!(sent[0].token, 77);
}

#[test]
fn long_message_takes_two_interrupts_and_a_command() {
    let mut network = started();
    network.nodes[0].chip.memory(KERNEL)[SEND as usize..][..600].fill(0x42);
    let send = KernelCommand { target: 1, ..Network::host_send(77, 1, 1, SEND, 600) };
    network.kernel(0, send);
    network.settle();
    let arrived = network.kernel_events(1);
    assert_eq!(summary(&arrived), [(kernel_event::MESSAGE, 0, 0)]);

    // The sender is acknowledged before the data are in memory.
    assert_eq!(summary(&network.kernel_events(0)), [(kernel_event::SENT, 0, 0)]);

    assert_eq!(network.kernel(1, receive(arrived[0].token, 500)).code, code::OK);
    assert_eq!(network.kernel(1, receive(arrived[0].token, 500)).code, code::TOKEN_INVALID);
    network.settle();

    assert_eq!(summary(&network.kernel_events(1)), [(kernel_event::RECEIVED, 500, 0)]);
    assert_eq!(network.nodes[1].chip.interrupts, 2);
    let memory = &network.nodes[1].chip.memory(KERNEL)[RECEIVE as usize..][..600];
    assert_eq!(memory.iter().filter(|byte| **byte == 0x42).count(), 500);
}

#[test]
fn message_from_several_pieces_arrives_as_one() {
    let mut network = started();
    let mut send = KernelCommand { target: 1, count: 2, ..Network::host_send(1, 1, 1, SEND, 40) };
    send.length = 60;
    send.pieces[1] = Piece { address: SEND + 0x100, length: 20, attachment: KERNEL, reserved: 0 };
    network.nodes[0].chip.memory(KERNEL)[SEND as usize..][..40].fill(1);
    network.nodes[0].chip.memory(KERNEL)[SEND as usize + 0x100..][..20].fill(2);

    assert_eq!(network.kernel(0, send).code, code::OK);
    network.settle();
    let token = network.kernel_events(1)[0].token;
    network.kernel(1, receive(token, 60));
    network.settle();

    let memory = &network.nodes[1].chip.memory(KERNEL)[RECEIVE as usize..][..60];
    assert_eq!(memory, [[1; 20], [1; 20], [2; 20]].concat());
}

#[test]
fn memory_that_cannot_be_accessed_fails_the_message_at_both_ends() {
    for length in [8, 600] {
        let mut network = started();
        let send = KernelCommand { target: 1, ..Network::host_send(1, 1, 1, u64::MAX / 2, length) };

        assert_eq!(network.kernel(0, send).code, code::OK);
        network.settle();
        let arrived = network.kernel_events(1);
        if length > 16 {
            network.kernel(1, receive(arrived[0].token, length));
            network.settle();
        }

        let ends = if length > 16 { network.kernel_events(1) } else { arrived };
        assert_eq!(ends[0].failure, failure::DATA);
        assert_eq!(network.kernel_events(0)[0].failure, failure::MEMORY);
    }
}

#[test]
fn message_of_a_process_that_has_ended_carries_nothing_of_its_successor() {
    const CLIENT: u16 = 2;
    // The sender's timer never lets the network come to rest while a message waits.
    let run = |network: &mut Network| {
        for _ in 0..1000 {
            network.step();
        }
    };
    let mut network = started();
    network.attach(0, CLIENT);
    network.nodes[0].chip.memory(CLIENT)[SEND as usize..][..600].fill(0x42);

    // The receiver has no place for further events, so that the last message waits at the sender.
    for token in 0..KERNEL_EVENTS {
        let filler = KernelCommand { target: 1, ..Network::host_send(token, 1, 1, SEND, 8) };
        assert_eq!(network.kernel(0, filler).code, code::OK);
        run(&mut network);
        network.kernel_events(0);
    }
    let mut send = KernelCommand { target: 1, ..Network::host_send(77, 1, 1, SEND, 600) };
    send.pieces[0].attachment = CLIENT;
    assert_eq!(network.kernel(0, send).code, code::OK);
    run(&mut network);
    assert!(network.kernel_events(0).is_empty());

    // The process is replaced by another one, which has other data at the same address.
    network.detach(0, CLIENT);
    run(&mut network);
    network.attach(0, CLIENT);
    network.nodes[0].chip.memory(CLIENT)[SEND as usize..][..600].fill(0xcc);
    assert_eq!(network.kernel_events(1).len(), KERNEL_EVENTS as usize);
    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    assert_eq!(network.kernel(1, take).code, code::OK);
    network.settle();

    assert!(network.kernel_events(1).is_empty(), "the message arrived");
    let ended = network.kernel_events(0);
    assert_eq!(summary(&ended), [(kernel_event::SENT, 0, failure::MEMORY)]);
    assert_eq!(ended[0].token, 77);
}

#[test]
fn message_without_a_place_for_its_event_waits_at_the_sender() {
    let mut network = started();
    let count = KERNEL_EVENTS + 10;
    for token in 0..count {
        let send = KernelCommand { target: 1, ..Network::host_send(token, 1, 1, SEND, 8) };
        assert_eq!(network.kernel(0, send).code, code::OK, "message {token}");
        for _ in 0..1000 {
            network.step();
        }
        network.kernel_events(0);
    }
    assert_eq!(network.nodes[1].firmware.statistics().messages, u64::from(KERNEL_EVENTS));
    assert_eq!(network.kernel_events(1).len(), KERNEL_EVENTS as usize);

    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    assert_eq!(network.kernel(1, take).code, code::OK);
    network.settle();

    let rest = network.kernel_events(1);
    assert_eq!(rest.len(), 10);
    assert!(rest.iter().all(|event| event.packet.trusted.kind == message::PUT));
    assert_eq!(network.nodes[0].firmware.pending(), 0);
}

#[test]
fn stopped_process_discards_what_it_was_receiving() {
    let mut network = started();
    let send = KernelCommand { target: 1, ..Network::host_send(77, 1, 1, SEND, 600) };
    network.kernel(0, send);
    network.settle();
    let token = network.kernel_events(1)[0].token;

    let stop = KernelCommand { kind: kernel_command::STOP_PROCESS, process: 1, ..KernelCommand::default() };
    assert_eq!(network.kernel(1, stop).code, code::OK);
    network.settle();

    assert_eq!(network.kernel(1, receive(token, 600)).code, code::TOKEN_INVALID);
    assert!(network.kernel_events(1).is_empty());
    assert_eq!(network.nodes[1].chip.streams_in_use(), 0);
}

#[test]
fn message_with_a_destination_reports_its_end_although_its_process_has_stopped() {
    let mut network = started();
    let send = KernelCommand { target: 1, ..Network::host_send(77, 1, 1, SEND, 600) };
    network.kernel(0, send);
    while network.poll(0) {}
    network.begin(0, 1);
    while network.poll(1) {}
    let token = network.kernel_events(1)[0].token;

    // The data are still on their way. The kernel's command list is in use until their end.
    assert_eq!(network.kernel(1, receive(token, 600)).code, code::OK);
    let stop = KernelCommand { kind: kernel_command::STOP_PROCESS, process: 1, ..KernelCommand::default() };
    assert_eq!(network.kernel(1, stop).code, code::OK);
    network.settle();

    let ends = network.kernel_events(1);
    assert_eq!(summary(&ends), [(kernel_event::RECEIVED, 600, 0)]);
    assert_eq!(ends[0].token, token);
    assert_eq!(network.nodes[1].chip.streams_in_use(), 0);
}

#[test]
fn nodes_that_send_to_each_other_until_there_is_no_space_deliver_all() {
    let mut network = started();
    let mut sent = 0;
    for node in 0..2 {
        let send = |token| KernelCommand { target: 1, ..Network::host_send(token, 1, 1 - node, SEND, 8) };
        while network.kernel(node, send(sent)).code == code::OK {
            sent += 1;
            assert!(sent < 10 * KERNEL_EVENTS, "there is no limit");
        }
    }

    let mut kinds = Vec::new();
    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    network.settle_with(|network| {
        for node in 0..2 {
            let events = network.kernel_events(node);
            if !events.is_empty() {
                assert_eq!(network.kernel(node, take).code, code::OK);
            }
            kinds.extend(events.iter().map(|event| (event.kind, event.failure)));
        }
    });
    for kind in [kernel_event::MESSAGE, kernel_event::SENT] {
        assert_eq!(kinds.iter().filter(|event| **event == (kind, 0)).count() as u32, sent);
    }
}

#[test]
fn a_refused_node_waits_alone_and_its_answers_are_taken() {
    let mut network = Network::new(3, 4, 5);
    for node in 0..3 {
        network.boot(node);
        network.start_host_based(node, 1);
    }
    network.settle();
    // The sender's timer never lets the network come to rest while a message waits.
    let arrived = |network: &mut Network| {
        for _ in 0..2000 {
            network.step();
        }
        let events = network.kernel_events(0);
        let taken = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
        network.kernel(0, taken);
        events.iter().map(|event| (event.packet.trusted.source_node, event.packet.trusted.kind)).collect()
    };
    let send = |network: &mut Network, node, kind| {
        let command = KernelCommand { target: 1, message: kind, ..Network::host_send(7, 1, 0, SEND, 8) };
        assert_eq!(network.kernel(node, command).code, code::OK);
    };
    let set = |network: &mut Network, kind, node| {
        network.kernel(0, KernelCommand { kind, node, ..KernelCommand::default() }).code
    };

    assert_eq!(set(&mut network, kernel_command::REFUSE, 3), code::PROCESS_INVALID);
    assert_eq!(set(&mut network, kernel_command::REFUSE, 1), code::OK);
    send(&mut network, 1, message::REPLY);
    send(&mut network, 1, message::PORTALS_ACK);
    let found: Vec<_> = arrived(&mut network);
    assert_eq!(found, [(1, message::REPLY), (1, message::PORTALS_ACK)]);

    send(&mut network, 1, message::PUT);
    send(&mut network, 1, message::GET);
    send(&mut network, 2, message::PUT);
    send(&mut network, 2, message::GET);
    let found: Vec<_> = arrived(&mut network);
    assert_eq!(found, [(2, message::PUT), (2, message::GET)]);
    assert!(network.nodes[1].firmware.pending() == 2 && network.nodes[2].firmware.pending() == 0);

    // An answer overtakes the requests that wait.
    send(&mut network, 1, message::REPLY);
    network.settle_until(|network| network.nodes[1].firmware.pending() == 2);
    let found: Vec<_> = arrived(&mut network);
    assert_eq!(found, [(1, message::REPLY)]);

    assert_eq!(set(&mut network, kernel_command::ADMIT, 1), code::OK);
    network.settle();
    let found: Vec<_> = arrived(&mut network);
    assert_eq!(found, [(1, message::PUT), (1, message::GET)]);
    assert!(network.nodes.iter().all(|node| node.firmware.pending() == 0));
}
