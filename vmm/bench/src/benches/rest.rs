//! `nicforge bench rest`: the cost of a served machine without clients.

use std::{
    fs,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};

use crate::{
    bench::{Bench, Run},
    machine::{describe, serve},
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("rest", "what a served machine of 65 nodes costs while no program uses it", run);

/// Number of compute nodes in the machine.
const COMPUTE_NODES: u32 = 64;
/// The goal for the CPU time, in percent of a processor.
const MAX_CPU_PERCENT: f64 = 1.0;
/// The goal for the resident memory, in units of 10^6 bytes.
const MAX_RESIDENT_MB: f64 = 64.0;
/// Time after the start of an engine after which it sleeps for want of work.
const TIME_TO_SLEEP: Duration = Duration::from_millis(500);

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let seconds = if run.quick { 1 } else { 10 };
    run.steps(seconds);
    let pset = format!("[[pset]]\ncompute_nodes = {COMPUTE_NODES}\nfifo_depth = 8\n");
    let served = serve(run, &describe(BENCH.name, &pset)?, &Placement::free())?;

    std::thread::sleep(TIME_TO_SLEEP);

    let (cpu_before, start) = (cpu_time()?, Instant::now());
    for second in 0..seconds {
        run.step(format!("second {}", second + 1))?;
        std::thread::sleep(Duration::from_secs(1));
    }

    let percent = 100.0 * (cpu_time()? - cpu_before).as_secs_f64() / start.elapsed().as_secs_f64();
    let resident = resident_mb()?;
    served.stop()?;

    let row = Row { backing: Some(Backing::VfioUser), ..Row::new("rest") }
        .figure("nodes", f64::from(COMPUTE_NODES + 1))
        .figure("cpu_percent", percent)
        .figure("resident_mb", resident);
    Ok(Outcome {
        rows: vec![row],
        goals: vec![
            Goal::at_most(
                "CPU time of a served pset of 64 at rest, percent of a processor",
                MAX_CPU_PERCENT,
                percent,
            ),
            Goal::at_most("its resident memory, MB", MAX_RESIDENT_MB, resident),
        ],
        notes: vec!["the bench's own process is counted with the engine: it does nothing but sleep".into()],
    })
}

/// Returns the CPU time of this process.
fn cpu_time() -> Result<Duration, Failure> {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    clock.now().map(Duration::from).context(|| "the process's CPU time".into())
}

/// Returns the resident memory of this process, in units of 10^6 bytes.
fn resident_mb() -> Result<f64, Failure> {
    let status = fs::read_to_string("/proc/self/status").context(|| "/proc/self/status".into())?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<f64>().ok())
        .map(|kib| kib * 1024.0 / 1e6)
        .ok_or_else(|| Failure::environment("/proc/self/status has no VmRSS"))
}
