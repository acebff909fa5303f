//! A disk whose companion panics, or waits for a long time.

use std::{
    cell::RefCell,
    io,
    sync::{
        Mutex,
        mpsc::{self, Receiver, Sender},
    },
};

use nicforge_core::machine::Machine;
use nicforge_test_body::body;
use nicforge_virtio_devices::{
    blk::{VirtioBlk, image::SECTOR, registers::IN},
    rng::VirtioRng,
};

use super::{
    blk::{IO_ERROR, OK, header},
    driver::{ALL, Piece, Virtio},
};
use crate::{
    backing::{LIMIT, Rig},
    bodies::{Guests, TestMachine},
};

/// A disk `disk0` with the contents of `Trouble`, and a source of random bytes `rng0`.
pub static TROUBLE: TestMachine = TestMachine {
    name: "virtio_trouble",
    make: machine,
    guests: Guests::None("in a guest, Linux drives the devices with its own drivers"),
};

/// The sector whose read panics.
const PANICS: u64 = 13;
/// The sector whose read waits for the test.
const WAITS: u64 = 14;

thread_local! {
    /// Ends the wait of the machine that this thread has made.
    static RELEASE: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
}

/// Contents of a disk with a sector whose read panics, and one whose read waits.
struct Trouble {
    release: Mutex<Receiver<()>>,
}

impl nicforge_virtio_devices::blk::Store for Trouble {
    fn sectors(&self) -> u64 {
        100
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match offset / SECTOR {
            PANICS => panic!("the companion panics for the test"),
            WAITS => self.release.lock().unwrap().recv_timeout(LIMIT).map_err(io::Error::other)?,
            _ => {}
        }
        out.fill((offset / SECTOR) as u8);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// Returns the machine of [`TROUBLE`].
fn machine() -> Machine {
    let (release, wait) = mpsc::channel();
    RELEASE.set(Some(release));
    let store = Trouble { release: Mutex::new(wait) };

    let mut machine = Machine::new();
    machine.add_function("disk0", Box::new(VirtioBlk::device(store, "trouble"))).unwrap();
    machine.add_function("rng0", Box::new(VirtioRng::device())).unwrap();
    machine
}

/// Offers a read of one sector.
fn offer(disk: &mut Virtio, sector: u64) -> u16 {
    disk.submit(0, &[Piece::Out(&header(IN, sector)), Piece::In(512), Piece::In(1)])
}

/// Waits for the next answer. Returns its head and status.
fn wait_for_answer(disk: &mut Virtio) -> (u16, u8) {
    let (head, _) = disk.wait_used(0);
    let status = disk.piece(0, head, 2, 1)[0];
    disk.free(0, head);
    (head, status)
}

/// The requests of a companion that panicked fail, and so do further ones until the driver resets
/// the device.
#[body(on(TROUBLE))]
pub fn requests_fail_while_the_companion_is_halted(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    for _ in 0..3 {
        let head = offer(&mut disk, 1);
        assert_eq!(wait_for_answer(&mut disk), (head, OK));

        offer(&mut disk, PANICS);
        offer(&mut disk, 2);
        assert_eq!([wait_for_answer(&mut disk).1, wait_for_answer(&mut disk).1], [IO_ERROR; 2]);
        let head = offer(&mut disk, 1);
        assert_eq!(wait_for_answer(&mut disk), (head, IO_ERROR));
        disk = disk.restart(ALL);
    }
    assert_eq!(rig.counter("disk0", "queue_errors"), 0);
}

/// A disk that waits holds up neither the engine nor other devices, and a reset does not wait for
/// it. The next driver gets the answers to its own requests alone.
#[body(on(TROUBLE), not_through(in_process) = "a stepped companion must not wait")]
pub fn a_slow_disk_holds_up_only_its_own_driver(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    offer(&mut disk, WAITS);
    for number in 0..18 {
        offer(&mut disk, number % 10);
    }

    let mut rng = Virtio::open(rig, "rng0");
    for _ in 0..5 {
        let head = rng.submit(0, &[Piece::In(500)]);
        assert_eq!(rng.wait_used(0).0, head);
    }
    assert_eq!(disk.queues[0].take_used(), None);

    let mut disk = disk.restart(ALL);
    let head = offer(&mut disk, 3);
    assert_eq!(disk.queues[0].take_used(), None);
    RELEASE.with_borrow(|release| release.as_ref().unwrap().send(()).unwrap());
    assert_eq!(wait_for_answer(&mut disk), (head, OK));
    assert_eq!(disk.queues[0].take_used(), None);
}
