//! FCNP opened many times, and on all nodes of a full pset at once. These tests examine the whole
//! process, so they run one after another.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use nicforge_fcnp::{ComputeCore, Config, IoNode};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_tests::{
    backing::{EventLoopKind, InProcess, LIMIT, Rig, Served},
    fcnp_body,
};

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test of this process runs, and keeps others waiting.
fn lock_out_other_tests() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the options of FCNP, with a deadline for each wait.
fn config() -> Config {
    Config { timeout: Some(LIMIT), open_timeout: LIMIT, ..Config::default() }
}

/// Opens FCNP on the I/O node.
fn io_node(rig: &dyn Rig) -> IoNode {
    IoNode::open(rig.open("io0", "core0"), config()).unwrap()
}

/// Opens FCNP on core 0 of a compute node.
fn compute_core(rig: &dyn Rig, node: usize) -> ComputeCore {
    ComputeCore::open(rig.open(&format!("cn{node}"), "core0"), config()).unwrap()
}

/// The resources of this process, server included.
#[derive(Debug)]
struct ProcessResources {
    descriptors: usize,
    mappings: usize,
    threads: usize,
    /// Resident anonymous memory in KiB.
    memory: u64,
}

impl ProcessResources {
    /// Returns the resources that are in use now.
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: std::fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
            threads: std::fs::read_dir("/proc/self/task").unwrap().count(),
            memory: line.split_whitespace().nth(1).unwrap().parse().unwrap(),
        }
    }

    /// Returns whether no more resources are in use than `before`, but for a few mappings and 4 MiB
    /// of memory. A server closes and unmaps its last clients' resources shortly after they
    /// disconnect.
    fn is_at_most_about(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.mappings <= before.mappings + 8
            && self.threads <= before.threads
            && self.memory < before.memory + 4096
    }
}

/// Opens a core `times` times, and a new I/O node for every ten of them. Checks that the process
/// uses no more resources afterwards than before.
fn reopen_repeatedly(rig: &dyn Rig, times: usize) {
    let open = |times| {
        for _ in 0..times / 10 {
            let io = io_node(rig);
            for _ in 0..10 {
                drop(compute_core(rig, 0));
            }
            drop(io);
        }
    };

    open(100);
    let before = ProcessResources::now();
    let started = Instant::now();
    open(times);
    eprintln!(
        "{times} opens in {:?}: {before:?} before, {:?} after",
        started.elapsed(),
        ProcessResources::now()
    );

    let settling = Instant::now();
    while !ProcessResources::now().is_at_most_about(&before) {
        assert!(settling.elapsed() < LIMIT, "{before:?} before, {:?} after", ProcessResources::now());
        thread::yield_now();
    }
}

#[test]
fn ten_thousand_opens_in_process_leave_nothing() {
    let _alone = lock_out_other_tests();
    reopen_repeatedly(&InProcess::new(fcnp_body::machine(fcnp_body::DEPTH)), 10_000);
}

#[test]
fn a_thousand_opens_over_sockets_leave_nothing() {
    let _alone = lock_out_other_tests();
    for event_loop in [EventLoopKind::Auto, EventLoopKind::Epoll] {
        reopen_repeatedly(&Served::new(fcnp_body::machine(fcnp_body::DEPTH), event_loop), 1_000);
    }
}

/// All compute nodes of a full pset exchange messages with the I/O node at once.
#[test]
fn sixty_four_nodes_exchange_messages_at_once() {
    const NODES: usize = 64;
    const THREADS: usize = 4;
    const MESSAGES: usize = 6;

    let _alone = lock_out_other_tests();
    let text = include_str!("../../machines/pset64.toml");
    let rig = InProcess::new(build(&parse(text, "pset64.toml", &families()).unwrap()).unwrap().0);
    let io = io_node(&rig);
    let cores: Vec<_> = (0..NODES).map(|node| compute_core(&rig, node)).collect();
    let message = |node: usize, number: usize| -> Vec<u8> {
        let size = [16_usize, 1000, 4096, 255, 20_000, 65_536][number];
        (0..size).map(|at| (at * 3 + node * 31 + number * 101) as u8).collect()
    };
    let started = Instant::now();

    thread::scope(|scope| {
        for (node, core) in cores.iter().enumerate() {
            scope.spawn(move || {
                let mut buffer = vec![0; 70_000];
                for number in 0..MESSAGES {
                    let sent = message(node, number);
                    assert_eq!(core.write(&sent).unwrap(), sent.len());
                    let size = core.read(&mut buffer).unwrap();
                    assert!(buffer[..size] == sent, "message {number} of node {node} came back changed");
                }
            });
        }

        // Each thread of the application serves some of the nodes in turn.
        for first in 0..THREADS {
            let io = &io;
            scope.spawn(move || {
                let mut buffer = vec![0; 70_000];
                for number in 0..MESSAGES {
                    for node in (first..NODES).step_by(THREADS) {
                        let size = io.read(node as u32 * 4, &mut buffer).unwrap();
                        assert!(buffer[..size] == message(node, number), "message {number} of node {node}");
                        io.write(node as u32 * 4, &buffer[..size]).unwrap();
                    }
                }
            });
        }
    });

    eprintln!("{} messages each way in {:?}", NODES * MESSAGES, started.elapsed());
    let statistics = io.statistics();
    let messages = (NODES * MESSAGES) as u64;

    assert_eq!((statistics.messages_received, statistics.messages_sent), (messages, messages));
    assert_eq!((statistics.orphans, statistics.strays, statistics.peers_lost), (0, 0, 0));
}
