//! Test bodies of the SPI of Blue Gene/Q: messages between the Message Units of nodes.
//!
//! Each body gets a machine of its own: two nodes ([`MACHINE`]), or eight for collectives
//! ([`CUBE`]).
//!
//! - this file: messages of every kind, FIFOs, waits
//! - `collectives.rs`: collectives, barriers, all-to-all
//! - `interrupts.rs`: global interrupts, and interrupts of FIFOs
//! - `hostile.rs`: descriptors for what belongs to others, peers that die

pub mod collectives;
pub mod hostile;
pub mod interrupts;

use std::{cell::Cell, time::Duration};

use nicforge_core::machine::Machine;
use nicforge_driver::{Cancel, Deadline, DmaBuffer, Error as DriverError};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_spi::{
    Counter, Descriptor, DirectPut, Error, Fault, Handlers, InjectionAttributes, Load, MemoryFifo,
    NO_BASE_ADDRESS, Options, Payload, PointToPoint, RemoteGet, Store, Subgroup, direct_put, load_address,
    local_copy, memory_fifo, prefetch, remote_get, store_offset,
};
use nicforge_test_body::body;
use zerocopy::IntoBytes;

use crate::{
    backing::{Rig, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine},
    pattern::pattern,
};

/// The machine of the bodies that concern two nodes.
pub static MACHINE: TestMachine = TestMachine {
    name: "spi",
    make: machine,
    guests: Guests::Booted {
        attachments: &[(&["bgq0", "bgq1"], &["kernel", "s0", "s1"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim],
    },
};

/// The machine of the bodies that concern eight nodes.
pub static CUBE: TestMachine = TestMachine {
    name: "spi_cube",
    make: cube,
    guests: Guests::None("a guest gets two nodes of the same devices, and what differs is in the network"),
};

/// Returns a machine of two nodes with two application subgroups each.
pub fn machine() -> Machine {
    of_shape("[2, 1, 1, 1, 1]")
}

/// Returns a machine of eight nodes.
pub fn cube() -> Machine {
    of_shape("[2, 2, 2, 1, 1]")
}

/// Returns a machine whose torus has these sizes, with two application subgroups on each node.
fn of_shape(shape: &str) -> Machine {
    let text = format!("name = \"spi\"\n[[bgq]]\ntorus = {shape}\nsubgroups = 2\n");
    build(&parse(&text, "spi.toml", &families()).unwrap()).unwrap().0
}

/// Bytes of a node's memory for messages. The first page is for counters and descriptors.
const BYTES: u64 = 512 << 10;
/// Offset in the memory of the data that a node sends.
const SOURCE: u64 = 8 << 10;
/// Offset in the memory of the data that a node receives.
const SINK: u64 = 256 << 10;
/// The injection FIFO that software injects into.
const SEND: u8 = 0;
/// The injection FIFO for remote gets of other nodes.
const GETS: u8 = 1;
/// The reception FIFO.
const RECEIVE: u8 = 2;
/// The entry of the base address table, whose base is the memory's start.
const BASE: u8 = 3;
/// A time after which something that must not happen has not happened.
const SHORT: Duration = Duration::from_millis(30);

/// Sizes of messages around the limits of chunks and packets.
const SIZES: [u64; 11] = [1, 7, 31, 32, 33, 511, 512, 513, 4095, 4097, 64 << 10];

/// A subgroup with FIFOs, memory and a base address.
struct Node {
    subgroup: Subgroup,
    memory: DmaBuffer,
}

impl Node {
    /// Opens a subgroup of a node, with FIFOs of the usual sizes.
    fn new(rig: &dyn Rig, node: u32, subgroup: u16) -> Self {
        Self::with_sizes(rig, node, subgroup, 64, 64 << 10)
    }

    /// Opens a subgroup whose [`SEND`] FIFO has room for `descriptors` descriptors, and whose
    /// reception FIFO has `reception` bytes.
    fn with_sizes(rig: &dyn Rig, node: u32, subgroup: u16, descriptors: u32, reception: u64) -> Self {
        let device = rig.open(&format!("bgq{node}"), &format!("s{subgroup}"));
        let mut subgroup = Subgroup::open(&device, Options::default()).unwrap();
        let gets = InjectionAttributes { remote_get: true, ..InjectionAttributes::default() };
        subgroup.open_injection(SEND, descriptors, InjectionAttributes::default()).unwrap();
        subgroup.open_injection(GETS, 64, gets).unwrap();
        subgroup.open_reception(RECEIVE, reception).unwrap();

        let memory = subgroup.memory(BYTES as usize).unwrap();
        subgroup.set_base_address(BASE, memory.iova()).unwrap();
        Self { subgroup, memory }
    }

    /// Returns a counter in the memory's first page.
    fn counter(&self, number: u64) -> Counter {
        Counter::new(&self.memory, 8 * number).unwrap()
    }

    /// Returns a put's target at this node: an offset in its memory, and a counter.
    fn target(&self, offset: u64, counter: &Counter) -> DirectPut {
        DirectPut {
            payload_base: self.subgroup.base_address_id(BASE),
            offset,
            counter_base: self.subgroup.base_address_id(BASE),
            counter_offset: counter.offset(self.memory.iova()).unwrap(),
            paced: false,
        }
    }

    /// Returns the reception FIFO as a target.
    fn fifo(&self) -> MemoryFifo {
        MemoryFifo { fifo: self.subgroup.reception_id(RECEIVE), ..MemoryFifo::default() }
    }

    /// Returns the route to another node on which packets stay in order.
    fn ordered(&self, to: &Self) -> PointToPoint {
        self.subgroup.position().ordered(to.subgroup.position().own)
    }

    /// Returns the route to another node on which packets choose their way by load.
    fn dynamic(&self, to: &Self) -> PointToPoint {
        self.subgroup.position().dynamic(to.subgroup.position().own)
    }

    /// Returns a range of the memory as the payload of a message.
    fn payload(&self, offset: u64, length: u64) -> Payload {
        Payload::memory(self.memory.iova() + offset, length)
    }

    /// Injects a descriptor. Returns its number.
    fn inject(&mut self, descriptor: &Descriptor) -> u64 {
        self.subgroup.inject(SEND, descriptor, test_deadline(), None).unwrap()
    }

    /// Injects a descriptor, and waits for its end.
    fn send(&mut self, descriptor: &Descriptor) {
        let number = self.inject(descriptor);
        self.subgroup.injection().wait_done(SEND, number, test_deadline(), None).unwrap();
    }

    /// Waits until a counter is 0: all bytes of its puts have arrived.
    fn wait(&self, counter: &Counter) {
        self.subgroup.wait_counter(counter, test_deadline(), None).unwrap();
    }

    /// Stores bytes in the memory.
    fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(offset, bytes).unwrap();
    }

    /// Returns bytes of the memory.
    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Returns a word of 8 bytes of the memory.
    fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.read(offset, 8).try_into().unwrap())
    }

    /// Waits for a message in the reception FIFO, and assembles it from packets in any order. The
    /// sender has written its length into the first software bytes ([`length_bytes`]).
    fn message(&mut self) -> Vec<u8> {
        let (mut message, mut missing): (Option<Vec<u8>>, _) = (None, usize::MAX);
        while missing > 0 {
            self.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
            self.subgroup
                .receive(RECEIVE, 1, |packet, _| {
                    let software = packet.software();
                    let length = u32::from_le_bytes(software[1..5].try_into().unwrap()) as usize;
                    let bytes = message.get_or_insert_with(|| {
                        missing = length;
                        vec![0; length]
                    });

                    let at = packet.put_offset() as usize;
                    let count = packet.payload_len().min(length - at);
                    packet.read(&mut bytes[at..at + count]).unwrap();
                    missing -= count;
                })
                .unwrap();
        }
        message.unwrap()
    }
}

/// Returns two nodes.
fn pair(rig: &dyn Rig) -> (Node, Node) {
    (Node::new(rig, 0, 0), Node::new(rig, 1, 0))
}

/// Returns software bytes that carry a message's length.
fn length_bytes(length: u64) -> [u8; 13] {
    let mut bytes = [0; 13];
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    bytes
}

/// The coordinates of the nodes are those of their names.
#[body(on(MACHINE, CUBE))]
pub fn nodes_know_their_coordinates(rig: &dyn Rig) {
    for number in 0..2 {
        let device = rig.open(&format!("bgq{number}"), "s1");
        let subgroup = Subgroup::open(&device, Options::default()).unwrap();
        let position = subgroup.position();
        assert_eq!((position.rank(), position.own[0]), (number, number as u8));
        assert_eq!(subgroup.number(), 1);
        assert_eq!((subgroup.injection_id(2), subgroup.reception_id(2)), (10, 6));
    }
}

/// Puts of all sizes between odd addresses arrive, by ordered and by dynamic routes.
#[body]
pub fn puts_of_all_sizes_arrive(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let counter = remote.counter(0);

    for (index, length) in (0..).zip(SIZES) {
        let (from, to) = (SOURCE + index * 3, SINK + 101 - index * 5);
        let bytes = pattern(index, length as usize);
        local.write(from, &bytes);
        remote.write(to - 1, &vec![0xee; length as usize + 2]);

        for route in [local.ordered(&remote), local.dynamic(&remote)] {
            counter.set(length);
            let put = direct_put(local.payload(from, length), route, &remote.target(to, &counter)).unwrap();
            local.send(&put);
            remote.wait(&counter);
            assert!(remote.read(to, length) == bytes, "{length} bytes from {from} to {to}");
        }
        assert_eq!((remote.read(to - 1, 1)[0], remote.read(to + length, 1)[0]), (0xee, 0xee));
    }
}

/// Messages of all sizes go through a reception FIFO, and wrap around its end.
#[body]
pub fn fifo_messages_of_all_sizes_arrive(rig: &dyn Rig) {
    // The FIFO holds one packet of the longest kind and seven chunks of 32 bytes.
    let (mut local, mut remote) = (Node::new(rig, 0, 0), Node::with_sizes(rig, 1, 0, 8, 544 + 32 * 7));

    for (index, length) in (0..).zip(SIZES) {
        let from = SOURCE + index * 3;
        let bytes = pattern(index, length as usize);
        local.write(from, &bytes);

        for route in [local.ordered(&remote), local.dynamic(&remote)] {
            let target = MemoryFifo { software: length_bytes(length), ..remote.fifo() };
            let message = memory_fifo(local.payload(from, length), route, &target).unwrap();
            local.inject(&message);
            assert!(remote.message() == bytes, "{length} bytes from {from}");
        }
    }
}

/// A message without payload is one packet of a header, with its software bytes and put offset.
#[body]
pub fn a_message_without_payload_is_a_header(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig);
    let software = std::array::from_fn(|at| at as u8 + 100);
    let target = MemoryFifo { dispatch: 77, software, put_offset: 12_345, interrupt: true, ..remote.fifo() };
    local.send(&memory_fifo(Payload::NONE, local.ordered(&remote), &target).unwrap());

    remote.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
    let count = remote.subgroup.receive(RECEIVE, 9, |packet, _| {
        assert_eq!((packet.dispatch(), packet.put_offset(), packet.payload_len()), (77, 12_345, 0));
        assert_eq!(packet.software()[1..], software);
        assert_eq!(packet.read(&mut [0; 4]).unwrap(), 0);
    });
    assert_eq!(count, Ok(1));
    assert_eq!(remote.subgroup.receive(RECEIVE, 9, |_, _| panic!("another packet")), Ok(0));
}

/// A remote get fetches memory of the other node: its unit carries out the put.
#[body]
pub fn remote_gets_of_all_sizes_fetch(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let counter = local.counter(0);

    for (index, length) in (0..).zip(SIZES) {
        let (from, to) = (SOURCE + index * 7, SINK + 9 + index);
        let bytes = pattern(index + 50, length as usize);
        remote.write(from, &bytes);
        counter.set(length);

        let put =
            direct_put(remote.payload(from, length), remote.ordered(&local), &local.target(to, &counter));
        local.write(1024, put.unwrap().as_bytes());
        let target = RemoteGet { fifo: remote.subgroup.injection_id(GETS) };
        local.inject(&remote_get(local.payload(1024, 64), local.ordered(&remote), &target).unwrap());
        local.wait(&counter);
        assert!(local.read(to, length) == bytes, "{length} bytes");
    }
}

/// One remote get carries several descriptors, which are carried out in order.
#[body]
pub fn a_remote_get_carries_several_descriptors(rig: &dyn Rig) {
    const PARTS: u64 = 20;

    let (mut local, remote) = pair(rig);
    let counter = local.counter(0);
    remote.write(SOURCE, &pattern(1, 8 * PARTS as usize));
    counter.set(8 * PARTS);

    for part in 0..PARTS {
        let target = local.target(SINK + 8 * part, &counter);
        let put = direct_put(remote.payload(SOURCE + 8 * part, 8), remote.ordered(&local), &target).unwrap();
        local.write(1024 + 64 * part, put.as_bytes());
    }
    let target = RemoteGet { fifo: remote.subgroup.injection_id(GETS) };
    local.inject(&remote_get(local.payload(1024, 64 * PARTS), local.ordered(&remote), &target).unwrap());
    local.wait(&counter);
    assert_eq!(local.read(SINK, 8 * PARTS), pattern(1, 8 * PARTS as usize));
}

/// Atomic loads become payloads, and leave the changed value. Stores change the target.
#[body]
pub fn atomic_loads_and_stores_change_memory(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let (counter, word) = (remote.counter(0), SOURCE);
    let base = local.memory.iova();

    let loads = [(Load::Load, 5), (Load::Increment, 6), (Load::Decrement, 4), (Load::Clear, 0)];
    for (operation, remaining) in loads {
        local.write(word, &5_u64.to_le_bytes());
        counter.set(8);
        let payload = Payload::Load { address: base + word, operation };
        local.send(&direct_put(payload, local.ordered(&remote), &remote.target(SINK, &counter)).unwrap());
        remote.wait(&counter);
        assert_eq!((remote.word(SINK), local.word(word)), (5, remaining), "{operation:?}");
    }

    let stores = [
        (Store::Store, 3),
        (Store::Add, 15),
        (Store::AddCoherenceOnZero, 15),
        (Store::Or, 15),
        (Store::Xor, 15),
        (Store::MaxUnsigned, 12),
    ];
    for (operation, after) in stores {
        remote.write(SINK, &12_u64.to_le_bytes());
        local.write(word, &3_u64.to_le_bytes());
        counter.set(8);
        let target =
            DirectPut { offset: store_offset(SINK, operation).unwrap(), ..remote.target(0, &counter) };
        local.send(&direct_put(local.payload(word, 8), local.ordered(&remote), &target).unwrap());
        remote.wait(&counter);
        assert_eq!(remote.word(SINK), after, "{operation:?}");
    }
}

/// A remote get fetches and increments a word of the other node.
#[body]
pub fn a_remote_word_is_fetched_and_incremented(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let counter = local.counter(0);
    remote.write(SOURCE, &40_u64.to_le_bytes());

    for round in 0..3 {
        counter.set(8);
        let payload = Payload::Load { address: remote.memory.iova() + SOURCE, operation: Load::Increment };
        let put = direct_put(payload, remote.ordered(&local), &local.target(SINK, &counter)).unwrap();
        local.write(1024, put.as_bytes());
        let target = RemoteGet { fifo: remote.subgroup.injection_id(GETS) };
        local.inject(&remote_get(local.payload(1024, 64), local.ordered(&remote), &target).unwrap());
        local.wait(&counter);
        assert_eq!((local.word(SINK), remote.word(SOURCE)), (40 + round, 41 + round));
    }
    assert!(load_address(remote.memory.iova() + 4, Load::Load).is_err());
}

/// A copy in the memory of a node takes the local FIFOs. A prefetch ends, and sends nothing.
#[body]
pub fn copies_and_prefetches_stay_in_the_node(rig: &dyn Rig) {
    let mut local = Node::new(rig, 0, 0);
    let (own_node, counter) = (local.subgroup.position().destination(), local.counter(0));

    for (index, length) in (0..).zip(SIZES) {
        let bytes = pattern(index, length as usize);
        local.write(SOURCE + index, &bytes);
        counter.set(length);
        let target = local.target(SINK + 33 - index, &counter);
        local.send(&local_copy(own_node, local.payload(SOURCE + index, length), &target).unwrap());
        local.wait(&counter);
        assert!(local.read(SINK + 33 - index, length) == bytes, "{length} bytes");
    }

    local.send(&prefetch(own_node, local.memory.iova() + SOURCE, 64 << 10).unwrap());
    assert_eq!(local.subgroup.has_packet(RECEIVE), Ok(false));
}

/// A FIFO that makes no progress takes as many descriptors as it holds, and no more. Then all are
/// carried out, in order.
#[body]
pub fn a_full_injection_fifo_refuses_descriptors(rig: &dyn Rig) {
    const DESCRIPTORS: u32 = 5;

    let (mut local, mut remote) = (Node::with_sizes(rig, 0, 0, DESCRIPTORS, 4096), Node::new(rig, 1, 0));
    local.subgroup.set_injection_enabled(1 << SEND, false).unwrap();
    let route = local.ordered(&remote);
    let message = |number: u32| {
        let target = MemoryFifo { put_offset: number.into(), ..remote.fifo() };
        memory_fifo(Payload::NONE, route, &target).unwrap()
    };
    let messages: Vec<_> = (0..=DESCRIPTORS).map(message).collect();

    let first = local.inject(&messages[0]);
    assert_eq!(local.subgroup.injection().room(SEND), Ok(u64::from(DESCRIPTORS) - 1));
    let batch = &messages[1..DESCRIPTORS as usize];
    assert_eq!(local.subgroup.injection().try_inject_all(SEND, &messages[..5]), Ok(None));
    let last = local.subgroup.injection().try_inject_all(SEND, batch).unwrap().unwrap();
    assert_eq!(last, first + u64::from(DESCRIPTORS) - 1);
    assert_eq!(local.subgroup.try_inject(SEND, &messages[5]), Ok(None));
    let too_many = local.subgroup.injection().try_inject_all(SEND, &messages);
    assert!(matches!(too_many, Err(Error::Batch { count: 6, most: 5 })));
    let late = local.subgroup.inject(SEND, &messages[5], Deadline::after(SHORT), None);
    assert!(matches!(late, Err(Error::Driver(DriverError::Timeout { .. }))), "{late:?}");
    assert_eq!(local.subgroup.injection().check_done(SEND, first), Ok(false));

    local.subgroup.set_injection_enabled(1 << SEND, true).unwrap();
    local.send(&messages[5]);
    let observed = Cell::new(0);
    while observed.get() <= u64::from(DESCRIPTORS) {
        remote.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
        let on_packet = |packet: &nicforge_spi::Packet<'_>, _: &mut nicforge_spi::Injection| {
            assert_eq!(packet.put_offset(), observed.get());
            observed.set(observed.get() + 1);
        };
        remote.subgroup.receive(RECEIVE, 100, on_packet).unwrap();
    }
    assert_eq!(local.subgroup.injection().check_done(SEND, last), Ok(true));
}

/// The pointers of the smallest FIFOs go round many times.
#[body]
pub fn the_smallest_fifos_wrap_around(rig: &dyn Rig) {
    let (mut local, mut remote) = (Node::with_sizes(rig, 0, 0, 1, 576), Node::with_sizes(rig, 1, 0, 1, 576));
    let rounds = rig.repetitions(200);

    for round in 0..rounds {
        let length = u64::from(round * 37 % 600);
        let bytes = pattern(round.into(), length as usize);
        local.write(SOURCE, &bytes);
        let target = MemoryFifo { software: length_bytes(length), ..remote.fifo() };
        local.inject(&memory_fifo(local.payload(SOURCE, length), local.ordered(&remote), &target).unwrap());
        assert!(remote.message() == bytes, "{length} bytes in round {round}");
    }
}

/// A receiver that takes nothing stalls its sender. Nothing is lost, and another reception FIFO of
/// the node continues once the packets in front are taken.
#[body]
pub fn a_stalled_receiver_loses_nothing(rig: &dyn Rig) {
    const MESSAGES: u64 = 300;

    let (mut local, mut remote) =
        (Node::with_sizes(rig, 0, 0, 400, 4096), Node::with_sizes(rig, 1, 0, 8, 1120));
    local.write(SOURCE, &pattern(9, 512));
    for number in 0..MESSAGES {
        let target = MemoryFifo { put_offset: number, ..remote.fifo() };
        let message = memory_fifo(local.payload(SOURCE, 512), local.ordered(&remote), &target).unwrap();
        local.inject(&message);
    }
    let last = local.subgroup.injection().injected(SEND).unwrap();
    let stalled = local.subgroup.injection().wait_done(SEND, last, Deadline::after(SHORT), None);
    assert!(matches!(stalled, Err(Error::Driver(DriverError::Timeout { .. }))), "{stalled:?}");

    let mut expected = 0;
    while expected < MESSAGES {
        remote.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
        remote
            .subgroup
            .receive(RECEIVE, 1, |packet, _| {
                let mut bytes = [0; 512];
                packet.read(&mut bytes).unwrap();
                assert_eq!((packet.put_offset(), &bytes[..]), (expected, &pattern(9, 512)[..]));
                expected += 1;
            })
            .unwrap();
    }
    local.subgroup.injection().wait_done(SEND, last, test_deadline(), None).unwrap();
}

/// A packet calls the function that is registered for its dispatch id, which may answer. A packet
/// without a function is reported.
#[body]
pub fn packets_are_dispatched_by_their_dispatch_ids(rig: &dyn Rig) {
    let (mut local, mut remote) = pair(rig);
    let answer =
        memory_fifo(Payload::NONE, remote.ordered(&local), &MemoryFifo { dispatch: 3, ..local.fifo() });
    let (answer, counts) = (answer.unwrap(), [const { Cell::new(0) }; 2]);

    let mut handlers = Handlers::new();
    handlers.register(1, |_, injection| {
        counts[0].set(counts[0].get() + 1);
        assert!(injection.try_inject(SEND, &answer).unwrap().is_some());
    });
    assert_eq!(handlers.register_free(|_, _| counts[1].set(counts[1].get() + 1)), Some(0));

    let mut send = |dispatch: u8| {
        let target = MemoryFifo { dispatch, ..remote.fifo() };
        local.send(&memory_fifo(Payload::NONE, local.ordered(&remote), &target).unwrap());
    };
    for dispatch in [0, 1, 1, 9, 0] {
        send(dispatch);
    }

    let (mut taken, mut unknown) = (0, 0);
    while taken + unknown < 5 {
        remote.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
        match remote.subgroup.poll(RECEIVE, 1, &mut handlers) {
            Ok(count) => taken += count,
            Err(Error::NoHandler { dispatch: 9 }) => unknown += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((taken, unknown), (4, 1));
    assert_eq!((counts[0].get(), counts[1].get()), (2, 2));
    assert!(handlers.deregister(1) && !handlers.deregister(1));
    drop(handlers);

    let mut answers = 0;
    while answers < 2 {
        local.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
        local
            .subgroup
            .receive(RECEIVE, 9, |packet, _| {
                assert_eq!(packet.dispatch(), 3);
                answers += 1;
            })
            .unwrap();
    }
}

/// Two subgroups of a node send to each other and to themselves, and have memory of their own.
#[body]
pub fn two_subgroups_of_a_node_exchange(rig: &dyn Rig) {
    let (mut first, mut second) = (Node::new(rig, 0, 0), Node::new(rig, 0, 1));
    let (first_counter, second_counter) = (first.counter(0), second.counter(0));
    first.write(SOURCE, &pattern(1, 3000));
    second.write(SOURCE, &pattern(2, 3000));

    first_counter.set(3000);
    second_counter.set(3000);
    let remote = direct_put(
        first.payload(SOURCE, 3000),
        first.ordered(&second),
        &second.target(SINK, &second_counter),
    );
    let back =
        direct_put(second.payload(SOURCE, 3000), second.ordered(&first), &first.target(SINK, &first_counter));
    first.send(&remote.unwrap());
    second.send(&back.unwrap());
    first.wait(&first_counter);
    second.wait(&second_counter);
    assert_eq!((first.read(SINK, 3000), second.read(SINK, 3000)), (pattern(2, 3000), pattern(1, 3000)));

    let target = MemoryFifo { software: length_bytes(600), ..first.fifo() };
    first.send(&memory_fifo(first.payload(SOURCE, 600), first.ordered(&first), &target).unwrap());
    assert_eq!(first.message(), pattern(1, 600));
    assert_eq!(second.subgroup.has_packet(RECEIVE), Ok(false));
}

/// A wait for a packet ends by its interrupt, at its deadline, or when its [`Cancel`] is cancelled.
#[body]
pub fn waits_end_by_interrupt_deadline_and_cancel(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let late = local.subgroup.wait_packet(RECEIVE, Deadline::after(SHORT), None);
    assert!(matches!(late, Err(Error::Driver(DriverError::Timeout { .. }))), "{late:?}");

    let counter = local.counter(0);
    counter.set(1);
    let late = local.subgroup.wait_counter(&counter, Deadline::after(SHORT), None);
    assert!(matches!(late, Err(Error::Driver(DriverError::Timeout { .. }))), "{late:?}");

    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    let ended = local.subgroup.wait_packet(RECEIVE, Deadline::never(), Some(&cancel));
    assert_eq!(ended, Err(Error::Driver(DriverError::Cancelled)));

    let target = MemoryFifo { interrupt: true, ..local.fifo() };
    let mut sender = remote;
    let message = memory_fifo(Payload::NONE, sender.ordered(&local), &target).unwrap();
    for _ in 0..3 {
        sender.send(&message);
        local.subgroup.wait_packet(RECEIVE, test_deadline(), None).unwrap();
        assert_eq!(local.subgroup.receive(RECEIVE, 9, |_, _| ()), Ok(1));
    }
}

/// A sleeping wait is woken by a packet that another thread sends.
#[body(not_through(in_process) = "time passes only in waits, which the sender's thread does not begin")]
pub fn a_sleeping_wait_is_woken_by_an_interrupt(rig: &dyn Rig) {
    let device = rig.open("bgq1", "s0");
    let options = Options { spin: Duration::ZERO, sleep: Duration::from_secs(60) };
    let mut sleeper = Subgroup::open(&device, options).unwrap();
    sleeper.open_reception(RECEIVE, 4096).unwrap();
    let mut sender = Node::new(rig, 0, 0);

    let position = sender.subgroup.position();
    let route = position.ordered(sleeper.position().own);
    let target = MemoryFifo { fifo: sleeper.reception_id(RECEIVE), interrupt: true, ..MemoryFifo::default() };
    let message = memory_fifo(Payload::NONE, route, &target).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..5 {
                sender.send(&message);
            }
            sender
        });
        let mut remaining = 5;
        while remaining > 0 {
            sleeper.wait_packet(RECEIVE, test_deadline(), None).unwrap();
            remaining -= sleeper.receive(RECEIVE, 9, |_, _| ()).unwrap();
        }
    });
}

/// A descriptor that the unit refuses stops its FIFO, until it is restarted. Others continue.
#[body]
pub fn a_refused_descriptor_stops_only_its_own_fifo(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    local.subgroup.open_injection(5, 8, InjectionAttributes::default()).unwrap();
    let counter = remote.counter(0);
    let invalid = Payload::memory(0xf_0000_0000, 64);
    let invalid = direct_put(invalid, local.ordered(&remote), &remote.target(SINK, &counter)).unwrap();
    let valid = direct_put(local.payload(SOURCE, 64), local.ordered(&remote), &remote.target(SINK, &counter));
    let valid = valid.unwrap();

    let number = local.inject(&invalid);
    let ended = local.subgroup.injection().wait_done(SEND, number, test_deadline(), None);
    assert!(
        matches!(ended, Err(Error::Stopped { fifo: SEND, fault: Fault::Unmapped | Fault::Range })),
        "{ended:?}"
    );
    assert!(local.subgroup.injection().fault(SEND).unwrap().is_some());

    counter.set(64);
    local.subgroup.inject(5, &valid, test_deadline(), None).unwrap();
    remote.wait(&counter);

    local.subgroup.restart_injection(SEND).unwrap();
    counter.set(64);
    local.send(&valid);
    remote.wait(&counter);
    assert_eq!(local.subgroup.injection().fault(SEND), Ok(None));
}

/// The numbers of descriptors that a restart has withdrawn are not given to later descriptors.
#[body]
pub fn withdrawn_numbers_are_not_given_again(rig: &dyn Rig) {
    let (mut local, remote) = pair(rig);
    let counter = remote.counter(0);
    let put = direct_put(local.payload(SOURCE, 64), local.ordered(&remote), &remote.target(SINK, &counter));
    let put = put.unwrap();
    counter.set(64);
    let done = local.inject(&put);
    local.subgroup.injection().wait_done(SEND, done, test_deadline(), None).unwrap();

    local.subgroup.set_injection_enabled(1 << SEND, false).unwrap();
    let withdrawn = [(); 3].map(|()| local.inject(&put));
    local.subgroup.restart_injection(SEND).unwrap();
    counter.set(64);
    let next = local.inject(&put);
    assert_eq!(next, withdrawn[2] + 1);
    local.subgroup.injection().wait_done(SEND, next, test_deadline(), None).unwrap();
    for number in withdrawn {
        let ended = local.subgroup.injection().check_done(SEND, number);
        assert_eq!(ended, Err(Error::Withdrawn { fifo: SEND, number }));
    }
    assert_eq!(local.subgroup.injection().check_done(SEND, done), Ok(true));
    assert_eq!(local.subgroup.injection().injected(SEND), Ok(next));

    // A later restart does not make them done, and numbers go on behind each one.
    local.subgroup.restart_injection(SEND).unwrap();
    counter.set(64);
    assert_eq!(local.inject(&put), next + 1);
    local.subgroup.injection().wait_done(SEND, next + 1, test_deadline(), None).unwrap();
    assert_eq!(local.subgroup.injection().check_done(SEND, next), Ok(true));
    let ended = local.subgroup.injection().check_done(SEND, withdrawn[0]);
    assert_eq!(ended, Err(Error::Withdrawn { fifo: SEND, number: withdrawn[0] }));
}

/// Calls on a subgroup that was reset return an error, and the subgroup can be opened again.
#[body]
pub fn calls_on_a_reset_subgroup_return_an_error(rig: &dyn Rig) {
    let device = rig.open("bgq0", "s0");
    let mut subgroup = Subgroup::open(&device, Options::default()).unwrap();
    subgroup.open_reception(RECEIVE, 4096).unwrap();
    device.reset().unwrap();
    assert_eq!(subgroup.wait_packet(RECEIVE, test_deadline(), None), Err(Error::Reset));
    drop(subgroup);

    let mut reopened = Subgroup::open(&device, Options::default()).unwrap();
    reopened.open_reception(RECEIVE, 4096).unwrap();
    assert_eq!(reopened.has_packet(RECEIVE), Ok(false));
}

/// Numbers, sizes and FIFOs that do not exist are refused.
#[body]
pub fn impossible_fifos_are_refused(rig: &dyn Rig) {
    let device = rig.open("bgq0", "s0");
    let mut subgroup = Subgroup::open(&device, Options::default()).unwrap();
    let plain = InjectionAttributes::default();
    let empty_message =
        memory_fifo(Payload::NONE, subgroup.position().ordered([0; 5]), &MemoryFifo::default()).unwrap();

    assert!(matches!(subgroup.open_injection(8, 4, plain), Err(Error::NoSuch { .. })));
    assert!(matches!(subgroup.open_reception(4, 4096), Err(Error::NoSuch { .. })));
    assert!(matches!(subgroup.set_base_address(8, 0), Err(Error::NoSuch { .. })));
    assert!(matches!(subgroup.barrier(16), Err(Error::NoSuch { .. })));
    let address = 1 << 37;
    assert_eq!(subgroup.set_base_address(0, address), Err(Error::BaseAddressTooHigh { address }));
    assert_eq!(subgroup.base_address(0), Ok(NO_BASE_ADDRESS));
    subgroup.set_base_address(0, address - 1).unwrap();
    subgroup.set_base_address(0, NO_BASE_ADDRESS).unwrap();
    assert!(matches!(subgroup.open_injection(0, 0, plain), Err(Error::FifoMemory { .. })));
    for bytes in [0, 544, 575, 577] {
        assert!(matches!(subgroup.open_reception(0, bytes), Err(Error::FifoMemory { .. })), "{bytes}");
    }
    assert!(matches!(subgroup.try_inject(0, &empty_message), Err(Error::NotInitialised { .. })));
    assert!(matches!(subgroup.has_packet(0), Err(Error::NotInitialised { .. })));
    assert!(matches!(subgroup.try_inject(8, &empty_message), Err(Error::NoSuch { .. })));
    assert!(matches!(
        Subgroup::open(&rig.open("bgq0", "kernel"), Options::default()),
        Err(Error::WrongDevice { .. })
    ));
}
