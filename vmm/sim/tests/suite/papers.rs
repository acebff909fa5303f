//! The tables of all papers: their quick rows, their mechanisms, and their pages of the book.

use std::process::{Command, Output};

use nicforge_sim::paper::{
    ALL,
    experiment::{Experiment, Options, Run},
    judgement::Role,
    table::{Table, json},
};

/// Runs the quick rows of a paper in a process of their own.
fn paper(name: &str, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_nicforge-sim");
    Command::new(program).args(["paper", name, "--quick"]).args(arguments).output().unwrap()
}

/// Quick rows hold, are the same bytes in a second run, and stand in the book.
///
/// One run is in this process, because its table is needed as JSON and as Markdown, and each run of
/// a paper takes seconds.
fn check_rows(name: &str) {
    let options = Options { quick: true, ..Options::default() };
    let table = Run::of(find(name), &options, &|| false).unwrap();
    let other = paper(name, &["--json"]);

    assert_eq!(other.status.code(), Some(0), "{}", String::from_utf8_lossy(&other.stdout));
    let text = json(std::slice::from_ref(&table), true).unwrap();
    assert_eq!(String::from_utf8(other.stdout).unwrap(), format!("{text}\n"));
    check_page(&table);
}

/// The book's page has the rows of a table.
fn check_page(table: &Table) {
    let page = format!("{}/../../docs/src/papers/{}.md", env!("CARGO_MANIFEST_DIR"), table.name);
    let page = std::fs::read_to_string(page).unwrap();
    for row in table.markdown().lines().filter(|line| line.starts_with('|')) {
        assert!(page.contains(row), "docs/src/papers/{}.md lacks: {row}", table.name);
    }
}

/// Returns the experiment called `name`.
fn find(name: &str) -> &'static Experiment {
    ALL.iter().find(|experiment| experiment.name == name).unwrap()
}

/// Quick rows hold with another seed.
fn check_other_seed(name: &str) {
    let output = paper(name, &["--seed", "2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Each mechanism, taken away, makes the paper's table fail.
fn check_mechanisms(name: &str) {
    let experiment = find(name);
    assert!(!experiment.mechanisms.is_empty());

    for mechanism in experiment.mechanisms {
        let output = paper(name, &["--without", mechanism.name]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "without {}: {text}", mechanism.name);
    }
}

/// Makes a module of tests for each paper, so that they run beside each other.
macro_rules! papers {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(mod $name {
            const NAME: &str = stringify!($name);

            #[test]
            fn quick_rows_hold_are_the_same_bytes_in_each_run_and_stand_in_the_book() {
                super::check_rows(NAME);
            }

            #[test]
            fn quick_rows_hold_with_another_seed() {
                super::check_other_seed(NAME);
            }

            #[test]
            fn each_missing_mechanism_puts_rows_out() {
                super::check_mechanisms(NAME);
            }
        })*
    };
}

papers! { bgq extoll fcnp seastar }

#[test]
fn every_paper_is_tested() {
    let mut names: Vec<_> = ALL.iter().map(|experiment| experiment.name).collect();
    names.sort_unstable();
    assert_eq!(names, NAMES);
}

/// The delay of the cables is what the rest of the model leaves of the paper's latency, so this
/// latency predicts nothing.
#[test]
fn latency_by_which_a_delay_was_chosen_calibrates_the_model() {
    let rows = (find("bgq").rows)();
    let latency = rows.iter().find(|row| row.what.starts_with("projection: latency")).unwrap();
    assert_eq!(latency.role, Role::Calibrates);
}
