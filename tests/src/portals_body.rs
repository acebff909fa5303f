//! Test bodies of Portals: processes on two SeaStars, in both modes, through the library.
//!
//! Each body gets a machine of its own ([`machine`]): nodes `ss0` and `ss1`, each with the kernel
//! and two processes. A body that concerns messages runs in each mode in turn.
//!
//! - this file: data, events, streams, waits
//! - `matching.rs`: match lists, descriptors, access control
//! - `limits.rs`: how many receives can be posted, and what ends a full table
//! - `deaths.rs`: processes and nodes that end in the middle
//! - `hostile.rs`: a process that writes random commands into its mailbox
//! - `floods.rs`: processes that put and get without end, to one that has to answer

pub mod deaths;
pub mod floods;
pub mod hostile;
pub mod limits;
pub mod matching;

use std::sync::Arc;

use nicforge_core::machine::Machine;
use nicforge_driver::{Cancel, Deadline, Relax};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_portals::{
    Ack, Criteria, Descriptor, Error, Event, EventKind, EventQueue, Interface, Kernel, KernelConfig,
    MemoryDescriptor, Mode, Options, Position, ProcessId, Refusal, Region, Status, Target, Threshold, Unlink,
};
use nicforge_test_body::body;

use crate::{
    backing::{LIMIT, Rig, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine},
    pattern::pattern,
};

/// The machine of all bodies of Portals.
pub static MACHINE: TestMachine = TestMachine {
    name: "portals",
    make: machine,
    guests: Guests::Booted {
        attachments: &[(&["ss0", "ss1"], &["kernel", "p0", "p1"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim],
    },
};

/// The portal of most messages.
const PORTAL: u8 = 4;
/// Match bits of most messages.
const BITS: u64 = 0x1234_5678_9abc_def0;
/// Both modes.
const MODES: [Mode; 2] = [Mode::NicBased, Mode::HostBased];

/// Returns a machine of two nodes with two processes each.
pub fn machine() -> Machine {
    let text = "name = \"portals\"\n[[seastar]]\ntorus = [2]\nprocesses = 2\n";
    build(&parse(text, "portals.toml", &families()).unwrap()).unwrap().0
}

/// Boots a node.
fn kernel(rig: &dyn Rig, node: u32) -> Arc<Kernel> {
    Kernel::boot(rig.open(&format!("ss{node}"), "kernel"), KernelConfig::default()).unwrap()
}

/// A process with an event queue.
struct Process {
    interface: Interface,
    queue: EventQueue,
}

impl Process {
    /// Opens process `number` of a kernel's node.
    fn new(rig: &dyn Rig, kernel: &Arc<Kernel>, number: u16, mode: Mode) -> Self {
        let device = rig.open(&format!("ss{}", kernel.node()), &format!("p{number}"));
        let interface = Interface::open(kernel, device, mode).unwrap();
        let queue = interface.allocate_queue(1000).unwrap();
        Self { interface, queue }
    }

    /// Returns the process's id.
    fn id(&self) -> ProcessId {
        self.interface.id()
    }

    /// Allocates memory that messages can use.
    fn region(&self, bytes: u64) -> Region {
        self.interface.allocate(bytes).unwrap()
    }

    /// Returns a descriptor of all of a region, with the process's event queue.
    fn over<'a>(&'a self, region: &'a Region, options: Options) -> Descriptor<'a> {
        Descriptor { options, queue: Some(&self.queue), ..Descriptor::over(region) }
    }

    /// Posts a descriptor at the tail of [`PORTAL`], for messages with [`BITS`].
    fn post(&self, values: &Descriptor<'_>) -> MemoryDescriptor {
        self.post_for(Criteria::bits(BITS), values)
    }

    /// Posts a descriptor at the tail of [`PORTAL`], for messages that meet the criteria.
    fn post_for(&self, criteria: Criteria, values: &Descriptor<'_>) -> MemoryDescriptor {
        let posted = self.interface.post(Position::Tail(PORTAL), criteria, Unlink::Automatic, values, None);
        posted.unwrap().unwrap().1
    }

    /// Returns a descriptor for this process's own puts and gets.
    fn bind(&self, region: &Region) -> MemoryDescriptor {
        self.interface.bind_descriptor(&self.over(region, Options::empty())).unwrap()
    }

    /// Puts a range of a descriptor, from an offset and of a length, without an acknowledgement.
    fn put(&self, from: &MemoryDescriptor, range: (u64, u64), target: &Target) {
        self.interface.put_region(from, range.0, range.1, Ack::No, target, 0).unwrap();
    }
}

/// The processes that a body drives from its one thread, with their kernels.
struct Bench<'a> {
    processes: &'a [&'a Process],
}

impl Bench<'_> {
    /// Waits for the next event in a process's queue.
    fn wait_for_event(&self, process: &Process) -> Event {
        self.wait_for_event_in(&process.queue)
    }

    /// Waits for the next event in a queue.
    fn wait_for_event_in(&self, queue: &EventQueue) -> Event {
        self.wait_until("an event", || queue.get().unwrap())
    }

    /// Waits until `attempt` returns a value, and lets all kernels work meanwhile.
    fn wait_until<T>(&self, description: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
        let (deadline, mut relax) = (test_deadline(), Relax::new());
        loop {
            if let Some(value) = attempt() {
                return value;
            }
            assert!(!deadline.has_passed(), "not within {LIMIT:?}: {description}");

            for process in self.processes {
                process.interface.progress().unwrap();
            }
            self.processes[0].interface.device().relax(&mut relax).unwrap();
        }
    }

    /// Waits for as many events of a process as `kinds`, which may come in any order.
    fn wait_for_events(&self, process: &Process, kinds: &[EventKind]) -> Vec<Event> {
        let mut remaining = kinds.to_vec();
        let events: Vec<_> = kinds.iter().map(|_| self.wait_for_event(process)).collect();
        for event in &events {
            let position = remaining.iter().position(|kind| *kind == event.kind);
            remaining
                .remove(position.unwrap_or_else(|| panic!("unexpected {event:?}; awaited {remaining:?}")));
        }
        events
    }

    /// Waits until the status register of a process has a value.
    fn wait_for_status(&self, process: &Process, register: Status, value: u64) {
        self.wait_until("the count", || (process.interface.status(register).unwrap() == value).then_some(()));
    }
}

/// Calls a body in each mode, with a process on each node.
fn in_both_modes(rig: &dyn Rig, body: impl Fn(&Process, &Process, &Bench<'_>)) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    for mode in MODES {
        let (local, remote) =
            (Process::new(rig, &kernels[0], 0, mode), Process::new(rig, &kernels[1], 1, mode));
        body(&local, &remote, &Bench { processes: &[&local, &remote] });
    }
}

/// Returns sizes of messages up to `maximum`: those around the limits of a header, a packet and a
/// page.
fn sizes(maximum: u64) -> impl Iterator<Item = u64> {
    let all = [0, 1, 7, 15, 16, 17, 31, 63, 64, 65, 127, 4095, 4096, 4097, 65_535, 65_537, 1 << 20];
    all.into_iter().filter(move |&size| size <= maximum)
}

/// Puts of all sizes between odd addresses arrive, with the events of both sides.
#[body]
pub fn puts_of_all_sizes_arrive(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        const BYTES: u64 = (1 << 20) + 4096;
        let (source, sink) = (local.region(BYTES), remote.region(BYTES));
        let from = local.bind(&source);
        remote.post(&remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE));

        for (round, length) in (0..).zip(sizes(1 << 20)) {
            let (start, end) = (round * 3, 4001 - round * 5);
            let bytes = pattern(round, length as usize);
            source.write(start, &bytes).unwrap();
            let target = Target { offset: end, ..Target::new(remote.id(), PORTAL, BITS) };
            local.interface.put_region(&from, start, length, Ack::Requested, &target, round + 9).unwrap();

            let events = bench.wait_for_events(remote, &[EventKind::PutStart, EventKind::PutEnd]);
            assert_eq!(events[0].kind, EventKind::PutStart);
            assert_eq!((events[0].link, events[0].peer), (events[1].link, local.id()));
            let message = events[1].message;
            assert_eq!((message.moved, message.requested), (length as u32, length as u32));
            assert_eq!((message.offset, message.header_data), (end, round + 9));
            assert_eq!((message.match_bits, message.portal), (BITS, PORTAL));
            let mut arrived = vec![0; length as usize];
            sink.read(end, &mut arrived).unwrap();
            assert!(arrived == bytes, "{length} bytes from {start} to {end}");

            let kinds = [EventKind::SendStart, EventKind::SendEnd, EventKind::Ack];
            let events = bench.wait_for_events(local, &kinds);
            assert_eq!(events[0].kind, EventKind::SendStart);
            let ack = events.iter().find(|event| event.kind == EventKind::Ack).unwrap();
            assert_eq!((ack.message.moved, ack.message.offset), (length as u32, end));
            assert!(events.iter().all(|event| event.failure.is_none()));
        }
    });
}

/// Gets of all sizes fetch the data, with the events of both sides.
#[body]
pub fn gets_of_all_sizes_arrive(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, bench| {
        const BYTES: u64 = (1 << 20) + 4096;
        let (sink, source) = (local.region(BYTES), remote.region(BYTES));
        let into = local.bind(&sink);
        remote.post(&remote.over(&source, Options::GET | Options::MANAGE_REMOTE));

        for (round, length) in (0..).zip(sizes(1 << 20)) {
            let (start, end) = (round * 7, 2049 - round * 3);
            let bytes = pattern(round, length as usize);
            source.write(start, &bytes).unwrap();
            let target = Target { offset: start, ..Target::new(remote.id(), PORTAL, BITS) };
            local.interface.get_region(&into, end, length, &target).unwrap();

            let events = bench.wait_for_events(local, &[EventKind::ReplyStart, EventKind::ReplyEnd]);
            assert_eq!(events[0].kind, EventKind::ReplyStart);
            let message = events[1].message;
            assert_eq!((message.moved, message.requested), (length as u32, length as u32));
            assert_eq!((message.offset, events[1].descriptor), (end, into.id()));
            let mut arrived = vec![0; length as usize];
            sink.read(end, &mut arrived).unwrap();
            assert!(arrived == bytes, "{length} bytes from {start} to {end}");
            bench.wait_for_events(remote, &[EventKind::GetStart, EventKind::GetEnd]);
        }
    });
}

/// A stream of messages to several descriptors arrives in order, whole and once.
#[body]
pub fn a_stream_arrives_in_order(rig: &dyn Rig) {
    let count = u64::from(rig.repetitions(500));
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(1 << 16), remote.region(1 << 16));
        let from = local.bind(&source);
        let options = Options::PUT | Options::MANAGE_REMOTE | Options::TRUNCATE | Options::START_DISABLE;
        remote.post(&remote.over(&sink, options));
        let (mut sent, mut ended, mut arrived) = (0, 0, 0);

        bench.wait_until("all messages", || {
            if sent < count {
                let length = sent * 97 % 5000;
                let target = Target::new(remote.id(), PORTAL, BITS);
                match local.interface.put_region(&from, 0, length, Ack::No, &target, sent) {
                    Ok(()) => sent += 1,
                    Err(error) => assert_eq!(error.refusal(), Some(Refusal::NoSpace)),
                }
            }
            while let Some(event) = remote.queue.get().unwrap() {
                assert_eq!((event.message.header_data, event.failure), (arrived, None));
                assert_eq!(u64::from(event.message.moved), arrived * 97 % 5000);
                arrived += 1;
            }
            while let Some(event) = local.queue.get().unwrap() {
                ended += u64::from(event.kind == EventKind::SendEnd);
            }
            (arrived == count && ended == count).then_some(())
        });
        assert_eq!(remote.interface.status(Status::DropCount), Ok(0));
    });
}

/// Puts that are made without a pause arrive in order until the process has no room. A put from a
/// descriptor that was unlinked meanwhile is refused.
#[body]
pub fn puts_without_a_pause_arrive_until_there_is_no_room(rig: &dyn Rig) {
    // The queue of the receiver holds the events of all of them.
    const MAX: u64 = 900;
    in_both_modes(rig, |local, remote, bench| {
        let (source, sink) = (local.region(4096), remote.region(4096));
        let from = local.interface.bind_descriptor(&Descriptor::over(&source)).unwrap();
        remote.post(&remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE));
        let target = Target::new(remote.id(), PORTAL, BITS);

        for _ in 0..3 {
            let put = |number: &u64| {
                source.write(number % 8, &number.to_le_bytes()).unwrap();
                match local.interface.put_region(&from, number % 8, 8, Ack::No, &target, *number) {
                    Ok(()) => true,
                    Err(error) => {
                        assert_eq!(error.refusal(), Some(Refusal::NoSpace));
                        false
                    }
                }
            };
            // The receiver has had the events of the round before, but the sender's card may not
            // have made room yet.
            bench.wait_until("the card has room", || put(&0).then_some(()));
            let count = 1 + (1..MAX).take_while(&put).count() as u64;
            for number in 0..count {
                let event = bench.wait_for_event(remote);
                assert_eq!((event.message.header_data, event.failure), (number, None));
            }
        }

        bench.wait_until("the card processes all puts", || local.interface.unlink_descriptor(&from).ok());
        let unlinked = local.interface.put_region(&from, 0, 8, Ack::No, &target, 0).unwrap_err();
        assert_eq!(unlinked.refusal(), Some(Refusal::Descriptor));
    });
}

/// Two processes of a node, in different modes, and one of another node talk to each other and to
/// themselves.
#[body]
pub fn processes_of_a_node_talk_to_each_other(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let first = Process::new(rig, &kernels[0], 0, Mode::NicBased);
    let second = Process::new(rig, &kernels[0], 1, Mode::HostBased);
    let other = Process::new(rig, &kernels[1], 0, Mode::HostBased);
    let all = [&first, &second, &other];
    let bench = Bench { processes: &all };
    assert_eq!(first.interface.distance(first.id()), Ok(0));
    assert_eq!(first.interface.distance(second.id()), Ok(1));
    assert_eq!(first.interface.distance(other.id()), Ok(2));
    let missing_node = ProcessId { node: 2, process: 0 };
    assert_eq!(first.interface.distance(missing_node), Err(Error::NoSuchNode { node: 2, nodes: 2 }));

    for (number, from) in (0..).zip(all) {
        let source = from.region(4096);
        let bytes = pattern(number, 3000);
        source.write(0, &bytes).unwrap();
        let bound = from.bind(&source);

        for to in all {
            let sink = to.region(4096);
            let values = Descriptor {
                threshold: Threshold::Operations(1),
                unlink: Unlink::Automatic,
                ..to.over(&sink, Options::PUT | Options::START_DISABLE)
            };
            to.post(&values);
            let bound_now = if from.id() == to.id() { from.bind(&source) } else { bound.clone() };
            from.put(&bound_now, (0, 3000), &Target::new(to.id(), PORTAL, BITS));

            let is_end = |event: &Event| event.kind == EventKind::PutEnd;
            let end = std::iter::repeat_with(|| bench.wait_for_event(to)).find(is_end).unwrap();
            assert_eq!((end.peer, end.message.moved), (from.id(), 3000));
            let mut arrived = vec![0; 3000];
            sink.read(0, &mut arrived).unwrap();
            assert!(arrived == bytes);
        }
    }
}

/// Regions of pieces send and receive through the DMA engines' command lists.
#[body]
pub fn scattered_regions_use_command_lists(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let local = Process::new(rig, &kernels[0], 0, Mode::HostBased);
    let remote = Process::new(rig, &kernels[1], 0, Mode::HostBased);
    let bench = Bench { processes: &[&local, &remote] };
    let scattered = |process: &Process| process.interface.allocate_scattered(40 * 4096, 4096).unwrap();
    let (source, sink) = (scattered(&local), scattered(&remote));
    assert_eq!(source.pieces(), 40);
    let from = local.bind(&source);
    remote.post(
        &remote.over(&sink, Options::PUT | Options::GET | Options::MANAGE_REMOTE | Options::START_DISABLE),
    );

    for (round, length) in (0..).zip([5, 16, 4096, 8000, 20_000, 150_000]) {
        let (start, end) = (4090 + round, 8191 - round * 3);
        let bytes = pattern(round, length);
        source.write(start, &bytes).unwrap();
        let target = Target { offset: end, ..Target::new(remote.id(), PORTAL, BITS) };
        local.put(&from, (start, length as u64), &target);
        let event = bench.wait_for_event(&remote);
        assert_eq!((event.message.moved, event.failure), (length as u32, None));
        let mut arrived = vec![0; length];
        sink.read(end, &mut arrived).unwrap();
        assert!(arrived == bytes, "{length} bytes");
        bench.wait_for_events(&local, &[EventKind::SendStart, EventKind::SendEnd]);

        source.write(start, &vec![0; length]).unwrap();
        local.interface.get_region(&from, start, length as u64, &target).unwrap();
        bench.wait_for_events(&local, &[EventKind::ReplyStart, EventKind::ReplyEnd]);
        source.read(start, &mut arrived).unwrap();
        assert!(arrived == bytes, "{length} bytes back");
        assert_eq!(bench.wait_for_event(&remote).kind, EventKind::GetEnd);
    }
}

/// A put that needs a command list arrives while the kernel's own puts have as many lists as they
/// can have, and cannot end before it.
#[body]
pub fn a_scattered_put_arrives_while_sends_use_lists(rig: &dyn Rig) {
    // More puts than the kernel can have in flight, of more pieces than a command holds.
    const PUTS: usize = 200;
    const BYTES: u64 = 5 * 4096;
    const FEW: u64 = 100;
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let local = Process::new(rig, &kernels[0], 0, Mode::HostBased);
    let local_on_card = Process::new(rig, &kernels[0], 1, Mode::NicBased);
    let remote = Process::new(rig, &kernels[1], 0, Mode::HostBased);
    let remote_on_card = Process::new(rig, &kernels[1], 1, Mode::NicBased);
    let bench = Bench { processes: &[&local, &remote] };

    let [source, local_sink, remote_sink] =
        [&local, &local, &remote].map(|process| process.interface.allocate_scattered(BYTES, 4096).unwrap());
    for (process, sink) in [(&local, &local_sink), (&remote, &remote_sink)] {
        let options = Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE;
        process.post(&process.over(sink, options));
    }
    let from = local.interface.bind_descriptor(&Descriptor::over(&source)).unwrap();
    let from_card = [&local_on_card, &remote_on_card].map(|process| {
        let source = process.region(BYTES);
        source.write(0, &pattern(1, BYTES as usize)).unwrap();
        process.bind(&source)
    });
    source.write(0, &pattern(2, BYTES as usize)).unwrap();
    let [to_local, to_remote] = [&local, &remote].map(|process| Target::new(process.id(), PORTAL, BITS));

    // The remote kernel handles nothing yet: the first message keeps the others, and with them
    // their acknowledgements, until the put to the local process is on its way.
    local_on_card.put(&from_card[0], (0, FEW), &to_remote);
    let local_bench = Bench { processes: &[&local_on_card, &local] };
    local_bench.wait_for_events(&local_on_card, &[EventKind::SendStart, EventKind::SendEnd]);
    for _ in 0..PUTS {
        local.put(&from, (0, BYTES), &to_remote);
    }
    remote_on_card.put(&from_card[1], (0, BYTES), &to_local);
    rig.settle();

    assert_eq!(u64::from(bench.wait_for_event(&remote).message.moved), FEW);
    let arrivals = std::iter::once(&local).chain(std::iter::repeat_n(&remote, PUTS));
    for process in arrivals {
        let event = bench.wait_for_event(process);
        assert_eq!((u64::from(event.message.moved), event.failure), (BYTES, None));
    }
    for (seed, sink) in [(1, local_sink), (2, remote_sink)] {
        let mut arrived = vec![0; BYTES as usize];
        sink.read(0, &mut arrived).unwrap();
        assert!(arrived == pattern(seed, BYTES as usize));
    }
}

/// Calls that can't be carried out are refused with the reason.
#[body]
pub fn bad_calls_are_refused(rig: &dyn Rig) {
    in_both_modes(rig, |local, remote, _| {
        let region = local.region(4096);
        let bound = local.bind(&region);
        let target = Target::new(remote.id(), PORTAL, BITS);
        let put = |range: (u64, u64), target: &Target| {
            local.interface.put_region(&bound, range.0, range.1, Ack::No, target, 0).unwrap_err()
        };

        assert_eq!(put((4000, 97), &target), Error::OutOfRange { offset: 4000, length: 97, size: 4096 });
        assert_eq!(put((0, 1), &Target { portal: 64, ..target }).refusal(), Some(Refusal::Portal));
        assert_eq!(put((0, 1), &Target { access: 8, ..target }).refusal(), Some(Refusal::Access));
        let missing_node = Target::new(ProcessId { node: 7, process: 0 }, PORTAL, BITS);
        assert_eq!(put((0, 1), &missing_node), Error::NoSuchNode { node: 7, nodes: 2 });
        let too_many = local.interface.allocate_queue(70_000).unwrap_err();
        assert_eq!(too_many.refusal(), Some(Refusal::Segment));

        local.interface.unlink_descriptor(&bound).unwrap();
        assert_eq!(
            local.interface.unlink_descriptor(&bound).unwrap_err().refusal(),
            Some(Refusal::Descriptor)
        );
        let late = local.queue.wait(Deadline::now(), None).unwrap_err();
        assert!(late.is_interrupted());
    });
}

/// A kernel that serves on a thread of its own is woken by the card's interrupt, and handles the
/// messages of a process that makes no call. Its thread ends by its token.
#[body]
pub fn a_serving_kernel_is_woken_by_interrupts(rig: &dyn Rig) {
    let kernels = [kernel(rig, 0), kernel(rig, 1)];
    let local = Process::new(rig, &kernels[0], 0, Mode::NicBased);
    let remote = Process::new(rig, &kernels[1], 0, Mode::HostBased);
    let (source, sink) = (local.region(8192), remote.region(8192));
    let from = local.bind(&source);
    remote.post(&remote.over(&sink, Options::PUT | Options::MANAGE_REMOTE | Options::START_DISABLE));
    let (cancel, target) = (Cancel::new().unwrap(), Target::new(remote.id(), PORTAL, BITS));

    std::thread::scope(|scope| {
        let serving = scope.spawn(|| kernels[1].serve(&cancel));
        let bench = Bench { processes: &[&local] };
        for length in [8, 5000, 16, 17] {
            local.interface.put_region(&from, 0, length, Ack::Requested, &target, 0).unwrap();
            let kinds = [EventKind::SendStart, EventKind::SendEnd, EventKind::Ack];
            let events = bench.wait_for_events(&local, &kinds);
            assert!(events.iter().all(|event| event.failure.is_none()));
        }

        cancel.cancel();
        assert_eq!(serving.join().unwrap(), Ok(()));
    });
    assert_eq!(remote.queue.get().unwrap().unwrap().kind, EventKind::PutEnd);
}

/// Waits end by their token and by their deadline.
#[body]
pub fn waits_end_by_token_and_deadline(rig: &dyn Rig) {
    in_both_modes(rig, |local, _, _| {
        let cancel = Cancel::new().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| local.queue.wait(test_deadline(), Some(&cancel)));
            cancel.cancel();
            assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled { .. })));
        });

        let second = local.interface.allocate_queue(1).unwrap();
        let both = Interface::poll(&[&local.queue, &second], Deadline::now(), None);
        assert!(matches!(both, Err(Error::Timeout { .. })));
    });
}
