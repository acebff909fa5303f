//! `nicforge bench velo`: the message rate of VELO through the engine, compared with its parts and
//! with sockets.
//!
//! An engine thread of this process serves two cards with a link between them. One application
//! thread has both ends of 1 to 8 pairs. Each pair is a sender on one card and a receiver on the
//! other. The results are messages per second, and the time of one message. The same two threads
//! also measure a bare ring, a Unix socket and a TCP connection.
//!
//! - `pairs.rs`: the pairs; `ring.rs`, `sockets.rs`, `libfabric.rs`: the other contestants;
//!   `count.rs`: instructions, counted by callgrind.

mod count;
mod libfabric;
mod pairs;
mod ring;
mod sockets;

use std::time::Duration;

use nicforge::failure::Failure;

use self::pairs::Pairs;
use super::cards::serve_two_cards;
use crate::{
    bench::{Bench, Run},
    contest::{self, Measurement, Results, all_samples, ratio},
    line_hop,
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
};

/// The bench.
pub const BENCH: Bench = Bench::new(
    "velo",
    "8-byte messages through the engine, beside a bare ring and sockets (valgrind counts instructions)",
    run,
)
.with_child(count::run_child);

/// Bytes of a message.
const BYTES: usize = 8;
/// The path of libfabric's ping-pong.
const LIBFABRIC: &str = "fi_pingpong-shm";
/// Numbers of pairs that are measured.
const PAIRS: [usize; 4] = [1, 2, 4, 8];
/// The goal for a send in a batch, in nanoseconds.
const MAX_SEND_NS: f64 = 20.0;

/// The amount of work in a measurement.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Duration of a measurement of a rate.
    sustained: Duration,
    /// Number of messages, one after the other, for a latency.
    latency_messages: u32,
    /// Number of batches of sends.
    batches: u32,
}

/// A contestant. Each has a row in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    /// The rate of messages of this number of pairs.
    Rate(usize),
    /// The time of a send alone.
    Send,
    /// The time of a message from its send until its receiver has it.
    Latency,
    /// The rate of records in a posted-write ring without an engine.
    BareRing,
    /// A pair of Unix sockets.
    Unix,
    /// A TCP connection over loopback.
    Tcp,
    /// libfabric's ping-pong over shared memory.
    Libfabric,
    /// The time of a cache line between the two processors.
    LineHop,
}

const CONTESTANTS: [Contestant; 11] = [
    Contestant::Rate(PAIRS[0]),
    Contestant::Rate(PAIRS[1]),
    Contestant::Rate(PAIRS[2]),
    Contestant::Rate(PAIRS[3]),
    Contestant::Send,
    Contestant::Latency,
    Contestant::BareRing,
    Contestant::Unix,
    Contestant::Tcp,
    Contestant::Libfabric,
    Contestant::LineHop,
];

/// A pair that another bench compares its own device with.
pub(in crate::benches) struct Peer(Pairs);

impl Peer {
    /// Measures the time of `messages` messages, each from its send until its receiver has it.
    pub(in crate::benches) fn latency(
        &mut self,
        messages: u32,
        longest: Duration,
    ) -> Result<Measurement, Failure> {
        self.0.measure_latency(&Effort { sustained: longest, latency_messages: messages, batches: 0 })
    }

    /// Measures the rate of messages over a time.
    pub(in crate::benches) fn rate(&mut self, sustained: Duration) -> Result<Measurement, Failure> {
        self.0.measure_rate(1, &Effort { sustained, latency_messages: 0, batches: 0 })
    }
}

/// Runs `body` on the application's processor, with a pair of two served cards.
pub(in crate::benches) fn with_pair<T>(
    run: &Run<'_>,
    placement: &Placement,
    body: impl FnOnce(&mut Peer) -> Result<T, Failure>,
) -> Result<T, Failure> {
    placement.within("application", || {
        let server = serve_two_cards(run, BENCH.name, placement)?;
        let measured = Pairs::open(&server, 1).and_then(|pairs| body(&mut Peer(pairs)));
        server.stop()?;
        measured
    })
}

/// Measures all contestants in turns, and counts instructions.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let effort = if run.quick {
        Effort { sustained: Duration::from_millis(30), latency_messages: 200, batches: 50 }
    } else {
        Effort { sustained: Duration::from_millis(400), latency_messages: 20_000, batches: 2_000 }
    };

    let rounds = if run.quick { 1 } else { 7 };
    run.steps((CONTESTANTS.len() * rounds + count::PAIRS.len()) as u64);
    let placement = Placement::engine_alone()?;
    let libfabric = libfabric::find();

    let measurements = placement.within("application", || {
        let server = serve_two_cards(run, BENCH.name, &placement)?;
        let mut pairs = Pairs::open(&server, PAIRS[PAIRS.len() - 1])?;

        let measurements = contest::run(run, rounds, CONTESTANTS.to_vec(), |contestant, _| {
            run.step(format!("{contestant:?}"))?;
            match contestant {
                Contestant::Rate(count) => pairs.measure_rate(*count, &effort),
                Contestant::Send => pairs.measure_send(&effort),
                Contestant::Latency => pairs.measure_latency(&effort),
                Contestant::BareRing => ring::measure_rate(placement.processor_of("engine"), &effort),
                Contestant::Unix => sockets::measure_unix(placement.processor_of("engine"), &effort),
                Contestant::Tcp => sockets::measure_tcp(placement.processor_of("engine"), &effort),
                Contestant::Libfabric => match &libfabric {
                    Some(program) => libfabric::measure_shm(program, &placement, &effort),
                    None => Ok(Measurement::default()),
                },
                Contestant::LineHop => {
                    let processor = placement.processor_of("engine");
                    line_hop::measure(processor, effort.latency_messages, effort.sustained)
                }
            }
        })?;

        drop(pairs);
        server.stop()?;
        Ok(measurements)
    })?;

    let mut outcome = Outcome { rows: rows(&placement, &measurements), ..Outcome::default() };
    outcome.goals = vec![goal(&measurements)];
    let counted = count::instructions(run)?;
    outcome.rows.extend(counted.rows);
    outcome.goals.extend(counted.goals);
    outcome.notes = counted.notes;
    outcome.notes.push(
        "velo-rate: one thread sends and receives, one is the engine; bare-ring: the same two, one writes and one reads posted-write \
         records of 8 bytes; of_ring: the rate, of the bare ring's"
            .into(),
    );

    outcome.notes.push(match libfabric {
        Some(_) => {
            "fi_pingpong-shm: half a round trip of two processes, the median of the runs' means".into()
        }
        None => {
            "fi_pingpong was not found: install libfabric's tools to have fi_pingpong-shm beside the others"
                .into()
        }
    });

    if libfabric.is_none() {
        outcome.rows.retain(|row| row.path != LIBFABRIC);
    }

    outcome.notes.push(line_hop::NOTE.into());
    outcome
        .notes
        .push("unix, tcp: p50 is half a round trip, the rate is one way, a system call a message".into());
    Ok(outcome)
}

/// Returns a row of figures for each contestant.
fn rows(placement: &Placement, measurements: &Results<Contestant>) -> Vec<Row> {
    let bare_ring = measurements.of(&Contestant::BareRing);
    measurements
        .iter()
        .map(|(contestant, measurements)| {
            let row = |path: &str, backing| Row {
                backing,
                placement: Some(placement.text()),
                bytes: Some(BYTES as u64),
                ..Row::new(path).with_measurements(measurements)
            };

            let served = Some(Backing::VfioUser);

            match contestant {
                Contestant::Rate(pairs) => row("velo-rate", served)
                    .figure("pairs", *pairs as f64)
                    .figure("of_ring", ratio(measurements, bare_ring)),
                Contestant::Send => row("velo-send", served).figure("batch", f64::from(pairs::BATCH)),
                Contestant::Latency => row("velo-latency", served),
                Contestant::BareRing => row("bare-ring", None),
                Contestant::Unix => row("unix", None),
                Contestant::Tcp => row("tcp", None),
                // Each of its samples is a mean, so a percentile has no meaning.
                Contestant::Libfabric => Row { p99_us: None, ..row(LIBFABRIC, None) },
                Contestant::LineHop => Row { bytes: None, ..row(line_hop::PATH, None) },
            }
        })
        .collect()
}

/// Returns the goal of the benchmark, with the measured value.
fn goal(measurements: &Results<Contestant>) -> Goal {
    Goal::at_most(
        "one velo send in a batch, nanoseconds",
        MAX_SEND_NS,
        all_samples(measurements.of(&Contestant::Send)).percentile(50.0),
    )
}
