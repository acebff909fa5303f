//! Test bodies of Blue Gene/L's torus: the message layer on the cores of two nodes, and matching's
//! transport on it. They cover the cases that [`crate::matching_body`] lacks.
//!
//! Each body gets a machine of its own: [`MACHINE`] for the message layer, and [`TORUS`] for the
//! transport.
#![allow(unsafe_code, reason = "memory is registered by address, as the matching layer does")]

use std::{ptr::NonNull, sync::atomic::Ordering, time::Duration};

use nicforge_bgl::{
    Error as LayerError,
    message::{Arrival, Buffer, Callbacks, Config as LayerConfig, Disposition, MessageLayer, Received, Sent},
    packet::{Dimension, Direction, PacketDevice, Rank as Core, Torus, Verdict},
};
use nicforge_bgl_transport::{BglTransport, Config, Error, Job};
use nicforge_core::machine::Machine;
use nicforge_driver::{Deadline, Device, Error as DriverError, Relax};
use nicforge_hwi::torus::{BAR_SHARED, reg, shared, vector};
use nicforge_machine::{build::build, description::parse};
use nicforge_matching::{
    Access, Config as Matching, Endpoint, Envelope, Error as MatchingError, Get, Loss, Memory, Mode, Rank,
    Region, RemoteRegion, Selector, Taken, Transport, wire,
};
use nicforge_nics::families;
use nicforge_test_body::body;
use zerocopy::IntoBytes;

use crate::{
    backing::{Rig, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine},
    matching_body::{Network, World},
    pattern::pattern,
};

/// The machine of the message layer's bodies: two nodes.
pub static MACHINE: TestMachine = TestMachine {
    name: "bgl",
    make: || machine("[2, 1, 1]"),
    guests: Guests::Booted {
        attachments: &[(&["bgl0.torus", "bgl1.torus"], &["core0", "core1"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim],
    },
};

/// The machine of all bodies of the matching layer that run on the torus: four nodes.
pub static TORUS: TestMachine = TestMachine {
    name: "bgl_transport",
    make: || machine("[2, 2, 1]"),
    guests: Guests::None(
        "the message layer's bodies run in guests, and the transport uses the device by it alone",
    ),
};

/// Returns a torus of this shape.
fn machine(shape: &str) -> Machine {
    let text = format!("name = \"bgl\"\n[[bgl]]\ntorus = {shape}\n");
    build(&parse(&text, "bgl.toml", &families()).unwrap()).unwrap().0
}

/// Opens a core of a node.
fn device(rig: &dyn Rig, node: u16, core: u16) -> Device {
    rig.open(&format!("bgl{node}.torus"), &format!("core{core}"))
}

/// A program that receives all messages, and counts the ends of its own.
#[derive(Debug, Default)]
struct Program {
    /// Lengths of the messages that were presented.
    presented: Vec<usize>,
    received: Vec<(Core, Vec<u8>)>,
    /// Results of its own messages.
    sent: Vec<Result<(), LayerError>>,
}

impl Callbacks for Program {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        self.presented.push(arrival.length);
        Disposition::Receive(Buffer::from(vec![0; arrival.length]))
    }

    fn recvdone(&mut self, received: Received) {
        if received.result.is_ok()
            && let Some(buffer) = received.buffer
        {
            self.received.push((received.source, buffer.into_memory()));
        }
    }

    fn senddone(&mut self, sent: Sent) {
        self.sent.push(sent.result);
    }
}

/// A core with its message layer and its program.
struct Node {
    layer: MessageLayer<Torus>,
    program: Program,
}

impl Node {
    /// Opens a core of a node.
    fn open(rig: &dyn Rig, node: u16, core: u16) -> Self {
        let torus = Torus::open(device(rig, node, core)).unwrap();
        Self {
            layer: MessageLayer::init(torus, LayerConfig::default()).unwrap(),
            program: Program::default(),
        }
    }

    /// Posts a message.
    fn post(&mut self, to: Core, data: Vec<u8>) {
        self.layer.postsend(to, [0; 16], Buffer::from(data)).unwrap();
    }

    /// Moves everything on.
    fn advance(&mut self) {
        self.layer.advance(&mut self.program).unwrap();
    }
}

/// Drives nodes until a condition holds.
fn drive(nodes: &mut [&mut Node], mut condition: impl FnMut(&mut [&mut Node]) -> bool) {
    let (deadline, mut relax) = (test_deadline(), Relax::new());
    while !condition(nodes) {
        assert!(
            !deadline.has_passed(),
            "{:?}",
            nodes.iter().map(|node| node.layer.statistics()).collect::<Vec<_>>()
        );
        nodes.iter_mut().for_each(|node| node.advance());
        nodes[0].layer.device().device().relax(&mut relax).unwrap();
    }
}

/// Sizes around those of packets, and of each protocol's limit.
const SIZES: [usize; 15] =
    [0, 1, 15, 16, 17, 223, 224, 225, 1024, 1025, 4000, 16_384, 16_385, 100_000, 1 << 20];

/// Messages of all protocols arrive in the order in which they were posted, in both directions.
#[body]
pub fn messages_of_all_sizes_arrive_in_order(rig: &dyn Rig) {
    let (mut a, mut b) = (Node::open(rig, 0, 0), Node::open(rig, 1, 0));
    for (number, length) in SIZES.into_iter().enumerate() {
        a.post(Core::new(1, 0), pattern(number as u64, length));
        b.post(Core::new(0, 0), pattern(100 + number as u64, length));
    }

    drive(&mut [&mut a, &mut b], |nodes| nodes.iter().all(|node| node.program.received.len() == SIZES.len()));
    for (node, seed, source) in [(&mut b, 0, 0), (&mut a, 100, 1)] {
        assert_eq!(node.program.presented, SIZES);
        // They need not be complete in this order.
        node.program.received.sort_by_key(|(_, data)| data.len());
        for (number, (length, (from, data))) in SIZES.into_iter().zip(&node.program.received).enumerate() {
            assert_eq!(*from, Core::new(source, 0));
            assert!(*data == pattern(seed + number as u64, length), "{length} bytes came wrong");
        }
    }
    drive(&mut [&mut a, &mut b], |nodes| nodes.iter().all(|node| node.layer.has_sent_all()));
    assert!(a.program.sent.len() == SIZES.len() && a.program.sent.iter().all(Result::is_ok));
}

/// The cores of a node have FIFOs and messages of their own.
#[body]
pub fn messages_reach_the_core_that_they_are_for(rig: &dyn Rig) {
    let mut cores: Vec<_> = [(0, 0), (0, 1), (1, 0), (1, 1)]
        .into_iter()
        .map(|(node, core)| Node::open(rig, node, core))
        .collect();
    let ranks: Vec<_> = cores.iter().map(|core| core.layer.place().rank).collect();
    for (from, core) in cores.iter_mut().enumerate() {
        for to in (0..4).filter(|to| to / 2 != from / 2) {
            core.post(ranks[to], pattern(from as u64, 300 * (to + 1)));
        }
    }

    let mut cores: Vec<&mut Node> = cores.iter_mut().collect();
    drive(&mut cores, |cores| cores.iter().all(|core| core.program.received.len() == 2));
    for (to, core) in cores.iter().enumerate() {
        for (source, data) in &core.program.received {
            let from = ranks.iter().position(|rank| rank == source).unwrap();
            assert!(*data == pattern(from as u64, 300 * (to + 1)), "from {from} to {to}");
        }
    }
}

/// A packet with the deposit bit is left on the nodes of its line.
#[body]
pub fn a_deposit_packet_reaches_the_next_node(rig: &dyn Rig) {
    let [mut a, mut b] = [0, 1].map(|node| Torus::open(device(rig, node, 0)).unwrap());
    let header = a.place().deposit_line(Dimension::X, Direction::Plus, 1, 0).unwrap();
    let data = pattern(3, 240);
    assert!(a.send(header, [&data[..]].into_iter()).unwrap());
    a.publish().unwrap();

    let (deadline, mut relax, mut received) = (test_deadline(), Relax::new(), Vec::new());
    while received.is_empty() {
        assert!(!deadline.has_passed(), "no packet arrives");
        b.receive(|_, payload| {
            let mut bytes = vec![0; payload.len()];
            assert!(payload.copy_to(0, &mut bytes));
            received.push(bytes);
            Verdict::Taken
        })
        .unwrap();
        b.device().relax(&mut relax).unwrap();
    }
    assert_eq!(received, [data]);
}

/// A program sleeps until a packet is in a reception FIFO.
#[body]
pub fn a_packet_ends_the_sleep_of_its_receiver(rig: &dyn Rig) {
    let (mut a, mut b) = (Node::open(rig, 0, 0), Node::open(rig, 1, 0));
    let device = b.layer.device().device().clone();
    let (interrupt, registers) =
        (device.interrupt(vector::RECEPTION.into()).unwrap(), device.bar(0).unwrap());

    for round in 0..3 {
        registers.write32(reg::INTERRUPT_ENABLE, 1 << vector::RECEPTION).unwrap();
        a.post(Core::new(1, 0), pattern(round, 100));
        drive(&mut [&mut a], |nodes| nodes[0].layer.has_sent_all());
        interrupt.wait(test_deadline(), None).unwrap();
        registers.write32(reg::INTERRUPT_ENABLE, 0).unwrap();
        drive(&mut [&mut b], |nodes| nodes[0].program.received.len() > round as usize);
    }
}

/// The cores of a node share lock boxes and SRAM, and each has its own FIFOs.
#[body]
pub fn the_cores_of_a_node_share_lock_boxes_and_memory(rig: &dyn Rig) {
    let devices = [0, 1].map(|core| device(rig, 0, core));
    let [a, b] =
        devices.each_ref().map(|device| device.bar(BAR_SHARED).unwrap().window(0, shared::SIZE).unwrap());
    let lock = |memory: &nicforge_shm::Window| memory.u32(shared::LOCK + 3 * shared::LOCK_STRIDE).unwrap();

    assert_eq!(lock(&a).compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire), Ok(0));
    assert_eq!(lock(&b).compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire), Err(1));
    a.u32(shared::SRAM + shared::SRAM_SIZE - 4).unwrap().store(7, Ordering::Release);
    assert_eq!(b.u32(shared::SRAM + shared::SRAM_SIZE - 4).unwrap().load(Ordering::Acquire), 7);
    lock(&a).store(0, Ordering::Release);
}

/// A process sends its last message and ends. The message arrives, and then the end is noticed.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn the_last_message_of_a_process_arrives(rig: &dyn Rig) {
    let mut b = Node::open(rig, 1, 0);
    for round in 1..=20 {
        let mut a = Node::open(rig, 0, 0);
        let data = pattern(round, 700);
        a.post(Core::new(1, 0), data.clone());
        drive(&mut [&mut a], |nodes| nodes[0].layer.has_sent_all());
        drop(a);

        let (deadline, mut relax) = (test_deadline(), Relax::new());
        while b.program.received.len() < round as usize {
            assert!(!deadline.has_passed(), "message {round} does not arrive");
            b.layer.check_peers(&mut b.program).unwrap();
            b.advance();
            b.layer.device().device().relax(&mut relax).unwrap();
        }
        assert_eq!(b.program.received.last(), Some(&(Core::new(0, 0), data)));
    }
}

/// Messages to a process that ends fail, and its successor gets none of them.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn messages_to_a_process_that_ends_fail(rig: &dyn Rig) {
    let (mut a, b) = (Node::open(rig, 0, 0), Node::open(rig, 1, 0));
    // The receiver does not acknowledge the rendezvous.
    a.post(Core::new(1, 0), pattern(1, 500_000));
    a.advance();
    drop(b);

    let (deadline, mut relax) = (test_deadline(), Relax::new());
    while a.program.sent.is_empty() {
        assert!(!deadline.has_passed(), "the message does not end");
        a.advance();
        a.layer.check_peers(&mut a.program).unwrap();
        a.layer.device().device().relax(&mut relax).unwrap();
    }
    assert_eq!(a.program.sent, [Err(LayerError::PeerGone { rank: 2 })]);

    let mut successor = Node::open(rig, 1, 0);
    let mut is_posted = false;
    drive(&mut [&mut a, &mut successor], |nodes| {
        if !is_posted {
            let posted = nodes[0].layer.postsend(Core::new(1, 0), [0; 16], Buffer::from(vec![9; 50]));
            is_posted = posted.is_ok();
        }
        !nodes[1].program.received.is_empty()
    });
    assert_eq!(successor.program.received, [(Core::new(0, 0), vec![9; 50])]);
}

/// A network whose ranks are on the nodes of a rig.
pub struct OnTorus<'a>(&'a dyn Rig);

impl<'a> OnTorus<'a> {
    /// Uses the nodes of a rig.
    pub fn new(rig: &'a dyn Rig) -> Self {
        Self(rig)
    }

    /// Opens a rank of a job of `size` ranks. The window is small, so that few messages fill it.
    fn rank(&self, rank: Rank, size: u32) -> BglTransport {
        let config = Config { window: 4, gets: 2, get_bytes: 4096, ..Config::default() };
        BglTransport::open(device(self.0, rank as u16, 0), &Job::of_nodes(size), config).unwrap()
    }
}

impl Network for OnTorus<'_> {
    type Transport = BglTransport;

    fn ranks(&self, size: u32) -> Vec<BglTransport> {
        let mut ranks: Vec<_> = (0..size).map(|rank| self.rank(rank, size)).collect();
        for rank in &mut ranks {
            rank.wait_for_all(test_deadline(), None).unwrap();
        }
        ranks
    }
}

/// Ranks that start one after the other wait for each other, and jobs that are impossible are
/// refused.
#[body(on(TORUS))]
pub fn ranks_find_each_other(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut first = network.rank(0, 2);
    let early = first.wait_for_all(Deadline::after(Duration::from_millis(10)), None);
    let timed_out = matches!(early, Err(Error::Layer(LayerError::Device(DriverError::Timeout { .. }))));
    assert!(timed_out, "{early:?}");

    let second = network.rank(1, 2);
    first.wait_for_all(test_deadline(), None).unwrap();
    assert!(first.is_complete() && second.is_complete());
    drop(second);

    let refused = |cores: &[(u16, u16)]| {
        let job = Job::new(cores.iter().map(|&(node, core)| Core::new(node, core)).collect());
        BglTransport::open(device(rig, 1, 0), &job, Config::default()).unwrap_err()
    };
    assert!(matches!(refused(&[(0, 0), (1, 1)]), Error::NotOfJob { size: 2, .. }));
    assert_eq!(refused(&[(1, 0), (0, 0), (1, 1)]), Error::SameNode { first: 0, second: 2, node: 1 });
    assert!(matches!(refused(&[(1, 0), (4, 0)]), Error::NoSuchCore { rank: 1, nodes: 4, .. }));
}

/// The last messages of a rank that ends arrive, and then its loss is reported.
#[body(on(TORUS))]
pub fn a_rank_that_ends_is_lost_after_its_messages(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut world = World::new(&network, 3, Matching::default());
    // More messages than the window has, so that some stay with the message layer.
    let sends: Vec<_> = (0..20).map(|tag| world.send(1, 0, tag, &pattern(tag, 150))).collect();
    for send in sends {
        world.wait(1, send);
    }
    drop(world.ranks.remove(1));

    for tag in 0..20 {
        let receive = world.receive(0, Selector::exact(1, 0, tag), 200);
        let completion = world.wait(0, receive);
        assert_eq!((completion.result, completion.length), (Ok(()), 150), "message {tag}");
    }
    let waiting = world.receive(0, Selector::exact(1, 0, 99), 10);
    let completion = world.wait(0, waiting);
    let gone = MatchingError::PeerGone { peer: 1, why: Loss::Ended };
    assert_eq!(completion.result, Err(gone));

    // The others go on.
    let receive = world.receive(1, Selector::exact(0, 0, 5), 3);
    world.send(0, 2, 5, b"abc");
    assert_eq!(world.wait(1, receive).result, Ok(()));
}

/// A rank that ends in the middle of a long message fails it at the others.
#[body(on(TORUS))]
pub fn a_rank_that_ends_in_a_transfer_fails_it(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut world = World::new(&network, 2, Matching::default());
    world.send(1, 0, 1, &pattern(1, 1 << 20));
    world.wait_for_message(0, &Selector::exact(1, 0, 1));
    let receive = world.receive(0, Selector::exact(1, 0, 1), 1 << 20);
    world.progress_rounds(3);
    drop(world.ranks.remove(1));
    assert!(world.wait(0, receive).result.is_err());
}

/// Messages of one rank do not hold up those of another, though the endpoint takes none of its.
#[body(on(TORUS))]
pub fn a_rank_whose_messages_are_not_taken_holds_up_no_other(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut ranks = network.ranks(3);
    let (deadline, mut relax) = (test_deadline(), Relax::new());
    // Rank 1 sends until it has no room: the window, and the message layer's credits.
    let mut sent = 0;
    let mut quiet = 0;
    while quiet < 200 {
        let is_sent = ranks[1].try_send(0, 1, &[1; 100]).unwrap();
        sent += u32::from(is_sent);
        quiet = if is_sent { 0 } else { quiet + 1 };
        for rank in &mut ranks {
            rank.poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        }
        ranks[0].device().relax(&mut relax).unwrap();
    }
    assert!((4..200).contains(&sent), "{sent} messages");

    assert!(ranks[2].try_send(0, 2, &[2; 100]).unwrap());
    let mut taken = 0;
    while taken == 0 {
        assert!(!deadline.has_passed(), "the other rank's message does not arrive");
        ranks[2].poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        taken =
            ranks[0].poll(64, &mut |from, _, _| if from == 2 { Taken::Yes } else { Taken::NotNow }).unwrap();
        ranks[0].device().relax(&mut relax).unwrap();
    }

    let mut received = 0;
    while received < sent as usize {
        assert!(!deadline.has_passed(), "{received} of {sent} messages arrive");
        ranks[1].poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        received += ranks[0].poll(64, &mut |_, _, _| Taken::Yes).unwrap();
        ranks[0].device().relax(&mut relax).unwrap();
    }
}

/// Messages of a rank's successor are not offered as those of the rank, though its loss was not
/// noticed yet.
#[body(on(TORUS))]
pub fn messages_of_a_successor_are_not_its_predecessors(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut ranks = network.ranks(2);
    drop(ranks.pop());
    let mut successor = network.rank(1, 2);
    assert!(successor.try_send(0, 1, &[7; 20]).unwrap());

    let (deadline, mut relax, mut offered) = (test_deadline(), Relax::new(), 0);
    while ranks[0].statistics().strays == 0 && offered == 0 {
        assert!(!deadline.has_passed(), "the message does not arrive");
        successor.poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        let sink = &mut |_, _, _: &[u8]| {
            offered += 1;
            Taken::Yes
        };
        ranks[0].poll(64, sink).unwrap();
        ranks[0].device().relax(&mut relax).unwrap();
    }
    assert_eq!((offered, ranks[0].statistics().strays), (0, 1));
    assert!(matches!(wait_for_loss(&mut ranks[0], 1), Loss::Replaced { .. }));
}

/// Waits until a transport reports the loss of a rank, and takes its messages meanwhile.
fn wait_for_loss(transport: &mut BglTransport, rank: Rank) -> Loss {
    let (deadline, mut relax) = (test_deadline(), Relax::new());
    loop {
        assert!(!deadline.has_passed(), "the loss of rank {rank} is not reported");
        if let Some(gone) = transport.poll_gone() {
            assert_eq!(gone.rank, rank);
            return gone.why;
        }
        transport.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
        transport.device().relax(&mut relax).unwrap();
    }
}

/// Messages that are complete when their sender ends are offered, also those beyond the window.
#[body(on(TORUS))]
pub fn messages_beyond_the_window_outlive_their_sender(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut ranks = network.ranks(2);
    let (deadline, mut relax, mut sent) = (test_deadline(), Relax::new(), 0);
    // The window has 4 messages, and the message layer has the other 16.
    while ranks[0].statistics().held < 16 {
        assert!(!deadline.has_passed(), "{sent} messages are sent");
        if sent < 20 && ranks[1].try_send(0, 1, &[sent; 100]).unwrap() {
            sent += 1;
        }
        for rank in &mut ranks {
            rank.poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        }
        ranks[0].device().relax(&mut relax).unwrap();
    }
    drop(ranks.pop());

    // The end is noticed before anything is taken.
    for _ in 0..20 * 64 {
        assert_eq!(ranks[0].poll_gone(), None);
        ranks[0].device().relax(&mut relax).unwrap();
    }
    let mut received = Vec::new();
    let gone = loop {
        assert!(!deadline.has_passed(), "the loss is not reported");
        let sink = &mut |_, _, bytes: &[u8]| {
            received.push(bytes[0]);
            Taken::Yes
        };
        ranks[0].poll(64, sink).unwrap();
        if let Some(gone) = ranks[0].poll_gone() {
            break gone;
        }
        ranks[0].device().relax(&mut relax).unwrap();
    };
    assert_eq!(gone.why, Loss::Ended);
    assert_eq!(received, (0..20).collect::<Vec<u8>>());
}

/// A rank that comes and goes unseen has come, and is lost after its messages.
#[body(on(TORUS))]
pub fn a_rank_that_comes_and_goes_unseen_is_lost(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut first = network.rank(0, 2);
    drop(network.rank(1, 2));
    first.wait_for_all(test_deadline(), None).unwrap();
    assert_eq!(wait_for_loss(&mut first, 1), Loss::Ended);
    drop(first);

    let mut first = network.rank(0, 2);
    let mut second = network.rank(1, 2);
    assert!(second.try_send(0, 1, &[7; 20]).unwrap());
    drop(second);
    first.wait_for_all(test_deadline(), None).unwrap();
    assert_eq!(wait_for_loss(&mut first, 1), Loss::Ended);
    assert_eq!(first.statistics().taken, 1);
}

/// A poll offers a refused message once, and the ranks take turns.
#[body(on(TORUS))]
pub fn a_poll_offers_each_rank_in_turn(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let config = Config { window: 1, ..Config::default() };
    let mut first = BglTransport::open(device(rig, 0, 0), &Job::of_nodes(3), config).unwrap();
    let mut others = [network.rank(1, 3), network.rank(2, 3)];
    first.wait_for_all(test_deadline(), None).unwrap();

    // Each time, a kept message follows the one that is taken.
    let (deadline, mut relax, mut turns) = (test_deadline(), Relax::new(), Vec::new());
    while turns.len() < 200 {
        assert!(!deadline.has_passed(), "{} messages are taken", turns.len());
        for other in &mut others {
            while other.try_send(0, 1, &[1; 100]).unwrap() {}
            other.poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        }
        let sink = &mut |rank, _, _: &[u8]| {
            turns.push(rank);
            Taken::Yes
        };
        first.poll(1, sink).unwrap();
        first.device().relax(&mut relax).unwrap();
    }
    let of_first = turns.iter().filter(|&&rank| rank == 1).count();
    assert!((50..150).contains(&of_first), "{of_first} of {} are rank 1's", turns.len());

    let mut offered = Vec::new();
    let sink = &mut |rank, _, _: &[u8]| {
        offered.push(rank);
        Taken::NotNow
    };
    first.poll(64, sink).unwrap();
    offered.sort_unstable();
    assert!(offered.is_sorted_by(|before, after| before < after), "{offered:?}");
}

/// A get of memory that is not registered, or beyond its end, is refused.
#[body(on(TORUS))]
pub fn gets_outside_registered_memory_are_refused(rig: &dyn Rig) {
    let network = OnTorus::new(rig);
    let mut ranks = network.ranks(2);
    let (source, mut destination) = (pattern(4, 100), vec![0_u8; 100]);
    let memory = |bytes: &[u8]| Memory { start: NonNull::from(bytes).cast(), length: bytes.len() };
    // SAFETY: both buffers live until the ranks are dropped below, and nothing else uses them.
    let from = unsafe { ranks[1].register(memory(&source), Access::Source) }.unwrap().unwrap();
    let to_memory = Memory { start: NonNull::from(&mut destination[..]).cast(), length: 100 };
    // SAFETY: as above.
    let to = unsafe { ranks[0].register(to_memory, Access::Destination) }.unwrap().unwrap();

    let mut get = |remote: RemoteRegion, local: Region, length: usize| {
        let get = Get { peer: 1, remote, local, local_offset: 0, length, cookie: 9 };
        assert!(ranks[0].start_get(&get).unwrap());
        let (deadline, mut relax, mut ended) = (test_deadline(), Relax::new(), None);
        while ended.is_none() {
            assert!(!deadline.has_passed(), "the get does not end");
            for rank in &mut ranks {
                rank.poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
            }
            ranks[0].poll_gets(4, &mut |cookie, result| ended = Some((cookie, result.is_ok()))).unwrap();
            ranks[0].device().relax(&mut relax).unwrap();
        }
        ended
    };

    let at = |offset| RemoteRegion { offset, ..from.remote };
    assert_eq!(get(at(0), to, 100), Some((9, true)));
    assert_eq!(get(at(1), to, 100), Some((9, false)), "beyond the source");
    assert_eq!(get(at(u64::MAX), to, 8), Some((9, false)));
    assert_eq!(get(RemoteRegion { key: 77, offset: 0 }, to, 8), Some((9, false)), "no such memory");
    assert_eq!(get(at(0), to, 101), Some((9, false)), "beyond both");

    let statistics = (ranks[0].statistics(), ranks[1].statistics());
    assert_eq!((statistics.0.failed_gets, statistics.1.served_gets, statistics.1.refused_gets), (4, 1, 4));
    drop(ranks);
    assert_eq!(destination, source);
}

/// Ranks announce long messages and make no calls then, so that they answer no gets. Those from
/// other ranks go on meanwhile.
#[body(on(TORUS))]
pub fn a_rank_that_answers_no_gets_holds_up_no_other(rig: &dyn Rig) {
    let mut ranks = OnTorus::new(rig).ranks(4);
    let mut hostile = [ranks.remove(3), ranks.remove(1)];
    let mut world = World::of(ranks, Matching::default());

    let mut waiting = Vec::new();
    for (rank, number) in hostile.iter_mut().zip([3, 1]) {
        for tag in 0..16_u64 {
            let (context, reserved) = (0.into(), 0.into());
            let (size, zero) = ((1 << 20).into(), 0.into());
            let message = wire::Rendezvous {
                context,
                reserved,
                tag: tag.into(),
                size,
                key: zero,
                offset: zero,
                request: tag.into(),
            };
            assert!(rank.try_send(0, wire::REQUEST, message.as_bytes()).unwrap());
            waiting.push(Selector::exact(number, 0, tag));
        }
    }
    world.drive_until("announcements", |world| {
        for rank in &mut hostile {
            rank.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
        }
        (world.ranks[0].statistics().rendezvous == 32).then_some(())
    });
    // The ranks make no calls from here on.
    let waiting: Vec<_> = waiting.into_iter().map(|selector| world.receive(0, selector, 1 << 20)).collect();

    for round in 0..3 {
        let send = world.send(1, 0, round, &pattern(round, 100_000));
        let receive = world.receive(0, Selector::exact(2, 0, round), 100_000);
        assert!(world.wait(0, receive).buffer.as_slice() == pattern(round, 100_000), "message {round}");
        assert_eq!(world.wait(1, send).result, Ok(()));
    }
    for receive in waiting {
        assert!(world.ranks[0].test(receive).unwrap().is_none());
    }
}

/// Answers to the gets of a rank that takes none of them are limited by bytes, and a get that is
/// longer than that is refused. The rank of the memory goes on.
#[body(on(TORUS))]
pub fn answers_to_gets_are_limited_by_bytes(rig: &dyn Rig) {
    const LONG: usize = 8 << 20;

    const LIMIT: usize = 64 << 10;
    let open = |rank, get_bytes| {
        let config = Config { get_bytes, gets: 32, answer_bytes: LIMIT, ..Config::default() };
        BglTransport::open(device(rig, rank, 0), &Job::of_nodes(2), config).unwrap()
    };
    let mut ranks = [open(0, 4096), open(1, LONG)];
    ranks[1].wait_for_all(test_deadline(), None).unwrap();
    ranks[0].wait_for_all(test_deadline(), None).unwrap();

    let (source, mut destination) = (vec![5_u8; LONG], vec![0_u8; LONG]);
    let memory = |bytes: &[u8]| Memory { start: NonNull::from(bytes).cast(), length: bytes.len() };
    // SAFETY: both buffers live until the ranks are dropped below, and nothing else uses them.
    let from = unsafe { ranks[0].register(memory(&source), Access::Source) }.unwrap().unwrap();
    let to_memory = Memory { start: NonNull::from(&mut destination[..]).cast(), length: LONG };
    // SAFETY: as above.
    let to = unsafe { ranks[1].register(to_memory, Access::Destination) }.unwrap().unwrap();

    let get =
        |length, cookie| Get { peer: 0, remote: from.remote, local: to, local_offset: 0, length, cookie };
    let (deadline, mut relax, mut ended) = (test_deadline(), Relax::new(), Vec::new());
    for cookie in 0..12 {
        // Eight are too long, and four have the length of the longest that is answered.
        let length = if cookie < 8 { LONG } else { LIMIT };
        assert!(ranks[1].start_get(&get(length, cookie)).unwrap());
    }

    // The rank sends its gets, and takes no answer.
    while ranks[0].statistics().refused_gets < 8 {
        assert!(!deadline.has_passed(), "{:?}", ranks[0].statistics());
        let refused = ranks[0].statistics().refused_gets;
        ranks[0].poll(64, &mut |_, _, _| Taken::Yes).unwrap();
        if refused == ranks[0].statistics().refused_gets {
            ranks[1].poll(64, &mut |_, _, _| Taken::Yes).unwrap();
        }
        ranks[0].device().relax(&mut relax).unwrap();
    }
    let served = ranks[0].statistics().served_gets;
    for _ in 0..100 {
        ranks[0].poll(64, &mut |_, _, _| Taken::Yes).unwrap();
    }
    assert!(ranks[0].statistics().served_gets <= served + 1, "{:?}", ranks[0].statistics());

    let deadline = test_deadline();
    while ended.len() < 12 {
        assert!(!deadline.has_passed(), "{ended:?} have ended");
        for rank in &mut ranks {
            rank.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
        }
        ranks[1].poll_gets(16, &mut |cookie, result| ended.push((cookie, result.is_ok()))).unwrap();
        ranks[0].device().relax(&mut relax).unwrap();
    }
    ended.sort_unstable();
    assert!(ended.iter().all(|&(cookie, is_answered)| is_answered == (cookie >= 8)), "{ended:?}");
    drop(ranks);
    assert!(destination[..LIMIT] == source[..LIMIT]);
}

/// Two ranks in threads of their own exchange messages of the matching layer.
#[body(on(TORUS))]
pub fn ranks_in_threads_exchange_messages(rig: &dyn Rig) {
    let run = |rank: Rank| {
        let network = OnTorus::new(rig);
        let mut transport = network.rank(rank, 2);
        transport.wait_for_all(test_deadline(), None).unwrap();
        let mut endpoint = Endpoint::new(transport, Matching::default()).unwrap();
        for round in 0..30 {
            let data = pattern(round + u64::from(rank), [10, 3000, 50_000][round as usize % 3]);
            let other = 1 - rank;
            let send = endpoint.isend(Envelope::new(other, 0, round), Mode::Standard, data, 0).unwrap();
            let receive = endpoint.irecv(Selector::exact(other, 0, round), vec![0; 50_000], 0).unwrap();
            let received = endpoint.wait(receive, test_deadline(), None).unwrap();
            endpoint.wait(send, test_deadline(), None).unwrap();

            let expected = pattern(round + u64::from(other), [10, 3000, 50_000][round as usize % 3]);
            assert!(received.buffer.as_slice()[..received.length] == expected, "round {round}");
        }
        nicforge_mpi_programs::collective::barrier(&mut endpoint, test_deadline()).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0);
    });
}
