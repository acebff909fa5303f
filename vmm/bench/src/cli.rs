//! The command line.

use std::path::PathBuf;

use clap::Parser;
use nicforge::{
    cli::EventLoop,
    failure::{EXIT_RESULT, ErrorContext, Failure, print_line},
    log::Log,
    signals::Signals,
};

use crate::{
    bench::{Bench, Run},
    host::Host,
    report::Report,
    results::Results,
};

/// Measure the cost of the devices and libraries, beside their peers, in one run.
#[derive(Debug, Parser)]
#[command(name = "nicforge bench", bin_name = "nicforge bench")]
struct Arguments {
    /// The name of a benchmark; `list` names them, `all` runs each.
    #[arg(value_name = "NAME|all|list")]
    name: String,
    /// Print the results as JSON, and no progress.
    #[arg(long)]
    json: bool,
    /// Print the results as Markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Also write each report into this directory, as NAME.md and NAME.json.
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Make fewer repetitions: to check that it works, not for figures to be quoted.
    #[arg(long)]
    quick: bool,
    /// End with exit code 1 when a goal was missed.
    #[arg(long)]
    check: bool,
    /// How the engines wait for sockets.
    #[arg(long, value_enum, value_name = "KIND", default_value_t = EventLoop::Auto)]
    event_loop: EventLoop,
    /// The task of a benchmark's child process; used by the benchmarks themselves.
    #[arg(long, hide = true)]
    task: Option<String>,
}

/// Parses the command line, and runs one of `benches`, or all of them. Returns the exit code.
///
/// # Errors
/// Returns an error when the command line is wrong, and when a bench cannot measure. A missed goal
/// is no error.
pub fn main(benches: &[&Bench]) -> Result<u8, Failure> {
    let arguments = Arguments::parse();
    // The log is kept until the end. Its remaining lines are written when it is dropped.
    let _log = Log::install()?;
    if let Some(task) = &arguments.task {
        return run_child(find(benches, &arguments.name)?, task);
    }

    match arguments.name.as_str() {
        "list" => list(benches, arguments.json),
        "all" => {
            let all: Vec<_> = benches.iter().copied().filter(|bench| bench.is_in_all).collect();
            run(&all, &arguments)
        }
        name => run(&[find(benches, name)?], &arguments),
    }
}

/// Returns the bench of a name.
fn find<'a>(benches: &[&'a Bench], name: &str) -> Result<&'a Bench, Failure> {
    benches.iter().copied().find(|bench| bench.name == name).ok_or_else(|| {
        let names: Vec<_> = benches.iter().map(|bench| bench.name).collect();
        Failure::usage(format!("there is no bench {name}; there are {}, all and list", names.join(", ")))
    })
}

/// Carries out the task of a child process. Returns its exit code.
fn run_child(bench: &Bench, task: &str) -> Result<u8, Failure> {
    let run = bench
        .child
        .ok_or_else(|| Failure::usage(format!("the bench {} has no child processes", bench.name)))?;
    run(task)
}

/// Prints the benches, as text or as JSON.
fn list(benches: &[&Bench], json: bool) -> Result<u8, Failure> {
    if json {
        let benches: Vec<_> = benches
            .iter()
            .map(|bench| serde_json::json!({ "name": bench.name, "about": bench.about }))
            .collect();
        print_line(serde_json::json!({ "benches": benches }))?;
    } else {
        for bench in benches {
            print_line(format_args!("{:8} {}", bench.name, bench.about))?;
        }
    }

    Ok(0)
}

/// Runs benches one after the other, and prints each report when it is complete. With `--json` the
/// reports are printed together at the end, also when a later bench has failed.
fn run(benches: &[&Bench], arguments: &Arguments) -> Result<u8, Failure> {
    let results = arguments.results.as_deref().map(Results::create).transpose()?;
    let signals = Signals::block().context(|| "signals".into())?;
    let host = Host::detect();
    let mut reports = Vec::new();
    let mut ended = Ok(());

    for bench in benches {
        match measure(bench, arguments, &signals, &host) {
            Ok(report) => reports.push(report),
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }

        if let Some(report) = reports.last() {
            results.as_ref().map_or(Ok(()), |results| results.write(report))?;
            print(report, arguments)?;
        }
    }

    if arguments.json {
        print_json(&reports, &host, benches.len() == 1)?;
    }

    ended?;
    let missed = reports.iter().any(|report| report.outcome.goals.iter().any(|goal| !goal.met));
    Ok(if arguments.check && missed { EXIT_RESULT } else { 0 })
}

/// Runs a bench, and returns its report.
fn measure(bench: &Bench, arguments: &Arguments, signals: &Signals, host: &Host) -> Result<Report, Failure> {
    let mut run = Run::new(bench, arguments.event_loop, signals, arguments.json);
    run.quick = arguments.quick;
    run.all = arguments.name == "all";

    let outcome = (bench.run)(&run);
    run.finish();
    Ok(Report { bench: bench.name, machine: host.clone(), quick: arguments.quick, outcome: outcome? })
}

/// Prints a report as tables or as Markdown.
fn print(report: &Report, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.markdown {
        print_line(report.markdown())
    } else if !arguments.json {
        report.print()
    } else {
        Ok(())
    }
}

/// Prints the finished reports as JSON: a single one as it is, others in a list.
fn print_json(reports: &[Report], host: &Host, is_single: bool) -> Result<(), Failure> {
    match reports {
        [] => Ok(()),
        [report] if is_single => print_line(report.json()?),
        reports => {
            let all = serde_json::json!({ "bench": "all", "machine": host, "reports": reports });
            print_line(serde_json::to_string_pretty(&all).context(|| "the report".into())?)
        }
    }
}
