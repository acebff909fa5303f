//! Direct puts of 1 MB, in process and served, against a copy of the same bytes.

use std::time::Instant;

use nicforge::failure::Failure;
use nicforge_driver::{Deadline, Relax};

use super::{
    BENCH,
    nodes::{CREDITS, Pair, STEP_TIMEOUT, open_pair, two_nodes},
};
use crate::{
    bench::Run,
    contest::{self, Measurement, Results, ratio},
    copies::Copies,
    machine::{Host, never_sleeping_wait},
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
};

/// Bytes of a put.
const BYTES: usize = 1 << 20;
/// Bytes of the memory at each side.
const MEMORY: usize = 32 << 20;
/// The greatest number of puts in flight.
const WINDOW: u64 = 8;
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
    let plan = two_nodes(1, CREDITS)?;
    let local = Host::in_process(&plan)?;
    let served = Host::served(run, &plan, &placement)?;

    let results = placement.within("application", || {
        let (mut local_pair, mut served_pair) =
            (open_pair(&local, MEMORY as u64)?, open_pair(&served, MEMORY as u64)?);
        let copies = Copies::new(MEMORY)?;

        contest::run(run, rounds, PATHS.to_vec(), |path, _| {
            run.step(format!("{} {path:?}", path.name()))?;
            let start = Instant::now();
            match path {
                Path::InProcess => transfer(&mut local_pair, count, Relax::new())?,
                Path::Served => transfer(&mut served_pair, count, never_sleeping_wait())?,
                Path::Copy => copies.copy(BYTES, count as usize)?,
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
            "put1m: {WINDOW} direct puts in progress; memory of {} MiB at each side, also of memcpy. In process one thread does \
             everything, and served the engine copies",
            MEMORY >> 20
        )],
    })
}

/// Puts `count` times, with at most [`WINDOW`] in flight, and waits for all.
fn transfer(pair: &mut Pair, count: u64, mut relax: Relax) -> Result<(), Failure> {
    let bytes = BYTES as u64;
    let (mut sent, deadline) = (0, Deadline::after(STEP_TIMEOUT));
    pair.expect(count * bytes);

    loop {
        let arrived = count - pair.left().div_ceil(bytes);
        if arrived == count {
            return Ok(());
        }

        let sent_before = sent;
        while sent < count && sent - arrived < WINDOW && pair.put(sent * bytes % MEMORY as u64, bytes)? {
            sent += 1;
        }

        if sent == sent_before {
            if deadline.has_passed() {
                let description = format!("{arrived} of {count} puts of `bench {}` arrived", BENCH.name);
                return Err(Failure::result(description));
            }
            pair.relax(&mut relax)?;
        }
    }
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
        let description = format!("direct puts of 1 MiB, {how}, times a copy");
        Goal::at_least(description, MIN_SHARE_OF_COPY, of_memcpy(results, path))
    };
    [(Path::InProcess, "in process"), (Path::Served, "served")].map(goal).into()
}

/// Returns the bandwidth of a path as a share of a copy's.
fn of_memcpy(results: &Results<Path>, path: Path) -> f64 {
    ratio(results.of(&path), results.of(&Path::Copy))
}
