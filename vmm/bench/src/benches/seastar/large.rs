//! Puts of 1 MB, in process and served, against a copy of the same bytes.

use std::time::Instant;

use nicforge::failure::Failure;

use super::{
    TWO,
    nodes::{Pair, SeaStars},
};
use crate::{
    bench::Run,
    contest::{self, Measurement, Results, ratio},
    copies::Copies,
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
};

/// Bytes of a put.
const BYTES: usize = 1 << 20;
/// Bytes of the memory at each side.
const MEMORY: usize = 32 << 20;
/// The greatest number of puts in flight.
const WINDOW: usize = 8;
/// The goal, as a share of a copy's bandwidth.
const MIN_SHARE_OF_COPY: f64 = 0.8;
/// Number of contestants.
pub(super) const CONTESTANTS: usize = 3;

/// A contestant. Each has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    InProcess,
    Served,
    Copy,
}

const PATHS: [Path; CONTESTANTS] = [Path::InProcess, Path::Served, Path::Copy];

impl Path {
    /// Returns the way to the device, if there is one.
    const fn backing(self) -> Option<Backing> {
        match self {
            Self::InProcess => Some(Backing::InProcess),
            Self::Served => Some(Backing::VfioUser),
            Self::Copy => None,
        }
    }

    /// Returns the name in the rows.
    const fn name(self) -> &'static str {
        match self {
            Self::InProcess | Self::Served => "put1m",
            Self::Copy => "memcpy",
        }
    }
}

/// Measures all contestants in turns.
pub(super) fn measure(run: &Run<'_>, rounds: usize) -> Result<Outcome, Failure> {
    let count = if run.quick { 32 } else { 256 };
    let placement = Placement::engine_alone()?;
    let local = SeaStars::in_process(TWO)?;
    let served = SeaStars::served(run, TWO, &placement)?;

    let results = placement.within("application", || {
        let (mut local_pair, mut served_pair) = (Pair::open(&local, MEMORY)?, Pair::open(&served, MEMORY)?);
        let copies = Copies::new(MEMORY)?;

        contest::run(run, rounds, PATHS.to_vec(), |path, _| {
            run.step(format!("{} {path:?}", path.name()))?;
            let start = Instant::now();
            match path {
                Path::InProcess => transfer(&mut local_pair, count)?,
                Path::Served => transfer(&mut served_pair, count)?,
                Path::Copy => copies.copy(BYTES, count)?,
            }
            Ok(Measurement::of_rate(count as f64 / start.elapsed().as_secs_f64()))
        })
    });

    let stopped = served.stop();
    let results = results?;
    stopped?;
    Ok(Outcome {
        rows: rows(&results, &placement),
        goals: goals(&results),
        notes: vec![format!(
            "put1m: {WINDOW} puts in progress; memory of {} MiB at each side, also of memcpy. In process one thread does everything, and \
             served the engine copies",
            MEMORY >> 20
        )],
    })
}

/// Returns the offset of put `number` in the memory. The puts go through all of it in turn.
fn offset(number: usize) -> u64 {
    (number * BYTES % MEMORY) as u64
}

/// Puts `count` times, with at most [`WINDOW`] in flight, and waits for all.
fn transfer(pair: &mut Pair, count: usize) -> Result<(), Failure> {
    let mut sent = 0;
    for arrived in 0..count {
        while sent < count && sent - arrived < WINDOW {
            pair.put(offset(sent), BYTES as u64)?;
            sent += 1;
        }
        pair.arrive(BYTES as u64)?;
    }
    Ok(())
}

/// Returns a row of figures for each contestant.
fn rows(results: &Results<Path>, placement: &Placement) -> Vec<Row> {
    let row = |(path, measurements): (&Path, &[Measurement])| {
        let row = Row {
            backing: path.backing(),
            placement: Some(placement.text()),
            ..Row::new(path.name()).with_measurements(measurements)
        };
        row.with_bandwidth(BYTES).figure("of_memcpy", of_memcpy(results, *path))
    };
    results.iter().map(row).collect()
}

/// Returns the goals of the benchmark, with the measured values.
fn goals(results: &Results<Path>) -> Vec<Goal> {
    let goal = |(path, how): (Path, &str)| {
        let description = format!("puts of 1 MiB, {how}, times a copy");
        Goal::at_least(description, MIN_SHARE_OF_COPY, of_memcpy(results, path))
    };
    [(Path::InProcess, "in process"), (Path::Served, "served")].map(goal).into()
}

/// Returns the bandwidth of a path as a share of a copy's.
fn of_memcpy(results: &Results<Path>, path: Path) -> f64 {
    ratio(results.of(&path), results.of(&Path::Copy))
}
