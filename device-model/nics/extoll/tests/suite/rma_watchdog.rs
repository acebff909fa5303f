//! Transfers whose target never answers: their ends, and the effect of late answers.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{
    Rig,
    rma::{OPEN_TO_ALL, Peer},
};
use nicforge_core::{
    device::Ended,
    fabric::{Direction, Fault},
};
use nicforge_extoll::Topology;
use nicforge_hwi::{
    extoll::{error, mirror, reg},
    extoll_atu::page,
    extoll_rma::{Command, MAX_COMMANDS, command, notify, status},
};

const MIB: u64 = 1 << 20;
/// Notifications for all roles of a command.
const ALL: u8 = notify::REQUESTER | notify::RESPONDER | notify::COMPLETER;
/// The watchdog in nanoseconds, unless a test sets another.
const WATCHDOG: u64 = reg::RMA_WATCHDOG_DEFAULT;
const TIMED_OUT: (u8, u8) = (notify::REQUESTER, status::TIMED_OUT);
const DONE: (u8, u8) = (notify::REQUESTER, status::DONE);

/// Attaches a peer to each of two cards.
fn pair(rig: &mut Rig, bytes: u64) -> (Peer, Peer) {
    (rig.peer(0, 0, bytes), rig.peer(1, 0, bytes))
}

/// Takes the link down or up, and runs the machine.
fn set_link_up(rig: &mut Rig, up: bool) {
    rig.machine.fabric().set_link_up(rig.links[0], up).unwrap();
    rig.run();
}

/// Advances time in steps that are short enough for a card's watchdog: longer ones count as time in
/// which the card was not driven.
fn advance_in_slices(rig: &mut Rig, nanoseconds: u64) {
    let slice = WATCHDOG / 16;
    for _ in 0..nanoseconds / slice {
        rig.advance_and_run(slice);
    }
}

#[test]
fn the_watchdog_ends_transfers_of_every_kind_with_a_silent_target() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, MIB);
    set_link_up(&mut rig, false);

    let immediate = Command::new(1, 0, command::IMMEDIATE_PUT, 0, 8, 7, remote.nla + 64);
    assert!(rig.put(&local, &remote, (0, 0, 8), 0) && rig.post(&local, immediate));
    assert!(
        rig.get(&local, &remote, (0, 4096, 300_000), ALL) && rig.put(&local, &remote, (0, 8, 500_000), ALL)
    );
    rig.run();

    advance_in_slices(&mut rig, WATCHDOG - WATCHDOG / 16);
    assert_eq!(local.outcomes(), []);

    // The first part of each transfer counts as progress until the first check.
    advance_in_slices(&mut rig, WATCHDOG / 8);
    let notified = local.take_all();
    let commands: Vec<_> =
        notified.iter().map(|notified| (notified.command(), notified.status(), notified.length())).collect();
    let ended = status::TIMED_OUT;
    assert_eq!(
        commands,
        [
            (command::PUT, ended, 8),
            (command::IMMEDIATE_PUT, ended, 8),
            (command::GET, ended, 300_000),
            (command::PUT, ended, 500_000)
        ]
    );

    assert!(notified.iter().all(|notified| (notified.node(), notified.vpid()) == (1, 0)));
    assert_eq!(local.client.mirror_word(mirror::RMA_COMPLETED), 4);
    assert_eq!((rig.counter(0, "rma_timed_out"), rig.counter(1, "rma_timed_out")), (4, 0));
    // The notification reports the end; it is no error of the client's.
    assert_eq!(local.client.mirror_word(mirror::ERRORS), 0);

    set_link_up(&mut rig, true);
    assert_eq!(local.outcomes(), [], "no outcome is reported twice");

    remote.take_all();

    assert!(rig.put(&local, &remote, (0, 0, 300_000), ALL) && rig.get(&local, &remote, (0, 0, 300_000), ALL));
    rig.run();

    assert_eq!(local.outcomes(), [DONE, DONE, (notify::COMPLETER, status::DONE)]);
    assert_eq!(remote.outcomes(), [(notify::COMPLETER, status::DONE), (notify::RESPONDER, status::DONE)]);
    assert_eq!(rig.machine.fabric().packets_in_use(), 0);
}

#[test]
fn late_answers_of_a_get_write_nothing_and_free_the_window() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, 8 * MIB);
    remote.write(0, &vec![9; 8 << 20]);
    for round in 0..4 {
        // The request has used up the whole window of gets, and is in the network.
        assert!(rig.get(&local, &remote, (0, 0, 8 << 20), ALL));
        for _ in 0..3 {
            rig.step_once();
        }

        set_link_up(&mut rig, false);
        advance_in_slices(&mut rig, 2 * WATCHDOG);
        assert_eq!(local.outcomes(), [TIMED_OUT], "round {round}");
        local.write(0, &vec![round; 8 << 20]);
        set_link_up(&mut rig, true);

        assert!(local.read(0, 8 << 20).iter().all(|&byte| byte == round), "round {round}");
        assert_eq!(local.outcomes(), []);
    }

    assert!(rig.get(&local, &remote, (0, 0, 8 << 20), notify::REQUESTER));
    rig.run();
    assert_eq!(local.outcomes(), [DONE]);
    assert!(local.read(0, 8 << 20).iter().all(|&byte| byte == 9));
}

#[test]
fn a_put_aborted_midway_does_not_affect_the_next_one() {
    let mut rig = Rig::pair();
    let (mut local, mut remote) = pair(&mut rig, 8 * MIB);
    local.write(0, &vec![1; 8 << 20]);

    assert!(rig.put(&local, &remote, (0, 0, 8 << 20), ALL));
    for _ in 0..6 {
        rig.step_once();
    }
    assert!(remote.read(0, 1) == [1] && remote.read((8 << 20) - 1, 1) == [0], "the put is half done");

    set_link_up(&mut rig, false);
    advance_in_slices(&mut rig, 2 * WATCHDOG);
    assert_eq!(local.outcomes(), [TIMED_OUT]);

    set_link_up(&mut rig, true);
    assert_eq!(remote.outcomes(), [], "the put is not complete");
    // The next put goes to another region, so that a continuation of the first put would be
    // refused.
    let second_region = rig
        .register(&remote.client, crate::common::rma::DATA_BASE, 2048, page::SIZE_4K, OPEN_TO_ALL)
        .unwrap();
    remote.nla = second_region;
    local.write(0, &vec![2; 8 << 20]);

    for length in [8 << 20, 8] {
        assert!(rig.put(&local, &remote, (0, 0, length), ALL));
        rig.run();
        assert_eq!(local.outcomes(), [DONE]);
        assert_eq!(remote.outcomes(), [(notify::COMPLETER, status::DONE)]);
    }
    assert!(remote.read(0, 8 << 20).iter().all(|&byte| byte == 2));
}

#[test]
fn commands_for_other_targets_proceed_and_do_not_end() {
    let mut rig = Rig::new(&Topology::full_mesh(3).unwrap(), 2);
    let mut local = rig.peer(0, 0, MIB);
    let (silent, alive) = (rig.peer(1, 0, MIB), rig.peer(2, 0, MIB));
    let broken = rig.links.iter().position(|&link| {
        let ends = rig.machine.fabric().link_ends(link).unwrap().map(|(function, _)| function);
        ends == [rig.functions[0], rig.functions[1]]
    });
    let broken = rig.links[broken.unwrap()];
    rig.machine.fabric().set_link_up(broken, false).unwrap();

    // Many commands for the silent target do not delay those for others.
    for _ in 0..20 {
        assert!(rig.put(&local, &silent, (0, 0, 100_000), 0));
    }

    let mut notified = Vec::new();
    for _ in 0..40 {
        assert!(rig.put(&local, &alive, (0, 0, 100_000), notify::REQUESTER));
        advance_in_slices(&mut rig, WATCHDOG / 16);
        notified.extend(local.outcomes());
    }

    assert_eq!(notified.iter().filter(|&&notified| notified == DONE).count(), 40);
    assert_eq!(notified.iter().filter(|&&notified| notified == TIMED_OUT).count(), 20);
}

#[test]
fn a_full_list_of_commands_drains_and_a_stalled_command_is_accepted() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, 4096);
    set_link_up(&mut rig, false);

    for _ in 0..MAX_COMMANDS {
        assert!(rig.put(&local, &remote, (0, 0, 8), 0));
    }
    assert!(!rig.put(&local, &remote, (0, 0, 8), 0));

    advance_in_slices(&mut rig, 2 * WATCHDOG);
    assert_eq!(local.outcomes(), [TIMED_OUT; MAX_COMMANDS]);
    assert!(rig.put(&local, &remote, (0, 0, 8), 0));
}

#[test]
fn the_watchdog_does_not_end_slow_commands_that_make_progress() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, MIB);
    for direction in [Direction::Forward, Direction::Backward] {
        let slow = |_: &mut nicforge_core::fabric::Packet, _: u64| Fault::Delay(WATCHDOG / 2);
        rig.machine.fabric().set_fault(rig.links[0], direction, Some(Box::new(slow))).unwrap();
    }

    let start = rig.machine.now();
    assert!(rig.put(&local, &remote, (0, 0, 1 << 20), notify::REQUESTER));
    assert!(rig.get(&local, &remote, (0, 0, 1 << 20), notify::REQUESTER));

    for _ in 0..1000 {
        rig.advance_and_run(WATCHDOG / 64);
    }

    assert_eq!(local.outcomes(), [DONE, DONE]);
    assert!(rig.machine.now().0 - start.0 > WATCHDOG);
}

#[test]
fn a_card_that_was_not_driven_ends_nothing_at_once() {
    let mut rig = Rig::pair();
    let (mut local, remote) = pair(&mut rig, 4096);
    set_link_up(&mut rig, false);
    assert!(rig.put(&local, &remote, (0, 0, 8), notify::REQUESTER));
    rig.run();

    rig.advance_and_run(100 * WATCHDOG);
    assert_eq!(local.outcomes(), []);

    set_link_up(&mut rig, true);
    assert_eq!(local.outcomes(), [DONE]);
}

#[test]
fn the_admin_sets_and_disables_the_watchdog() {
    let mut rig = Rig::pair();
    let admin = rig.admin(0);
    assert_eq!(rig.read64(&admin, reg::RMA_WATCHDOG), WATCHDOG);
    let (mut local, remote) = pair(&mut rig, 4096);

    rig.write64(&local.client, reg::RMA_WATCHDOG, 1);
    rig.run();
    assert_eq!(local.client.last_error().0, error::NOT_PERMITTED);

    rig.write64(&admin, reg::RMA_WATCHDOG, 0);
    set_link_up(&mut rig, false);
    assert!(rig.put(&local, &remote, (0, 0, 8), 0));
    advance_in_slices(&mut rig, 10 * WATCHDOG);
    assert_eq!(local.outcomes(), []);

    // Time counts from the write of the register.
    rig.write64(&admin, reg::RMA_WATCHDOG, WATCHDOG / 2);
    assert_eq!(rig.read64(&admin, reg::RMA_WATCHDOG), WATCHDOG / 2);
    advance_in_slices(&mut rig, WATCHDOG / 4);
    assert_eq!(local.outcomes(), []);
    advance_in_slices(&mut rig, WATCHDOG);
    assert_eq!(local.outcomes(), [TIMED_OUT]);
}

#[test]
fn the_commands_of_a_dead_owner_end_and_its_successor_gets_no_notification() {
    let mut rig = Rig::pair();
    let (local, remote) = pair(&mut rig, 4 * MIB);
    // One put is half way, with others queued after it.
    assert!(rig.put(&local, &remote, (0, 0, 4 << 20), ALL));
    for _ in 0..4 {
        rig.step_once();
    }
    set_link_up(&mut rig, false);
    for _ in 1..MAX_COMMANDS {
        assert!(rig.put(&local, &remote, (0, 0, 300_000), ALL));
    }

    rig.machine.detach(local.client.function, local.client.attachment, Ended::Closed).unwrap();
    let mut local = rig.peer(0, 0, MIB);
    rig.run();
    assert!(!rig.put(&local, &remote, (0, 0, 8), 0), "its predecessor's commands are there still");

    advance_in_slices(&mut rig, 2 * WATCHDOG);
    assert_eq!(local.outcomes(), []);
    assert_eq!(rig.counter(0, "rma_timed_out"), MAX_COMMANDS as u64);

    set_link_up(&mut rig, true);
    assert!(rig.put(&local, &remote, (0, 0, 8), ALL));
    rig.run();
    assert_eq!(local.outcomes(), [DONE]);
    assert_eq!(local.client.mirror_word(mirror::RMA_COMPLETED), 1);
}
