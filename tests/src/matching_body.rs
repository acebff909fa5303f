//! Test bodies of the matching layer over any transport: sizes, orders, truncation, probes, claims,
//! cancels, waits.
//!
//! A body gets a [`Network`] and opens ranks on it, which one thread drives alternately. No body
//! depends on when a message arrives.
#![allow(unsafe_code, reason = "memory is lent by address as a provider does")]

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Relax};
use nicforge_matching::{
    Arrived, Buffer, Completion, Config, Endpoint, Envelope, Error, Kind, Mode, Request, Selector,
    Statistics, Transport,
    memory::{Fabric, FabricConfig, FabricPort},
};
use nicforge_mpi_programs::collective::Barrier;
use nicforge_test_body::body;

use crate::{
    backing::{LIMIT, test_deadline},
    bgl_body::TORUS,
    extoll_body::MACHINE as CARDS,
    mu_body::MACHINE as UNITS,
    pattern::pattern,
};

/// A network on which ranks are opened.
pub trait Network {
    /// Its transport.
    type Transport: Transport + Send;

    /// Opens `size` ranks, which can send to each other.
    fn ranks(&self, size: u32) -> Vec<Self::Transport>;
}

/// Ranks of this process, without a device.
pub struct InMemory(FabricConfig);

impl InMemory {
    /// Returns the variants that a body runs on: message sizes, shortages and delays, one ring for
    /// all senders or one for each.
    pub fn variants() -> impl Iterator<Item = Self> {
        let of_size = |message_bytes| {
            [0, 1].map(|seed| FabricConfig {
                message_bytes,
                get_bytes: 1000,
                credits: 4,
                seed,
                ..FabricConfig::default()
            })
        };
        let of_seed = |seed| FabricConfig { seed, one_ring: seed % 2 == 0, ..FabricConfig::default() };

        let sizes = [48, 64, 65, 120, 4096].into_iter().flat_map(of_size);
        sizes.chain((2..20).map(of_seed)).map(Self)
    }
}

impl Network for InMemory {
    type Transport = FabricPort;

    fn ranks(&self, size: u32) -> Vec<FabricPort> {
        Fabric::new(size, self.0).1
    }
}

/// Ranks that one thread drives alternately.
pub struct World<T: Transport> {
    /// The ranks, by number.
    pub ranks: Vec<Endpoint<T>>,
    relax: Relax,
}

impl<T: Transport> World<T> {
    /// Opens `size` ranks.
    pub fn new(network: &impl Network<Transport = T>, size: u32, config: Config) -> Self {
        Self::of(network.ranks(size), config)
    }

    /// Makes the ranks of these transports.
    pub fn of(ports: Vec<T>, config: Config) -> Self {
        let ranks = ports.into_iter().map(|port| Endpoint::new(port, config).unwrap()).collect();
        Self { ranks, relax: Relax::new() }
    }

    /// Opens two ranks with the default configuration.
    pub fn pair(network: &impl Network<Transport = T>) -> Self {
        Self::new(network, 2, Config::default())
    }

    /// Calls `progress` once for each rank.
    pub fn progress(&mut self) {
        let steps: usize = self.ranks.iter_mut().map(|rank| rank.progress().unwrap()).sum();
        if steps > 0 {
            self.relax.reset();
        }

        if let Some(rank) = self.ranks.first_mut() {
            rank.transport_mut().relax(&mut self.relax).unwrap();
        }
    }

    /// Drives all ranks `count` times, so that an event that must not happen would have time to.
    pub fn progress_rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.progress();
        }
    }

    /// Drives all ranks until `attempt` returns a value.
    pub fn drive_until<R>(
        &mut self,
        description: &str,
        mut attempt: impl FnMut(&mut Self) -> Option<R>,
    ) -> R {
        let deadline = test_deadline();
        loop {
            if let Some(value) = attempt(self) {
                return value;
            }
            assert!(!deadline.has_passed(), "no {description}: {:?}", self.ranks[0].statistics());
            self.progress();
        }
    }

    /// Drives all ranks until `request` of `rank` is complete.
    pub fn wait(&mut self, rank: usize, request: Request) -> Completion {
        self.drive_until("completion", |world| world.ranks[rank].test(request).unwrap())
    }

    /// Drives all ranks until a message for `selector` has arrived at `rank`.
    pub fn wait_for_message(&mut self, rank: usize, selector: &Selector) -> Arrived {
        self.drive_until("message", |world| world.ranks[rank].probe(selector))
    }

    /// Starts a send of `data`.
    pub fn send(&mut self, from: usize, to: u32, tag: u64, data: &[u8]) -> Request {
        self.ranks[from].isend(Envelope::new(to, 0, tag), Mode::Standard, data.to_vec(), 0).unwrap()
    }

    /// Starts a receive of up to `capacity` bytes.
    pub fn receive(&mut self, rank: usize, selector: Selector, capacity: usize) -> Request {
        self.ranks[rank].irecv(selector, vec![0xee; capacity], 0).unwrap()
    }
}

/// Sizes around the payload of a first message of 64 bytes (48) and of the following ones (64), of
/// messages of 512 bytes (496 and 512), and around the threshold.
const SIZES: [usize; 25] = [
    0, 1, 2, 47, 48, 49, 63, 64, 111, 112, 113, 176, 177, 495, 496, 497, 1007, 1008, 1009, 2047, 2048, 2049,
    4095, 8193, 100_000,
];

/// Sends a message of each size, with its receive posted before or after.
fn every_size<T: Transport>(world: &mut World<T>, mode: Mode, to: u32, posts_receives_first: bool) {
    for (number, length) in SIZES.into_iter().enumerate() {
        let tag = number as u64;
        let data = pattern(tag, length);
        let selector = Selector::exact(0, 7, tag);
        let early = posts_receives_first.then(|| world.receive(to as usize, selector, length));
        let send = world.ranks[0].isend(Envelope::new(to, 7, tag), mode, data.clone(), 11).unwrap();

        world.progress_rounds(5);
        let receive = early.unwrap_or_else(|| world.receive(to as usize, selector, length));
        let received = world.wait(to as usize, receive);
        let sent = world.wait(0, send);

        assert_eq!(received.result, Ok(()), "{length} bytes");
        assert_eq!((received.length, received.kind), (length, Kind::Receive));
        assert_eq!(received.envelope, Envelope::new(0, 7, tag));
        assert!(received.buffer.into_vec().unwrap() == data, "{length} bytes came wrong");
        assert_eq!((sent.result, sent.length, sent.cookie), (Ok(()), length, 11));
        assert!(sent.buffer.into_vec().unwrap() == data);
    }

    assert!(world.ranks.iter().all(|rank| rank.outstanding() == 0));
}

/// Standard and synchronous sends, to another rank and to the same one, expected and unexpected.
#[body]
pub fn every_size_arrives_on_every_path(network: &impl Network) {
    let mut world = World::pair(network);
    for mode in [Mode::Standard, Mode::Synchronous] {
        for to in [0, 1] {
            for posted_first in [true, false] {
                every_size(&mut world, mode, to, posted_first);
            }
        }
    }
}

/// The threshold decides which messages are eager.
#[body]
pub fn the_threshold_is_a_parameter(network: &impl Network) {
    for (eager_threshold, eager, rendezvous) in [(0, 1, 1), (99, 1, 1), (100, 2, 0)] {
        let mut world = World::new(network, 2, Config { eager_threshold, ..Config::default() });
        world.send(0, 1, 0, &[]);
        world.send(0, 1, 1, &[1; 100]);
        let statistics = world.drive_until("two messages", |world| {
            let statistics = world.ranks[1].statistics();
            (statistics.unexpected == 2).then_some(statistics)
        });
        assert_eq!((statistics.eager, statistics.rendezvous), (eager, rendezvous), "{eager_threshold}");
    }
}

/// Each mode completes at its own point.
#[body]
pub fn a_standard_send_of_a_short_message_does_not_wait_for_its_receive_and_a_synchronous_one_does(
    network: &impl Network,
) {
    let mut world = World::pair(network);
    for to in [0, 1] {
        let standard = world.send(0, to, 0, b"abc");
        let synchronous =
            world.ranks[0].isend(Envelope::new(to, 0, 1), Mode::Synchronous, b"abc".to_vec(), 0).unwrap();
        world.wait(0, standard);
        world.progress_rounds(50);
        assert!(world.ranks[0].test(synchronous).unwrap().is_none());
        let receive = world.receive(to as usize, Selector::exact(0, 0, 1), 3);
        world.wait(to as usize, receive);
        world.wait(0, synchronous);
    }
}

/// Short and long messages, received with and without wildcards.
#[body]
pub fn messages_of_a_pair_match_in_the_order_of_their_sends(network: &impl Network) {
    let mut world = World::pair(network);
    let lengths: Vec<usize> = (0..40).map(|number| [10, 5000, 0, 300, 2048][number % 5]).collect();

    for (number, &length) in lengths.iter().enumerate() {
        world.send(0, 1, 5, &pattern(number as u64, length));
    }

    let receives: Vec<Request> = (0..40)
        .map(|number| world.receive(1, [Selector::any(0), Selector::exact(0, 0, 5)][number % 2], 5000))
        .collect();

    for (number, receive) in receives.into_iter().enumerate() {
        let completion = world.wait(1, receive);
        assert_eq!(completion.length, lengths[number]);
        assert!(completion.buffer.as_slice()[..lengths[number]] == pattern(number as u64, lengths[number]));
    }
}

/// Truncation on each path leaves the next message whole.
#[body]
pub fn a_longer_message_fills_the_buffer_and_reports_its_length(network: &impl Network) {
    let mut world = World::pair(network);
    for (length, capacity) in
        [(1, 0), (49, 48), (200, 64), (2048, 2047), (2049, 100), (5000, 0), (70_000, 65_537)]
    {
        for to in [0, 1] {
            for posted_first in [true, false] {
                let data = pattern(3, length);
                let early = posted_first.then(|| world.receive(to as usize, Selector::any(0), capacity));
                let send = world.send(0, to, 9, &data);

                world.progress_rounds(3);
                let receive = early.unwrap_or_else(|| world.receive(to as usize, Selector::any(0), capacity));
                let received = world.wait(to as usize, receive);

                assert_eq!(received.result, Err(Error::Truncated { length: length as u64, capacity }));
                assert_eq!(received.length, capacity);
                assert!(received.buffer.as_slice() == &data[..capacity]);
                assert_eq!(world.wait(0, send).result, Ok(()));

                // The next message is not affected.
                let send = world.send(0, to, 10, b"next");
                let next = world.receive(to as usize, Selector::any(0), 4);

                assert_eq!(world.wait(to as usize, next).buffer.as_slice(), b"next");
                assert_eq!(world.wait(0, send).result, Ok(()));
            }
        }
    }
}

/// Each message goes to the oldest receive that matches it.
#[body]
pub fn wildcards_and_ignored_bits_select_the_right_messages(network: &impl Network) {
    let mut world = World::new(network, 3, Config::default());
    let by_source = world.receive(2, Selector::any_tag(1, 0), 8);
    let by_bits = world.receive(2, Selector::any_source(0, 0x1200).ignoring(0xff), 8);
    let by_tag = world.receive(2, Selector::any_source(0, 7), 8);
    let any = world.receive(2, Selector::any(0), 8);
    let other_context = world.receive(2, Selector::any(1), 8);

    for (from, tag) in [(0, 7), (0, 0x1234), (0, 0x1300), (1, 7)] {
        let before = world.ranks[2].statistics().expected;
        world.send(from, 2, tag, &[from as u8]);
        world.drive_until("match", |world| (world.ranks[2].statistics().expected > before).then_some(()));
    }

    for (receive, envelope) in
        [(by_tag, (0, 7)), (by_bits, (0, 0x1234)), (any, (0, 0x1300)), (by_source, (1, 7))]
    {
        let completion = world.wait(2, receive);
        assert_eq!((completion.envelope.peer, completion.envelope.tag), envelope);
    }

    assert!(world.ranks[2].test(other_context).unwrap().is_none());
}

/// A barrier whose wait has timed out is continued by the next wait: no rank returns before the
/// last one has come, and no message is left over for the next barrier.
#[body]
pub fn a_barrier_continues_after_a_time_out(network: &impl Network) {
    let mut world = World::new(network, 3, Config::default());
    let mut barriers: [Barrier<Request>; 3] = Default::default();
    let mut has_passed = |world: &mut World<_>, rank: usize| {
        world.progress();
        barriers[rank].wait(&mut world.ranks[rank], Deadline::after(Duration::ZERO)).is_ok()
    };

    for last in [2, 0, 1] {
        let early = [(last + 1) % 3, (last + 2) % 3];
        for _ in 0..30 {
            assert!(!early.iter().any(|&rank| has_passed(&mut world, rank)));
        }

        let mut waiting = vec![0, 1, 2];
        world.drive_until("all ranks", |world| {
            waiting.retain(|&rank| !has_passed(world, rank));
            waiting.is_empty().then_some(())
        });
    }
}

/// A probe reports the message that a receive would take.
#[body]
pub fn a_probe_sees_a_message_and_leaves_it(network: &impl Network) {
    let mut world = World::pair(network);
    for length in [0, 3, 300, 3000] {
        for to in [0, 1] {
            assert_eq!(world.ranks[to].probe(&Selector::any(0)), None);

            let send = world.send(0, to as u32, 4, &pattern(1, length));
            world.wait_for_message(to, &Selector::any(0));
            let arrived = Arrived { envelope: Envelope::new(0, 0, 4), length: length as u64 };

            assert_eq!(world.ranks[to].probe(&Selector::any_source(0, 4)), Some(arrived));
            assert_eq!(world.ranks[to].probe(&Selector::any(0)), Some(arrived));
            assert_eq!(world.ranks[to].probe(&Selector::any(1)), None);

            let receive = world.receive(to, Selector::any(0), length);
            assert_eq!(world.wait(to, receive).length, length);
            assert_eq!(world.wait(0, send).result, Ok(()));
        }
    }
}

/// A claimed message is received only by its own receive.
#[body]
pub fn a_claimed_message_matches_no_other_receive(network: &impl Network) {
    let mut world = World::pair(network);
    for length in [0, 3, 300, 2048, 3000] {
        for receiver in [0, 1] {
            let (first, second) = (pattern(1, length), pattern(2, length));
            let sends =
                [world.send(0, receiver as u32, 4, &first), world.send(0, receiver as u32, 4, &second)];

            // Of a long eager message, only the first piece may have arrived.
            let (message, arrived) =
                world.drive_until("message", |world| world.ranks[receiver].claim(&Selector::any(0)));
            assert_eq!(arrived.length, length as u64);

            let receive = world.receive(receiver, Selector::any(0), length);
            assert!(world.wait(receiver, receive).buffer.as_slice() == second);

            let receive = world.ranks[receiver].receive_claimed(message, vec![0; length], 5).unwrap();
            let completion = world.wait(receiver, receive);

            assert!(completion.buffer.as_slice() == first);
            assert_eq!((completion.cookie, completion.envelope), (5, Envelope::new(0, 0, 4)));

            let claimed_twice = world.ranks[receiver].receive_claimed(message, vec![], 0);
            assert_eq!(claimed_twice, Err(Error::NoSuchMessage { message: message.to_bits() }));

            for send in sends {
                assert_eq!(world.wait(0, send).result, Ok(()));
            }
        }
    }
}

/// A message that its receiver claims and discards completes its send, also a synchronous one and
/// one of a long message.
#[body]
pub fn a_discarded_message_counts_as_received_for_its_sender(network: &impl Network) {
    let mut world = World::pair(network);
    for length in [0, 2000, 3000] {
        for to in [0, 1] {
            let send = world.ranks[0]
                .isend(Envelope::new(to, 0, 1), Mode::Synchronous, pattern(1, length), 0)
                .unwrap();
            let eager = world.send(0, to, 2, &pattern(1, length));

            for _ in 0..2 {
                let (message, _) =
                    world.drive_until("message", |world| world.ranks[to as usize].claim(&Selector::any(0)));
                world.ranks[to as usize].discard(message).unwrap();
                assert!(world.ranks[to as usize].discard(message).is_err());
            }

            world.wait(0, send);
            world.wait(0, eager);
            let next = world.send(0, to, 3, b"next");

            let receive = world.receive(to as usize, Selector::any(0), 4);
            assert_eq!(world.wait(to as usize, receive).envelope.tag, 3);
            world.wait(0, next);
        }
    }
}

/// A receive can be cancelled until it is matched.
#[body]
pub fn a_cancelled_receive_takes_no_message(network: &impl Network) {
    let mut world = World::pair(network);
    let receives: Vec<_> = (0..3).map(|_| world.receive(1, Selector::any(0), 8)).collect();

    assert_eq!(world.ranks[1].cancel(receives[0]), Ok(true));

    world.send(0, 1, 0, b"message");
    world.drive_until("match", |world| (world.ranks[1].statistics().received == 1).then_some(()));
    assert_eq!(world.ranks[1].cancel(receives[1]), Ok(false));

    let cancelled = world.wait(1, receives[0]);
    assert_eq!((cancelled.result, cancelled.length), (Err(Error::Cancelled), 0));
    assert_eq!(world.wait(1, receives[1]).result, Ok(()));
    assert!(world.ranks[1].test(receives[2]).unwrap().is_none());
}

/// A send that has begun can't be cancelled.
#[body]
pub fn a_send_that_has_not_begun_can_be_cancelled_and_one_that_has_cannot(network: &impl Network) {
    let mut world = World::pair(network);
    // The receiver takes no message, and no transport here has room for so many pieces.
    let sends: Vec<_> = (0..12).map(|tag| world.send(0, 1, tag, &[tag as u8; 2000])).collect();

    for _ in 0..50 {
        world.ranks[0].progress().unwrap();
    }

    assert_eq!(world.ranks[0].cancel(sends[0]), Ok(false));
    assert_eq!(world.ranks[0].cancel(sends[10]), Ok(true));

    for tag in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11] {
        let receive = world.receive(1, Selector::any(0), 2000);
        let completion = world.wait(1, receive);
        assert_eq!((completion.envelope.tag, completion.buffer.as_slice()[1999]), (tag, tag as u8));
        assert_eq!(world.wait(0, sends[tag as usize]).result, Ok(()));
    }

    assert_eq!(world.wait(0, sends[10]).result, Err(Error::Cancelled));
}

/// Receives the message with a tag of a rank, whose data are a pattern, and checks it.
fn receive_and_check<T: Transport>(world: &mut World<T>, to: usize, from: u32, tag: u64, length: usize) {
    let receive = world.receive(to, Selector::exact(from, 0, tag), length);
    let completion = world.wait(to, receive);
    assert_eq!((completion.result, completion.length), (Ok(()), length), "message {tag} of {from}");
    assert!(completion.buffer.as_slice() == pattern(tag, length), "message {tag} of {from}");
}

/// A receive gets its message although many others, which no receive takes, stand before it.
#[body]
pub fn the_last_of_many_messages_is_received_first(network: &impl Network) {
    let mut world = World::pair(network);
    // Short and long eager messages, and rendezvous messages.
    for (tags, length) in [(0..600, 8), (600..800, 1500), (800..1400, 3000)] {
        let sends: Vec<_> = tags.clone().map(|tag| world.send(0, 1, tag, &pattern(tag, length))).collect();

        let last = tags.end - 1;
        receive_and_check(&mut world, 1, 0, last, length);
        for tag in tags.start..last {
            receive_and_check(&mut world, 1, 0, tag, length);
        }
        for send in sends {
            assert_eq!(world.wait(0, send).result, Ok(()));
        }
    }
}

/// The same with several senders, and a receive from any of them.
#[body]
pub fn the_last_messages_of_many_senders_are_received_first(network: &impl Network) {
    const COUNT: u64 = 300;
    let length = |tag: u64| [8, 300, 3000][tag as usize % 3];
    let mut world = World::new(network, 4, Config::default());
    for (from, tag) in (1..4).flat_map(|from| (0..COUNT).map(move |tag| (from, tag))) {
        world.send(from, 0, tag, &pattern(tag, length(tag)));
    }

    for _ in 1..4 {
        let receive = world.receive(0, Selector::any_source(0, COUNT - 1), 3000);
        assert_eq!(world.wait(0, receive).result, Ok(()));
    }
    for (from, tag) in (1..4).flat_map(|from| (0..COUNT - 1).map(move |tag| (from, tag))) {
        receive_and_check(&mut world, 0, from, tag, length(tag));
    }
}

/// Where the pool of windows has no room, both sides get an error that names the window.
#[body]
pub fn all_that_wait_for_a_window_without_room_get_an_error(network: &impl Network) {
    let mut world = World::new(network, 2, Config { pool: 1 << 18, ..Config::default() });
    let sends: Vec<_> = (0..2000).map(|tag| world.send(0, 1, tag, &pattern(tag, 8))).collect();

    let receive = world.receive(1, Selector::exact(0, 0, 1999), 8);
    let error = world.wait(1, receive).result.unwrap_err();
    assert!(matches!(error, Error::WindowFull { sender: 0, receiver: 1, .. }), "{error}");

    let last = world.wait(0, sends[1999]).result.unwrap_err();
    assert!(matches!(last, Error::WindowFull { sender: 0, receiver: 1, .. }), "{last}");
    assert_eq!(world.wait(0, sends[0]).result, Ok(()));

    // Both go on.
    receive_and_check(&mut world, 1, 0, 0, 8);
    world.send(1, 0, 7, &pattern(7, 8));
    receive_and_check(&mut world, 0, 1, 7, 8);
}

/// Handles of completed requests and ranks that do not exist are refused.
#[body]
pub fn handles_of_completed_requests_and_ranks_beyond_the_job_are_refused(network: &impl Network) {
    let mut world = World::pair(network);
    let send = world.send(0, 1, 0, b"");
    world.wait(0, send);

    let no_such_request = Error::NoSuchRequest { request: send.to_bits() };
    assert_eq!(world.ranks[0].test(send).unwrap_err(), no_such_request);

    let next = world.send(0, 1, 0, b"");
    assert_ne!(next, send);
    assert_eq!(world.ranks[0].cancel(send), Err(no_such_request));
    assert_eq!(Request::from_bits(next.to_bits()), next);

    let to_missing_rank = Envelope::new(2, 0, 0);
    let error = Error::NoSuchPeer { peer: 2, size: 2 };

    assert_eq!(world.ranks[0].isend(to_missing_rank, Mode::Standard, vec![], 0), Err(error.clone()));
    assert_eq!(world.ranks[0].irecv(Selector::exact(2, 0, 0), vec![], 0), Err(error));
}

/// The queue has the completions that no `test` has returned, in the order in which they came.
#[body]
pub fn the_completion_queue_has_each_completion_once_in_their_order(network: &impl Network) {
    let mut world = World::pair(network);
    for cookie in 0..5 {
        world.ranks[1].irecv(Selector::exact(0, 0, cookie), vec![0; 4], cookie).unwrap();
    }

    let tested = world.ranks[1].irecv(Selector::exact(0, 0, 9), vec![0; 4], 9).unwrap();
    for tag in [3, 9, 1, 0, 4] {
        world.send(0, 1, tag, b"data");
    }

    world.drive_until("data", |world| (world.ranks[1].statistics().received == 5).then_some(()));
    assert_eq!(world.ranks[1].test(tested).unwrap().unwrap().cookie, 9);

    let order: Vec<_> =
        std::iter::from_fn(|| world.ranks[1].next_completion()).map(|done| done.cookie).collect();

    assert_eq!(order, [3, 1, 0, 4]);
    assert_eq!(world.ranks[1].outstanding(), 1);
}

/// A wait that ends early leaves its request in place.
#[body]
pub fn a_wait_ends_by_deadline_or_token_and_its_request_stays_posted(network: &impl Network) {
    let mut world = World::pair(network);
    let receive = world.receive(0, Selector::any(0), 4);
    let rank = &mut world.ranks[0];
    let short_deadline = Deadline::after(Duration::from_millis(5));

    assert!(matches!(rank.wait(receive, short_deadline, None), Err(Error::Timeout { .. })));

    let cancel = Cancel::new().unwrap();
    cancel.cancel();

    assert!(matches!(rank.wait(receive, Deadline::never(), Some(&cancel)), Err(Error::Interrupted { .. })));
    assert!(matches!(rank.wait_next(Deadline::now(), None), Err(Error::Timeout { .. })));

    world.send(1, 0, 0, b"late");
    assert_eq!(world.wait(0, receive).buffer.as_slice(), b"late");
}

/// Number of rounds, with one message in each direction.
const ROUNDS: u64 = 300;

/// Exchanges messages with the other of two ranks, as a thread of its own. Returns the rank's
/// statistics. `ready` counts the ranks that have received everything.
fn exchange(port: impl Transport, ready: &AtomicU32) -> Statistics {
    let mut endpoint = Endpoint::new(port, Config::default()).unwrap();
    let other = 1 - endpoint.rank();
    let deadline = Deadline::after(6 * LIMIT);

    for round in 0..ROUNDS {
        let length = [8, 2000, 20_000][round as usize % 3];
        let (mut incoming, outgoing) = (vec![0; length], pattern(round, length));

        // SAFETY: the requests are waited for below, before the memory is freed or read; on a
        // failure the endpoint is dropped first.
        let to = unsafe { Buffer::from_raw_parts(outgoing.as_ptr().cast_mut(), length) };

        // SAFETY: as above.
        let from = unsafe { Buffer::from_raw_parts(incoming.as_mut_ptr(), length) };
        let receive = endpoint.irecv(Selector::exact(other, 0, round), from, 0).unwrap();
        let send = endpoint.isend(Envelope::new(other, 0, round), Mode::Synchronous, to, 0).unwrap();
        let results = [endpoint.wait(send, deadline, None), endpoint.wait(receive, deadline, None)];
        let failed =
            |result: &Result<Completion, _>| result.as_ref().map_or(true, |done| done.result.is_err());

        if results.iter().any(failed) {
            drop(endpoint);
            panic!("round {round}: {results:?}");
        }

        assert!(incoming == outgoing, "round {round}");
    }

    // Keeps running until the other rank has its last answers.
    ready.fetch_add(1, Ordering::SeqCst);
    let mut relax = Relax::new();

    while ready.load(Ordering::SeqCst) < 2 && !deadline.has_passed() {
        endpoint.progress().unwrap();
        endpoint.transport_mut().relax(&mut relax).unwrap();
    }

    endpoint.statistics()
}

/// Two ranks send and receive at once, each in a thread of its own and in memory that it lends.
#[body]
pub fn ranks_in_threads_of_their_own_exchange_messages_in_memory_of_their_own(network: &impl Network) {
    let ready = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            network.ranks(2).into_iter().map(|port| scope.spawn(|| exchange(port, &ready))).collect();
        for thread in threads {
            let statistics = thread.join().unwrap();
            assert_eq!((statistics.sent, statistics.received), (ROUNDS, ROUNDS));
        }
    });
}
