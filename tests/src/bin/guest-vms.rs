//! Runs two of our own virtual machines at one served Ethernet, inside a guest with nested
//! virtualisation.
//!
//! ```text
//! guest-vms VMLINUX INITRD BYTES
//! ```
//!
//! The initramfs has `/root/station` as its first process: it takes commands on the second serial
//! port, and answers each with its output and `@STATUS`. The machines ping each other, move `BYTES`
//! bytes over TCP one way and an eighth of that the other way, and switch themselves off. The first
//! one also drives a card with I/O ports and an interrupt line. The exit status is 0 when all of it
//! worked. The program prints what it took.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use nicforge_engine::{EngineConfig, Quotas};
use nicforge_kvm::{End, RemoteFunction, Running, Vm, VmConfig};
use nicforge_tests::{
    backing::{Rig, Served},
    idio16_body, virtio_body,
};

/// Time limit of each wait, generous enough for nested emulation on a loaded machine.
const LIMIT: Duration = Duration::from_secs(400);
/// The slot of the network device, and that of the card.
const SLOT: u8 = 3;
const CARD_SLOT: u8 = 4;
/// Time limit of a call to a server.
const CALL: Duration = Duration::from_secs(30);
/// The port of the transfers.
const PORT: u16 = 7000;
/// The kernel's parameters, as for a guest of QEMU.
const COMMAND_LINE: &str =
    "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests rdinit=/root/station";
/// The first answer of a station.
const READY: &str = "@ready";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, bytes] = &arguments[..] else { panic!("guest-vms VMLINUX INITRD BYTES") };
    let bytes: u64 = bytes.parse().expect("a number of bytes");

    // The emulator takes the engine's processor away in the middle of a system call, which is not
    // the client's doing.
    let quotas = Quotas { long_call: LIMIT, ..Quotas::default() };
    let settings = EngineConfig { quotas, ..EngineConfig::default() };
    let served = Served::with_config(virtio_body::machine(), settings);
    let cards = Served::with_config(idio16_body::machine(), settings);
    let (en0, en1) = (served.socket("en0", "user0"), served.socket("en1", "user0"));
    let gpio0 = cards.socket("gpio0", "user0");
    let config = |processors| {
        VmConfig::new(kernel)
            .initrd(initrd)
            .command_line(COMMAND_LINE)
            .memory(160 << 20)
            .processors(processors)
    };
    let (a, b) = thread::scope(|scope| {
        let second = scope.spawn(|| Station::boot(&config(2), "en1", "10.0.0.2", &[(SLOT, en1)]));
        let first = Station::boot(&config(1), "en0", "10.0.0.1", &[(SLOT, en0), (CARD_SLOT, gpio0)]);
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

    for function in ["en0", "en1"] {
        for counter in ["queue_errors", "bad_length", "bad_header", "short_buffer"] {
            assert_eq!(served.counter(function, counter), 0, "{counter} of {function}");
        }
    }
    for station in [a, b] {
        station.power_off();
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

/// A virtual machine with one network device.
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
        function: &'static str,
        address: &'static str,
        functions: &[(u8, PathBuf)],
    ) -> Self {
        let begin = Instant::now();
        let mut vm = Vm::new(config).unwrap_or_else(|error| panic!("{error}"));
        let (console, answers) = (Lines::default(), Lines::default());
        vm.serial(0, Box::new(console.clone())).unwrap();
        vm.serial(1, Box::new(answers.clone())).unwrap();

        for (slot, socket) in functions {
            let function = RemoteFunction::connect(socket, CALL).unwrap_or_else(|error| panic!("{error}"));
            vm.plug(*slot, Arc::new(function)).unwrap_or_else(|error| panic!("{error}"));
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
