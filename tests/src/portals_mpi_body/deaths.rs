//! Processes and nodes that end.

use std::time::Duration;

use nicforge_driver::Relax;
use nicforge_portals::{KernelConfig, Mode};
use nicforge_portals_mpi::{Config, Envelope, Error, Loss, Selector};
use nicforge_test_body::body;

use super::{MACHINE, MODES, World, bytes, small};
use crate::{backing::Rig, pattern::pattern};

/// Returns a configuration with time-outs that are short enough for a test.
fn short_time_outs() -> Config {
    Config { patience: Duration::from_millis(800), ..small() }
}

/// When a process ends, requests that wait for its rank fail, and those of the other ranks
/// continue.
#[body]
pub fn requests_of_a_rank_that_has_ended_fail(rig: &dyn Rig) {
    for mode in MODES {
        let mut world = World::new(rig, mode, short_time_outs());
        let peer_gone = Err(Error::PeerGone { peer: 3, why: Loss::Silent });
        // The data of one of its messages have arrived here, and those of another have not.
        let sends = [100, 9000].map(|length| world.send(3, 0, length as u64, &pattern(1, length)));
        world.await_unexpected(0, 2);
        drop(world.ranks.pop());
        // The requests ended with their endpoint.
        let _ = sends;

        let stored = world.receive(0, Selector::exact(3, 0, 100), 100);
        assert!(bytes(&world.wait(0, stored)) == pattern(1, 100));
        let fetched = world.receive(0, Selector::exact(3, 0, 9000), 9000);
        let named = world.receive(0, Selector::exact(3, 0, 1), 10);
        let any = world.receive(0, Selector::any_source(0, 1), 10);
        let long = world.send(0, 3, 1, &pattern(2, 9000));
        let medium = world.send(1, 3, 1, &pattern(2, 2000));

        for (rank, request) in [(0, fetched), (0, named), (0, long), (1, medium)] {
            assert_eq!(world.wait(rank, request).result, peer_gone, "{mode:?}");
        }
        let late = world.send(0, 3, 1, &pattern(2, 2000));
        assert_eq!(world.wait(0, late).result, peer_gone);
        world.send(2, 0, 1, b"alive");
        assert_eq!(bytes(&world.wait(0, any)), b"alive");
    }
}

/// When a node ends, messages to its ranks fail at once.
#[body]
pub fn requests_of_ranks_on_a_node_that_was_reset_fail(rig: &dyn Rig) {
    for mode in MODES {
        let mut world = World::new(rig, mode, small());
        let receive = world.receive(0, Selector::exact(2, 0, 0), 10);
        let held = world.send(0, 3, 0, &pattern(1, 5000));
        world.await_unexpected(3, 1);
        rig.reset("ss1");
        drop(world.ranks.drain(2..));
        world.kernels.pop();

        let peer_gone = |peer| Error::PeerGone { peer, why: Loss::NodeEnded };
        let sends = [2, 3].map(|to| world.send(0, to, 0, &pattern(1, 3000)));
        for (to, send) in [2, 3].into_iter().zip(sends) {
            assert_eq!(world.wait(0, send).result, Err(peer_gone(to)));
        }
        assert_eq!(world.wait(0, held).result, Err(peer_gone(3)));
        assert_eq!(world.wait(0, receive).result, Err(peer_gone(2)));

        let to_neighbour = world.send(0, 1, 5, b"neighbour");
        let receive = world.receive(1, Selector::any(0), 100);
        assert_eq!(bytes(&world.wait(1, receive)), b"neighbour");
        world.wait(0, to_neighbour);
    }
}

/// An endpoint whose own node ends reports that, and ends without a wait.
#[body]
pub fn an_endpoint_on_a_node_that_was_reset_reports_it(rig: &dyn Rig) {
    let mut world = World::new(rig, Mode::NicBased, small());
    let receive = world.receive(0, Selector::any(0), 10);
    rig.reset("ss0");

    let deadline = crate::backing::test_deadline();
    let error = world.ranks[0].wait(receive, deadline, None).unwrap_err();
    assert!(matches!(&error, Error::Portals(error) if error.is_gone()), "{error}");
}

/// A host-based rank that makes no calls for longer than the patience of another one counts as
/// gone. The error names the cause, and the call that avoids it. A message that the other rank then
/// does not fetch ends at its sender, too.
#[body]
pub fn a_silent_host_based_rank_is_reported_with_the_remedy(rig: &dyn Rig) {
    let mut world = World::new(rig, Mode::HostBased, short_time_outs());
    let long = world.send(3, 0, 2, &pattern(1, 9000));
    world.await_unexpected(0, 1);
    let receive = world.receive(0, Selector::exact(3, 0, 1), 10);
    let (deadline, mut relax) = (crate::backing::test_deadline(), Relax::new());
    let done = loop {
        let rank = &mut world.ranks[0];
        rank.progress().unwrap();
        if let Some(done) = rank.test(receive).unwrap() {
            break done;
        }
        assert!(!deadline.has_passed());
        rank.relax(&mut relax).unwrap();
    };

    let error = done.result.unwrap_err();
    assert_eq!(error, Error::PeerGone { peer: 3, why: Loss::Silent });
    assert!(error.to_string().contains("Kernel::serve"), "{error}");

    let fetched = world.receive(0, Selector::exact(3, 0, 2), 9000);
    assert_eq!(world.ranks[0].test(fetched).unwrap().unwrap().result, Err(error));
    assert_eq!(world.wait(3, long).result, Err(Error::GivenUp { peer: 0 }));
}

/// A receive of a long message that its sender has ended fails: Portals answers nothing to a get
/// whose descriptor is gone, and the library asks the sender.
#[body]
pub fn a_get_of_a_message_that_is_no_longer_there_fails(rig: &dyn Rig) {
    let mut world = World::new(rig, Mode::HostBased, short_time_outs());
    let long = world.send(0, 3, 1, &pattern(1, 9000));
    world.await_unexpected(3, 1);

    // The receiver makes no calls until its sender counts it as silent, and removes the
    // descriptor.
    let ended = world.drive_some_until(1, "the loss", |ranks| ranks[0].test(long).unwrap());
    assert_eq!(ended.result, Err(Error::PeerGone { peer: 3, why: Loss::Silent }));

    let receive = world.receive(3, Selector::exact(0, 0, 1), 9000);
    let done = world.wait(3, receive);
    assert_eq!((done.result, done.buffer.len()), (Err(Error::NoLongerThere { peer: 0 }), 9000));
    let to_neighbour = world.send(1, 3, 5, b"another");
    let receive = world.receive(3, Selector::exact(1, 0, 5), 100);
    assert_eq!(bytes(&world.wait(3, receive)), b"another");
    world.wait(1, to_neighbour);
}

/// The memory of messages to a rank that counts as silent is not used again before the card has
/// ended their puts: a rank that continues gets the data as they were sent.
#[body]
pub fn memory_of_messages_to_a_silent_rank_stays_until_their_puts_end(rig: &dyn Rig) {
    const LENGTHS: [usize; 2] = [100, 4000];
    let modes = [Mode::NicBased, Mode::NicBased, Mode::HostBased, Mode::HostBased];
    let mut world = World::of_modes(rig, modes, short_time_outs());

    // Ranks 2 and 3 make no calls, so that their kernel gives no message a destination. The first
    // message holds up the reception of their card, and so the other messages, which fill the
    // network.
    for (from, to) in [(1, 2), (1, 3), (0, 3)] {
        for tag in 0..16 {
            world.send(from, to, tag, &pattern(tag, 300));
        }
    }
    world.drive_some_until(2, "a message that waits", |_| (rig.counter("ss1", "streams") > 0).then_some(()));

    let peer_gone = Err(Error::PeerGone { peer: 2, why: Loss::Silent });
    let sends = LENGTHS.map(|length| world.send(0, 2, length as u64, &pattern(1, length)));
    let ended = sends.map(|send| world.drive_some_until(1, "an end", |ranks| ranks[0].test(send).unwrap()));
    // A short message is complete when it was copied.
    assert_eq!(ended.each_ref().map(|end| end.result.clone()), [Ok(()), peer_gone]);
    assert!(ended[1].buffer.is_empty());
    drop(ended);
    world.drive_some_until(1, "the loss", |ranks| (ranks[0].retained() >= 2).then_some(()));

    // All other memory gets other data: slots by messages to a neighbour, and the heap.
    let short = [0xff; LENGTHS[0]];
    for tag in 0..8 {
        world.send(0, 1, tag, &short);
    }
    let heap: Vec<_> = std::iter::from_fn(|| {
        let mut buffer = world.ranks[0].allocate(LENGTHS[1]).ok()?;
        buffer.write(0, &[0xff; LENGTHS[1]]).unwrap();
        Some(buffer)
    })
    .collect();

    for length in LENGTHS {
        let receive = world.receive(2, Selector::any_source(0, length as u64), length);
        let done = world.wait(2, receive);
        assert!(bytes(&done) == pattern(1, length), "{length} bytes");
    }
    world.drive_until("the ends of the puts", |ranks| (ranks[0].retained() == 0).then_some(()));
    drop(heap);
}

/// A rank whose card takes nothing counts as silent although messages to it have used up all room,
/// and stops no messages to others.
#[body]
pub fn a_rank_whose_card_takes_nothing_stops_no_others(rig: &dyn Rig) {
    const MESSAGES: u64 = 64;
    let modes = [Mode::NicBased, Mode::NicBased, Mode::HostBased, Mode::HostBased];
    let kernel = KernelConfig { events: 64, ..KernelConfig::default() };
    let mut world = World::open(rig, &modes, Config { window: 64, ..short_time_outs() }, kernel);
    world.wait_for_all();

    // Ranks 2 and 3 make no calls. Their card refuses messages when their kernel's queue is full.
    for (tag, to) in (0..MESSAGES).flat_map(|tag| [(tag, 2), (tag, 3)]) {
        world.send(1, to, tag, b"early");
    }
    world.drive_some_until(2, "a refusal", |_| (rig.counter("ss1", "firmware_refused") > 0).then_some(()));

    let sends: Vec<_> = (0..MESSAGES).map(|tag| world.send(0, 3, tag, &pattern(tag, 300))).collect();
    let other = world.send(0, 1, 5, b"another");
    let receive = world.receive(1, Selector::exact(0, 0, 5), 100);
    let done = world.drive_some_until(2, "another message", |ranks| ranks[1].test(receive).unwrap());
    assert_eq!((&done.result, &*bytes(&done)), (&Ok(()), &b"another"[..]));
    world.drive_some_until(2, "the other send", |ranks| ranks[0].test(other).unwrap());

    for send in sends {
        let done = world.drive_some_until(2, "an end", |ranks| ranks[0].test(send).unwrap());
        assert_eq!(done.result, Err(Error::PeerGone { peer: 3, why: Loss::Silent }));
    }
    world.drive_until("the ends of the puts", |ranks| (ranks[0].retained() == 0).then_some(()));
}

/// A long message that fills the network while its receiver makes no calls arrives when it does.
#[body]
pub fn a_message_that_waits_in_the_network_arrives(rig: &dyn Rig) {
    const BYTES: usize = 1 << 20;
    let modes = [Mode::NicBased, Mode::NicBased, Mode::HostBased, Mode::NicBased];
    let mut world = World::of_modes(rig, modes, small());
    let send = world.send(1, 2, 1, &pattern(1, BYTES));
    world.drive_some_until(2, "a message that waits", |_| (rig.counter("ss1", "streams") > 0).then_some(()));

    let receive = world.receive(2, Selector::exact(1, 0, 1), BYTES);
    assert_eq!(world.wait(1, send).result, Ok(()));
    assert!(bytes(&world.wait(2, receive)) == pattern(1, BYTES));
}

/// Calls on a lost card are refused, and leave neither requests nor buffers behind.
#[body]
pub fn refused_calls_on_a_lost_card_leave_nothing(rig: &dyn Rig) {
    for mode in MODES {
        let mut world = World::new(rig, mode, small());
        let heap = small().space.heap as usize;
        rig.reset("ss0");

        for length in [10, 2000, 9000] {
            let rank = &mut world.ranks[0];
            let buffer = rank.allocate(length).unwrap();
            let send = rank.isend(Envelope::new(2, 0, 1), buffer, 0).unwrap_err();
            let buffer = rank.allocate(length).unwrap();
            let receive = rank.irecv(Selector::exact(2, 0, 1), buffer, 0).unwrap_err();
            for error in [send, receive] {
                assert!(matches!(&error, Error::Portals(error) if error.is_gone()), "{error}");
            }
        }

        assert_eq!((world.ranks[0].outstanding(), world.ranks[0].unacknowledged()), (0, 0));
        assert_eq!(world.ranks[0].allocate(heap).unwrap().len(), heap);
    }
}
