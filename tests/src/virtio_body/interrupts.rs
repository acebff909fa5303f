//! Interrupts and notifications, and asking for none.

use std::time::Duration;

use nicforge_driver::{Deadline, Device};
use nicforge_test_body::body;
use nicforge_virtio_net::registers::*;

use super::{
    LINKS, MACHINE,
    driver::{ALL, ENTRIES, LEAST, Nic, USED},
    frame, mac,
    registers::{CAPABILITIES, config, set_config},
};
use crate::backing::{Rig, test_deadline};

/// Long enough that only an event that does not come exceeds it.
const SHORT: Duration = Duration::from_millis(20);
/// Vector of the receive queue.
const RECEIVED: u32 = RECEIVE as u32 + 1;
/// Vector of the transmit queue.
const SENT: u32 = TRANSMIT as u32 + 1;

/// Id of the MSI-X capability. The message control word follows id and pointer.
const MSIX: u8 = 0x11;
/// Bit of the message control word.
const MSIX_ENABLE: u16 = 1 << 15;

/// Sets the message control word of MSI-X.
fn set_msix_control(device: &Device, value: u16) {
    let [mut at] = config(device, CAPABILITIES);
    while at != 0 {
        let [id, next] = config(device, at.into());
        if id == MSIX {
            return set_config(device, u64::from(at) + 2, &value.to_le_bytes());
        }
        at = next;
    }
    panic!("the function has MSI-X");
}

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

/// MSI-X's bit in configuration space decides how the device interrupts, whatever the vectors are:
/// while it is 0, by INTx and the status, and while it is 1, by the vector alone (4.1.5.3.1).
#[body]
pub fn msix_decides_by_its_bit_and_not_by_the_vector(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", LEAST), Nic::open(rig, "en1", LEAST));
    let line = receiver.device.intx().unwrap();
    let received = receiver.device.interrupt(RECEIVED).unwrap();

    for _ in 0..2 {
        // The queue keeps its vector while MSI-X is off.
        set_msix_control(&receiver.device, 0);
        sender.send(&frame(mac(1), mac(0), 60, 0));
        line.wait(test_deadline(), None).unwrap();
        assert_eq!(receiver.bar.read8(ISR).unwrap(), isr::QUEUE);
        line.unmask().unwrap();
        receiver.receive();
        assert_eq!(received.take(), 0);

        set_msix_control(&receiver.device, MSIX_ENABLE);
        sender.send(&frame(mac(1), mac(0), 60, 0));
        received.wait(test_deadline(), None).unwrap();
        assert_eq!(receiver.bar.read8(ISR).unwrap(), 0);
        receiver.receive();
        assert_eq!(line.take(), 0);
    }
}

/// A queue without a vector does not interrupt a driver that uses MSI-X, also not when that turns
/// MSI-X off.
#[body]
pub fn a_queue_without_a_vector_does_not_interrupt_with_msix(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", LEAST), Nic::open(rig, "en1", LEAST));
    let line = receiver.device.intx().unwrap();
    let vectors = [0, RECEIVED, SENT].map(|vector| receiver.device.interrupt(vector).unwrap());
    set_msix_control(&receiver.device, MSIX_ENABLE);
    receiver.bar.write16(common::QUEUE_SELECT, RECEIVE as u16).unwrap();
    receiver.bar.write16(common::QUEUE_VECTOR, NO_VECTOR).unwrap();

    sender.send(&frame(mac(1), mac(0), 60, 0));
    receiver.receive();
    set_msix_control(&receiver.device, 0);
    rig.settle();

    assert_eq!(receiver.bar.read8(ISR).unwrap(), 0);
    assert_eq!(vectors.map(|vector| vector.take()), [0, 0, 0]);
    assert_eq!(line.take(), 0);
}

/// A change of the configuration sets its bit of the status with MSI-X too (4.1.4.5.1), and so does
/// an error of the device.
#[body]
pub fn changes_of_the_configuration_are_in_the_status_with_msix(rig: &dyn Rig) {
    for enable in [0, MSIX_ENABLE] {
        let mut nic = Nic::open(rig, "en0", ALL);
        let changed = nic.device.interrupt(0).unwrap();
        set_msix_control(&nic.device, enable);

        for up in [false, true] {
            rig.with_machine(Box::new(move |machine| machine.fabric().set_link_up(LINKS[0], up).unwrap()));
            changed.wait(test_deadline(), None).unwrap();
            assert_eq!(nic.bar.read8(ISR).unwrap(), isr::CONFIG);
            assert_eq!(nic.bar.read8(ISR).unwrap(), 0);
        }

        // A descriptor of no bytes.
        nic.transmit.offer_chain(&[(0, 0, 0, 0)]);
        nic.notify(TRANSMIT);
        changed.wait(test_deadline(), None).unwrap();
        assert_eq!(nic.bar.read8(ISR).unwrap(), isr::CONFIG);
        assert_ne!(nic.status() & status::NEEDS_RESET, 0);
    }
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
