//! Runs two of our own virtual machines at one served Ethernet, inside a guest with nested
//! virtualisation.
//!
//! ```text
//! guest-vms FOLDER LOGS BYTES
//! ```
//!
//! `FOLDER` has an unpacked kernel `vmlinux`, the same one as a bzImage `vmlinuz`, and an `initrd`.
//! The first machine starts the one, and the second machine the other. The second one also has a
//! disk, random bytes and a console of this process, which is no server then.
//!
//! The initramfs has `/root/station` as its first process: it takes commands on the second serial
//! port, and answers each with its output and `@STATUS`. The machines ping each other, move `BYTES`
//! bytes over TCP one way and an eighth of that the other way, and switch themselves off. The first
//! one also drives a card with I/O ports and an interrupt line. The exit status is 0 when all of it
//! worked. The program prints what it took. The machines' consoles go to the folder `LOGS`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    process::Command,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use nicforge_core::device::Device;
use nicforge_engine::{EngineConfig, Quotas};
use nicforge_kvm::{End, Function, LocalFunction, RemoteFunction, Running, Vm, VmConfig};
use nicforge_tests::{
    backing::{Rig, Served},
    idio16_body, virtio_body,
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

/// Time limit of each wait, generous enough for nested emulation on a loaded machine.
const LIMIT: Duration = Duration::from_secs(1200);
/// The slot of the network device, and that of the card.
const SLOT: u8 = 3;
const CARD_SLOT: u8 = 4;
/// The slots of a machine's own devices.
const DISK_SLOT: u8 = 5;
const RANDOM_SLOT: u8 = 6;
const CONSOLE_SLOT: u8 = 7;
/// Bytes of the disk.
const DISK: u64 = 1 << 20;
/// Time limit of a call to a server. Server and caller may both be without a processor for seconds.
const CALL: Duration = Duration::from_secs(300);
/// The port of the transfers.
const PORT: u16 = 7000;
/// The kernel's parameters, as for a guest of QEMU.
const COMMAND_LINE: &str =
    "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests rdinit=/root/station";
/// The first answer of a station.
const READY: &str = "@ready";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, logs, bytes] = &arguments[..] else { panic!("guest-vms FOLDER LOGS BYTES") };
    let (folder, logs) = (Path::new(folder), Path::new(logs));
    let bytes: u64 = bytes.parse().expect("a number of bytes");

    // The emulator takes the engine's processor away in the middle of a system call, which is not
    // the client's doing.
    let quotas = Quotas { long_call: LIMIT, ..Quotas::default() };
    let settings = EngineConfig { quotas, ..EngineConfig::default() };
    let served = Served::with_config(virtio_body::machine(), settings);
    let cards = Served::with_config(idio16_body::machine(), settings);
    let (en0, en1) = (served.socket("en0", "user0"), served.socket("en1", "user0"));
    let gpio0 = cards.socket("gpio0", "user0");
    let config = |kernel, processors| {
        VmConfig::new(folder.join(kernel))
            .initrd(folder.join("initrd"))
            .command_line(COMMAND_LINE)
            .memory(160 << 20)
            .processors(processors)
    };
    let own = OwnDevices::new();
    let (a, b) = thread::scope(|scope| {
        let second = scope.spawn(|| {
            let functions = || [vec![(SLOT, remote(&en1))], own.functions()].concat();
            Station::boot(&config("vmlinuz", 2), logs, "en1", "10.0.0.2", functions)
        });
        let functions = || vec![(SLOT, remote(&en0)), (CARD_SLOT, remote(&gpio0))];
        let first = Station::boot(&config("vmlinux", 1), logs, "en0", "10.0.0.1", functions);
        (first, second.join().unwrap())
    });

    // The second machine has two processors, and both see their device.
    assert_eq!(a.run("grep -c ^processor /proc/cpuinfo").trim(), "1");
    assert_eq!(b.run("grep -c ^processor /proc/cpuinfo").trim(), "2");
    for station in [&a, &b] {
        station.run(&format!("ip addr add {}/24 dev eth0 && ip link set eth0 up", station.address));
    }

    a.run("ping -c 3 -W 100 10.0.0.2");
    b.run("ping -c 3 -W 100 -s 1400 10.0.0.1");
    transfer(&a, &b, bytes);
    transfer(&b, &a, bytes / 8);

    a.run(&format!("guest-gpio lines 0000:00:{CARD_SLOT:02x}.0"));
    own.check(&b);

    for function in ["en0", "en1"] {
        for counter in ["queue_errors", "bad_length", "bad_header", "short_buffer"] {
            assert_eq!(served.counter(function, counter), 0, "{counter} of {function}");
        }
    }
    for station in [a, b] {
        station.power_off();
    }
}

/// Connects to a served function.
fn remote(socket: &Path) -> Arc<dyn Function> {
    Arc::new(RemoteFunction::connect(socket, CALL).unwrap_or_else(|error| panic!("{error}")))
}

/// The files behind the devices of a machine's own: a disk whose changes are kept apart, random
/// bytes, and a console.
struct OwnDevices {
    folder: TempDir,
}

impl OwnDevices {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let lines: String = (0..DISK / 8).map(|line| format!("{line:7}\n")).collect();
        fs::write(folder.path().join("disk"), lines).unwrap();
        Self { folder }
    }

    fn functions(&self) -> Vec<(u8, Arc<dyn Function>)> {
        let access = Access::CopyOnWrite { limit: DISK };
        let image = Image::open(&self.folder.path().join("disk"), access).unwrap();
        let line = Line::append_to(&self.folder.path().join("console")).unwrap();
        let devices: [(u8, &str, Box<dyn Device>); 3] = [
            (DISK_SLOT, "disk", Box::new(VirtioBlk::device(image, "disk"))),
            (RANDOM_SLOT, "random", Box::new(VirtioRng::device())),
            (CONSOLE_SLOT, "console", Box::new(VirtioConsole::device(line))),
        ];
        let function = |(slot, name, device)| -> (u8, Arc<dyn Function>) {
            (slot, Arc::new(LocalFunction::of_device(name, device).unwrap()))
        };
        devices.into_iter().map(function).collect()
    }

    /// Lets Linux use the devices.
    fn check(&self, station: &Station) {
        let file = self.folder.path().join("disk");
        let sum = Command::new("sha256sum").stdin(File::open(&file).unwrap()).output().unwrap().stdout;
        let found = station.run("sha256sum </dev/vda; cat /sys/class/misc/hw_random/rng_current");
        assert!(found.as_bytes().starts_with(&sum), "{found}");
        assert!(found.contains("virtio_rng"), "{found}");

        // Writes are read back from the device, and leave the file as it is.
        station.run("dd if=/dev/hwrng of=/new bs=512 count=16 iflag=fullblock && test $(wc -c </new) = 8192");
        station.run("dd if=/new of=/dev/vda bs=4096 seek=3 conv=fsync && echo 3 >/proc/sys/vm/drop_caches");
        station.run("dd if=/dev/vda of=/back bs=4096 skip=3 count=2 && cmp /new /back");
        let after = Command::new("sha256sum").stdin(File::open(&file).unwrap()).output().unwrap().stdout;
        assert_eq!(after, sum);

        // Each piece of 16 bytes waits for the device, which is slow here.
        station.run("exec 3<>/dev/hvc0 && stty raw -echo <&3 && seq 1 30 >&3");
        let expected: String = (1..=30).map(|number| format!("{number}\n")).collect();
        let (begin, path) = (Instant::now(), self.folder.path().join("console"));
        while fs::read(&path).unwrap() != expected.as_bytes() {
            assert!(begin.elapsed() < LIMIT, "the console has {:?}", fs::read_to_string(&path));
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Moves bytes over TCP, and compares the checksums of both ends.
fn transfer(from: &Station, to: &Station, bytes: u64) {
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| to.run(&format!("guest-net receive {PORT} {bytes}")));
        // The sender tries until there is a receiver.
        let sent = from.run(&format!("guest-net send {}:{PORT} {bytes}", to.address));
        (sent, receiver.join().unwrap())
    });
    assert!(sent.contains("checksum"), "{sent}");
    assert_eq!(sent.lines().last(), received.lines().last());
}

/// A virtual machine with a network device.
struct Station {
    running: Running,
    function: &'static str,
    address: &'static str,
    console: Lines,
    answers: Lines,
}

impl Station {
    /// Boots a machine with functions behind sockets, and waits until it takes commands.
    fn boot(
        config: &VmConfig,
        logs: &Path,
        function: &'static str,
        address: &'static str,
        functions: impl FnOnce() -> Vec<(u8, Arc<dyn Function>)>,
    ) -> Self {
        let begin = Instant::now();
        let mut vm = Vm::new(config).unwrap_or_else(|error| panic!("{error}"));
        let (console, answers) = (Lines::default(), Lines::default());
        let log = File::create(logs.join(format!("{function}.console.log"))).unwrap();
        vm.serial(0, Box::new(Console { lines: console.clone(), log })).unwrap();
        vm.serial(1, Box::new(answers.clone())).unwrap();

        for (slot, function) in functions() {
            vm.plug(slot, function).unwrap_or_else(|error| panic!("{error}"));
        }

        let running = vm.start().unwrap_or_else(|error| panic!("{error}"));
        let set_up = begin.elapsed();
        let station = Self { running, function, address, console, answers };
        station.wait_for(READY);
        let (init, exits) = (begin.elapsed(), station.running.exits());
        println!("{function}: set up in {set_up:.2?}, commands after {init:.2?}; until then {exits:?}");
        station
    }

    /// Runs a command, which must succeed, and returns its output.
    fn run(&self, command: &str) -> String {
        let begin = Instant::now();
        let line = format!("{command}\n");
        assert_eq!(self.running.send(1, line.as_bytes()), line.len(), "the station reads its commands");
        let output = self.wait_for("@");
        let (output, status) = output.rsplit_once('@').unwrap();
        assert_eq!(status.trim(), "0", "{}: {command}\n{output}", self.function);
        print!("{}: {command} ({:.1?})\n{output}", self.function, begin.elapsed());
        output.to_owned()
    }

    /// Waits for a line that begins with `start`, and returns all output up to it.
    fn wait_for(&self, start: &str) -> String {
        self.answers.read_until_line(start).unwrap_or_else(|received| {
            let (end, console) = (self.running.wait(Duration::ZERO), self.console.all());
            panic!("{}: no {start}, only {received:?}; {end:?}\n{console}", self.function)
        })
    }

    fn power_off(self) {
        assert_eq!(self.running.send(1, b"poweroff -f\n"), 12);
        let end = self.running.wait(LIMIT);
        println!("{}: {:?}, in all {:?}", self.function, end, self.running.exits());
        assert_eq!(end, Some(End::PowerOff), "{}", self.console.all());
    }
}

/// The console, whose output is kept and goes to a file.
struct Console {
    lines: Lines,
    log: File,
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.log.write_all(bytes)?;
        self.lines.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.log.flush()
    }
}

/// The output of a serial port.
#[derive(Clone, Default)]
struct Lines(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Lines {
    fn all(&self) -> String {
        String::from_utf8_lossy(&self.0.0.lock().unwrap()).into_owned()
    }

    /// Waits for a complete line that begins with `start`. Takes all output up to its end, or
    /// returns what came before the deadline as an error.
    fn read_until_line(&self, start: &str) -> Result<String, String> {
        let deadline = Instant::now() + LIMIT;
        let (bytes, changed) = &*self.0;
        let mut bytes = bytes.lock().unwrap();
        loop {
            let text = String::from_utf8_lossy(&bytes).replace('\r', "");
            let mut end = 0;
            for line in text.split_inclusive('\n') {
                end += line.len();
                if line.starts_with(start) && line.ends_with('\n') {
                    *bytes = text[end..].into();
                    return Ok(text[..end].to_owned());
                }
            }

            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(text);
            }
            bytes = changed.wait_timeout(bytes, remaining).unwrap().0;
        }
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.lock().unwrap().extend(bytes);
        self.0.1.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
