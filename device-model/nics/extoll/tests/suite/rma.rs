//! Puts, gets and immediate puts from memory to memory.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Rig,
    rma::{DATA_BASE, OPEN_TO_ALL, Peer},
};
use nicforge_core::{
    device::Ended,
    dma::DmaPermission,
    fabric::{Direction, Fault, LinkSpec},
    machine::Access,
};
use nicforge_extoll::{Topology, packet};
use nicforge_hwi::{
    extoll::{error, mirror, reg, vector, window},
    extoll_atu::{command as atu, page},
    extoll_rma::{Command, MAX_COMMANDS, MAX_LENGTH, Notification, command, notify, status},
};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// Notifications for all roles of a command.
const ALL: u8 = notify::REQUESTER | notify::RESPONDER | notify::COMPLETER;
const DONE: u8 = status::DONE;
const MIB: u64 = 1 << 20;

/// Returns bytes that depend on `seed` and their position.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|index| ((index ^ index >> 8).wrapping_mul(31) + seed) as u8).collect()
}

/// Attaches a peer to each of two cards.
fn pair(rig: &mut Rig, bytes: u64) -> (Peer, Peer) {
    (rig.peer(0, 1, bytes), rig.peer(1, 2, bytes))
}

#[test]
fn a_put_arrives_and_notifies_its_selected_roles() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, MIB);
    let bytes = pattern(1, 200_000);
    local.write(13, &bytes);

    assert!(rig.put(&local, &remote, (13, 4097, 200_000), ALL));
    rig.run();

    assert_eq!(remote.read(4097, 200_000), bytes);
    assert_eq!((remote.read(4096, 1), remote.read(204_097, 1)), (vec![0], vec![0]));

    let sent = Notification::new(notify::REQUESTER, DONE, command::PUT, 1, 2, 200_000, local.nla + 13);
    assert_eq!(local.take_all(), [sent]);
    let written = Notification::new(notify::COMPLETER, DONE, command::PUT, 0, 1, 200_000, remote.nla + 4097);
    assert_eq!(remote.take_all(), [written]);
    assert_eq!(
        (local.client.mirror_word(mirror::RMA_COMMANDS), local.client.mirror_word(mirror::RMA_COMPLETED)),
        (1, 1)
    );
    assert_eq!(remote.client.mirror_word(mirror::RMA_NOTIFICATIONS), 1);
    assert_eq!(rig.counter(1, "rma_bytes_written"), 200_000);
}

#[test]
fn a_get_arrives_and_notifies_its_selected_roles() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, MIB);
    let bytes = pattern(2, 200_000);
    remote.write(77, &bytes);

    assert!(rig.get(&local, &remote, (77, 4099, 200_000), ALL));
    rig.run();

    assert_eq!(local.read(4099, 200_000), bytes);
    let requested = Notification::new(notify::REQUESTER, DONE, command::GET, 1, 2, 200_000, local.nla + 4099);
    let written = Notification::new(notify::COMPLETER, DONE, command::GET, 1, 2, 200_000, local.nla + 4099);
    assert_eq!(local.take_all(), [requested, written]);
    let read = Notification::new(notify::RESPONDER, DONE, command::GET, 0, 1, 200_000, remote.nla + 77);
    assert_eq!(remote.take_all(), [read]);
}

#[test]
fn an_immediate_put_carries_up_to_eight_bytes() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, 4096);
    for length in 1..=8 {
        let destination = remote.nla + 100 + u64::from(length);
        let put = Command::new(1, 2, command::IMMEDIATE_PUT, ALL, length, 0x0807_0605_0403_0201, destination);
        assert!(rig.post(&local, put));

        rig.run();
        let mut expected = [0; 9];
        (1..=8).zip(&mut expected).take(length as usize).for_each(|(value, byte)| *byte = value);
        assert_eq!(remote.read(100 + u64::from(length), 9), expected);

        assert_eq!(
            (local.outcomes(), remote.outcomes()),
            (vec![(notify::REQUESTER, DONE)], vec![(notify::COMPLETER, DONE)])
        );
        remote.write(0, &[0; 4096]);
    }
}

#[test]
fn roles_that_are_not_selected_get_no_notification() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, 4096);
    assert!(rig.put(&local, &remote, (0, 0, 64), 0) && rig.get(&local, &remote, (0, 64, 64), 0));
    rig.run();
    assert_eq!((local.outcomes(), remote.outcomes()), (vec![], vec![]));
    assert_eq!(local.client.mirror_word(mirror::RMA_COMPLETED), 2);
}

#[test]
fn the_longest_put_and_get_move_all_their_bytes() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, 2 * u64::from(MAX_LENGTH));
    let bytes = pattern(3, MAX_LENGTH as usize);
    local.write(1, &bytes);

    assert!(rig.put(&local, &remote, (1, 3, MAX_LENGTH), ALL));
    rig.run();
    assert!(remote.read(3, MAX_LENGTH as usize) == bytes);

    assert!(rig.get(&local, &remote, (3, u64::from(MAX_LENGTH), MAX_LENGTH), ALL));
    rig.run();
    assert!(local.read(MAX_LENGTH.into(), MAX_LENGTH as usize) == bytes);

    assert_eq!(
        local.outcomes(),
        [(notify::REQUESTER, DONE), (notify::REQUESTER, DONE), (notify::COMPLETER, DONE)]
    );
    assert_eq!(remote.outcomes(), [(notify::COMPLETER, DONE), (notify::RESPONDER, DONE)]);
}

#[test]
fn a_vpid_transfers_within_its_card_and_within_itself() {
    let mut rig = Rig::pair();
    let first = rig.peer(0, 0, MIB);
    let second = rig.peer(0, 1, MIB);
    let bytes = pattern(4, 100_000);
    first.write(0, &bytes);

    assert!(
        rig.put(&first, &second, (0, 5, 100_000), 0) && rig.get(&first, &second, (5, 300_000, 100_000), 0)
    );
    assert!(rig.put(&first, &first, (300_000, 600_001, 100_000), 0));
    rig.run();

    assert_eq!(first.read(600_001, 100_000), bytes);
}

/// A transfer between the two sides: source, destination and length.
#[derive(Clone, Copy, Debug)]
enum Move {
    Put(u64, u64, u32),
    Get(u64, u64, u32),
}

/// Bytes of each side's memory in the model: a little more than three of the parts of 64 KiB in
/// which a card moves the data of a command.
const SPACE: u64 = 50 * 4096;

fn moves() -> impl Strategy<Value = Move> {
    let length = prop_oneof![1u32..=64, 1u32..=5000, 60_000u32..=200_000];
    (any::<bool>(), 0..SPACE, 0..SPACE, length).prop_map(|(put, from, to, length)| {
        let length = length.min((SPACE - from.max(to)) as u32);
        if put { Move::Put(from, to, length) } else { Move::Get(from, to, length) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_transfers_match_copies_of_arrays(moves in prop::collection::vec(moves(), 1..40), pieces in 1u64..10) {
        let mut rig = Rig::pair();
        let local = rig.peer(0, 1, SPACE);
        // The other side's memory is one region of several mappings.
        let mut remote = rig.unregistered_peer(1, 2, 4096, 64);
        let base = 2 * DATA_BASE;
        let step = (SPACE / pieces).next_multiple_of(4096);
        let mapped: Vec<_> = (0..SPACE)
            .step_by(step as usize)
            .map(|at| (at, rig.map(&remote.client, base + at, step.min(SPACE - at))))
            .collect();
        remote.nla = rig.register(&remote.client, base, SPACE / 4096, page::SIZE_4K, OPEN_TO_ALL).unwrap();

        let mut model = [pattern(1, SPACE as usize), pattern(2, SPACE as usize)];
        local.write(0, &model[0]);
        for (at, memory) in &mapped {
            memory.write(0, &model[1][*at as usize..*at as usize + memory.len()]).unwrap();
        }

        for next in moves {
            let (from, to, length, put) = match next {
                Move::Put(from, to, length) => (from, to, length, true),
                Move::Get(from, to, length) => (from, to, length, false),
            };
            let taken = if put {
                rig.put(&local, &remote, (from, to, length), 0)
            } else {
                rig.get(&local, &remote, (from, to, length), 0)
            };
            prop_assert!(taken);

            let bytes = model[usize::from(!put)][from as usize..][..length as usize].to_vec();
            model[usize::from(put)][to as usize..][..length as usize].copy_from_slice(&bytes);
        }

        rig.run();
        prop_assert!(local.read(0, SPACE as usize) == model[0]);
        for (at, memory) in &mapped {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes).unwrap();
            prop_assert!(bytes == model[1][*at as usize..][..bytes.len()]);
        }
        prop_assert_eq!(local.client.mirror_word(mirror::RMA_COMMANDS), local.client.mirror_word(mirror::RMA_COMPLETED));
    }
}

#[test]
fn an_overlapping_put_changes_only_its_destination() {
    let mut rig = Rig::pair();
    let peer = rig.peer(0, 0, MIB);
    let bytes = pattern(4, MIB as usize);
    peer.write(0, &bytes);

    assert!(
        rig.put(&peer, &peer, (1000, 1500, 300_000), 0)
            && rig.put(&peer, &peer, (600_000, 500_000, 300_000), 0)
    );
    rig.run();

    let now = peer.read(0, MIB as usize);
    assert!(now[..1500] == bytes[..1500] && now[301_500..500_000] == bytes[301_500..500_000]);
    assert!(now[800_000..] == bytes[800_000..]);
}

#[test]
fn commands_for_a_target_are_carried_out_and_notified_in_order() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, MIB);
    local.write(0, &pattern(5, 300_000));

    // Each command continues with the data that the one before it has moved.
    let step = 300_000u32;
    assert!(rig.put(&local, &remote, (0, 0, step), notify::REQUESTER));
    assert!(rig.get(&local, &remote, (0, 300_000, step), notify::REQUESTER));
    assert!(rig.put(&local, &remote, (300_000, 600_000, step), notify::REQUESTER));
    let nonsense = Command::new(1, 2, command::PUT, 0, 8, local.nla + 2 * MIB, remote.nla);
    assert!(rig.post(&local, nonsense));
    assert!(rig.put(&local, &remote, (1, 1, 1), notify::REQUESTER));

    rig.run();

    assert_eq!(remote.read(600_000, step as usize), pattern(5, step as usize));
    let notified: Vec<_> = local
        .take_all()
        .iter()
        .map(|notified| (notified.command(), notified.length(), notified.status()))
        .collect();
    let put = |length, status| (command::PUT, length, status);
    assert_eq!(
        notified,
        [
            put(step, DONE),
            (command::GET, step, DONE),
            put(step, DONE),
            put(8, status::LOCAL_ADDRESS),
            put(1, DONE)
        ]
    );
}

#[test]
fn access_without_registration_or_permission_is_refused_and_moves_nothing() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, MIB);
    let other = rig.peer(1, 3, MIB);
    let closed = rig.register(&remote.client, DATA_BASE, 2, page::SIZE_4K, 0).unwrap();
    let readable = rig.register(&remote.client, DATA_BASE, 2, page::SIZE_4K, atu::READ).unwrap();
    let writable = rig.register(&remote.client, DATA_BASE, 2, page::SIZE_4K, atu::WRITE).unwrap();
    rig.map_for(&remote.client, 0, 4096, DmaPermission::READ);
    let unwritable = rig.register(&remote.client, 0, 1, page::SIZE_4K, OPEN_TO_ALL).unwrap();

    local.write(0, &[7; 4096]);
    let put = |to, length| Command::new(1, 2, command::PUT, notify::COMPLETER, length, local.nla, to);
    let get = |from, length| Command::new(1, 2, command::GET, ALL, length, from, local.nla + 4096);

    let remote_error = status::REMOTE_ADDRESS;
    let cases = [
        // The target's memory is not registered for the access.
        (put(closed, 8), remote_error),
        (get(closed, 8), remote_error),
        (put(readable, 8), remote_error),
        (get(writable, 8), remote_error),
        (put(unwritable, 8), remote_error),
        // The range ends behind its region, or belongs to another VPID or to none.
        (put(remote.nla + MIB - 4, 8), remote_error),
        (put(writable + 8192 - 8, 9), remote_error),
        (get(readable + 8192 - 8, 9), remote_error),
        (put(other.nla, 8), remote_error),
        (get(other.nla, 200_000), remote_error),
        (put(u64::MAX, 8), remote_error),
        // The requester's own range is invalid.
        (put(remote.nla + 4096, MAX_LENGTH), status::LOCAL_ADDRESS),
        (Command::new(1, 2, command::PUT, 0, 8, other.nla + MIB, remote.nla), status::LOCAL_ADDRESS),
        // No client has the VPID, or the VPID or its node does not exist.
        (Command::new(1, 0, command::PUT, 0, 8, local.nla, remote.nla), status::NO_RECEIVER),
        (Command::new(1, 200, command::PUT, 0, 8, local.nla, remote.nla), status::NO_RECEIVER),
        (Command::new(2, 2, command::PUT, 0, 8, local.nla, remote.nla), status::NO_RECEIVER),
        (Command::new(1, 4, command::GET, 0, 8, remote.nla, local.nla), status::NO_RECEIVER),
        // Invalid lengths, an unknown command, and a reserved bit.
        (put(remote.nla, 0), status::COMMAND),
        (Command::new(1, 2, command::PUT, 0, MAX_LENGTH + 1, local.nla, remote.nla), status::COMMAND),
        (Command::new(1, 2, command::IMMEDIATE_PUT, 0, 9, 0, remote.nla), status::COMMAND),
        (Command::new(1, 2, 9, 0, 8, local.nla, remote.nla), status::COMMAND),
        (Command { head: put(remote.nla, 8).head | 1 << 32, ..put(remote.nla, 8) }, status::COMMAND),
    ];

    for (case, (command, status)) in cases.into_iter().enumerate() {
        assert!(rig.post(&local, command));
        rig.run();
        assert_eq!(local.outcomes(), [(notify::REQUESTER, status)], "case {case}");
        assert_eq!(remote.outcomes(), [], "case {case}");
    }

    assert_eq!(remote.read(0, MIB as usize), vec![0; MIB as usize]);
    assert_eq!(local.read(4096, 8), [0; 8]);
    // The remote card refuses eleven commands. The long get requests each of its four parts before
    // the first refusal arrives.
    assert_eq!(rig.counter(1, "rma_refused"), 14);
    assert_eq!(local.client.mirror_word(mirror::RMA_COMPLETED), 22);

    // The owner itself may do both with memory that is closed to others.
    let within_owner = Command::new(1, 2, command::PUT, ALL, 8, closed, closed + 64);
    assert!(rig.post(&remote, within_owner));
    rig.run();
    assert_eq!(remote.outcomes(), [(notify::COMPLETER, DONE), (notify::REQUESTER, DONE)]);
}

#[test]
fn adjacent_registrations_are_not_one_region() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, MIB);
    let first = rig.register(&remote.client, DATA_BASE, 1, page::SIZE_64K, OPEN_TO_ALL).unwrap();
    let second = rig.register(&remote.client, DATA_BASE + 65536, 1, page::SIZE_64K, OPEN_TO_ALL).unwrap();
    assert_eq!(second, first + 65536);

    assert!(rig.post(&local, Command::new(1, 2, command::PUT, 0, 16, local.nla, second - 8)));
    rig.run();

    assert_eq!(local.outcomes(), [(notify::REQUESTER, status::REMOTE_ADDRESS)]);
}

/// Starts a transfer of 4 MiB, and steps the machine until some of its bytes were written.
fn start_and_stop_midway(rig: &mut Rig, local: &Peer, remote: &Peer, put: bool) {
    let moved = |rig: &mut Rig| rig.counter(0, "rma_bytes_written") + rig.counter(1, "rma_bytes_written");
    let before = moved(rig);
    let length = 4 << 20;

    assert!(if put {
        rig.put(local, remote, (0, 0, length), ALL)
    } else {
        rig.get(local, remote, (0, 0, length), ALL)
    });

    while moved(rig) == before {
        rig.step_once();
    }

    assert!(moved(rig) < before + u64::from(length));
}

#[test]
fn no_byte_is_accessed_after_a_deregistration_or_unmapping() {
    for put in [true, false] {
        for at_requester in [true, false] {
            for unmap in [true, false] {
                let mut rig = Rig::pair();
                let (mut local, mut remote) = pair(&mut rig, 4 * MIB);
                local.write(0, &vec![7; 4 << 20]);
                remote.write(0, &vec![9; 4 << 20]);
                let initiator = if at_requester { &local } else { &remote };
                rig.grant_all_entries_once(&initiator.client, DATA_BASE, 1024);

                start_and_stop_midway(&mut rig, &local, &remote, put);

                let ended = if at_requester { &local } else { &remote };
                if unmap {
                    let bytes = 4 * MIB;
                    rig.machine
                        .dma_unmap(ended.client.function, ended.client.attachment, DATA_BASE, bytes)
                        .unwrap();
                } else {
                    assert_eq!(rig.deregister(&ended.client, ended.nla), atu::DONE);
                    // New memory at the same addresses is not for the command in flight.
                    let _other = rig.map(&ended.client, 0, 4 * MIB);
                    let registered_again =
                        rig.register(&ended.client, 0, 1024, page::SIZE_4K, OPEN_TO_ALL).unwrap();
                    assert_eq!(registered_again, ended.nla);
                }
                let (local_before, remote_before) = (local.read(0, 4 << 20), remote.read(0, 4 << 20));

                rig.run();
                let case = (put, at_requester, unmap);
                // The side that kept its memory may receive packets in flight; the other side's
                // memory does not change.
                let is_unchanged = if at_requester {
                    local.read(0, 4 << 20) == local_before
                } else {
                    remote.read(0, 4 << 20) == remote_before
                };
                assert!(is_unchanged, "{case:?}");
                assert_eq!(local.outcomes(), [(notify::REQUESTER, status::WITHDRAWN)], "{case:?}");
                let other = if put { notify::COMPLETER } else { notify::RESPONDER };
                assert_eq!(remote.outcomes(), [(other, status::WITHDRAWN)], "{case:?}");

                // The card continues to work.
                if !unmap {
                    assert!(rig.put(&local, &remote, (0, 0, 100), ALL));
                    rig.run();
                    assert_eq!(local.outcomes(), [(notify::REQUESTER, DONE)]);
                }
            }
        }
    }
}

#[test]
fn a_dead_owners_commands_end_and_its_successor_gets_no_notification() {
    for put in [true, false] {
        for requester_dies in [true, false] {
            let mut rig = Rig::pair();
            let (mut local, mut remote) = pair(&mut rig, 4 * MIB);
            start_and_stop_midway(&mut rig, &local, &remote, put);

            let dead = if requester_dies { &local } else { &remote };
            let (node, vpid) = (dead.client.node, dead.client.vpid);
            rig.machine.detach(dead.client.function, dead.client.attachment, Ended::Closed).unwrap();

            let bytes = dead.read(0, 4 << 20);
            let mut successor = rig.peer(node, vpid, 4 * MIB);

            rig.run();
            let dead = if requester_dies { &local } else { &remote };
            assert!(dead.read(0, 4 << 20) == bytes);
            assert_eq!(successor.outcomes(), [], "put {put}, requester {requester_dies}");
            assert!(successor.read(0, 4 << 20).iter().all(|&byte| byte == 0));
            if !requester_dies {
                assert_eq!(local.outcomes(), [(notify::REQUESTER, status::WITHDRAWN)]);
            } else if put {
                assert_eq!(remote.outcomes(), [(notify::COMPLETER, status::WITHDRAWN)]);
            }

            // The new owner's transfers work normally.
            let mut partner = if requester_dies { remote } else { local };
            assert!(
                rig.put(&successor, &partner, (0, 0, 200_000), ALL)
                    && rig.get(&successor, &partner, (0, 0, 200_000), 0)
            );
            rig.run();
            assert_eq!(successor.outcomes(), [(notify::REQUESTER, DONE)]);
            assert_eq!(partner.outcomes(), [(notify::COMPLETER, DONE)]);
            assert_eq!(successor.client.mirror_word(mirror::RMA_COMPLETED), 2);
            assert_eq!(rig.machine.fabric().packets_in_use(), 0);
        }
    }
}

#[test]
fn a_successor_that_attaches_at_once_gets_no_notification_of_its_predecessors_memory() {
    for put in [true, false] {
        let mut rig = Rig::pair();
        let (mut local, remote) = pair(&mut rig, 4 * MIB);
        rig.grant_all_entries_once(&remote.client, DATA_BASE, 1024);
        start_and_stop_midway(&mut rig, &local, &remote, put);

        // The successor has a queue, and memory at the same address, before the next packet
        // arrives.
        rig.machine.detach(remote.client.function, remote.client.attachment, Ended::Closed).unwrap();
        let mut anew = rig.peer_at_once(1, 2, 4 * MIB);
        assert_eq!(anew.nla, remote.nla);

        rig.run();
        assert_eq!(anew.outcomes(), [], "put {put}");
        assert_eq!(local.outcomes(), [(notify::REQUESTER, status::WITHDRAWN)], "put {put}");

        // The successor is notified of commands for its own memory.
        assert!(rig.put(&local, &anew, (0, 0, 200_000), ALL) && rig.get(&local, &anew, (0, 0, 200_000), ALL));
        rig.run();
        assert_eq!(anew.outcomes(), [(notify::COMPLETER, DONE), (notify::RESPONDER, DONE)], "put {put}");
    }
}

#[test]
fn a_card_that_is_reset_ends_its_commands_and_works_again() {
    let mut rig = Rig::pair();
    let (local, mut remote) = pair(&mut rig, 4 * MIB);
    start_and_stop_midway(&mut rig, &local, &remote, true);

    rig.machine.reset_function(local.client.function).unwrap();
    rig.run();
    assert_eq!(remote.outcomes(), [(notify::COMPLETER, status::WITHDRAWN)]);

    rig.machine.detach(local.client.function, local.client.attachment, Ended::Closed).unwrap();
    let mut local = rig.peer(0, 1, 4 * MIB);

    assert!(rig.put(&local, &remote, (0, 0, 100_000), ALL));
    rig.run();
    assert_eq!(
        (local.outcomes(), remote.outcomes()),
        (vec![(notify::REQUESTER, DONE)], vec![(notify::COMPLETER, DONE)])
    );
}

#[test]
fn a_full_queue_loses_notifications_counts_them_and_overwrites_none() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, 4096);
    for _ in 0..70 {
        assert!(rig.put(&local, &remote, (0, 0, 8), notify::REQUESTER));
        rig.run();
    }

    assert_eq!(local.client.mirror_word(mirror::RMA_OVERFLOWS), 6);
    assert_eq!(local.client.last_error().0, error::OVERFLOW);
    assert_eq!(local.take_all().len(), 64);

    assert!(rig.put(&local, &remote, (0, 0, 8), notify::REQUESTER));
    rig.run();
    assert_eq!(local.take_all().len(), 1);
    assert_eq!(local.client.mirror_word(mirror::RMA_NOTIFICATIONS), 65);
}

#[test]
fn a_queue_wraps_many_times() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, 4096);

    for round in 0..1000u32 {
        for length in 1..=10 {
            assert!(rig.put(&local, &remote, (0, 0, length), ALL));
        }
        rig.run();

        let lengths =
            |notified: Vec<Notification>| notified.iter().map(Notification::length).collect::<Vec<_>>();
        assert_eq!(lengths(local.take_all()), (1..=10).collect::<Vec<_>>(), "round {round}");
        assert_eq!(lengths(remote.take_all()), (1..=10).collect::<Vec<_>>());
    }
    assert_eq!(local.client.mirror_word(mirror::ERRORS), 0);
}

#[test]
fn an_invalid_read_pointer_is_reported_once_and_ignored() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, 4096);
    local.client.windows.window(window::RMA_READ_POINTER, 8).unwrap().store_u64_release(0, 5).unwrap();

    for _ in 0..3 {
        assert!(rig.put(&local, &remote, (0, 0, 8), notify::REQUESTER));
        rig.run();
    }
    assert_eq!(
        (local.client.mirror_word(mirror::ERRORS), local.client.last_error().0),
        (1, error::READ_POINTER)
    );
    assert_eq!(local.take_all().len(), 3);
}

#[test]
fn an_interrupt_comes_with_the_first_notification() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, 4096);
    let counts = rig.interrupts(&local.client);
    let notified = usize::from(vector::RMA_NOTIFICATION);

    rig.write64(&local.client, reg::INTERRUPT_ENABLE, 1 << vector::RMA_NOTIFICATION);

    for _ in 0..3 {
        assert!(rig.put(&local, &remote, (0, 0, 8), notify::REQUESTER));
    }
    rig.run();
    assert_eq!(counts[notified].get(), 1);

    rig.write64(&local.client, reg::INTERRUPT_ENABLE, 1 << vector::RMA_NOTIFICATION);
    assert_eq!(counts[notified].get(), 2, "some are unread");

    local.take_all();
    rig.write64(&local.client, reg::INTERRUPT_ENABLE, 1 << vector::RMA_NOTIFICATION);
    assert_eq!(counts[notified].get(), 2);
}

#[test]
fn commands_beyond_the_bound_stall_until_others_have_ended() {
    let mut rig = Rig::pair();
    let (local, remote) = pair(&mut rig, 4096);
    rig.machine.fabric().set_link_up(rig.links[0], false).unwrap();

    for _ in 0..MAX_COMMANDS {
        assert!(rig.put(&local, &remote, (0, 0, 8), 0));
    }
    assert!(!rig.put(&local, &remote, (0, 0, 8), 0));

    rig.machine.fabric().set_link_up(rig.links[0], true).unwrap();
    rig.run();
    assert!(rig.put(&local, &remote, (0, 0, 8), 0));
    rig.run();
    assert_eq!(local.client.mirror_word(mirror::RMA_COMPLETED), MAX_COMMANDS as u64 + 1);
}

#[test]
fn commands_by_the_admin_or_without_a_queue_are_refused() {
    let mut rig = Rig::pair();
    let (local, remote) = pair(&mut rig, 4096);
    let admin = rig.admin(0);

    let put = Command::new(remote.client.node, remote.client.vpid, command::PUT, 0, 8, local.nla, remote.nla);
    let written = admin.id().try_write(&mut rig.machine, 0, reg::RMA_COMMAND, put.as_bytes()).unwrap();
    assert_eq!(written, Access::Done);
    rig.run();
    assert_eq!(admin.last_error().0, error::NOT_PERMITTED);

    rig.write64(&local.client, reg::RMA_QUEUE_ENABLE, 0);
    assert!(rig.put(&local, &remote, (0, 0, 8), 0));
    rig.run();
    assert_eq!(local.client.last_error().0, error::COMMAND);
    assert_eq!(local.client.mirror_word(mirror::RMA_COMMANDS), 0);
}

#[test]
fn a_notification_disables_a_queue_whose_memory_was_unmapped() {
    let mut rig = Rig::pair();
    let (local, remote) = pair(&mut rig, 4096);

    rig.machine
        .dma_unmap(remote.client.function, remote.client.attachment, crate::common::rma::QUEUE_BASE, 4096)
        .unwrap();
    assert!(rig.put(&local, &remote, (0, 0, 8), ALL));
    rig.run();
    assert_eq!(remote.client.last_error().0, error::RING_MEMORY);
    assert_eq!(rig.read64(&remote.client, reg::RMA_QUEUE_ENABLE), 0);
}

#[test]
fn a_command_to_a_vpid_whose_client_has_detached_reports_no_receiver() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, MIB);
    rig.machine.detach(remote.client.function, remote.client.attachment, Ended::Closed).unwrap();
    rig.run();

    assert!(rig.put(&local, &remote, (0, 0, 8), notify::REQUESTER));
    rig.run();

    assert_eq!(local.outcomes(), [(notify::REQUESTER, status::NO_RECEIVER)]);
}

#[test]
fn link_errors_neither_lose_nor_duplicate_data() {
    let mut rig = Rig::pair();
    for direction in [Direction::Forward, Direction::Backward] {
        let faults = move |_: &mut nicforge_core::fabric::Packet, count: u64| match count % 5 {
            1 | 2 => Fault::Corrupt,
            3 => Fault::Delay(1000),
            _ => Fault::None,
        };
        rig.machine.fabric().set_fault(rig.links[0], direction, Some(Box::new(faults))).unwrap();
    }

    let (mut local, mut remote) = pair(&mut rig, MIB);
    for round in 0..50u32 {
        let bytes = pattern(round.into(), 150_000 + round as usize);
        local.write(0, &bytes);
        assert!(rig.put(&local, &remote, (0, 7, 150_000 + round), ALL));
        assert!(rig.get(&local, &remote, (7, 500_000, 150_000 + round), ALL));

        rig.run();
        assert_eq!(local.read(500_000, bytes.len()), bytes);
        assert_eq!(
            local.outcomes(),
            [(notify::REQUESTER, DONE), (notify::REQUESTER, DONE), (notify::COMPLETER, DONE)]
        );
        assert_eq!(remote.outcomes(), [(notify::COMPLETER, DONE), (notify::RESPONDER, DONE)]);
    }

    let stats = (0..packet::CHANNELS)
        .map(|vc| rig.machine.fabric().link_stats(rig.links[0], Direction::Forward, vc).unwrap());
    assert!(stats.map(|lane| lane.retransmissions).sum::<u64>() > 0);
}

/// A packet of the fabric refers to the data in memory, and takes the time of their bytes all the
/// same.
#[test]
fn a_put_takes_the_time_of_all_its_bytes_on_a_link() {
    let topology = Topology::full_mesh(2).unwrap();
    let link = LinkSpec { bits_per_second: 8_000_000_000, ..crate::common::plain_link() };
    let mut rig = Rig::with(&topology, 4, &link, |_| {});
    let (local, remote) = pair(&mut rig, 4 * MIB);

    let start = rig.machine.now();
    assert!(rig.put(&local, &remote, (0, 0, 4 << 20), 0));
    rig.run();
    let nanoseconds = rig.machine.now().0 - start.0;
    // 4 MiB take a nanosecond for each byte, and each of 64 packets has 80 bytes more.
    assert!((4_194_304..4_210_000).contains(&nanoseconds), "{nanoseconds} ns");
}

#[test]
fn puts_of_two_vpids_progress_equally_and_delay_no_small_message() {
    let mut rig = Rig::pair();
    let bytes = u64::from(MAX_LENGTH);
    let (first_source, second_source) = (rig.peer(0, 0, bytes), rig.peer(0, 1, bytes));
    let (first_target, second_target) = (rig.peer(1, 0, bytes), rig.peer(1, 1, bytes));
    let sender = rig.attach(0, 2);
    let mut receiver = rig.receiver(1, 2, 1024);

    for peer in [&first_source, &second_source] {
        peer.write(0, &vec![1; MAX_LENGTH as usize]);
    }
    assert!(
        rig.put(&first_source, &first_target, (0, 0, MAX_LENGTH), 0)
            && rig.put(&second_source, &second_target, (0, 0, MAX_LENGTH), 0)
    );

    let progress = |peer: &Peer| {
        (0..128u64).take_while(|part| peer.read((part + 1) * 65536 - 1, 1) == [1]).count() as i64
    };

    let (mut received, mut passes) = (0, 0);
    while progress(&first_target) < 128 || progress(&second_target) < 128 {
        assert!(rig.send(&sender, (1, 2), 0, &[1; 8]));
        rig.step_once();
        rig.step_once();
        received += receiver.take_all().len();
        passes += 1;
        assert!(
            (progress(&first_target) - progress(&second_target)).abs() <= 2,
            "the two transfers are served alternately"
        );
        assert!(received + 12 >= passes, "the puts delay messages: {received} of {passes}");
    }
    assert!(passes > 20);
}

#[test]
fn small_commands_do_not_starve_another_vpids_long_one() {
    let mut rig = Rig::pair();
    let bytes = u64::from(MAX_LENGTH);
    let (small, long) = (rig.peer(0, 0, 4096), rig.peer(0, 1, bytes));
    let remote = rig.peer(0, 2, bytes);
    long.write(0, &[1; 16 * 65536]);

    // Within a card, only one part has room at a time.
    assert!(rig.put(&long, &remote, (0, 0, 16 * 65536), 0));
    for _ in 0..200 {
        let _ = rig.put(&small, &remote, (0, bytes - 4096, 8), 0);
        rig.step_once();
    }

    assert_eq!(remote.read(16 * 65536 - 1, 1), [1]);
    assert!(small.client.mirror_word(mirror::RMA_COMPLETED) > 30);
}

#[test]
fn puts_of_all_nodes_of_a_torus_arrive_over_several_hops() {
    // Bytes that each node puts to each other node.
    const BLOCK: u64 = 131_072;

    let topology = Topology::torus(&[3, 3]).unwrap();
    let mut rig = Rig::new(&topology, 1);
    let mut peers: Vec<_> = (0..9).map(|node| rig.peer(node, 0, 9 * BLOCK)).collect();
    for (node, peer) in (0..).zip(&peers) {
        peer.write(node * BLOCK, &pattern(node, BLOCK as usize));
    }

    for from in 0..9u64 {
        for to in 0..9 {
            let block = (from * BLOCK, from * BLOCK, BLOCK as u32);
            assert!(
                from == to || rig.put(&peers[from as usize], &peers[to as usize], block, notify::REQUESTER)
            );
        }
    }

    rig.run();
    for peer in &mut peers {
        assert_eq!(peer.outcomes(), [(notify::REQUESTER, DONE); 8]);
        for node in 0..9 {
            assert!(peer.read(node * BLOCK, BLOCK as usize) == pattern(node, BLOCK as usize));
        }
    }
}
