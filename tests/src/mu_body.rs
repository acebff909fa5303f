//! Test bodies of the matching layer's transport over the Message Unit of Blue Gene/Q. They cover
//! the cases that [`crate::matching_body`] lacks.
#![allow(unsafe_code, reason = "memory is registered by address, as the matching layer does")]

use std::{ptr::NonNull, time::Duration};

use nicforge_core::machine::Machine;
use nicforge_driver::{Deadline, Error as DriverError, Relax};
use nicforge_hwi::mu::INJECTION_FIFOS;
use nicforge_machine::{build::build, description::parse};
use nicforge_matching::{
    Access, Config as Matching, Endpoint, Envelope, Error as MatchingError, Get, Loss, Memory, Mode, Rank,
    Region, RemoteRegion, Selector, Taken, Transport, TransportError, wire,
};
use nicforge_mu_transport::{Config, Error, Job, MuTransport, RankAddress};
use nicforge_nics::families;
use nicforge_spi::{
    Destination, Error as SpiError, InjectionAttributes, Options, Payload, RemoteGet, Subgroup, local_copy,
    remote_get,
};
use nicforge_test_body::body;
use zerocopy::IntoBytes;

use crate::{
    backing::{Rig, test_deadline},
    bodies::{Guests, TestMachine},
    matching_body::{Network, World},
    pattern::pattern,
};

/// The machine of all bodies of the matching layer that run on Message Units.
pub static MACHINE: TestMachine = TestMachine {
    name: "mu_transport",
    make: machine,
    guests: Guests::None(
        "the SPI's bodies run in guests, and the transport uses the device by the SPI alone",
    ),
};

/// Returns a machine with two nodes of four application subgroups.
pub fn machine() -> Machine {
    let text = "name = \"mu-transport\"\n[[bgq]]\ntorus = [2, 1, 1, 1, 1]\nsubgroups = 4\n";
    build(&parse(text, "mu_transport.toml", &families()).unwrap()).unwrap().0
}

/// Returns a rank's address. Ranks alternate between the two nodes.
fn at(rank: Rank) -> RankAddress {
    RankAddress { node: rank % 2, subgroup: (rank / 2) as u16 }
}

/// Returns a job of `size` ranks.
fn job(size: u32) -> Job {
    Job::new((0..size).map(at).collect())
}

/// A network whose ranks are on the nodes of a rig.
pub struct Units<'a> {
    rig: &'a dyn Rig,
    config: Config,
}

impl<'a> Units<'a> {
    /// Uses the default configuration with a smaller window, which few messages fill.
    pub fn new(rig: &'a dyn Rig) -> Self {
        Self::with(rig, Config { window: 16, ..Config::default() })
    }

    /// Uses the given configuration.
    pub fn with(rig: &'a dyn Rig, config: Config) -> Self {
        Self { rig, config }
    }

    /// Opens a rank of a job of `size` ranks.
    fn rank(&self, rank: Rank, size: u32) -> MuTransport {
        let RankAddress { node, subgroup } = at(rank);
        let device = self.rig.open(&format!("bgq{node}"), &format!("s{subgroup}"));
        MuTransport::open(&device, &job(size), self.config).unwrap()
    }
}

impl Network for Units<'_> {
    type Transport = MuTransport;

    fn ranks(&self, size: u32) -> Vec<MuTransport> {
        let mut ranks: Vec<_> = (0..size).map(|rank| self.rank(rank, size)).collect();
        let (deadline, mut relax) = (test_deadline(), Relax::new());

        while !ranks.iter().all(MuTransport::is_complete) {
            assert!(!deadline.has_passed(), "the ranks do not find each other: {ranks:?}");
            for rank in &mut ranks {
                assert_eq!(rank.poll_gone(), None);
                rank.poll(64, &mut |_, _, _| panic!("no message was sent")).unwrap();
                rank.device().relax(&mut relax).unwrap();
            }
        }
        ranks
    }
}

/// Time after which a rank that is gone is given up, where a body waits for that.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns a configuration in which a rank that does not answer is given up after [`TIMEOUT`].
fn giving_up_after_timeout() -> Config {
    Config { patience: TIMEOUT, ..Config::default() }
}

/// Ranks that start one after the other wait for each other.
#[body]
pub fn ranks_find_each_other(rig: &dyn Rig) {
    let units = Units::new(rig);
    let mut first = units.rank(0, 2);
    let early = first.wait_for_all(Deadline::after(Duration::from_millis(10)), None);

    let timed_out = matches!(early, Err(Error::Spi(SpiError::Driver(DriverError::Timeout { .. }))));
    assert!(timed_out, "{early:?}");

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut second = units.rank(1, 2);
            second.wait_for_all(test_deadline(), None).unwrap();
            // Keeps running until the other rank has seen this one.
            let (mut relax, deadline) = (Relax::new(), test_deadline());
            while second.poll_gone().is_none() && !deadline.has_passed() {
                second.poll(64, &mut |_, _, _| Taken::Yes).unwrap();
                second.device().relax(&mut relax).unwrap();
            }
        });

        first.wait_for_all(test_deadline(), None).unwrap();
        drop(first);
    });

    let refused = MuTransport::open(&rig.open("bgq0", "s1"), &job(2), Config::default()).unwrap_err();
    assert_eq!(refused, Error::NotOfJob { address: RankAddress { node: 0, subgroup: 1 }, size: 2 });
}

/// Many long messages at once exceed the staging memory. They use both the shared area and areas of
/// their own.
#[body]
pub fn long_messages_may_exceed_the_staging_memory(rig: &dyn Rig) {
    let config =
        Config { staging: 64 << 10, longest_staging: 300_000, gets: 2, get_bytes: 8192, ..Config::default() };
    let mut world = World::pair(&Units::with(rig, config));
    let lengths: Vec<usize> =
        (0..40).map(|number| [20_000, 30_000, 3_000, 200_000, 32_769][number % 5]).collect();
    let mut requests = Vec::new();

    for (number, &length) in lengths.iter().enumerate() {
        for (from, to) in [(0, 1), (1, 0)] {
            let send = world.send(from, to, number as u64, &pattern(number as u64, length));
            let receive = world.receive(to as usize, Selector::exact(from as u32, 0, number as u64), length);
            requests.push((from, send, to as usize, receive, number));
        }
    }

    for (from, send, to, receive, number) in requests {
        let done = world.wait(to, receive);
        assert_eq!((done.result, done.length), (Ok(()), lengths[number]));
        assert!(done.buffer.as_slice() == pattern(number as u64, lengths[number]), "message {number}");
        assert_eq!(world.wait(from, send).result, Ok(()));
    }

    for rank in &world.ranks {
        let statistics = rank.transport().statistics();
        assert_eq!((statistics.staged, statistics.own_areas, statistics.failed_gets), (24, 16, 0));
    }
}

/// A long message is received before others whose sources fill the staging memory.
#[body]
pub fn the_last_of_many_long_messages_is_received_first(rig: &dyn Rig) {
    const COUNT: u64 = 30;
    const LENGTH: usize = 20_000;

    // Two sources fill the area that stays.
    let config = Config { staging: 64 << 10, ..Config::default() };
    let mut world = World::pair(&Units::with(rig, config));
    let sends: Vec<_> = (0..COUNT).map(|tag| world.send(0, 1, tag, &pattern(tag, LENGTH))).collect();
    for tag in (0..COUNT).rev() {
        let receive = world.receive(1, Selector::exact(0, 0, tag), LENGTH);
        let done = world.wait(1, receive);
        assert_eq!(done.result, Ok(()));
        assert!(done.buffer.as_slice() == pattern(tag, LENGTH), "message {tag}");
    }
    for send in sends {
        assert_eq!(world.wait(0, send).result, Ok(()));
    }
}

/// A get whose destination was deregistered writes nothing there. Gets outside of regions are
/// refused.
#[body]
pub fn deregistered_memory_is_not_written(rig: &dyn Rig) {
    const LENGTH: usize = 100_000;

    let mut ranks = Units::new(rig).ranks(2);
    let (source, mut target) = (pattern(1, LENGTH), vec![7_u8; LENGTH]);
    let memory = |bytes: *const u8| Memory { start: NonNull::new(bytes.cast_mut()).unwrap(), length: LENGTH };
    let register = |rank: &mut MuTransport, memory, access| {
        // SAFETY: the vectors live, unmoved, until they are deregistered; no other code touches
        // them before.
        unsafe { rank.register(memory, access) }.unwrap().unwrap()
    };
    let from = register(&mut ranks[0], memory(source.as_ptr()), Access::Source);
    let to = register(&mut ranks[1], memory(target.as_mut_ptr()), Access::Destination);
    let get = |remote: RemoteRegion, local: Region, cookie| Get {
        peer: 0,
        remote,
        local,
        local_offset: 1,
        length: 50_000,
        cookie,
    };

    assert_eq!(ranks[1].start_get(&get(from.remote, to, 1)), Ok(true));
    assert_eq!(end_of_get(&mut ranks[1], 1), Ok(()));

    // This get is in flight when its region is deregistered.
    assert_eq!(ranks[1].start_get(&get(from.remote, to, 2)), Ok(true));
    ranks[1].deregister(to);
    assert!(target[1..=50_000] == source[..50_000]);
    target[..=50_000].fill(9);

    assert!(end_of_get(&mut ranks[1], 2).is_err());
    assert!(target[..=50_000].iter().all(|byte| *byte == 9));
    assert!(target[50_001..].iter().all(|byte| *byte == 7));

    let to = register(&mut ranks[1], memory(target.as_mut_ptr()), Access::Destination);
    let made_up = RemoteRegion { key: 0, offset: u64::MAX - 10 };
    assert!(ranks[1].start_get(&get(made_up, to, 3)).is_err());
    assert!(ranks[1].start_get(&Get { local_offset: 50_001, ..get(from.remote, to, 4) }).is_err());

    ranks[1].deregister(to);
    assert!(ranks[1].start_get(&get(from.remote, to, 5)).is_err());
}

/// Waits for the completion of the get with a cookie.
fn end_of_get(rank: &mut MuTransport, cookie: u64) -> Result<(), TransportError> {
    let (deadline, mut relax, mut ended) = (test_deadline(), Relax::new(), None);
    while ended.is_none() {
        assert!(!deadline.has_passed(), "get {cookie} does not end");
        rank.poll_gets(8, &mut |which, result| ended = Some((which, result))).unwrap();
        rank.device().relax(&mut relax).unwrap();
    }

    let (which, result) = ended.unwrap();
    assert_eq!(which, cookie);
    result
}

/// When a rank closes during a rendezvous, the operations that wait for it end on both sides. Other
/// transfers are not affected. The rank's successor in its subgroup takes no part in the job.
#[body]
pub fn a_rank_that_detaches_fails_the_requests_that_wait_for_it(rig: &dyn Rig) {
    const LONG: usize = 4 << 20;

    let units = Units::new(rig);
    for sender_dies in [true, false] {
        let mut world = World::new(&units, 3, Matching::default());
        let (from, to) = if sender_dies { (1, 0) } else { (0, 1) };
        let send = world.send(from, to, 1, &pattern(1, LONG));
        let puller = usize::from(!sender_dies);
        let receive = world.receive(puller, Selector::any_source(0, 1), LONG);
        let named = world.receive(0, Selector::exact(1, 0, 2), 8);
        let any = world.receive(0, Selector::any_source(0, 3), 8);

        world.drive_until("gets", |world| {
            (world.ranks[puller].transport().statistics().gets > 4).then_some(())
        });
        drop(world.ranks.remove(1));

        let peer_gone = Err(MatchingError::PeerGone { peer: 1, why: Loss::Ended });
        let ended = world.wait(0, if sender_dies { receive } else { send });
        assert!(
            matches!(&ended.result, Err(error) if error.is_peer() || matches!(error, MatchingError::Transport(_))),
            "{ended:?}"
        );
        assert_eq!(world.wait(0, named).result, peer_gone);
        let late = world.send(0, 1, 2, b"late");
        assert_eq!(world.wait(0, late).result, peer_gone);

        // The subgroup has a new owner, which waits for ranks that do not know it.
        let mut successor = Endpoint::new(units.rank(1, 3), Matching::default()).unwrap();
        let strange = Envelope::new(0, 0, 3);
        let strange = successor.isend(strange, Mode::Standard, b"strange".to_vec(), 0).unwrap();
        for _ in 0..100 {
            successor.progress().unwrap();
            world.progress();
        }
        assert!(successor.test(strange).unwrap().is_none());

        // The third rank now has the second index.
        world.send(1, 0, 3, b"friendly");
        assert_eq!(world.wait(0, any).buffer.as_slice(), b"friendly");
    }
}

/// A rank whose device is taken away gets an error from each call. The other ranks notice that it
/// does not answer.
#[body]
pub fn an_evicted_rank_returns_an_error_and_sends_nothing_more(rig: &dyn Rig) {
    let mut world = World::pair(&Units::with(rig, giving_up_after_timeout()));
    let receive = world.receive(1, Selector::exact(0, 0, 0), 8);
    rig.evict("bgq0", "s0");

    let mut evicted = world.ranks.remove(0);
    let waits = evicted.irecv(Selector::any(0), vec![0; 8], 0).unwrap();
    let error = evicted.wait(waits, test_deadline(), None).unwrap_err();

    assert_eq!(error, MatchingError::Transport(TransportError { what: "the device is gone", value: 0 }));
    assert!(evicted.transport().failure().is_some());
    assert!(evicted.progress().is_err());

    let ended = world.wait(0, receive);
    assert_eq!(ended.result, Err(MatchingError::PeerGone { peer: 0, why: Loss::Silent }));
}

/// A rank whose device was taken away has a successor in its subgroup, with a session of its own.
/// The other rank reads that session in the row of values that the successor puts, or, while the
/// successor makes no calls, in its unit's answer to a question.
#[body]
pub fn a_rank_with_a_successor_is_replaced(rig: &dyn Rig) {
    let units = Units::with(rig, Config { patience: 2 * TIMEOUT, ..Config::default() });
    for puts_rows in [true, false] {
        let mut ranks = units.ranks(2);
        rig.evict("bgq1", "s0");
        drop(ranks.remove(1));
        let mut successor = units.rank(1, 2);

        let (deadline, mut relax) = (test_deadline(), Relax::new());
        let gone = loop {
            assert!(!deadline.has_passed(), "the rank is not given up: {ranks:?}");
            if puts_rows {
                assert_eq!(successor.poll_gone(), None);
            }
            // A loss is reported when no message of the rank can follow.
            ranks[0].poll(8, &mut |_, _, _| panic!("no rank has sent a message")).unwrap();
            if let Some(gone) = ranks[0].poll_gone() {
                break gone;
            }
            ranks[0].device().relax(&mut relax).unwrap();
        };

        let is_replaced = matches!(gone.why, Loss::Replaced { previous, current } if previous != current);
        assert!(gone.rank == 1 && is_replaced, "{gone:?}");
        assert!(successor.statistics().sent == 0 && !successor.is_complete());
    }
}

/// The unit of a rank that does nothing answers questions.
#[body]
pub fn a_rank_that_makes_no_calls_is_not_lost(rig: &dyn Rig) {
    let mut ranks = Units::with(rig, giving_up_after_timeout()).ranks(2);
    let before = ranks[0].statistics().questions;
    let (deadline, mut relax) = (test_deadline(), Relax::new());

    // A rank that is gone is not asked more than four times.
    while ranks[0].statistics().questions < before + 6 {
        assert!(!deadline.has_passed(), "{:?}", ranks[0].statistics());
        assert_eq!(ranks[0].poll_gone(), None);
        ranks[0].device().relax(&mut relax).unwrap();
    }
}

/// Sends messages numbered from `first` on as long as there is credit. Returns how many were sent.
fn send_all(rank: &mut MuTransport, to: Rank, first: u32) -> u32 {
    let mut number = first;
    while rank.try_send(to, 1, &pattern(number.into(), 500)).unwrap() {
        number += 1;
    }
    number - first
}

/// A reader that makes no progress costs its sender its credits, and other ranks nothing. No
/// message is lost.
#[body]
pub fn a_stalled_reader_blocks_only_its_own_senders(rig: &dyn Rig) {
    let config = Config { window: 16, ..Config::default() };
    let mut ranks = Units::with(rig, config).ranks(3);
    // Ranks 0 and 2 are on one node.
    assert_eq!([1, 2].map(|to| send_all(&mut ranks[0], to, 0)), [16, 16]);

    let (deadline, mut relax) = (test_deadline(), Relax::new());
    let (mut sent, mut received) = (16, 0_u32);
    while received < 500 {
        assert!(!deadline.has_passed(), "{received} of {sent} messages");
        sent += send_all(&mut ranks[0], 1, sent);
        let mut on_message = |from, tag, bytes: &[u8]| {
            assert_eq!((from, tag, bytes), (0, 1, &pattern(received.into(), 500)[..]));
            received += 1;
            Taken::Yes
        };
        ranks[1].poll(64, &mut on_message).unwrap();
        ranks[1].device().relax(&mut relax).unwrap();
    }
    assert_eq!(send_all(&mut ranks[0], 2, 16), 0);

    // Messages that the reader refuses stay in their order, and give no credit back.
    let mut refused = 0;
    while refused < 16 {
        assert!(!deadline.has_passed(), "{refused} messages");
        let before = ranks[2].statistics().held;
        ranks[2].poll(64, &mut |_, _, _| Taken::NotNow).unwrap();
        refused += ranks[2].statistics().held - before;
        ranks[2].device().relax(&mut relax).unwrap();
    }
    assert_eq!(send_all(&mut ranks[0], 2, 16), 0);

    let mut count = 0_u32;
    while count < 16 || send_all(&mut ranks[0], 2, 16) == 0 {
        assert!(!deadline.has_passed(), "{count} messages");
        let mut on_message = |_, _, bytes: &[u8]| {
            assert_eq!(bytes, pattern(count.into(), 500));
            count += 1;
            Taken::Yes
        };
        ranks[2].poll(64, &mut on_message).unwrap();
        ranks[0].poll_gone();
        ranks[2].device().relax(&mut relax).unwrap();
    }
}

/// A rank announces long messages whose memory it does not have, and makes no calls then. Its unit
/// answers no gets. Those from other ranks go on meanwhile.
#[body]
pub fn a_rank_that_answers_no_gets_holds_up_no_other(rig: &dyn Rig) {
    // The rank is not given up while the others' messages pass.
    let config = Config { gets: 4, patience: Duration::from_secs(1000), ..Config::default() };
    let mut ranks = Units::with(rig, config).ranks(4);
    let mut hostile = [ranks.remove(3), ranks.remove(1)];
    let mut world = World::of(ranks, Matching::default());

    let mut waiting = Vec::new();
    for (rank, number) in hostile.iter_mut().zip([3, 1]) {
        for tag in 0..16 {
            // No rank has memory there.
            let offset = (1 << 36) - (1 << 21);
            assert!(rank.try_send(0, wire::REQUEST, &announcement(tag, 0, offset)).unwrap());
            waiting.push(world.receive(0, Selector::exact(number, 0, tag), 1 << 20));
        }
    }
    world.drive_until("announcements", |world| (world.ranks[0].statistics().rendezvous == 32).then_some(()));

    for round in 0..3 {
        let send = world.send(1, 0, round, &pattern(round, 1 << 20));
        let receive = world.receive(0, Selector::exact(2, 0, round), 1 << 20);
        assert!(world.wait(0, receive).buffer.as_slice() == pattern(round, 1 << 20), "message {round}");
        assert_eq!(world.wait(1, send).result, Ok(()));
    }
    // The ranks have made no call meanwhile.
    for receive in waiting {
        assert!(world.ranks[0].test(receive).unwrap().is_none());
    }
    drop(hostile);
}

/// Returns the announcement of a message of 1 MiB at this key and offset of the sender's memory.
fn announcement(tag: u64, key: u64, offset: u64) -> Vec<u8> {
    let (context, reserved, request) = (0.into(), 0.into(), tag.into());
    let size = (1 << 20).into();
    let (key, offset) = (key.into(), offset.into());
    wire::Rendezvous { context, reserved, tag: tag.into(), size, key, offset, request }.as_bytes().to_vec()
}

/// A remote get of a descriptor that the unit refuses stops a rank's FIFO. The rank restarts it,
/// and continues.
#[body]
pub fn an_invalid_descriptor_from_outside_the_job_stops_a_fifo_only_until_its_restart(rig: &dyn Rig) {
    let mut world = World::pair(&Units::with(rig, giving_up_after_timeout()));
    let mut outsider = Subgroup::open(&rig.open("bgq1", "s3"), Options::default()).unwrap();
    outsider.open_injection(0, 8, InjectionAttributes::default()).unwrap();
    let memory = outsider.memory(4096).unwrap();

    // Rank 0 has no memory at this address.
    let to = outsider.position().coordinates(0).unwrap();
    let unmapped = Payload::memory((1 << 36) - 4096, 64);
    let invalid = local_copy(Destination::new(to), unmapped, &Default::default()).unwrap();
    memory.write(0, invalid.as_bytes()).unwrap();
    // Injection FIFO 2 of a rank takes the remote gets of its peers.
    let fifo = RemoteGet { fifo: at(0).subgroup * INJECTION_FIFOS + 2 };
    let get = remote_get(Payload::memory(memory.iova(), 64), outsider.position().ordered(to), &fifo).unwrap();

    for round in 0..3 {
        outsider.inject(0, &get, test_deadline(), None).unwrap();
        let send = world.send(0, 1, round, &pattern(round, 300_000));
        let receive = world.receive(1, Selector::exact(0, 0, round), 300_000);
        let done = world.wait(1, receive);
        assert_eq!(done.result, Ok(()));
        assert!(done.buffer.as_slice() == pattern(round, 300_000), "message {round}");
        assert_eq!(world.wait(0, send).result, Ok(()));

        world.drive_until("restart", |world| {
            (world.ranks[0].transport().statistics().restarts > round).then_some(())
        });
    }
}
