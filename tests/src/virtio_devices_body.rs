//! Test bodies of the virtio devices beside the network device: random bytes, disks, a console.
//!
//! Each body gets a machine of its own behind some door. The far end of its console is a socket
//! that the body connects to (`open_host_end`).

pub mod blk;
pub mod console;
mod driver;
pub mod halts;
pub mod hostile;
pub mod rng;

use std::{cell::RefCell, io::Write, os::unix::net::UnixStream, time::Duration};

use nicforge_core::machine::Machine;
use nicforge_virtio_devices::{
    blk::{
        VirtioBlk,
        image::{Access, CLUSTER, Image, SECTOR},
    },
    console::{VirtioConsole, line::Line},
    rng::VirtioRng,
};
use tempfile::{NamedTempFile, TempDir};

use crate::{
    backing::LIMIT,
    bodies::{Guests, TestMachine},
};

/// A source of random bytes `rng0`, a disk `disk0` that keeps changes apart, a disk `disk1` that is
/// read only, and a console `con0`.
pub static MACHINE: TestMachine = TestMachine {
    name: "virtio_devices",
    make: machine,
    guests: Guests::None("in a guest, Linux drives the devices with its own drivers"),
};

/// Sectors of each disk. The last cluster is a short one.
const SECTORS: u64 = 1001;
/// Clusters that may change on `disk0`.
const CHANGES: u64 = 40;

thread_local! {
    /// The folder with the socket of this test's console. A test makes its machine on its own
    /// thread.
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Returns the content of a sector.
fn sector(number: u64) -> Vec<u8> {
    (0..SECTOR).map(|at| (at ^ number.wrapping_mul(37) ^ (number >> 3)) as u8).collect()
}

/// Returns the contents of a disk: a file with [`SECTORS`] sectors.
fn disk(access: Access) -> Image {
    let mut file = NamedTempFile::new().unwrap();
    for number in 0..SECTORS {
        file.write_all(&sector(number)).unwrap();
    }
    Image::open(file.path(), access).unwrap()
}

/// Returns the machine of [`MACHINE`].
pub fn machine() -> Machine {
    let folder = TempDir::new().unwrap();
    let line = Line::listen(&folder.path().join("con0")).unwrap();
    FOLDER.set(Some(folder));

    let changing = disk(Access::CopyOnWrite { limit: CHANGES * CLUSTER });
    let mut machine = Machine::new();
    machine.add_function("rng0", Box::new(VirtioRng::device())).unwrap();
    machine.add_function("disk0", Box::new(VirtioBlk::device(changing, "nicforge-disk0"))).unwrap();
    machine.add_function("disk1", Box::new(VirtioBlk::device(disk(Access::ReadOnly), ""))).unwrap();
    machine.add_function("con0", Box::new(VirtioConsole::device(line))).unwrap();
    machine
}

/// Connects to the console of this test's machine.
fn open_host_end() -> UnixStream {
    FOLDER.with_borrow(|folder| {
        let folder = folder.as_ref().expect("this thread has made the machine");
        let stream = UnixStream::connect(folder.path().join("con0")).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream
    })
}
