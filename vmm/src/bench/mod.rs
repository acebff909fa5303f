//! `nicforge bench`: what the machine, the libraries and their peers cost, compared within one run.
//!
//! In: a bench's name. Out: rows of figures, and the goals of the project with what was measured for them; a table for
//! people, JSON for scripts. Everything that is compared is measured in the same run, in turns ([`samples::in_turns`]), and
//! with the same placement ([`placement`]): on a machine with few processors nothing else can be believed.
//!
//! - `row.rs`: rows, goals, what a bench gives back; `report.rs`: how they are shown;
//! - `host.rs`: which machine this is; `placement.rs`: which thread runs where; `samples.rs`: percentiles and turns;
//! - `counting.rs`: programs that count something, waited for;
//! - one folder or file a bench.

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
    failure::{Doing, EXIT_RESULT, Failure, say},
    signals::Signals,
};

/// What was asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// A bench's name, `all` or `list`.
    pub name: String,
    /// JSON instead of tables, and no progress.
    pub json: bool,
    /// Markdown instead of tables, for a document.
    pub markdown: bool,
    /// Fewer repetitions: to see whether it works.
    pub quick: bool,
    /// End with exit code 1 when a goal is missed.
    pub check: bool,
    /// How the engines of the benches wait.
    pub event_loop: EventLoop,
    /// In a bench's child process: what it is to do, in the bench's own words.
    pub part: Option<String>,
}

/// What a bench is given.
pub struct Run<'a> {
    /// Fewer repetitions.
    pub quick: bool,
    /// How engines wait.
    pub event_loop: EventLoop,
    /// One of all: what can't be measured on this machine is left out with a note, and is no error.
    pub all: bool,
    /// Ctrl-C; look at it between measurements ([`Run::step`] does).
    signals: &'a Signals,
    progress: ProgressBar,
}

impl Run<'_> {
    /// So many calls of [`Run::step`] will come.
    pub fn steps(&self, steps: u64) {
        self.progress.set_length(steps);
    }

    /// The next measurement begins.
    ///
    /// # Errors
    /// When the user has ended the run.
    pub fn step(&self, what: impl Into<String>) -> Result<(), Failure> {
        self.check()?;
        self.progress.set_message(what.into());
        self.progress.inc(1);
        Ok(())
    }

    /// Whether the user has ended the run.
    ///
    /// # Errors
    /// Then.
    pub fn check(&self) -> Result<(), Failure> {
        match self.signals.take() {
            Some(_) => Err(Failure::interrupted()),
            None => Ok(()),
        }
    }

    /// For waiting for child processes.
    pub fn signals(&self) -> &Signals {
        self.signals
    }
}

/// The body of a bench's child process. Gives the exit code.
type Part = fn(&str) -> Result<u8, Failure>;

/// A bench.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&Run<'_>) -> Result<Outcome, Failure>,
    /// The body of its child processes, if it has any.
    part: Option<Part>,
}

/// The one that `all` leaves out: it boots guests, for which some hundred megabytes may have to be downloaded first.
const ALONE: &str = "guest";

/// All there are, in the order of `all`. The machine at rest comes first: what others leave in this process's memory is not its.
const BENCHES: &[Bench] = &[
    Bench {
        name: "rest",
        about: "what a served machine of 65 nodes costs while nobody uses it",
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

/// The command.
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
        say(serde_json::json!({ "benches": benches }))?;
    } else {
        for bench in BENCHES {
            say(format_args!("{:8} {}", bench.name, bench.about))?;
        }
    }
    Ok(0)
}

fn run_all(benches: &[&Bench], options: &Options) -> Result<u8, Failure> {
    let signals = Signals::block().doing(|| "signals".into())?;
    let machine = host::Host::look();
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
            say(report.markdown())?;
        } else if !options.json {
            report.say()?;
        }
        reports.push(report);
    }
    if options.json {
        match reports.as_slice() {
            // What is finished is worth keeping when a later one fails.
            [] => {}
            [report] if benches.len() == 1 => {
                say(serde_json::to_string_pretty(report).doing(|| "the report".into())?)?
            }
            reports => {
                let all = serde_json::json!({ "bench": "all", "machine": machine, "reports": reports });
                say(serde_json::to_string_pretty(&all).doing(|| "the report".into())?)?;
            }
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let missed = reports.iter().any(|report| report.outcome.goals.iter().any(|goal| !goal.met));
    Ok(if options.check && missed { EXIT_RESULT } else { 0 })
}
