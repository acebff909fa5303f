//! Measures a served machine at rest: its memory, and how often its threads run.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use nicforge_driver::{Device, OpenOptions};

use crate::server::Server;

/// Limit for the resident memory of a served machine of 65 nodes, in KiB.
const MAX_RESIDENT_KIB: u64 = 64 << 10;
/// Limit for the sleeps per second without clients. The program wakes up to check whether it must
/// end.
const MAX_SLEEPS_WITHOUT_CLIENTS: u64 = 20;
/// Limit for the sleeps per second with clients. The engine checks them every 10 ms.
const MAX_SLEEPS_WITH_CLIENTS: u64 = 150;
/// Limit for the processor time per second at rest, in clock ticks of 10 ms. A thread that polls
/// takes 100. The wake-ups of an idle engine take one, and several times as long on a busy host.
const MAX_TICKS: u64 = 10;

/// The activity of a server's threads, in all or in a second.
#[derive(Clone, Copy, Debug)]
struct Activity {
    /// How often threads have gone to sleep.
    sleeps: u64,
    /// Processor time in clock ticks.
    ticks: u64,
}

/// A server, with the kernel's statistics of it.
struct MeasuredServer(Server);

impl MeasuredServer {
    /// Returns a number from `/proc/PID/status` by its name.
    fn status(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
        status_number(&text, name)
    }

    /// Returns the activity of the server's threads since its start.
    fn activity(&self) -> Activity {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.pid())).unwrap();
        let sleeps = tasks.map(|task| {
            let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            status_number(&text, "voluntary_ctxt_switches")
        });
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();

        // utime and stime are fields 14 and 15 of proc(5). Field 3 is the first one after the name.
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Activity { sleeps: sleeps.sum(), ticks }
    }

    /// Returns the increase of [`Self::activity`] in one second. It is the least of several
    /// seconds, because disturbances on the host only increase it.
    fn activity_of_a_second(&self) -> Activity {
        let seconds = (0..5).map(|_| {
            let (before, started) = (self.activity(), Instant::now());
            // This sleep waits for nothing. It is the time in which activity is counted.
            std::thread::sleep(Duration::from_secs(1));
            let (after, time) = (self.activity(), started.elapsed().as_secs_f64());
            let sleeps = ((after.sleeps - before.sleeps) as f64 / time) as u64;
            Activity { sleeps, ticks: after.ticks - before.ticks }
        });
        let seconds: Vec<_> = seconds.collect();
        Activity {
            sleeps: seconds.iter().map(|second| second.sleeps).min().unwrap(),
            ticks: seconds.iter().map(|second| second.ticks).min().unwrap(),
        }
    }
}

/// Returns a number from the text of a `/proc/PID/status` by its name.
fn status_number(status: &str, name: &str) -> u64 {
    let line = status.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Checks the activity of a served full pset without clients and with idle ones, and its memory.
fn check_at_rest(event_loop: &str) {
    let server = MeasuredServer(Server::of_machine("pset64.toml", &["--event-loop", event_loop]));
    let without_clients = server.activity_of_a_second();
    println!(
        "{event_loop}: without clients {} sleeps and {} ticks a second",
        without_clients.sleeps, without_clients.ticks
    );

    assert!(
        without_clients.sleeps <= MAX_SLEEPS_WITHOUT_CLIENTS && without_clients.ticks <= MAX_TICKS,
        "{without_clients:?} a second without clients"
    );

    let nodes = (0..64).map(|node| format!("cn{node}")).chain(["io0".to_owned()]);
    let clients: Vec<_> = nodes
        .map(|node| {
            Device::open_vfio_user(server.0.socket(&format!("{node}.core0")), OpenOptions::default()).unwrap()
        })
        .collect();

    let Activity { sleeps, ticks } = server.activity_of_a_second();
    let memory = server.status("VmRSS");
    println!("{event_loop}: with 65 idle clients {sleeps} sleeps and {ticks} ticks a second, {memory} KiB");

    assert!(sleeps <= MAX_SLEEPS_WITH_CLIENTS, "{sleeps} sleeps a second");
    assert!(ticks <= MAX_TICKS, "{ticks} ticks a second");
    assert!(memory <= MAX_RESIDENT_KIB, "{memory} KiB resident");
    assert!(clients.iter().all(|client| !client.is_gone()));
}

#[test]
fn full_pset_rests_with_io_uring_where_it_works() {
    check_at_rest("auto");
}

#[test]
fn full_pset_rests_with_epoll() {
    check_at_rest("epoll");
}
