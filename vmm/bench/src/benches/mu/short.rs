//! Messages of 8 bytes through an engine: latencies and rates, beside VELO's.
//!
//! Two engine threads on one processor serve the nodes and two EXTOLL cards. The one that is not
//! measured sleeps. One application thread has both ends of all pairs.

use std::time::{Duration, Instant};

use nicforge::failure::Failure;

use super::{
    matching::Ranks,
    nodes::{self, CREDITS, Pair, STEP_TIMEOUT, open_pair, two_nodes},
};
use crate::{
    bench::Run,
    benches::extoll::velo,
    contest::{self, Measurement, Results, all_samples, ratio, samples_within},
    line_hop,
    machine::{Host, never_sleeping_wait},
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
};

/// Bytes of memory for the payloads.
const MEMORY: u64 = 4096;
/// Messages that are sent, and then taken, at a time.
const BURST: u32 = 64;
/// Number of bursts between two readings of the clock.
const BURSTS_PER_CHECK: u32 = 64;
/// The goal for a put's latency, as a multiple of VELO's.
const MAX_LATENCY_RATIO: f64 = 1.5;
/// The goal for matched messages, as a share of the rate of memory-FIFO packets.
const MIN_MATCHED_SHARE: f64 = 0.5;
/// Number of contestants.
pub(super) const CONTESTANTS: usize = ALL.len();

/// A contestant. Each has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    /// The latency of a put with a counter.
    Put,
    /// The latency of a memory-FIFO message.
    Fifo,
    /// The rate of memory-FIFO messages.
    FifoRate,
    /// The rate of matched messages.
    MatchingRate,
    /// The latency of a VELO message.
    Velo,
    /// The rate of VELO messages.
    VeloRate,
    /// The time of a cache line between the two processors.
    LineHop,
}

const ALL: [Contestant; 7] = [
    Contestant::Put,
    Contestant::Fifo,
    Contestant::FifoRate,
    Contestant::MatchingRate,
    Contestant::Velo,
    Contestant::VeloRate,
    Contestant::LineHop,
];

impl Contestant {
    /// Returns the name in the rows.
    const fn name(self) -> &'static str {
        match self {
            Self::Put => "put-latency",
            Self::Fifo => "fifo-latency",
            Self::FifoRate => "fifo-rate",
            Self::MatchingRate => "matching-rate",
            Self::Velo => "velo-latency",
            Self::VeloRate => "velo-rate",
            Self::LineHop => line_hop::PATH,
        }
    }
}

/// The amount of work in a measurement.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Duration of a measurement of a rate, and the longest one of a latency.
    sustained: Duration,
    /// The greatest number of messages, one after the other, for a latency.
    latency_messages: u32,
}

/// Measures all contestants in turns.
pub(super) fn measure(run: &Run<'_>, rounds: usize) -> Result<Outcome, Failure> {
    let effort = if run.quick {
        Effort { sustained: Duration::from_millis(30), latency_messages: 200 }
    } else {
        Effort { sustained: Duration::from_millis(400), latency_messages: 20_000 }
    };
    let placement = Placement::engine_alone()?;
    let served = Host::served(run, &two_nodes(2, CREDITS)?, &placement)?;

    let results = velo::with_pair(run, &placement, |velo| {
        let mut pair = open_pair(&served, MEMORY)?;
        let mut ranks = Ranks::open(&served)?;
        contest::run(run, rounds, ALL.to_vec(), |contestant, _| {
            run.step(contestant.name())?;
            match contestant {
                Contestant::Put => put_latency(&mut pair, &effort),
                Contestant::Fifo => fifo_latency(&mut pair, &effort),
                Contestant::FifoRate => fifo_rate(&mut pair, &effort),
                Contestant::MatchingRate => ranks.rate(effort.sustained),
                Contestant::Velo => velo.latency(effort.latency_messages, effort.sustained),
                Contestant::VeloRate => velo.rate(effort.sustained),
                Contestant::LineHop => {
                    let processor = placement.processor_of("engine");
                    line_hop::measure(processor, effort.latency_messages, effort.sustained)
                }
            }
        })
    });

    let stopped = served.stop();
    let results = results?;
    stopped?;
    Ok(Outcome {
        rows: rows(&results, &placement),
        goals: goals(&results),
        notes: vec![
            "put-latency, fifo-latency, velo-latency: from the send until the receiver, in the same thread, sees the counter or the \
             message; fifo-rate, matching-rate, velo-rate: one thread sends and receives, one is the engine; matching-rate: windows of 64 \
             messages, each answered"
                .into(),
            line_hop::NOTE.into(),
        ],
    })
}

/// Measures the time from a put until its counter shows that the data have arrived.
fn put_latency(pair: &mut Pair, effort: &Effort) -> Result<Measurement, Failure> {
    samples_within(effort.latency_messages, effort.sustained, || {
        pair.expect(nodes::BYTES);
        let start = Instant::now();
        spin_until(start, || pair.put(0, nodes::BYTES))?;
        spin_until(start, || Ok(pair.left() == 0))?;
        Ok(start.elapsed())
    })
}

/// Measures the time from the send of a memory-FIFO message until its receiver has it.
fn fifo_latency(pair: &mut Pair, effort: &Effort) -> Result<Measurement, Failure> {
    samples_within(effort.latency_messages, effort.sustained, || {
        let start = Instant::now();
        spin_until(start, || Ok(pair.send(1)? == 1))?;
        spin_until(start, || Ok(pair.receive(1)? == 1))?;
        Ok(start.elapsed())
    })
}

/// Spins until `is_done` returns `true`. It is an error if that takes longer than [`STEP_TIMEOUT`]
/// after `start`.
#[inline]
fn spin_until(start: Instant, mut is_done: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    while !is_done()? {
        std::hint::spin_loop();
        if start.elapsed() > STEP_TIMEOUT {
            return Err(Failure::result("a message does not arrive"));
        }
    }
    Ok(())
}

/// Measures the rate of memory-FIFO messages.
fn fifo_rate(pair: &mut Pair, effort: &Effort) -> Result<Measurement, Failure> {
    let (start, mut received, mut idle) = (Instant::now(), 0_u64, never_sleeping_wait());
    while start.elapsed() < effort.sustained {
        let mut moved = 0;
        for _ in 0..BURSTS_PER_CHECK {
            moved += pair.send(BURST)?;
            let count = pair.receive(BURST)?;
            moved += count;
            received += u64::from(count);
        }
        if moved == 0 {
            idle.pause();
        }
    }

    let rate = received as f64 / start.elapsed().as_secs_f64();
    pair.drain()?;
    Ok(Measurement::of_rate(rate))
}

/// Returns a row of figures for each contestant.
fn rows(results: &Results<Contestant>, placement: &Placement) -> Vec<Row> {
    let row = |(contestant, measurements): (&Contestant, &[Measurement])| {
        let is_message = *contestant != Contestant::LineHop;
        Row {
            backing: is_message.then_some(Backing::VfioUser),
            placement: Some(placement.text()),
            bytes: is_message.then_some(nodes::BYTES),
            ..Row::new(contestant.name()).with_measurements(measurements)
        }
    };
    results.iter().map(row).collect()
}

/// Returns the goals of the benchmark, with the measured values.
fn goals(results: &Results<Contestant>) -> Vec<Goal> {
    let median = |contestant| all_samples(results.of(&contestant)).p50_us();
    let times = median(Contestant::Put) / median(Contestant::Velo).max(f64::MIN_POSITIVE);
    let share = ratio(results.of(&Contestant::MatchingRate), results.of(&Contestant::FifoRate));
    vec![
        Goal::at_most("latency of a put with counter, of a VELO message's, times", MAX_LATENCY_RATIO, times),
        Goal::at_least(
            "rate of matched messages of 8 bytes, of memory-FIFO packets', times",
            MIN_MATCHED_SHARE,
            share,
        ),
    ]
}
