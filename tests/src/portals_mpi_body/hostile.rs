//! A rank that breaks the protocol.
//!
//! Rank 3 is a process without the library, the *stranger*, which makes the calls of Portals by
//! itself. The match bits and portals are those of the library's modules `bits` and `card`.

use std::collections::VecDeque;

use nicforge_portals::{
    Ack, Criteria, Descriptor, Event, EventKind, EventQueue, Interface, KernelConfig, MemoryDescriptor, Mode,
    Options, Position, ProcessId, Region, Target, Unlink,
};
use nicforge_portals_mpi::{Error, Request, Selector};
use nicforge_test_body::body;

use super::{MACHINE, World, bytes, small};
use crate::{backing::Rig, pattern::pattern};

/// The library's portal for messages, and for headers of long messages.
const MESSAGES: u8 = 4;
/// The library's portal from which receivers get long messages.
const EXPOSED: u8 = 5;
/// The library's portal for messages that are put again, because they found no memory.
const REPEATED: u8 = 6;
/// The library's portal for control messages.
const CONTROL: u8 = 7;
/// A portal without entries.
const NOWHERE: u8 = 20;
/// Match bits of a control message that asks whether a rank is there.
const QUESTION: u64 = 1;
/// Match bits of a control message that asks for a message to be put again.
const REQUEST: u64 = 4;
/// Match bits of a control message by which a receiver gives a message up.
const GIVEN_UP: u64 = 5;
/// Match bits of a control message by which a sender answers that it has the message no more.
const NO_LONGER_THERE: u64 = 6;

/// The stranger's rank.
const RANK: u32 = 3;
/// Bytes of the stranger's memory.
const MEMORY: u64 = 128 << 10;

/// Returns the match bits of a long message (kind 2) of the stranger in context 0.
fn long_bits(tag: u64) -> u64 {
    2 << 62 | u64::from(RANK) << 32 | tag << 8
}

/// Rank 3.
struct Stranger {
    interface: Interface,
    queue: EventQueue,
    memory: Region,
    source: MemoryDescriptor,
    /// Events that were taken, and that no call has looked for.
    seen: VecDeque<Event>,
}

impl Stranger {
    /// Opens the rank in NIC-based mode. Its card answers questions.
    fn open(rig: &dyn Rig, world: &World) -> Self {
        let device = rig.open("ss1", "p1");
        let interface = Interface::open(&world.kernels[1], device, Mode::NicBased).unwrap();
        let (memory, queue) = (interface.allocate(MEMORY).unwrap(), interface.allocate_queue(4096).unwrap());
        let options = Options::START_DISABLE;
        let source = Descriptor { options, queue: Some(&queue), ..Descriptor::over(&memory) };
        let source = interface.bind_descriptor(&source).unwrap();

        let takes = Options::PUT | Options::TRUNCATE | Options::MANAGE_REMOTE | Options::START_DISABLE;
        let post = |portal, criteria, values: &Descriptor<'_>| {
            interface.post(Position::Tail(portal), criteria, Unlink::Retain, values, None).unwrap();
        };
        let header = Descriptor { options: takes, length: 0, ..Descriptor::over(&memory) };
        post(CONTROL, Criteria::bits(QUESTION), &header);
        // Messages are not acknowledged, as those that find no memory.
        let any = Criteria { ignore_bits: u64::MAX, ..Criteria::bits(0) };
        let unacknowledged = takes | Options::ACK_DISABLE;
        post(MESSAGES, any, &Descriptor { options: unacknowledged, queue: Some(&queue), ..header });
        post(REPEATED, any, &Descriptor { length: MEMORY, queue: Some(&queue), ..header });
        Self { interface, queue, memory, source, seen: VecDeque::new() }
    }

    /// Puts `length` bytes of its memory to a rank of node 0, for a portal and with match bits, and
    /// waits until the rank's card has taken them.
    fn put(&mut self, world: &mut World, to: u16, (portal, bits): (u8, u64), length: u64, id: u64) {
        let target = Target::new(ProcessId { node: 0, process: to }, portal, bits);
        self.interface.put_region(&self.source, 0, length, Ack::No, &target, id).unwrap();
        self.event(world, EventKind::SendEnd, portal);
    }

    /// Sends a control message about a message of rank 0.
    fn control(&mut self, world: &mut World, bits: u64, id: u64) {
        self.put(world, 0, (CONTROL, bits), 0, id);
    }

    /// Gets an exposed message of rank 0 into its memory.
    fn get(&self, length: u64, id: u64) {
        let target = Target::new(ProcessId { node: 0, process: 0 }, EXPOSED, id);
        self.interface.get_region(&self.source, 0, length, &target).unwrap();
    }

    /// Waits for an event. Rank 2 makes no calls meanwhile.
    fn event(&mut self, world: &mut World, kind: EventKind, portal: u8) -> Event {
        self.event_or(world, kind, portal, || false).unwrap()
    }

    /// As [`Stranger::event`], but returns `None` if `is_over` before the event.
    fn event_or(
        &mut self,
        world: &mut World,
        kind: EventKind,
        portal: u8,
        is_over: impl Fn() -> bool,
    ) -> Option<Event> {
        let is_this = |event: &Event| event.kind == kind && event.message.portal == portal;
        world.drive_some_until(2, "an event of the stranger", |_| {
            while let Some(event) = self.queue.get().unwrap() {
                self.seen.push_back(event);
            }
            let position = self.seen.iter().position(is_this);
            let event = position.and_then(|position| self.seen.remove(position));
            (event.is_some() || is_over()).then_some(event)
        })
    }

    /// Returns the beginning of its memory.
    fn read(&self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.memory.read(0, &mut data).unwrap();
        data
    }
}

/// Opens three ranks and the stranger. Rank 2, on the stranger's node, is matched by its kernel,
/// whose event queue is small.
fn world_with_stranger(rig: &dyn Rig) -> (World, Stranger) {
    let kernel = KernelConfig { events: 64, ..KernelConfig::default() };
    let modes = [Mode::NicBased, Mode::NicBased, Mode::HostBased];
    let mut world = World::open(rig, &modes, small(), kernel);
    let stranger = Stranger::open(rig, &world);
    world.wait_for_all();
    (world, stranger)
}

/// Has all further messages from node 0 to node 1 wait until rank 2 makes a call: the queue of its
/// kernel is full, so that the card refuses a message of rank 1, and those after it. Returns the
/// send of that message.
fn plug(rig: &dyn Rig, world: &mut World, stranger: &mut Stranger) -> Request {
    let target = Target::new(ProcessId { node: 1, process: 0 }, NOWHERE, 0);
    while rig.counter("ss1", "firmware_refused") == 0 {
        stranger.interface.put_region(&stranger.source, 0, 0, Ack::No, &target, 0).unwrap();
        stranger.event_or(world, EventKind::SendEnd, NOWHERE, || rig.counter("ss1", "firmware_refused") > 0);
    }
    world.send(1, 2, 77, b"plug")
}

/// Receives the message of [`plug`], so that those after it arrive.
fn unplug(world: &mut World, plug: Request) {
    let receive = world.receive(2, Selector::exact(1, 0, 77), 4);
    assert_eq!(bytes(&world.wait(2, receive)), b"plug");
    assert_eq!(world.wait(1, plug).result, Ok(()));
}

/// Lets ranks 0 and 1 exchange messages of all protocols.
fn exchange(world: &mut World) {
    for (from, to) in [(0, 1), (1, 0)] {
        for length in [100, 4000, 9000] {
            let before = world.ranks[to].statistics().unexpected;
            let send = world.send(from, to as u32, 5, &pattern(9, length));
            world.drive_some_until(2, "a message", |ranks| {
                (ranks[to].statistics().unexpected > before).then_some(())
            });
            let receive = world.receive(to, Selector::exact(from as u32, 0, 5), length);
            let done = world.drive_some_until(2, "a receive", |ranks| ranks[to].test(receive).unwrap());
            assert!(bytes(&done) == pattern(9, length));
            let done = world.drive_some_until(2, "a send", |ranks| ranks[from].test(send).unwrap());
            assert_eq!(done.result, Ok(()));
        }
    }
}

/// Gets that a rank never answers leave room for other operations. Its notice that it no longer has
/// the message ends the get, and the receive has its buffer back at once.
#[body]
pub fn gets_that_a_rank_never_answers_leave_room_for_others(rig: &dyn Rig) {
    const WINDOW: u64 = 16;
    const MESSAGES_SENT: u64 = 6 * WINDOW;
    let (mut world, mut stranger) = world_with_stranger(rig);
    let mut receives = Vec::new();
    for id in 0..MESSAGES_SENT {
        stranger.put(&mut world, 0, (MESSAGES, long_bits(id)), 300, id);
        world.await_unexpected(0, id + 1);
        receives.push(world.receive(0, Selector::exact(RANK, 0, id), 300));
    }

    exchange(&mut world);
    assert_eq!(world.ranks[0].statistics().refused, 0);
    for (id, receive) in (0..).zip(receives) {
        stranger.control(&mut world, NO_LONGER_THERE, id);
        let done = world.wait(0, receive);
        assert_eq!(done.result, Err(Error::NoLongerThere { peer: RANK }));
        assert_eq!(done.buffer.len(), 300);
    }
    exchange(&mut world);
    let heap = small().space.heap as usize;
    assert_eq!(world.ranks[0].allocate(heap).unwrap().len(), heap);
}

/// A message that its receiver gives up while a get of it is in progress keeps its memory until the
/// get has ended.
#[body]
pub fn memory_of_a_failed_message_stays_until_its_get_ends(rig: &dyn Rig) {
    const BYTES: usize = 9000;
    let (mut world, mut stranger) = world_with_stranger(rig);
    let data = pattern(1, BYTES);
    let send = world.send(0, RANK, 1, &data);
    let id = stranger.event(&mut world, EventKind::PutEnd, MESSAGES).message.header_data;
    let plug = plug(rig, &mut world, &mut stranger);

    // The reply waits behind the plug, unless it overtakes that at the end of a back-off. The card
    // handles the get before the notice, which came later.
    stranger.get(BYTES as u64, id);
    stranger.control(&mut world, GIVEN_UP, id);
    let done = world.drive_some_until(2, "the send", |ranks| ranks[0].test(send).unwrap());
    assert_eq!(done.result, Err(Error::GivenUp { peer: RANK }));
    assert_eq!(done.buffer.len(), 0);

    // All other memory of the rank has other data.
    let heap: Vec<_> = std::iter::from_fn(|| {
        let mut buffer = world.ranks[0].allocate(BYTES).ok()?;
        buffer.write(0, &[0xff; BYTES]).unwrap();
        Some(buffer)
    })
    .collect();
    unplug(&mut world, plug);
    stranger.event(&mut world, EventKind::ReplyEnd, EXPOSED);
    assert!(stranger.read(BYTES) == data);
    world.drive_until("the end of the get", |ranks| (ranks[0].retained() == 0).then_some(()));
    drop((heap, done));
    let heap = small().space.heap as usize;
    assert_eq!(world.ranks[0].allocate(heap).unwrap().len(), heap);
}

/// A rank that asks again and again for a message gets it by one put at a time, so that the other
/// operations of the sender go on.
#[body]
pub fn requests_without_end_leave_room_for_others(rig: &dyn Rig) {
    const BYTES: usize = 2000;
    let (mut world, mut stranger) = world_with_stranger(rig);
    let data = pattern(1, BYTES);
    let send = world.send(0, RANK, 1, &data);
    let id = stranger.event(&mut world, EventKind::PutEnd, MESSAGES).message.header_data;
    let plug = plug(rig, &mut world, &mut stranger);

    for _ in 0..100 {
        stranger.control(&mut world, REQUEST, id);
        world.ranks[0].progress().unwrap();
    }
    exchange(&mut world);
    unplug(&mut world, plug);
    let mut done = world.wait(0, send);
    assert_eq!(done.result, Ok(()));
    done.buffer.write(0, &[0xff; BYTES]).unwrap();

    // The data of all puts are the message's. The last message follows them.
    world.send(0, RANK, 2, b"last");
    stranger.event(&mut world, EventKind::PutEnd, MESSAGES);
    assert!(stranger.seen.iter().any(|event| event.message.portal == REPEATED));
    assert!(stranger.read(BYTES) == data);
}

/// A receiver gets a message and also asks for it to be put again. The send is complete only when
/// both the get and the put have ended, because the card reads the memory until then.
#[body]
pub fn a_send_is_complete_when_the_card_reads_no_more(rig: &dyn Rig) {
    const BYTES: usize = 100_000;
    let (mut world, mut stranger) = world_with_stranger(rig);
    let data = pattern(1, BYTES);
    let send = world.send(0, RANK, 1, &data);
    let id = stranger.event(&mut world, EventKind::PutEnd, MESSAGES).message.header_data;
    let plug = plug(rig, &mut world, &mut stranger);

    // The reply to the get, and the put after it, wait behind the plug.
    stranger.get(BYTES as u64, id);
    stranger.control(&mut world, REQUEST, id);
    world.ranks[0].progress().unwrap();
    unplug(&mut world, plug);
    let mut done = world.wait(0, send);
    assert_eq!(done.result, Ok(()));
    done.buffer.write(0, &[0xff; BYTES]).unwrap();

    stranger.event(&mut world, EventKind::ReplyEnd, EXPOSED);
    stranger.event(&mut world, EventKind::PutEnd, REPEATED);
    assert!(stranger.read(BYTES) == data);
}

/// Headers of messages beyond the window of their rank are refused.
#[body]
pub fn headers_beyond_the_window_are_refused(rig: &dyn Rig) {
    let (mut world, mut stranger) = world_with_stranger(rig);
    let window = u64::from(small().window);
    for id in 0..5 * window {
        stranger.put(&mut world, 0, (MESSAGES, long_bits(id)), 300, id);
    }
    world.drive_until("all headers", |ranks| (ranks[0].statistics().refused == 4 * window).then_some(()));
    exchange(&mut world);

    // A receive makes room for a further one.
    let receive = world.receive(0, Selector::exact(RANK, 0, 0), 300);
    stranger.put(&mut world, 0, (MESSAGES, long_bits(1000)), 300, 1000);
    let last = world.receive(0, Selector::exact(RANK, 0, 1000), 300);
    for (id, receive) in [(0, receive), (1000, last)] {
        stranger.control(&mut world, NO_LONGER_THERE, id);
        assert_eq!(world.wait(0, receive).result, Err(Error::NoLongerThere { peer: RANK }));
    }
    assert_eq!(world.ranks[0].statistics().refused, 4 * window);
}
