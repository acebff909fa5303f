//! Functions behind PCIe root ports, like cards in slots. The guest's firmware and kernel find room
//! for every BAR in the ports' windows, also beside EXTOLL's pages of 4 GiB, and the drivers work.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, thread};

use nicforge_guest::{Function, Guest};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    bodies::GuestDoor,
    guest,
};

/// The description of the served machine.
const MACHINE: &str = r#"
name = "ports"
[[pset]]
compute_nodes = 1
[[extoll]]
mesh = 2
vpids = 4
"#;

/// Some attachments of the machine's functions, each with its number of BARs.
const FUNCTIONS: [(&str, usize); 5] =
    [("io0.core0", 5), ("cn0.core0", 5), ("ex0.vpid1", 5), ("ex1.vpid2", 5), ("ex0.vpid3", 5)];

/// Checks that each BAR has an address, and that every bridge's window was large enough.
fn check_bars(guest: &Guest) {
    let output = guest::run(
        guest,
        "IFS=,\nfor device in $NICFORGE_DEVICES; do\necho \"== $device\"\nlspci -vvv -s \"${device#*=}\"\ndone",
    );
    let sections: Vec<&str> = output.stdout.split("== ").skip(1).collect();

    assert_eq!(sections.len(), FUNCTIONS.len(), "{}", output.stdout);

    for ((name, bars), section) in FUNCTIONS.into_iter().zip(sections) {
        // The function is not on the root bus.
        assert!(
            section.starts_with(&format!("{name}=0000:0")) && !section.contains("=0000:00:"),
            "{section}"
        );

        let regions: Vec<&str> =
            section.lines().map(str::trim).filter(|line| line.starts_with("Region ")).collect();

        assert_eq!(regions.len(), bars, "{section}");

        for region in regions {
            let assigned = !["<unassigned>", "<ignored>", "[virtual]", "[disabled]"]
                .iter()
                .any(|bad| region.contains(bad));
            let kind = ["(32-bit, non-prefetchable)", "(64-bit, prefetchable)"];
            assert!(assigned && kind.iter().any(|kind| region.contains(kind)), "{section}");
        }
    }

    let log = guest::run(guest, "dmesg");
    for line in log.stdout.lines().filter(|line| line.contains("BAR ")) {
        assert!(!["no space", "failed", "can't"].iter().any(|bad| line.contains(bad)), "{line}");
    }
}

#[test]
fn every_bar_fits_below_root_ports_and_the_drivers_work() {
    let machine = build(&parse(MACHINE, "ports.toml", &families()).unwrap()).unwrap().0;
    let served = Served::new(machine, EventLoopKind::Auto);
    let checks = guest::shim_checks(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("ports"));
    let config = guest::config("ports", GuestDoor::Shim, vec![])
        .program(env!("CARGO_BIN_EXE_guest_program"))
        .program(checks);
    let config = FUNCTIONS.into_iter().fold(config, |config, (name, _)| {
        let (function, attachment) = name.split_once('.').unwrap();
        let socket = served.socket(function, attachment);
        config.function(Function { name: name.into(), socket, hotplug: true, user: true })
    });

    let guest = guest::boot(&config);
    check_bars(&guest);

    // Besides the core's mirror, each function has a BAR that only the device writes.
    guest::run(&guest, "for file in /dev/nicforge[0-9]*; do shim-checks read-only $file || exit; done");
    guest::run(&guest, "guest_program read-only");
    thread::scope(|scope| {
        scope.spawn(|| guest::run(&guest, "guest_program io 0"));
        guest::run(&guest, "guest_program compute 0");
    });
    guest::run(&guest, "guest_program velo");
}
