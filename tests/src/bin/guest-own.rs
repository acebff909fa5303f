//! Runs test bodies in our own virtual machine, inside a guest with nested virtualisation, and lets
//! programs there meet programs of this process and of QEMU's guest on the same served machine.
//!
//! ```text
//! guest-own FOLDER VM LOGS BYTES POSTS
//! ```
//!
//! `FOLDER` has the prepared files of the guests of [`own_vm`], and `VM` is a program with the
//! command `vm`. The guests' logs go to the folder `LOGS`, and a failure prints their ends. Our own
//! virtual machine sends `BYTES` bytes to QEMU's guest over TCP, and an eighth of that come the
//! other way. `POSTS` writes are posted in each guest while exits are counted. The exit status is 0
//! when everything held. The program prints what it took, and a table of what both virtual machines
//! cost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nicforge_engine::{EngineConfig, Quotas};
use nicforge_guest::{Guest, GuestConfig, GuestError, Job, Prepared, Progress, Running};
use nicforge_tests::{
    backing::Served,
    exchange::{self, RmaSide},
    guest::{self, LONG},
    guest_program::{open_core, send},
    own_vm::{self, MEASURED, OUTER_RANK, OUTER_VPID, QEMU_MEASURED, QEMU_RANK, QEMU_VPID},
};
use nicforge_velo::Address;

/// The counters of KVM, a folder for each machine.
const COUNTERS: &str = "/sys/kernel/debug";
/// The addresses of the two guests in their network, and the port of the transfers.
const OWN_ADDRESS: &str = "10.1.0.1";
const QEMU_ADDRESS: &str = "10.1.0.2";
const PORT: u16 = 7000;
/// How long the peer of a program that failed may take to end.
const PEER_END: Duration = Duration::from_secs(10);
/// How many mappings of a machine are shown.
const LARGEST: usize = 12;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, vm, logs, bytes, posts] = &arguments[..] else {
        panic!("guest-own FOLDER VM LOGS BYTES POSTS");
    };
    let bytes: u64 = bytes.parse().expect("a number of bytes");
    let posts: u64 = posts.parse().expect("a number of writes");

    // The emulator takes the engine's processor away in the middle of a system call, which is not
    // the client's doing.
    let quotas = Quotas { long_call: LONG, ..Quotas::default() };
    let settings = EngineConfig { quotas, ..EngineConfig::default() };
    let served = Served::with_config(own_vm::machine(), settings);

    // An earlier attempt has mounted the counters.
    if !Path::new(COUNTERS).join("kvm").is_dir() {
        let mounted = Command::new("mount").args(["-t", "debugfs", "debugfs", COUNTERS]).status();
        assert!(mounted.expect("a program to mount").success());
    }
    let prepared = Prepared::open(Path::new(folder), Some(vm.into()));
    let prepared = prepared.unwrap_or_else(|error| panic!("{error}"));
    let socket = |function: &str, attachment: &str| served.socket(function, attachment);
    let (own, qemu) = (own_vm::config(socket).logs(logs), own_vm::qemu_config(socket).logs(logs));
    let set_up = [&own, &qemu].map(|config| set_up(&served, &prepared, config));
    let (guest, other) = thread::scope(|scope| {
        let other = scope.spawn(|| boot(&prepared, &qemu));
        (boot(&prepared, &own), other.join().unwrap())
    });
    shared_directory(&guest);
    let [own, qemu] =
        [Costs::of(&guest, set_up[0], MEASURED, posts), Costs::of(&other, set_up[1], QEMU_MEASURED, posts)];
    compare(&own, &qemu);

    thread::scope(|scope| {
        scope.spawn(|| guest::answer_requests(&served, guest.terminal().expect("it was asked for")));
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

    println!("{} takes commands after {:.1?}", guest.node(), begin.elapsed());
    guest
}

/// Returns the time from the start of a machine's program to the first exit of its processors,
/// which comes with the first instructions of the guest. The machine is killed then.
fn set_up(served: &Served, prepared: &Prepared, config: &GuestConfig) -> Duration {
    let earlier = machines();
    let (begin, first_exit) = (Instant::now(), Mutex::new(None));
    let has_exited = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let progress = Progress::silent().cancelled_by({
            let has_exited = has_exited.clone();
            move || has_exited.load(Ordering::Relaxed)
        });
        scope.spawn(|| {
            let is_new = |machine: &PathBuf| !earlier.contains(machine) && counter(machine, "exits") > 0;
            while !machines().iter().any(is_new) {
                assert!(begin.elapsed() < LONG, "{}: no exit of a processor", config.node());
                // A faster look would take the processor of the machine that starts.
                thread::sleep(Duration::from_millis(1));
            }
            *first_exit.lock().unwrap() = Some(begin.elapsed());
            has_exited.store(true, Ordering::Relaxed);
        });
        let ended = Guest::boot_prepared(prepared, config, &progress).map(drop);
        assert!(matches!(ended, Err(GuestError::Cancelled)), "{ended:?}");
    });

    // The next machine has the same functions.
    let has_client = || {
        let functions = served.snapshot().functions;
        functions
            .iter()
            .flat_map(|function| &function.attachments)
            .any(|attachment| attachment.client.is_some())
    };
    while has_client() {
        assert!(begin.elapsed() < 2 * LONG, "{}: its functions still have a client", config.node());
        thread::sleep(Duration::from_millis(10));
    }
    let first_exit = first_exit.into_inner().unwrap().unwrap();
    println!("{}: {first_exit:.1?} from the start of its machine to the first exit", config.node());
    first_exit
}

/// The costs of a guest.
struct Costs {
    set_up: Duration,
    exits: u64,
    resident: Resident,
    exits_of_posts: u64,
    /// Medians in nanoseconds.
    read: u64,
    interrupt: u64,
}

impl Costs {
    /// Measures a guest that takes commands. `function` is a DMA engine.
    fn of(guest: &Guest, set_up: Duration, function: &str, posts: u64) -> Self {
        let (exits, resident) = (exits(guest), Resident::of(guest));

        // The start and the end of a program cost exits too, which are in both numbers. A posted
        // write makes none, unless the engine sleeps and has to be woken.
        let [without, with] = [0, posts].map(|count| {
            let before = self::exits(guest);
            guest::run(guest, &format!("guest_program posts {function} {count}"));
            self::exits(guest) - before
        });
        let output = guest::run(guest, &format!("guest_program costs {function}")).stdout;
        let number = |name: &str| {
            let line = output.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{name}: {output}"))
        };

        let exits_of_posts = with.saturating_sub(without);
        Self { set_up, exits, resident, exits_of_posts, read: number("read"), interrupt: number("interrupt") }
    }
}

/// Prints what both virtual machines cost, and checks that our own costs no more than QEMU does
/// where other work on the host does not count.
fn compare(own: &Costs, qemu: &Costs) {
    let row = |what: &str, of: &dyn Fn(&Costs) -> String| println!("| {what} | {} | {} |", of(own), of(qemu));
    println!("| | our virtual machine | QEMU |\n| --- | --: | --: |");
    row("set-up, from the program's start to the first exit of a processor", &|of| {
        format!("{:.0?}", of.set_up)
    });
    row("exits for ports and trapped memory until the guest takes commands", &|of| of.exits.to_string());
    row("resident memory, KiB", &|of| of.resident.all().to_string());
    row("... of the program's file and libraries", &|of| of.resident.files.to_string());
    row("... of its own", &|of| of.resident.anonymous.to_string());
    row("exits of all posted writes", &|of| of.exits_of_posts.to_string());
    row("a trapped read, us", &|of| format!("{:.1}", of.read as f64 / 1e3));
    row("a copy of 8 bytes with its interrupt, us", &|of| format!("{:.1}", of.interrupt as f64 / 1e3));

    assert!(own.exits <= qemu.exits, "exits");
    assert!(own.resident.all() <= qemu.resident.all(), "resident memory");
}

/// Returns the folders of KVM's counters, one for each machine.
fn machines() -> Vec<PathBuf> {
    let folder = Path::new(COUNTERS).join("kvm");
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_dir()).collect()
}

/// Returns a counter of a machine, or 0 when the machine has ended.
fn counter(machine: &Path, name: &str) -> u64 {
    fs::read_to_string(machine.join(name)).map_or(0, |text| text.trim().parse().unwrap())
}

/// Returns the number of exits of a guest's processors for accesses of devices. Those for
/// interrupts and for the processor itself depend on the time that the guest takes.
fn exits(guest: &Guest) -> u64 {
    let begin = format!("{}-", guest.pid());
    let is_its_own = |path: &&PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&begin);
    let machines = machines();
    let counters = machines.iter().filter(is_its_own);
    let exits: u64 = counters.map(|path| counter(path, "io_exits") + counter(path, "mmio_exits")).sum();
    assert!(exits > 0, "{}: KVM counts no exits", guest.node());
    exits
}

/// The resident memory of a guest's machine in KiB, without memory files: the guest's RAM and the
/// memory of the served functions.
struct Resident {
    /// Pages of the program's file and its libraries, which other processes may share.
    files: u64,
    /// Pages of its own.
    anonymous: u64,
}

impl Resident {
    fn of(guest: &Guest) -> Self {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", guest.pid())).unwrap();
        let (mut resident, mut name) = (Self { files: 0, anonymous: 0 }, String::new());
        let mut mappings = Vec::new();
        let mut rss = 0;
        for line in maps.lines() {
            let size = |text: &str| text.trim_end_matches("kB").trim().parse::<u64>().unwrap();
            if let Some(text) = line.strip_prefix("Rss:") {
                rss = size(text);
            } else if let Some(text) = line.strip_prefix("Anonymous:") {
                // Pages of a file that the program has written to are its own too.
                if !name.contains("/memfd:") {
                    resident.anonymous += size(text);
                    resident.files += rss - size(text);
                    mappings.push((rss, size(text), name.clone()));
                }
            } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
                // The line before the sizes begins with the addresses, and the others with a name.
                name = line.to_owned();
            }
        }

        mappings.sort_unstable_by(|a, b| b.cmp(a));
        println!("{}: the largest mappings, with resident and own KiB", guest.node());
        mappings.iter().take(LARGEST).for_each(|(rss, own, name)| println!("  {rss:6} {own:6} {name}"));
        resident
    }

    fn all(&self) -> u64 {
        self.files + self.anonymous
    }
}

/// Reads the shared directory's image.
fn shared_directory(guest: &Guest) {
    let begin = Instant::now();
    let script = format!(
        "sha256sum </share/link/{}; ls -l /share; ls /share/many | wc -l; ! touch /share/new",
        own_vm::SHARED_FILE
    );
    let found = guest::run(guest, &script).stdout;
    assert!(found.lines().any(|line| line.trim() == own_vm::SHARED_COUNT.to_string()), "{found}");

    let text = own_vm::shared_text();
    let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sum.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let sum = String::from_utf8(sum.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(found.lines().next(), sum.lines().next());
    println!("the shared directory: {:.1?}", begin.elapsed());
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
    run_beside(own, &format!("guest_program velo-send {QEMU_VPID} 0"), &echo);

    let (take, lines) = start(qemu, &format!("guest_program rma-take {QEMU_VPID}"));
    let address = await_open(&take, &lines);
    run_beside(own, &format!("guest_program rma-put {QEMU_VPID} 0 {address}"), &take);
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

/// Runs a program in a guest, whose peer runs in another one. Both must succeed. The message of a
/// failure has the peer's lines too, since the cause may be there.
fn run_beside(guest: &Guest, script: &str, peer: &Running) {
    let output = guest.run(guest::printed(script), LONG).unwrap_or_else(|error| panic!("{script}: {error}"));
    if output.status != 0 {
        let end_of_peer = peer.wait(PEER_END);
        panic!("{script}: status {}; its peer: {end_of_peer:?}, {:?}", output.status, peer.output_so_far());
    }
    succeed(peer);
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
