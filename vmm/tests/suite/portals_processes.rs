//! Portals between processes of a served machine, one of which is killed or reset in the middle of
//! messages.
//!
//! Without a restart, each message arrives exactly once and in order. With one, it arrives at most
//! once and in order, and what was cut fails. A message that was reported as sent may be lost: the
//! chapter about the SeaStar's flow control describes when.
//!
//! The test program itself is the process on node 1, when it runs only [`child_process_body`].

use std::{
    ffi::OsStr,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Device, OpenOptions};
use nicforge_portals::{
    Ack, Criteria, Descriptor, Error, Event, EventKind, EventQueue, Failure, Interface, Kernel, KernelConfig,
    MemoryDescriptor, Mode, Options, Position, ProcessId, Region, Target, Unlink,
};

use crate::{
    child_process::{ChildProcess, report},
    server::Server,
};

/// The longest wait.
const LIMIT: Duration = Duration::from_secs(30);
/// A machine of two nodes.
const MACHINE: &str = "name = \"portals\"\n[[seastar]]\ntorus = [2]\n";
/// The portal of all messages.
const PORTAL: u8 = 4;
/// Bytes of a message: dozens of packets.
const BYTES: u64 = 256 << 10;
/// Messages in flight.
const WINDOW: u64 = 8;
/// Number of times that a process ends in a test.
const ROUNDS: u64 = 6;
const MODES: [(Mode, &str); 2] = [(Mode::NicBased, "nic"), (Mode::HostBased, "host")];

fn test_deadline() -> Deadline {
    Deadline::after(LIMIT)
}

/// Opens an attachment. It retries, because the server notices the end of the previous client only
/// after some time.
fn open(directory: &Path, name: &str) -> Device {
    let started = Instant::now();
    loop {
        match Device::open_vfio_user(directory.join(name), OpenOptions::default()) {
            Ok(device) => return device,
            Err(error) => assert!(started.elapsed() < LIMIT, "{name}: {error}"),
        }
        crate::pause();
    }
}

/// Boots a node.
fn boot(directory: &Path, node: u32) -> Arc<Kernel> {
    let device = open(directory, &format!("admin/ss{node}.kernel"));
    Kernel::boot(device, KernelConfig::default()).unwrap()
}

/// Events that a queue holds: more than come while a process has no processor for seconds.
const QUEUE_EVENTS: u32 = 60_000;

/// A process with a queue, and with memory that messages are sent from and received into.
struct Process {
    interface: Interface,
    queue: EventQueue,
    memory: Region,
}

impl Process {
    /// Boots a node and opens its first process.
    fn open(directory: &Path, node: u32, mode: Mode) -> Self {
        let kernel = boot(directory, node);
        let device = open(directory, &format!("ss{node}.p0"));
        Self::of(Interface::open(&kernel, device, mode).unwrap())
    }

    fn of(interface: Interface) -> Self {
        let queue = interface.allocate_queue(QUEUE_EVENTS).unwrap();
        let memory = interface.allocate(BYTES).unwrap();
        Self { interface, queue, memory }
    }

    /// Returns the values of a descriptor of the memory, whose events go to the queue.
    fn descriptor(&self, options: Options) -> Descriptor<'_> {
        Descriptor {
            options: options | Options::START_DISABLE,
            queue: Some(&self.queue),
            ..Descriptor::over(&self.memory)
        }
    }

    /// Takes puts with any match bits, again and again.
    fn receive_all(&self) {
        let values = self.descriptor(Options::PUT | Options::MANAGE_REMOTE);
        let posted =
            self.interface.post(Position::Tail(PORTAL), Criteria::ALL, Unlink::Retain, &values, None);
        posted.unwrap().unwrap();
    }

    /// Binds a descriptor of the memory to send from.
    fn bind(&self) -> MemoryDescriptor {
        self.interface.bind_descriptor(&self.descriptor(Options::empty())).unwrap()
    }

    /// Sends message `number` of a round, without waiting for its end.
    fn put(&self, from: &MemoryDescriptor, node: u32, round: u64, number: u64) -> Result<(), Error> {
        let target = Target::new(ProcessId { node, process: 0 }, PORTAL, round);
        self.interface.put_region(from, 0, BYTES, Ack::No, &target, number)
    }

    /// Waits for the next event, which must be of this kind.
    fn event(&self, kind: EventKind) -> Event {
        let event = self.queue.wait(test_deadline(), None).unwrap();
        assert_eq!(event.kind, kind);
        event
    }
}

/// This is no test. It is the process on node 1, when the environment selects it.
#[test]
fn child_process_body() {
    let variable = |name: &str| std::env::var(format!("PORTALS_{name}")).unwrap_or_default();
    let Some(directory) = std::env::var_os("PORTALS_DIRECTORY") else { return };
    let directory = Path::new(&directory);
    let mode = if variable("MODE") == "host" { Mode::HostBased } else { Mode::NicBased };

    match variable("ROLE").as_str() {
        "receive" => receive(&Process::open(directory, 1, mode)),
        "attached" => {
            let device = open(directory, "ss1.p0");
            receive(&Process::of(Interface::attach(device, test_deadline()).unwrap()));
        }
        "send" => send(&Process::open(directory, 1, mode), variable("ROUND").parse().unwrap()),
        other => panic!("unknown role {other}"),
    }
}

/// Receives and reports messages until the node is gone.
fn receive(process: &Process) {
    process.receive_all();
    report("ready");

    loop {
        match process.queue.wait(test_deadline(), None) {
            Ok(event) if event.kind == EventKind::PutEnd && event.failure.is_none() => {
                report(format_args!("{} {}", event.message.match_bits, event.message.header_data));
            }
            Ok(event) => panic!("{event:?}"),
            Err(error) => {
                assert!(error.is_gone(), "{error}");
                report("gone");
                return;
            }
        }
    }
}

/// Sends messages of a round until the process is killed.
fn send(process: &Process, round: u64) {
    let from = process.bind();
    for number in 1.. {
        if number > WINDOW {
            assert_eq!(process.event(EventKind::SendEnd).failure, None);
        }
        process.put(&from, 0, round, number).unwrap();
    }
}

/// Starts the process on node 1 in a role.
fn start(directory: &Path, role: &str, mode: &str, round: u64) -> ChildProcess {
    let round = round.to_string();
    let variables: [(&str, &OsStr); 4] = [
        ("PORTALS_DIRECTORY", directory.as_ref()),
        ("PORTALS_ROLE", role.as_ref()),
        ("PORTALS_MODE", mode.as_ref()),
        ("PORTALS_ROUND", round.as_ref()),
    ];
    ChildProcess::start("portals_processes", &variables)
}

/// Messages of a round, as their receiver has reported them.
struct ArrivedMessages {
    round: u64,
    count: u64,
}

impl ArrivedMessages {
    /// Checks that a report names the next message of the round, and counts it.
    fn check_report(&mut self, line: &str) {
        if line != "gone" {
            self.count += 1;
            assert_eq!(line, format!("{} {}", self.round, self.count));
        }
    }
}

/// A stream of messages from node 0 to node 1.
struct Stream<'a> {
    process: &'a Process,
    from: &'a MemoryDescriptor,
    round: u64,
    /// Number of messages that were put, have ended, and have failed.
    put: u64,
    ended: u64,
    failed: u64,
}

impl<'a> Stream<'a> {
    fn new(process: &'a Process, from: &'a MemoryDescriptor, round: u64) -> Self {
        Self { process, from, round, put: 0, ended: 0, failed: 0 }
    }

    /// Sends messages until [`WINDOW`] are in flight.
    fn fill(&mut self) {
        while self.put - self.ended < WINDOW {
            self.put += 1;
            self.process.put(self.from, 1, self.round, self.put).unwrap();
        }
    }

    /// Takes the end of one message. After one that has failed, all that are in flight fail.
    fn await_send_end(&mut self) {
        let end = self.process.event(EventKind::SendEnd);
        self.ended += 1;
        self.failed += u64::from(end.failure.is_some());
        assert_eq!(end.failure, (self.failed > 0).then_some(Failure::Node), "message {}", self.ended);
    }

    /// Sends messages until the receiver has reported `count` of them.
    fn send_until_received(&mut self, child: &ChildProcess, arrived: &mut ArrivedMessages, count: u64) {
        let deadline = test_deadline();
        while arrived.count < count {
            assert!(!deadline.has_passed(), "{} of {count} messages have come", arrived.count);
            self.fill();
            self.await_send_end();
            assert_eq!(self.failed, 0);
            while let Some(line) = child.next() {
                arrived.check_report(&line);
            }
        }
    }

    /// Sends messages until one fails because the node is lost, and waits for the ends of all.
    fn send_until_node_is_lost(&mut self) {
        while self.failed == 0 {
            self.fill();
            self.await_send_end();
        }
        while self.ended < self.put {
            self.await_send_end();
        }
    }
}

/// Lets `end` end the receiver again and again while messages come, and checks what has arrived.
/// `end` returns the receiver's last reports.
fn check_ended_receivers(end: impl Fn(&Server, ChildProcess) -> Vec<String>) {
    for (mode, mode_name) in MODES {
        let server = Server::of_text(MACHINE, "auto");
        let directory = server.directory();
        let local = Process::open(&directory, 0, mode);
        let from = local.bind();

        for round in 1..=ROUNDS {
            let child = start(&directory, "receive", mode_name, round);
            child.expect("ready");
            let (mut stream, mut arrived) =
                (Stream::new(&local, &from, round), ArrivedMessages { round, count: 0 });
            // The first one ends before a message has arrived.
            stream.fill();
            stream.send_until_received(&child, &mut arrived, (round - 1) * 3);

            let last = end(&server, child);
            stream.send_until_node_is_lost();
            last.iter().for_each(|line| arrived.check_report(line));
            assert!(arrived.count <= stream.put);
        }
    }
}

#[test]
fn killed_receiver_gets_each_message_at_most_once_and_its_successor_none_of_them() {
    check_ended_receivers(|_, mut child| child.kill());
}

#[test]
fn reset_receiver_gets_each_message_at_most_once_and_its_successor_none_of_them() {
    check_ended_receivers(|server, child| {
        let reset = Command::new(env!("CARGO_BIN_EXE_nicforge"))
            .args([OsStr::new("reset"), server.directory().as_os_str(), OsStr::new("ss1")])
            .status();
        assert!(reset.unwrap().success());
        child.finish()
    });
}

#[test]
fn messages_of_a_killed_sender_arrive_at_most_once_and_the_cut_ones_fail() {
    for (mode, mode_name) in MODES {
        let server = Server::of_text(MACHINE, "auto");
        let directory = server.directory();
        let local = Process::open(&directory, 0, mode);
        local.receive_all();

        // Round and number of the last message, and whether it was cut.
        let (mut round, mut number, mut is_cut) = (0, 0, false);
        for current in 1..=ROUNDS {
            let mut child = start(&directory, "send", mode_name, current);
            loop {
                let Event { message, failure, .. } = local.event(EventKind::PutEnd);
                if message.match_bits != round {
                    // No message of a previous sender comes after the first one of its successor.
                    assert_eq!((round, message.match_bits), (current - 1, current));
                    (round, number, is_cut) = (current, 0, false);
                }
                number += 1;
                assert_eq!(message.header_data, number);
                // The card may begin more of the dead process's messages. All of them fail.
                assert!(!is_cut || failure.is_some(), "message {number} came whole after a cut one");
                is_cut = failure.is_some();

                if is_cut {
                    assert_eq!((failure, round), (Some(Failure::Data), current - 1));
                } else if round == current && number == 1 + 3 * current {
                    break;
                }
            }
            child.kill();
        }
    }
}

#[test]
fn without_a_restart_each_message_arrives_exactly_once() {
    for (mode, mode_name) in MODES {
        let server = Server::of_text(MACHINE, "auto");
        let directory = server.directory();
        let local = Process::open(&directory, 0, mode);
        let from = local.bind();
        let child = start(&directory, "receive", mode_name, 1);
        child.expect("ready");

        let mut stream = Stream::new(&local, &from, 1);
        stream.send_until_received(&child, &mut ArrivedMessages { round: 1, count: 0 }, 100);
        while stream.ended < stream.put {
            stream.await_send_end();
        }
        assert_eq!(stream.failed, 0);
    }
}

#[test]
fn programs_without_a_kernel_use_a_granted_process_one_after_the_other() {
    let server = Server::of_text(MACHINE, "auto");
    let directory = server.directory();
    let local = Process::open(&directory, 0, Mode::NicBased);
    let from = local.bind();
    let kernel = boot(&directory, 1);
    let attach = |deadline| Interface::attach(open(&directory, "ss1.p0"), deadline).map(drop);
    let refused = attach(Deadline::after(Duration::from_millis(20)));
    assert!(matches!(refused, Err(Error::Refused { call: "PtlNIInit", .. })), "{refused:?}");

    kernel.grant(0).unwrap();
    assert!(matches!(kernel.grant(0), Err(Error::Refused { .. })));
    for round in 1..=ROUNDS {
        let mut child = start(&directory, "attached", "nic", round);
        child.expect("ready");
        let (mut stream, mut arrived) =
            (Stream::new(&local, &from, round), ArrivedMessages { round, count: 0 });
        stream.send_until_received(&child, &mut arrived, 3 * round);

        // The node keeps running: messages to the process that has ended are dropped.
        stream.fill();
        child.kill().iter().for_each(|line| arrived.check_report(line));
        stream.fill();
        while stream.ended < stream.put {
            stream.await_send_end();
        }
        assert_eq!(stream.failed, 0);
    }

    // Without its kernel, the node ends, and a message to it fails.
    drop(kernel);
    let mut stream = Stream::new(&local, &from, 0);
    stream.send_until_node_is_lost();
    let refused = attach(Deadline::after(Duration::from_millis(20)));
    assert!(matches!(refused, Err(Error::Refused { call: "PtlNIInit", .. })), "{refused:?}");
}
