//! Streams from core 0 of a compute node to its I/O node, and of memory-FIFO packets between nodes
//! of Blue Gene/Q.

use std::{sync::Barrier, time::Duration};

use nicforge_core::machine::Machine;
use nicforge_driver::{Deadline, Device, DmaBuffer};
use nicforge_engine::EngineConfig;
use nicforge_fcnp::{ComputeCore, Config, IoNode, tree::TreeChannel};
use nicforge_hwi::{
    tree::{Header, PAYLOAD},
    tree_dcr::REG_INT_ENABLE,
};
use nicforge_matching::{Taken, Transport};
use nicforge_mu_transport::{Config as TransportConfig, Job, MuTransport};
use nicforge_spi::{Descriptor, InjectionAttributes, MemoryFifo, Options, Payload, Subgroup, memory_fifo};
use nicforge_tests::{
    backing::{EventLoopKind, InProcess, Rig, Served},
    spi_body,
    tree_body::machine,
};

/// Number of packets, or posted writes, between the marks.
pub(crate) const PACKETS: usize = 100_000;
/// Number of packets before the first mark. After them, all buffers have their final sizes.
const WARM_UP: usize = 10_000;
/// Bytes of a message: the payload of 256 packets.
const MESSAGE: usize = 65_536;
/// Threads that call the library. Each passes both marks.
pub(crate) const CALLERS: u64 = 2;
/// Packets in a batch.
const BATCH: usize = 8;
/// Time limit of every wait, with or without a tracer.
const LIMIT: Duration = Duration::from_secs(120);

/// Time without room after which a network without a receiver counts as full.
const STALL: Duration = Duration::from_millis(200);

/// How the machine is reached.
#[derive(Clone, Copy)]
pub(crate) enum Door {
    /// Over sockets of an engine in this process.
    Served(EventLoopKind),
    /// By calls of the machine.
    InProcess,
}

/// The kind of traffic.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    /// Packets of the packet layer.
    Packets,
    /// FCNP's messages.
    Messages,
    /// Register writes through the rings of both nodes.
    Posted,
    /// Memory-FIFO packets of Message Units.
    MemoryFifo,
    /// Messages of one packet, by the matching layer's transport over Message Units.
    MuTransport,
}

/// Begin and end of the counted part, on each caller's thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Begin,
    End,
}

/// Runs a stream. Each caller's thread calls `mark` before and after the counted part. Both
/// callers' counted parts begin together.
pub(crate) fn run(door: Door, stream: Stream, mark: &(dyn Fn(Mark) + Sync)) {
    let (machine, clients): (Machine, _) = match stream {
        Stream::MemoryFifo | Stream::MuTransport => (spi_body::machine(), [("bgq0", "s0"), ("bgq1", "s0")]),
        Stream::Packets | Stream::Messages | Stream::Posted => {
            (machine(1, 8), [("cn0", "core0"), ("io0", "core0")])
        }
    };
    // The engine sleeps only after `LIMIT` without work, so that sleeping is not counted.
    let rig: Box<dyn Rig> = match door {
        Door::Served(event_loop) => Box::new(Served::with_config(
            machine,
            EngineConfig { event_loop, cool_after: LIMIT, ..EngineConfig::default() },
        )),
        Door::InProcess => Box::new(InProcess::new(machine)),
    };

    if matches!(door, Door::InProcess) {
        rig.with_machine(Box::new(|machine| machine.set_cool_after(LIMIT.as_nanos() as u64)));
    }

    let [source, target] = clients.map(|(node, attachment)| rig.open(node, attachment));
    let together = Barrier::new(CALLERS as usize);
    let run_counted = |warm_up: &mut dyn FnMut(), work: &mut dyn FnMut()| {
        warm_up();
        together.wait();
        mark(Mark::Begin);
        work();
        mark(Mark::End);
        // Neither caller tears down its side while the other still counts.
        together.wait();
    };

    match stream {
        Stream::Packets => packets(source, target, &run_counted),
        Stream::Messages => messages(source, target, &run_counted),
        Stream::Posted => posted_writes([source, target], &run_counted),
        Stream::MemoryFifo => memory_fifo_packets(&source, &target, &run_counted),
        Stream::MuTransport => {
            let fillers = ["bgq0", "bgq1"].map(|node| rig.open(node, "s1"));
            transport_messages([&source, &target], [&fillers[0], &fillers[1]], &run_counted);
        }
    }
}

/// Calls the first function, waits for the other caller, and calls the second function between the
/// marks [`Mark::Begin`] and [`Mark::End`].
type RunCounted<'a> = dyn Fn(&mut dyn FnMut(), &mut dyn FnMut()) + Sync + 'a;

/// Sends packets of the tree's packet layer.
fn packets(source: Device, target: Device, run_counted: &RunCounted<'_>) {
    let [source, target] = [source, target].map(|device| TreeChannel::open(device).unwrap());
    std::thread::scope(|scope| {
        named(scope, "source", || {
            run_counted(&mut || send(&source, WARM_UP), &mut || send(&source, PACKETS));
        });
        named(scope, "target", || {
            run_counted(&mut || receive(&target, WARM_UP), &mut || receive(&target, PACKETS));
        });
    });
}

/// Sends packets to the I/O node, in batches.
fn send(channel: &TreeChannel, packets: usize) {
    let (deadline, mut relax) = (Deadline::after(LIMIT), channel.device().new_relax());
    let header = Header::point_to_point(0, channel.info().io_node, false);
    let data = [0x5a; BATCH * PAYLOAD];
    let mut remaining = packets;

    while remaining > 0 {
        let guard = channel.send_lock().try_lock(channel.owner()).unwrap();
        let sent = channel.send_batch(guard).send_data(header, &data, BATCH.min(remaining));
        remaining -= sent;
        relax_if_idle(channel, sent, deadline, &mut relax);
    }
}

/// Takes packets, in batches.
fn receive(channel: &TreeChannel, packets: usize) {
    let (deadline, mut relax) = (Deadline::after(LIMIT), channel.device().new_relax());
    let mut data = [0; BATCH * PAYLOAD];
    let mut remaining = packets;

    while remaining > 0 {
        let guard = channel.receive_lock().try_lock(channel.owner()).unwrap();
        let available = &mut data[..BATCH.min(remaining) * PAYLOAD];
        let count = channel.receiver(guard).take_data(available).packets;
        remaining -= count;
        relax_if_idle(channel, count, deadline, &mut relax);
    }
}

/// Relaxes in a waiting loop if no packet moved.
fn relax_if_idle(
    channel: &TreeChannel,
    moved: usize,
    deadline: Deadline,
    relax: &mut nicforge_driver::Relax,
) {
    if moved > 0 {
        relax.reset();
    } else {
        assert!(!deadline.has_passed(), "the stream makes no progress");
        channel.relax(relax).unwrap();
    }
}

/// Sends FCNP's messages.
fn messages(source: Device, target: Device, run_counted: &RunCounted<'_>) {
    /// Messages before the first mark, and between the marks.
    const COUNT: [usize; 2] = [WARM_UP.div_ceil(MESSAGE / PAYLOAD), PACKETS.div_ceil(MESSAGE / PAYLOAD)];

    let config = Config { timeout: Some(LIMIT), open_timeout: LIMIT, ..Config::default() };
    std::thread::scope(|scope| {
        named(scope, "target", || {
            let io = IoNode::open(target, config).unwrap();
            let mut buffer = vec![0; MESSAGE];
            let mut read =
                |count: usize| (0..count).for_each(|_| assert_eq!(io.read(0, &mut buffer), Ok(MESSAGE)));
            let read = std::cell::RefCell::new(&mut read);
            run_counted(&mut || read.borrow_mut()(COUNT[0]), &mut || read.borrow_mut()(COUNT[1]));
        });

        named(scope, "source", || {
            let core = ComputeCore::open(source, config).unwrap();
            let data = vec![0x5a; MESSAGE];
            let write = |count: usize| (0..count).for_each(|_| assert_eq!(core.write(&data), Ok(MESSAGE)));
            run_counted(&mut || write(COUNT[0]), &mut || write(COUNT[1]));
        });
    });
}

/// Two callers post writes of a register, which the device confirms later.
fn posted_writes(devices: [Device; 2], run_counted: &RunCounted<'_>) {
    std::thread::scope(|scope| {
        for (device, name) in devices.into_iter().zip(["source", "target"]) {
            named(scope, name, move || {
                let mut poster = device.poster(0).unwrap();
                poster.set_timeout(LIMIT);
                let poster = std::cell::RefCell::new(poster);
                let post = |count: usize| {
                    for number in 0..count as u32 {
                        // The write enables or disables an interrupt.
                        let bits = (number & 1).to_le_bytes();
                        poster.borrow_mut().post(0, REG_INT_ENABLE, &bits).unwrap();
                    }
                };

                run_counted(&mut || post(WARM_UP), &mut || post(PACKETS));
            });
        }
    });
}

/// A subgroup that exchanges memory-FIFO packets with one other subgroup.
struct End {
    subgroup: Subgroup,
    packet: Descriptor,
    /// Keeps the payload reachable.
    _memory: DmaBuffer,
}

impl End {
    /// Opens two subgroups, whose packets go to each other.
    fn pair(devices: [&Device; 2]) -> [Self; 2] {
        let subgroups = devices.map(|device| {
            let mut subgroup = Subgroup::open(device, Options::default()).unwrap();
            subgroup.open_reception(0, 8 << 10).unwrap();
            subgroup.open_injection(0, 64, InjectionAttributes::default()).unwrap();
            subgroup
        });
        let targets = [&subgroups[1], &subgroups[0]].map(|to| (to.position().own, to.reception_id(0)));

        let mut targets = targets.into_iter();
        subgroups.map(|subgroup| {
            let (own, fifo) = targets.next().unwrap();
            let memory = subgroup.memory(4096).unwrap();
            let to = MemoryFifo { fifo, ..MemoryFifo::default() };
            let payload = Payload::memory(memory.iova(), 64);
            let packet = memory_fifo(payload, subgroup.position().ordered(own), &to).unwrap();
            Self { subgroup, packet, _memory: memory }
        })
    }

    /// Injects packets until the network is full, and returns their number.
    fn fill(&mut self) -> usize {
        let mut injected = 0;
        while self.subgroup.inject(0, &self.packet, Deadline::after(STALL), None).is_ok() {
            injected += 1;
        }
        injected
    }
}

/// Sends memory-FIFO packets from one Message Unit to another one.
fn memory_fifo_packets(source: &Device, target: &Device, run_counted: &RunCounted<'_>) {
    let [mut sender, mut receiver] = End::pair([source, target]);
    // The network is filled once, so that its buffers reach their final size.
    let stalled = sender.fill();
    take(&mut receiver.subgroup, stalled);
    let [sender, receiver] = [sender, receiver].map(std::cell::RefCell::new);

    std::thread::scope(|scope| {
        named(scope, "source", move || {
            let send = |packets| inject(&mut sender.borrow_mut(), packets);
            run_counted(&mut || send(WARM_UP), &mut || send(PACKETS));
        });
        named(scope, "target", move || {
            let take = |packets| take(&mut receiver.borrow_mut().subgroup, packets);
            run_counted(&mut || take(WARM_UP), &mut || take(PACKETS));
        });
    });
}

/// Sends messages over the matching layer's transport. The `fillers` are other subgroups of the
/// same nodes, which fill the network once.
fn transport_messages(devices: [&Device; 2], fillers: [&Device; 2], run_counted: &RunCounted<'_>) {
    // The network is filled in both directions at once, because grants go the other way.
    let [mut first, mut second] = End::pair(fillers);
    let stalled = [first.fill(), second.fill()];
    take(&mut second.subgroup, stalled[0]);
    take(&mut first.subgroup, stalled[1]);

    let (job, config) = (Job::of_nodes(2, 1), TransportConfig::default());
    let ranks = devices.map(|device| MuTransport::open(device, &job, config).unwrap());
    let [sender, receiver] = ranks.map(std::cell::RefCell::new);
    std::thread::scope(|scope| {
        named(scope, "source", move || {
            let send = |messages| send_messages(&mut sender.borrow_mut(), messages);
            run_counted(&mut || send(WARM_UP), &mut || send(PACKETS));
        });
        named(scope, "target", move || {
            let take = |messages| receive_messages(&mut receiver.borrow_mut(), messages);
            run_counted(&mut || take(WARM_UP), &mut || take(PACKETS));
        });
    });
}

/// Sends messages of one packet to rank 1, as its grants permit.
fn send_messages(sender: &mut MuTransport, messages: usize) {
    let (deadline, mut relax) = (Deadline::after(LIMIT), sender.device().new_relax());
    let mut remaining = messages;

    while remaining > 0 {
        if sender.try_send(1, 1, &[0x5a; 64]).unwrap() {
            remaining -= 1;
            relax.reset();
            continue;
        }
        assert!(!deadline.has_passed(), "the stream makes no progress");
        assert_eq!(sender.poll_gone(), None);
        sender.relax(&mut relax).unwrap();
    }
}

/// Takes messages of rank 0.
fn receive_messages(receiver: &mut MuTransport, messages: usize) {
    let (deadline, mut relax) = (Deadline::after(LIMIT), receiver.device().new_relax());
    let mut remaining = messages;

    while remaining > 0 {
        let taken = receiver.poll(remaining.min(BATCH), &mut |rank, tag, message| {
            assert_eq!((rank, tag, message), (0, 1, &[0x5a; 64][..]));
            Taken::Yes
        });
        let taken = taken.unwrap();
        remaining -= taken;
        assert_eq!(receiver.poll_gone(), None);
        if taken > 0 {
            relax.reset();
            continue;
        }
        assert!(!deadline.has_passed(), "the stream makes no progress");
        receiver.relax(&mut relax).unwrap();
    }
}

/// Injects a packet many times, and waits for the end of the last one.
fn inject(sender: &mut End, packets: usize) {
    let End { subgroup: sender, packet, .. } = sender;
    let (deadline, mut relax) = (Deadline::after(LIMIT), sender.device().new_relax());
    let (mut remaining, mut last) = (packets, 0);

    while remaining > 0 || !sender.injection().check_done(0, last).unwrap() {
        let injected = if remaining > 0 { sender.try_inject(0, packet).unwrap() } else { None };
        if let Some(number) = injected {
            (remaining, last) = (remaining - 1, number);
            relax.reset();
            continue;
        }
        assert!(!deadline.has_passed(), "the stream makes no progress");
        sender.device().relax(&mut relax).unwrap();
    }
}

/// Takes packets, and copies their payload.
fn take(receiver: &mut Subgroup, packets: usize) {
    let (deadline, mut relax) = (Deadline::after(LIMIT), receiver.device().new_relax());
    let (mut remaining, mut payload) = (packets, [0; 64]);

    while remaining > 0 {
        let count = receiver.receive(0, remaining.min(BATCH) as u32, |packet, _| {
            assert_eq!(packet.read(&mut payload), Ok(64));
        });
        let count = count.unwrap() as usize;
        remaining -= count;
        if count > 0 {
            relax.reset();
            continue;
        }
        assert!(!deadline.has_passed(), "the stream makes no progress");
        receiver.device().relax(&mut relax).unwrap();
    }
}

/// Spawns a thread with a name, by which the tracer identifies it.
fn named<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() + Send + 'scope,
) {
    std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body).unwrap();
}
