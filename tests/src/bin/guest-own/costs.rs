//! The costs of a guest: set-up, exits, memory, and the time of accesses and interrupts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicforge_guest::{Guest, GuestConfig, GuestError, Prepared, Progress};
use nicforge_tests::{
    backing::Served,
    guest::{self, LONG},
};

use crate::await_no_client;

/// The counters of KVM, a folder for each machine.
pub(crate) const COUNTERS: &str = "/sys/kernel/debug";
/// Number of times that the set-up of each machine is measured.
const SET_UPS: usize = 3;
/// How many mappings of a machine are shown.
const LARGEST: usize = 12;

/// Returns the median times of two machines from the start of the program to the first exit of the
/// processors. The machines take turns.
pub(crate) fn set_up_in_turns(
    served: &Served,
    prepared: &Prepared,
    configs: &[GuestConfig; 2],
) -> [Duration; 2] {
    let mut times = [[Duration::ZERO; SET_UPS]; 2];
    for round in 0..SET_UPS {
        for (config, times) in configs.iter().zip(&mut times) {
            times[round] = set_up(served, prepared, config);
        }
    }

    times.map(|mut times| {
        times.sort_unstable();
        times[SET_UPS / 2]
    })
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

    await_no_client(served);
    let first_exit = first_exit.into_inner().unwrap().unwrap();
    println!("{}: {first_exit:.1?} from the start of its machine to the first exit", config.node());
    first_exit
}

/// The costs of a guest.
pub(crate) struct Costs {
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
    pub(crate) fn of(guest: &Guest, set_up: Duration, function: &str, posts: u64) -> Self {
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
pub(crate) fn compare(own: &Costs, qemu: &Costs) {
    let row = |what: &str, of: &dyn Fn(&Costs) -> String| println!("| {what} | {} | {} |", of(own), of(qemu));
    println!("| | our virtual machine | QEMU |\n| --- | --: | --: |");
    row("set-up with four functions, from the program's start to the first exit of a processor", &|of| {
        format!("{:.1?}", of.set_up)
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
