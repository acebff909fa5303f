//! Two of our own virtual machines inside a guest with nested virtualisation: their Linux drives
//! virtio network devices of one served machine, and a card with an interrupt line, by its own
//! drivers. A third machine runs the test bodies of FCNP, VELO and RMA. Its programs and its
//! network device then meet those of a guest of QEMU, which runs beside it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::Command,
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
/// Bytes of the longer transfer between two of our own virtual machines, and between one of them
/// and QEMU's guest.
const OWN_BYTES: u64 = 1 << 20;
const BYTES: u64 = 8 << 20;

/// Copies QEMU, and links to the other prepared files. The shared folder is slow for programs: each
/// page is read when it is needed.
const COPY: &str = "mkdir /tmp/own && ln -s /share/own/* /tmp/own/ && rm /tmp/own/qemu
    cp -r /share/own/qemu /tmp/own/";

#[test]
fn own_virtual_machines_reach_each_other() {
    let toolkit = toolkit();
    let Some(kernel) = toolkit.kernel.unpacked() else {
        eprintln!("NOT RUN, {} cannot be unpacked on this host", toolkit.kernel.image.display());
        return;
    };

    // Files with debug information would fill the guests' memory, and take long to unpack there.
    let programs = tempfile::tempdir().unwrap();
    let stripped = |program: &str| strip(Path::new(program), programs.path());

    // The host provisions what the inner machines start, and the guest finds it in a folder.
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(kernel, folder.path().join("vmlinux")).unwrap();
    let station = concat!(env!("CARGO_MANIFEST_DIR"), "/guest/nested/station");
    let inner = GuestConfig::new("inner")
        .module("virtio_pci")
        .module("virtio_net")
        .module("gpio-pci-idio-16")
        .program(stripped(env!("CARGO_BIN_EXE_guest-net")))
        .program(stripped(env!("CARGO_BIN_EXE_guest-gpio")))
        .file(station, "/root/station");
    let written = toolkit.write_initramfs(&inner, &folder.path().join("initrd"), &Progress::on_stderr());
    written.unwrap_or_else(|error| panic!("{error}"));

    // Another folder has QEMU, and the files of the guests in which test bodies and programs run.
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let configs = [
        own_vm::config(|_, _| "inside".into()).program(stripped(env!("CARGO_BIN_EXE_guest_bodies"))),
        own_vm::qemu_config(|_, _| "inside".into()),
    ];
    let configs = configs.map(|config| {
        let config = config.program(stripped(env!("CARGO_BIN_EXE_guest_program")));
        config.program(stripped(env!("CARGO_BIN_EXE_guest-net")))
    });
    let prepared = toolkit.prepare(&configs, &own, &Progress::on_stderr());
    prepared.unwrap_or_else(|error| panic!("{error}"));

    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join("nested");
    let outer = GuestConfig::new("outer")
        .processors(2)
        .memory(1536)
        .module("kvm_amd")
        .program(stripped(env!("CARGO_BIN_EXE_guest-vms")))
        .program(stripped(env!("CARGO_BIN_EXE_guest-own")))
        .program(stripped(env!("CARGO_BIN_EXE_own-devices")))
        .share(folder.path())
        .boot_deadline(LIMIT)
        .logs(logs);

    let begin = Instant::now();
    let guest = boot(&outer);
    println!("the outer guest boots in {:.1?}", begin.elapsed());
    run(&guest, &format!("guest-vms /share/vmlinux /share/initrd {OWN_BYTES}"));
    println!("the two machines end after {:.1?}", begin.elapsed());
    run(&guest, COPY);
    run(&guest, &format!("{PATIENCE}=10 guest-own /tmp/own /root/own-devices {BYTES}"));
    println!("in all {:.1?}", begin.elapsed());
    guest.power_off(LIMIT).unwrap_or_else(|error| panic!("{error}"));
}

/// Copies a program into a folder without its debug information. Returns the path of the copy.
fn strip(program: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap());
    let status = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    assert!(status.expect("the tools of the linker").success(), "{}", program.display());
    copy
}
