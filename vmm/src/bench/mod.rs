//! `nicforge bench`: the cost of the machine, the libraries and their counterparts, compared within
//! one run.
//!
//! The results are rows of figures, and the project's goals with their measured values. They are
//! shown as a table, or as JSON for scripts. Contestants are measured in the same run, in turns
//! ([`samples::in_turns`]), and with the same placement ([`placement`]). On a machine with few
//! processors other comparisons are unreliable.
//!
//! - `row.rs`: rows, goals, and the outcome of a benchmark; `report.rs`: their output;
//! - `host.rs`: the host; `placement.rs`: the processors of threads; `samples.rs`: percentiles and
//!   turns;
//! - `counting.rs`, `callgrind.rs`: running programs that count;
//! - `bare_ring.rs`: a posted-write ring without an engine; `cards.rs`: two EXTOLL cards;
//! - one folder or file for each benchmark.

pub mod bare_ring;
pub mod callgrind;
pub mod cards;
pub mod counting;
pub mod host;
pub mod placement;
pub mod report;
pub mod row;
pub mod samples;

mod extoll_mpi;
mod fcnp;
mod guest;
mod matching;
mod mmio;
mod packet;
mod rest;
mod rma;
mod velo;

use indicatif::{ProgressBar, ProgressStyle};

use self::{report::Report, row::Outcome};
use crate::{
    cli::EventLoop,
    failure::{EXIT_RESULT, ErrorContext, Failure, print_line},
    signals::Signals,
};

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// A benchmark's name, `all` or `list`.
    pub name: String,
    /// Print JSON instead of tables, and no progress.
    pub json: bool,
    /// Print Markdown instead of tables, for a document.
    pub markdown: bool,
    /// Make fewer repetitions, to check that the benchmark works.
    pub quick: bool,
    /// End with exit code 1 when a goal is missed.
    pub check: bool,
    /// How the engines of the benchmarks wait.
    pub event_loop: EventLoop,
    /// The task of a benchmark's child process, in the benchmark's own format.
    pub part: Option<String>,
}

/// The parameters of one benchmark's run.
pub struct Run<'a> {
    /// Make fewer repetitions.
    pub quick: bool,
    /// How engines wait.
    pub event_loop: EventLoop,
    /// Set for `all`. What cannot be measured on this host is then left out with a note, and is no
    /// error.
    pub all: bool,
    /// Ctrl-C. It must be checked between measurements, which [`Run::step`] does.
    signals: &'a Signals,
    progress: ProgressBar,
}

impl Run<'_> {
    /// Announces the number of calls to [`Run::step`].
    pub fn steps(&self, steps: u64) {
        self.progress.set_length(steps);
    }

    /// Begins the next measurement.
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub fn step(&self, what: impl Into<String>) -> Result<(), Failure> {
        self.check()?;
        self.progress.set_message(what.into());
        self.progress.inc(1);
        Ok(())
    }

    /// Checks whether the user has ended the run.
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub fn check(&self) -> Result<(), Failure> {
        match self.signals.take() {
            Some(_) => Err(Failure::interrupted()),
            None => Ok(()),
        }
    }

    /// Returns the signals, for waits for child processes.
    pub fn signals(&self) -> &Signals {
        self.signals
    }
}

/// Runs a benchmark's child process, and returns its exit code.
type Part = fn(&str) -> Result<u8, Failure>;

/// A benchmark.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&Run<'_>) -> Result<Outcome, Failure>,
    /// The function for its child processes, if it has any.
    part: Option<Part>,
}

/// The benchmark that `all` leaves out. It boots guests, which may first need a download of some
/// hundred megabytes.
const ALONE: &str = "guest";

/// All benchmarks, in the order of `all`. The machine at rest comes first, because the others leave
/// memory allocated in this process.
const BENCHES: &[Bench] = &[
    Bench {
        name: "rest",
        about: "what a served machine of 65 nodes costs while no program uses it",
        run: rest::run,
        part: None,
    },
    Bench {
        name: "mmio",
        about: "register accesses and interrupts of a served device, beside bare sockets and rings",
        run: mmio::run,
        part: Some(mmio::part),
    },
    Bench {
        name: "fcnp",
        about: "FCNP beside packets without a protocol, and beside sockets, direct and relayed",
        run: fcnp::run,
        part: Some(fcnp::part),
    },
    Bench {
        name: "packet",
        about: "instructions a packet, in the library and in the machine (needs valgrind)",
        run: packet::run,
        part: Some(packet::part),
    },
    Bench {
        name: "velo",
        about: "8-byte messages through the engine, beside a bare ring and sockets (valgrind counts instructions)",
        run: velo::run,
        part: Some(velo::part),
    },
    Bench {
        name: "rma",
        about: "puts and gets between two EXTOLL cards, against a copy of the same memory",
        run: rma::run,
        part: None,
    },
    Bench {
        name: "matching",
        about: "what matching a message costs, by the number of others that wait",
        run: matching::run,
        part: None,
    },
    Bench {
        name: "extoll-mpi",
        about: "MPI-style messages over two EXTOLL cards: message rate, latency, RandomAccess (valgrind counts instructions)",
        run: extoll_mpi::run,
        part: Some(extoll_mpi::part),
    },
    Bench {
        name: "guest",
        about: "devices in QEMU guests: what passes without the server, registers, FCNP beside virtio-net (not in `all`)",
        run: guest::run,
        part: Some(guest::part),
    },
];

/// Runs the command.
pub fn main(options: &Options) -> Result<u8, Failure> {
    if let Some(part) = &options.part {
        let body = find(&options.name)?
            .part
            .ok_or_else(|| Failure::usage(format!("the bench {} has no child processes", options.name)))?;
        return body(part);
    }

    match options.name.as_str() {
        "list" => list(options.json),
        "all" => {
            let all: Vec<_> = BENCHES.iter().filter(|bench| bench.name != ALONE).collect();
            run_all(&all, options)
        }
        name => run_all(&[find(name)?], options),
    }
}

fn find(name: &str) -> Result<&'static Bench, Failure> {
    BENCHES.iter().find(|bench| bench.name == name).ok_or_else(|| {
        let names: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        Failure::usage(format!("there is no bench {name}; there are {}, all and list", names.join(", ")))
    })
}

fn list(json: bool) -> Result<u8, Failure> {
    if json {
        let benches: Vec<_> = BENCHES
            .iter()
            .map(|bench| serde_json::json!({ "name": bench.name, "about": bench.about }))
            .collect();
        print_line(serde_json::json!({ "benches": benches }))?;
    } else {
        for bench in BENCHES {
            print_line(format_args!("{:8} {}", bench.name, bench.about))?;
        }
    }

    Ok(0)
}

fn run_all(benches: &[&Bench], options: &Options) -> Result<u8, Failure> {
    let signals = Signals::block().context(|| "signals".into())?;
    let machine = host::Host::detect();
    let mut reports = Vec::new();
    let mut failure = None;

    for bench in benches {
        let progress = if options.json { ProgressBar::hidden() } else { ProgressBar::new(0) };
        if let Ok(style) = ProgressStyle::with_template("{prefix:8} {bar:30} {pos}/{len} {msg}") {
            progress.set_style(style);
        }

        progress.set_prefix(bench.name);
        let run = Run {
            quick: options.quick,
            event_loop: options.event_loop,
            all: options.name == "all",
            signals: &signals,
            progress,
        };

        let outcome = (bench.run)(&run);
        run.progress.finish_and_clear();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(reason) => {
                failure = Some(reason);
                break;
            }
        };

        let report = Report { bench: bench.name, machine: machine.clone(), quick: options.quick, outcome };
        if options.markdown {
            print_line(report.markdown())?;
        } else if !options.json {
            report.print()?;
        }

        reports.push(report);
    }

    if options.json {
        match reports.as_slice() {
            // When a later benchmark fails, the finished reports are still printed.
            [] => {}
            [report] if benches.len() == 1 => {
                print_line(serde_json::to_string_pretty(report).context(|| "the report".into())?)?
            }
            reports => {
                let all = serde_json::json!({ "bench": "all", "machine": machine, "reports": reports });
                print_line(serde_json::to_string_pretty(&all).context(|| "the report".into())?)?;
            }
        }
    }

    if let Some(failure) = failure {
        return Err(failure);
    }

    let missed = reports.iter().any(|report| report.outcome.goals.iter().any(|goal| !goal.met));
    Ok(if options.check && missed { EXIT_RESULT } else { 0 })
}
