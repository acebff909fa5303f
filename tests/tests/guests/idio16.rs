//! Linux drives the PCI-IDIO-16 in a guest, by its own driver `gpio-pci-idio-16`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, time::Duration};

use nicforge_guest::{Guest, GuestConfig, Progress, Provision};
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    idio16_body,
};

/// Time limit of a command in the guest, generous enough for an emulated processor on a loaded
/// machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Edges that `guest-gpio lines` makes while it listens: both of each line, and 200 of one.
const EDGES: u64 = 2 * 16 + 200;

// ANCHOR: guest
#[test]
fn linux_drives_the_card_with_its_own_driver() {
    let served = Served::new(idio16_body::machine(), EventLoopKind::Auto);
    let progress = Progress::on_stderr();
    let toolkit = Provision::from_environment().provide(&progress).unwrap_or_else(|error| panic!("{error}"));
    let config = GuestConfig::new("linux")
        .user_function("gpio0.user0", served.socket("gpio0", "user0"))
        .module("gpio-pci-idio-16")
        .program(env!("CARGO_BIN_EXE_guest-gpio"))
        .reboots(true)
        .logs(Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest-logs").join("idio16"));

    let guest = Guest::boot(&toolkit, &config, &progress).unwrap_or_else(|error| panic!("{error}"));
    let problems = guest.problems();
    assert!(problems.is_empty(), "{problems:?}\n{}", guest.log_ends());

    // The driver found the card by itself, and the lines, their levels and their interrupts work.
    run(&guest, "test -e /sys/bus/pci/drivers/pci-idio-16/$CARD && guest-gpio lines $CARD");

    // Without the driver, the bare ports work.
    run(&guest, "rmmod gpio_pci_idio_16 && guest-gpio ports $CARD");

    // The driver finds the card again after a new scan of the bus.
    run(&guest, "cd /sys/bus/pci && echo 1 >devices/$CARD/remove && echo 1 >rescan && test -e devices/$CARD");
    run(&guest, "modprobe gpio-pci-idio-16 && guest-gpio lines $CARD");

    // The driver finds the card again after the guest's reset.
    guest.reset().unwrap_or_else(|error| panic!("{error}"));
    run(&guest, "guest-gpio lines $CARD");

    let snapshot = served.snapshot();
    assert_eq!(snapshot.functions[0].attachments[0].counters.interrupts, 3 * EDGES);

    guest.power_off(LIMIT).unwrap_or_else(|error| panic!("{error}"));
}

/// Runs a script that must succeed. `$CARD` in it is the card's PCI address.
fn run(guest: &Guest, script: &str) {
    let script = format!("CARD=${{NICFORGE_DEVICES#gpio0.user0=}}\n[ -n \"$CARD\" ] || exit 99\n{script}");
    let output = guest.run(script.as_str(), LIMIT).unwrap_or_else(|error| panic!("{error}"));
    print!("{}", output.stdout);
    let logs = guest.log_ends();
    assert_eq!(output.status, 0, "{script}\n{}{}\n{logs}", output.stdout, output.stderr);
}
// ANCHOR_END: guest
