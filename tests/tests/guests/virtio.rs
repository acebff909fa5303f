//! Linux drives the virtio network device in two guests, by its own driver `virtio_net`: ping, TCP,
//! a new driver, and resets in the middle of a transfer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, thread, time::Duration};

use nicforge_driver::Deadline;
use nicforge_guest::{Driver, Guest, GuestConfig, Progress, Running};
use nicforge_tests::{
    backing::{EventLoopKind, Rig, Served},
    guest::toolkit,
    virtio_body,
};

/// Time limit of a command in a guest, generous enough for an emulated processor on a loaded
/// machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of a transfer.
const BYTES: u64 = 64 << 20;
/// Bytes of a transfer after which it is disturbed.
const DISTURBED_AT: u64 = 8 << 20;
/// The port of the transfers.
const PORT: u16 = 7000;

/// A guest with one network device.
struct Station {
    guest: Guest,
    /// The name of the function.
    function: &'static str,
    /// The IP address of the guest's interface.
    address: &'static str,
}

#[test]
fn stock_linux_has_an_ethernet() {
    let served = Served::new(virtio_body::machine(), EventLoopKind::Auto);
    let (a, b) = thread::scope(|scope| {
        let second = scope.spawn(|| Station::boot(&served, "en1", "10.0.0.2"));
        (Station::boot(&served, "en0", "10.0.0.1"), second.join().unwrap())
    });

    // The device negotiated, the link is up, and the guests reach each other.
    for station in [&a, &b] {
        station.set_up();
        station.run("cat /sys/class/net/eth0/address && test $(cat /sys/class/net/eth0/mtu) = 1500");
        station.run("grep -q 1 /sys/class/net/eth0/carrier");
    }
    a.run("ping -c 5 10.0.0.2");
    b.run("ping -c 5 -s 1400 10.0.0.1");

    // A stream each way, and both at once.
    transfer(&served, &a, &b, || ());
    transfer(&served, &b, &a, || ());
    thread::scope(|scope| {
        scope.spawn(|| transfer(&served, &a, &b, || ()));
        transfer(&served, &b, &a, || ());
    });

    // Another driver instance finds the device as after power-on.
    b.unbind_and_bind();
    a.run("ping -c 5 10.0.0.2");

    // A stream goes on when its sender's or receiver's device is reset in the middle.
    transfer(&served, &a, &b, || a.unbind_and_bind());
    transfer(&served, &a, &b, || b.unbind_and_bind());
    transfer(&served, &a, &b, || {
        served.reset("en0");
        a.unbind_and_bind();
    });

    for function in ["en0", "en1"] {
        for counter in ["queue_errors", "bad_length", "bad_header", "short_buffer"] {
            assert_eq!(served.counter(function, counter), 0, "{counter} of {function}");
        }
    }
    for station in [a, b] {
        station.guest.power_off(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Sends a stream from one station to another. `disturb` runs in the middle.
fn transfer(served: &Served, from: &Station, to: &Station, disturb: impl FnOnce()) {
    let before = served.counter(to.function, "received_bytes");
    let receiver = to.start(&format!("guest-net receive {PORT} {BYTES}"));
    let sender = from.start(&format!("guest-net send {}:{PORT} {BYTES}", to.address));

    let deadline = Deadline::after(LIMIT);
    while served.counter(to.function, "received_bytes") - before < DISTURBED_AT {
        assert!(!deadline.has_passed(), "the transfer begins");
        thread::yield_now();
    }
    disturb();

    let [sent, received] = [(from, sender), (to, receiver)].map(|(station, job)| station.finish(job));
    assert!(sent.contains("checksum"), "{sent}");
    assert_eq!(sent.lines().last(), received.lines().last());
}

impl Station {
    /// Boots a guest with a function, whose interface is not set up yet.
    fn boot(served: &Served, function: &'static str, address: &'static str) -> Self {
        let name = format!("{function}.user0");
        let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join("virtio");
        let config = GuestConfig::new(function)
            .user_function(&name, served.socket(function, "user0"))
            .driver(Driver::None)
            .module("virtio_pci")
            .module("virtio_net")
            .program(env!("CARGO_BIN_EXE_guest-net"))
            .env("FUNCTION", &name)
            .logs(logs.join(function));

        let progress = Progress::on_stderr();
        let guest = Guest::boot(toolkit(), &config, &progress).unwrap_or_else(|error| panic!("{error}"));
        let problems = guest.problems();
        assert!(problems.is_empty(), "{problems:?}\n{}", guest.log_ends());

        Self { guest, function, address }
    }

    /// Sets the interface's address, and takes it into operation.
    fn set_up(&self) {
        self.run(&format!("ip addr add {}/24 dev eth0 && ip link set eth0 up", self.address));
    }

    /// Takes the device away from its driver, which resets it, and gives it back.
    fn unbind_and_bind(&self) {
        self.run(
            "card=${NICFORGE_DEVICES#$FUNCTION=}\n\
             cd /sys/bus/pci/drivers/virtio-pci && echo $card >unbind && test ! -e /sys/class/net/eth0 &&\n\
             echo $card >bind && test -e /sys/class/net/eth0",
        );
        self.set_up();
    }

    /// Starts a script in the guest.
    fn start(&self, script: &str) -> Running {
        self.guest.start(script).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits for a job, which must succeed, and returns its output.
    fn finish(&self, job: Running) -> String {
        let output = job.wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));
        print!("{}: {}", self.function, output.stdout);
        let logs = self.guest.log_ends();
        assert_eq!(output.status, 0, "{}{}\n{logs}", output.stdout, output.stderr);
        output.stdout
    }

    /// Runs a script that must succeed.
    fn run(&self, script: &str) -> String {
        self.finish(self.start(script))
    }
}
