//! `cargo xtask fuzz`: runs every fuzz body under libFuzzer for a given time.
//!
//! The target of `tests/fuzz` is built as cargo-fuzz builds it: with AddressSanitizer and the
//! compiler's coverage, which are unstable options. Each process runs one body. The results are
//! below `target/fuzz`:
//! - `corpus`: the inputs that the next run starts from
//! - `artifacts`: the inputs that found a defect
//! - `logs`

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;

use crate::steps::{Failed, Steps};

/// The target triple, which sanitizers need explicitly.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Compiler options for libFuzzer's coverage, and for checks.
const FLAGS: &str = "-Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1 \
    --cfg fuzzing";
/// The name of the target.
const PROGRAM: &str = "body";
/// The environment variable that names the body of a process.
const BODY: &str = "NICFORGE_FUZZ_BODY";
/// Number of inputs of the bodies' own tests in the first corpus of each.
const SEED_COUNT: &str = "100";
/// Prefixes of the artifacts that are findings; a slow input is none.
const FINDING_PREFIXES: [&str; 4] = ["crash-", "leak-", "oom-", "timeout-"];
/// Interval at which running fuzzers are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of the units of processor time in `/proc` in a second (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Args, Debug)]
pub(crate) struct Fuzz {
    /// Seconds of each body.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    seconds: u64,
    /// Only this body; may be given several times.
    #[arg(long = "body", value_name = "NAME")]
    bodies: Vec<String>,
    /// Bodies at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
}

/// The result of a body.
struct BodyResult {
    body: String,
    /// Inputs that were run, if the log tells.
    runs: Option<u64>,
    /// Elapsed time.
    wall_time: Duration,
    processor_seconds: f64,
    status: ExitStatus,
    /// The artifacts of this run that are findings.
    findings: Vec<PathBuf>,
}

/// The process of a body, which is killed when nothing waits for its end any more.
struct Fuzzer(Child);

impl Drop for Fuzzer {
    fn drop(&mut self) {
        // Both fail when the process has ended and its status has been taken.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running body.
struct Running {
    body: String,
    child: Fuzzer,
    start: Instant,
    /// Processor time so far.
    processor_seconds: f64,
    /// The artifacts of earlier runs.
    old_artifacts: BTreeSet<PathBuf>,
}

/// Builds the target, runs the bodies, and prints a table.
pub(crate) fn run(steps: &Steps, fuzz: &Fuzz) -> Result<(), Failed> {
    let folder = steps.root().join("target/fuzz");
    let corpus = folder.join("corpus");
    let names = steps.cargo_output(
        "inputs to begin with",
        &["run", "--quiet", "-p", "nicforge-fuzz-bodies", "--bin", "seeds", "--", text(&corpus)?, SEED_COUNT],
    )?;

    let bodies = select_bodies(&names, &fuzz.bodies)?;
    build(steps)?;

    steps.print_heading(&format!(
        "{} bodies, {} s each, {} at a time",
        bodies.len(),
        fuzz.seconds,
        fuzz.jobs
    ));
    let done = run_all(steps, &folder, bodies, fuzz)?;
    print_table(&done);

    let failed: Vec<_> = done.iter().filter(|done| done.has_failed()).map(|done| &*done.body).collect();
    if failed.is_empty() {
        Ok(())
    } else {
        let logs = folder.join("logs");
        Err(Failed::new(format!("{} found something: see {}", failed.join(", "), logs.display())))
    }
}

/// Returns the requested bodies, or all if none is requested. `names` has the name of a body in
/// each line.
fn select_bodies(names: &str, requested: &[String]) -> Result<Vec<String>, Failed> {
    let all: Vec<_> = names.lines().map(str::to_owned).collect();
    if let Some(unknown) = requested.iter().find(|name| !all.contains(name)) {
        return Err(Failed::new(format!("there is no body {unknown}; there are {}", all.join(", "))));
    }

    // Two runs of one body would write the same corpus and the same log.
    let mut once = BTreeSet::new();
    let distinct = requested.iter().filter(|name| once.insert(*name)).cloned();
    Ok(if requested.is_empty() { all } else { distinct.collect() })
}

/// Builds the fuzz target with a sanitizer and coverage.
fn build(steps: &Steps) -> Result<(), Failed> {
    let built = steps.cargo_with(
        "build the fuzz target",
        &[
            "build",
            "--release",
            "--manifest-path",
            "tests/fuzz/Cargo.toml",
            "--target",
            TARGET,
            "--target-dir",
            "target/fuzz",
        ],
        // A stable compiler accepts unstable options with `RUSTC_BOOTSTRAP`.
        &[("RUSTC_BOOTSTRAP", "1"), ("RUSTFLAGS", FLAGS)],
    );

    built.map_err(|failed| {
        Failed::new(format!(
            "{failed}\nthe fuzz target needs a compiler with AddressSanitizer for {TARGET} (rustup's stable and nightly have it) and a C++ \
             compiler (c++) for libFuzzer"
        ))
    })
}

/// Runs the bodies, with at most as many at a time as there are jobs.
fn run_all(
    steps: &Steps,
    folder: &Path,
    bodies: Vec<String>,
    fuzz: &Fuzz,
) -> Result<Vec<BodyResult>, Failed> {
    let mut waiting = VecDeque::from(bodies);
    let mut running: Vec<Running> = Vec::new();
    let mut done = Vec::new();

    while !waiting.is_empty() || !running.is_empty() {
        while (running.len() as u64) < fuzz.jobs
            && let Some(body) = waiting.pop_front()
        {
            running.push(start(steps, folder, body, fuzz.seconds)?);
        }
        thread::sleep(POLL_INTERVAL);

        let mut still_running = Vec::new();
        for mut one in running {
            one.processor_seconds = processor_time(one.child.0.id()).unwrap_or(one.processor_seconds);
            match one.child.0.try_wait() {
                Ok(None) => still_running.push(one),
                Ok(Some(status)) => {
                    let one = finish(folder, one, status)?;
                    steps.print_heading(&format!("{}: {}", one.body, one.verdict()));
                    done.push(one);
                }
                Err(error) => return Err(Failed::new(format!("{}: {error}", one.body))),
            }
        }

        running = still_running;
    }

    done.sort_by(|a, b| a.body.cmp(&b.body));
    Ok(done)
}

/// Starts the process of a body, with its log and artifacts below `folder`.
fn start(steps: &Steps, folder: &Path, body: String, seconds: u64) -> Result<Running, Failed> {
    let (corpus, artifacts) = (folder.join("corpus").join(&body), folder.join("artifacts").join(&body));
    let logs = folder.join("logs");

    for created in [&corpus, &artifacts, &logs] {
        fs::create_dir_all(created).map_err(|error| failed(created, &error))?;
    }

    let old_artifacts = files(&artifacts)?.into_iter().collect();
    let log = logs.join(format!("{body}.log"));
    let log = File::create(&log).map_err(|error| failed(&log, &error))?;

    let program = folder.join(TARGET).join("release").join(PROGRAM);
    let mut command = Command::new(&program);
    command.env(BODY, &body).arg(&corpus);

    // Inputs that once found a defect are tried first.
    let known = steps.root().join("tests/fuzz-bodies/regressions").join(&body);
    if known.is_dir() {
        command.arg(known);
    }

    // libFuzzer tries short inputs first, and lengthens them slowly up to 4 KiB.
    let child = command
        .arg(format!("-max_total_time={seconds}"))
        .args(["-max_len=4096", "-len_control=20", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", text(&artifacts)?))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|error| failed(&program, &error))?;

    Ok(Running { body, child: Fuzzer(child), start: Instant::now(), processor_seconds: 0.0, old_artifacts })
}

/// Returns the result of a body whose process has ended.
fn finish(folder: &Path, one: Running, status: ExitStatus) -> Result<BodyResult, Failed> {
    let log = fs::read(folder.join("logs").join(format!("{}.log", one.body))).unwrap_or_default();
    let is_finding = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        FINDING_PREFIXES.iter().any(|word| name.starts_with(word)) && !one.old_artifacts.contains(path)
    };
    let findings = files(&folder.join("artifacts").join(&one.body))?.into_iter().filter(is_finding).collect();

    Ok(BodyResult {
        runs: inputs_run(&String::from_utf8_lossy(&log)),
        wall_time: one.start.elapsed(),
        processor_seconds: one.processor_seconds,
        status,
        findings,
        body: one.body,
    })
}

/// Returns the number of inputs in libFuzzer's final statistics.
fn inputs_run(log: &str) -> Option<u64> {
    let line = log.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

/// Returns the seconds of processor time that a process has used.
fn processor_time(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may contain any characters. After it, fields 11 and 12 are the times
    // in user mode and in the kernel.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

impl BodyResult {
    /// Returns whether the process failed or found a defect.
    fn has_failed(&self) -> bool {
        !self.status.success() || !self.findings.is_empty()
    }

    /// Returns a short description of the result.
    fn verdict(&self) -> String {
        match (self.status.success(), self.findings.len()) {
            (true, 0) => "nothing found".to_owned(),
            (_, 0) => format!("ended by {}", self.status),
            (_, count) => format!("{count} findings"),
        }
    }
}

/// Prints the results as a table.
fn print_table(done: &[BodyResult]) {
    println!("{:<14} {:>12} {:>9} {:>9}  found", "body", "runs", "wall s", "CPU s");
    for one in done {
        let runs = one.runs.map_or("?".to_owned(), |runs| runs.to_string());
        let (wall_seconds, verdict) = (one.wall_time.as_secs_f64(), one.verdict());
        println!("{:<14} {runs:>12} {wall_seconds:>9.0} {:>9.0}  {verdict}", one.body, one.processor_seconds);
        for finding in &one.findings {
            println!("{:<14} {}", "", finding.display());
        }
    }
}

/// Returns the paths in a folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Failed> {
    let list = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    let mut files: Vec<_> = list.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    Ok(files)
}

/// Returns the failure at a file.
fn failed(path: &Path, error: &std::io::Error) -> Failed {
    Failed::new(format!("{}: {error}", path.display()))
}

/// Returns a path as the text of an argument.
fn text(path: &Path) -> Result<&str, Failed> {
    path.to_str().ok_or_else(|| Failed::new(format!("{} is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executed_units_are_read_from_the_last_statistics() {
        let log = "#1 INITED\nstat::number_of_executed_units: 1\nDone\nstat::number_of_executed_units: 4711\nstat::x: 2\n";

        assert_eq!(inputs_run(log), Some(4711));
        assert_eq!(inputs_run("Done 3 runs\n"), None);
    }

    #[test]
    fn wanted_bodies_are_chosen_and_unknown_ones_are_refused() {
        let expected = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();

        assert_eq!(select_bodies("stream\nvelo\n", &[]).unwrap(), ["stream", "velo"]);
        assert_eq!(select_bodies("stream\nvelo\n", &expected(&["velo"])).unwrap(), ["velo"]);
        assert_eq!(
            select_bodies("stream\nvelo\n", &expected(&["velo", "stream", "velo"])).unwrap(),
            ["velo", "stream"]
        );
        assert!(select_bodies("stream\nvelo\n", &expected(&["rings"])).is_err());
    }

    #[test]
    fn processor_time_of_this_process_is_known() {
        assert!(processor_time(std::process::id()).is_some());
    }
}
