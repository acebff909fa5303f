//! Measures a served machine at rest: its memory, and how often its threads run.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use nicforge_driver::{Device, OpenOptions};

use crate::server::Server;

/// Limit for the resident memory of a served machine of 65 nodes, in KiB.
const MEMORY: u64 = 64 << 10;
/// Limit for the program's wake-ups per second without clients. It wakes up to check whether it
/// must end.
const WAKES_ALONE: u64 = 20;
/// Limit for the engine's wake-ups per second with clients. It checks them every 10 ms.
const WAKES: u64 = 150;
/// Limit for the processor time per second at rest, in clock ticks of 10 ms. A thread that polls
/// takes 100. The wake-ups of an idle engine take one, and several times as long on a busy host.
const TICKS: u64 = 10;

/// A server, with the kernel's statistics of it.
struct Watched(Server);

impl Watched {
    /// Returns a number from `/proc/PID/status` by its name.
    fn status(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
        number(&text, name)
    }

    /// Returns how often threads of the server have gone to sleep, and their processor time in
    /// ticks.
    fn activity(&self) -> (u64, u64) {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.pid())).unwrap();
        let sleeps = tasks.map(|task| {
            let text = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            number(&text, "voluntary_ctxt_switches")
        });
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();

        // utime and stime are fields 14 and 15 of proc(5). Field 3 is the first one after the name.
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        (sleeps.sum(), ticks)
    }

    /// Returns the increase of [`Self::activity`] in one second. It is the least of several
    /// seconds, because disturbances on the host only increase it.
    fn activity_of_a_second(&self) -> (u64, u64) {
        let seconds = (0..5).map(|_| {
            let (before, started) = (self.activity(), Instant::now());
            // This sleep waits for nothing. It is the time in which activity is counted.
            std::thread::sleep(Duration::from_secs(1));
            let (after, time) = (self.activity(), started.elapsed().as_secs_f64());
            let sleeps = ((after.0 - before.0) as f64 / time) as u64;
            (sleeps, after.1 - before.1)
        });
        let seconds: Vec<_> = seconds.collect();
        (
            seconds.iter().map(|second| second.0).min().unwrap(),
            seconds.iter().map(|second| second.1).min().unwrap(),
        )
    }
}

fn number(status: &str, name: &str) -> u64 {
    let line = status.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn check_at_rest(event_loop: &str) {
    let server = Watched(Server::of_machine("pset64.toml", &["--event-loop", event_loop]));
    let without_clients = server.activity_of_a_second();
    println!(
        "{event_loop}: without clients {} sleeps and {} ticks a second",
        without_clients.0, without_clients.1
    );

    assert!(
        without_clients.0 <= WAKES_ALONE && without_clients.1 <= TICKS,
        "{without_clients:?} sleeps and ticks a second without clients"
    );

    let nodes = (0..64).map(|node| format!("cn{node}")).chain(["io0".to_owned()]);
    let clients: Vec<_> = nodes
        .map(|node| {
            Device::open_vfio_user(server.0.socket(&format!("{node}.core0")), OpenOptions::default()).unwrap()
        })
        .collect();

    let (sleeps, ticks) = server.activity_of_a_second();
    let memory = server.status("VmRSS");
    println!("{event_loop}: with 65 idle clients {sleeps} sleeps and {ticks} ticks a second, {memory} KiB");

    assert!(sleeps <= WAKES, "{sleeps} sleeps a second");
    assert!(ticks <= TICKS, "{ticks} ticks a second");
    assert!(memory <= MEMORY, "{memory} KiB resident");
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
