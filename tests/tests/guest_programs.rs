//! Programs in guests, beside each other and beside programs of the host: FCNP over one machine,
//! memory that is mapped and unmapped, interrupts, a second program, a killed one, and a guest with
//! a hostile program.
//!
//! One test watches the memory of its process, which serves, so this is a program of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use nicforge_core::machine::Machine;
use nicforge_driver::{Cancel, Deadline};
use nicforge_fcnp::{ComputeCore, Error, IoNode};
use nicforge_guest::{Guest, GuestConfig, Job, Running, Stream};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_tests::{
    backing::{EventLoopKind, Rig, Served},
    bodies::GuestDoor,
    guest::{self, LONG},
    guest_program::{echo, open_core, open_io, send},
};

/// Returns a pset of two compute nodes, and the proof devices.
fn machine() -> Machine {
    let functions = [("fifo0", "slot-fifo"), ("dma0", "dma-engine"), ("send0", "addressed-send")]
        .map(|(name, kind)| format!("[[function]]\nname = \"{name}\"\nkind = \"{kind}\"\n"));
    let text = format!(
        "name = \"guests\"\n[[pset]]\ncompute_nodes = 2\n[[extoll]]\nmesh = 2\nvpids = 2\nwatchdog_ms = 500\n{}",
        functions.concat()
    );

    build(&parse(&text, "guests.toml", &families()).unwrap()).unwrap().0
}

/// Serves that machine.
fn served() -> Served {
    Served::new(machine(), EventLoopKind::Auto)
}

/// Returns a guest's configuration with these attachments, each as `function.attachment`.
fn config(served: &Served, name: &str, door: GuestDoor, attachments: &[&str]) -> GuestConfig {
    let sockets = attachments.iter().map(|name| {
        let (function, attachment) = name.split_once('.').unwrap();
        ((*name).to_owned(), served.socket(function, attachment))
    });
    guest::config(name, door, sockets.collect()).program(env!("CARGO_BIN_EXE_guest_program"))
}

/// Runs a role of the program in a guest. It must succeed.
fn play(guest: &Guest, role: &str) {
    guest::run(guest, &format!("guest_program {role}"));
}

/// Starts a role, and returns when it has printed `word`.
fn start(guest: &Guest, role: &str, word: &'static str) -> Running {
    let (sender, lines) = mpsc::channel();
    let job = Job::shell(format!("exec guest_program {role}")).on_line(Arc::new(move |stream, line| {
        println!("{line}");
        if stream == Stream::Output && line == word {
            let _ = sender.send(());
        }
    }));

    let running = guest.start(job).unwrap();
    lines
        .recv_timeout(LONG)
        .unwrap_or_else(|_| panic!("{role} never printed {word}: {:?}", running.output_so_far()));
    running
}

/// Checks the actions of unprivileged programs on the attachments of one guest, through one door.
fn programs(served: &Served, guest: &Guest, door: GuestDoor) {
    play(guest, "vectors");
    if door == GuestDoor::Vfio {
        // Without an IOMMU programs can't choose addresses to map and unmap.
        play(guest, "remap 40");
        play(guest, "pages 2048");
        play(guest, "outside");
        let dma0 = served.snapshot().functions.into_iter().find(|function| function.name == "dma0").unwrap();
        let errors = dma0.attachments[0].counters.dma_errors;
        assert!(errors >= 7, "{errors} accesses outside of mapped memory were counted");
    }

    let holder = start(guest, "hold fifo0 user0", "holding");
    play(guest, "refused fifo0 user0");
    holder.kill().unwrap();

    // The status of a shell whose program was killed by SIGKILL.
    assert_eq!(holder.wait(LONG).unwrap().status, 128 + 9);

    play(guest, "fifo");
    for _ in 0..3 {
        let transfer = start(guest, "transfer", "transferring");
        transfer.kill().unwrap();
        transfer.wait(LONG).unwrap();
        play(guest, "vectors");
    }
}

#[test]
fn programs_through_vfio() {
    let served = served();
    let guest =
        guest::boot(&config(&served, "programs-vfio", GuestDoor::Vfio, &["fifo0.user0", "dma0.user0"]));
    programs(&served, &guest, GuestDoor::Vfio);
}

#[test]
fn programs_through_the_shim() {
    let served = served();
    let guest =
        guest::boot(&config(&served, "programs-shim", GuestDoor::Shim, &["fifo0.user0", "dma0.user0"]));
    programs(&served, &guest, GuestDoor::Shim);
}

/// The I/O node runs in a guest with the shim, a core in a guest with VFIO, and another core on the
/// host.
#[test]
fn fcnp_between_guests_and_the_host() {
    let served = served();
    let node = guest::boot(&config(&served, "fcnp-io", GuestDoor::Shim, &["io0.core0"]));
    let core = guest::boot(&config(&served, "fcnp-cn", GuestDoor::Vfio, &["cn0.core0"]));

    play(&node, "read-only");
    play(&core, "read-only");
    thread::scope(|scope| {
        scope.spawn(|| play(&node, "io 0 4"));
        play(&core, "compute 0");
        send(&open_core(&served, 4));
    });

    // Now the I/O node runs on the host.
    drop(node);
    thread::scope(|scope| {
        scope.spawn(|| echo(&open_io(&served), &[0]));
        play(&core, "compute 0");
    });
}

/// Returns the duration of the hostile program: `NICFORGE_HOSTILE_SECONDS`, or a default that suits
/// CI.
fn hostile_seconds() -> u64 {
    std::env::var("NICFORGE_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Returns the resident memory of this process, which serves, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}

/// A guest program writes random values to all its attachments, while another guest and the host
/// exchange messages over the tree. The hostile guest has no core of the tree, since a guest with a
/// core can block a channel, as on Blue Gene/P (see the threat model, and
/// [`a_reset_clears_the_state_left_by_a_hostile_tree_node`]).
#[test]
fn a_hostile_guest_does_not_disturb_other_clients() {
    let served = served();
    let attachments = ["fifo0.user0", "dma0.user0", "send0.user0", "ex0.vpid0", "ex1.vpid0"];
    let hostile = guest::boot(&config(&served, "hostile", GuestDoor::Vfio, &attachments));
    let polite = guest::boot(&config(&served, "polite", GuestDoor::Shim, &["cn0.core0"]));
    let stop = Cancel::new().unwrap();
    let seconds = hostile_seconds();

    thread::scope(|scope| {
        scope.spawn(|| {
            let io = open_io(&served);
            let mut buffer = vec![0; 1 << 20];

            loop {
                match io.read_until(0, &mut buffer, Deadline::never(), Some(&stop)) {
                    Ok(size) => assert_eq!(io.write(0, &buffer[..size]).unwrap(), size),
                    // Each round uses a new program.
                    Err(Error::PeerGone { .. }) => (),
                    Err(Error::Cancelled { .. }) => return,
                    Err(error) => panic!("{error}"),
                }
            }
        });

        play(&polite, "compute 0");
        let before = resident();
        let attacker = scope.spawn(|| play(&hostile, &format!("hostile {seconds} 12345")));
        let started = Instant::now();
        let mut rounds = 0;

        while !attacker.is_finished() && started.elapsed() < Duration::from_secs(seconds) + LONG {
            play(&polite, "compute 0");
            rounds += 1;
        }

        stop.cancel();
        attacker.join().unwrap();
        println!(
            "{rounds} rounds of the polite guest; {} bytes more in the server",
            resident().saturating_sub(before)
        );

        assert!(rounds > 0);
        assert!(resident() < before + (64 << 20), "the server grew");
    });

    // An attachment that only its own client attacked works again.
    play(&hostile, "fifo");
    play(&hostile, "vectors");
}

/// Opens an I/O node and a compute core on this host. The core sends a message, and the I/O node
/// returns it. Each call and each opening takes at most `limit`.
fn exchange_message_over_tree(served: &Served, limit: Duration) -> Result<(), Error> {
    let config = nicforge_fcnp::Config { timeout: Some(limit), open_timeout: limit, ..Default::default() };
    let message = [7; 70_000];
    let echo = || {
        let io = IoNode::open(served.open("io0", "core0"), config)?;
        let mut buffer = vec![0; message.len()];
        let size = io.read(0, &mut buffer)?;
        io.write(0, &buffer[..size]).map(drop)
    };

    thread::scope(|scope| {
        let echo = scope.spawn(echo);
        let core = || {
            let core = ComputeCore::open(served.open("cn0", "core0"), config)?;
            let mut received = vec![0; message.len()];
            core.write(&message)?;
            core.read(&mut received)?;
            assert!(received == message, "the message came back changed");
            Ok(())
        };

        let core = core();
        echo.join().unwrap().and(core)
    })
}

/// A guest with a node of the tree can block a channel for a while, as any node that does not read
/// can. Round trips beside it may time out, but their data are never wrong. The operator's reset of
/// the node ends the blockage, and the guest may stay.
#[test]
fn a_reset_clears_the_state_left_by_a_hostile_tree_node() {
    let served = served();
    let hostile = guest::boot(&config(&served, "hostile-node", GuestDoor::Vfio, &["cn1.core0"]));
    let short = Duration::from_secs(5);

    exchange_message_over_tree(&served, LONG).unwrap();
    let (mut succeeded, mut failed) = (0, 0);
    thread::scope(|scope| {
        let attacker = scope.spawn(|| play(&hostile, &format!("hostile {} 12345", hostile_seconds() / 2)));
        while !attacker.is_finished() {
            match exchange_message_over_tree(&served, short) {
                Ok(()) => succeeded += 1,
                Err(_) => failed += 1,
            }
        }
        attacker.join().unwrap();
    });

    let blocked = exchange_message_over_tree(&served, short);
    served.reset("cn1");

    println!("beside the hostile program {succeeded} round trips, {failed} failures; then {blocked:?}");
    exchange_message_over_tree(&served, LONG).unwrap();
}

/// Runs the driver library on a card that is not nicforge's: QEMU's `edu`. The library refuses the
/// card until the guest has given it to `driver`.
fn edu(name: &str, door: GuestDoor, driver: &str, address: &str) {
    // The card reaches 256 MB by default, and the guest has more.
    let config = guest::config(name, door, vec![])
        .device("edu,addr=1d.0,dma_mask=0xffffffff")
        .program(env!("CARGO_BIN_EXE_edu"));
    let guest = guest::boot(&config);
    let device = "/sys/bus/pci/devices/0000:00:1d.0";
    let script = format!(
        "edu {address} 2>&1 && exit 1
         echo {driver} > {device}/driver_override && echo 0000:00:1d.0 > /sys/bus/pci/drivers_probe
         edu {address} && edu {address}"
    );

    let output = guest::run(&guest, &script);
    assert!(output.stdout.contains("10! = 3628800") && output.stdout.contains("unchanged: true"));
}

#[test]
fn edu_through_vfio() {
    edu("edu-vfio", GuestDoor::Vfio, "vfio-pci", "vfio:0000:00:1d.0");
}

#[test]
fn edu_through_the_shim() {
    edu("edu-shim", GuestDoor::Shim, "nicforge-shim", "shim:/dev/nicforge0");
}
