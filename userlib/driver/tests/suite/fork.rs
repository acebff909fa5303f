//! Children by `fork` of a process that has a device open.
//!
//! Each test starts this program again, for one part of this file, so that no other test's thread
//! runs beside the fork. The server's thread is in the test's own process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    unsafe_code,
    reason = "a test fails by panicking, and `fork` is unsafe"
)]

use std::{
    ffi::OsString,
    io::{Read, pipe},
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nicforge_driver::{Bar, Deadline, Device, DmaBuffer, Error, HugePages, Interrupt, OpenOptions, Poster};
use nix::{
    libc::_exit,
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, Pid, alarm, fork},
};

use crate::common::{Fake, WINDOW, server::Server};

const LONG: Duration = Duration::from_secs(20);
/// Seconds after which a child ends that hangs.
const CHILD_LIMIT: u32 = 60;
/// Number of children beside a thread that uses the device.
const CHILDREN: usize = 20;

/// Environment variables of a part: its name, and the path of the server's socket.
const PART: &str = "NICFORGE_FORK_PART";
const SOCKET: &str = "NICFORGE_FORK_SOCKET";

/// Everything that a program makes of a device.
struct Opened {
    registers: Bar,
    windows: Bar,
    poster: Poster,
    interrupt: Interrupt,
    buffer: DmaBuffer,
    private: DmaBuffer,
    device: Device,
}

impl Opened {
    fn open(path: &OsString) -> Self {
        let options = OpenOptions { timeout: LONG, heartbeat: None, ..OpenOptions::default() };
        let device = Device::open_vfio_user(path, options).unwrap();
        let buffer = device.dma_buffer(4096, HugePages::Never).unwrap();
        let private = device.private_dma_buffer(4096).unwrap();
        for buffer in [&buffer, &private] {
            buffer.write(0, b"parent's").unwrap();
        }

        Self {
            registers: device.bar(0).unwrap(),
            windows: device.bar(1).unwrap(),
            poster: device.poster(1).unwrap(),
            interrupt: device.interrupt(0).unwrap(),
            buffer,
            private,
            device,
        }
    }

    /// Uses all of it, as the process that has opened it may.
    fn use_all(&mut self, value: u32) {
        self.registers.write32(0x10, value).unwrap();
        assert_eq!(self.registers.read32(0x10), Ok(value));
        self.windows.write32(WINDOW, value).unwrap();
        assert_eq!(self.windows.read32(WINDOW), Ok(value));
        self.poster.post(0, 0x20, &value.to_le_bytes()).unwrap();
        let (posted, poster) = (self.poster.position().unwrap(), &self.poster);
        self.device.wait_until(Deadline::after(LONG), None, || poster.has_passed(posted)).unwrap();
        self.device.flush().unwrap();
        drop(self.device.dma_buffer(4096, HugePages::Never).unwrap());
    }

    /// Makes all calls, of which a child has no part, and drops everything.
    fn use_in_child(mut self) {
        let foreign = Err(Error::ForeignProcess);
        let deadline = Deadline::after(LONG);

        assert!(self.device.is_inherited());
        assert_eq!(self.registers.read32(0x10).map(drop), foreign);
        assert_eq!(self.registers.write32(0x10, 77), foreign);
        assert_eq!(self.registers.posted_write(0x10, &[7; 4]), foreign);
        assert_eq!(self.device.flush(), foreign);
        assert_eq!(self.device.reset(), foreign);
        assert_eq!(self.device.bar(2).map(drop), Ok(()), "the mirror was mapped before");
        assert_eq!(self.device.bar(3).map(drop), foreign);
        assert_eq!(self.device.poster(0).map(drop), foreign);
        assert_eq!(self.device.dma_buffer(4096, HugePages::Never).map(drop), foreign);
        assert_eq!(self.device.private_dma_buffer(4096).map(drop), foreign);
        assert_eq!(self.device.interrupt(1).map(drop), foreign);
        assert_eq!(self.device.wait_until(deadline, None, || false), foreign);
        assert_eq!(self.device.gone_cause(), None);
        assert_eq!(
            (self.interrupt.take(), self.interrupt.wait(deadline, None).map(drop)),
            (0, foreign.clone())
        );
        assert_eq!(self.device.wait_any(&[&self.interrupt], deadline, None).map(drop), foreign);
        assert_eq!(self.interrupt.unmask(), Ok(()), "there is nothing to unmask");

        // The mapped BARs are empty memory of the child's own.
        assert_eq!(self.windows.read32(WINDOW), Ok(0));
        self.windows.write32(WINDOW, 99).unwrap();
        let _ = self.poster.try_post(0, 0x20, &[9; 4]);
        let _ = self.poster.post(0, 0x20, &[0; 513]);

        for buffer in [&self.buffer, &self.private] {
            let mut bytes = [0; 8];
            buffer.read(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"parent's");
        }
        // The fields are dropped here.
    }
}

/// Runs `body` in a child of `fork`, which ends with 0 if it returns.
fn start_child(body: impl FnOnce()) -> Pid {
    // SAFETY: the child ends without returning. The other threads of this process hold no lock that
    // it takes.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            alarm::set(CHILD_LIMIT);
            let is_done = catch_unwind(AssertUnwindSafe(body)).is_ok();
            // SAFETY: this ends the process.
            unsafe { _exit(i32::from(!is_done)) }
        }
    }
}

/// Waits until a child has ended, which must be successful.
fn await_child(child: Pid) {
    // A child that hangs is ended by SIGALRM.
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}

/// A part of the child, by its name.
type Part = (&'static str, fn(&OsString));

/// The parts, by name. A child takes its own copy out of the option, and the parent's stays.
const PARTS: [Part; 4] = [
    ("child", |path| {
        let mut opened = Some(Opened::open(path));
        for value in 1..5 {
            opened.as_mut().unwrap().use_all(value);
            await_child(start_child(|| opened.take().unwrap().use_in_child()));
        }
        opened.unwrap().use_all(5);
    }),
    ("grandchild", |path| {
        let mut opened = Some(Opened::open(path));
        await_child(start_child(|| {
            await_child(start_child(|| opened.take().unwrap().use_in_child()));
            opened.take().unwrap().use_in_child();
        }));
        opened.unwrap().use_all(1);
    }),
    ("busy", |path| {
        let mut opened = Some(Opened::open(path));
        let (registers, device) =
            opened.as_ref().map(|opened| (opened.registers.clone(), opened.device.clone())).unwrap();
        let (has_begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));

        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    registers.write32(0x14, 5).unwrap();
                    registers.posted_write(0x18, &[6; 4]).unwrap();
                    assert_eq!(registers.read32(0x14), Ok(5));
                    drop(device.dma_buffer(4096, HugePages::Never).unwrap());
                    has_begun.store(true, Ordering::Relaxed);
                }
            });

            while !has_begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            for _ in 0..CHILDREN {
                await_child(start_child(|| opened.take().unwrap().use_in_child()));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        opened.unwrap().use_all(1);
    }),
    ("reopen", |path| {
        let mut opened = Some(Opened::open(path));
        let (mut reader, writer) = pipe().unwrap();
        let mut writer = Some(writer);
        let child = start_child(|| {
            // It lives until the parent closes the pipe.
            drop(writer.take());
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
            opened.take().unwrap().use_in_child();
        });

        // The server takes the next client when the connection of the last one has ended.
        drop(opened);
        let mut opened = Opened::open(path);
        opened.use_all(1);

        drop(writer);
        await_child(child);
        opened.use_all(2);
    }),
];

/// Does nothing unless it runs as a process of its own, started by [`run_part`].
#[test]
fn part() {
    let (Some(name), Some(path)) = (std::env::var_os(PART), std::env::var_os(SOCKET)) else { return };
    let (_, run) = PARTS.into_iter().find(|(known, _)| name == *known).unwrap();
    run(&path);
}

/// Runs a part as a process of its own, with a server.
fn run_part(name: &str) -> Server {
    let server = Server::start(Fake::new());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "fork::part"])
        .env(PART, name)
        .env(SOCKET, &server.path)
        .output()
        .unwrap();

    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    assert!(String::from_utf8_lossy(&text).contains("1 passed"));
    server
}

#[test]
fn a_child_that_uses_and_drops_a_device_changes_nothing_for_its_parent() {
    run_part("child");
}

#[test]
fn a_child_of_a_child_has_no_part_in_a_device_either() {
    run_part("grandchild");
}

#[test]
fn children_of_a_process_whose_threads_use_the_device_do_not_hang() {
    run_part("busy");
}

#[test]
fn a_device_is_opened_again_although_a_child_lives() {
    run_part("reopen");
}
