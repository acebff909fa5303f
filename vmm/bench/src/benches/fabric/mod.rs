//! `nicforge bench fabric`: packets over links in virtual time, and the memory of a node.
//!
//! A hop is one packet over one link, with cut-through and arbitration. The rate is that of one
//! thread, which runs a torus whose nodes send to random nodes as fast as they can. Instructions
//! are those of a hop, counted in this program under callgrind. The memory is what a machine of
//! EXTOLL cards without clients has allocated.
//!
//! The goals are those of a network alone. A machine whose devices have the same routers carries
//! the same packets beside it. The difference is what devices, the fabric's links and its schedule
//! cost.
//!
//! - `traffic/`: the torus and its traffic;
//! - `counted.rs`: the function whose instructions are counted;
//! - `booksim.rs`: BookSim as a peer, where the user has built it.

mod booksim;
mod counted;
mod traffic;

use std::time::{Duration, Instant};

use nicforge::failure::{ErrorContext, Failure, print_line};

use self::traffic::{Driver, Traffic};
use crate::{
    bench::{Bench, Run},
    callgrind::{Callgrind, Count, pattern},
    heap,
    machine::{build, describe},
    process::{child_command, unknown_task},
    row::{Goal, Outcome, Row},
    samples::Samples,
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("fabric", "packets over links in virtual time, and the memory of a node", run)
        .with_child(run_child);

/// A torus, and how much of it is measured.
#[derive(Clone, Copy, Debug)]
struct Torus {
    lengths: [u8; 3],
    /// Virtual time until the traffic is steady, in nanoseconds.
    warm_up: u64,
    /// Virtual time of one measurement, in nanoseconds.
    window: u64,
    /// The goal for the rate, in packets over links per second.
    goal: f64,
}

/// The measured networks. The smaller one needs more time until its packets are spread out.
const TORI: [Torus; 2] = [
    Torus { lengths: [8, 8, 8], warm_up: 20_000, window: 2_000, goal: 2e6 },
    Torus { lengths: [32, 16, 16], warm_up: 4_000, window: 200, goal: 1e6 },
];

/// The name of a row's figure.
const INSTRUCTIONS: &str = "instructions";
/// The most nodes whose instructions a quick run counts.
const QUICK_NODES: u32 = 512;
/// The seed of the traffic.
const SEED: u64 = 1;
/// Maximum number of instructions of a hop.
const INSTRUCTIONS_GOAL: f64 = 900.0;
/// The section of the machine file of the machine whose memory is counted.
const CARDS: &str = "[[extoll]]\ntorus = [8, 8, 8]\nvpids = 16\n";
/// Maximum number of bytes of a card without clients.
const BYTES_GOAL: f64 = 20.0 * 1024.0;
/// The least ratio of our rate to BookSim's.
const TIMES_BOOKSIM: f64 = 5.0;
/// The task of the child process that counts the memory of a machine.
const MEMORY: &str = "memory";

impl Torus {
    /// Returns the number of nodes.
    fn nodes(&self) -> u32 {
        self.lengths.iter().map(|&length| u32::from(length)).product()
    }

    /// Builds the torus, and runs it for `warm_up` nanoseconds, until the traffic is steady.
    fn start(&self, driver: Driver, warm_up: u64) -> Result<Traffic, Failure> {
        let mut traffic = Traffic::new(self.lengths, driver, SEED)?;
        traffic.run_until(warm_up)?;
        Ok(traffic)
    }
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    // Rate and instructions of each torus, for two drivers; the memory; and BookSim.
    run.steps(4 * TORI.len() as u64 + 1 + u64::from(booksim::find().is_some()));
    let mut outcome = Outcome { notes: notes(), ..Outcome::default() };
    let callgrind = match Callgrind::find() {
        Ok(callgrind) => Some(callgrind),
        Err(missing) => {
            outcome.notes.push(format!("instructions are left out: {missing}"));
            None
        }
    };

    for torus in TORI {
        measure_torus(run, torus, callgrind.as_ref(), &mut outcome)?;
    }
    for torus in TORI {
        outcome.rows.push(torus_row(run, torus, Driver::Machine, callgrind.as_ref())?);
    }
    measure_booksim(run, &mut outcome)?;

    run.step("memory")?;
    let bytes = bytes_per_node()?;
    outcome.rows.push(Row::new("unattended-extoll").figure("nodes", 512.0).figure("bytes_per_node", bytes));
    outcome.goals.push(Goal::at_most("bytes of an EXTOLL card of 512 without clients", BYTES_GOAL, bytes));

    Ok(outcome)
}

/// Measures BookSim beside the first torus, if the user has named its binary.
fn measure_booksim(run: &Run<'_>, outcome: &mut Outcome) -> Result<(), Failure> {
    let Some(program) = booksim::find() else {
        outcome.notes.push(format!("booksim: left out; {} names its binary", booksim::PROGRAM));
        return Ok(());
    };

    run.step("booksim")?;
    let booksim_rate = booksim::rate(&program)?;
    let rate = outcome.rows.first().and_then(|row| row.rate_per_s).unwrap_or(0.0);
    let row = Row {
        bytes: Some(traffic::PACKET_BYTES as u64),
        rate_per_s: Some(booksim_rate),
        ..Row::new("booksim")
    };
    outcome.rows.push(row.figure("nodes", 512.0));
    outcome.goals.push(Goal::at_least(
        "times the packets over links of BookSim",
        TIMES_BOOKSIM,
        rate / booksim_rate,
    ));
    Ok(())
}

/// Measures a network without a machine, and adds its row and goals.
fn measure_torus(
    run: &Run<'_>,
    torus: Torus,
    callgrind: Option<&Callgrind>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let nodes = torus.nodes();
    let row = torus_row(run, torus, Driver::Alone, callgrind)?;

    let description = format!("packets over links and second, {nodes} nodes");
    outcome.goals.push(Goal::at_least(description, torus.goal, row.rate_per_s.unwrap_or(0.0)));
    if let Some(instructions) = row.figures.get(INSTRUCTIONS) {
        let description = format!("instructions for a packet and link, {nodes} nodes");
        outcome.goals.push(Goal::at_most(description, INSTRUCTIONS_GOAL, *instructions));
    }

    outcome.rows.push(row);
    Ok(())
}

/// Measures the rate in a torus, and counts the instructions.
fn torus_row(
    run: &Run<'_>,
    torus: Torus,
    driver: Driver,
    callgrind: Option<&Callgrind>,
) -> Result<Row, Failure> {
    let path = match driver {
        Driver::Alone => "virtual-hops",
        Driver::Machine => "machine-hops",
    };
    let nodes = torus.nodes();

    run.step(format!("{path}: rate, {nodes} nodes"))?;
    let rate = rate(run, torus, driver)?;
    let row = Row { bytes: Some(traffic::PACKET_BYTES as u64), rate_per_s: Some(rate), ..Row::new(path) }
        .figure("nodes", nodes.into());

    run.step(format!("{path}: instructions, {nodes} nodes"))?;
    // To build thousands of nodes below callgrind takes longer than a quick run may.
    match callgrind.filter(|_| !run.quick || nodes <= QUICK_NODES) {
        None => Ok(row),
        Some(callgrind) => Ok(row.figure(INSTRUCTIONS, instructions(run, torus, driver, callgrind)?)),
    }
}

/// Returns the packets over links per second: the median of many windows.
fn rate(run: &Run<'_>, torus: Torus, driver: Driver) -> Result<f64, Failure> {
    let (warm_up, least_time) =
        if run.quick { (torus.warm_up / 8, Duration::ZERO) } else { (torus.warm_up, Duration::from_secs(5)) };
    let mut traffic = torus.start(driver, warm_up)?;

    let (mut hop_times, start) = (Samples::default(), Instant::now());
    while hop_times.is_empty() || start.elapsed() < least_time {
        run.check()?;
        let hops_before = traffic.hops();
        let until = traffic.now().0 + torus.window;
        let window_start = Instant::now();
        traffic.run_until(until)?;
        let time = window_start.elapsed();

        let hops = traffic.hops() - hops_before;
        hop_times.add_mean(time, u32::try_from(hops).unwrap_or(u32::MAX));
    }

    let median_ns = hop_times.percentile(50.0);
    Ok(1e9 / median_ns)
}

/// Returns the instructions of a hop: those of a child process under callgrind, divided by the hops
/// of the same traffic in this process.
fn instructions(run: &Run<'_>, torus: Torus, driver: Driver, callgrind: &Callgrind) -> Result<f64, Failure> {
    // Shorter times than those of the rate, because callgrind is slow.
    let divisor = if run.quick { 16 } else { 2 };
    let (warm_up, window) = (torus.warm_up / divisor, torus.window / divisor);
    let mut traffic = torus.start(driver, warm_up)?;
    let hops_before = traffic.hops();
    traffic.run_until(warm_up + window)?;
    let hops = traffic.hops() - hops_before;

    let count = Count {
        name: "hops",
        bench: BENCH.name,
        task: format!("{}:{warm_up}:{window}:{}", torus.nodes(), u8::from(driver == Driver::Machine)),
        functions: vec![pattern(counted::MODULE, "run_window")],
        first_thread_only: false,
    };
    let counts = callgrind.run(run, &count)?;

    Ok(counts.total() as f64 / hops.max(1) as f64)
}

/// Returns the bytes that a node of a machine without clients takes, by a child process that builds
/// the machine.
fn bytes_per_node() -> Result<f64, Failure> {
    let output =
        child_command(BENCH.name, MEMORY)?.output().context(|| "the child process for memory".into())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Failure::environment(format!("the child process for memory ended with {}: {errors}", output.status))
    })
}

/// Carries out the task of a child process: counts the memory of a machine, or runs the traffic of
/// `NODES:WARM_UP:WINDOW:IS_IN_MACHINE`, with the times in nanoseconds and 0 or 1 at the end.
fn run_child(text: &str) -> Result<u8, Failure> {
    if text == MEMORY {
        let plan = describe(BENCH.name, CARDS)?;
        let (built, bytes) = heap::count(|| build(&plan));
        let (machine, _) = built?;
        print_line(bytes as f64 / f64::from(machine.functions()))?;
        return Ok(0);
    }

    let numbers: Vec<u64> = text.split(':').map_while(|number| number.parse().ok()).collect();
    let &[nodes, warm_up, window, is_in_machine] = numbers.as_slice() else { return Err(unknown_task(text)) };
    let driver = if is_in_machine == 0 { Driver::Alone } else { Driver::Machine };
    let torus = TORI.into_iter().find(|torus| u64::from(torus.nodes()) == nodes);
    let mut traffic = torus.ok_or_else(|| unknown_task(text))?.start(driver, warm_up)?;
    counted::run_window(&mut traffic, warm_up.saturating_add(window))?;
    Ok(0)
}

/// Returns the notes below the table.
fn notes() -> Vec<String> {
    let mut notes = vec![
        format!(
            "virtual-hops: a torus (8x8x8, or 32x16x16) at saturated uniform random load; packets of {} bytes, cut-through, \
             dimension order, {} virtual channels of {} packets; one thread, median of windows",
            traffic::PACKET_BYTES,
            traffic::CHANNELS,
            traffic::CREDITS
        ),
        "machine-hops: the same packets at the same times, with the routers in devices of a machine".into(),
        "instructions: all that the network or machine and the routers do, by the packets over links".into(),
        "unattended-extoll: allocated bytes of a torus of 8x8x8 cards with 16 VPIDs, without clients".into(),
    ];
    if cfg!(debug_assertions) {
        notes.push("not a release build: NOT for quoting".into());
    }
    notes
}
