//! Full windows, full memory for unexpected messages, and a full card.

use nicforge_portals::Mode;
use nicforge_portals_mpi::{Config, Envelope, Error, Selector};
use nicforge_test_body::body;

use super::{MACHINE, World, bytes, in_both_modes, small};
use crate::{backing::Rig, pattern::pattern};

/// Messages that find no memory are kept by their senders, and arrive in order, with their data,
/// when they are received. The receiver makes no call in the meantime.
#[body]
pub fn messages_beyond_the_memory_wait_at_their_senders(rig: &dyn Rig) {
    const MESSAGES: u64 = 100;
    in_both_modes(rig, |world| {
        let length = |tag: u64| [0, 10, 257, 4096, 9000][tag as usize % 5];
        let mut sends = Vec::new();
        for from in [0, 1, 3] {
            for tag in 0..MESSAGES {
                let data = pattern(tag * 4 + from as u64, length(tag));
                sends.push((from, world.send(from, 2, tag, &data)));
            }
        }
        // The windows are full, and so is the memory.
        world.await_unexpected(2, 40);
        assert!(world.ranks[0].unacknowledged() <= 16);

        // The last ones are received first, as far as they have left their senders.
        for from in [3, 1, 0] {
            for tag in 0..MESSAGES {
                let receive = world.receive(2, Selector::exact(from as u32, 0, tag), length(tag));
                let done = world.wait(2, receive);
                assert!(bytes(&done) == pattern(tag * 4 + from as u64, length(tag)), "{tag} from {from}");
            }
        }
        for (from, send) in sends {
            assert_eq!(world.wait(from, send).result, Ok(()));
        }
        let receiver = world.ranks[2].statistics();
        assert!(receiver.overflowed > 0 && receiver.repeated > 0, "{receiver:?}");
    });
}

/// A receive gets its message although more than a window of others, which no receive takes, stand
/// before it.
#[body]
pub fn the_last_of_many_messages_is_received_first(rig: &dyn Rig) {
    const MESSAGES: u64 = 200;
    in_both_modes(rig, |world| {
        // Short, medium and long messages.
        for length in [10, 2000, 9000] {
            let sends: Vec<_> =
                (0..MESSAGES).map(|tag| world.send(0, 2, tag, &pattern(tag, length))).collect();
            for tag in (0..MESSAGES).rev() {
                let receive = world.receive(2, Selector::exact(0, 0, tag), length);
                let done = world.wait(2, receive);
                assert_eq!(done.result, Ok(()));
                assert!(bytes(&done) == pattern(tag, length), "{tag} of {length} bytes");
            }
            for send in sends {
                assert_eq!(world.wait(0, send).result, Ok(()));
            }
        }
        assert!(world.ranks[2].statistics().kept > 0);
    });
}

/// The same with several senders, and receives from any of them.
#[body]
pub fn the_last_messages_of_many_senders_are_received_first(rig: &dyn Rig) {
    const MESSAGES: u64 = 100;
    in_both_modes(rig, |world| {
        let length = |tag: u64| [10, 2000, 9000][tag as usize % 3];
        let mut sends = Vec::new();
        for from in [0, 1, 3] {
            for tag in 0..MESSAGES {
                sends.push((from, world.send(from, 2, tag, &pattern(tag, length(tag)))));
            }
        }
        for tag in (0..MESSAGES).rev() {
            for _ in 0..3 {
                let receive = world.receive(2, Selector::any_source(0, tag), length(tag));
                let done = world.wait(2, receive);
                assert_eq!(done.result, Ok(()));
                assert!(bytes(&done) == pattern(tag, length(tag)), "{tag}");
            }
        }
        for (from, send) in sends {
            assert_eq!(world.wait(from, send).result, Ok(()));
        }
    });
}

/// Where no more headers are kept, both sides get an error that names the window, and go on.
#[body]
pub fn all_that_wait_for_a_full_window_get_an_error(rig: &dyn Rig) {
    const MESSAGES: u64 = 200;
    for (mode, from_any) in [(Mode::NicBased, true), (Mode::HostBased, false)] {
        let mut world = World::new(rig, mode, Config { headers: 40, ..small() });
        let sends: Vec<_> = (0..MESSAGES).map(|tag| world.send(0, 2, tag, &pattern(tag, 9000))).collect();
        let last = MESSAGES - 1;
        let selector = if from_any { Selector::any_source(0, last) } else { Selector::exact(0, 0, last) };
        let receive = world.receive(2, selector, 9000);
        let full = Err(Error::WindowFull { sender: 0, receiver: 2 });
        assert_eq!(world.wait(2, receive).result, full);
        assert_eq!(world.wait(0, sends[last as usize]).result, full);

        // The messages that have left the sender are received: a window of kept headers, and a
        // window of others. Then another message arrives.
        for tag in 0..32 {
            let receive = world.receive(2, Selector::exact(0, 0, tag), 9000);
            assert!(bytes(&world.wait(2, receive)) == pattern(tag, 9000), "{tag}");
        }
        let send = world.send(0, 2, 500, &pattern(5, 9000));
        let receive = world.receive(2, Selector::exact(0, 0, 500), 9000);
        assert!(bytes(&world.wait(2, receive)) == pattern(5, 9000));
        assert_eq!(world.wait(0, send).result, Ok(()));
    }
}

/// The buffers for unexpected messages are used again and again, in turn.
#[body]
pub fn memory_for_unexpected_messages_is_used_again(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        for round in 0..200_u64 {
            let before = world.ranks[1].statistics().unexpected;
            let sends = [7, 3000].map(|length| world.send(0, 1, round, &pattern(round, length)));
            world.await_unexpected(1, before + 2);
            for length in [7, 3000] {
                let receive = world.receive(1, Selector::exact(0, 0, round), length);
                assert!(bytes(&world.wait(1, receive)) == pattern(round, length));
            }
            for send in sends {
                assert_eq!(world.wait(0, send).result, Ok(()));
            }
        }

        // 600 KB went through 32 KB, and nothing overflowed.
        assert_eq!(world.ranks[1].statistics().overflowed, 0);
    });
}

/// A message that stays unreceived holds its buffer, and the others continue through the rest, or
/// from their senders.
#[body]
pub fn messages_that_stay_do_not_stop_the_others(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        let stay: Vec<_> = (0..4).map(|tag| world.send(0, 1, 1000 + tag, &pattern(tag, 4096))).collect();
        world.await_unexpected(1, 4);

        for tag in 0..60 {
            let before = world.ranks[1].statistics().unexpected;
            let send = world.send(3, 1, tag, &pattern(tag, 4000));
            world.await_unexpected(1, before + 1);
            let receive = world.receive(1, Selector::exact(3, 0, tag), 4000);
            assert!(bytes(&world.wait(1, receive)) == pattern(tag, 4000));
            world.wait(3, send);
        }
        for (tag, send) in (0..4).zip(stay) {
            let receive = world.receive(1, Selector::exact(0, 0, 1000 + tag), 4096);
            assert!(bytes(&world.wait(1, receive)) == pattern(tag, 4096));
            world.wait(0, send);
        }
    });
}

/// Receives beyond the room of the card wait in the library, and match in their order. A message
/// that overflows is fetched although receives have filled the card.
#[body]
pub fn receives_beyond_the_card_match_in_order(rig: &dyn Rig) {
    const RECEIVES: u64 = 4000;
    let mut world = World::new(rig, Mode::NicBased, Config { receives: 8192, ..small() });
    let receives: Vec<_> =
        (0..RECEIVES).map(|number| world.receive(2, Selector::any_source(0, number), 8)).collect();

    // These fill the memory for unexpected messages, so that some are fetched.
    let sends: Vec<_> = (0..30).map(|tag| world.send(0, 2, 10_000 + tag, &pattern(tag, 2000))).collect();
    for (tag, send) in (0..30).zip(sends) {
        let receive = world.receive(2, Selector::exact(0, 0, 10_000 + tag), 2000);
        assert!(bytes(&world.wait(2, receive)) == pattern(tag, 2000));
        world.wait(0, send);
    }

    for (number, receive) in (0..RECEIVES).rev().zip(receives.into_iter().rev()) {
        let from = [0, 1, 3][number as usize % 3];
        let send = world.send(from, 2, number, &number.to_le_bytes());
        assert_eq!(bytes(&world.wait(2, receive)), number.to_le_bytes());
        world.wait(from, send);
    }
    world.finish();
}

/// More long messages than a window or the card has room for wait in order.
#[body]
pub fn sends_beyond_the_window_leave_in_order(rig: &dyn Rig) {
    in_both_modes(rig, |world| {
        let sends: Vec<_> = (0..60).map(|number| world.send(0, 3, 0, &pattern(number, 5000))).collect();
        assert!(world.ranks[0].unacknowledged() <= 16);
        let last = sends[59];
        assert_eq!(world.ranks[0].cancel(last), Ok(true));
        let other = world.buffer_of(0, b"to another rank");
        let other = world.ranks[0].isend(Envelope::new(1, 0, 0), other, 0).unwrap();

        // A full window stops no message to another rank.
        let receive = world.receive(1, Selector::exact(0, 0, 0), 100);
        assert_eq!(bytes(&world.wait(1, receive)), b"to another rank");
        world.wait(0, other);

        for number in 0..59 {
            let receive = world.receive(3, Selector::exact(0, 0, 0), 5000);
            assert!(bytes(&world.wait(3, receive)) == pattern(number, 5000), "{number}");
        }
        for send in sends {
            world.wait(0, send);
        }
    });
}
