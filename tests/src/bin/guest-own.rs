//! Runs test bodies in our own virtual machine, inside a guest with nested virtualisation, and lets
//! programs there meet programs of this process on the same served machine.
//!
//! ```text
//! guest-own FOLDER VM
//! ```
//!
//! `FOLDER` has the prepared files of [`own_vm::config`]'s guest, and `VM` is a program with the
//! command `vm`. The exit status is 0 when everything held.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, sync::mpsc, thread, time::Instant};

use nicforge_engine::{EngineConfig, Quotas};
use nicforge_guest::{Guest, Prepared, Progress};
use nicforge_tests::{
    backing::Served,
    exchange::{self, RmaSide},
    guest::{self, LONG},
    guest_program::{open_core, send},
    own_vm::{self, OUTER_RANK, OUTER_VPID},
};
use nicforge_velo::Address;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, vm] = &arguments[..] else { panic!("guest-own FOLDER VM") };

    // The emulator takes the engine's processor away in the middle of a system call, which is not
    // the client's doing.
    let quotas = Quotas { long_call: LONG, ..Quotas::default() };
    let settings = EngineConfig { quotas, ..EngineConfig::default() };
    let served = Served::with_config(own_vm::machine(), settings);

    let begin = Instant::now();
    let prepared = Prepared::open(Path::new(folder), Some(vm.into()));
    let prepared = prepared.unwrap_or_else(|error| panic!("{error}"));
    let config = own_vm::config(|function, attachment| served.socket(function, attachment));
    let booted = Guest::boot_prepared(&prepared, &config, &Progress::silent());
    let guest = booted.unwrap_or_else(|error| panic!("{error}"));
    assert!(guest.problems().is_empty(), "{:?}", guest.problems());
    println!("our own virtual machine takes commands after {:.1?}", begin.elapsed());

    thread::scope(|scope| {
        scope.spawn(|| guest::operate(&served, guest.terminal().expect("it was asked for")));
        // Kills the guest in every case, which ends the operator's thread too.
        let _end = KillOnDrop(&guest);
        bodies(&guest);
        programs(&served, &guest);
    });
}

/// Runs the bodies of all machines in the guest.
fn bodies(guest: &Guest) {
    guest::run(guest, "stty -F /dev/ttyS2 raw -echo");
    for machine in own_vm::MACHINES {
        let begin = Instant::now();
        guest::run(guest, &format!("guest_bodies own {}", machine.name));
        println!("{}: {:.1?}", machine.name, begin.elapsed());
    }
}

/// Runs programs of FCNP, VELO and RMA in the guest, whose peers are in this process.
fn programs(served: &Served, guest: &Guest) {
    let begin = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| send(&open_core(served, OUTER_RANK)));
        guest::run(guest, &format!("guest_program io {OUTER_RANK}"));
    });

    thread::scope(|scope| {
        let (opened, open) = mpsc::channel();
        let peer = Address { node: 0, vpid: 0 };
        scope.spawn(move || exchange::velo_echo(served, OUTER_VPID, peer, || opened.send(()).unwrap()));
        open.recv().unwrap();
        guest::run(guest, &format!("guest_program velo-send {OUTER_VPID} 0"));
    });

    // The memory stays registered until the guest has read it back.
    let mut side = RmaSide::open(served, 1, OUTER_VPID);
    let address = side.address();
    thread::scope(|scope| {
        scope.spawn(|| side.check_puts());
        guest::run(guest, &format!("guest_program rma-put {OUTER_VPID} 0 {address}"));
    });
    println!("FCNP, VELO and RMA between guest and host: {:.1?}", begin.elapsed());
}

/// Kills a guest on drop.
struct KillOnDrop<'a>(&'a Guest);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}
