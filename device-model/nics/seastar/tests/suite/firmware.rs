//! The device with its own firmware: puts between processes in NIC-based mode.

use std::{task::Waker, time::Instant};

use nicforge_core::{companion::CompanionMode, machine::Next};
use nicforge_hwi::seastar::{
    Command, Event, KERNEL, KernelCommand, NO_HANDLE, THRESHOLD_INFINITE, code, command, event, failure,
    kernel_command, mirror, option,
};
use nicforge_kit::Clock;
use nicforge_seastar::{Network, Options, SeaStar};
use nicforge_seastar_firmware::firmware::{Firmware, Settings};
use nicforge_test_kit::{BUDGET, Testbed};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{BOTH, LONG, MEMORY, MEMORY_BYTES, User, pattern, piece};

/// Places in the memory of a process.
const QUEUE: usize = 0;
const SEND: usize = 1 << 20;
const RECEIVE: usize = 2 << 20;
/// Bytes of each buffer.
const BUFFER: usize = 1 << 20;
/// Events of a queue.
const EVENTS: u64 = 64;

/// A process with its node's kernel.
struct Node {
    kernel: User,
    process: User,
    queue: u32,
    /// The descriptor to send from.
    descriptor: u32,
    /// Events taken.
    taken: u32,
}

struct Rig {
    bed: Testbed,
    nodes: Vec<Node>,
    network: Network,
}

impl Rig {
    fn new(mode: CompanionMode, nodes: u32, options: Options) -> Self {
        let network = Network::torus(&[nodes], &[], options).unwrap();
        let mut bed = Testbed::new();
        bed.set_companions(mode, Waker::noop().clone());
        bed.set_companion_limit(LONG.as_nanos() as u64);

        let settings = Settings { timeout: 50_000_000, ..Settings::default() };
        let functions: Vec<_> = (0..nodes)
            .map(|node| {
                let device = SeaStar::new(&network, node, move |_| Firmware::new(settings)).unwrap();
                bed.add(&format!("s{node}"), device)
            })
            .collect();
        for cable in network.cables() {
            let ends = [cable.a, cable.b].map(|end| (functions[end.node as usize], end.port));
            bed.connect(ends[0], ends[1], network.options().link.clone());
        }

        let nodes = functions
            .into_iter()
            .map(|function| Node {
                kernel: User::attach(&mut bed, function, KERNEL),
                process: User::attach(&mut bed, function, 1),
                queue: 0,
                descriptor: 0,
                taken: 0,
            })
            .collect();
        let mut rig = Self { bed, nodes, network };
        (0..rig.network.nodes() as usize).for_each(|node| rig.start(node));
        rig
    }

    /// Boots a node, and starts its process with a queue, a buffer for puts, and one to send from.
    fn start(&mut self, node: usize) {
        let boot = KernelCommand {
            kind: kernel_command::BOOT,
            list: MEMORY,
            length: 64,
            ..KernelCommand::default()
        };
        self.kernel(node, boot);
        let mut start =
            KernelCommand { kind: kernel_command::START_PROCESS, count: 1, ..KernelCommand::default() };
        start.pieces[0] = piece(1, 0, MEMORY_BYTES);
        self.kernel(node, start);

        let at = |offset: usize| MEMORY + offset as u64;
        let allocate =
            Command { kind: command::ALLOCATE_QUEUE, start: at(QUEUE), length: EVENTS, ..Command::default() };
        self.nodes[node].queue = self.process(node, allocate) as u32;
        let queue = self.nodes[node].queue;
        let post = Command {
            kind: command::POST,
            handle: NO_HANDLE,
            portal: 4,
            node: u32::MAX,
            process: u16::MAX,
            ignore_bits: u64::MAX,
            start: at(RECEIVE),
            length: BUFFER as u64,
            threshold: THRESHOLD_INFINITE,
            options: option::OP_PUT | option::OP_GET | option::MANAGE_REMOTE | option::START_DISABLE,
            queue,
            test_queue: NO_HANDLE,
            ..Command::default()
        };
        self.process(node, post);
        let bind = Command {
            kind: command::BIND_DESCRIPTOR,
            start: at(SEND),
            length: BUFFER as u64,
            threshold: THRESHOLD_INFINITE,
            options: option::START_DISABLE,
            queue,
            ..Command::default()
        };
        self.nodes[node].descriptor = self.process(node, bind) as u32;
    }

    fn until<T>(&mut self, mut condition: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + LONG;
        self.bed.rescan();
        loop {
            if let Some(value) = condition(self) {
                return value;
            }
            assert!(Instant::now() < deadline, "not in time");

            let (now, next) = (self.bed.now(), self.bed.step(BUDGET));
            let soon = self.bed.fabric().next_event().min(now.after(1_000));
            match next {
                Next::Now => {}
                Next::Poll => self.bed.advance_to(soon),
                Next::At(time) => self.bed.advance_to(time.min(soon)),
            }
            std::thread::yield_now();
        }
    }

    fn kernel(&mut self, node: usize, command: KernelCommand) {
        let number = self.nodes[node].kernel.post(command.as_bytes().try_into().unwrap());
        let (code, _) = self.until(|rig| rig.nodes[node].kernel.answer(number));
        assert_eq!(code, code::OK);
    }

    fn process(&mut self, node: usize, command: Command) -> u64 {
        let number = self.nodes[node].process.post(command.as_bytes().try_into().unwrap());
        let (code, value) = self.until(|rig| rig.nodes[node].process.answer(number));
        assert_eq!(code, code::OK);
        value
    }

    /// Puts the first bytes of a node's send buffer to the start of another's receive buffer.
    fn put(&mut self, from: usize, to: usize, length: usize, match_bits: u64) {
        let handle = self.nodes[from].descriptor;
        let put = Command {
            kind: command::PUT,
            handle,
            length: length as u64,
            node: to as u32,
            portal: 4,
            match_bits,
            ..Command::default()
        };
        self.process(from, put);
    }

    /// Waits for the next event of a node's process.
    fn event(&mut self, node: usize) -> Event {
        self.until(|rig| {
            let Node { process, taken, .. } = &mut rig.nodes[node];
            let slot = QUEUE + (u64::from(*taken) % EVENTS) as usize * 64;
            let event = Event::read_from_bytes(&process.read(slot, 64)).unwrap();
            let is_there = event.number == taken.wrapping_add(1);
            is_there.then(|| {
                *taken += 1;
                event
            })
        })
    }

    fn check_put(&mut self, from: usize, to: usize, length: usize) {
        let data = pattern(length + from, length);
        self.nodes[from].process.write(SEND, &data);
        self.put(from, to, length, length as u64);

        let (received, sent) = (self.event(to), self.event(from));
        assert_eq!((received.kind, received.failure, received.moved), (event::PUT_END, 0, length as u32));
        assert_eq!((received.match_bits, received.node), (length as u64, from as u32));
        assert_eq!((sent.kind, sent.failure), (event::SEND_END, 0));
        let is_same = self.nodes[to].process.read(RECEIVE, length) == data;
        assert!(is_same, "{length} bytes from node {from} to node {to}");
    }
}

const LENGTHS: [usize; 9] = [0, 1, 15, 16, 17, 64, 8192, 8193, 1 << 20];

#[test]
fn puts_of_all_lengths_arrive() {
    for mode in BOTH {
        let mut rig = Rig::new(mode, 2, Options::default());
        for length in LENGTHS {
            rig.check_put(0, 1, length);
            rig.check_put(1, 0, length);
        }
    }
}

#[test]
fn puts_arrive_with_the_times_of_the_paper() {
    let mut options = Options { clock: Clock::of_mhz(500), host_rate: 2400, ..Options::default() };
    options.link.bits_per_second = 20_000_000_000;
    options.link.delay = 30;
    options.link.cut_through = Some(16);
    let mut rig = Rig::new(CompanionMode::Stepped, 4, options);
    for length in [0, 16, 17, 5000] {
        rig.check_put(0, 2, length);
        rig.check_put(3, 1, length);
        rig.check_put(1, 0, length);
    }
}

#[test]
fn put_to_a_node_whose_function_was_reset_fails_and_its_next_incarnation_works() {
    for mode in BOTH {
        let mut rig = Rig::new(mode, 3, Options::default());
        rig.check_put(0, 1, 1000);

        rig.bed.reset_function(rig.nodes[1].kernel.client.function).unwrap();
        for user in [KERNEL, 1] {
            let node = &mut rig.nodes[1];
            let user = if user == KERNEL { &mut node.kernel } else { &mut node.process };
            user.restart();
            user.client.enable_bus_master(&mut rig.bed);
        }
        rig.put(0, 1, 1000, 5);
        let failed = rig.event(0);
        assert_eq!((failed.kind, failed.failure), (event::SEND_END, failure::NODE));
        rig.check_put(0, 2, 100_000);

        rig.nodes[1].process.write(QUEUE, &[0; 64 * EVENTS as usize]);
        rig.nodes[1].taken = 0;
        rig.start(1);
        assert_eq!(rig.nodes[1].kernel.shown(mirror::EPOCH), 2);
        rig.check_put(0, 1, 100_000);
        rig.check_put(1, 0, 100_000);
    }
}
