//! Clients of a process, one after the other.

use nicforge_hwi::seastar::{
    Command, KERNEL, KernelCommand, MAX_RANGES, Piece, code, command, event, kernel_command, kernel_flag,
    option,
};

use crate::network::{EVENTS, MAPPED, Network, Put, QUEUE, RECEIVE, SEND};

/// The kernel's command that grants process 0.
fn grant() -> KernelCommand {
    let mut grant = KernelCommand {
        kind: kernel_command::START_PROCESS,
        flags: kernel_flag::PERMANENT,
        count: 1,
        ..KernelCommand::default()
    };
    grant.pieces[0] = Piece { address: 0, length: MAPPED as u32, attachment: 1, reserved: 0 };
    grant
}

/// Attaches a client to process 0 of a node, and allocates its queue.
fn attach(network: &mut Network, node: u32) {
    network.attach(node, 1);
    let allocate =
        Command { kind: command::ALLOCATE_QUEUE, start: QUEUE, length: EVENTS, ..Command::default() };
    let result = network.process(node, 0, allocate);
    assert_eq!(result.code, code::OK);
    network.nodes[node as usize].queues.insert(0, result.value as u32);
}

/// Returns a network whose process 0 of node 0 is permanent, and whose node 1 answers gets.
fn granted() -> Network {
    let mut network = Network::new(2, 4, 3);
    network.boot(0);
    network.boot(1);
    network.start(1, 0);
    network.receive_all(1, 0);
    assert_eq!(network.kernel(0, grant()).code, code::OK);
    attach(&mut network, 0);
    network.settle();
    network
}

#[test]
fn permanent_process_begins_anew_without_what_its_client_had() {
    let mut network = granted();
    let from = network.bind(1, 0);
    let free = network.nodes[0].firmware.free_scratch();

    for round in 0..3 {
        network.receive_all(0, 0);
        network.put(1, 0, from, Put::new(0, round, 500));
        network.settle();
        assert_eq!(network.events(0, 0).len(), 1);

        network.detach(0, 1);
        attach(&mut network, 0);
        // The receive of the former client has ended with it.
        network.put(1, 0, from, Put::new(0, round, 500));
        network.settle();
        assert!(network.events(0, 0).is_empty());
        assert!(network.nodes[0].chip.memory(1)[RECEIVE as usize..][..500].iter().all(|byte| *byte == 0));
        assert_eq!(network.nodes[0].firmware.free_scratch(), free);
    }

    // Its address map stays that of the grant.
    let outside = Command { kind: command::BIND_DESCRIPTOR, start: MAPPED, length: 1, ..Command::default() };
    assert_eq!(network.process(0, 0, outside).code, code::SEGMENT_VIOLATION);
}

#[test]
fn permanent_process_ends_by_the_kernels_command_and_with_the_kernel() {
    let stop = KernelCommand { kind: kernel_command::STOP_PROCESS, ..KernelCommand::default() };
    let status = Command { kind: command::STATUS, ..Command::default() };
    let mut network = granted();

    assert_eq!(network.kernel(0, stop).code, code::OK);
    assert_eq!(network.process(0, 0, status).code, code::NO_INTERFACE);
    network.detach(0, 1);
    network.attach(0, 1);
    assert_eq!(network.process(0, 0, status).code, code::NO_INTERFACE);

    assert_eq!(network.kernel(0, grant()).code, code::OK);
    assert_eq!(network.process(0, 0, status).code, code::OK);
    network.detach(0, KERNEL);
    assert_eq!(network.process(0, 0, status).code, code::NO_INTERFACE);
}

#[test]
fn grants_of_wrong_processes_and_modes_are_refused() {
    let mut network = granted();
    assert_eq!(network.kernel(0, grant()).code, code::PROCESS_INVALID);
    assert_eq!(network.kernel(0, KernelCommand { process: 2, ..grant() }).code, code::PROCESS_INVALID);
    let host_based = KernelCommand {
        process: 1,
        flags: kernel_flag::PERMANENT | kernel_flag::HOST_BASED,
        count: 0,
        pieces: Default::default(),
        ..grant()
    };
    assert_eq!(network.kernel(0, host_based).code, code::PROCESS_INVALID);
    assert_eq!(
        network.kernel(0, KernelCommand { process: 1, flags: 4, ..grant() }).code,
        code::PROCESS_INVALID
    );

    // The map has as many ranges as that of another process.
    let map = KernelCommand { kind: kernel_command::MAP, flags: 0, ..grant() };
    for _ in 1..MAX_RANGES {
        assert_eq!(network.kernel(0, map).code, code::OK);
    }
    assert_eq!(network.kernel(0, map).code, code::NO_SPACE);
}

/// Delivers a message of node 0. Packets that node 1 sends then wait there.
fn deliver(network: &mut Network) {
    while network.nodes[0].firmware.pending() > 0 || network.nodes[1].firmware.pending() == 0 {
        network.poll(0);
        network.begin(0, 1);
        network.finish_sending(0);
        network.poll(1);
        network.answer(1, 0);
    }
}

#[test]
fn reply_for_a_former_client_does_not_reach_the_next_one() {
    let mut network = granted();
    let get = |network: &mut Network| {
        let descriptor = network.bind(0, 0);
        let get = Command {
            kind: command::GET,
            handle: descriptor,
            length: 100,
            node: 1,
            portal: 4,
            ..Command::default()
        };
        assert_eq!(network.process(0, 0, get).code, code::OK);
    };

    // The reply to the first client is on its way.
    network.nodes[1].chip.memory(1)[RECEIVE as usize..][..100].fill(0x11);
    get(&mut network);
    deliver(&mut network);

    network.start_sending(1);

    // The next client sends the same get, and other data are its answer.
    network.detach(0, 1);
    attach(&mut network, 0);
    get(&mut network);
    network.nodes[1].chip.memory(1)[RECEIVE as usize..][..100].fill(0x22);
    network.settle();

    let events = network.events(0, 0);
    assert_eq!(
        events.iter().map(|event| (event.kind, event.failure)).collect::<Vec<_>>(),
        [(event::REPLY_END, 0)]
    );
    let memory = &network.nodes[0].chip.memory(1)[SEND as usize..][..100];
    assert!(memory.iter().all(|byte| *byte == 0x22), "{memory:?}");
}

#[test]
fn acknowledgement_for_a_former_client_does_not_reach_the_next_one() {
    let mut network = granted();
    let descriptor = network.bind(0, 0);
    network.put(0, 0, descriptor, Put { options: option::ACK, ..Put::new(1, 5, 8) });
    deliver(&mut network);

    network.detach(0, 1);
    attach(&mut network, 0);
    network.bind(0, 0);
    network.settle();
    assert!(network.events(0, 0).is_empty());
}
