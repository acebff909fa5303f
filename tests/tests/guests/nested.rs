//! Two of our own virtual machines inside a guest with nested virtualisation: their Linux drives
//! virtio network devices of one served machine, and a card with an interrupt line, by its own
//! drivers. A third machine runs the test bodies of FCNP, VELO and RMA.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    path::Path,
    time::{Duration, Instant},
};

use nicforge_guest::{GuestConfig, Progress};
use nicforge_tests::{
    backing::PATIENCE,
    guest::{boot, run, toolkit},
    own_vm,
};

/// Time limit of the guest's boot, generous enough for emulation on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of the longer transfer.
const BYTES: u64 = 8 << 20;

#[test]
fn own_virtual_machines_reach_each_other() {
    let toolkit = toolkit();
    let Some(kernel) = toolkit.kernel.unpacked() else {
        eprintln!("NOT RUN, {} cannot be unpacked on this host", toolkit.kernel.image.display());
        return;
    };

    // The host provisions what the inner machines start, and the guest finds it in a folder.
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(kernel, folder.path().join("vmlinux")).unwrap();
    let station = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/nested/station");
    let inner = GuestConfig::new("inner")
        .module("virtio_pci")
        .module("virtio_net")
        .module("gpio-pci-idio-16")
        .program(env!("CARGO_BIN_EXE_guest-net"))
        .program(env!("CARGO_BIN_EXE_guest-gpio"))
        .file(station, "/root/station");
    let written = toolkit.write_initramfs(&inner, &folder.path().join("initrd"), &Progress::on_stderr());
    written.unwrap_or_else(|error| panic!("{error}"));

    // Another folder has the files of the guest in which test bodies run.
    let body_guest = folder.path().join("own");
    std::fs::create_dir(&body_guest).unwrap();
    let config = own_vm::config(|_, _| "inside".into())
        .program(env!("CARGO_BIN_EXE_guest_bodies"))
        .program(env!("CARGO_BIN_EXE_guest_program"));
    let prepared = toolkit.prepare(&[config], &body_guest, &Progress::on_stderr());
    prepared.unwrap_or_else(|error| panic!("{error}"));

    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join("nested");
    let outer = GuestConfig::new("outer")
        .processors(2)
        .memory(1536)
        .module("kvm_amd")
        .program(env!("CARGO_BIN_EXE_guest-vms"))
        .program(env!("CARGO_BIN_EXE_guest-own"))
        .program(env!("CARGO_BIN_EXE_own-devices"))
        .share(folder.path())
        .boot_deadline(LIMIT)
        .logs(logs);

    let begin = Instant::now();
    let guest = boot(&outer);
    println!("the outer guest boots in {:.1?}", begin.elapsed());
    run(&guest, &format!("guest-vms /share/vmlinux /share/initrd {BYTES}"));
    println!("the two machines end after {:.1?}", begin.elapsed());
    run(&guest, &format!("{PATIENCE}=10 guest-own /share/own /root/own-devices"));
    println!("in all {:.1?}", begin.elapsed());
    guest.power_off(LIMIT).unwrap_or_else(|error| panic!("{error}"));
}
