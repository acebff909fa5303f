//! The demonstration beside processes that compute, and a pipeline of `cat` with the same file.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

use super::{goal, group::child_command, loops::Loops, switches::Switches, task::Task};
use crate::{
    bench::Run,
    contest,
    process::status_within,
    row::{Goal, Outcome, Row},
    samples::median,
};

/// Bytes of the streamed file.
const BYTES: u64 = 64 << 20;
/// The numbers of processes that compute.
const LOOPS: [u32; 3] = [0, 4, 12];
/// Number of turns of each contestant with each number of loops.
const ROUNDS: usize = 3;
/// How long all turns of a row may take together.
const LIMIT: Duration = Duration::from_secs(120);
/// The goal for the demonstration beside 4 loops, as a multiple of its time without loops.
const MAX_OF_QUIET: f64 = 4.0;
/// The goal for the demonstration beside 12 loops, in seconds.
const MAX_SECONDS: f64 = 20.0;
/// The file of the program that has the demonstration, beside this program.
const PROGRAM: &str = "nicforge";
/// The number of contestants.
const CONTESTANTS: usize = 2;
/// The number of steps.
pub(super) const STEPS: usize = LOOPS.len() * CONTESTANTS * ROUNDS;

/// A contestant: a program that passes the file on.
struct Stream {
    name: &'static str,
    command: Vec<String>,
    /// The time that is left for its turns.
    left: Duration,
    /// Why it has no further turns.
    not_measured: Option<String>,
}

/// One run of a contestant.
struct Measurement {
    seconds: f64,
    /// Seconds of processors, of all its processes.
    processor_seconds: f64,
    switches: Switches,
}

/// Measures both contestants in turns, with each number of loops.
pub(super) fn measure(run: &Run<'_>) -> Result<Outcome, Failure> {
    let program = std::env::current_exe().context(|| "this program's own file".into())?;
    let program = program.with_file_name(PROGRAM);
    if !program.exists() {
        let note = format!("demo was left out: there is no {}", program.display());
        return Ok(Outcome { notes: vec![note], ..Outcome::default() });
    }

    let folder = tempfile::Builder::new().prefix("nicforge-bench-").tempdir();
    let folder = folder.context(|| "a directory for the bench's file".into())?;
    let file = folder.path().join("stream");
    write_file(&file).context(|| file.display().to_string())?;

    let mut outcome = Outcome {
        notes: vec![
            "demo: `nicforge demo` of a file, from the program's start to its end; cat: `cat FILE | cat | cat`; processor \
             seconds and context switches are those of all their processes"
                .into(),
        ],
        ..Outcome::default()
    };
    let mut quiet = None;

    for count in LOOPS {
        let streams = vec![
            Stream::new("demo", demo_command(&program, &file, folder.path())),
            Stream::new("cat", cat_command(&file)),
        ];
        let loops = Loops::start(count)?;
        let results = contest::run(run, ROUNDS, streams, |stream, _| {
            run.step(format!("{} beside {count} loops", stream.name))?;
            stream.turn(run)
        })?;
        drop(loops);

        for (stream, measurements) in results.iter() {
            let row = stream.row(measurements).figure("beside_loops", f64::from(count));
            if stream.name == "demo" {
                quiet = quiet.or(row.figures.get("seconds").copied());
                outcome.goals.extend(demo_goal(&row, count, quiet));
            }
            outcome.rows.push(row);
        }
    }
    Ok(outcome)
}

/// Writes a file of [`BYTES`] bytes that differ from place to place.
fn write_file(path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for position in (0..BYTES).step_by(size_of::<u64>()) {
        file.write_all(&position.to_le_bytes())?;
    }
    file.flush()
}

/// Returns the command of the demonstration. Its sockets are in `folder`.
fn demo_command(program: &Path, file: &Path, folder: &Path) -> Vec<String> {
    let directory: PathBuf = folder.join("machine");
    let words = [program, Path::new("demo"), Path::new("--json"), Path::new("--dir"), &directory, file];
    words.map(|word| word.display().to_string()).into()
}

/// Returns the command of a pipeline with two pipes.
fn cat_command(file: &Path) -> Vec<String> {
    ["sh", "-c", "cat \"$0\" | cat | cat > /dev/null"]
        .map(str::to_owned)
        .into_iter()
        .chain([file.display().to_string()])
        .collect()
}

/// Returns the goal of the demonstration beside `count` loops, if it has one. `quiet` is its time
/// without loops.
fn demo_goal(row: &Row, count: u32, quiet: Option<f64>) -> Option<Goal> {
    let seconds = match &row.not_measured {
        None => row.figures.get("seconds").copied()?,
        Some(_) => LIMIT.as_secs_f64(),
    };
    match count {
        4 => {
            let description = format!("demo of 64 MB beside {count} loops, of its time without, times");
            Some(goal(description, MAX_OF_QUIET, row, seconds / quiet?))
        }
        12 => Some(goal(format!("demo of 64 MB beside {count} loops, s"), MAX_SECONDS, row, seconds)),
        _ => None,
    }
}

impl Stream {
    /// Returns a contestant before its first turn.
    fn new(name: &'static str, command: Vec<String>) -> Self {
        Self { name, command, left: LIMIT, not_measured: None }
    }

    /// Runs the program once. Returns `None` if it was not done in time, or if this or an earlier
    /// turn has failed.
    fn turn(&mut self, run: &Run<'_>) -> Result<Option<Measurement>, Failure> {
        if self.not_measured.is_some() {
            return Ok(None);
        }

        let mut command = child_command(&Task::Program(self.command.clone()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let (start, before) = (Instant::now(), usage()?);
        let status = status_within(run, &mut command, self.left)?;
        let elapsed = start.elapsed();
        self.left = self.left.saturating_sub(elapsed);

        match status {
            Some(status) if status.success() => {
                let (seconds, after) = (elapsed.as_secs_f64(), usage()?);
                let processor_seconds = (after.0 - before.0).as_secs_f64();
                return Ok(Some(Measurement { seconds, processor_seconds, switches: after.1 - before.1 }));
            }
            Some(status) => self.not_measured = Some(format!("ended with {status}")),
            None => self.not_measured = Some(format!("not done in {} s", LIMIT.as_secs())),
        }
        Ok(None)
    }

    /// Returns the row of this contestant: medians over its turns.
    fn row(&self, measurements: &[Option<Measurement>]) -> Row {
        let mut row =
            Row { bytes: Some(BYTES), not_measured: self.not_measured.clone(), ..Row::new(self.name) };
        type Figure = (&'static str, fn(&Measurement) -> f64);
        let figures: [Figure; 4] = [
            ("seconds", |measurement| measurement.seconds),
            ("processor_seconds", |measurement| measurement.processor_seconds),
            ("voluntary", |measurement| measurement.switches.voluntary as f64),
            ("involuntary", |measurement| measurement.switches.involuntary as f64),
        ];
        for (name, figure) in figures {
            let values: Vec<_> = measurements.iter().flatten().map(figure).collect();
            if !values.is_empty() {
                row = row.figure(name, median(&values));
            }
        }
        row
    }
}

/// Returns the time of processors and the context switches of all descendants that have been
/// awaited so far.
fn usage() -> Result<(Duration, Switches), Failure> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context(|| "the resources of processes".into())?;
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    let switches = Switches {
        voluntary: usage.voluntary_context_switches() as u64,
        involuntary: usage.involuntary_context_switches() as u64,
    };
    Ok((Duration::from_micros(microseconds as u64), switches))
}
