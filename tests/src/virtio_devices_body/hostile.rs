//! Drivers that break the rules of their queues. The device needs a reset, says so, and works after
//! it; other devices go on.

use nicforge_test_body::body;
use nicforge_virtio::registers::*;

use super::{
    MACHINE,
    driver::{ALL, Piece, Virtio},
};
use crate::{
    backing::{Rig, soon},
    virtio_body::driver::{AVAILABLE, DriverQueue, ENTRIES, INDIRECT, NEXT, TABLES, WRITE},
};

/// An address without memory: the driver library allocates addresses from 1 MiB to 512 GiB.
const NOWHERE: u64 = 1 << 40;
/// The devices, with a queue of each that the device looks at when it is notified.
const QUEUES: [(&str, usize); 3] = [("rng0", 0), ("disk0", 0), ("con0", 1)];

/// A descriptor: address, length, flags and next.
type Descriptor = (u64, u32, u16, u16);

/// Changes a queue by `change`, which offers what it likes. The device reports that it needs a
/// reset, and works after it. Another device goes on.
fn break_queue(rig: &dyn Rig, (name, queue): (&str, usize), change: impl Fn(&mut DriverQueue)) {
    let mut victim = Virtio::open(rig, name);
    let changed = victim.device.interrupt(0).unwrap();
    let errors = rig.counter(name, "queue_errors");

    change(&mut victim.queues[queue]);
    victim.notify(queue);
    victim.wait_for_failure();
    changed.wait(soon(), None).unwrap();
    assert_eq!(rig.counter(name, "queue_errors"), errors + 1);

    let other = Virtio::open(rig, "disk1");
    assert_eq!(other.status() & status::NEEDS_RESET, 0);
    works(victim.restart(ALL), name);
}

/// Checks that a device returns a buffer.
fn works(mut device: Virtio, name: &str) {
    let header = [[8, 0, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    let (queue, pieces): (_, &[Piece<'_>]) = match name {
        "rng0" => (0, &[Piece::In(64)]),
        "con0" => (1, &[Piece::Out(b"works")]),
        _ => (0, &[Piece::Out(&header), Piece::In(21)]),
    };
    let head = device.submit(queue, pieces);
    assert_eq!(device.wait_used(queue).0, head);
}

/// Offers entry 0 with these descriptors.
fn offer(queue: &mut DriverQueue, descriptors: &[Descriptor]) {
    for (index, &(iova, length, flags, next)) in descriptors.iter().enumerate() {
        queue.put(index as u16, iova, length, flags, next);
    }
    queue.offer(0);
}

/// Returns the address of a buffer of the queue's own.
fn own(queue: &DriverQueue) -> u64 {
    queue.memory.iova() + DriverQueue::slot(0)
}

/// Returns the flag of the direction that buffers of a device may have.
fn direction(name: &str) -> u16 {
    if name == "rng0" { WRITE } else { 0 }
}

/// Chains without an end, also in indirect tables, and descriptors outside their table.
#[body]
pub fn chains_without_an_end_need_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        let flags = direction(of.0);
        for next in [0, 1, ENTRIES, u16::MAX] {
            break_queue(rig, of, |queue| {
                let own = own(queue);
                offer(queue, &[(own, 16, flags | NEXT, next), (own, 16, flags | NEXT, 0)]);
            });
        }
        break_queue(rig, of, |queue| {
            let (table, own) = (queue.memory.iova() + TABLES, own(queue));
            queue.put_descriptor(TABLES, own, 8, flags | NEXT, 1);
            queue.put_descriptor(TABLES + 16, own, 8, flags | NEXT, 0);
            offer(queue, &[(table, 32, INDIRECT, 0)]);
        });
        break_queue(rig, of, |queue| {
            queue.offer(ENTRIES);
        });
    }
}

/// Indirect tables that name themselves, have no whole descriptors, or lie nowhere.
#[body]
pub fn bad_indirect_tables_need_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        for length in [0, 15, 16 * 65_536] {
            break_queue(rig, of, |queue| {
                let table = queue.memory.iova() + TABLES;
                offer(queue, &[(table, length, INDIRECT, 0)]);
            });
        }
        break_queue(rig, of, |queue| {
            let table = queue.memory.iova() + TABLES;
            queue.put_descriptor(TABLES, table, 16, INDIRECT, 0);
            offer(queue, &[(table, 16, INDIRECT, 0)]);
        });
        break_queue(rig, of, |queue| offer(queue, &[(NOWHERE, 32, INDIRECT, 0)]));
    }
}

/// Pieces without bytes, of the wrong direction, or outside the driver's memory.
#[body]
pub fn bad_pieces_need_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        let flags = direction(of.0);
        break_queue(rig, of, |queue| offer(queue, &[(own(queue), 0, flags, 0)]));
        for address in [NOWHERE, u64::MAX - 8, 0] {
            break_queue(rig, of, |queue| {
                offer(queue, &[(address, 64, flags | NEXT, 1), (own(queue), 64, WRITE, 0)])
            });
        }
        // For a disk the device's part must not come first.
        break_queue(rig, of, |queue| {
            let own = own(queue);
            offer(queue, &[(own, 64, WRITE | NEXT, 1), (own, 64, 0, 0)]);
        });
        break_queue(rig, of, |queue| {
            let end = queue.memory.iova() + queue.memory.len();
            offer(queue, &[(end - 8, 16, flags | NEXT, 1), (own(queue), 64, WRITE, 0)]);
        });
    }
}

/// The driver offers no more buffers than the queue has entries.
#[body]
pub fn a_jump_of_the_index_needs_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        for jump in [ENTRIES + 1, 1 << 15] {
            break_queue(rig, of, |queue| queue.store16(AVAILABLE + 2, jump));
        }
    }
}

/// A disk's request has a header and a place for the status, and its data lies in memory.
#[body]
pub fn requests_without_header_or_status_need_a_reset(rig: &dyn Rig) {
    let disk = ("disk0", 0);
    let own_header = |queue: &DriverQueue, kind: u8| {
        queue.memory.write(DriverQueue::slot(0), &[&[kind][..], &[0; 15]].concat()).unwrap();
        own(queue)
    };

    break_queue(rig, disk, |queue| offer(queue, &[(own(queue), 16, 0, 0)]));
    break_queue(rig, disk, |queue| offer(queue, &[(own(queue), 1, WRITE, 0)]));
    break_queue(rig, disk, |queue| {
        let own = own(queue);
        offer(queue, &[(own, 15, NEXT, 1), (own, 1, WRITE, 0)]);
    });

    // Data to write lies nowhere, and so does the room for data to read, and that for the status.
    break_queue(rig, disk, |queue| {
        let own = own_header(queue, 1);
        offer(queue, &[(own, 16, NEXT, 1), (NOWHERE, 512, NEXT, 2), (own + 100, 1, WRITE, 0)]);
    });
    for broken in [1, 2] {
        break_queue(rig, disk, |queue| {
            let own = own_header(queue, 0);
            let place = |number| if number == broken { NOWHERE } else { own + 100 };
            offer(queue, &[(own, 16, NEXT, 1), (place(1), 512, WRITE | NEXT, 2), (place(2), 1, WRITE, 0)]);
        });
    }
}
