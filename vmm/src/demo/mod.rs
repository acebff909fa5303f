//! `nicforge demo`: streams real data through an emulated Blue Gene/P tree network and back.
//!
//! The parent serves a pset. It starts one process for the I/O node, and one for each of four
//! compute nodes. The I/O node streams the data to the compute cores over FCNP, one message to each
//! core in turn. A core digests its data, changes every byte, and sends it back while the I/O node
//! sends to the next core. For each core three digests must agree: of the sent data, of the data
//! that the core received, and of the returned data with the change undone.
//!
//! - `mod.rs`: the parent;
//! - `arguments.rs`: the command line;
//! - `data.rs`: the choice of data;
//! - `io_node.rs`, `compute_node.rs`: the two kinds of child;
//! - `report.rs`: the children's messages to the parent, and the table.

mod arguments;
mod compute_node;
mod data;
mod io_node;
mod report;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use clap::ArgMatches;
use indicatif::{ProgressBar, ProgressStyle};
use nicforge_family::Families;
use nicforge_machine::description;

pub use self::arguments::command;
use self::{
    data::Data,
    report::{Collected, Message},
};
use crate::{
    cli::ServeOptions,
    failure::{EXIT_INTERRUPTED, ErrorContext, Failure, print_error},
    lines::{LineSink, Stream},
    processes::{Processes, Program},
    serve::Served,
    signals::Signals,
};

/// Compute nodes of the demonstration's pset.
const COMPUTE_NODES: u32 = 4;
/// Cores of a compute node. A core's rank in the pset is its node's number times this, plus its own
/// number in the node.
const CORES_PER_NODE: u32 = 4;
/// Least number of the host's processors with which all cores of a node are used.
const MANY_PROCESSORS: usize = 8;
/// Round trips measured with each compute node before the streaming.
const ROUND_TRIPS: u32 = 200;
/// Bytes in a message of a round trip.
const ROUND_TRIP_BYTES: usize = 16;

/// The part of the demonstration that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The I/O node.
    Io,
    /// A compute node.
    Compute,
}

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file to stream.
    pub file: Option<PathBuf>,
    /// Bytes in a message.
    pub message: usize,
    /// Whether the I/O node uses interrupt mode.
    pub interrupts: bool,
    /// Packets in each FIFO.
    pub fifo_depth: u32,
    /// Whether the result is printed as JSON instead of a table.
    pub json: bool,
    /// The part, which is set in child processes only.
    pub part: Option<Part>,
    /// Where and how to serve the machine.
    pub serve: ServeOptions,
}

/// The settings that parent and children share.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Compute cores in use on each node.
    cores: u32,
    /// Bytes in a message.
    message: usize,
    /// Whether the I/O node uses interrupt mode.
    interrupts: bool,
}

impl Plan {
    /// Returns the plan. It uses four cores of each node, as on the real machine, or two on a host
    /// with few processors. With two, a node's cores still hand FCNP's polling over to each other.
    fn new(options: &Options) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            cores: if processors >= MANY_PROCESSORS { CORES_PER_NODE } else { 2 },
            message: options.message,
            interrupts: options.interrupts,
        }
    }

    /// Returns the ranks of the used cores in their sending order: the first core of each node, and
    /// then the second.
    fn ranks(&self) -> Vec<u32> {
        let rank = |node: u32, core: u32| node * CORES_PER_NODE + core;
        (0..self.cores).flat_map(|core| (0..COMPUTE_NODES).map(move |node| rank(node, core))).collect()
    }

    /// Returns the number that core `rank` adds to every byte. Each core has another one, so that
    /// data which return from a wrong core are found.
    fn change(rank: u32) -> u8 {
        rank as u8 + 1
    }
}

/// Runs the command, or one of its children. The machine is one of the families of this program.
///
/// # Errors
/// Returns the [`Failure`] of the command line, the machine, or a part of the demonstration.
pub fn run(matches: &ArgMatches, families: &Families) -> Result<u8, Failure> {
    let options = &arguments::options(matches)?;
    let plan = Plan::new(options);
    match options.part {
        Some(Part::Io) => io_node::main(&plan, &Data::choose(options.file.as_deref())?),
        Some(Part::Compute) => compute_node::main(&plan),
        None => parent(options, &plan, families),
    }
}

/// Serves the machine of the demonstration, starts its programs, and reports their results.
fn parent(options: &Options, plan: &Plan, families: &Families) -> Result<u8, Failure> {
    let signals = Signals::block().context(|| "signals".into())?;
    let data = Data::choose(options.file.as_deref())?;
    let text = format!(
        "name = \"demo-{}\"\n[[pset]]\ncompute_nodes = {COMPUTE_NODES}\nfifo_depth = {}\n",
        std::process::id(),
        options.fifo_depth
    );

    let machine = description::parse(&text, "the demonstration's machine", families)
        .map_err(|error| Failure::usage(error.to_string()))?;

    let served = Served::start_plan(&machine, &options.serve)?;
    if !options.json {
        print_error(format_args!(
            "{}\nthrough a served pset in {} ({}): 1 I/O node, {COMPUTE_NODES} compute nodes of {} cores, FIFOs of {}",
            data.describe(),
            served.directory().path().display(),
            served.event_loop(),
            plan.cores,
            options.fifo_depth
        ));
    }

    // A wrong template would only cost the styling.
    let bar = if options.json { ProgressBar::hidden() } else { ProgressBar::new(data.bytes()) };
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }

    let collected = Arc::new(Mutex::new(Collected::default()));
    let mut processes = Processes::start(programs(options, &data, &served)?, collector(&collected, &bar))?;
    let code = processes.wait(&signals)?;
    drop(processes);
    bar.finish_and_clear();

    let snapshot = served.snapshot();
    served.stop()?;
    if code == EXIT_INTERRUPTED {
        return Err(Failure::interrupted());
    }
    if code != 0 {
        return Err(Failure::result("a part of the demonstration failed; its message is above"));
    }

    let collected = std::mem::take(&mut *collected.lock().unwrap_or_else(PoisonError::into_inner));
    report::print(&collected, &snapshot?, plan, options)
}

/// Returns the child programs: this program itself, once for each node, with the hidden option that
/// names its part.
fn programs(options: &Options, data: &Data, served: &Served) -> Result<Vec<Program>, Failure> {
    let this = std::env::current_exe().context(|| "this program's own file".into())?;
    let mut programs = Vec::new();

    for node in &served.built().nodes {
        let part = if node.rank == 0 && node.name.starts_with("io") { "io" } else { "compute" };
        let mut command = vec![this.display().to_string(), "demo".into(), "--part".into(), part.into()];
        command.extend(["--message".into(), options.message.to_string()]);
        if options.interrupts {
            command.push("--interrupts".into());
        }
        if let Some(file) = data.file() {
            command.extend(["--".into(), file.display().to_string()]);
        }

        let sockets: Vec<_> = node
            .users()
            .map(|attachment| served.socket(node, attachment).map(|path| path.display().to_string()))
            .collect::<Result<_, _>>()?;
        let environment = vec![
            ("NICFORGE_SOCKET".to_owned(), sockets.join(":")),
            ("NICFORGE_NODE".to_owned(), node.name.clone()),
        ];
        programs.push(Program { name: node.name.clone(), command, environment });
    }

    Ok(programs)
}

/// Returns a sink that collects the messages of children, shows their progress, and prints their
/// other lines.
fn collector(collected: &Arc<Mutex<Collected>>, bar: &ProgressBar) -> LineSink {
    let (collected, bar) = (collected.clone(), bar.clone());
    Arc::new(move |name, stream, line| {
        let message = if stream == Stream::Output { Message::parse(line) } else { None };
        match message {
            Some(Message::Progress { bytes }) => bar.set_position(bytes),
            Some(message) => collected.lock().unwrap_or_else(PoisonError::into_inner).add(message),
            None => bar.suspend(|| print_error(format_args!("{name} | {line}"))),
        }
    })
}

/// Returns bytes as hexadecimal digits.
fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
