//! Drivers that break the rules of their queues. The device reports that it needs a reset, and
//! works after it; other devices continue.

use nicforge_test_body::body;
use nicforge_virtio_net::registers::*;

use super::{
    LONGEST, MACHINE,
    driver::{
        ALL, AVAILABLE, DriverQueue, ENTRIES, INDIRECT, NEXT, Nic, SLOT, TABLES, WRITE, add_status, negotiate,
    },
    frame, mac,
};
use crate::backing::{Rig, test_deadline};

/// An address without memory: the driver library allocates addresses from 1 MiB to 512 GiB.
const NOWHERE: u64 = 1 << 40;
/// Vector of configuration changes.
const CONFIG: u32 = 0;

/// Changes the transmit queue by `change`, which offers an invalid buffer. The device reports that
/// it needs a reset, and works after it. Traffic of others continues.
fn break_transmit(rig: &dyn Rig, change: impl Fn(&mut DriverQueue)) {
    break_queue(rig, |nic, _| {
        change(&mut nic.transmit);
        nic.notify(TRANSMIT);
    });
}

/// As [`break_transmit`], for either queue. `change` also gets a device that works.
fn break_queue(rig: &dyn Rig, change: impl Fn(&mut Nic, &mut Nic)) {
    let mut victim = Nic::open(rig, "en0", ALL);
    let (mut other, mut third) = (Nic::open(rig, "en1", ALL), Nic::open(rig, "en2", ALL));
    let changed = victim.device.interrupt(CONFIG).unwrap();
    let errors = rig.counter("en0", "queue_errors");

    change(&mut victim, &mut other);
    victim.wait_for_failure();
    changed.wait(test_deadline(), None).unwrap();

    assert_eq!(rig.counter("en0", "queue_errors"), errors + 1);
    assert_eq!((other.status() | third.status()) & status::NEEDS_RESET, 0);
    third.drain(rig);
    let sent = frame(mac(2), mac(1), 200, 1);
    other.send(&sent);
    assert_eq!(third.receive().1, sent);

    let mut victim = victim.restart(ALL);
    let sent = frame(mac(1), mac(0), LONGEST, 2);
    victim.send(&sent);
    let (_, received) = other.receive();
    assert_eq!(received, sent);
}

/// Two descriptors that follow each other have no end.
#[body]
pub fn a_loop_of_descriptors_needs_a_reset(rig: &dyn Rig) {
    break_transmit(rig, |queue| {
        let buffer = queue.first_buffer();
        queue.offer_chain(&[(buffer, 1, NEXT, 1), (buffer, 1, NEXT, 0)]);
    });
}

/// A descriptor that follows itself has no end.
#[body]
pub fn a_descriptor_that_follows_itself_needs_a_reset(rig: &dyn Rig) {
    break_transmit(rig, |queue| {
        let buffer = queue.first_buffer();
        queue.offer_chain(&[(buffer, 64, NEXT, 0)]);
    });
}

/// No descriptor lies after the table, neither the first of a buffer nor a later one.
#[body]
pub fn a_descriptor_outside_the_table_needs_a_reset(rig: &dyn Rig) {
    for next in [ENTRIES, u16::MAX] {
        break_transmit(rig, |queue| {
            let buffer = queue.first_buffer();
            queue.offer_chain(&[(buffer, 64, NEXT, next)]);
        });
    }
    break_transmit(rig, |queue| {
        queue.offer(ENTRIES);
    });
}

/// Indirect tables do not nest, and their descriptors may not form a loop either.
#[body]
pub fn a_loop_of_indirect_descriptors_needs_a_reset(rig: &dyn Rig) {
    // A table that names itself, and tables whose entries name each other.
    break_transmit(rig, |queue| {
        let table = queue.memory.iova() + TABLES;
        queue.put_descriptor(TABLES, table, 16, INDIRECT, 0);
        queue.offer_chain(&[(table, 16, INDIRECT, 0)]);
    });
    break_transmit(rig, |queue| {
        let (table, buffer) = (queue.memory.iova() + TABLES, queue.first_buffer());
        queue.put_descriptor(TABLES, buffer, 8, NEXT, 1);
        queue.put_descriptor(TABLES + 16, buffer, 8, NEXT, 0);
        queue.offer_chain(&[(table, 32, INDIRECT, 0)]);
    });
}

/// A buffer has a limited number of descriptors, however long its table is.
#[body]
pub fn a_long_indirect_table_needs_a_reset(rig: &dyn Rig) {
    // More descriptors than a buffer may have, in a table of the greatest length.
    break_transmit(rig, |queue| {
        let buffer = queue.first_buffer();
        for entry in 0..=MAX_CHAIN as u64 {
            queue.put_descriptor(TABLES + 16 * entry, buffer, 1, NEXT, entry as u16 + 1);
        }
        let table = queue.memory.iova() + TABLES;
        queue.offer_chain(&[(table, 16 * 65_535, INDIRECT, 0)]);
    });
}

/// An indirect table has whole descriptors, at most 65,535, and lies in memory.
#[body]
pub fn a_bad_indirect_table_needs_a_reset(rig: &dyn Rig) {
    for length in [0, 15, 16 * 65_536] {
        break_transmit(rig, |queue| {
            let table = queue.memory.iova() + TABLES;
            queue.offer_chain(&[(table, length, INDIRECT, 0)]);
        });
    }
    break_transmit(rig, |queue| queue.offer_chain(&[(NOWHERE, 32, INDIRECT, 0)]));
}

/// A buffer lies in memory of the driver as a whole.
#[body]
pub fn memory_that_is_not_the_drivers_needs_a_reset(rig: &dyn Rig) {
    for address in [NOWHERE, u64::MAX - 8, 0] {
        break_transmit(rig, |queue| queue.offer_chain(&[(address, 100, 0, 0)]));
    }
    // The buffer begins in memory and ends outside.
    break_transmit(rig, |queue| {
        let end = queue.memory.iova() + queue.memory.len();
        queue.offer_chain(&[(end - 50, 100, 0, 0)]);
    });
}

/// A buffer has a header at least, and no more than the longest frame of virtio.
#[body]
pub fn a_buffer_of_a_wrong_length_needs_a_reset(rig: &dyn Rig) {
    // No bytes, less than a header, and more than any frame, also in pieces.
    for length in [0, 1, FRAME_HEADER as u32 - 1, MAX_SEND as u32 + 1, u32::MAX] {
        break_transmit(rig, |queue| {
            let buffer = queue.first_buffer();
            queue.offer_chain(&[(buffer, length, 0, 0)]);
        });
    }
    break_transmit(rig, |queue| {
        let buffer = queue.first_buffer();
        queue.offer_chain(&[
            (buffer, u32::MAX, NEXT, 1),
            (buffer, u32::MAX, NEXT, 2),
            (buffer, u32::MAX, 0, 0),
        ]);
    });
}

/// A frame to send lies in memory that the device reads.
#[body]
pub fn a_buffer_of_the_wrong_direction_needs_a_reset(rig: &dyn Rig) {
    break_transmit(rig, |queue| {
        let buffer = queue.first_buffer();
        queue.offer_chain(&[(buffer, 100, WRITE, 0)]);
    });
}

/// The driver offers no more buffers than the queue has entries.
#[body]
pub fn a_jump_of_the_index_needs_a_reset(rig: &dyn Rig) {
    for jump in [ENTRIES + 1, u16::MAX, 1 << 15] {
        break_transmit(rig, |queue| queue.store16(AVAILABLE + 2, jump));
    }
}

/// The receive queue has the same rules. The device reads it when a frame arrives.
#[body]
pub fn bad_receive_buffers_need_a_reset(rig: &dyn Rig) {
    let receive = |change: &dyn Fn(&mut DriverQueue)| {
        break_queue(rig, |nic, other| {
            change(&mut nic.receive);
            other.send(&frame(mac(0), mac(1), 60, 0));
        });
    };

    // The driver has offered all entries in order.
    let first = 0;
    receive(&|queue| queue.put(first, queue.first_buffer(), SLOT as u32, 0, 0));
    receive(&|queue| queue.put(first, NOWHERE, SLOT as u32, WRITE, 0));
    receive(&|queue| queue.put(first, queue.first_buffer(), 4, WRITE | NEXT, first));
    receive(&|queue| queue.store16(AVAILABLE + 2, 3 * ENTRIES));
}

/// The layout of a queue is checked when it is enabled, and its addresses when it is used.
#[body]
pub fn a_queue_of_a_wrong_shape_needs_a_reset(rig: &dyn Rig) {
    let expect_failure = |entries: u16, register: u64, address: Option<u64>| {
        let device = rig.open("en0", "user0");
        let bar = device.bar(BAR).unwrap();
        negotiate(&device, &bar, ALL);

        bar.write16(common::QUEUE_SELECT, TRANSMIT as u16).unwrap();
        bar.write16(common::QUEUE_SIZE, entries).unwrap();
        if let Some(address) = address {
            bar.write32(register, address as u32).unwrap();
            bar.write32(register + 4, (address >> 32) as u32).unwrap();
        }
        bar.write16(common::QUEUE_ENABLE, 1).unwrap();
        add_status(&bar, status::DRIVER_OK);
        bar.write16(NOTIFY + u64::from(NOTIFY_STRIDE), 1).unwrap();

        let failed = || bar.read8(common::STATUS).unwrap() & status::NEEDS_RESET != 0;
        device.wait_until(test_deadline(), None, failed).unwrap();
    };

    for entries in [0, 3, 2 * MAX_QUEUE_SIZE, u16::MAX] {
        expect_failure(entries, 0, None);
    }
    for (register, address) in [
        (common::QUEUE_DESCRIPTORS, 8),
        (common::QUEUE_DRIVER, 1),
        (common::QUEUE_DEVICE, 2),
        (common::QUEUE_DRIVER, NOWHERE),
        (common::QUEUE_DRIVER, u64::MAX - 1),
    ] {
        expect_failure(ENTRIES, register, Some(address));
    }
}

/// Memory that only messages reach is refused, and so is a queue in it.
#[body]
pub fn memory_that_only_messages_reach_needs_a_reset(rig: &dyn Rig) {
    break_queue(rig, |nic, _| {
        let private = nic.device.private_dma_buffer(4096).unwrap();
        nic.transmit.offer_chain(&[(private.iova(), 100, 0, 0)]);
        nic.notify(TRANSMIT);
        nic.wait_for_failure();
    });
}

/// A queue that the driver has not enabled is no error: it has no buffers.
#[body]
pub fn a_queue_may_stay_disabled(rig: &dyn Rig) {
    let mut sender = Nic::open(rig, "en1", ALL);
    let device = rig.open("en0", "user0");
    let bar = device.bar(BAR).unwrap();
    negotiate(&device, &bar, ALL);
    add_status(&bar, status::DRIVER_OK);

    sender.send(&frame(mac(0), mac(1), 60, 0));
    bar.write16(NOTIFY, 0).unwrap();
    sender.finish_sending();
    rig.settle();

    assert_eq!(bar.read8(common::STATUS).unwrap() & status::NEEDS_RESET, 0);
}

/// The device sends the frame, and then reports that it needs a reset, because it can't write the
/// used ring.
#[body]
pub fn an_unmapped_used_ring_makes_the_device_report_that_it_needs_a_reset(rig: &dyn Rig) {
    let (mut victim, mut other) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    negotiate(&victim.device, &victim.bar, ALL);
    let rings = victim.transmit.memory.iova();
    victim.bar.write16(common::QUEUE_SELECT, TRANSMIT as u16).unwrap();
    victim.bar.write16(common::QUEUE_SIZE, ENTRIES).unwrap();
    for (register, address) in [
        (common::QUEUE_DESCRIPTORS, rings),
        (common::QUEUE_DRIVER, rings + AVAILABLE),
        (common::QUEUE_DEVICE, NOWHERE),
    ] {
        victim.bar.write32(register, address as u32).unwrap();
        victim.bar.write32(register + 4, (address >> 32) as u32).unwrap();
    }
    victim.bar.write16(common::QUEUE_ENABLE, 1).unwrap();
    victim.set_status(status::DRIVER_OK);

    let sent = frame(mac(1), mac(0), 60, 0);
    victim.send(&sent);

    victim.wait_for_failure();
    let (_, received) = other.receive();
    assert_eq!(received, sent);
}
