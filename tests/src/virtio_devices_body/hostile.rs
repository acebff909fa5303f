//! Drivers that break the rules of their queues. The device reports that it needs a reset, and
//! works after it; other devices continue.

use nicforge_test_body::body;
use nicforge_virtio::registers::*;

use super::{
    MACHINE,
    driver::{ALL, Piece, Virtio},
};
use crate::{
    backing::{Rig, test_deadline},
    virtio_body::driver::{AVAILABLE, DriverQueue, ENTRIES, INDIRECT, NEXT, TABLES, WRITE},
};

/// An address without memory: the driver library allocates addresses from 1 MiB to 512 GiB.
pub(super) const NOWHERE: u64 = 1 << 40;
/// The devices, with a queue of each that the device looks at when it is notified.
const QUEUES: [(&str, usize); 3] = [("rng0", 0), ("disk0", 0), ("con0", 1)];

/// A device whose driver breaks the rules of a queue again and again, and another one.
struct Victim<'a> {
    rig: &'a dyn Rig,
    name: &'static str,
    queue: usize,
    driver: Option<Virtio>,
    other: Virtio,
}

impl<'a> Victim<'a> {
    /// Opens a device by its name and the number of the queue to break, and the other device.
    fn open(rig: &'a dyn Rig, (name, queue): (&'static str, usize)) -> Self {
        let (driver, other) = (Some(Virtio::open(rig, name)), Virtio::open(rig, "disk1"));
        Self { rig, name, queue, driver, other }
    }

    /// Changes the queue by `change`, which offers an invalid buffer. The device reports that it
    /// needs a reset, and works after it. The other device continues.
    fn break_by(&mut self, change: impl FnOnce(&mut DriverQueue)) {
        let mut driver = self.driver.take().expect("each break puts it back");
        let changed = driver.device.interrupt(0).unwrap();
        let errors = self.rig.counter(self.name, "queue_errors");

        change(&mut driver.queues[self.queue]);
        driver.notify(self.queue);
        driver.wait_for_failure();
        changed.wait(test_deadline(), None).unwrap();
        assert_eq!(self.rig.counter(self.name, "queue_errors"), errors + 1);
        assert_eq!(self.other.status() & status::NEEDS_RESET, 0);

        let mut driver = driver.restart(ALL);
        self.check_works(&mut driver);
        self.driver = Some(driver.restart(ALL));
    }

    /// Checks that the device returns a buffer.
    fn check_works(&self, driver: &mut Virtio) {
        // A request for the disk's name.
        let header = [[8, 0, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
        let pieces: &[Piece<'_>] = match self.name {
            "rng0" => &[Piece::In(64)],
            "con0" => &[Piece::Out(b"works")],
            _ => &[Piece::Out(&header), Piece::In(21)],
        };
        let head = driver.submit(self.queue, pieces);
        assert_eq!(driver.wait_used(self.queue).0, head);
    }

    /// Returns the flag of the direction that the first piece of a buffer may have.
    fn direction(&self) -> u16 {
        if self.name == "rng0" { WRITE } else { 0 }
    }
}

/// A chain without an end, also in an indirect table, and a descriptor outside its table make the
/// device report that it needs a reset.
#[body]
pub fn chains_without_an_end_need_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        let mut victim = Victim::open(rig, of);
        let flags = victim.direction();
        for next in [0, 1, ENTRIES, u16::MAX] {
            victim.break_by(|queue| {
                let buffer = queue.first_buffer();
                queue.offer_chain(&[(buffer, 16, flags | NEXT, next), (buffer, 16, flags | NEXT, 0)]);
            });
        }
        victim.break_by(|queue| {
            let (table, buffer) = (queue.memory.iova() + TABLES, queue.first_buffer());
            queue.put_descriptor(TABLES, buffer, 8, flags | NEXT, 1);
            queue.put_descriptor(TABLES + 16, buffer, 8, flags | NEXT, 0);
            queue.offer_chain(&[(table, 32, INDIRECT, 0)]);
        });
        victim.break_by(|queue| {
            queue.offer(ENTRIES);
        });
    }
}

/// An indirect table that names itself, has no whole descriptors, or does not lie in memory makes
/// the device report that it needs a reset.
#[body]
pub fn bad_indirect_tables_need_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        let mut victim = Victim::open(rig, of);
        for length in [0, 15, 16 * 65_536] {
            victim.break_by(|queue| {
                let table = queue.memory.iova() + TABLES;
                queue.offer_chain(&[(table, length, INDIRECT, 0)]);
            });
        }
        victim.break_by(|queue| {
            let table = queue.memory.iova() + TABLES;
            queue.put_descriptor(TABLES, table, 16, INDIRECT, 0);
            queue.offer_chain(&[(table, 16, INDIRECT, 0)]);
        });
        victim.break_by(|queue| queue.offer_chain(&[(NOWHERE, 32, INDIRECT, 0)]));
    }
}

/// A piece without bytes, of the wrong direction, or outside the driver's memory makes the device
/// report that it needs a reset.
#[body]
pub fn bad_pieces_need_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        let mut victim = Victim::open(rig, of);
        let flags = victim.direction();
        victim.break_by(|queue| queue.offer_chain(&[(queue.first_buffer(), 0, flags, 0)]));
        for address in [NOWHERE, u64::MAX - 8, 0] {
            victim.break_by(|queue| {
                queue.offer_chain(&[(address, 64, flags | NEXT, 1), (queue.first_buffer(), 64, WRITE, 0)])
            });
        }
        // For a disk the device's part must not come first.
        victim.break_by(|queue| {
            let buffer = queue.first_buffer();
            queue.offer_chain(&[(buffer, 64, WRITE | NEXT, 1), (buffer, 64, 0, 0)]);
        });
        victim.break_by(|queue| {
            let end = queue.memory.iova() + queue.memory.len();
            queue.offer_chain(&[(end - 8, 16, flags | NEXT, 1), (queue.first_buffer(), 64, WRITE, 0)]);
        });
    }
}

/// The driver offers no more buffers than the queue has entries.
#[body]
pub fn a_jump_of_the_index_needs_a_reset(rig: &dyn Rig) {
    for of in QUEUES {
        let mut victim = Victim::open(rig, of);
        for jump in [ENTRIES + 1, 1 << 15] {
            victim.break_by(|queue| queue.store16(AVAILABLE + 2, jump));
        }
    }
}

/// A disk's request has a header and a place for the status, and its data lies in memory.
#[body]
pub fn requests_without_header_or_status_need_a_reset(rig: &dyn Rig) {
    let mut victim = Victim::open(rig, ("disk0", 0));
    let own_header = |queue: &DriverQueue, kind: u8| {
        queue.memory.write(DriverQueue::slot(0), &[&[kind][..], &[0; 15]].concat()).unwrap();
        queue.first_buffer()
    };

    victim.break_by(|queue| queue.offer_chain(&[(queue.first_buffer(), 16, 0, 0)]));
    victim.break_by(|queue| queue.offer_chain(&[(queue.first_buffer(), 1, WRITE, 0)]));
    victim.break_by(|queue| {
        let buffer = queue.first_buffer();
        queue.offer_chain(&[(buffer, 15, NEXT, 1), (buffer, 1, WRITE, 0)]);
    });

    // Data to write lies nowhere, and so does the room for data to read, and that for the status.
    victim.break_by(|queue| {
        let buffer = own_header(queue, 1);
        queue.offer_chain(&[(buffer, 16, NEXT, 1), (NOWHERE, 512, NEXT, 2), (buffer + 100, 1, WRITE, 0)]);
    });
    for broken in [1, 2] {
        victim.break_by(|queue| {
            let buffer = own_header(queue, 0);
            let address = |number| if number == broken { NOWHERE } else { buffer + 100 };
            queue.offer_chain(&[
                (buffer, 16, NEXT, 1),
                (address(1), 512, WRITE | NEXT, 2),
                (address(2), 1, WRITE, 0),
            ]);
        });
    }
}

/// A device reads its rings when it is notified, and not before: firmware that leaves its rings to
/// other data does no harm.
#[body]
pub fn rings_are_read_after_a_notification(rig: &dyn Rig) {
    for (name, queue) in QUEUES {
        let mut driver = Virtio::open(rig, name);
        if name == "rng0" {
            // The device also reads its ring when random bytes arrive. No other bytes are
            // outstanding here.
            driver.submit(queue, &[Piece::In(1)]);
            driver.wait_used(queue);
        }
        rig.settle();
        driver.queues[queue].store16(AVAILABLE + 2, 1 << 15);
        for _ in 0..3 {
            assert_eq!(driver.status() & status::NEEDS_RESET, 0, "{name}");
            rig.settle();
        }
        driver.notify(queue);
        driver.wait_for_failure();
    }
}
