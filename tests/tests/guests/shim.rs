//! The kernel module `kmod-shim` in guests: a C program that uses only its header checks each of
//! its guarantees.
//!
//! The checks are in `tests/guest/shim`. This file provides their environment: guests with and
//! without an IOMMU, functions that are unplugged, a driver that is unbound, a server that dies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    path::Path,
    sync::{Arc, mpsc},
    time::Duration,
};

use nicforge_guest::{Driver, Function, Guest, GuestConfig, Job, Progress, Provision, Running};
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    guest, proof_body,
};

/// Time limit of each step, generous enough for a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The checks that need the slot FIFO.
const FIFO: [&str; 12] = [
    "open-twice",
    "registers",
    "mappings",
    "mapped-fifo",
    "caching",
    "read",
    "eventfd",
    "masking",
    "intx",
    "reset",
    "killed",
    "module-in-use",
];

/// The checks that need the DMA engine.
const ENGINE: [&str; 4] = ["coherent", "pinned", "untouched", "quota"];

/// A guest with proof devices that the shim drives.
struct Rig {
    guest: Guest,
    /// The server of the functions.
    _served: Served,
    /// Descriptions of failed checks.
    failures: Vec<String>,
}

impl Rig {
    /// Boots a guest with two functions on the root bus and one behind a root port.
    fn boot(name: &str, configure: impl FnOnce(GuestConfig) -> GuestConfig) -> Self {
        let served = Served::new(proof_body::machine(), EventLoopKind::Auto);
        let progress = Progress::on_stderr();
        let toolkit =
            Provision::from_environment().provide(&progress).unwrap_or_else(|error| panic!("{error}"));
        let config = GuestConfig::new(name)
            .driver(Driver::Shim)
            .boot_deadline(LIMIT)
            .program(guest::shim_checks(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)))
            .user_function("fifo0.user0", served.socket("fifo0", "user0"))
            .user_function("dma0.user0", served.socket("dma0", "user0"))
            .function(Function {
                name: "fifo0.user1".into(),
                socket: served.socket("fifo0", "user1"),
                hotplug: true,
                user: true,
            });

        let guest =
            Guest::boot(&toolkit, &configure(config), &progress).unwrap_or_else(|error| panic!("{error}"));

        assert!(guest.problems().is_empty(), "{:?}", guest.problems());

        let rig = Self { guest, _served: served, failures: Vec::new() };
        rig.shell("mount -t debugfs none /sys/kernel/debug");

        // The check of the quota requests more memory than this.
        rig.shell("echo 256 > /sys/module/nicforge_shim/parameters/dma_quota_mb");
        rig
    }

    /// Runs a script that must succeed, and returns its output.
    fn shell(&self, script: &str) -> String {
        let output = self.guest.run(script, LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(output.status, 0, "{script}: {output:?}");
        output.stdout.trim().to_owned()
    }

    /// Returns the PCI address of a function that was present at the start.
    fn address(&self, function: &str) -> String {
        self.shell(&format!("echo $NICFORGE_DEVICES | tr , '\\n' | sed -n 's/^{function}=//p'"))
    }

    /// Returns the function's device file. After a new bind the file may be another one.
    fn file(&self, address: &str) -> String {
        format!("/dev/{}", self.shell(&format!("ls /sys/bus/pci/devices/{address}/nicforge")))
    }

    /// Prints a check's output, and records its failure.
    fn note(&mut self, check: &str, output: &nicforge_guest::Output) {
        print!("{}", output.stdout);
        if output.status != 0 {
            self.failures.push(format!("{check}: {output:?}"));
        }
    }

    /// Runs a check on one or more device files.
    fn run_check(&mut self, check: &str, files: &str) {
        let output = self.guest.run(format!("shim-checks {check} {files}").as_str(), LIMIT).unwrap();
        self.note(check, &output);
    }

    /// Starts a check, and returns when it reports that it has begun.
    fn start(&self, check: &str, file: &str) -> Running {
        let (sender, lines) = mpsc::channel();
        let sink = Arc::new(move |_, line: &str| {
            // If the check fails later, the receiver is gone already.
            let _ = sender.send(line.to_owned());
        });
        let job = Job::shell(format!("shim-checks {check} {file}")).on_line(sink);
        let running = self.guest.start(job).unwrap();
        let line = lines.recv_timeout(LIMIT).unwrap();

        assert_eq!(line, "ready", "{check}");

        running
    }

    /// Starts a check, calls `remove` while the check uses its file, and waits for the check's end.
    fn check_during_removal(&mut self, check: &str, file: &str, remove: impl FnOnce(&Self)) {
        let running = self.start(check, file);
        remove(self);
        let output = running.wait(LIMIT).unwrap();
        self.note(check, &output);
    }

    /// Fails if a check failed, or if the kernel reported a problem.
    fn finish(mut self) {
        let log = self.shell("dmesg");
        for line in log.lines() {
            if ["BUG:", "WARNING:", "Call Trace", "general protection"].iter().any(|bad| line.contains(bad)) {
                self.failures.push(line.to_owned());
            }
        }

        assert!(self.failures.is_empty(), "{:#?}\n{log}", self.failures);

        self.guest.power_off(LIMIT).unwrap();
    }
}

#[test]
fn the_shim_implements_its_header() {
    let mut rig = Rig::boot("shim", |config| config);
    let (fifo, engine) = (rig.address("fifo0.user0"), rig.address("dma0.user0"));
    let (fifo_file, engine_file) = (rig.file(&fifo), rig.file(&engine));

    // udev finds the module for the functions by its aliases.
    rig.shell(&format!(
        "modalias=$(cat /sys/bus/pci/devices/{fifo}/modalias)
        for alias in $(modinfo -F alias /nicforge/shim.ko); do
            case $modalias in $alias) exit 0 ;; esac
        done
        exit 1"
    ));

    rig.run_check("enumeration", &format!("{fifo_file} {engine_file}"));
    for check in FIFO {
        rig.run_check(check, &fifo_file);
    }

    for check in ENGINE {
        rig.run_check(check, &engine_file);
    }

    rig.finish();
}

#[test]
fn with_an_iommu_pinned_memory_is_one_segment_and_other_memory_is_unreachable() {
    let mut rig = Rig::boot("shim-iommu", |config| config.iommu(true));
    let (fifo, engine) = (rig.address("fifo0.user0"), rig.address("dma0.user0"));
    let (fifo_file, engine_file) = (rig.file(&fifo), rig.file(&engine));

    for check in ["eventfd", "intx", "killed"] {
        rig.run_check(check, &fifo_file);
    }

    for check in ENGINE.into_iter().chain(["iommu"]) {
        rig.run_check(check, &engine_file);
    }

    rig.check_during_removal("end", &fifo_file, |rig| {
        rig.shell(&format!("echo 1 > /sys/bus/pci/devices/{fifo}/remove"));
    });
    rig.finish();
}

#[test]
fn a_function_removed_while_open_fails_with_errors() {
    let mut rig = Rig::boot("shim-gone", |config| config);
    let fifo = rig.address("fifo0.user0");

    // Linux removes the function as if unplugged, and finds it again.
    let file = rig.file(&fifo);
    rig.check_during_removal("end", &file, |rig| {
        rig.shell(&format!("echo 1 > /sys/bus/pci/devices/{fifo}/remove"));
    });
    rig.shell("echo 1 > /sys/bus/pci/rescan");

    let file = rig.file(&fifo);
    rig.run_check("read", &file);

    // The driver unbinds it.
    rig.check_during_removal("end", &file, |rig| {
        rig.shell(&format!("echo {fifo} > /sys/bus/pci/drivers/nicforge-shim/unbind"));
    });
    rig.shell(&format!("echo {fifo} > /sys/bus/pci/drivers/nicforge-shim/bind"));

    let file = rig.file(&fifo);
    rig.run_check("read", &file);

    // The module can be unloaded when no process has a function open, and loaded again.
    rig.shell("rmmod nicforge_shim && insmod /nicforge/shim.ko");
    let file = rig.file(&fifo);
    rig.run_check("read", &file);

    // The link fails without a notification to Linux: the command register of the port in front of
    // the function is cleared, and the port's last bus number becomes wrong.
    let (hot, port) = (rig.address("fifo0.user1"), "/sys/bus/pci/devices/0000:00:05.0/config");
    rig.check_during_removal("answers-no-more", &rig.file(&hot), |rig| {
        for (bytes, offset) in [("\\000\\000", 4), ("\\377\\377", 25)] {
            rig.shell(&format!("printf '{bytes}' | dd of={port} bs=1 seek={offset} conv=notrunc"));
        }
    });

    rig.shell(&format!("echo 1 > /sys/bus/pci/devices/{hot}/remove"));
    rig.finish();
}

/// Number of times that functions and the module are removed while processes use them.
const ROUNDS: u32 = 15;

#[test]
fn functions_and_the_module_can_be_removed_while_two_processors_open_them() {
    let mut rig = Rig::boot("shim-race", |config| config.processors(2));
    let (fifo, engine) = (rig.address("fifo0.user0"), rig.address("dma0.user0"));

    assert_eq!(rig.shell("nproc"), "2");

    // The check opens and closes the functions until the file exists.
    rig.check_during_removal("race", "/tmp/enough", |rig| {
        rig.shell(&format!(
            "cd /sys/bus/pci
            round=0
            while [ $round -lt {ROUNDS} ]; do
                echo {fifo} > drivers/nicforge-shim/unbind && echo {fifo} > drivers/nicforge-shim/bind || exit
                echo 1 > devices/{engine}/remove && echo 1 > rescan || exit
                # The kernel refuses while a process has a function open or mapped.
                if rmmod nicforge_shim 2>/dev/null; then insmod /nicforge/shim.ko || exit; fi
                round=$((round + 1))
            done
            touch /tmp/enough"
        ));
    });

    // No process holds the module, and it works.
    rig.shell("rmmod nicforge_shim && insmod /nicforge/shim.ko");
    let (fifo_file, engine_file) = (rig.file(&fifo), rig.file(&engine));

    for check in FIFO {
        rig.run_check(check, &fifo_file);
    }

    rig.run_check("coherent", &engine_file);
    rig.finish();
}
