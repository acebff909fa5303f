//! Commands that are refused, and mailboxes full of random bytes.

use nicforge_hwi::seastar::{
    COMMAND_BYTES, Command, KERNEL, KernelCommand, MAX_MESSAGE, NO_HANDLE, Piece, code, command,
    kernel_command,
};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::network::{KERNEL_EVENTS, KERNEL_QUEUE, MAPPED, Network, Put, QUEUE, SEND};

fn started() -> Network {
    let mut network = Network::new(2, 4, 1);
    network.start_all();
    network
}

#[test]
fn each_wrong_command_of_a_process_has_its_code() {
    let mut network = started();
    let descriptor = network.bind(0, 0);
    let queue = network.nodes[0].queues[&0];
    let put = Command {
        kind: command::PUT,
        handle: descriptor,
        length: 8,
        node: 1,
        portal: 4,
        ..Command::default()
    };
    let bind = Command {
        kind: command::BIND_DESCRIPTOR,
        start: SEND,
        length: 64,
        threshold: 1,
        queue: NO_HANDLE,
        ..Command::default()
    };
    let allocate = Command { kind: command::ALLOCATE_QUEUE, start: QUEUE, length: 2, ..Command::default() };
    let attach = Command { kind: command::ATTACH_ENTRY, ..Command::default() };

    let table = [
        (Command { kind: 0, ..put }, code::COMMAND_INVALID),
        (Command { kind: 99, ..Command::default() }, code::COMMAND_INVALID),
        (Command { reserved: [1, 0], ..put }, code::COMMAND_INVALID),
        (Command { start: SEND, ..put }, code::COMMAND_INVALID),
        (Command { options: u16::MAX, ..put }, code::COMMAND_INVALID),
        (Command { header_data: 1, kind: command::GET, ..put }, code::COMMAND_INVALID),
        (Command { handle: 12345, ..put }, code::DESCRIPTOR_INVALID),
        (Command { node: 2, ..put }, code::PROCESS_INVALID),
        (Command { node: u32::MAX, ..put }, code::PROCESS_INVALID),
        (Command { process: u16::MAX, ..put }, code::PROCESS_INVALID),
        (Command { portal: 64, ..put }, code::PORTAL_INVALID),
        (Command { access: 8, ..put }, code::ACCESS_INVALID),
        (Command { local_offset: MAPPED, ..put }, code::DESCRIPTOR_ILLEGAL),
        (Command { length: u64::from(MAX_MESSAGE) + 1, ..put }, code::SEGMENT_VIOLATION),
        (Command { start: MAPPED - 8, ..bind }, code::SEGMENT_VIOLATION),
        (Command { start: u64::MAX - 8, ..bind }, code::SEGMENT_VIOLATION),
        (Command { threshold: -2, ..bind }, code::DESCRIPTOR_ILLEGAL),
        (Command { queue: 999, ..bind }, code::QUEUE_INVALID),
        (Command { length: 3, ..allocate }, code::SEGMENT_VIOLATION),
        (Command { start: MAPPED, ..allocate }, code::SEGMENT_VIOLATION),
        (Command { length: u64::MAX, ..allocate }, code::SEGMENT_VIOLATION),
        (Command { portal: 64, ..attach }, code::PORTAL_INVALID),
        (Command { kind: command::INSERT_ENTRY, handle: 999, ..attach }, code::ENTRY_INVALID),
        (Command { kind: command::UNLINK_ENTRY, handle: 999, ..Command::default() }, code::ENTRY_INVALID),
        (
            Command { kind: command::UNLINK_DESCRIPTOR, handle: 999, ..Command::default() },
            code::DESCRIPTOR_INVALID,
        ),
        (Command { kind: command::FREE_QUEUE, handle: 999, ..Command::default() }, code::QUEUE_INVALID),
        (Command { kind: command::FREE_QUEUE, handle: queue, ..Command::default() }, code::QUEUE_IN_USE),
        (Command { kind: command::SET_ACCESS, access: 8, ..Command::default() }, code::ACCESS_INVALID),
        (Command { kind: command::STATUS, handle: 2, ..Command::default() }, code::STATUS_INVALID),
    ];
    for (command, code) in table {
        assert_eq!(network.process(0, 0, command).code, code, "{command:?}");
    }

    // The other mailbox is one of no process. All this time the first one works.
    assert_eq!(network.process(0, 1, put).code, code::NO_INTERFACE);
    assert_eq!(network.put(0, 0, descriptor, Put::new(1, 0, 8)), code::OK);
    network.settle();
    assert_eq!(network.events(1, 0).len(), 1);
}

#[test]
fn each_wrong_command_of_the_kernel_has_its_code() {
    let mut network = started();
    let kind = |kind| KernelCommand { kind, ..KernelCommand::default() };
    let start = KernelCommand { process: 1, ..kind(kernel_command::START_PROCESS) };
    let mut foreign = KernelCommand { count: 1, ..start };
    foreign.pieces[0] = Piece { address: 0, length: 8, attachment: 1, reserved: 0 };
    let send = Network::host_send(0, 1, 1, 0, 8);

    let table = [
        (kind(0), code::COMMAND_INVALID),
        (kind(99), code::COMMAND_INVALID),
        (KernelCommand { token: 1, ..kind(kernel_command::TAKE) }, code::COMMAND_INVALID),
        (
            KernelCommand { list: KERNEL_QUEUE, length: KERNEL_EVENTS, ..kind(kernel_command::BOOT) },
            code::COMMAND_INVALID,
        ),
        (KernelCommand { length: 3, ..kind(kernel_command::BOOT) }, code::SEGMENT_VIOLATION),
        (KernelCommand { process: 2, ..start }, code::PROCESS_INVALID),
        (KernelCommand { process: 0, ..start }, code::PROCESS_INVALID),
        (KernelCommand { flags: 4, ..start }, code::PROCESS_INVALID),
        (KernelCommand { flags: 3, ..start }, code::PROCESS_INVALID),
        (KernelCommand { count: 5, ..start }, code::SEGMENT_VIOLATION),
        (foreign, code::SEGMENT_VIOLATION),
        (KernelCommand { flags: 1, ..foreign }, code::SEGMENT_VIOLATION),
        (KernelCommand { kind: kernel_command::MAP, ..foreign }, code::PROCESS_INVALID),
        (KernelCommand { process: 1, ..kind(kernel_command::STOP_PROCESS) }, code::PROCESS_INVALID),
        (send, code::PROCESS_INVALID),
        (kind(kernel_command::RECEIVE), code::TOKEN_INVALID),
    ];
    for (command, code) in table {
        assert_eq!(network.kernel(0, command).code, code, "{command:?}");
    }

    network.start_host_based(0, 1);
    let table = [
        (KernelCommand { node: 2, ..send }, code::PROCESS_INVALID),
        (KernelCommand { message: 16, ..send }, code::COMMAND_INVALID),
        (KernelCommand { message: 0, ..send }, code::COMMAND_INVALID),
        (KernelCommand { length: 9, ..send }, code::SEGMENT_VIOLATION),
        (KernelCommand { length: MAX_MESSAGE + 1, ..send }, code::SEGMENT_VIOLATION),
        (KernelCommand { count: 1025, ..send }, code::SEGMENT_VIOLATION),
    ];
    for (command, code) in table {
        assert_eq!(network.kernel(0, command).code, code, "{command:?}");
    }
    let boast = KernelCommand { taken: 9, ..kind(kernel_command::TAKE) };
    assert_eq!(network.ask(0, KERNEL, boast.as_bytes()).code, code::SEGMENT_VIOLATION);
}

#[test]
fn mailboxes_of_a_node_without_an_incarnation_have_no_interface() {
    let mut network = Network::new(1, 4, 1);

    let take = KernelCommand { kind: kernel_command::TAKE, ..KernelCommand::default() };
    assert_eq!(network.kernel(0, take).code, code::NO_INTERFACE);
    let status = Command { kind: command::STATUS, ..Command::default() };
    assert_eq!(network.process(0, 0, status).code, code::NO_INTERFACE);
    // A process that does not exist can't even be started.
    assert_eq!(network.process(0, 14, status).code, code::NO_INTERFACE);
}

/// Makes a command of a process from random numbers: most fields are plausible.
fn plausible(numbers: &[u8]) -> Command {
    let mut numbers = numbers.iter().copied().cycle();
    let mut pick = |values: &[u64]| values[usize::from(numbers.next().unwrap_or(0)) % values.len()];
    let mut command = Command {
        kind: pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11, 12, 12, 13, 13, 14]) as u16,
        ..Command::default()
    };
    let handles = [0x1_0000, 0x1_0001, 0x1_0002, 0x3_0000, 0x3_0001, u64::from(NO_HANDLE), 5];
    let places = [0, 0x1000, SEND, MAPPED - 64, MAPPED, u64::MAX - 10];
    let lengths = [0, 1, 2, 8, 16, 17, 64, 1000, MAPPED, u64::MAX];

    command.handle = pick(&handles) as u32;
    command.start = pick(&places);
    command.length = pick(&lengths);
    command.threshold = pick(&[0, 1, 2, u64::from(u32::MAX), 77]) as i32;
    command.options = pick(&[0, 0x04, 0x0c, 0x1c, 0x3e, 0x22, 0x400, 0x800, 0x1000, 0xffff]) as u16;
    command.queue = pick(&handles) as u32;
    command.test_queue = pick(&handles) as u32;
    command.node = pick(&[0, 1, 1, u64::from(u32::MAX)]) as u32;
    command.process = pick(&[0, 0, 1, u64::from(u16::MAX)]) as u16;
    command.portal = pick(&[4, 4, 0, 63, 64]) as u8;
    command.offset = pick(&lengths);
    command.local_offset = pick(&lengths);
    command.ignore_bits = pick(&[0, u64::MAX]);
    command.max_size = pick(&lengths);

    // Fields that the kind does not use are zero in most of the commands.
    if pick(&[0, 0, 0, 1]) == 0 {
        let (handle, kind, node, portal, options) =
            (command.handle, command.kind, command.node, command.portal, command.options);
        let process = command.process;
        match kind {
            command::ALLOCATE_QUEUE => {
                command =
                    Command { kind, start: command.start, length: command.length, ..Command::default() };
            }
            command::FREE_QUEUE | command::UNLINK_ENTRY | command::UNLINK_DESCRIPTOR | command::STATUS => {
                command = Command { kind, handle, ..Command::default() };
            }
            command::ATTACH_ENTRY | command::INSERT_ENTRY => {
                let handle = if kind == command::INSERT_ENTRY { handle } else { 0 };
                let ignore_bits = command.ignore_bits;
                command = Command {
                    kind,
                    handle,
                    portal,
                    node,
                    process,
                    ignore_bits,
                    options,
                    ..Command::default()
                };
            }
            command::PUT | command::GET => {
                let Command { length, local_offset, offset, .. } = command;
                command = Command {
                    kind,
                    handle,
                    length,
                    local_offset,
                    offset,
                    node,
                    process,
                    portal,
                    options,
                    ..Command::default()
                };
            }
            command::SET_ACCESS => {
                command = Command { kind, access: portal % 9, node, process, portal, ..Command::default() };
            }
            command::ATTACH_DESCRIPTOR | command::BIND_DESCRIPTOR => {
                let handle = if kind == command::ATTACH_DESCRIPTOR { handle } else { 0 };
                command = Command {
                    handle,
                    node: 0,
                    process: 0,
                    portal: 0,
                    offset: 0,
                    local_offset: 0,
                    ignore_bits: 0,
                    test_queue: 0,
                    ..command
                };
            }
            _ => {
                command.offset = 0;
                command.local_offset = 0;
            }
        }
    }
    command
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// A process fills its mailbox with random commands. The chip checks that nothing outside its
    /// map is read or written. The other process of the node is not disturbed.
    #[test]
    fn random_commands_of_a_process_access_only_its_memory_and_stop_no_other_process(
        commands in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 24), 1..80),
        seed in any::<u64>(),
    ) {
        let mut network = started();
        network.start(0, 1);
        let free = network.nodes[0].firmware.free_scratch();

        for numbers in &commands {
            let bytes = if numbers[0] < 16 {
                let mut bytes = [0; COMMAND_BYTES];
                for (place, byte) in bytes.iter_mut().enumerate() {
                    *byte = numbers[place % numbers.len()].wrapping_mul(place as u8);
                }
                Command::read_from_bytes(&bytes).unwrap()
            } else {
                plausible(&numbers[1..])
            };
            let result = network.process(0, 1, bytes);
            prop_assert!(result.code <= code::STATUS_INVALID);
            for _ in 0..seed % 64 {
                network.step();
            }
        }
        network.settle();
        prop_assert_eq!(network.nodes[0].firmware.free_scratch(), free);

        let descriptor = network.bind(0, 0);
        network.events(1, 0);
        prop_assert_eq!(network.put(0, 0, descriptor, Put::new(1, 1, 100)), code::OK);
        network.settle();
        prop_assert_eq!(network.events(0, 0).len(), 1);
    }

    /// Random bytes in the trusted mailbox: the firmware neither panics nor loses scratch memory.
    #[test]
    fn random_commands_of_the_kernel_do_not_panic(
        commands in proptest::collection::vec((0u16..9, proptest::collection::vec(0u8..6, 24)), 1..60),
    ) {
        let mut network = started();
        for (kind, numbers) in &commands {
            let mut command = KernelCommand { kind: *kind, ..KernelCommand::default() };
            command.process = u16::from(numbers[0] % 3);
            command.flags = numbers[1] / 3;
            command.message = numbers[2];
            command.target = u16::from(numbers[3] % 2);
            command.token = u32::from(numbers[4]) << 8 | u32::from(numbers[5]);
            command.count = u16::from(numbers[6] % 3);
            command.node = u32::from(numbers[7] / 2);
            command.length = u32::from(numbers[8]) * 16;
            for piece in &mut command.pieces[..usize::from(command.count)] {
                piece.address = u64::from(numbers[9]) << 62 | 0x1000;
                piece.length = u32::from(numbers[10]) * 32;
                piece.attachment = u16::from(numbers[11] % 2) * 2;
            }
            if numbers[12] > 0 && *kind != kernel_command::SEND && *kind != kernel_command::RECEIVE {
                (command.message, command.token, command.node, command.target, command.length) = (0, 0, 0, 0, 0);
                if *kind == kernel_command::STOP_PROCESS || *kind == kernel_command::TAKE {
                    command.pieces = Default::default();
                    (command.count, command.flags) = (0, 0);
                }
            }
            let result = network.kernel(0, command);
            prop_assert!(result.code <= code::STATUS_INVALID);
            network.step();
            network.kernel_events(0);
            network.kernel_events(1);
        }

        network.settle();
        prop_assert_eq!(network.nodes[0].firmware.pending(), 0);
    }
}
