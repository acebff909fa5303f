//! A guest reboots, panics, is reset, unplugs a function or loses its power. The device must be as
//! new afterwards. When its server is killed, a guest must keep running with a dead device.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::{Arc, mpsc};

use crate::guest_support::{LIMIT, Server, boot, logs, run, shim_checks, toolkit};
use nicforge_guest::{Driver, Function, Guest, GuestConfig, GuestError, Job};
use nicforge_hwi::proof::slot_fifo::REG_HOLD;

const MACHINE: &str = r#"
name = "life"
[[function]]
name = "fifo0"
kind = "slot-fifo"
[[function]]
name = "gpio0"
kind = "idio-16"
"#;

/// Returns a guest in which the FIFO cannot be unplugged, but the card of I/O ports can. QEMU (up
/// to 11.1) aborts when it unplugs a vfio-user function with MSI-X.
fn config(server: &Server) -> GuestConfig {
    let config = GuestConfig::new("guest").reboots(true).boot_deadline(LIMIT);
    config.user_function("fifo0.user0", server.socket("fifo0.user0", false)).function(Function {
        name: "gpio0.user0".into(),
        socket: server.socket("gpio0.user0", false),
        hotplug: true,
        user: true,
    })
}

/// Returns a script that enables the function, sets `register` to the address of its read-write
/// register, and continues with `then`.
fn with_register(then: &str) -> String {
    format!(
        "function=/sys/bus/pci/devices/0000:00:03.0\necho 1 >$function/enable\n\
         read -r base rest <$function/resource\nregister=$((base + {REG_HOLD}))\n{then}"
    )
}

/// Checks that the device is in its reset state, and that its register keeps a written value.
fn check_works(guest: &Guest) {
    let values =
        run(guest, &with_register("devmem $register 32; devmem $register 32 1; devmem $register 32"));
    assert_eq!(values, "0x00000000\n0x00000001\n");
}

#[test]
fn a_device_is_reset_for_a_rebooted_guest_and_dead_after_its_server() {
    let logs = logs("guest_life");
    let mut server = Server::start(MACHINE, &logs);
    let toolkit = toolkit();
    let guest = boot(&toolkit, config(&server), &logs);
    check_works(&guest);

    // The reset button, `reboot`, and a kernel panic.
    guest.reset().unwrap_or_else(|error| panic!("{error}"));
    check_works(&guest);
    for (starts, script) in [(3, "reboot -f; sleep 1000"), (4, "echo c >/proc/sysrq-trigger; sleep 1000")] {
        let error = guest.run(script, LIMIT).unwrap_err();
        assert!(matches!(error, GuestError::Restarted { .. }), "{error}");
        guest.wait_started(starts).unwrap_or_else(|error| panic!("{error}"));
        check_works(&guest);
    }

    // Linux removes a function and finds it again, which is no reset.
    let found = run(
        &guest,
        &format!(
            "cd /sys/bus/pci\necho 1 >devices/0000:00:03.0/remove\nlspci -n -s 3\necho 1 >rescan\n{}",
            with_register("devmem $register 32; devmem $register 32 0")
        ),
    );

    assert_eq!(found, "0x00000001\n");

    // A function is unplugged, and plugged in again.
    guest.unplug("gpio0.user0", LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(run(&guest, "lspci -n -d 494f:"), "");
    server.wait_unused("gpio0", "user0");
    guest.plug("gpio0.user0").unwrap_or_else(|error| panic!("{error}"));
    run(&guest, "until lspci -n -d 494f: | grep -q 494f:0dc8; do usleep 20000; done");
    check_works(&guest);

    // The guest loses its power.
    let running = guest.start("sleep 1000").unwrap();
    guest.kill();

    assert!(matches!(running.wait(LIMIT).unwrap_err(), GuestError::Ended { .. }));
    drop(guest);
    server.wait_unused("fifo0", "user0");
    let guest = boot(&toolkit, config(&server), &logs);
    check_works(&guest);

    // When the server is gone, reads return all ones, like those of a PCI bus without a device, and
    // the guest keeps running. The guest is not reset here, because QEMU (up to 11.1) aborts when
    // it cannot unmap the memory of a vfio-user function.
    server.kill();
    assert_eq!(run(&guest, &with_register("devmem $register 32; devmem $register 32 0")), "0xFFFFFFFF\n");
    assert_eq!(run(&guest, "echo well"), "well\n");
}

/// The memory that the server mapped into the guest stays there, with the engine's heartbeat, which
/// no longer changes.
#[test]
fn a_wait_in_the_kernel_module_ends_when_the_server_is_killed() {
    let logs = logs("guest_life_shim");
    let mut server = Server::start(MACHINE, &logs);
    let folder = tempfile::tempdir().unwrap();
    let config = GuestConfig::new("guest")
        .driver(Driver::Shim)
        .boot_deadline(LIMIT)
        .program(shim_checks(folder.path()))
        .user_function("fifo0.user0", server.socket("fifo0.user0", false));

    let guest = boot(&toolkit(), config, &logs);
    let (sender, lines) = mpsc::channel();
    let job = Job::shell("shim-checks answers-no-more /dev/nicforge0").on_line(Arc::new(move |_, line| {
        println!("{line}");
        // The receiver takes only the first line.
        let _ = sender.send(line.to_owned());
    }));

    let running = guest.start(job).unwrap();
    assert_eq!(lines.recv_timeout(LIMIT).unwrap(), "ready");
    server.kill();
    let output = running.wait(LIMIT).unwrap_or_else(|error| panic!("{error}"));

    assert_eq!(output.status, 0, "{output:?}");
    assert_eq!(run(&guest, "dmesg | grep -e BUG: -e WARNING: -e 'Call Trace' || true"), "");
}

/// The server requests its functions back with VFIO's request interrupt. QEMU (up to 11.1) does not
/// bind that interrupt for vfio-user functions.
#[test]
fn a_guest_keeps_running_while_its_server_is_stopped() {
    let logs = logs("guest_life_stopped");
    let mut server = Server::start(MACHINE, &logs);
    let config = GuestConfig::new("guest")
        .boot_deadline(LIMIT)
        .user_function("fifo0.user0", server.socket("fifo0.user0", false));
    let guest = boot(&toolkit(), config, &logs);
    check_works(&guest);
    server.stop();

    assert_eq!(run(&guest, &with_register("devmem $register 32")), "0xFFFFFFFF\n");
    assert_eq!(run(&guest, "echo well"), "well\n");
}
