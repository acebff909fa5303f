//! Puts, gets and immediate puts from memory to memory.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Rig,
    rma::{DATA_BASE, OPEN, Peer},
};
use nicforge_core::{
    device::Ended,
    dma::DmaPermission,
    fabric::{Direction, Fault, LinkSpec},
};
use nicforge_extoll::{Topology, wire};
use nicforge_hwi::{
    extoll::{error, mirror, reg, vector, window},
    extoll_atu::{command as atu, page},
    extoll_rma::{Command, MAX_COMMANDS, MAX_LENGTH, Notification, command, notify, status},
};
use proptest::prelude::*;

const ALL: u8 = notify::REQUESTER | notify::RESPONDER | notify::COMPLETER;
const DONE: u8 = status::DONE;
const MIB: u64 = 1 << 20;

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
    let (mut here, mut there) = pair(&mut rig, MIB);
    let bytes = pattern(1, 200_000);
    here.write(13, &bytes);

    assert!(rig.put(&here, &there, (13, 4097, 200_000), ALL));
    rig.run();

    assert_eq!(there.read(4097, 200_000), bytes);
    assert_eq!((there.read(4096, 1), there.read(204_097, 1)), (vec![0], vec![0]));

    let sent = Notification::new(notify::REQUESTER, DONE, command::PUT, 1, 2, 200_000, here.nla + 13);
    assert_eq!(here.take_all(), [sent]);
    let written = Notification::new(notify::COMPLETER, DONE, command::PUT, 0, 1, 200_000, there.nla + 4097);
    assert_eq!(there.take_all(), [written]);
    assert_eq!((here.client.shown(mirror::RMA_COMMANDS), here.client.shown(mirror::RMA_COMPLETED)), (1, 1));
    assert_eq!(there.client.shown(mirror::RMA_NOTIFICATIONS), 1);
    assert_eq!(rig.counter(1, "rma_bytes_written"), 200_000);
}

#[test]
fn a_get_arrives_and_notifies_its_selected_roles() {
    let mut rig = Rig::pair();
    let (mut here, mut there) = pair(&mut rig, MIB);
    let bytes = pattern(2, 200_000);
    there.write(77, &bytes);

    assert!(rig.get(&here, &there, (77, 4099, 200_000), ALL));
    rig.run();

    assert_eq!(here.read(4099, 200_000), bytes);
    let asked = Notification::new(notify::REQUESTER, DONE, command::GET, 1, 2, 200_000, here.nla + 4099);
    let written = Notification::new(notify::COMPLETER, DONE, command::GET, 1, 2, 200_000, here.nla + 4099);
    assert_eq!(here.take_all(), [asked, written]);
    let read = Notification::new(notify::RESPONDER, DONE, command::GET, 0, 1, 200_000, there.nla + 77);
    assert_eq!(there.take_all(), [read]);
}

#[test]
fn an_immediate_put_carries_up_to_eight_bytes() {
    let mut rig = Rig::pair();
    let (mut here, mut there) = pair(&mut rig, 4096);
    for length in 1..=8 {
        let destination = there.nla + 100 + u64::from(length);
        let put = Command::new(1, 2, command::IMMEDIATE_PUT, ALL, length, 0x0807_0605_0403_0201, destination);
        assert!(rig.post(&here, put));

        rig.run();
        let mut wanted = [0; 9];
        (1..=8).zip(&mut wanted).take(length as usize).for_each(|(value, byte)| *byte = value);
        assert_eq!(there.read(100 + u64::from(length), 9), wanted);

        assert_eq!(
            (here.outcomes(), there.outcomes()),
            (vec![(notify::REQUESTER, DONE)], vec![(notify::COMPLETER, DONE)])
        );
        there.write(0, &[0; 4096]);
    }
}

#[test]
fn roles_that_are_not_selected_get_no_notification() {
    let mut rig = Rig::pair();
    let (mut here, mut there) = pair(&mut rig, 4096);
    assert!(rig.put(&here, &there, (0, 0, 64), 0) && rig.get(&here, &there, (0, 64, 64), 0));
    rig.run();
    assert_eq!((here.outcomes(), there.outcomes()), (vec![], vec![]));
    assert_eq!(here.client.shown(mirror::RMA_COMPLETED), 2);
}

#[test]
fn the_longest_put_and_get_move_all_their_bytes() {
    let mut rig = Rig::pair();
    let (mut here, mut there) = pair(&mut rig, 2 * u64::from(MAX_LENGTH));
    let bytes = pattern(3, MAX_LENGTH as usize);
    here.write(1, &bytes);

    assert!(rig.put(&here, &there, (1, 3, MAX_LENGTH), ALL));
    rig.run();
    assert!(there.read(3, MAX_LENGTH as usize) == bytes);

    assert!(rig.get(&here, &there, (3, u64::from(MAX_LENGTH), MAX_LENGTH), ALL));
    rig.run();
    assert!(here.read(MAX_LENGTH.into(), MAX_LENGTH as usize) == bytes);

    assert_eq!(
        here.outcomes(),
        [(notify::REQUESTER, DONE), (notify::REQUESTER, DONE), (notify::COMPLETER, DONE)]
    );
    assert_eq!(there.outcomes(), [(notify::COMPLETER, DONE), (notify::RESPONDER, DONE)]);
}

#[test]
fn a_vpid_transfers_within_its_card_and_within_itself() {
    let mut rig = Rig::pair();
    let one = rig.peer(0, 0, MIB);
    let two = rig.peer(0, 1, MIB);
    let bytes = pattern(4, 100_000);
    one.write(0, &bytes);

    assert!(rig.put(&one, &two, (0, 5, 100_000), 0) && rig.get(&one, &two, (5, 300_000, 100_000), 0));
    assert!(rig.put(&one, &one, (300_000, 600_001, 100_000), 0));
    rig.run();

    assert_eq!(one.read(600_001, 100_000), bytes);
}

/// A command of the model.
#[derive(Clone, Copy, Debug)]
enum Move {
    Put(u64, u64, u32),
    Get(u64, u64, u32),
}

/// Bytes of each side's memory in the model: a little more than three parts.
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
    fn transfers_do_what_arrays_do(moves in prop::collection::vec(moves(), 1..40), pieces in 1u64..10) {
        let mut rig = Rig::pair();
        let here = rig.peer(0, 1, SPACE);
        // The other side's memory is one region of several mappings.
        let mut there = rig.unregistered_peer(1, 2, 4096, 64);
        let base = 2 * DATA_BASE;
        let step = (SPACE / pieces).next_multiple_of(4096);
        let mapped: Vec<_> = (0..SPACE)
            .step_by(step as usize)
            .map(|at| (at, rig.map(&there.client, base + at, step.min(SPACE - at))))
            .collect();
        there.nla = rig.register(&there.client, base, SPACE / 4096, page::SIZE_4K, OPEN).unwrap();

        let mut model = [pattern(1, SPACE as usize), pattern(2, SPACE as usize)];
        here.write(0, &model[0]);
        for (at, memory) in &mapped {
            memory.write(0, &model[1][*at as usize..*at as usize + memory.len()]).unwrap();
        }

        for next in moves {
            let (from, to, length, put) = match next {
                Move::Put(from, to, length) => (from, to, length, true),
                Move::Get(from, to, length) => (from, to, length, false),
            };
            let taken = if put {
                rig.put(&here, &there, (from, to, length), 0)
            } else {
                rig.get(&here, &there, (from, to, length), 0)
            };
            prop_assert!(taken);

            let bytes = model[usize::from(!put)][from as usize..][..length as usize].to_vec();
            model[usize::from(put)][to as usize..][..length as usize].copy_from_slice(&bytes);
        }

        rig.run();
        prop_assert!(here.read(0, SPACE as usize) == model[0]);
        for (at, memory) in &mapped {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes).unwrap();
            prop_assert!(bytes == model[1][*at as usize..][..bytes.len()]);
        }
        prop_assert_eq!(here.client.shown(mirror::RMA_COMMANDS), here.client.shown(mirror::RMA_COMPLETED));
    }
}

#[test]
fn an_overlapping_put_changes_only_its_destination() {
    let mut rig = Rig::pair();
    let one = rig.peer(0, 0, MIB);
    let bytes = pattern(4, MIB as usize);
    one.write(0, &bytes);

    assert!(
        rig.put(&one, &one, (1000, 1500, 300_000), 0) && rig.put(&one, &one, (600_000, 500_000, 300_000), 0)
    );
    rig.run();

    let now = one.read(0, MIB as usize);
    assert!(now[..1500] == bytes[..1500] && now[301_500..500_000] == bytes[301_500..500_000]);
    assert!(now[800_000..] == bytes[800_000..]);
}

#[test]
fn commands_for_a_target_are_carried_out_and_notified_in_order() {
    let mut rig = Rig::pair();
    let (mut here, there) = pair(&mut rig, MIB);
    here.write(0, &pattern(5, 300_000));

    // Each command continues with the data that the one before it has moved.
    let step = 300_000u32;
    assert!(rig.put(&here, &there, (0, 0, step), notify::REQUESTER));
    assert!(rig.get(&here, &there, (0, 300_000, step), notify::REQUESTER));
    assert!(rig.put(&here, &there, (300_000, 600_000, step), notify::REQUESTER));
    let nonsense = Command::new(1, 2, command::PUT, 0, 8, here.nla + 2 * MIB, there.nla);
    assert!(rig.post(&here, nonsense));
    assert!(rig.put(&here, &there, (1, 1, 1), notify::REQUESTER));

    rig.run();

    assert_eq!(there.read(600_000, step as usize), pattern(5, step as usize));
    let notified: Vec<_> = here
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
    let (mut here, mut there) = pair(&mut rig, MIB);
    let other = rig.peer(1, 3, MIB);
    let closed = rig.register(&there.client, DATA_BASE, 2, page::SIZE_4K, 0).unwrap();
    let readable = rig.register(&there.client, DATA_BASE, 2, page::SIZE_4K, atu::READ).unwrap();
    let writable = rig.register(&there.client, DATA_BASE, 2, page::SIZE_4K, atu::WRITE).unwrap();
    rig.map_for(&there.client, 0, 4096, DmaPermission::READ);
    let unwritable = rig.register(&there.client, 0, 1, page::SIZE_4K, OPEN).unwrap();

    here.write(0, &[7; 4096]);
    let put = |to, length| Command::new(1, 2, command::PUT, notify::COMPLETER, length, here.nla, to);
    let get = |from, length| Command::new(1, 2, command::GET, ALL, length, from, here.nla + 4096);

    let remote = status::REMOTE_ADDRESS;
    let cases = [
        (put(closed, 8), remote),
        (get(closed, 8), remote),
        (put(readable, 8), remote),
        (get(writable, 8), remote),
        (put(unwritable, 8), remote),
        (put(there.nla + MIB - 4, 8), remote),
        (put(writable + 8192 - 8, 9), remote),
        (get(readable + 8192 - 8, 9), remote),
        (put(other.nla, 8), remote),
        (get(other.nla, 200_000), remote),
        (put(u64::MAX, 8), remote),
        (put(there.nla + 4096, MAX_LENGTH), status::LOCAL_ADDRESS),
        (Command::new(1, 2, command::PUT, 0, 8, other.nla + MIB, there.nla), status::LOCAL_ADDRESS),
        (Command::new(1, 0, command::PUT, 0, 8, here.nla, there.nla), status::NO_RECEIVER),
        (Command::new(1, 200, command::PUT, 0, 8, here.nla, there.nla), status::NO_RECEIVER),
        (Command::new(2, 2, command::PUT, 0, 8, here.nla, there.nla), status::NO_RECEIVER),
        (Command::new(1, 4, command::GET, 0, 8, there.nla, here.nla), status::NO_RECEIVER),
        (put(there.nla, 0), status::COMMAND),
        (Command::new(1, 2, command::PUT, 0, MAX_LENGTH + 1, here.nla, there.nla), status::COMMAND),
        (Command::new(1, 2, command::IMMEDIATE_PUT, 0, 9, 0, there.nla), status::COMMAND),
        (Command::new(1, 2, 9, 0, 8, here.nla, there.nla), status::COMMAND),
        (Command { head: put(there.nla, 8).head | 1 << 32, ..put(there.nla, 8) }, status::COMMAND),
    ];

    for (case, (command, status)) in cases.into_iter().enumerate() {
        assert!(rig.post(&here, command));
        rig.run();
        assert_eq!(here.outcomes(), [(notify::REQUESTER, status)], "case {case}");
        assert_eq!(there.outcomes(), [], "case {case}");
    }

    assert_eq!(there.read(0, MIB as usize), vec![0; MIB as usize]);
    assert_eq!(here.read(4096, 8), [0; 8]);
    // There are eleven commands. The long get requests each of its four parts before the first
    // refusal arrives.
    assert_eq!(rig.counter(1, "rma_refused"), 14);
    assert_eq!(here.client.shown(mirror::RMA_COMPLETED), 22);

    // The owner itself may do both with memory that is closed to others.
    let own = Command::new(1, 2, command::PUT, ALL, 8, closed, closed + 64);
    assert!(rig.post(&there, own));
    rig.run();
    assert_eq!(there.outcomes(), [(notify::COMPLETER, DONE), (notify::REQUESTER, DONE)]);
}

#[test]
fn registrations_in_a_row_are_not_one_region() {
    let mut rig = Rig::pair();
    let (mut here, there) = pair(&mut rig, MIB);
    let first = rig.register(&there.client, DATA_BASE, 1, page::SIZE_64K, OPEN).unwrap();
    let second = rig.register(&there.client, DATA_BASE + 65536, 1, page::SIZE_64K, OPEN).unwrap();
    assert_eq!(second, first + 65536);

    assert!(rig.post(&here, Command::new(1, 2, command::PUT, 0, 16, here.nla, second - 8)));
    rig.run();

    assert_eq!(here.outcomes(), [(notify::REQUESTER, status::REMOTE_ADDRESS)]);
}

/// Starts a transfer of 4 MiB and stops in the middle of it.
fn start_half_way(rig: &mut Rig, here: &Peer, there: &Peer, put: bool) {
    let moved = |rig: &mut Rig| rig.counter(0, "rma_bytes_written") + rig.counter(1, "rma_bytes_written");
    let before = moved(rig);
    let length = 4 << 20;

    assert!(if put {
        rig.put(here, there, (0, 0, length), ALL)
    } else {
        rig.get(here, there, (0, 0, length), ALL)
    });

    while moved(rig) == before {
        rig.turn();
    }

    assert!(moved(rig) < before + u64::from(length));
}

#[test]
fn no_byte_is_accessed_after_a_deregistration_or_unmapping() {
    for put in [true, false] {
        for at_requester in [true, false] {
            for unmap in [true, false] {
                let mut rig = Rig::pair();
                let (mut here, mut there) = pair(&mut rig, 4 * MIB);
                here.write(0, &vec![7; 4 << 20]);
                there.write(0, &vec![9; 4 << 20]);
                let asked = if at_requester { &here } else { &there };
                rig.go_round(&asked.client, DATA_BASE, 1024);

                start_half_way(&mut rig, &here, &there, put);

                let ended = if at_requester { &here } else { &there };
                if unmap {
                    let bytes = 4 * MIB;
                    rig.machine.dma_unmap(ended.client.function, ended.client.who, DATA_BASE, bytes).unwrap();
                } else {
                    assert_eq!(rig.deregister(&ended.client, ended.nla), atu::DONE);
                    // New memory at the same addresses is not for the command in flight.
                    let _other = rig.map(&ended.client, 0, 4 * MIB);
                    let anew = rig.register(&ended.client, 0, 1024, page::SIZE_4K, OPEN).unwrap();
                    assert_eq!(anew, ended.nla);
                }
                let (ours, theirs) = (here.read(0, 4 << 20), there.read(0, 4 << 20));

                rig.run();
                let case = (put, at_requester, unmap);
                // The side that kept its memory may receive packets in flight; the other side's
                // memory does not change.
                let same = if at_requester {
                    here.read(0, 4 << 20) == ours
                } else {
                    there.read(0, 4 << 20) == theirs
                };
                assert!(same, "{case:?}");
                assert_eq!(here.outcomes(), [(notify::REQUESTER, status::WITHDRAWN)], "{case:?}");
                let other = if put { notify::COMPLETER } else { notify::RESPONDER };
                assert_eq!(there.outcomes(), [(other, status::WITHDRAWN)], "{case:?}");

                // The card continues to work.
                if !unmap {
                    assert!(rig.put(&here, &there, (0, 0, 100), ALL));
                    rig.run();
                    assert_eq!(here.outcomes(), [(notify::REQUESTER, DONE)]);
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
            let (mut here, mut there) = pair(&mut rig, 4 * MIB);
            start_half_way(&mut rig, &here, &there, put);

            let dead = if requester_dies { &here } else { &there };
            let (node, vpid) = (dead.client.node, dead.client.vpid);
            rig.machine.detach(dead.client.function, dead.client.who, Ended::Closed).unwrap();

            let bytes = dead.read(0, 4 << 20);
            let mut anew = rig.peer(node, vpid, 4 * MIB);

            rig.run();
            let dead = if requester_dies { &here } else { &there };
            assert!(dead.read(0, 4 << 20) == bytes);
            assert_eq!(anew.outcomes(), [], "put {put}, requester {requester_dies}");
            assert!(anew.read(0, 4 << 20).iter().all(|&byte| byte == 0));
            if !requester_dies {
                assert_eq!(here.outcomes(), [(notify::REQUESTER, status::WITHDRAWN)]);
            } else if put {
                assert_eq!(there.outcomes(), [(notify::COMPLETER, status::WITHDRAWN)]);
            }

            // The new owner's transfers work normally.
            let mut partner = if requester_dies { there } else { here };
            assert!(
                rig.put(&anew, &partner, (0, 0, 200_000), ALL)
                    && rig.get(&anew, &partner, (0, 0, 200_000), 0)
            );
            rig.run();
            assert_eq!(anew.outcomes(), [(notify::REQUESTER, DONE)]);
            assert_eq!(partner.outcomes(), [(notify::COMPLETER, DONE)]);
            assert_eq!(anew.client.shown(mirror::RMA_COMPLETED), 2);
            assert_eq!(rig.machine.fabric().packets_in_use(), 0);
        }
    }
}

#[test]
fn a_card_that_is_reset_ends_its_commands_and_works_again() {
    let mut rig = Rig::pair();
    let (here, mut there) = pair(&mut rig, 4 * MIB);
    start_half_way(&mut rig, &here, &there, true);

    rig.machine.reset_function(here.client.function).unwrap();
    rig.run();
    assert_eq!(there.outcomes(), [(notify::COMPLETER, status::WITHDRAWN)]);

    rig.machine.detach(here.client.function, here.client.who, Ended::Closed).unwrap();
    let mut here = rig.peer(0, 1, 4 * MIB);

    assert!(rig.put(&here, &there, (0, 0, 100_000), ALL));
    rig.run();
    assert_eq!(
        (here.outcomes(), there.outcomes()),
        (vec![(notify::REQUESTER, DONE)], vec![(notify::COMPLETER, DONE)])
    );
}

#[test]
fn a_full_queue_loses_notifications_counts_them_and_overwrites_none() {
    let mut rig = Rig::pair();
    let (mut here, there) = pair(&mut rig, 4096);
    for _ in 0..70 {
        assert!(rig.put(&here, &there, (0, 0, 8), notify::REQUESTER));
        rig.run();
    }

    assert_eq!(here.client.shown(mirror::RMA_OVERFLOWS), 6);
    assert_eq!(here.client.last_error().0, error::OVERFLOW);
    assert_eq!(here.take_all().len(), 64);

    assert!(rig.put(&here, &there, (0, 0, 8), notify::REQUESTER));
    rig.run();
    assert_eq!(here.take_all().len(), 1);
    assert_eq!(here.client.shown(mirror::RMA_NOTIFICATIONS), 65);
}

#[test]
fn a_queue_wraps_many_times() {
    let mut rig = Rig::pair();
    let (mut here, mut there) = pair(&mut rig, 4096);

    for turn in 0..1000u32 {
        for length in 1..=10 {
            assert!(rig.put(&here, &there, (0, 0, length), ALL));
        }
        rig.run();

        let lengths =
            |notified: Vec<Notification>| notified.iter().map(Notification::length).collect::<Vec<_>>();
        assert_eq!(lengths(here.take_all()), (1..=10).collect::<Vec<_>>(), "turn {turn}");
        assert_eq!(lengths(there.take_all()), (1..=10).collect::<Vec<_>>());
    }
    assert_eq!(here.client.shown(mirror::ERRORS), 0);
}

#[test]
fn a_read_pointer_that_makes_no_sense_is_one_error_and_ignored() {
    let mut rig = Rig::pair();
    let (mut here, there) = pair(&mut rig, 4096);
    here.client.windows.window(window::RMA_READ_POINTER, 8).unwrap().store_u64_release(0, 5).unwrap();

    for _ in 0..3 {
        assert!(rig.put(&here, &there, (0, 0, 8), notify::REQUESTER));
        rig.run();
    }
    assert_eq!((here.client.shown(mirror::ERRORS), here.client.last_error().0), (1, error::READ_POINTER));
    assert_eq!(here.take_all().len(), 3);
}

#[test]
fn an_interrupt_comes_with_the_first_notification() {
    let mut rig = Rig::pair();
    let (mut here, there) = pair(&mut rig, 4096);
    let counts = rig.interrupts(&here.client);
    let notified = usize::from(vector::RMA_NOTIFICATION);

    rig.write64(&here.client, reg::INTERRUPT_ENABLE, 1 << vector::RMA_NOTIFICATION);

    for _ in 0..3 {
        assert!(rig.put(&here, &there, (0, 0, 8), notify::REQUESTER));
    }
    rig.run();
    assert_eq!(counts[notified].get(), 1);

    rig.write64(&here.client, reg::INTERRUPT_ENABLE, 1 << vector::RMA_NOTIFICATION);
    assert_eq!(counts[notified].get(), 2, "some are unread");

    here.take_all();
    rig.write64(&here.client, reg::INTERRUPT_ENABLE, 1 << vector::RMA_NOTIFICATION);
    assert_eq!(counts[notified].get(), 2);
}

#[test]
fn commands_beyond_the_bound_stall_until_others_have_ended() {
    let mut rig = Rig::pair();
    let (here, there) = pair(&mut rig, 4096);
    rig.machine.fabric().set_link_up(rig.links[0], false).unwrap();

    for _ in 0..MAX_COMMANDS {
        assert!(rig.put(&here, &there, (0, 0, 8), 0));
    }
    assert!(!rig.put(&here, &there, (0, 0, 8), 0));

    rig.machine.fabric().set_link_up(rig.links[0], true).unwrap();
    rig.run();
    assert!(rig.put(&here, &there, (0, 0, 8), 0));
    rig.run();
    assert_eq!(here.client.shown(mirror::RMA_COMPLETED), MAX_COMMANDS as u64 + 1);
}

#[test]
fn commands_without_a_queue_or_by_the_admin_are_refused() {
    let mut rig = Rig::pair();
    let (here, there) = pair(&mut rig, 4096);

    rig.write64(&here.client, reg::RMA_QUEUE_ENABLE, 0);
    assert!(rig.put(&here, &there, (0, 0, 8), 0));
    rig.run();
    assert_eq!(here.client.last_error().0, error::COMMAND);
    assert_eq!(here.client.shown(mirror::RMA_COMMANDS), 0);

    rig.machine
        .dma_unmap(there.client.function, there.client.who, crate::common::rma::QUEUE_BASE, 4096)
        .unwrap();
    rig.write64(&here.client, reg::RMA_QUEUE_ENABLE, 1);
    assert!(rig.put(&here, &there, (0, 0, 8), ALL));
    rig.run();
    assert_eq!(there.client.last_error().0, error::RING_MEMORY);
    assert_eq!(rig.read64(&there.client, reg::RMA_QUEUE_ENABLE), 0);
}

#[test]
fn link_errors_lose_and_double_nothing() {
    let mut rig = Rig::pair();
    for direction in [Direction::Forward, Direction::Backward] {
        let faults = move |_: &mut nicforge_core::fabric::Packet, count: u64| match count % 5 {
            1 | 2 => Fault::Corrupt,
            3 => Fault::Delay(1000),
            _ => Fault::None,
        };
        rig.machine.fabric().set_fault(rig.links[0], direction, Some(Box::new(faults))).unwrap();
    }

    let (mut here, mut there) = pair(&mut rig, MIB);
    for turn in 0..50u32 {
        let bytes = pattern(turn.into(), 150_000 + turn as usize);
        here.write(0, &bytes);
        assert!(rig.put(&here, &there, (0, 7, 150_000 + turn), ALL));
        assert!(rig.get(&here, &there, (7, 500_000, 150_000 + turn), ALL));

        rig.run();
        assert_eq!(here.read(500_000, bytes.len()), bytes);
        assert_eq!(here.outcomes(), [(1, DONE), (1, DONE), (4, DONE)]);
        assert_eq!(there.outcomes(), [(4, DONE), (2, DONE)]);
    }

    let stats = (0..wire::CHANNELS)
        .map(|vc| rig.machine.fabric().link_stats(rig.links[0], Direction::Forward, vc).unwrap());
    assert!(stats.map(|lane| lane.retransmissions).sum::<u64>() > 0);
}

#[test]
fn the_link_carries_the_bytes_that_are_only_referred_to() {
    let topology = Topology::full_mesh(2).unwrap();
    let link = LinkSpec { bits_per_second: 8_000_000_000, ..crate::common::plain_link() };
    let mut rig = Rig::with(&topology, 4, &link, |_| {});
    let (here, there) = pair(&mut rig, 4 * MIB);

    let start = rig.now;
    assert!(rig.put(&here, &there, (0, 0, 4 << 20), 0));
    rig.run();
    let nanoseconds = rig.now.0 - start.0;
    // 4 MiB take a nanosecond for each byte, and each packet has 80 bytes more.
    assert!((4_194_304..4_210_000).contains(&nanoseconds), "{nanoseconds} ns");
}

#[test]
fn two_vpids_share_and_small_messages_pass() {
    let mut rig = Rig::pair();
    let bytes = u64::from(MAX_LENGTH);
    let (one, two) = (rig.peer(0, 0, bytes), rig.peer(0, 1, bytes));
    let (first, second) = (rig.peer(1, 0, bytes), rig.peer(1, 1, bytes));
    let sender = rig.attach(0, 2);
    let mut receiver = rig.receiver(1, 2, 1024);

    for peer in [&one, &two] {
        peer.write(0, &vec![1; MAX_LENGTH as usize]);
    }
    assert!(rig.put(&one, &first, (0, 0, MAX_LENGTH), 0) && rig.put(&two, &second, (0, 0, MAX_LENGTH), 0));

    let progress = |peer: &Peer| {
        (0..128u64).take_while(|part| peer.read((part + 1) * 65536 - 1, 1) == [1]).count() as i64
    };

    let (mut received, mut turns) = (0, 0);
    while progress(&first) < 128 || progress(&second) < 128 {
        assert!(rig.send(&sender, (1, 2), 0, &[1; 8]));
        rig.turn();
        rig.turn();
        received += receiver.take_all().len();
        turns += 1;
        assert!((progress(&first) - progress(&second)).abs() <= 2, "they take turns");
        assert!(received + 12 >= turns, "messages are not held up: {received} of {turns}");
    }
    assert!(turns > 20);
}

#[test]
fn small_commands_do_not_starve_another_vpids_long_one() {
    let mut rig = Rig::pair();
    let bytes = u64::from(MAX_LENGTH);
    let (small, long) = (rig.peer(0, 0, 4096), rig.peer(0, 1, bytes));
    let there = rig.peer(0, 2, bytes);
    long.write(0, &[1; 16 * 65536]);

    // Within a card, only one part has room at a time.
    assert!(rig.put(&long, &there, (0, 0, 16 * 65536), 0));
    for _ in 0..200 {
        let _ = rig.put(&small, &there, (0, bytes - 4096, 8), 0);
        rig.turn();
    }

    assert_eq!(there.read(16 * 65536 - 1, 1), [1]);
    assert!(small.client.shown(mirror::RMA_COMPLETED) > 30);
}

#[test]
fn memory_of_other_topologies_is_reached_over_several_hops() {
    let topology = Topology::torus(&[3, 3]).unwrap();
    let mut rig = Rig::new(&topology, 1);
    let mut peers: Vec<_> = (0..9).map(|node| rig.peer(node, 0, 9 * 131_072)).collect();
    for (node, peer) in (0..).zip(&peers) {
        peer.write(node * 131_072, &pattern(node, 131_072));
    }

    for from in 0..9u64 {
        for to in 0..9 {
            let place = (from * 131_072, from * 131_072, 131_072);
            assert!(
                from == to || rig.put(&peers[from as usize], &peers[to as usize], place, notify::REQUESTER)
            );
        }
    }

    rig.run();
    for peer in &mut peers {
        assert_eq!(peer.outcomes(), [(notify::REQUESTER, DONE); 8]);
        for node in 0..9 {
            assert!(peer.read(node * 131_072, 131_072) == pattern(node, 131_072));
        }
    }
}
