//! A receive gets its message however many others stand before it. Where no window has room for
//! these, all that wait get an error which names the window.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use crate::common::{MAX_ROUNDS, World, pattern};
use nicforge_matching::{
    Completion, Config, Envelope, Error, Mode, Request, Selector, memory::FabricConfig, wire,
};
use proptest::prelude::*;

const CONFIG: Config =
    Config { eager_threshold: 500, window: 4096, pool: 1 << 20, budget: 64, gets_in_flight: 4 };

/// Lengths of short and long eager messages, and of a rendezvous message.
const LENGTHS: [usize; 3] = [8, 400, 1000];

/// Fabrics with one receive ring for all senders, and with one for each; with and without delays
/// and shortages.
fn fabrics() -> impl Iterator<Item = FabricConfig> {
    [0, 1, 2, 3]
        .map(|seed| FabricConfig { seed, one_ring: seed % 2 == 0, ..FabricConfig::default() })
        .into_iter()
}

/// Receives the message with a tag, and checks its data.
fn receive_and_check(world: &mut World, rank: usize, source: u32, tag: u64, length: usize) {
    let receive = world.receive(rank, Selector::exact(source, 0, tag), length);
    let completion = world.wait(rank, receive);
    assert_eq!((completion.envelope.peer, completion.envelope.tag), (source, tag));
    assert_eq!(completion.result, Ok(()));
    assert!(completion.buffer.as_slice() == pattern(tag, length));
}

#[test]
fn the_last_of_many_messages_is_received_first() {
    for (fabric, length) in fabrics().flat_map(|fabric| LENGTHS.map(|length| (fabric, length))) {
        let mut world = World::new(2, fabric, CONFIG);
        let sends: Vec<_> = (0..600).map(|tag| world.send(0, 1, tag, &pattern(tag, length))).collect();

        for tag in (0..600).rev() {
            receive_and_check(&mut world, 1, 0, tag, length);
        }
        for send in sends {
            assert_eq!(world.wait(0, send).result, Ok(()));
        }
        assert!(world.ranks[1].statistics().grown > 0);
        assert_eq!(world.ranks[1].statistics().refused, 0);
    }
}

#[test]
fn the_last_messages_of_many_senders_are_received_first() {
    for fabric in fabrics() {
        let mut world = World::new(8, fabric, CONFIG);
        for (from, tag) in (1..8).flat_map(|from| (0..100).map(move |tag| (from, tag))) {
            world.send(from, 0, tag, &pattern(tag, LENGTHS[(from + tag as usize) % 3]));
        }

        for _ in 1..8 {
            let receive = world.receive(0, Selector::any_source(0, 99), 1000);
            assert_eq!(world.wait(0, receive).result, Ok(()));
        }
        for (from, tag) in (1..8).flat_map(|from| (0..99).map(move |tag| (from, tag))) {
            receive_and_check(&mut world, 0, from, tag, LENGTHS[(from as usize + tag as usize) % 3]);
        }
    }
}

#[test]
fn the_last_of_a_hundred_thousand_messages_is_received_first() {
    const LAST: u64 = 99_999;
    let mut world = World::pair();
    for tag in 0..=LAST {
        world.send(0, 1, tag, &tag.to_le_bytes());
    }

    let receive = world.receive(1, Selector::exact(0, 0, LAST), 8);
    assert_eq!(world.wait(1, receive).buffer.as_slice(), LAST.to_le_bytes());

    let first = world.receive(1, Selector::any(0), 8);
    assert_eq!(world.wait(1, first).buffer.as_slice(), 0_u64.to_le_bytes());
}

/// A probe waits as a receive does.
#[test]
fn the_last_of_many_messages_is_probed_first() {
    for claims in [false, true] {
        let mut world = World::new(2, FabricConfig::default(), CONFIG);
        for tag in 0..600 {
            world.send(0, 1, tag, &pattern(tag, 8));
        }

        let selector = Selector::exact(0, 0, 599);
        let is_found = (0..MAX_ROUNDS).any(|_| {
            world.progress();
            if claims {
                world.ranks[1].claim(&selector).is_some()
            } else {
                world.ranks[1].probe(&selector).is_some()
            }
        });
        assert!(is_found, "claims: {claims}");
    }
}

/// Messages that arrive for receives use up the window too, until half of it can be granted again.
#[test]
fn a_receive_gets_its_message_after_others_that_were_expected() {
    let mut world = World::new(2, FabricConfig::default(), CONFIG);
    // Units of a message of 400 bytes. Eight units are stored, then 12 consumed, of 32.
    assert_eq!(wire::cost(400), 5);
    for tag in 0..4 {
        world.send(0, 1, tag, &pattern(tag, 8));
    }
    world.progress_rounds(10);
    for tag in 10..16 {
        let receive = world.receive(1, Selector::exact(0, 0, tag), 8);
        world.send(0, 1, tag, &pattern(tag, 8));
        world.wait(1, receive);
    }

    for tag in 20..23 {
        world.send(0, 1, tag, &pattern(tag, 400));
    }
    receive_and_check(&mut world, 1, 0, 22, 400);
}

/// Drives all ranks until each request of `requests` is complete, and returns the completions.
fn complete_all(world: &mut World, requests: &[(usize, Request)]) -> Vec<Completion> {
    requests.iter().map(|&(rank, request)| world.wait(rank, request)).collect()
}

fn is_full(error: &Error, sender: u32, receiver: u32) -> bool {
    matches!(error, Error::WindowFull { sender: s, receiver: r, .. } if (*s, *r) == (sender, receiver))
}

#[test]
fn all_that_wait_for_a_window_without_room_get_an_error_that_names_it() {
    for (fabric, length) in fabrics().flat_map(|fabric| LENGTHS.map(|length| (fabric, length))) {
        let mut world = World::new(3, fabric, Config { pool: 8192, ..CONFIG });
        let sends: Vec<_> = (0..200).map(|tag| (0, world.send(0, 1, tag, &pattern(tag, length)))).collect();
        let bystander = world.receive(1, Selector::exact(2, 0, 7), 8);

        // Each kind of receive that can wait for the last message.
        let selectors = [Selector::exact(0, 0, 199), Selector::any_source(0, 199), Selector::any_tag(0, 1)];
        for receive in selectors.map(|selector| world.receive(1, selector, length)) {
            let error = world.wait(1, receive).result.unwrap_err();
            assert!(is_full(&error, 0, 1), "{error}");
            assert!(error.to_string().contains("the window is full"), "{error}");
        }

        // Messages that have left the sender are received. The others have failed.
        let mut received = 0;
        while let Some(arrived) = world.ranks[1].probe(&Selector::any_tag(0, 0)) {
            assert_eq!(arrived.envelope.tag, received);
            receive_and_check(&mut world, 1, 0, received, length);
            received += 1;
            world.progress_rounds(50);
        }
        assert!(received > 10, "{received}");

        for (tag, completion) in (0..).zip(complete_all(&mut world, &sends)) {
            match completion.result {
                Ok(()) => assert!(tag < received, "{tag} of {received}"),
                Err(error) => assert!(tag >= received && is_full(&error, 0, 1), "{tag}: {error}"),
            }
        }

        // A receive that waits for another rank does not fail, and both ranks go on.
        world.send(2, 1, 7, &pattern(7, 8));
        assert_eq!(world.wait(1, bystander).result, Ok(()));
        world.send(0, 1, 500, &pattern(500, length));
        receive_and_check(&mut world, 1, 0, 500, length);
    }
}

/// A receive that waits for a later send gets no error while the sender has nothing that waits.
#[test]
fn a_receive_waits_for_a_sender_that_sends_nothing() {
    let mut world = World::new(2, FabricConfig::default(), Config { pool: 0, ..CONFIG });
    // 28 of 32 units.
    for tag in 0..14 {
        world.send(0, 1, tag, &pattern(tag, 8));
    }
    let receive = world.receive(1, Selector::exact(0, 0, 100), 8);
    world.progress_rounds(1000);
    assert!(world.ranks[1].test(receive).unwrap().is_none());

    world.send(0, 1, 100, &pattern(100, 8));
    assert_eq!(world.wait(1, receive).result, Ok(()));
}

/// A send that waits without a receive that waits for it is not given up, however full the pool is.
#[test]
fn a_flood_waits_when_no_receive_does() {
    let mut world = World::new(2, FabricConfig::default(), Config { pool: 0, ..CONFIG });
    let sends: Vec<_> = (0..100).map(|tag| (0, world.send(0, 1, tag, &pattern(tag, 8)))).collect();
    world.progress_rounds(1000);
    for tag in 0..100 {
        receive_and_check(&mut world, 1, 0, tag, 8);
    }
    assert!(complete_all(&mut world, &sends).iter().all(|send| send.result.is_ok()));
}

/// One peer leaves as much of the pool as it has, and gives back what is received.
#[test]
fn a_peer_leaves_room_in_the_pool_for_others() {
    let mut world = World::new(3, FabricConfig::default(), Config { pool: 64 << 10, ..CONFIG });
    for round in 0..3 {
        // The pool has 512 units, of which one peer may use half.
        for tag in 0..1000 {
            world.send(0, 2, tag, &pattern(tag, 8));
        }
        let greedy = world.receive(2, Selector::exact(0, 0, 5000), 8);
        assert!(world.wait(2, greedy).result.is_err(), "{round}");

        // The other one may have half of what is left, and its window: 160 units.
        for tag in 0..80 {
            world.send(1, 2, tag, &pattern(tag, 8));
        }
        for tag in (0..80).rev() {
            receive_and_check(&mut world, 2, 1, tag, 8);
        }

        while world.ranks[2].probe(&Selector::any_tag(0, 0)).is_some() {
            let receive = world.receive(2, Selector::any_tag(0, 0), 8);
            assert_eq!(world.wait(2, receive).result, Ok(()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    /// Two senders' messages are received in any order. Each request completes. With room in the
    /// pool it completes without an error; without, the error names the window.
    #[test]
    fn any_order_of_receives_ends(
        order in Just((0..2_u32).flat_map(|from| (0..80_u64).map(move |tag| (from, tag))).collect::<Vec<_>>()).prop_shuffle(),
        lengths in prop::collection::vec(prop::sample::select(vec![0, 8, 200, 400, 1000]), 80),
        any_source in any::<bool>(),
        synchronous in prop::collection::vec(prop::bool::weighted(0.2), 80),
        seed in 0..u64::MAX,
        one_ring in any::<bool>(),
        pool in prop::sample::select(vec![0, 4096, 16_384, 1 << 20]),
        window in prop::sample::select(vec![1280, 4096]),
        budget in prop::sample::select(vec![1, 64]),
    ) {
        let fabric = FabricConfig { seed, one_ring, credits: 7, ..FabricConfig::default() };
        let mut world = World::new(3, fabric, Config { pool, window, budget, ..CONFIG });

        let mut sends = Vec::new();
        for (tag, from) in (0..80_u64).flat_map(|tag| [(tag, 0), (tag, 1)]) {
            let mode = if synchronous[tag as usize] { Mode::Synchronous } else { Mode::Standard };
            let data = pattern(tag, lengths[tag as usize]);
            sends.push((from, world.ranks[from].isend(Envelope::new(2, 0, tag), mode, data, 0).unwrap()));
        }

        let mut is_any_full = false;
        for &(from, tag) in &order {
            let selector = if any_source { Selector::any_source(0, tag) } else { Selector::exact(from, 0, tag) };
            // The message may have failed at its sender, so nothing may come.
            let receive = world.receive(2, selector, 1000);
            let mut rounds = 0;
            let completion = loop {
                world.progress();
                rounds += 1;
                if let Some(completion) = world.ranks[2].test(receive).unwrap() {
                    break Some(completion);
                }
                if is_any_full && rounds > 2000 {
                    world.ranks[2].cancel(receive).unwrap();
                    world.wait(2, receive);
                    break None;
                }
                prop_assert!(rounds < MAX_ROUNDS, "{:?}", world.ranks[2].statistics());
            };
            if let Some(Err(error)) = completion.map(|completion| completion.result) {
                prop_assert!(is_full(&error, 0, 2) || is_full(&error, 1, 2), "{error}");
                is_any_full = true;
            }
            prop_assert!(world.ranks[2].store_bytes() <= 2 * window + pool);
        }
        prop_assert!(!is_any_full || pool < 1 << 20);

        // What is left are messages whose receives have failed.
        let mut left = Vec::new();
        for _ in 0..sends.len() {
            left.push((2, world.receive(2, Selector::any(0), 1000)));
        }
        for completion in complete_all(&mut world, &sends) {
            if let Err(error) = completion.result {
                prop_assert!(is_any_full && matches!(error, Error::WindowFull { receiver: 2, .. }), "{error}");
            }
        }
        prop_assert_eq!(world.ranks[2].statistics().refused, 0);
    }
}
