//! Resets, in the middle of a transfer too, and new drivers.

use nicforge_test_body::body;
use nicforge_virtio_net::registers::*;

use super::{
    CREDITS, DIRECT, MACHINE,
    driver::{ALL, ENTRIES, LEAST, Nic, reset},
    frame, mac,
};
use crate::backing::Rig;

/// Sends frames as long as there is room for them, without waiting for any.
fn fill_queue(nic: &mut Nic) {
    for seed in 0..usize::from(ENTRIES) {
        nic.send(&frame(mac(1), mac(0), 1000, seed));
    }
}

/// Sends a frame each way and receives it.
fn exchange(a: &mut Nic, b: &mut Nic) {
    for seed in 0..3 {
        let to_b = frame(mac(1), mac(0), 100 + seed, seed);
        a.send(&to_b);
        assert_eq!(b.receive().1, to_b);
        let to_a = frame(mac(0), mac(1), 1500 - seed, seed);
        b.send(&to_a);
        assert_eq!(a.receive().1, to_a);
    }
}

/// A driver that resets the device in the middle of a transfer sets it up again, with the same
/// features and with others.
#[body(on(MACHINE, DIRECT))]
pub fn a_reset_during_a_transfer_reinitialises_the_device(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));

    for features in [ALL, LEAST, ALL & !feature::EVENT_INDEX, ALL] {
        fill_queue(&mut sender);
        sender = sender.restart(features);
        receiver.drain(rig);
        exchange(&mut sender, &mut receiver);
        assert_eq!(sender.features, features);

        fill_queue(&mut sender);
        receiver = receiver.restart(features);
        receiver.drain(rig);
        sender.finish_sending();
        receiver.drain(rig);
        exchange(&mut sender, &mut receiver);
    }
}

/// A function-level reset is a reset of the device, and so is one by the operator.
#[body]
pub fn resets_of_the_function_reinitialise_the_device(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));

    fill_queue(&mut sender);
    sender.device.reset().unwrap();
    assert_eq!(sender.status(), 0);
    sender = sender.restart(ALL);
    receiver.drain(rig);
    exchange(&mut sender, &mut receiver);

    fill_queue(&mut sender);
    rig.reset("en0");
    assert_eq!(sender.status(), 0);
    sender = sender.restart(ALL);
    receiver.drain(rig);
    exchange(&mut sender, &mut receiver);
}

/// The next driver finds the device as after power-on.
#[body]
pub fn the_next_driver_finds_nothing_of_the_last(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    exchange(&mut sender, &mut receiver);
    fill_queue(&mut sender);
    drop(sender);

    let device = rig.open("en0", "user0");
    let bar = device.bar(BAR).unwrap();
    assert_eq!(bar.read8(common::STATUS).unwrap(), 0);
    assert_eq!(bar.read16(common::QUEUE_ENABLE).unwrap(), 0);
    assert_eq!(bar.read16(common::CONFIG_VECTOR).unwrap(), NO_VECTOR);

    receiver.drain(rig);
    let mut sender = Nic::start(device, ALL);
    exchange(&mut sender, &mut receiver);
}

/// A device without a driver takes its frames off the link, so that they hold up no sender.
#[body(on(DIRECT))]
pub fn a_device_without_a_driver_drops_its_frames(rig: &dyn Rig) {
    let mut sender = Nic::open(rig, "en0", ALL);

    for seed in 0..4 * CREDITS as usize {
        sender.send(&frame(mac(1), mac(0), 60, seed));
    }
    sender.finish_sending();
    rig.settle();

    assert_eq!(rig.counter("en1", "no_driver"), u64::from(4 * CREDITS));
}

/// Before `DRIVER_OK` the device touches no buffer.
#[body]
pub fn no_buffer_is_used_before_driver_ok(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    exchange(&mut sender, &mut receiver);
    let sent = rig.counter("en0", "sent");

    reset(&sender.device, &sender.bar);
    sender.send(&frame(mac(1), mac(0), 60, 0));
    sender.notify(TRANSMIT);
    rig.settle();

    assert_eq!(rig.counter("en0", "sent"), sent);
    assert_eq!(sender.status(), 0);
}
