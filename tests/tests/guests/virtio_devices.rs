//! Linux drives the virtio devices beside the network device by its own drivers, all in one guest:
//! random bytes, disks with and without changes, a file system, a console, and new drivers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use nicforge_core::machine::Machine;
use nicforge_guest::{Driver, Guest, GuestConfig, Progress};
use nicforge_tests::{
    backing::{EventLoopKind, Rig, Served},
    guest::toolkit,
};
use nicforge_virtio_devices::{
    blk::{
        VirtioBlk,
        image::{Access, Image},
    },
    console::{VirtioConsole, line::Line},
    rng::VirtioRng,
};
use tempfile::TempDir;

/// Time limit of a command in a guest, generous enough for an emulated processor on a loaded
/// machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of the disks' file.
const DISK: usize = 8 << 20;
/// Bytes that the guest sends to the console at once.
const STREAM: usize = 64 << 10;
/// The functions.
const FUNCTIONS: [&str; 4] = ["rng0", "disk0", "disk1", "con0"];

/// Shell text that defines `disk SERIAL`, which prints the block device with this serial number.
const DISK_OF: &str = "disk() { for d in /sys/block/vd*; do
    test $(cat $d/serial) = $1 && echo /dev/${d##*/}; done; }\n";

/// Returns a machine with all of the devices, and the file in `folder` that both disks show.
fn machine(folder: &Path) -> (Machine, PathBuf) {
    let file = folder.join("disk.img");
    let mut state = 1_u64;
    let content: Vec<u8> = (0..DISK)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    std::fs::write(&file, content).unwrap();

    let disk = |access, name: &str| Box::new(VirtioBlk::device(Image::open(&file, access).unwrap(), name));
    let line = Line::listen(&folder.join("con0")).unwrap();
    let mut machine = Machine::new();
    machine.add_function("rng0", Box::new(VirtioRng::device())).unwrap();
    machine.add_function("disk0", disk(Access::CopyOnWrite { limit: 64 << 20 }, "changing")).unwrap();
    machine.add_function("disk1", disk(Access::ReadOnly, "fixed")).unwrap();
    machine.add_function("con0", Box::new(VirtioConsole::device(line))).unwrap();
    (machine, file)
}

#[test]
fn stock_linux_has_random_bytes_disks_and_a_console() {
    let folder = TempDir::new().unwrap();
    let (machine, file) = machine(folder.path());
    let original = std::fs::read(&file).unwrap();
    let served = Served::new(machine, EventLoopKind::Auto);
    let guest = boot(&served);

    check_random_bytes(&guest);
    check_disks(&guest, &file);
    check_file_system(&guest);
    let mut host_end = UnixStream::connect(folder.path().join("con0")).unwrap();
    host_end.set_read_timeout(Some(LIMIT)).unwrap();
    check_console(&guest, &mut host_end);
    check_new_drivers(&guest, &mut host_end);

    assert!(std::fs::read(&file).unwrap() == original, "the file of the disks is as it was");
    for function in FUNCTIONS {
        assert_eq!(served.counter(function, "queue_errors"), 0, "{function}");
        assert!(served.counter(function, "notifications") > 0, "{function}");
    }
    assert!(served.counter("disk1", "read_bytes") >= DISK as u64);
    guest.power_off(LIMIT).unwrap_or_else(|error| panic!("{error}"));
}

/// Boots a guest with all functions and their drivers.
fn boot(served: &Served) -> Guest {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join("virtio-devices");
    let mut config = GuestConfig::new("devices").driver(Driver::None).logs(logs);
    for function in FUNCTIONS {
        let name = format!("{function}.user0");
        config = config.user_function(&name, served.socket(function, "user0"));
    }
    for module in ["virtio_pci", "virtio-rng", "virtio_blk", "virtio_console", "crc32c_generic", "ext4"] {
        config = config.module(module);
    }

    let guest =
        Guest::boot(toolkit(), &config, &Progress::on_stderr()).unwrap_or_else(|error| panic!("{error}"));
    let problems = guest.problems();
    assert!(problems.is_empty(), "{problems:?}\n{}", guest.log_ends());
    guest
}

/// Runs a script that must succeed, and returns its output.
fn run(guest: &Guest, script: &str) -> String {
    let job =
        guest.start(format!("set -e\n{DISK_OF}{script}").as_str()).unwrap_or_else(|error| panic!("{error}"));
    let output = job.wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let logs = guest.log_ends();
    assert_eq!(output.status, 0, "{script}\n{}{}\n{logs}", output.stdout, output.stderr);
    output.stdout
}

/// Checks that two reads of the random number generator differ.
fn check_random_bytes(guest: &Guest) {
    run(
        guest,
        "grep -q virtio_rng /sys/class/misc/hw_random/rng_current
         dd if=/dev/hwrng of=/tmp/a bs=512 count=8 2>/dev/null; dd if=/dev/hwrng of=/tmp/b bs=512 count=8 2>/dev/null
         test $(wc -c </tmp/a) -gt 512; test $(wc -c </tmp/b) -gt 512
         if cmp -s /tmp/a /tmp/b; then exit 1; fi",
    );
}

/// Checks that both disks have the file's contents, that one keeps what is written to it, and that
/// the other takes no writes.
fn check_disks(guest: &Guest, file: &Path) {
    let checksum = std::process::Command::new("sha256sum").arg(file).output().unwrap().stdout;
    let checksum = String::from_utf8(checksum).unwrap();
    let checksum = checksum.split_whitespace().next().unwrap();
    let sums = run(guest, "for d in changing fixed; do sha256sum <$(disk $d); done");
    assert!(sums.lines().all(|line| line.starts_with(checksum)) && sums.lines().count() == 2, "{sums}");

    run(
        guest,
        "test $(blockdev --getro $(disk fixed)) = 1; test $(blockdev --getro $(disk changing)) = 0
         test $(blockdev --getsize64 $(disk changing)) = 8388608
         if dd if=/dev/zero of=$(disk fixed) bs=512 count=1 conv=fsync 2>/dev/null; then exit 1; fi
         dd if=/dev/urandom of=/tmp/new bs=4096 count=300 2>/dev/null
         dd if=/tmp/new of=$(disk changing) bs=4096 seek=100 conv=fsync 2>/dev/null
         echo 3 >/proc/sys/vm/drop_caches
         dd if=$(disk changing) of=/tmp/back bs=4096 skip=100 count=300 2>/dev/null
         cmp /tmp/new /tmp/back
         dd if=$(disk changing) bs=4096 count=100 2>/dev/null | sha256sum >/tmp/before
         dd if=$(disk fixed) bs=4096 count=100 2>/dev/null | sha256sum | cmp - /tmp/before",
    );
}

/// Makes a file system on a disk, and checks that it keeps a file.
fn check_file_system(guest: &Guest) {
    run(
        guest,
        "mke2fs $(disk changing) >/dev/null; mkdir -p /mnt; mount -t ext4 $(disk changing) /mnt
         cp /tmp/new /mnt/new; sync; umount /mnt; echo 3 >/proc/sys/vm/drop_caches
         mount -t ext4 -o ro $(disk changing) /mnt; cmp /mnt/new /tmp/new; umount /mnt",
    );
}

/// Checks that the guest answers a line on the console, and that a stream of it arrives unchanged.
fn check_console(guest: &Guest, host_end: &mut UnixStream) {
    let answer =
        guest.start("exec 3<>/dev/hvc0; stty raw -echo <&3; echo ready >&3; head -n 1 <&3 | tr a-z A-Z >&3");
    let answer = answer.unwrap_or_else(|error| panic!("{error}"));
    let mut line = [0; 6];
    host_end.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    host_end.write_all(b"hello\n").unwrap();
    host_end.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"HELLO\n");
    assert_eq!(answer.wait(LIMIT).unwrap().status, 0);

    let script = format!("exec 3<>/dev/hvc0; stty raw -echo <&3; seq 1 100000 | head -c {STREAM} >&3");
    let stream = guest.start(script.as_str()).unwrap_or_else(|error| panic!("{error}"));
    let mut received = vec![0; STREAM];
    host_end.read_exact(&mut received).unwrap();
    let sent: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(received == sent.as_bytes()[..STREAM], "the stream arrives as it was");
    assert_eq!(stream.wait(LIMIT).unwrap().status, 0);
}

/// Binds each device to its driver again, and checks that the devices work and that the disk is
/// unchanged.
fn check_new_drivers(guest: &Guest, host_end: &mut UnixStream) {
    run(
        guest,
        "for card in $(echo $NICFORGE_DEVICES | tr ' ,' '\\n\\n' | sed 's/.*=//'); do
             echo $card >/sys/bus/pci/drivers/virtio-pci/unbind
             echo $card >/sys/bus/pci/drivers/virtio-pci/bind
         done
         mount -t ext4 -o ro $(disk changing) /mnt; cmp /mnt/new /tmp/new; umount /mnt
         dd if=/dev/hwrng bs=64 count=2 2>/dev/null | wc -c | grep -q '[1-9]'
         for d in /dev/hvc0 /dev/hvc1; do
             if (exec 3<>$d && stty raw -echo <&3 && echo again >&3); then exit 0; fi
         done 2>/dev/null; exit 1",
    );
    let mut line = [0; 6];
    host_end.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"again\n");
}
