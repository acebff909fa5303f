//! Runs test bodies in our own virtual machine, inside a guest with nested virtualisation, and lets
//! programs there meet programs of this process and of QEMU's guest on the same served machine.
//!
//! ```text
//! guest-own FOLDER VM BYTES
//! ```
//!
//! `FOLDER` has the prepared files of the guests of [`own_vm`], and `VM` is a program with the
//! command `vm`. Our own virtual machine sends `BYTES` bytes to QEMU's guest over TCP, and an
//! eighth of that come the other way. The exit status is 0 when everything held. The program prints
//! what it took.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use nicforge_engine::{EngineConfig, Quotas};
use nicforge_guest::{Guest, GuestConfig, Job, Prepared, Progress, Running};
use nicforge_tests::{
    backing::Served,
    exchange::{self, RmaSide},
    guest::{self, LONG},
    guest_program::{open_core, send},
    own_vm::{self, OUTER_RANK, OUTER_VPID, QEMU_RANK, QEMU_VPID},
};
use nicforge_velo::Address;

/// The counters of KVM, a folder for each machine.
const COUNTERS: &str = "/sys/kernel/debug";
/// The addresses of the two guests in their network, and the port of the transfers.
const OWN_ADDRESS: &str = "10.1.0.1";
const QEMU_ADDRESS: &str = "10.1.0.2";
const PORT: u16 = 7000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, vm, bytes] = &arguments[..] else { panic!("guest-own FOLDER VM BYTES") };
    let bytes: u64 = bytes.parse().expect("a number of bytes");

    // The emulator takes the engine's processor away in the middle of a system call, which is not
    // the client's doing.
    let quotas = Quotas { long_call: LONG, ..Quotas::default() };
    let settings = EngineConfig { quotas, ..EngineConfig::default() };
    let served = Served::with_config(own_vm::machine(), settings);

    let mounted = Command::new("mount").args(["-t", "debugfs", "debugfs", COUNTERS]).status();
    assert!(mounted.expect("a program to mount").success());
    let prepared = Prepared::open(Path::new(folder), Some(vm.into()));
    let prepared = prepared.unwrap_or_else(|error| panic!("{error}"));
    let socket = |function: &str, attachment: &str| served.socket(function, attachment);
    let (guest, other) = thread::scope(|scope| {
        let other = scope.spawn(|| boot(&prepared, &own_vm::qemu_config(socket)));
        (boot(&prepared, &own_vm::config(socket)), other.join().unwrap())
    });
    compare(&guest, &other);

    thread::scope(|scope| {
        scope.spawn(|| guest::operate(&served, guest.terminal().expect("it was asked for")));
        // Kills the guest in every case, which ends the operator's thread too.
        let _end = KillOnDrop(&guest);
        bodies(&guest);
        programs_with_host(&served, &guest);
        programs_between_guests(&guest, &other);
        network(&guest, &other, bytes);
        drop(other);
        start_anew(&guest);
    });
}

/// Boots a guest, and waits until it takes commands.
fn boot(prepared: &Prepared, config: &GuestConfig) -> Guest {
    let begin = Instant::now();
    let booted = Guest::boot_prepared(prepared, config, &Progress::silent());
    let guest = booted.unwrap_or_else(|error| panic!("{error}"));
    assert!(guest.problems().is_empty(), "{}: {:?}", guest.node(), guest.problems());

    let (exits, memory) = (exits(&guest), resident(&guest));
    println!(
        "{} takes commands after {:.1?} and {exits} exits for devices; resident without the guest's RAM: {memory} KiB",
        guest.node(),
        begin.elapsed()
    );
    guest
}

/// Checks that our own virtual machine costs no more than QEMU does.
fn compare(guest: &Guest, other: &Guest) {
    let (own, qemu) = (exits(guest), exits(other));
    assert!(own <= qemu, "exits of our own virtual machine: {own}, of QEMU: {qemu}");
    let (own, qemu) = (resident(guest), resident(other));
    assert!(own <= qemu, "KiB of our own virtual machine: {own}, of QEMU: {qemu}");
}

/// Returns the number of exits of a guest's processors for accesses of devices. Those for
/// interrupts and for the processor itself depend on the time that the guest takes.
fn exits(guest: &Guest) -> u64 {
    let (folder, begin) = (Path::new(COUNTERS).join("kvm"), format!("{}-", guest.pid()));
    let machines = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    let machine = machines.filter(|entry| entry.file_name().to_string_lossy().starts_with(&begin));
    let counters = machine.flat_map(|entry| ["io_exits", "mmio_exits"].map(|name| entry.path().join(name)));
    let exits = counters.map(|path| fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap());
    let exits: u64 = exits.sum();
    assert!(exits > 0, "{}: KVM counts no exits in {}", guest.node(), folder.display());
    exits
}

/// Returns the resident memory of a guest's machine in KiB, without memory files: the guest's RAM
/// and the memory of the served functions.
fn resident(guest: &Guest) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", guest.pid())).unwrap();
    let (mut sum, mut is_counted) = (0, false);
    for line in maps.lines() {
        match line.strip_prefix("Rss:") {
            Some(size) if is_counted => {
                sum += size.trim_end_matches("kB").trim().parse::<u64>().unwrap();
            }
            Some(_) => {}
            // The line before the sizes begins with the addresses, and the others with a name.
            None if line.split(' ').next().is_some_and(|word| word.contains('-')) => {
                is_counted = !line.contains("/memfd:");
            }
            None => {}
        }
    }
    sum
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
fn programs_with_host(served: &Served, guest: &Guest) {
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

/// Runs programs of FCNP, VELO and RMA in our own virtual machine, whose peers are in QEMU's guest.
fn programs_between_guests(own: &Guest, qemu: &Guest) {
    let begin = Instant::now();
    let (compute, _) = start(qemu, &format!("guest_program compute {QEMU_RANK}"));
    guest::run(own, &format!("guest_program io {QEMU_RANK}"));
    succeed(&compute);

    let (echo, lines) = start(qemu, &format!("guest_program velo-echo {QEMU_VPID} 0"));
    await_open(&echo, &lines);
    guest::run(own, &format!("guest_program velo-send {QEMU_VPID} 0"));
    succeed(&echo);

    let (take, lines) = start(qemu, &format!("guest_program rma-take {QEMU_VPID}"));
    let address = await_open(&take, &lines);
    guest::run(own, &format!("guest_program rma-put {QEMU_VPID} 0 {address}"));
    succeed(&take);
    println!("FCNP, VELO and RMA between the guests: {:.1?}", begin.elapsed());
}

/// Starts a program in a guest. Returns it with the lines that it prints.
fn start(guest: &Guest, script: &str) -> (Running, mpsc::Receiver<String>) {
    let (sender, lines) = mpsc::channel();
    let job = Job::shell(script).on_line(Arc::new(move |_, line: &str| {
        println!("{line}");
        // Lines that come after the awaited one have no receiver.
        let _ = sender.send(line.to_owned());
    }));
    (guest.start(job).unwrap_or_else(|error| panic!("{error}")), lines)
}

/// Waits until a program has opened its port. Returns the text that it prints then.
fn await_open(program: &Running, lines: &mpsc::Receiver<String>) -> String {
    let line = lines.recv_timeout(LONG).ok();
    let text = line.as_ref().and_then(|line| line.strip_prefix("open"));
    text.unwrap_or_else(|| panic!("{line:?}, {:?}", program.output_so_far())).trim().to_owned()
}

/// Waits for the end of a program, which must succeed.
fn succeed(program: &Running) {
    let output = program.wait(LONG).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(output.status, 0, "{output:?}");
}

/// Lets Linux in both guests use their network devices: ping, and TCP with checksums.
fn network(guest: &Guest, other: &Guest, bytes: u64) {
    for (guest, address) in [(guest, OWN_ADDRESS), (other, QEMU_ADDRESS)] {
        guest::run(guest, &format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up"));
    }
    guest::run(guest, &format!("ping -c 3 -W 100 {QEMU_ADDRESS}"));
    guest::run(other, &format!("ping -c 3 -W 100 -s 1400 {OWN_ADDRESS}"));
    transfer(guest, other, QEMU_ADDRESS, bytes);
    transfer(other, guest, OWN_ADDRESS, bytes / 8);
}

/// Moves bytes over TCP, and compares the checksums of both ends.
fn transfer(from: &Guest, to: &Guest, address: &str, bytes: u64) {
    let begin = Instant::now();
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| guest::run(to, &format!("guest-net receive {PORT} {bytes}")));
        // The sender tries until there is a receiver.
        let sent = guest::run(from, &format!("guest-net send {address}:{PORT} {bytes}"));
        (sent.stdout, receiver.join().unwrap().stdout)
    });
    assert!(sent.contains("checksum"), "{sent}");
    assert_eq!(sent.lines().last(), received.lines().last());
    println!("{bytes} bytes from {} to {}: {:.1?}", from.node(), to.node(), begin.elapsed());
}

/// Reboots the guest of our own virtual machine, and finds its functions as they were.
fn start_anew(guest: &Guest) {
    let begin = Instant::now();
    let starts = guest.starts();
    // The guest's end may come before that of the job.
    let _ended = guest.start("reboot -f").unwrap_or_else(|error| panic!("{error}"));
    guest.wait_started(starts + 1).unwrap_or_else(|error| panic!("{error}"));
    assert!(guest.problems().is_empty(), "{:?}", guest.problems());
    guest::run(guest, "ip link set eth0 up && stty -F /dev/ttyS2 raw -echo && guest_bodies own velo");
    println!("our own virtual machine has started anew after {:.1?}", begin.elapsed());
}

/// Kills a guest on drop.
struct KillOnDrop<'a>(&'a Guest);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}
