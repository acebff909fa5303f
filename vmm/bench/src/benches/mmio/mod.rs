//! `nicforge bench mmio`: the cost of register accesses, compared with bare sockets, rings and
//! eventfds.
//!
//! The results are rows for the accesses of a served device and for their bare counterparts, once
//! for each placement. The benchmark uses sockets in a directory of its own, a child process and
//! eventfds.
//!
//! This process is the client. The servers run in a child process, which ends when its standard
//! input is closed. They are an engine with the machine under test, the server of the `vfio_user`
//! crate, and a socket that answers with bytes. The client and the servers therefore share no
//! address space, as in real use. All contestants of a placement are measured in turns
//! ([`contest`]).
//!
//! | file | contents |
//! | --- | --- |
//! | `server.rs` | the child process |
//! | `device.rs` | the device in it |
//! | `registers.rs` | reads and writes through the driver library |
//! | `interrupt.rs` | interrupts, and eventfds alone |
//! | `ring.rs` | the posted-write ring without an engine |
//! | `peers.rs` | bare sockets |
//! | `vfio_user_crate.rs` | the crate's server and client |

pub(super) mod device;
pub(super) mod interrupt;
mod peers;
pub(super) mod registers;
mod ring;
mod server;
#[cfg(feature = "bench-peers")]
mod vfio_user_crate;

use std::time::{Duration, Instant};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Backoff, Device, OpenOptions};

use self::server::ServerProcess;
use crate::{
    bench::{Bench, Run},
    contest::{self, Measurement, all_samples},
    placement,
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
    samples::Samples,
};

/// The bench.
pub const BENCH: Bench = Bench::new(
    "mmio",
    "register accesses and interrupts of a served device, beside bare sockets and rings",
    run,
)
.with_child(server::main);

/// The measured paths of a device of registers, on a host and in a guest.
pub const REGISTER_PATHS: [&str; 7] = [
    "trapped-read",
    "trapped-read-hot",
    "trapped-write",
    "posted-write",
    "posted-write-done",
    "posted-write-done-asleep",
    "irq",
];

/// Number of posted writes in a batch.
const BATCH: u32 = 1_000;
/// Cells of each ring: more than a batch, so that a batch never finds its ring full.
const RING_CELLS: u32 = 4_096;
/// The pause before an access that must find the other side asleep. The engine polls for 50 us.
const PAUSE: Duration = Duration::from_micros(300);
/// The longest wait for the other side.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The goal for a hot trapped read, as a multiple of the `vfio_user` crate's.
const MAX_RATIO_TO_CRATE: f64 = 0.5;
/// The goal for a trapped read of a sleeping engine, as a multiple of a socket's round trip.
const MAX_RATIO_TO_SOCKET: f64 = 1.15;
/// The goal for a posted write in a batch, in nanoseconds.
const MAX_POSTED_NS: f64 = 20.0;
/// The goal for the rate of posted writes, as a share of a bare ring's.
const MIN_SHARE_OF_RING: f64 = 0.5;

/// The amount of measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Number of measurements of each contestant and placement.
    pub(super) rounds: usize,
    /// Number of operations in a measurement that each follow a pause of [`PAUSE`].
    pub(super) paced: usize,
    /// Number of operations in a measurement that follow each other without a pause.
    pub(super) in_a_row: usize,
    /// Number of batches of [`BATCH`] writes in a measurement.
    pub(super) batches: usize,
    /// How long a measurement writes without a pause.
    pub(super) sustained: Duration,
}

/// The measurements of a full run.
const FULL: Effort =
    Effort { rounds: 20, paced: 100, in_a_row: 500, batches: 50, sustained: Duration::from_millis(75) };
/// The measurements of a quick run.
const QUICK: Effort =
    Effort { rounds: 2, paced: 20, in_a_row: 100, batches: 5, sustained: Duration::from_millis(10) };

/// A contestant of the comparison. It measures a rate, or times, or both.
pub(super) trait Contestant {
    /// Returns its name in the rows.
    fn path(&self) -> &'static str;

    /// Returns the way to its device, if it has one.
    fn backing(&self) -> Option<Backing> {
        None
    }

    /// Returns whether its times are those of single stores, and its rate that of writes without a
    /// pause.
    fn is_posted(&self) -> bool {
        false
    }

    /// Measures once.
    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure>;
}

/// Times `operation` repeatedly without a pause, after a twentieth as many untimed calls.
fn in_a_row(
    effort: &Effort,
    mut operation: impl FnMut() -> Result<(), Failure>,
) -> Result<Measurement, Failure> {
    let warm_up = effort.in_a_row / 20;
    for _ in 0..warm_up {
        operation()?;
    }

    let mut samples = Samples::with_capacity(effort.in_a_row);
    let start = Instant::now();
    let mut last_end = start;

    for _ in 0..effort.in_a_row {
        operation()?;
        let end = Instant::now();
        samples.add(end - last_end);
        last_end = end;
    }

    let rate = effort.in_a_row as f64 / (last_end - start).as_secs_f64();
    Ok(Measurement { rate: Some(rate), samples })
}

/// Times `operation` repeatedly. Before each call it pauses, and then calls `prepare`, which is not
/// timed.
fn paced(
    effort: &Effort,
    mut prepare: impl FnMut() -> Result<(), Failure>,
    mut operation: impl FnMut() -> Result<(), Failure>,
) -> Result<Measurement, Failure> {
    let mut samples = Samples::with_capacity(effort.paced);
    for _ in 0..effort.paced {
        std::thread::sleep(PAUSE);
        prepare()?;
        let start = Instant::now();
        operation()?;
        samples.add(start.elapsed());
    }

    Ok(Measurement::of_samples(samples))
}

/// Returns the placements that are possible on this host.
fn placements() -> Result<Vec<Placement>, Failure> {
    let processors = placement::processors()?;
    Ok(match processors.as_slice() {
        [first, second, ..] => vec![
            Placement::pinned(&[("server", *first), ("client", *second)]),
            Placement::pinned(&[("server", *first), ("client", *first)]),
            Placement::free(),
        ],
        [first] => vec![Placement::pinned(&[("server", *first), ("client", *first)])],
        [] => Vec::new(),
    })
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    // The driver library chooses its waiting times once, by the number of usable processors. The
    // choice is made here, before this process is pinned.
    let _ = Backoff::default();
    let effort = if run.quick { QUICK } else { FULL };
    let placements = placements()?;
    run.steps((placements.len() * effort.rounds) as u64);
    let mut outcome = Outcome::default();

    for placement in &placements {
        let server = ServerProcess::start(run.event_loop, placement.processor_of("server"))?;
        let rows = placement.within("client", || measure(run, &effort, placement, &server))?;
        server.stop()?;
        outcome.goals.extend(goals(&rows, &placement.text()));
        outcome.rows.extend(rows);
    }

    outcome.notes = notes(&effort, placements.len());
    Ok(outcome)
}

/// Measures all contestants of a placement. Returns their rows.
fn measure(
    run: &Run<'_>,
    effort: &Effort,
    placement: &Placement,
    server: &ServerProcess,
) -> Result<Vec<Row>, Failure> {
    let open = |number, options: OpenOptions| {
        Device::open_vfio_user(server.attachment(number), options).context(|| "opening the device".into())
    };
    let mut contestants: Vec<Box<dyn Contestant>> =
        registers::contestants(&open(0, OpenOptions::default())?, &open(1, registers::blocking())?)?;
    contestants.push(Box::new(peers::PingPong::new(server, peers::Waiting::Blocking)));
    contestants.push(Box::new(peers::PingPong::new(server, peers::Waiting::Spinning)));

    #[cfg(feature = "bench-peers")]
    contestants.extend(vfio_user_crate::contestants(server)?);

    contestants.push(Box::new(ring::BareRing::new(placement.processor_of("server"))));
    contestants.push(Box::new(interrupt::Irq::new(&open(2, registers::blocking())?)?));
    contestants.push(Box::new(interrupt::EventFds::new(placement.processor_of("server"))?));

    let placement_text = placement.text();
    let mut last_round = None;
    let results = contest::run(run, effort.rounds, contestants, |contestant, round| {
        // The progress counts rounds, and not contestants.
        if last_round.replace(round) != Some(round) {
            run.step(format!("{placement_text}, round {}", round + 1))?;
        }
        contestant.measure(effort)
    })?;

    let row = |contestant: &dyn Contestant, measurements: &[Measurement]| {
        let row = Row {
            backing: contestant.backing(),
            placement: Some(placement_text.clone()),
            ..Row::new(contestant.path()).with_measurements(measurements)
        };

        // Microseconds with two decimals are too coarse for times of a few nanoseconds.
        if contestant.is_posted() {
            row.figure("p50_ns", all_samples(measurements).percentile(50.0))
        } else {
            row
        }
    };

    Ok(results.iter().map(|(contestant, measurements)| row(contestant.as_ref(), measurements)).collect())
}

/// Returns the goals for one placement, which are bounds on ratios of latencies and rates, with the
/// measured values. A goal is left out if one of its paths was not measured.
fn goals(rows: &[Row], placement: &str) -> Vec<Goal> {
    let find = |path: &str| rows.iter().find(|row| row.path == path);
    let p50 = |path| find(path).and_then(|row| row.p50_us);
    let rate = |path| find(path).and_then(|row| row.rate_per_s);
    let ratio = |measured: Option<f64>, reference: Option<f64>| {
        Some(measured? / reference.filter(|&reference| reference > 0.0)?)
    };
    let mut goals = Vec::new();

    if let Some(times) = ratio(p50("trapped-read-hot"), p50("vfio_user-crate-read")) {
        let description = format!("a hot trapped read, in medians of the vfio_user crate's; {placement}");
        goals.push(Goal::at_most(description, MAX_RATIO_TO_CRATE, times));
    }

    if let Some(times) = ratio(p50("trapped-read"), p50("unix-pingpong")) {
        let description =
            format!("a trapped read of a sleeping engine, in medians of a socket's ping-pong; {placement}");
        goals.push(Goal::at_most(description, MAX_RATIO_TO_SOCKET, times));
    }

    if let Some(microseconds) = p50("posted-write") {
        let description = format!("a posted write in a batch of {BATCH}, ns; {placement}");
        goals.push(Goal::at_most(description, MAX_POSTED_NS, microseconds * 1e3));
    }

    if let Some(times) = ratio(rate("posted-write"), rate("bare-ring")) {
        let description = format!("sustained posted writes, in rates of a bare ring; {placement}");
        goals.push(Goal::at_least(description, MIN_SHARE_OF_RING, times));
    }

    goals
}

/// Returns the notes below the table.
fn notes(effort: &Effort, placements: usize) -> Vec<String> {
    let mut notes = vec![
        format!(
            "the client is this process; the servers are in another. bare-ring and eventfd-pingpong have both ends in this one. \
             Medians are over {} measurements of each contestant, in turn",
            effort.rounds
        ),
        format!(
            "trapped-read, posted-write-done-asleep, unix-pingpong, the crate's -asleep, irq and eventfd-pingpong: {} us of rest before each, both sides block",
            PAUSE.as_micros()
        ),
        "trapped-read-hot, trapped-write, posted-write-done: one after the other, so that the engine does not sleep; unix-pingpong-spinning: both sides \
         look at their sockets; vfio_user-crate-read: one after the other, it always blocks"
            .into(),
        format!(
            "posted-write, bare-ring: times are means of batches of {BATCH} 4-byte writes into an empty ring of {RING_CELLS} cells, \
             rates those of writing without a pause"
        ),
    ];

    if placements == 1 {
        notes.push(
            "this process may use one processor only: the placements that need two were left out".into(),
        );
    }

    if cfg!(not(feature = "bench-peers")) {
        notes.push(
            "vfio_user-crate-read was left out: this program was built without its feature bench-peers"
                .into(),
        );
    }

    notes
}
