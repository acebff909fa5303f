//! `bench extoll-mpi`: MPI-style messages over the EXTOLL card, as the paper measured its own.
//!
//! An engine thread of this process serves two cards with a link between them. One application
//! thread runs all ranks. The results are:
//!
//! - the message rate by number of pairs and size (after `osu_mbw_mr`),
//! - the latency by size,
//! - RandomAccess with its errors,
//! - the rate of VELO alone with the same threads.
//!
//! | file | contents |
//! | --- | --- |
//! | `ranks.rs` | the ranks and their measurements |
//! | `velo.rs` | the same messages without matching |
//! | `count.rs` | instructions of a message, counted by callgrind |

mod count;
mod ranks;
mod velo;

use nicforge::failure::Failure;

use self::{ranks::Ranks, velo::BarePairs};
use super::cards::serve_two_cards;
use crate::{
    bench::{Bench, Run},
    contest::{self, Measurement, Results, ratio},
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
};

/// The bench.
pub const BENCH: Bench = Bench::new(
    "extoll-mpi",
    "MPI-style messages over two EXTOLL cards: message rate, latency, RandomAccess (valgrind counts instructions)",
    run,
)
.with_child(count::run_child);

/// Numbers of pairs that exchange messages.
const PAIRS: [u16; 4] = [1, 2, 4, 8];
/// Bytes of the pairs' messages: 1 to 4,096.
const SIZES: [usize; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Bytes of the messages whose latency is measured.
const LATENCY_SIZES: [usize; 5] = [8, 2048, 4096, 65_536, 1 << 20];
/// Numbers of ranks of RandomAccess.
const RANDOM_ACCESS_RANKS: [u32; 3] = [2, 4, 8];
/// Number of messages in a window.
const WINDOW: u32 = 64;
/// Number of pairs that measure VELO alone.
const BARE_PAIRS: u16 = 4;
/// Bytes of an update of RandomAccess.
const UPDATE_BYTES: u64 = 8;
/// The goal for the rate of 8 pairs, as a share of that of 4.
const MIN_SHARE_OF_FOUR_PAIRS: f64 = 0.8;
/// The goal for the rate with matching, as a share of that of VELO alone.
const MIN_SHARE_OF_VELO: f64 = 0.5;
/// The goal for RandomAccess: wrong words, in percent.
const MAX_WRONG_PERCENT: f64 = 1.0;

/// The result of one measurement: messages or updates per second, and times of single messages.
#[derive(Clone, Debug)]
struct RankMeasurement {
    measurement: Measurement,
    /// Wrong words in the table of RandomAccess, in percent.
    wrong_percent: f64,
}

impl From<Measurement> for RankMeasurement {
    fn from(measurement: Measurement) -> Self {
        Self { measurement, wrong_percent: 0.0 }
    }
}

/// The amount of work in a measurement.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Windows of each pair.
    windows: u32,
    /// Round trips.
    round_trips: u32,
    /// Words of each rank's table in RandomAccess, as a power of two.
    order: u32,
}

/// A contestant. Each has a row in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    /// The rate of messages of a size between pairs of ranks.
    Rate { pairs: u16, bytes: usize },
    /// The time of a message between the first pair.
    Latency { bytes: usize },
    /// The rate of RandomAccess's updates by this number of ranks.
    RandomAccess { ranks: u32 },
    /// The rate of messages of VELO alone.
    Velo,
}

/// Returns the contestants of the benchmark.
fn contestants() -> Vec<Contestant> {
    let rates = PAIRS.into_iter().flat_map(|pairs| SIZES.map(|bytes| Contestant::Rate { pairs, bytes }));
    let latencies = LATENCY_SIZES.map(|bytes| Contestant::Latency { bytes });
    let accesses = RANDOM_ACCESS_RANKS.map(|ranks| Contestant::RandomAccess { ranks });
    rates.chain(latencies).chain(accesses).chain([Contestant::Velo]).collect()
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let (effort, rounds) = if run.quick {
        (Effort { windows: 2, round_trips: 20, order: 8 }, 1)
    } else {
        (Effort { windows: 40, round_trips: 500, order: 13 }, 5)
    };

    let contestants = contestants();
    run.steps((contestants.len() * rounds + count::PAIRS.len()) as u64);
    let placement = Placement::engine_alone()?;

    let measurements = placement.within("application", || {
        let server = serve_two_cards(run, BENCH.name, &placement)?;
        let mut ranks = Ranks::open(|address| ranks::open_device(&server, address), PAIRS[PAIRS.len() - 1])?;
        let mut bare = BarePairs::open(&server, BARE_PAIRS)?;

        let measurements = contest::run(run, rounds, contestants, |contestant, _| {
            run.step(format!("{contestant:?}"))?;
            match *contestant {
                Contestant::Rate { pairs, bytes } => {
                    ranks.measure_rate(pairs, bytes, &effort).map(Into::into)
                }
                Contestant::Latency { bytes } => ranks.measure_latency(bytes, &effort).map(Into::into),
                Contestant::RandomAccess { ranks } => ranks::random_access(&server, ranks, &effort),
                Contestant::Velo => bare.measure_rate(&effort).map(Into::into),
            }
        })?;

        drop((ranks, bare));
        server.stop()?;
        Ok(measurements)
    })?;

    let mut outcome = Outcome {
        rows: rows(&placement, &measurements),
        goals: goals(&measurements),
        notes: vec![
            "one thread is all ranks, one is the engine".into(),
            format!("message-rate: windows of {WINDOW} messages, each answered; messages of more than 2,048 bytes are fetched by RMA"),
            "velo: 8-byte messages without matching, by the same two threads".into(),
            "random-access: the table is restored by the same updates again; wrong_percent are the words that are not as at first".into(),
        ],
    };

    let counted = count::instructions(run)?;
    outcome.rows.extend(counted.rows);
    outcome.notes.extend(counted.notes);

    Ok(outcome)
}

/// Returns the rates and times of some measurements.
fn measurements_of(measured: &[RankMeasurement]) -> Vec<Measurement> {
    measured.iter().map(|measured| measured.measurement.clone()).collect()
}

/// Returns the greatest share of wrong words of the measurements, in percent.
fn wrong_percent(measured: &[RankMeasurement]) -> f64 {
    measured.iter().map(|measured| measured.wrong_percent).fold(0.0, f64::max)
}

/// Returns a row of figures for each contestant.
fn rows(placement: &Placement, results: &Results<Contestant, RankMeasurement>) -> Vec<Row> {
    let bare = measurements_of(results.of(&Contestant::Velo));
    let row = |(contestant, measured): (&Contestant, &[RankMeasurement])| {
        let measurements = measurements_of(measured);
        let row = |path: &str| Row {
            backing: Some(Backing::VfioUser),
            placement: Some(placement.text()),
            ..Row::new(path).with_measurements(&measurements)
        };

        match *contestant {
            Contestant::Rate { pairs, bytes } => {
                let row = row("message-rate").with_bandwidth(bytes);
                let row = row.figure("pairs", pairs.into()).figure("window", WINDOW.into());
                if bytes == velo::BYTES { row.figure("of_velo", ratio(&measurements, &bare)) } else { row }
            }
            Contestant::Latency { bytes } => Row { bytes: Some(bytes as u64), ..row("ping-pong") },
            Contestant::RandomAccess { ranks } => {
                let row = Row { bytes: Some(UPDATE_BYTES), ..row("random-access") };
                let rate = row.rate_per_s.unwrap_or(0.0);
                row.figure("ranks", ranks.into())
                    .figure("gups", rate / 1e9)
                    .figure("wrong_percent", wrong_percent(measured))
            }
            Contestant::Velo => {
                Row { bytes: Some(velo::BYTES as u64), ..row("velo") }.figure("pairs", BARE_PAIRS.into())
            }
        }
    };

    results.iter().map(row).collect()
}

/// Returns the goals of the benchmark, with the measured values.
fn goals(results: &Results<Contestant, RankMeasurement>) -> Vec<Goal> {
    let rates_of_small_messages =
        |pairs| measurements_of(results.of(&Contestant::Rate { pairs, bytes: velo::BYTES }));
    let bare = measurements_of(results.of(&Contestant::Velo));
    let worst = RANDOM_ACCESS_RANKS
        .map(|ranks| wrong_percent(results.of(&Contestant::RandomAccess { ranks })))
        .into_iter()
        .fold(0.0, f64::max);

    vec![
        Goal::at_least(
            "rate of 8-byte messages, 8 pairs / 4 pairs, times",
            MIN_SHARE_OF_FOUR_PAIRS,
            ratio(&rates_of_small_messages(8), &rates_of_small_messages(4)),
        ),
        Goal::at_least(
            "rate of 8-byte messages of 4 pairs, with matching / VELO alone, times",
            MIN_SHARE_OF_VELO,
            ratio(&rates_of_small_messages(BARE_PAIRS), &bare),
        ),
        Goal::at_most("words of RandomAccess that are wrong, percent", MAX_WRONG_PERCENT, worst),
    ]
}
