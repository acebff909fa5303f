//! FCNP between processes of a served pset. The tests kill and stop processes during transfers.
//!
//! The test binary itself is the program on the nodes, when it runs only [`child_process_body`].
//!
//! - `packets.rs`: packets of the system channel;
//! - `program.rs`: the program on the nodes;
//! - `rig.rs`: the served machine and the processes, as the tests use them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod packets;
mod program;
mod rig;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicforge_fcnp::{Error, Mode, Peer};
use nix::sys::signal::Signal;

use self::{
    packets::{Admin, exchange_packets},
    program::{SIZES, Side, answer, is_repeatable, pattern},
    rig::{Process, Server, wait_until},
};

/// Number of further stalls after which a writer counts as blocked.
const STALLS: u64 = 200;
/// A transfer of this size is still in progress when its first packets have been seen.
const LARGE_BYTES: usize = 64 << 20;

/// This is no test. It is the program on a node when the environment selects a role.
#[test]
fn child_process_body() {
    program::run();
}

/// Checks that this process's I/O node and a core's process exchange messages.
fn check_both_directions(io: &Side, core: &mut Process, rank: u32) {
    core.send_command(&format!("exchange {rank} {}", SIZES.len()));
    let mut buffer = vec![0; 100_000];
    for _ in SIZES {
        answer(io, rank, &mut buffer).unwrap();
    }
    core.expect("exchange ok");
}

/// Returns the error of a call whose core has ended.
fn core_gone(rank: u32) -> Error {
    Error::PeerGone { peer: Peer::Core { rank } }
}

/// Kills the process of core 0 during its write to an I/O node in this process, which reads in
/// `mode`. The read must fail soon, and other cores and a new process must be served.
fn check_killed_writer(mode: Mode) {
    let server = Server::start(2);
    let io = Side::Io(server.io_node(mode));
    let (mut writer, mut other) =
        (Process::start(&server, "compute", "cn0", 0), Process::start(&server, "compute", "cn1", 2));
    thread::scope(|scope| {
        let read = scope.spawn(|| io.read(0, &mut vec![0; LARGE_BYTES]));
        writer.send_command(&format!("write 0 {LARGE_BYTES}"));
        writer.expect("transferring");
        writer.kill();
        let killed = Instant::now();
        assert_eq!(read.join().unwrap(), Err(core_gone(0)));
        assert!(killed.elapsed() < Duration::from_secs(5));
    });

    check_both_directions(&io, &mut other, 6);
    check_both_directions(&io, &mut Process::start(&server, "compute", "cn0", 0), 0);
}

#[test]
fn core_killed_in_its_write_ends_the_read_with_polling() {
    check_killed_writer(Mode::Polling);
}

#[test]
fn core_killed_in_its_write_ends_the_read_with_interrupts() {
    check_killed_writer(Mode::Interrupt);
}

#[test]
fn killing_a_core_in_its_read_ends_the_write_and_other_cores_continue() {
    let server = Server::start(2);
    let io = Side::Io(server.io_node(Mode::Polling));
    let mut reader = Process::start(&server, "compute", "cn0", 0);
    let mut others =
        [Process::start(&server, "compute", "cn0", 1), Process::start(&server, "compute", "cn1", 0)];
    let data = pattern(0, LARGE_BYTES);
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &data));
        reader.send_command(&format!("read 0 {LARGE_BYTES}"));
        reader.expect("transferring");
        // Another core of the node waits at the same time, without the right to receive.
        others[0].send_command("read 1 1000");
        reader.kill();
        let killed = Instant::now();
        assert_eq!(write.join().unwrap(), Err(core_gone(0)));
        assert!(killed.elapsed() < Duration::from_secs(5));
    });

    assert_eq!(io.write(1, &pattern(1, 1000)), Ok(1000));
    assert_eq!(others[0].expect("read ok"), "1000 good");
    check_both_directions(&io, &mut others[0], 1);
    check_both_directions(&io, &mut others[1], 4);
    check_both_directions(&io, &mut Process::start(&server, "compute", "cn0", 0), 0);
}

#[test]
fn io_node_killed_in_transfers_fails_them_and_its_successor_serves() {
    let server = Server::start(2);
    let mut io = Process::spawn(&server, "io", "io0", 0);
    let mut writer = Process::start(&server, "compute", "cn0", 0);
    let mut reader = Process::start(&server, "compute", "cn1", 1);
    io.expect("ready");

    for command in ["read 0", "write 5"] {
        io.send_command(&format!("{command} {LARGE_BYTES}"));
    }

    writer.send_command(&format!("write 0 {LARGE_BYTES}"));
    writer.expect("transferring");
    // The writer is stopped so that its transfer does not end while the other one begins.
    writer.signal(Signal::SIGSTOP);
    reader.send_command(&format!("read 5 {LARGE_BYTES}"));
    reader.expect("transferring");
    io.kill();
    writer.signal(Signal::SIGCONT);

    assert_eq!(writer.expect_within("write", Duration::from_secs(5)), "peer gone");
    assert_eq!(reader.expect_within("read", Duration::from_secs(5)), "peer gone");
    // Each process gets the error once for its other direction, too, also when a new I/O node has
    // attached.
    writer.send_command("read 0 10");
    assert_eq!(writer.expect("read"), "peer gone");
    let io = Side::Io(server.io_node(Mode::Polling));
    reader.send_command("write 5 10");
    assert_eq!(reader.expect("write"), "peer gone");
    check_both_directions(&io, &mut writer, 0);
    check_both_directions(&io, &mut reader, 5);
}

#[test]
fn an_io_node_killed_between_calls_is_reported_in_each_direction() {
    let server = Server::start(1);
    let io = Process::start(&server, "io", "io0", 0);
    let mut core = Process::start(&server, "compute", "cn0", 0);
    io.kill();
    let io = Side::Io(server.io_node(Mode::Polling));

    for (command, name) in [("write 0 10", "write"), ("read 0 10", "read")] {
        core.send_command(command);
        assert_eq!(core.expect(name), "peer gone");
    }

    check_both_directions(&io, &mut core, 0);
}

#[test]
fn cores_of_a_node_in_separate_processes_hand_acknowledgements_to_each_other() {
    let server = Server::start(1);
    let io = Side::Io(server.io_node(Mode::Interrupt));
    let mut cores: Vec<_> = (0..4).map(|core| Process::start(&server, "compute", "cn0", core)).collect();
    let times = 10 * SIZES.len();

    for (rank, core) in cores.iter_mut().enumerate() {
        core.send_command(&format!("exchange {rank} {times}"));
    }

    thread::scope(|scope| {
        for rank in 0..4 {
            let io = &io;
            scope.spawn(move || {
                let mut buffer = vec![0; 100_000];
                for _ in 0..times {
                    answer(io, rank, &mut buffer).unwrap();
                }
            });
        }
    });

    let hand_overs: u64 =
        cores.iter_mut().map(|core| core.expect("exchange ok").parse::<u64>().unwrap()).sum();
    assert!(hand_overs > 0);
}

#[test]
fn stopped_reader_blocks_the_writer_and_loses_nothing() {
    let server = Server::start(2);
    let io = Side::Io(server.io_node(Mode::Polling));
    let (mut reader, mut other) =
        (Process::start(&server, "compute", "cn0", 0), Process::start(&server, "compute", "cn1", 0));
    let data = pattern(0, LARGE_BYTES);
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &data));
        reader.send_command(&format!("read 0 {LARGE_BYTES}"));
        reader.expect("transferring");
        reader.stop();

        // All buffers to the reader are full when the writer has stalled for a while.
        let stalls = io.statistics().stalls;
        wait_until("the writer stalls", || io.statistics().stalls > stalls + STALLS);
        let sent = io.statistics().packets_sent;

        // The other direction is free. A write is acknowledged only after the stuck data, so no
        // core begins one. The request itself still reaches the I/O node.
        other.send_command("write 4 1000");
        let stalls = io.statistics().stalls;
        wait_until("the writer goes on stalling", || io.statistics().stalls > stalls + STALLS);

        assert!(io.statistics().packets_sent <= sent + 1 && (sent as usize) < LARGE_BYTES / 256);
        assert!(!write.is_finished());

        reader.signal(Signal::SIGCONT);
        assert_eq!(write.join().unwrap(), Ok(LARGE_BYTES));
    });

    assert_eq!(reader.expect("read ok"), format!("{LARGE_BYTES} good"));

    let mut buffer = [0; 1000];
    assert_eq!(io.read(4, &mut buffer), Ok(1000));
    assert!(buffer[..] == pattern(4, 1000));
    other.expect("write ok");
}

/// The system channel uses the same link as the data that the stopped process does not take.
#[test]
fn stopped_reader_does_not_block_the_other_channel() {
    const PACKETS: u32 = 10_000;
    let server = Server::start(2);
    let io = Side::Io(server.io_node(Mode::Polling));
    let mut reader = Process::start(&server, "compute", "cn0", 0);
    let mut admins = ["io0", "cn0"].map(|node| Admin::open(&server.admin_socket(node)));
    let data = pattern(0, LARGE_BYTES);
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &data));
        reader.send_command(&format!("read 0 {LARGE_BYTES}"));
        reader.expect("transferring");
        reader.stop();

        let stalls = io.statistics().stalls;
        wait_until("the writer stalls", || io.statistics().stalls > stalls + STALLS);
        let sent = io.statistics().packets_sent;

        let [first, second] = &mut admins;
        exchange_packets([first, second], [0, 1], PACKETS);

        // No packet of the stopped reader's channel has moved in the meantime.
        assert!(io.statistics().packets_sent <= sent + 1);
        assert!(!write.is_finished());

        reader.signal(Signal::SIGCONT);
        assert_eq!(write.join().unwrap(), Ok(LARGE_BYTES));
    });

    assert_eq!(reader.expect("read ok"), format!("{LARGE_BYTES} good"));
}

#[test]
fn stopped_io_node_blocks_the_writer_and_loses_nothing() {
    let server = Server::start(1);
    let mut io = Process::spawn(&server, "io", "io0", 0);
    let core = server.compute_core("cn0", 3);
    io.expect("ready");
    let data = pattern(3, LARGE_BYTES);
    thread::scope(|scope| {
        let write = scope.spawn(|| core.write(&data));
        io.send_command(&format!("read 3 {LARGE_BYTES}"));
        io.expect("transferring");
        io.stop();

        let stalls = core.statistics().stalls;
        wait_until("the writer stalls", || core.statistics().stalls > stalls + STALLS);
        let sent = core.statistics().packets_sent;
        let stalls = core.statistics().stalls;
        wait_until("the writer goes on stalling", || core.statistics().stalls > stalls + STALLS);

        assert_eq!(core.statistics().packets_sent, sent);
        assert!(!write.is_finished());

        io.signal(Signal::SIGCONT);
        assert_eq!(write.join().unwrap(), Ok(LARGE_BYTES));
    });

    assert_eq!(io.expect("read ok"), format!("{LARGE_BYTES} good"));
}

/// The time within which a call must notice that the server was killed. It usually takes less than
/// a second, and the limit allows for a busy host. The heartbeat alone would take ten seconds.
const SOON: Duration = Duration::from_secs(4);

/// Kills the server during one call on an I/O node of this role and two calls on a compute core.
/// All calls must end soon, and so must a later one.
fn check_killed_server(role: &str, event_loop: &str) {
    let mut server = Server::start_with(1, event_loop);
    let mut io = Process::spawn(&server, role, "io0", 0);
    let mut idle = Process::start(&server, "compute", "cn0", 0);
    let mut waiting = Process::start(&server, "compute", "cn0", 1);
    io.expect("ready");

    // A message shows that the processes are in their calls, or about to make them.
    io.send_command("read 0 1000");
    idle.send_command("write 0 1000");
    idle.expect("write ok");
    io.expect("read ok");
    io.send_command("read 0 1000");
    waiting.send_command("read 1 1000");
    waiting.send_command("write 1 1000");
    server.kill();
    let killed = Instant::now();
    expect_end_soon(&mut io, "read", killed, &format!("{role}, {event_loop}: a read of the I/O node"));

    for call in ["read", "write"] {
        expect_end_soon(&mut waiting, call, killed, &format!("{role}, {event_loop}: a {call} of a core"));
    }

    let called = Instant::now();
    idle.send_command("write 0 10");

    expect_end_soon(&mut idle, "write", called, &format!("{role}, {event_loop}: a later write"));
}

/// Asserts that the named call of a process ends because the device is lost. Prints the time that
/// it took, for `--nocapture`.
fn expect_end_soon(process: &mut Process, call: &str, since: Instant, description: &str) {
    process.expect(&format!("{call} gone"));
    let duration = since.elapsed();
    eprintln!("{description}: {} ms", duration.as_millis());
    assert!(duration < SOON, "{description} took {duration:?}");
}

/// Kills the server during messages in both directions. All calls must end soon.
fn check_server_killed_in_transfers(role: &str, event_loop: &str) {
    let mut server = Server::start_with(1, event_loop);
    let mut io = Process::spawn(&server, role, "io0", 0);
    let mut first = Process::start(&server, "compute", "cn0", 0);
    let mut second = Process::start(&server, "compute", "cn0", 1);
    io.expect("ready");
    io.send_command("serve 0 2");
    first.send_command("persist 0 1000000");
    second.send_command("persist 1 1000000");
    first.expect("transferring");
    second.expect("transferring");
    server.kill();
    let killed = Instant::now();

    for (process, what) in [(&mut io, "serve"), (&mut first, "persist"), (&mut second, "persist")] {
        expect_end_soon(process, what, killed, &format!("{role}, {event_loop}: {what}"));
    }
}

#[test]
fn killed_server_ends_all_calls_soon_with_polling() {
    check_killed_server("io", "epoll");
    check_server_killed_in_transfers("io", "epoll");
}

#[test]
fn killed_server_ends_all_calls_soon_with_interrupts() {
    check_killed_server("io-interrupt", "epoll");
    check_server_killed_in_transfers("io-interrupt", "epoll");
}

/// The kernel removes an io_uring some time after its process has ended, and keeps the sockets open
/// until then.
#[test]
fn killed_server_with_any_event_loop_ends_all_calls_soon() {
    for role in ["io", "io-interrupt"] {
        check_killed_server(role, "auto");
        check_server_killed_in_transfers(role, "auto");
    }
}

#[test]
fn operators_reset_of_a_node_ends_its_transfer_and_a_new_process_can_open() {
    let server = Server::start(2);
    let io = Side::Io(server.io_node(Mode::Polling));
    let (mut reader, mut other) =
        (Process::start(&server, "compute", "cn0", 0), Process::start(&server, "compute", "cn1", 0));
    let data = pattern(0, LARGE_BYTES);
    thread::scope(|scope| {
        let write = scope.spawn(|| io.write(0, &data));
        reader.send_command(&format!("read 0 {LARGE_BYTES}"));
        reader.expect("transferring");
        server.reset("cn0");
        assert_eq!(write.join().unwrap(), Err(core_gone(0)));
    });

    reader.expect_within("read gone", Duration::from_secs(5));
    drop(reader);
    check_both_directions(&io, &mut other, 4);
    check_both_directions(&io, &mut Process::start(&server, "compute", "cn0", 0), 0);
}

/// A pseudo-random generator that yields the same numbers in each run.
struct Seeded(u64);

impl Seeded {
    /// Returns a pseudo-random number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Waits for a pseudo-random time of at most `maximum`. A process is killed after it.
fn wait_random_time(maximum: Duration, seeded: &mut Seeded) {
    let until = Instant::now() + Duration::from_micros(seeded.below(maximum.as_micros() as u64));
    while Instant::now() < until {
        thread::yield_now();
    }
}

#[test]
fn processes_killed_at_random_leave_no_state() {
    const KILLS: usize = 1000;
    let server = Server::start(2);
    let io = Side::Io(server.io_node(Mode::Polling));
    let stop = AtomicBool::new(false);
    let unexpected = Mutex::new(Vec::new());
    let mut seeded = Seeded(0x9e37_79b9_7f4a_7c15);
    thread::scope(|scope| {
        // On cn0 cores 0 and 1 end and start again beside core 2, which stays. On cn1 core 0 stays.
        for rank in [0, 1, 2, 4] {
            let (io, stop, unexpected) = (&io, &stop, &unexpected);
            scope.spawn(move || {
                let mut buffer = vec![0; 100_000];
                while !stop.load(Ordering::Relaxed) {
                    match answer(io, rank, &mut buffer) {
                        Ok(()) => {}
                        Err(error) if is_repeatable(&error) => {}
                        Err(error) => {
                            unexpected.lock().unwrap().push((rank, error));
                            break;
                        }
                    }
                }
            });
        }

        let mut stay =
            [Process::start(&server, "compute", "cn0", 2), Process::start(&server, "compute", "cn1", 0)];
        for (process, rank) in stay.iter_mut().zip([2, 4]) {
            process.send_command(&format!("exchange {rank} 4"));
            process.expect("exchange ok");
        }

        let before = server.held_resources();
        let mut memory = 0;
        for number in 0..KILLS {
            for (process, rank) in stay.iter_mut().zip([2, 4]) {
                process.send_command(&format!("exchange {rank} 4"));
            }

            let core = (number % 2) as u32;
            let mut victim = Process::spawn(&server, "compute", "cn0", core);

            // One process in four is killed while it opens the device.
            if number % 4 != 3 {
                victim.expect("ready");
                victim.send_command(&format!("exchange {core} 1000000"));
            }

            wait_random_time(Duration::from_millis(15), &mut seeded);
            victim.kill();

            for process in &mut stay {
                process.expect("exchange ok");
            }

            // By now the allocator holds the memory for one process after the other.
            if number == KILLS / 10 {
                memory = server.memory();
            }
        }

        wait_until("the server has let go of what the dead had", || server.held_resources() == before);
        let after = server.memory();
        assert!(after < memory + 4096, "anonymous memory grew from {memory} to {after} KiB");

        let mut last = [0, 1].map(|core| Process::start(&server, "compute", "cn0", core));
        for (core, process) in last.iter_mut().enumerate() {
            process.send_command(&format!("exchange {core} 8"));
            process.expect("exchange ok");
        }

        // The waiting calls end when their cores' processes are killed.
        stop.store(true, Ordering::Relaxed);
        last.into_iter().chain(stay).for_each(Process::kill);
    });

    assert_eq!(unexpected.into_inner().unwrap(), []);
}

#[test]
fn io_node_killed_at_random_is_followed_by_one_that_serves_all() {
    let server = Server::start(2);
    let mut seeded = Seeded(0x0123_4567_89ab_cdef);
    let mut io = Process::spawn(&server, "io", "io0", 0);
    let targets = [("cn0", 0, 0), ("cn0", 1, 1), ("cn1", 0, 4)];
    let mut cores = targets.map(|(node, core, _)| Process::spawn(&server, "compute", node, core));
    io.expect("ready");
    io.send_command("serve 0 8");

    for (core, (.., rank)) in cores.iter_mut().zip(targets) {
        core.expect("ready");
        core.send_command(&format!("persist {rank} 400"));
    }

    for _ in 0..15 {
        wait_random_time(Duration::from_millis(50), &mut seeded);
        io.kill();
        io = Process::start(&server, "io", "io0", 0);
        io.send_command("serve 0 8");
    }

    let lost: u64 = cores.iter_mut().map(|core| core.expect("persist ok").parse::<u64>().unwrap()).sum();
    assert!(lost > 0);
}
