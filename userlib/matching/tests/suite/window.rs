//! The memory of unexpected messages is bounded, nothing is lost, and one sender does not block
//! another.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use crate::common::{World, pattern};
use nicforge_matching::{
    Config, Endpoint, Envelope, Mode, Selector,
    memory::{Fabric, FabricConfig},
    wire,
};

const CONFIG: Config =
    Config { eager_threshold: 500, window: 4096, pool: 1 << 20, budget: 64, gets_in_flight: 4 };

#[test]
fn a_flood_waits_at_its_sender_and_nothing_is_lost() {
    for seed in [0, 1, 2] {
        let mut world = World::new(2, FabricConfig { seed, ..FabricConfig::default() }, CONFIG);

        for number in 0..500 {
            world.send(0, 1, number, &pattern(number, [0, 100, 500, 1000][number as usize % 4]));
        }

        world.progress_rounds(500);

        assert!(world.ranks[1].store_bytes() <= CONFIG.window, "{}", world.ranks[1].store_bytes());
        assert!(world.ranks[0].outstanding() > 400);
        assert!(world.ranks[0].statistics().window_waits > 0);

        for number in 0..500 {
            let receive = world.receive(1, Selector::any(0), 1000);
            let completion = world.wait(1, receive);
            assert_eq!(completion.envelope.tag, number);
            let data = pattern(number, [0, 100, 500, 1000][number as usize % 4]);
            assert!(completion.buffer.as_slice()[..data.len()] == data);
        }

        assert!(world.ranks[1].store_bytes() <= CONFIG.window);
        assert_eq!(world.ranks[1].statistics().refused, 0);
        assert!(world.ranks[1].statistics().grants > 10);
    }
}

/// With one receive ring for all senders, a flood that stayed in the ring would block the other
/// messages for ever.
#[test]
fn a_flood_of_one_rank_does_not_block_another() {
    let mut world =
        World::new(3, FabricConfig { one_ring: true, credits: 8, ..FabricConfig::default() }, CONFIG);

    for number in 0..200 {
        world.send(0, 2, number, &[0; 400]);
    }

    world.progress_rounds(200);

    let receive = world.receive(2, Selector::exact(1, 0, 7), 10_000);
    world.send(1, 2, 7, &pattern(1, 10_000));

    assert!(world.wait(2, receive).buffer.as_slice() == pattern(1, 10_000));
}

#[test]
fn messages_that_are_expected_are_granted_again_without_end() {
    let mut world = World::pair();
    for number in 0..5_000 {
        let receive = world.receive(1, Selector::exact(0, 0, number), 8);
        world.send(0, 1, number, &number.to_le_bytes());
        assert_eq!(world.wait(1, receive).buffer.as_slice(), number.to_le_bytes());
    }

    let statistics = world.ranks[1].statistics();
    assert!((10..100).contains(&statistics.grants), "{}", statistics.grants);
    assert_eq!(statistics.unexpected, 0);
}

/// The sender assumes a larger window than the receiver has. The transport holds its messages until
/// there is room.
#[test]
fn a_sender_that_exceeds_the_window_is_held_by_the_transport() {
    for one_ring in [true, false] {
        let (_fabric, ports) =
            Fabric::new(2, FabricConfig { one_ring, credits: 16, ..FabricConfig::default() });
        let configs = [Config { window: 65_536, ..CONFIG }, CONFIG];
        let mut ranks: Vec<_> = ports
            .into_iter()
            .zip(configs)
            .map(|(port, config)| Endpoint::new(port, config).unwrap())
            .collect();

        for number in 0..300 {
            ranks[0].isend(Envelope::new(1, 0, number), Mode::Standard, pattern(number, 200), 0).unwrap();
        }

        for _ in 0..500 {
            ranks.iter_mut().for_each(|rank| assert!(rank.progress().is_ok()));
        }

        assert!(ranks[1].statistics().refused > 0);
        assert_eq!(ranks[1].statistics().unexpected, (CONFIG.window / wire::UNIT) as u64 / wire::cost(200));

        for number in 0..300 {
            let receive = ranks[1].irecv(Selector::any(0), vec![0; 200], 0).unwrap();
            let completion = (0..crate::common::MAX_ROUNDS).find_map(|_| {
                ranks.iter_mut().for_each(|rank| assert!(rank.progress().is_ok()));
                ranks[1].test(receive).unwrap()
            });

            let completion = completion.expect("it comes when there is room");
            assert_eq!(completion.envelope.tag, number);
            assert!(completion.buffer.as_slice() == pattern(number, 200));
        }
    }
}

#[test]
fn messages_to_the_rank_itself_beyond_the_window_stay_in_their_buffers() {
    let mut world = World::new(1, FabricConfig::default(), CONFIG);
    let sends: Vec<_> = (0..100).map(|number| world.send(0, 0, number, &pattern(number, 500))).collect();

    assert!(world.ranks[0].store_bytes() <= CONFIG.window);
    assert!(world.ranks[0].test(sends[0]).unwrap().is_some());
    assert!(world.ranks[0].test(sends[99]).unwrap().is_none());

    for number in 0..100 {
        let receive = world.receive(0, Selector::any(0), 500);
        assert!(world.wait(0, receive).buffer.as_slice() == pattern(number, 500));
    }

    world.wait(0, sends[99]);
}

#[test]
fn a_window_that_the_longest_eager_message_does_not_fit_is_refused() {
    let (_fabric, mut ports) = Fabric::new(1, FabricConfig::default());
    let config = Config { eager_threshold: 4096, window: 4096, ..CONFIG };

    let error = Endpoint::new(ports.remove(0), config).unwrap_err();
    assert!(error.to_string().contains("window is 4096; it must be 8448"), "{error}");
}

/// A call of `progress` does no more than its budget allows, however much has arrived.
#[test]
fn progress_is_bounded() {
    let mut world = World::new(
        2,
        FabricConfig { credits: 10_000, ..FabricConfig::default() },
        Config { budget: 5, ..Config::default() },
    );

    for number in 0..1000 {
        world.send(0, 1, number, &[]);
        world.ranks[0].progress().unwrap();
    }

    for number in 0..1000 {
        world.receive(1, Selector::exact(0, 0, number), 0);
    }

    let steps: Vec<_> = (0..100).map(|_| world.ranks[1].progress().unwrap()).collect();
    assert!(steps.iter().all(|&steps| steps <= 10), "{steps:?}");
}

/// A send that waits for the window blocks later ones, which may need less of the window.
/// Cancelling it unblocks them.
#[test]
fn a_cancelled_send_unblocks_later_sends() {
    let mut world = World::pair();
    let units = Config::default().window / wire::UNIT;

    for number in 0..units as u64 / wire::cost(8) - 1 {
        let send = world.send(0, 1, number, &[1; 8]);
        assert_eq!(world.wait(0, send).result, Ok(()));
    }

    let large = world.send(0, 1, 1000, &[2; 2048]);
    let small = world.send(0, 1, 1001, &[3; 8]);

    world.progress_rounds(100);

    assert!(world.ranks[0].test(small).unwrap().is_none());

    assert_eq!(world.ranks[0].cancel(large), Ok(true));
    assert_eq!(world.wait(0, small).result, Ok(()));

    let receive = world.receive(1, Selector::exact(0, 0, 1001), 8);
    assert_eq!(world.wait(1, receive).buffer.as_slice(), [3; 8]);
}
