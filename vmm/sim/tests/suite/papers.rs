//! The tables of all papers: their quick rows, their mechanisms, and their pages of the book.

use std::process::{Command, Output};

use nicforge_sim::paper::ALL;

/// Runs the quick rows of a paper in a process of their own.
fn paper(name: &str, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_nicforge-sim");
    Command::new(program).args(["paper", name, "--quick"]).args(arguments).output().unwrap()
}

#[test]
fn quick_rows_hold_and_the_same_seed_gives_the_same_bytes() {
    for experiment in ALL {
        let [one, other] = [(); 2].map(|()| paper(experiment.name, &["--json"]));
        assert_eq!(one.status.code(), Some(0), "{}", String::from_utf8_lossy(&one.stdout));
        assert_eq!(one.stdout, other.stdout, "{}", experiment.name);
    }
}

#[test]
fn quick_rows_hold_with_another_seed() {
    for experiment in ALL {
        let output = paper(experiment.name, &["--seed", "2"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}: {text}", experiment.name);
    }
}

#[test]
fn each_missing_mechanism_puts_rows_out() {
    for experiment in ALL {
        assert!(!experiment.mechanisms.is_empty(), "{}", experiment.name);
        for mechanism in experiment.mechanisms {
            let output = paper(experiment.name, &["--without", mechanism.name]);
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(
                output.status.code(),
                Some(1),
                "{} without {}: {text}",
                experiment.name,
                mechanism.name
            );
        }
    }
}

/// The book's pages have the rows that the program prints.
#[test]
fn pages_of_the_book_are_up_to_date() {
    for experiment in ALL {
        let name = experiment.name;
        let page = format!("{}/../../docs/src/papers/{name}.md", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(page).unwrap();

        let output = paper(name, &["--markdown"]);
        let text = String::from_utf8(output.stdout).unwrap();
        for row in text.lines().filter(|line| line.starts_with('|')) {
            assert!(page.contains(row), "docs/src/papers/{name}.md lacks: {row}");
        }
    }
}
