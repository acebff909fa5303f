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
pub(super) const CONTESTANTS: usize = 4;

/// A contestant. Each has a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    InProcess,
    Served(Firmware),
    Copy,
}

/// Where a served machine runs the firmware of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Firmware {
    /// That of the first node has a thread, which shares two processors with the engine and the
    /// application. This is the default there.
    OneThread,
    /// The engine steps all.
    Stepped,
}

const PATHS: [Path; CONTESTANTS] =
    [Path::InProcess, Path::Served(Firmware::OneThread), Path::Served(Firmware::Stepped), Path::Copy];

impl Firmware {
    /// Returns the number of threads.
    const fn threads(self) -> u32 {
        match self {
            Self::OneThread => 1,
            Self::Stepped => 0,
        }
    }
}

impl Path {
    /// Returns the way to the device, if there is one.
    const fn backing(self) -> Option<Backing> {
        match self {
            Self::InProcess => Some(Backing::InProcess),
            Self::Served(_) => Some(Backing::VfioUser),
            Self::Copy => None,
        }
    }

    /// Returns the name in the rows.
    const fn name(self) -> &'static str {
        match self {
            Self::InProcess | Self::Served(_) => "put1m",
            Self::Copy => "memcpy",
        }
    }
}

/// Measures all contestants in turns.
pub(super) fn measure(run: &Run<'_>, rounds: usize) -> Result<Outcome, Failure> {
    let count = if run.quick { 32 } else { 256 };
    let placement = Placement::engine_alone()?;
    let local = SeaStars::in_process(TWO)?;
    let serve = |firmware: Firmware| SeaStars::served(run, TWO, firmware.threads(), &placement);
    let threaded = serve(Firmware::OneThread)?;
    let stepped = serve(Firmware::Stepped)?;

    let results = placement.within("application", || {
        let mut local_pair = Pair::open(&local, MEMORY)?;
        let mut threaded_pair = Pair::open(&threaded, MEMORY)?;
        let mut stepped_pair = Pair::open(&stepped, MEMORY)?;
        let copies = Copies::new(MEMORY)?;

        contest::run(run, rounds, PATHS.to_vec(), |path, _| {
            run.step(format!("{} {path:?}", path.name()))?;
            let start = Instant::now();
            match path {
                Path::InProcess => transfer(&mut local_pair, count)?,
                Path::Served(Firmware::OneThread) => transfer(&mut threaded_pair, count)?,
                Path::Served(Firmware::Stepped) => transfer(&mut stepped_pair, count)?,
                Path::Copy => copies.copy(BYTES, count)?,
            }
            Ok(Measurement::of_rate(count as f64 / start.elapsed().as_secs_f64()))
        })
    });

    let stopped = [threaded, stepped].map(SeaStars::stop);
    let results = results?;
    stopped.into_iter().collect::<Result<(), _>>()?;
    Ok(Outcome {
        rows: rows(&results, &placement),
        goals: goals(&results),
        notes: vec![format!(
            "put1m: {WINDOW} puts in progress; memory of {} MiB at each side, also of memcpy. In process one thread does everything, and \
             served the engine copies; firmware_threads 0 means that the engine also steps the firmware",
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
        let row = row.with_bandwidth(BYTES).figure("of_memcpy", of_memcpy(results, *path));
        match path {
            Path::Served(firmware) => row.figure("firmware_threads", firmware.threads().into()),
            Path::InProcess | Path::Copy => row,
        }
    };
    results.iter().map(row).collect()
}

/// Returns the goals of the benchmark, with the measured values.
fn goals(results: &Results<Path>) -> Vec<Goal> {
    let goal = |(path, how): (Path, &str)| {
        let description = format!("puts of 1 MiB, {how}, times a copy");
        Goal::at_least(description, MIN_SHARE_OF_COPY, of_memcpy(results, path))
    };
    [
        (Path::InProcess, "in process"),
        (Path::Served(Firmware::OneThread), "served, firmware on a thread"),
        (Path::Served(Firmware::Stepped), "served, firmware stepped"),
    ]
    .map(goal)
    .into()
}

/// Returns the bandwidth of a path as a share of a copy's.
fn of_memcpy(results: &Results<Path>, path: Path) -> f64 {
    ratio(results.of(&path), results.of(&Path::Copy))
}
