//! Mailboxes: commands, results, and clients that break the rules.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nicforge_core::companion::CompanionMode;
use nicforge_hwi::seastar::{BAR_WINDOW, COMMAND_BYTES, KERNEL, SLOTS, firmware, mirror, reg, window};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Client, Event};

use crate::common::{BOTH, MEMORY, Rig, User};

fn command(value: u8) -> [u8; COMMAND_BYTES] {
    [value; COMMAND_BYTES]
}

/// Returns the clients and numbers of all commands that a node's program has seen.
fn commands(rig: &Rig, node: usize) -> Vec<(u16, u32)> {
    let state = rig.scripts[node].lock();
    let number = |event: &Event| match *event {
        Event::Command { client, number, .. } => Some((client.0, number)),
        _ => None,
    };
    state.events.iter().filter_map(|(_, event)| number(event)).collect()
}

#[test]
fn mirror_names_node_and_process() {
    let mut rig =
        Rig::powered_on(CompanionMode::Stepped, &[3], Options { processes: 4, ..Options::default() });
    let process = User::attach(&mut rig.bed, rig.functions[2], 3);
    rig.settle();

    let words =
        [mirror::NODE, mirror::NODES, mirror::PROCESS, mirror::FIRMWARE, mirror::EPOCH, mirror::PROCESSES];
    let expected = [2, 3, mirror::NO_PROCESS, firmware::RUNNING, 1, 4];
    assert_eq!(words.map(|word| rig.kernels[2].shown(word)), expected);
    assert_eq!(words.map(|word| process.shown(word))[2..4], [2, firmware::RUNNING]);

    let client = rig.kernels[1].client;
    assert_eq!(client.read32(&mut rig.bed, 0, reg::IDENTITY), reg::IDENTITY_VALUE);
    assert_eq!(client.read32(&mut rig.bed, 0, 0x40), u32::MAX);
}

#[test]
fn commands_of_all_clients_are_answered_in_order() {
    for mode in BOTH {
        let mut rig = Rig::powered_on(mode, &[2], Options { processes: 15, ..Options::default() });
        let mut users: Vec<_> = (1..=15)
            .map(|attachment_id| User::attach(&mut rig.bed, rig.functions[0], attachment_id))
            .collect();

        for round in 0..3 * SLOTS {
            if round % SLOTS == 0 {
                rig.until(|_| round == 0 || users.iter().all(|user| user.result(round - 1).is_some()));
            }
            for user in &mut users {
                user.post(&command(round as u8));
            }
        }
        rig.until(|_| users.iter().all(|user| user.result(3 * SLOTS - 1).is_some()));

        for attachment_id in 1..=15 {
            let numbers = commands(&rig, 0).into_iter().filter(|&(client, _)| client == attachment_id);
            assert!(numbers.map(|(_, number)| number).eq(0..3 * SLOTS));
        }
    }
}

#[test]
fn count_without_room_is_an_error_and_a_valid_one_goes_on() {
    let mut rig = Rig::powered_on(CompanionMode::Stepped, &[2], Options::default());
    let mut user = User::attach(&mut rig.bed, rig.functions[0], 1);
    user.post(&command(1));
    rig.until(|_| user.result(0).is_some());

    for (errors, tail) in [(1, 1 + SLOTS + 1), (2, 1 << 31), (3, 0), (4, u32::MAX)] {
        user.set_tail(tail);
        rig.settle();
        assert_eq!((rig.counter(0, "errors"), commands(&rig, 0).len()), (errors, 1));
    }

    user.set_tail(1 + SLOTS);
    rig.until(|_| user.result(SLOTS).is_some());
    assert_eq!(commands(&rig, 0).len(), 1 + SLOTS as usize);
}

#[test]
fn other_clients_progress_while_one_posts_without_end() {
    let mut rig = Rig::powered_on(CompanionMode::Stepped, &[2], Options::default());
    let mut flood = User::attach(&mut rig.bed, rig.functions[0], 1);
    let mut user = User::attach(&mut rig.bed, rig.functions[0], 2);
    let mut tail = 0;

    for number in 0..100 {
        user.post(&command(3));
        rig.until(|_| {
            // All slots of the flood are always in use.
            let answered = (tail..tail + SLOTS).take_while(|&number| flood.result(number).is_some()).count();
            tail += answered as u32;
            flood.set_tail(tail + SLOTS);
            user.result(number).is_some()
        });
    }
    assert!(tail > 0);
    assert_eq!(rig.counter(0, "errors"), 0);
}

#[test]
fn command_that_changes_meanwhile_is_copied_once() {
    let mut rig = Rig::powered_on(CompanionMode::Threads, &[2], Options::default());
    let mut user = User::attach(&mut rig.bed, rig.functions[0], 1);
    let memory = user.client.memory(&rig.bed, BAR_WINDOW.into());
    let stop = Arc::new(AtomicBool::new(false));

    let writer = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let mut value = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                for slot in 0..u64::from(SLOTS) {
                    let at = window::BASE + window::COMMANDS + slot * COMMAND_BYTES as u64;
                    memory.write(at, &[value | 0x80; COMMAND_BYTES]).unwrap();
                }
                std::thread::yield_now();
            }
        }
    });
    let mut tail = 0;
    rig.until(|rig| {
        if tail == 0 || user.result(tail - 1).is_some() {
            tail += SLOTS;
            user.set_tail(tail);
        }
        commands(rig, 0).len() > 300
    });
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();

    // The other mailbox still works.
    rig.act(0, |_| {});
}

#[test]
fn answer_to_a_former_tenant_does_not_reach_the_next_one() {
    let mut rig = Rig::powered_on(CompanionMode::Stepped, &[2], Options::default());
    let mut former = User::attach(&mut rig.bed, rig.functions[0], 1);
    former.post(&command(1));
    rig.until(|_| former.result(0).is_some());
    former.post(&command(2));
    rig.bed.rescan();
    rig.bed.step(1);
    former.client.detach(&mut rig.bed);
    let next = User::attach(&mut rig.bed, rig.functions[0], 1);
    rig.settle();

    assert_eq!((0..SLOTS).filter(|&number| next.result(number).is_some()).count(), 0);
    let tenants: Vec<_> = {
        let state = rig.scripts[0].lock();
        let tenant = |event: &Event| match *event {
            Event::Attached { client: Client(1), .. } => Some(true),
            Event::Detached { client: Client(1), .. } => Some(false),
            _ => None,
        };
        state.events.iter().filter_map(|(_, event)| tenant(event)).collect()
    };
    assert_eq!(tenants, [true, false, true]);
}

#[test]
fn firmware_sees_the_end_of_all_former_tenants_before_a_new_one() {
    let mut rig = Rig::powered_on(CompanionMode::Stepped, &[2], Options::default());
    let former = [1, 2].map(|attachment| User::attach(&mut rig.bed, rig.functions[0], attachment));
    rig.settle();
    rig.scripts[0].lock().events.clear();

    // The tenant of attachment 2 comes before that of attachment 1, so that a firmware that knows
    // the latter may access the memory of both.
    for user in former.iter().rev() {
        user.client.detach(&mut rig.bed);
        User::attach(&mut rig.bed, rig.functions[0], user.client.attachment.0);
    }
    rig.settle();

    let state = rig.scripts[0].lock();
    let tenant = |event: &Event| match *event {
        Event::Attached { client, .. } => Some((client.0, true)),
        Event::Detached { client, .. } => Some((client.0, false)),
        _ => None,
    };
    let tenants: Vec<_> = state.events.iter().filter_map(|(_, event)| tenant(event)).collect();
    assert_eq!(tenants, [(1, false), (2, false), (1, true), (2, true)]);
}

#[test]
fn host_writes_end_with_the_word_that_hands_them_over() {
    let mut rig = Rig::powered_on(CompanionMode::Stepped, &[2], Options::default());
    let interrupts = rig.kernels[0].client.bind_msix(&mut rig.bed);

    rig.act(0, |chip| {
        let bytes: Vec<u8> = (0..128).collect();
        chip.write_host(Client(KERNEL), MEMORY + 64, &bytes).unwrap();
        chip.write_host(Client(KERNEL), MEMORY + 512, &[7]).unwrap();
        chip.write_host(Client(KERNEL), 0, &bytes).unwrap();
        chip.interrupt(Client(KERNEL), 0).unwrap();
    });
    rig.until(|_| interrupts[0].get() == 1);

    let expected: Vec<u8> = (0..128).collect();
    assert_eq!((rig.kernels[0].read(64, 128), rig.kernels[0].read(512, 2)), (expected, vec![7, 0]));
    assert_eq!(rig.counter(0, "errors"), 1);
}
