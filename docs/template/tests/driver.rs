//! Tests of the driver, on a machine in this process and on one that is served at sockets.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{path::Path, sync::Arc, time::Duration};

use courier::{
    device,
    driver::{Courier, FrameCounts},
};
use nicforge::{
    DeviceKind, Families,
    cli::{EventLoop, ServeOptions},
    serve::Served,
};
use nicforge_driver::{Deadline, Device, Error, OpenOptions};
use nicforge_machine::{build::build, description, in_process::LocalMachine};

/// The machine of these tests.
fn machine_file() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/machine.toml"))
}

/// The devices of this crate.
fn families() -> Families {
    Families::new().device(DeviceKind::plain("courier", device::Courier::default))
}

/// Returns a deadline that no healthy machine misses.
fn test_deadline() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

// ANCHOR: in_process
/// A machine in this process. The threads that wait for it drive it.
struct InProcess(Arc<LocalMachine>);

impl InProcess {
    fn new() -> Self {
        let plan = description::read(machine_file(), &families()).unwrap();
        let (machine, _) = build(&plan).unwrap();
        Self(LocalMachine::new(machine))
    }

    fn open(&self, card: &str) -> Device {
        Device::from_backing(self.0.open_named(card, "user0").unwrap()).unwrap()
    }
}
// ANCHOR_END: in_process

// ANCHOR: served
/// A machine that a thread serves at sockets in a folder of its own.
struct AtSockets {
    served: Served,
    _folder: tempfile::TempDir,
}

impl AtSockets {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ServeOptions::new(Some(folder.path().join("m")), EventLoop::Auto);
        let served = Served::start(machine_file(), &families(), &options).unwrap();
        Self { served, _folder: folder }
    }

    fn open(&self, card: &str) -> Device {
        let socket = self.served.directory().socket(card, "user0", false).unwrap();
        Device::open_vfio_user(socket, OpenOptions::default()).unwrap()
    }
}
// ANCHOR_END: served

// ANCHOR: bodies
/// A frame goes from the one card to the other.
fn frames_arrive_in_order(open: &dyn Fn(&str) -> Device) {
    let devices = ["courier0", "courier1"].map(open);
    let [mut here, mut there] = devices.each_ref().map(|device| Courier::open(device).unwrap());

    for number in 0..100_u32 {
        here.send(&number.to_le_bytes(), test_deadline(), None).unwrap();
        assert_eq!(there.receive(test_deadline(), None).unwrap(), number.to_le_bytes());
    }

    assert_eq!(here.counts().unwrap(), FrameCounts { sent: 100, received: 0 });
    assert_eq!(there.counts().unwrap(), FrameCounts { sent: 0, received: 100 });
}

/// A wait that timed out continues with the next call.
fn a_wait_is_continued(open: &dyn Fn(&str) -> Device) {
    let devices = ["courier0", "courier1"].map(open);
    let [mut here, mut there] = devices.each_ref().map(|device| Courier::open(device).unwrap());

    let timed_out = there.receive(Deadline::now(), None);
    here.send(b"late", test_deadline(), None).unwrap();

    assert!(matches!(timed_out, Err(Error::Timeout { .. })));
    assert_eq!(there.receive(test_deadline(), None).unwrap(), b"late");
}

#[test]
fn frames_arrive_in_order_in_process() {
    let machine = InProcess::new();
    frames_arrive_in_order(&|card| machine.open(card));
}

#[test]
fn frames_arrive_in_order_at_sockets() {
    let machine = AtSockets::new();
    frames_arrive_in_order(&|card| machine.open(card));
}

#[test]
fn a_wait_is_continued_in_process() {
    let machine = InProcess::new();
    a_wait_is_continued(&|card| machine.open(card));
}

#[test]
fn a_wait_is_continued_at_sockets() {
    let machine = AtSockets::new();
    a_wait_is_continued(&|card| machine.open(card));
}
// ANCHOR_END: bodies
