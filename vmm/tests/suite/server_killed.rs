//! A killed server ends every kind of wait of its clients within a second, also when the kernel
//! keeps the dead process's sockets open. With `--nocapture` the tests print how long each wait
//! took.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    sync::{Barrier, mpsc},
    thread,
    time::{Duration, Instant},
};

use nicforge_driver::{Cancel, Deadline, Device, Error, GoneCause, OpenOptions};
use nicforge_hwi::tree_dcr::REG_INT_ENABLE;
use nix::{
    sys::signal::Signal,
    unistd::{Pid, gettid},
};

use crate::server::Server;

/// The longest wait of a test.
const LIMIT: Duration = Duration::from_secs(20);
/// The time within which a client must notice the server's end. It usually takes less than a
/// second, and the limit allows for a busy host. The heartbeat alone would take ten seconds.
const SOON: Duration = Duration::from_secs(4);
/// Number of servers that a test kills.
const ROUNDS: usize = 4;

/// A pset of one compute node.
const MACHINE: &str = "name = \"pset\"\n[[pset]]\ncompute_nodes = 1\n";

/// Opens one of eight cores: four of the I/O node, and four of the compute node.
fn open(server: &Server, index: usize) -> Device {
    let node = ["io0", "cn0"][index / 4];
    let socket = server.socket(&format!("{node}.core{}", index % 4));
    Device::open_vfio_user(socket, OpenOptions::default()).unwrap()
}

/// A wait that continues until the device is lost.
type Wait = fn(&Device) -> Result<(), Error>;

/// The waits, each with a name for messages.
const WAITS: [(&str, Wait); 8] = [
    ("a condition", |device| device.wait_until(Deadline::never(), None, || false)),
    ("a loop of its own that always has something to do", |device| {
        let mut relax = device.new_relax();
        loop {
            device.relax(&mut relax)?;
            relax.reset();
        }
    }),
    ("an interrupt", |device| device.interrupt(0)?.wait(Deadline::never(), None).map(drop)),
    ("one of two interrupts", |device| {
        let (one, two) = (device.interrupt(0)?, device.interrupt(1)?);
        device.wait_any(&[&one, &two], Deadline::never(), Some(&Cancel::new()?)).map(drop)
    }),
    ("a source of interrupts", |device| {
        device.interrupt(0)?.source().wait(Deadline::never(), None).map(drop)
    }),
    ("trapped reads", |device| {
        let registers = device.bar(0)?;
        loop {
            registers.read32(REG_INT_ENABLE)?;
        }
    }),
    ("flushes", |device| {
        loop {
            device.flush()?;
        }
    }),
    ("room for posted writes", |device| {
        let mut poster = device.poster(0)?;
        loop {
            poster.post(0, REG_INT_ENABLE, &0_u32.to_le_bytes())?;
        }
    }),
];

/// Kills the server while clients wait in every way, and checks that all waits end soon.
fn check_every_wait_ends(event_loop: &str) {
    for _ in 0..ROUNDS {
        let mut server = Server::of_text(MACHINE, event_loop);
        let devices: Vec<_> = (0..WAITS.len()).map(|index| open(&server, index)).collect();
        let (started, (ended, ends)) = (Barrier::new(WAITS.len() + 1), mpsc::channel());

        thread::scope(|scope| {
            for (device, (call, wait)) in devices.iter().zip(WAITS) {
                let (started, ended) = (&started, ended.clone());
                scope.spawn(move || {
                    started.wait();
                    let result = wait(device);
                    ended.send((call, Instant::now(), result)).unwrap();
                });
            }
            started.wait();
            // Most threads block by now. Whether all do is a matter of chance, as in real programs.
            thread::yield_now();

            let killed = server.kill();
            for _ in WAITS {
                let (call, ended_at, result) = ends.recv_timeout(LIMIT).unwrap();
                let delay = ended_at.saturating_duration_since(killed);
                eprintln!("{event_loop}: {call}: {} ms", delay.as_millis());
                assert_eq!(result, Err(Error::DeviceGone { cause: GoneCause::HungUp }), "{call}");
                assert!(delay < SOON, "{event_loop}: {call} took {delay:?}");
            }
        });
    }
}

#[test]
fn every_wait_ends_soon_with_io_uring_if_available() {
    check_every_wait_ends("auto");
}

#[test]
fn every_wait_ends_soon_with_epoll() {
    check_every_wait_ends("epoll");
}

/// Returns whether the thread sleeps in the kernel.
fn is_asleep(thread: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// Kills the server while a client waits for the reply to a read. The server is stopped first, so
/// that it is killed between the request and its reply.
fn check_outstanding_access_ends(event_loop: &str) {
    for _ in 0..ROUNDS {
        let mut server = Server::of_text(MACHINE, event_loop);
        let device = open(&server, 0);
        let (thread_ids, ids) = mpsc::channel();
        server.stop();

        thread::scope(|scope| {
            let read = scope.spawn(|| {
                thread_ids.send(gettid()).unwrap();
                (device.bar(0).unwrap().read32(REG_INT_ENABLE), Instant::now())
            });

            let reader = ids.recv_timeout(LIMIT).unwrap();
            let begun = Instant::now();
            while !is_asleep(reader) {
                assert!(begun.elapsed() < LIMIT, "the read does not block");
                thread::yield_now();
            }

            let killed = server.kill();
            let (result, at) = read.join().unwrap();
            let delay = at.saturating_duration_since(killed);
            eprintln!("{event_loop}: an outstanding read: {} ms", delay.as_millis());

            assert_eq!(result, Err(Error::DeviceGone { cause: GoneCause::HungUp }));
            assert!(delay < SOON, "{event_loop}: it took {delay:?}");
        });
    }
}

#[test]
fn outstanding_access_ends_soon_with_io_uring_if_available() {
    check_outstanding_access_ends("auto");
}

#[test]
fn outstanding_access_ends_soon_with_epoll() {
    check_outstanding_access_ends("epoll");
}

/// A stopped server is not a dead one. Only waits with a deadline end.
#[test]
fn a_wait_for_a_stopped_server_ends_at_its_deadline_and_the_device_works_afterwards() {
    let server = Server::of_text(MACHINE, "auto");
    let device = open(&server, 0);
    server.stop();
    let waited = device.wait_until(Deadline::after(Duration::from_secs(1)), None, || false);
    server.signal(Signal::SIGCONT);
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    assert_eq!(device.flush(), Ok(()));
}
