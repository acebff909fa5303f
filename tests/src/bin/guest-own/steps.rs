//! The steps. Each begins on guests that take commands, and leaves them so.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use nicforge_guest::{Guest, Job, Output, Running};
use nicforge_tests::{
    backing::Served,
    exchange::{self, RmaSide},
    guest::{self, LONG},
    guest_program::{open_core, send},
    own_vm::{self, MEASURED, OUTER_RANK, OUTER_VPID, QEMU_MEASURED, QEMU_RANK, QEMU_VPID},
};
use nicforge_velo::Address;

use crate::{
    Guests, Scene,
    costs::{Costs, compare},
};

/// The addresses of the two guests in their network, and the port of the transfers.
const OWN_ADDRESS: &str = "10.1.0.1";
const QEMU_ADDRESS: &str = "10.1.0.2";
const PORT: u16 = 7000;
/// Time limit of a program whose peer is in the other guest. Those of its own waits are shorter.
const PROGRAM: Duration = Duration::from_secs(500);
/// Time from one look at a program's peer to the next.
const LOOK: Duration = Duration::from_millis(500);
/// How long the peer of a program that failed may take to end.
const PEER_END: Duration = Duration::from_secs(10);

/// A step of the test.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Scene, &Guests),
}

/// All steps, in their order.
pub(crate) const STEPS: [Step; 7] = [
    Step { name: "the shared directory", run: |_, guests| shared_directory(&guests.own) },
    Step { name: "the comparison of costs", run: costs },
    Step { name: "the bodies", run: |_, guests| bodies(&guests.own) },
    Step {
        name: "programs of guest and host",
        run: |scene, guests| programs_with_host(&scene.served, &guests.own),
    },
    Step {
        name: "programs of both guests",
        run: |_, guests| programs_between_guests(&guests.own, &guests.qemu),
    },
    Step {
        name: "the network of both guests",
        run: |scene, guests| network(&guests.own, &guests.qemu, scene.bytes),
    },
    Step { name: "the new start", run: |_, guests| start_anew(&guests.own) },
];

/// Compares what both guests cost.
fn costs(scene: &Scene, guests: &Guests) {
    let Guests { own, qemu } = guests;
    let own = Costs::of(own, scene.set_up[0], MEASURED, scene.posts);
    let qemu = Costs::of(qemu, scene.set_up[1], QEMU_MEASURED, scene.posts);
    compare(&own, &qemu);
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
    run_beside(own, &format!("guest_program io {QEMU_RANK}"), &compute);

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
    let output = run_while(guest, script, || match peer.wait_for(Duration::ZERO) {
        Ok(Some(output)) if output.status != 0 => Err(format!("{output:?}")),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    });
    if output.status != 0 {
        let end_of_peer = peer.wait(PEER_END);
        panic!("{script}: status {}; its peer: {end_of_peer:?}, {:?}", output.status, peer.output_so_far());
    }
    succeed(peer);
}

/// Runs a program in a guest, and looks at its peer meanwhile: without the peer, the program would
/// wait until its own deadline.
fn run_while(guest: &Guest, script: &str, look: impl Fn() -> Result<(), String>) -> Output {
    let begin = Instant::now();
    let program = guest.start(guest::printed(script)).unwrap_or_else(|error| panic!("{script}: {error}"));
    loop {
        let ended = program.wait_for(LOOK).unwrap_or_else(|error| panic!("{script}: {error}"));
        if let Some(output) = ended {
            return output;
        }
        look().unwrap_or_else(|error| panic!("{script}: its peer: {error}"));
        assert!(begin.elapsed() < PROGRAM, "{script} still runs: {:?}", program.output_so_far());
    }
}

/// Runs a command in a guest that reaches another guest by the network. It must succeed.
fn run_to(guest: &Guest, other: &Guest, script: &str) -> String {
    let output =
        run_while(guest, script, || other.watch(script, Duration::ZERO).map_err(|error| error.to_string()));
    assert_eq!(output.status, 0, "{script}: {output:?}");
    output.stdout
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
    run_to(guest, other, &format!("ping -c 3 -W 100 {QEMU_ADDRESS}"));
    run_to(other, guest, &format!("ping -c 3 -W 100 -s 1400 {OWN_ADDRESS}"));
    transfer(guest, other, QEMU_ADDRESS, bytes);
    transfer(other, guest, OWN_ADDRESS, bytes / 8);
}

/// Moves bytes over TCP, and compares the checksums of both ends.
fn transfer(from: &Guest, to: &Guest, address: &str, bytes: u64) {
    let begin = Instant::now();
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| run_to(to, from, &format!("guest-net receive {PORT} {bytes}")));
        // The sender tries until there is a receiver.
        let sent = run_to(from, to, &format!("guest-net send {address}:{PORT} {bytes}"));
        (sent, receiver.join().unwrap())
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
