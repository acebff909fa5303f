//! Peers that die, or violate the protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use crate::common::{MAX_ROUNDS, World, pattern};
use nicforge_matching::{
    Config, Endpoint, Envelope, Error, Loss, Mode, Selector, Transport,
    memory::{Fabric, FabricConfig, FabricPort},
    wire::{self, Finish, First, Rendezvous},
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// Result of a request that waited for rank 1 when it died.
const GONE: Result<(), Error> = Err(Error::PeerGone { peer: 1, why: Loss::Ended });

#[test]
fn requests_that_wait_for_a_dead_rank_fail_and_the_others_do_not() {
    let mut world = World::new(3, FabricConfig { credits: 2, ..FabricConfig::default() }, Config::default());

    let named = world.receive(0, Selector::exact(1, 0, 0), 8);
    let any_tag = world.receive(0, Selector::any_tag(1, 0), 8);
    let other = world.receive(0, Selector::exact(2, 0, 0), 8);
    let any = world.receive(0, Selector::any(5), 8);

    // One send is in flight, one queued, and one waits to be fetched.
    let sends = [world.send(0, 1, 1, &[0; 2000]), world.send(0, 1, 2, &[]), world.send(0, 1, 3, &[0; 9000])];

    world.fabric.kill(1);

    for request in [named, any_tag].into_iter().chain(sends) {
        assert_eq!(world.wait(0, request).result, GONE);
    }

    assert!(world.ranks[0].test(any).unwrap().is_none());

    world.send(2, 0, 0, b"alive");
    assert_eq!(world.wait(0, other).result, Ok(()));
    world.send(2, 0, 0, b"");

    // Later requests to a dead rank fail at once.
    let late = [world.send(0, 1, 0, &[]), world.receive(0, Selector::exact(1, 0, 0), 0)];

    for request in late {
        assert_eq!(world.ranks[0].test(request).unwrap().unwrap().result, GONE);
    }

    assert_eq!(world.ranks[0].statistics().failed, 7);
}

#[test]
fn a_transfer_from_a_dead_rank_fails_in_every_state() {
    for rounds in 0..40 {
        let fabric_config =
            FabricConfig { get_bytes: 500, gets: 2, seed: 7, one_ring: false, ..FabricConfig::default() };
        let mut world = World::new(2, fabric_config, Config::default());
        let receives = [world.receive(0, Selector::any(0), 20_000), world.receive(0, Selector::any(0), 2000)];

        world.send(1, 0, 0, &pattern(0, 20_000));
        world.send(1, 0, 0, &pattern(1, 2000));

        world.progress_rounds(rounds);
        world.fabric.kill(1);
        world.progress_rounds(500);

        for (receive, length) in receives.into_iter().zip([20_000, 2000]) {
            // Nothing of the message had arrived, the receive failed, or all of the message had
            // arrived.
            if let Some(completion) = world.ranks[0].test(receive).unwrap() {
                match completion.result {
                    Ok(()) => assert_eq!(completion.length, length),
                    Err(error) => assert!(
                        error.is_peer() || matches!(error, Error::Transport(_)),
                        "{error:?} after {rounds} rounds"
                    ),
                }
            } else {
                assert_eq!(world.ranks[0].cancel(receive), Ok(true), "after {rounds} rounds");
            }
        }
    }
}

#[test]
fn complete_messages_of_a_dead_rank_can_be_received_and_incomplete_ones_cannot() {
    let mut world = World::new(2, FabricConfig { credits: 8, ..FabricConfig::default() }, Config::default());
    world.send(1, 0, 0, b"complete");
    world.send(1, 0, 1, &[0; 5000]);

    world.progress_rounds(2);
    world.send(1, 0, 2, &[0; 2000]);
    world.ranks[0].progress().unwrap();

    assert!(world.ranks[0].probe(&Selector::exact(1, 0, 1)).is_some());
    let (claimed, _) = world.ranks[0].claim(&Selector::exact(1, 0, 2)).unwrap();

    world.fabric.kill(1);
    world.progress_rounds(20);

    assert!(world.ranks[0].probe(&Selector::exact(1, 0, 1)).is_none());

    let receive = world.receive(0, Selector::any(0), 8);
    assert_eq!(world.wait(0, receive).buffer.as_slice(), b"complete");
    let receive = world.ranks[0].receive_claimed(claimed, vec![0; 2000], 0).unwrap();
    assert_eq!(world.wait(0, receive).result, GONE);

    let receive = world.receive(0, Selector::exact(1, 0, 2), 8);
    assert_eq!(world.wait(0, receive).result, GONE);
}

#[test]
fn ten_thousand_requests_of_a_dead_rank_fail_in_bounded_steps() {
    let mut world = World::pair();
    let count = 10_000;

    for tag in 0..count {
        world.receive(0, Selector::exact(1, 0, tag), 0);
    }
    world.fabric.kill(1);

    let mut failed = 0;
    for _ in 0..MAX_ROUNDS {
        assert!(world.ranks[0].progress().unwrap() <= 64);
        failed += std::iter::from_fn(|| world.ranks[0].next_completion()).count() as u64;
        if failed == count {
            break;
        }
    }

    assert_eq!((failed, world.ranks[0].outstanding()), (count, 0));
}

#[test]
fn an_endpoint_dropped_in_the_middle_takes_its_memory_back() {
    for rounds in 0..20 {
        let fabric_config = FabricConfig { get_bytes: 500, seed: 3, ..FabricConfig::default() };
        let mut world = World::new(2, fabric_config, Config::default());

        let receive = world.receive(1, Selector::any(0), 9000);
        let send = world.send(0, 1, 0, &[5; 9000]);

        world.progress_rounds(rounds);
        let completed = world.ranks[0].test(send).unwrap().is_some();
        // Rank 1 becomes `ranks[0]`.
        world.ranks.remove(0);

        // Rank 1 reports the loss, or has all data.
        for _ in 0..500 {
            world.progress();
        }

        match world.ranks[0].test(receive).unwrap() {
            Some(completion) => assert!(completion.result.is_ok() || !completed),
            None => assert_eq!(world.ranks[0].cancel(receive), Ok(true)),
        }
    }
}

/// Returns the endpoint of rank 0, and the bare port of rank 1, by which a test can send messages
/// that break the protocol.
fn with_rogue_peer() -> (Endpoint<FabricPort>, FabricPort) {
    let fabric_config = FabricConfig { message_bytes: 128, credits: 100_000, ..FabricConfig::default() };
    let (_, mut ports) = Fabric::new(2, fabric_config);
    let rogue = ports.pop().unwrap();

    (Endpoint::new(ports.pop().unwrap(), Config::default()).unwrap(), rogue)
}

/// Returns the header of an eager message of `size` bytes.
fn first(size: u32) -> Vec<u8> {
    First { context: 0.into(), size: size.into(), tag: 1.into() }.as_bytes().to_vec()
}

/// Returns a rendezvous request for `size` bytes of memory that is not registered.
fn request(size: u64) -> Vec<u8> {
    let (key, offset, request) = (1.into(), 2.into(), 3.into());

    let header = Rendezvous {
        context: 0.into(),
        reserved: 0.into(),
        tag: 1.into(),
        size: size.into(),
        key,
        offset,
        request,
    };
    header.as_bytes().to_vec()
}

#[test]
fn a_rank_that_breaks_the_protocol_is_treated_as_dead() {
    let finish = |request: u64| {
        Finish { request: request.into(), status: 0.into(), reserved: 0.into() }.as_bytes().to_vec()
    };

    let long = [first(4), vec![0; 5]].concat();
    let mut with_reserved_field = request(0);
    with_reserved_field[std::mem::offset_of!(Rendezvous, reserved)] = 1;

    let violations: Vec<Vec<(u8, Vec<u8>)>> = vec![
        vec![(0, vec![])],
        vec![(6, vec![1])],
        vec![(wire::FIRST, vec![0; size_of::<First>() - 1])],
        vec![(wire::FIRST, long)],
        vec![(wire::FIRST, first(65_536))],
        vec![(wire::FIRST, first(u32::MAX))],
        vec![(wire::FIRST, first(10)), (wire::FIRST, first(0))],
        vec![(wire::FIRST, first(10)), (wire::REQUEST, request(0))],
        vec![(wire::FIRST, first(10)), (wire::MORE, vec![])],
        vec![(wire::FIRST, first(10)), (wire::MORE, vec![0; 11])],
        vec![(wire::MORE, vec![0])],
        vec![(wire::REQUEST, vec![0; size_of::<Rendezvous>() - 1])],
        vec![(wire::REQUEST, request(1 << 63))],
        vec![(wire::REQUEST, with_reserved_field)],
        vec![(wire::FINISH, finish(0))],
        vec![(wire::FINISH, finish(u64::MAX))],
        // The number of the honest rank's posted receive.
        vec![(wire::FINISH, finish(1 << 32))],
        vec![(wire::FINISH, vec![])],
        vec![(wire::GRANT, vec![0; 7])],
    ];

    for violation in violations {
        let (mut endpoint, mut rogue) = with_rogue_peer();
        let receive = endpoint.irecv(Selector::exact(1, 9, 9), vec![], 0).unwrap();

        for (kind, message) in &violation {
            assert_eq!(rogue.try_send(0, *kind, message), Ok(true));
        }

        for _ in 0..5 {
            endpoint.progress().unwrap();
        }

        let result = endpoint.test(receive).unwrap().expect("it fails").result;
        assert!(matches!(result, Err(Error::BadPeer { peer: 1, .. })), "{result:?} after {violation:?}");

        // The endpoint ignores the peer from now on.
        rogue.try_send(0, wire::FIRST, &first(0)).unwrap();
        endpoint.progress().unwrap();
        assert_eq!(endpoint.probe(&Selector::any(0)), None);
    }
}

#[test]
fn a_rendezvous_from_unregistered_memory_fails() {
    for posted_first in [true, false] {
        let (mut endpoint, mut rogue) = with_rogue_peer();
        let early = posted_first.then(|| endpoint.irecv(Selector::any(0), vec![0; 100], 0).unwrap());

        rogue.try_send(0, wire::REQUEST, &request(100)).unwrap();
        endpoint.progress().unwrap();

        let receive = early.unwrap_or_else(|| endpoint.irecv(Selector::any(0), vec![0; 100], 0).unwrap());
        let done = (0..MAX_ROUNDS).find_map(|_| {
            endpoint.progress().unwrap();
            endpoint.test(receive).unwrap()
        });

        assert!(matches!(done.unwrap().result, Err(Error::Transport(_))));

        // The sender receives an acknowledgement.
        endpoint.progress().unwrap();
        let mut answers = Vec::new();
        let mut sink = |_, kind, bytes: &[u8]| {
            answers.push((kind, bytes.to_vec()));
            nicforge_matching::Taken::Yes
        };

        rogue.poll(10, &mut sink).unwrap();

        let answer = Finish { request: 3.into(), status: wire::NOT_FETCHED.into(), reserved: 0.into() };
        assert_eq!(answers, [(wire::FINISH, answer.as_bytes().to_vec())]);
    }
}

#[test]
fn a_sender_whose_message_could_not_be_fetched_sees_an_error() {
    let (mut endpoint, mut rogue) = with_rogue_peer();
    let send = endpoint.isend(Envelope::new(1, 0, 0), Mode::Synchronous, vec![0; 10], 0).unwrap();

    let status = wire::NOT_FETCHED.into();
    let answer = Finish { request: send.to_bits().into(), status, reserved: 0.into() };

    rogue.try_send(0, wire::FINISH, answer.as_bytes()).unwrap();
    endpoint.progress().unwrap();
    assert_eq!(endpoint.test(send).unwrap().unwrap().result, Err(Error::NotFetched { peer: 1 }));
}

#[test]
fn an_acknowledgement_with_a_reserved_field_fails_its_send() {
    let (mut endpoint, mut rogue) = with_rogue_peer();
    let send = endpoint.isend(Envelope::new(1, 0, 0), Mode::Synchronous, vec![0; 10], 0).unwrap();

    let status = wire::FETCHED.into();
    let answer = Finish { request: send.to_bits().into(), status, reserved: 1.into() };
    rogue.try_send(0, wire::FINISH, answer.as_bytes()).unwrap();

    for _ in 0..5 {
        endpoint.progress().unwrap();
    }
    let result = endpoint.test(send).unwrap().unwrap().result;
    assert!(matches!(result, Err(Error::BadPeer { peer: 1, value: 1, .. })), "{result:?}");
}

/// A peer sends requests without end and never takes an acknowledgement. When as many
/// acknowledgements wait as the window has units, its messages stay in the transport.
#[test]
fn acknowledgements_that_a_peer_never_takes_are_bounded() {
    let (mut endpoint, mut rogue) = with_rogue_peer_of_credits(1);
    for _ in 0..2000 {
        endpoint.irecv(Selector::any(0), vec![], 0).unwrap();
    }

    for _ in 0..2000 {
        rogue.try_send(0, wire::REQUEST, &request(0)).unwrap();
        endpoint.progress().unwrap();
    }

    let done = std::iter::from_fn(|| endpoint.next_completion()).count();

    // The acknowledgements that fit in the transport come on top of those that wait.
    let limit = Config::default().window / wire::UNIT + 16;
    assert!(done <= limit, "{done}");
    assert!(endpoint.statistics().refused > 0);
}

/// Returns the ranks of [`with_rogue_peer`] on a fabric with `credits` messages in flight for each
/// pair of ranks.
fn with_rogue_peer_of_credits(credits: usize) -> (Endpoint<FabricPort>, FabricPort) {
    let (_, mut ports) = Fabric::new(2, FabricConfig { credits, ..FabricConfig::default() });
    let rogue = ports.pop().unwrap();

    (Endpoint::new(ports.pop().unwrap(), Config::default()).unwrap(), rogue)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    /// Any messages may arrive; memory stays bounded, and the endpoint continues to work.
    #[test]
    fn random_messages_of_a_peer_break_no_invariant(
        messages in prop::collection::vec((0..7_u8, prop::collection::vec(prop::sample::select(vec![0, 1, 2, 3, 48, 255_u8]), 0..70)), 0..80),
        receives in prop::collection::vec(0..100_usize, 0..10),
    ) {
        let (mut endpoint, mut rogue) = with_rogue_peer();
        for capacity in &receives {
            endpoint.irecv(Selector::any(0), vec![0; *capacity], 0).unwrap();
        }

        let send = endpoint.isend(Envelope::new(1, 0, 0), Mode::Standard, vec![0; 5000], 0).unwrap();

        for (kind, message) in &messages {
            rogue.try_send(0, *kind, message).unwrap();
            endpoint.progress().unwrap();
        }

        drop(rogue);
        for _ in 0..20 {
            endpoint.progress().unwrap();
        }

        prop_assert!(endpoint.test(send).unwrap().is_some());
        prop_assert!(endpoint.store_bytes() <= Config::default().window);

        endpoint.isend(Envelope::new(0, 77, 0), Mode::Standard, vec![7], 0).unwrap();
        let to_itself = endpoint.irecv(Selector::exact(0, 77, 0), vec![0], 0).unwrap();
        prop_assert!(endpoint.test(to_itself).unwrap().unwrap().result.is_ok());
    }
}
