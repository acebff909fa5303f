//! The command line of the papers' experiments.

use std::path::PathBuf;

use clap::Args;
use nicforge::failure::{EXIT_RESULT, ErrorContext, Failure, print_line};
use nicforge::signals::Signals;

use super::{
    experiment::{Experiment, Options, Run},
    plot,
    table::{Table, Verdict, json},
};

/// The exit codes, which the help text shows.
pub const EXIT_CODES: &str = "Exit codes: 0 all judged rows hold; 1 a judged row is out; 2 the command line is wrong; 3 a file cannot \
be written; 4 a run in virtual time did not end; 130 ended by Ctrl-C; 141 the reader of the output has closed it.";

/// The arguments of `nicforge paper`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Arguments {
    /// The name of a paper; `list` names them with their mechanisms, `all` runs each.
    #[arg(value_name = "NAME|all|list")]
    pub name: String,
    /// Measure the quick rows only.
    #[arg(long)]
    pub quick: bool,
    /// The seed of all random numbers. The same seed gives the same output. [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Take a mechanism out of the model, to see which rows need it; may be given several times.
    #[arg(long, value_name = "MECHANISM")]
    pub without: Vec<String>,
    /// Print the tables as JSON.
    #[arg(long)]
    pub json: bool,
    /// Print the tables as Markdown.
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Also write the figures into this directory, as NAME-FIGURE.svg. Quick rows have no figures.
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    pub plot: Option<PathBuf>,
}

/// Runs one of `experiments`, or all of them, and prints their tables. Returns the exit code.
///
/// # Errors
/// Returns an error when the command line is wrong, when an experiment fails, and when the user has
/// ended the run. A row that is out is no error.
pub fn main(experiments: &[&Experiment], arguments: &Arguments) -> Result<u8, Failure> {
    let selected = match arguments.name.as_str() {
        "list" => {
            check_list(arguments)?;
            return list(experiments, arguments.json);
        }
        "all" => experiments,
        name => &[find(experiments, name)?],
    };
    check_mechanisms(selected, &arguments.without)?;
    if let Some(directory) = &arguments.plot {
        plot::make_directory(directory)?;
    }

    let signals = Signals::block().context(|| "signals".into())?;
    let mut tables = Vec::new();
    let ended = run(selected, arguments, &signals, &mut tables);

    // The finished tables are printed also when a later experiment failed.
    if arguments.json {
        print_line(json(&tables, ended.is_ok())?)?;
    }
    ended?;

    let verdict = Verdict::of(&tables);
    if !arguments.json && tables.len() > 1 {
        print_line(format_args!("{} papers: {}", tables.len(), verdict.sentence()))?;
    }

    Ok(if verdict.is_good() { 0 } else { EXIT_RESULT })
}

/// Runs experiments one after the other, and prints each table when it is complete.
fn run(
    experiments: &[&Experiment],
    arguments: &Arguments,
    signals: &Signals,
    tables: &mut Vec<Table>,
) -> Result<(), Failure> {
    let Arguments { seed, quick, without, .. } = arguments.clone();
    let seed = seed.unwrap_or(Options::default().seed);
    let options = Options { seed, quick, without };

    for experiment in experiments {
        let table = Run::of(experiment, &options, &|| signals.take().is_some())?;
        if arguments.markdown {
            print_line(format_args!("{}\n", table.markdown()))?;
        } else if !arguments.json {
            let end = if experiments.len() > 1 { "\n" } else { "" };
            print_line(format_args!("{}{end}", table.text()))?;
        }

        // The table stays also when a figure cannot be written.
        tables.push(table);
        if let (Some(directory), Some(table)) = (&arguments.plot, tables.last()) {
            plot::write(table, directory)?;
        }
    }

    Ok(())
}

/// Checks that the list of the papers comes without options of a run.
fn check_list(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { quick, seed, without, markdown, plot, .. } = arguments;
    if *quick || *markdown || seed.is_some() || !without.is_empty() || plot.is_some() {
        return Err(Failure::usage("list measures nothing: --json is its only option"));
    }
    Ok(())
}

/// Returns the experiment called `name`.
fn find<'a>(experiments: &[&'a Experiment], name: &str) -> Result<&'a Experiment, Failure> {
    experiments.iter().copied().find(|experiment| experiment.name == name).ok_or_else(|| {
        let names: String = experiments.iter().map(|experiment| format!("{}, ", experiment.name)).collect();
        Failure::usage(format!("there is no paper {name}; there are {names}all and list"))
    })
}

/// Checks that each mechanism is one of an experiment that will run.
fn check_mechanisms(experiments: &[&Experiment], without: &[String]) -> Result<(), Failure> {
    let known: Vec<_> = experiments
        .iter()
        .flat_map(|experiment| experiment.mechanisms)
        .map(|mechanism| mechanism.name)
        .collect();

    match without.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) if known.is_empty() => {
            Err(Failure::usage(format!("--without {name}: no mechanism can be taken away here")))
        }
        Some(name) => Err(Failure::usage(format!(
            "--without {name}: there is no such mechanism here; there are {}",
            known.join(", ")
        ))),
    }
}

/// Prints the experiments, as text or as JSON.
fn list(experiments: &[&Experiment], json: bool) -> Result<u8, Failure> {
    if json {
        let papers: Vec<_> = experiments.iter().map(|experiment| description_of(experiment)).collect();
        print_line(serde_json::json!({ "papers": papers }))?;
        return Ok(0);
    }

    for experiment in experiments {
        print_line(format_args!("{:8} {}", experiment.name, experiment.title))?;
        print_line(format_args!("{:8} {}", "", experiment.citation))?;
        for mechanism in experiment.mechanisms {
            print_line(format_args!("{:8} --without {:16} {}", "", mechanism.name, mechanism.without))?;
        }
    }

    Ok(0)
}

/// Returns an experiment's description in JSON.
fn description_of(experiment: &Experiment) -> serde_json::Value {
    let mechanisms: Vec<_> = experiment
        .mechanisms
        .iter()
        .map(|mechanism| serde_json::json!({ "name": mechanism.name, "about": mechanism.without }))
        .collect();

    serde_json::json!({
        "name": experiment.name,
        "title": experiment.title,
        "citation": experiment.citation,
        "mechanisms": mechanisms,
    })
}
