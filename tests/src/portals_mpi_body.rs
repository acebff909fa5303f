//! Test bodies of MPI-style messages over Portals: four ranks, two on each of two SeaStars, matched
//! by the card and by the kernel.
//!
//! One thread drives all ranks and their kernels alternately. No body depends on when a message
//! arrives.
//!
//! - this file: sizes, orders, wildcards, cancels, truncation, segments, the programs
//! - `pressure.rs`: full windows, full memory for unexpected messages, a full card
//! - `damage.rs`: data that are damaged in the network
//! - `deaths.rs`: processes and nodes that end
//! - `hostile.rs`: a rank that breaks the protocol

pub mod damage;
pub mod deaths;
pub mod hostile;
pub mod order;
pub mod pressure;

use std::sync::Arc;

use nicforge_driver::Relax;
use nicforge_mpi_programs::{
    Program, message_rate, ping_pong,
    random_access::{Table, Updates},
};
use nicforge_portals::{Interface, Kernel, KernelConfig, Mode};
use nicforge_portals_mpi::{
    Buffer, Completion, Config, Endpoint, Envelope, Error, Job, Kind, Request, Segment, Selector, SpaceBytes,
    Unexpected,
};
use nicforge_test_body::body;

use crate::{
    backing::{LIMIT, Rig, test_deadline},
    bodies::{Guests, TestMachine},
    pattern::pattern,
    portals_body::machine,
};

/// The machine of all bodies of this module.
pub static MACHINE: TestMachine = TestMachine {
    name: "portals_mpi",
    make: machine,
    guests: Guests::None("the bodies of Portals run in guests, and these use the card in the same way"),
};

/// Both modes.
const MODES: [Mode; 2] = [Mode::NicBased, Mode::HostBased];
/// Ranks of the job.
const RANKS: u32 = 4;

/// Returns a configuration with little memory. A short message has up to 256 bytes, and a medium
/// one up to 4,096.
fn small() -> Config {
    Config {
        short: 256,
        medium: 4096,
        window: 16,
        slots: 8,
        unexpected: Unexpected { buffers: 2, bytes: 16 << 10, messages: 16 },
        space: SpaceBytes { data: 4096, heap: 4 << 20, stack: 4096 },
        ..Config::default()
    }
}

/// The ranks of a body, and their kernels.
struct World {
    ranks: Vec<Endpoint>,
    kernels: Vec<Arc<Kernel>>,
}

impl World {
    /// Opens all ranks in one mode.
    fn new(rig: &dyn Rig, mode: Mode, config: Config) -> Self {
        Self::of_modes(rig, [mode; RANKS as usize], config)
    }

    /// Opens all ranks, each in its mode.
    fn of_modes(rig: &dyn Rig, modes: [Mode; RANKS as usize], config: Config) -> Self {
        let mut world = Self::open(rig, &modes, config, KernelConfig::default());
        world.wait_for_all();
        world
    }

    /// Opens the first ranks, each in its mode, and waits for none.
    fn open(rig: &dyn Rig, modes: &[Mode], config: Config, kernel: KernelConfig) -> Self {
        let kernel = |node| Kernel::boot(rig.open(&format!("ss{node}"), "kernel"), kernel);
        let kernels = vec![kernel(0).unwrap(), kernel(1).unwrap()];
        let job = Job::of_nodes(2, 2);

        let rank = |(number, &mode): (usize, &Mode)| {
            let device = rig.open(&format!("ss{}", number / 2), &format!("p{}", number % 2));
            let interface = Interface::open(&kernels[number / 2], device, mode).unwrap();
            Endpoint::open(interface, &job, config).unwrap()
        };
        let ranks = modes.iter().enumerate().map(rank).collect();
        Self { ranks, kernels }
    }

    /// Waits until all ranks have answered.
    fn wait_for_all(&mut self) {
        self.drive_until("all ranks", |ranks| {
            let ready: Vec<_> = ranks.iter_mut().map(|rank| rank.poll_for_all().unwrap()).collect();
            ready.into_iter().all(|ready| ready).then_some(())
        });
    }

    /// Drives all ranks until `attempt` returns a value.
    fn drive_until<R>(&mut self, description: &str, attempt: impl FnMut(&mut [Endpoint]) -> Option<R>) -> R {
        self.drive_some_until(self.ranks.len(), description, attempt)
    }

    /// Drives the first `count` ranks until `attempt` returns a value.
    fn drive_some_until<R>(
        &mut self,
        count: usize,
        description: &str,
        mut attempt: impl FnMut(&mut [Endpoint]) -> Option<R>,
    ) -> R {
        let (deadline, mut relax) = (test_deadline(), Relax::new());
        loop {
            if let Some(value) = attempt(&mut self.ranks) {
                return value;
            }
            let ranks = &self.ranks;
            let statistics: Vec<_> = ranks.iter().map(Endpoint::statistics).collect();
            assert!(!deadline.has_passed(), "not within {LIMIT:?}: {description}; {statistics:?}; {ranks:?}");

            for rank in &mut self.ranks[..count] {
                rank.progress().unwrap();
            }
            self.ranks[0].relax(&mut relax).unwrap();
        }
    }

    /// Drives all ranks until a request is complete.
    fn wait(&mut self, rank: usize, request: Request) -> Completion {
        self.drive_until("a completion", |ranks| ranks[rank].test(request).unwrap())
    }

    /// Waits until a rank has seen this number of unexpected messages.
    fn await_unexpected(&mut self, rank: usize, count: u64) {
        self.drive_until("unexpected messages", |ranks| {
            (ranks[rank].statistics().unexpected >= count).then_some(())
        });
    }

    /// Starts a send of `data`.
    fn send(&mut self, from: usize, to: u32, tag: u64, data: &[u8]) -> Request {
        let buffer = self.buffer_of(from, data);
        self.ranks[from].isend(Envelope::new(to, 0, tag), buffer, tag).unwrap()
    }

    /// Starts a receive of up to `bytes` bytes.
    fn receive(&mut self, rank: usize, selector: Selector, bytes: usize) -> Request {
        let buffer = self.ranks[rank].allocate(bytes).unwrap();
        self.ranks[rank].irecv(selector, buffer, 0).unwrap()
    }

    /// Returns a buffer of a rank with `data` in it.
    fn buffer_of(&self, rank: usize, data: &[u8]) -> Buffer {
        let mut buffer = self.ranks[rank].allocate(data.len()).unwrap();
        buffer.write(0, data).unwrap();
        buffer
    }

    /// Waits until all messages are acknowledged, so that ranks can end.
    fn finish(mut self) {
        self.drive_until("all acknowledgements", |ranks| {
            ranks.iter().all(|rank| rank.unacknowledged() == 0).then_some(())
        });
        assert!(self.ranks.iter().all(|rank| rank.outstanding() == 0));
    }
}

/// Returns the bytes of the message that a receive took.
fn bytes(completion: &Completion) -> Vec<u8> {
    completion.buffer.to_vec().unwrap()[..completion.length].to_vec()
}

/// Calls a body with a world in each mode.
fn in_both_modes(rig: &dyn Rig, body: impl Fn(&mut World)) {
    for mode in MODES {
        let mut world = World::new(rig, mode, small());
        body(&mut world);
        world.finish();
    }
}

/// Lengths around the limits of a header, of short, medium and long messages.
const LENGTHS: [usize; 14] = [0, 1, 8, 16, 17, 255, 256, 257, 1000, 4095, 4096, 4097, 65_536, 1 << 20];

/// Messages of all lengths arrive unchanged on each rank, also on the sender's own, before and
/// after their receive is posted.
#[body]
pub fn messages_of_all_lengths_arrive_expected_and_unexpected(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        for (number, length) in (0..).zip(LENGTHS) {
            for to in 0..RANKS {
                let data = pattern(number, length);
                let selector = Selector::exact(0, 0, number);

                let receive = world.receive(to as usize, selector, length);
                let send = world.send(0, to, number, &data);
                let done = world.wait(to as usize, receive);
                assert_eq!((&done.result, done.length, done.kind), (&Ok(()), length, Kind::Receive));
                assert!(bytes(&done) == data, "{length} bytes to rank {to}, expected");
                assert_eq!(world.wait(0, send).result, Ok(()));

                let before = world.ranks[to as usize].statistics().unexpected;
                let send = world.send(0, to, number, &data);
                world.await_unexpected(to as usize, before + 1);
                let receive = world.receive(to as usize, selector, length);
                let done = world.wait(to as usize, receive);
                assert_eq!(done.envelope, Envelope::new(0, 0, number));
                assert!(bytes(&done) == data, "{length} bytes to rank {to}, unexpected");
                assert_eq!(world.wait(0, send).length, length);
            }
        }

        // 7 of the lengths are short, 4 medium and 3 long. Each was sent to four ranks twice.
        let sent = world.ranks[0].statistics();
        assert_eq!((sent.short, sent.medium, sent.long), (7 * 8, 4 * 8, 3 * 8));
        let fetched: u64 = world.ranks.iter().map(|rank| rank.statistics().fetched).sum();
        assert_eq!(fetched, 3 * 4);
    });
}

/// A rank matched by the card and one matched by the kernel understand each other.
#[body]
pub fn ranks_of_both_modes_talk_to_each_other(rig: &dyn Rig) {
    let modes = [Mode::NicBased, Mode::HostBased, Mode::HostBased, Mode::NicBased];
    let mut world = World::of_modes(rig, modes, small());
    for from in 0..RANKS {
        for to in 0..RANKS {
            for length in [8, 2000, 10_000] {
                let data = pattern(u64::from(from), length);
                world.send(from as usize, to, 5, &data);
                let receive = world.receive(to as usize, Selector::exact(from, 0, 5), length);
                let done = world.wait(to as usize, receive);
                assert!(bytes(&done) == data, "{length} bytes from {from} to {to}");
            }
        }
    }
    world.drive_until("the sends", |ranks| {
        ranks.iter_mut().for_each(|rank| while rank.next_completion().is_some() {});
        ranks.iter().all(|rank| rank.outstanding() == 0).then_some(())
    });
    world.finish();
}

/// Receives take messages by context, source and tag, with wildcards, in the order of their posts.
#[body]
pub fn receives_take_messages_by_context_source_and_tag(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        let send = |world: &mut World, from: usize, context, tag, byte| {
            let buffer = world.buffer_of(from, &[byte]);
            world.ranks[from].isend(Envelope::new(3, context, tag), buffer, 0).unwrap();
        };
        let selectors = [
            Selector::exact(0, 1, 7),
            Selector::any_source(1, 8),
            Selector::any_tag(1, 1),
            Selector::exact(2, 1, 0b0100).ignoring(0b0011),
            Selector::any(2),
        ];
        let receives = selectors.map(|selector| world.receive(3, selector, 1));

        send(world, 2, 2, 7, b'e');
        send(world, 0, 1, 8, b'b');
        send(world, 2, 1, 0b0110, b'd');
        send(world, 1, 1, 99, b'c');
        send(world, 0, 1, 7, b'a');

        let taken = receives.map(|receive| bytes(&world.wait(3, receive))[0]);
        assert_eq!(&taken, b"abcde");
        world.drive_until("the sends", |ranks| {
            ranks.iter_mut().for_each(|rank| while rank.next_completion().is_some() {});
            ranks.iter().all(|rank| rank.outstanding() == 0).then_some(())
        });
    });
}

/// A message that is longer than the memory of its receive is cut, whether or not the receive was
/// first. The sender notices nothing.
#[body]
pub fn longer_messages_are_cut(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        for (length, room) in [(10, 0), (200, 100), (4000, 1), (10_000, 0), (10_000, 300)] {
            let data = pattern(length as u64, length);
            for is_expected in [true, false] {
                let selector = Selector::exact(0, 0, 1);
                let early = is_expected.then(|| world.receive(2, selector, room));
                let before = world.ranks[2].statistics().unexpected;
                let send = world.send(0, 2, 1, &data);
                if !is_expected {
                    world.await_unexpected(2, before + 1);
                }
                let receive = early.unwrap_or_else(|| world.receive(2, selector, room));

                let done = world.wait(2, receive);
                let (length, capacity) = (length as u64, room as u64);
                assert_eq!(done.result, Err(Error::Truncated { length, capacity }));
                assert!(bytes(&done) == data[..room]);
                assert_eq!(world.wait(0, send).result, Ok(()));
            }
        }
    });
}

/// A receive that is cancelled takes no message, and one that has matched is not cancelled.
#[body]
pub fn receives_are_cancelled_before_they_match(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        let cancelled = world.receive(1, Selector::any(0), 100);
        assert_eq!(world.ranks[1].cancel(cancelled), Ok(true));
        let done = world.wait(1, cancelled);
        assert_eq!((done.result, done.buffer.len()), (Err(Error::Cancelled), 100));
        let error = world.ranks[1].cancel(cancelled).unwrap_err();
        assert!(matches!(error, Error::NoSuchRequest { .. }), "{error}");

        let receive = world.receive(1, Selector::any(0), 100);
        let send = world.send(0, 1, 3, b"data");
        world.drive_until("the acknowledgement", |ranks| (ranks[0].unacknowledged() == 0).then_some(()));
        assert_eq!(world.ranks[1].cancel(receive), Ok(false));
        assert_eq!(bytes(&world.wait(1, receive)), b"data");
        world.wait(0, send);
    });
}

/// Messages leave from the data and the stack of a rank as from its heap, and arrive there.
#[body]
pub fn messages_use_all_segments(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        for from in [Segment::Data, Segment::Stack, Segment::Heap] {
            for to in [Segment::Stack, Segment::Data] {
                let data = pattern(9, 300);
                let mut buffer = world.ranks[0].lend(from, 100, 300).unwrap();
                buffer.write(0, &data).unwrap();
                let send = world.ranks[0].isend(Envelope::new(2, 0, 0), buffer, 0).unwrap();
                let buffer = world.ranks[2].lend(to, 1001, 300).unwrap();
                let receive = world.ranks[2].irecv(Selector::any(0), buffer, 0).unwrap();

                assert_eq!(world.wait(2, receive).result, Ok(()));
                let mut arrived = vec![0; 300];
                world.ranks[2].segment(to).read(1001, &mut arrived).unwrap();
                assert!(arrived == data, "{from:?} to {to:?}");
                world.wait(0, send);
            }
        }

        let outside = world.ranks[0].lend(Segment::Stack, 4096, 1).unwrap_err();
        assert_eq!(outside, Error::OutOfRange { offset: 4096, length: 1, size: 4096 });
    });
}

/// Wrong arguments are refused with their values, and nothing stays outstanding.
#[body]
pub fn wrong_arguments_are_refused(rig: &dyn Rig) {
    let mut world = World::new(rig, Mode::NicBased, small());
    let buffer_of_other_rank = world.ranks[1].allocate(1).unwrap();
    let allocate_own = |world: &World| world.ranks[0].allocate(1).unwrap();
    let buffer = allocate_own(&world);
    let send = |world: &mut World, to, buffer| world.ranks[0].isend(to, buffer, 0).unwrap_err();

    assert_eq!(send(&mut world, Envelope::new(4, 0, 0), buffer), Error::NoSuchPeer { peer: 4, size: RANKS });
    let buffer = allocate_own(&world);
    assert_eq!(send(&mut world, Envelope::new(0, 0, 1 << 24), buffer), Error::BadTag { tag: 1 << 24 });
    let buffer = allocate_own(&world);
    let context = 1 << 14;
    assert_eq!(send(&mut world, Envelope::new(0, context, 0), buffer), Error::BadContext { context });
    assert_eq!(send(&mut world, Envelope::new(0, 0, 0), buffer_of_other_rank), Error::ForeignBuffer);
    let too_much = world.ranks[0].allocate(5 << 20).unwrap_err();
    assert_eq!(too_much, Error::NoMemory { bytes: 5 << 20 });
    world.finish();
}

/// Drives programs of all ranks to their end.
fn drive<P: Program>(programs: &mut [P])
where
    <P::Endpoint as nicforge_mpi_programs::Endpoint>::Error: std::fmt::Debug,
{
    nicforge_mpi_programs::drive(programs, test_deadline(), &mut Relax::new()).unwrap();
}

/// The programs by which MPI systems are measured (message rate, ping-pong, random updates) run to
/// their end, and find their data right.
#[body]
pub fn the_programs_verify_their_data(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        for (bytes, context) in [(0, 1), (8, 2), (1000, 3), (8000, 4)] {
            let terms = message_rate::Parameters { bytes, window: 32, windows: 4, context };
            let side = |(rank, endpoint)| match rank {
                0 | 1 => {
                    message_rate::Side::new(endpoint, message_rate::End::Sender, rank + 2, terms).unwrap()
                }
                _ => message_rate::Side::new(endpoint, message_rate::End::Receiver, rank - 2, terms).unwrap(),
            };
            let mut sides: Vec<_> = (0..).zip(&mut world.ranks).map(side).collect();
            drive(&mut sides);
            assert!(sides.iter().all(|side| side.completed() == 128));
        }

        for bytes in [0, 1, 300, 100_000] {
            let (first, last) = world.ranks.split_at_mut(3);
            let mut sides = [
                ping_pong::Side::new(&mut first[0], true, 3, bytes, 10, 5).unwrap(),
                ping_pong::Side::new(&mut last[0], false, 0, bytes, 10, 5).unwrap(),
            ];
            drive(&mut sides);
            assert_eq!(sides[0].times().len(), 10);
        }

        let mut tables: Vec<_> = (0..RANKS).map(|rank| Table::new(rank, RANKS, 8).unwrap()).collect();
        for pass in 0..2 {
            let pairs = world.ranks.iter_mut().zip(&mut tables);
            let mut ranks: Vec<_> =
                pairs.map(|(endpoint, table)| Updates::new(endpoint, table, pass + 6).unwrap()).collect();
            drive(&mut ranks);
        }
        assert_eq!(tables.iter().map(Table::count_wrong).sum::<u64>(), 0);
    });
}
