//! Interrupts and notifications, and asking for none.

use std::time::Duration;

use nicforge_driver::Deadline;
use nicforge_test_body::body;
use nicforge_virtio_net::registers::*;

use super::{
    LINKS, MACHINE,
    driver::{ALL, ENTRIES, LEAST, Nic, USED},
    frame, mac,
};
use crate::backing::{Rig, test_deadline};

/// Long enough that only an event that does not come exceeds it.
const SHORT: Duration = Duration::from_millis(20);
/// Vector of the receive queue.
const RECEIVED: u32 = RECEIVE as u32 + 1;
/// Vector of the transmit queue.
const SENT: u32 = TRANSMIT as u32 + 1;

/// Each queue interrupts by its own vector.
#[body]
pub fn each_queue_has_its_vector(rig: &dyn Rig) {
    for features in [LEAST, ALL] {
        let (mut sender, mut receiver) = (Nic::open(rig, "en0", features), Nic::open(rig, "en1", features));
        let sent = sender.device.interrupt(SENT).unwrap();
        let received = receiver.device.interrupt(RECEIVED).unwrap();
        let of_others =
            [sender.device.interrupt(RECEIVED).unwrap(), receiver.device.interrupt(SENT).unwrap()];

        for number in 0..3 {
            sender.transmit.ask_for_interrupt(Some(number));
            receiver.receive.ask_for_interrupt(Some(number));
            sender.send(&frame(mac(1), mac(0), 60, 0));

            sent.wait(test_deadline(), None).unwrap();
            received.wait(test_deadline(), None).unwrap();
            receiver.receive();
            sender.finish_sending();
        }
        assert_eq!(of_others.map(|interrupt| interrupt.take()), [0, 0]);
    }
}

/// A driver that asks for no interrupts gets none, by the flag and by the index.
#[body]
pub fn interrupts_are_suppressed(rig: &dyn Rig) {
    for features in [LEAST, ALL] {
        let (mut sender, mut receiver) = (Nic::open(rig, "en0", features), Nic::open(rig, "en1", features));
        let received = receiver.device.interrupt(RECEIVED).unwrap();
        receiver.receive.ask_for_interrupt(None);

        for _ in 0..3 {
            sender.send(&frame(mac(1), mac(0), 60, 0));
            receiver.receive();
        }
        rig.settle();

        assert_eq!(received.take(), 0);
    }
}

/// With the index, the interrupt comes with the buffer that the driver names, and not before.
#[body]
pub fn the_event_index_selects_one_later_interrupt(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let received = receiver.device.interrupt(RECEIVED).unwrap();
    receiver.receive.ask_for_interrupt(Some(2));

    for number in 0..5 {
        sender.send(&frame(mac(1), mac(0), 60, 0));
        receiver.receive();
        rig.settle();

        assert_eq!(received.take(), u64::from(number == 2), "frame {number}");
    }
}

/// Without vectors the device interrupts by INTx. A read of the status tells why, and ends it.
#[body]
pub fn a_device_without_vectors_interrupts_by_intx(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", LEAST), Nic::open(rig, "en1", LEAST));
    let line = receiver.device.intx().unwrap();
    receiver.bar.write16(common::QUEUE_SELECT, RECEIVE as u16).unwrap();
    receiver.bar.write16(common::QUEUE_VECTOR, NO_VECTOR).unwrap();

    for _ in 0..2 {
        sender.send(&frame(mac(1), mac(0), 60, 0));
        line.wait(test_deadline(), None).unwrap();
        assert_eq!(receiver.bar.read8(ISR).unwrap(), isr::QUEUE);
        assert_eq!(receiver.bar.read8(ISR).unwrap(), 0);
        line.unmask().unwrap();
        receiver.receive();
    }

    assert!(line.wait(Deadline::after(SHORT), None).is_err());
}

/// After some time without work, the device asks for a notification of the next frame.
#[body]
pub fn an_idle_device_asks_for_notifications(rig: &dyn Rig) {
    for features in [LEAST, ALL] {
        let (mut sender, mut receiver) = (Nic::open(rig, "en0", features), Nic::open(rig, "en1", features));
        let before = rig.counter("en0", "notifications");

        for number in 1..=3 {
            sender.send(&frame(mac(1), mac(0), 60, 0));
            receiver.receive();

            // The flag or the index asks again.
            let asks = || match features {
                ALL => sender.transmit.load16(USED + 4 + 8 * u64::from(ENTRIES)) == number,
                _ => sender.transmit.load16(USED) == 0,
            };
            sender.device.wait_until(test_deadline(), None, asks).unwrap();
        }

        assert!(rig.counter("en0", "notifications") - before >= 2);
    }
}

/// A link that goes down or comes up is shown, and reported by the vector of configuration changes.
#[body]
pub fn a_change_of_the_link_is_reported(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let changed = sender.device.interrupt(0).unwrap();
    let bar = sender.bar.clone();
    // The status follows the address in the device's configuration.
    let status = || bar.read16(DEVICE + 6).unwrap();
    assert_eq!(status(), LINK_UP);
    let generation = sender.bar.read8(common::GENERATION).unwrap();

    rig.with_machine(Box::new(|machine| machine.fabric().set_link_up(LINKS[0], false).unwrap()));
    changed.wait(test_deadline(), None).unwrap();
    assert_eq!(status(), 0);
    assert_ne!(sender.bar.read8(common::GENERATION).unwrap(), generation);

    // Without a link a frame is lost, and its buffer comes back.
    sender.send(&frame(mac(1), mac(0), 60, 1));
    sender.finish_sending();
    assert_eq!(rig.counter("en0", "no_link"), 1);

    rig.with_machine(Box::new(|machine| machine.fabric().set_link_up(LINKS[0], true).unwrap()));
    changed.wait(test_deadline(), None).unwrap();
    let sent = frame(mac(1), mac(0), 60, 2);
    sender.send(&sent);
    assert_eq!(receiver.receive().1, sent);
}
