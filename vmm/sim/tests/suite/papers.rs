//! The tables of all papers: their quick rows, their mechanisms, and their pages of the book.

use std::process::{Command, Output};

use nicforge_sim::paper::ALL;

/// Runs the quick rows of a paper in a process of their own.
fn paper(name: &str, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_nicforge-sim");
    Command::new(program).args(["paper", name, "--quick"]).args(arguments).output().unwrap()
}

/// Quick rows hold, and are the same bytes in a second run.
fn check_rows(name: &str) {
    let [one, other] = [(); 2].map(|()| paper(name, &["--json"]));
    assert_eq!(one.status.code(), Some(0), "{}", String::from_utf8_lossy(&one.stdout));
    assert_eq!(one.stdout, other.stdout);
}

/// The book's page has the quick rows.
fn check_page(name: &str) {
    let text = String::from_utf8(paper(name, &["--markdown"]).stdout).unwrap();
    let page = format!("{}/../../docs/src/papers/{name}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).unwrap();
    for row in text.lines().filter(|line| line.starts_with('|')) {
        assert!(page.contains(row), "docs/src/papers/{name}.md lacks: {row}");
    }
}

/// Quick rows hold with another seed.
fn check_other_seed(name: &str) {
    let output = paper(name, &["--seed", "2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Each mechanism, taken away, makes the paper's table fail.
fn check_mechanisms(name: &str) {
    let experiment = ALL.iter().find(|experiment| experiment.name == name).unwrap();
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
            fn quick_rows_hold_and_are_the_same_bytes_in_each_run() {
                super::check_rows(NAME);
            }

            #[test]
            fn page_of_the_book_is_up_to_date() {
                super::check_page(NAME);
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
