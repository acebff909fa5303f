//! Firmware that panics, hangs, or breaks the rules: a fault state, which a reset ends.

use std::sync::mpsc;

use nicforge_core::{companion::CompanionMode, ids::AttachmentId};
use nicforge_hwi::seastar::{COMMAND_BYTES, KERNEL, firmware, mirror};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Client, Event, MAX_CALLS, TransferStatus};

use crate::common::{BOTH, LONG, MEMORY, Message, Rig, pattern, receive_at};

/// Checks that node 1 is halted, and harmless to nodes 0 and 2.
fn check_halted(rig: &mut Rig) {
    rig.until(|rig| rig.kernels[1].shown(mirror::FIRMWARE) == firmware::HALTED);
    let down = |event: &Event| matches!(event, Event::NodeDown { node: 1 });
    rig.until(|rig| [0, 2].iter().all(|&node| rig.scripts[node].count(down) == 1));

    // Its commands are not answered.
    let number = rig.kernels[1].post(&[0; COMMAND_BYTES]);
    // Messages to it are discarded, so that the links of others never stall.
    for name in 100..200 {
        rig.send(0, Message { incarnation: 1, ..Message::put(name, 1, 0, 100_000) });
        rig.until(|rig| rig.scripts[0].transmitted().iter().any(|&(sent, _)| sent == name));
    }
    // Messages between the others continue, through it as well.
    rig.kernels[0].write(0, &pattern(5, 100_000));
    rig.scripts[2].on_event(receive_at(0));
    rig.send(0, Message::put(300, 2, 0, 100_000));
    rig.until(|rig| rig.scripts[2].received() == [TransferStatus::Complete]);
    assert_eq!(rig.kernels[2].read(0, 100_000), pattern(5, 100_000));
    assert_eq!(rig.kernels[1].result(number), None);
}

/// Resets node 1, and checks that it works in a new incarnation.
fn check_reset(rig: &mut Rig) {
    rig.bed.reset_function(rig.functions[1]).unwrap();
    rig.kernels[1].restart();
    rig.kernels[1].client.enable_bus_master(&mut rig.bed);
    rig.until(|rig| rig.kernels[1].shown(mirror::FIRMWARE) == firmware::RUNNING);
    assert_eq!(rig.kernels[1].shown(mirror::EPOCH), 2);
    assert_eq!(rig.scripts[1].lock().starts, 2);

    rig.boot(1);
    rig.settle();
    rig.scripts[1].on_event(receive_at(0));
    rig.send(0, Message::put(400, 1, 0, 100_000));
    rig.until(|rig| rig.scripts[1].received().last() == Some(&TransferStatus::Complete));
    assert_eq!(rig.kernels[1].read(0, 100_000), pattern(5, 100_000));
    assert_eq!(rig.counter(1, "incarnation"), 2);
}

#[test]
fn firmware_that_panics_is_halted_until_a_reset() {
    for mode in BOTH {
        let mut rig = Rig::new(mode, &[3], Options::default());
        rig.start(1, |_| panic!("the program is broken"));
        check_halted(&mut rig);
        check_reset(&mut rig);
    }
}

#[test]
fn firmware_that_hangs_is_halted_until_a_reset() {
    let mut rig = Rig::new(CompanionMode::Threads, &[3], Options::default());
    rig.bed.set_companion_limit(1_000_000_000);
    let (release, until) = mpsc::channel::<()>();
    rig.start(1, move |_| assert!(until.recv().is_err()));
    rig.until(|rig| {
        rig.bed.advance(10_000_000);
        rig.kernels[1].shown(mirror::FIRMWARE) == firmware::HALTED
    });
    rig.bed.set_companion_limit(LONG.as_nanos() as u64);
    check_halted(&mut rig);
    check_reset(&mut rig);
    drop(release);
}

#[test]
fn firmware_with_too_many_calls_is_halted() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[3], Options::default());
    rig.start(1, |chip| {
        let made = (0..100).filter(|_| chip.set_timer(0).is_ok()).count();
        assert!(made < MAX_CALLS);
    });
    check_halted(&mut rig);
    check_reset(&mut rig);
}

#[test]
fn effects_after_the_one_that_halts_the_firmware_are_not_carried_out() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    // Node 1 names no destination, so that the transmit engine of node 0 soon has to wait.
    rig.send(0, Message::put(1, 1, 0, 2 << 20));
    rig.settle();

    // Each action writes its number after 13 messages. The engine holds 4,096, and the network some
    // more: the program is halted by a message of the last action.
    let mut actions = 0_u32;
    while rig.kernels[0].shown(mirror::FIRMWARE) == firmware::RUNNING {
        actions += 1;
        let number = rig.start(0, move |chip| {
            for _ in 0..13 {
                Message::put(2, 1, 0, 100).transmit(chip);
            }
            chip.write_host(Client(KERNEL), MEMORY, &actions.to_le_bytes()).unwrap();
        });
        rig.until(|rig| rig.kernels[0].result(number).is_some());
        (0..4).for_each(|_| rig.step());
        assert!(actions < 1000, "there is no limit");
    }
    assert_eq!(rig.kernels[0].read(0, 4), (actions - 1).to_le_bytes());
    assert_eq!(rig.counter(0, "firmware_halts"), 1);
}

#[test]
fn firmware_that_halts_in_the_middle_cuts_its_message_and_frees_its_receiver() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[3], Options::default());
    rig.scripts[0].on_event(receive_at(0));
    rig.send(1, Message::put(1, 0, 0, 2 << 20));
    rig.until(|rig| rig.counter(0, "bytes_received") > 0);

    rig.start(1, |_| panic!("the program is broken"));
    rig.until(|rig| rig.scripts[0].received() == [TransferStatus::Cut]);
    assert_eq!(rig.counter(0, "streams"), 0);
    check_halted(&mut rig);
}

#[test]
fn receiver_that_halts_in_the_middle_stalls_no_link() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[3], Options::default());
    // No destination: the message waits in the reception FIFO.
    rig.send(0, Message::put(1, 1, 0, 2 << 20));
    rig.until(|rig| rig.scripts[1].count(|event| matches!(event, Event::Header { .. })) == 1);
    rig.settle();
    assert!(rig.scripts[0].transmitted().is_empty());

    rig.start(1, |_| panic!("the program is broken"));
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);
    check_halted(&mut rig);
    check_reset(&mut rig);
}

#[test]
fn reset_of_a_running_firmware_begins_a_new_incarnation() {
    for mode in BOTH {
        let mut rig = Rig::new(mode, &[3], Options::default());
        rig.kernels[0].write(0, &pattern(5, 100_000));
        check_reset(&mut rig);
        let attachment_id = rig.kernels[1].client.attachment;
        assert_eq!(attachment_id, AttachmentId(KERNEL));
    }
}
