//! Runs of the made-up experiment: its rows, its table in three forms, and its plots.

use std::{cell::Cell, fs};

use nicforge::failure::{EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_RESULT, EXIT_USAGE, Failure};
use nicforge_sim::paper::{
    command,
    experiment::{Options, Run},
    plot,
    table::{Table, Verdict, json},
};
use serde_json::{Value, json};

use crate::made_up::{CANNOT_FAIL, LINK, UNNAMED};

/// Runs the made-up experiment, which the user does not end.
fn run(options: &Options) -> Table {
    Run::of(&LINK, options, &|| false).unwrap()
}

/// Returns the options of a run without a mechanism.
fn without(mechanism: &str) -> Options {
    Options { without: vec![mechanism.to_owned()], ..Options::default() }
}

/// Returns the exit code of the command with the two made-up experiments.
fn command(arguments: &[&str]) -> Result<u8, Failure> {
    /// The arguments after the program's name.
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: command::Arguments,
    }

    let line = <Line as clap::Parser>::try_parse_from([&["paper"], arguments].concat()).unwrap();
    command::main(&[&LINK, &CANNOT_FAIL], &line.arguments)
}

#[test]
fn table_shows_each_row_with_its_error_and_ends_with_the_verdict() {
    let text = run(&Options::default()).text();
    let line = |description: &str| {
        let line = text.lines().find(|line| line.contains(description)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };

    assert!(text.starts_with("A made-up link, seed 1\nN. Author, A Made-up Link, 2026\n"), "{text}");
    assert!(
        line("latency").contains("2 2 us +0.00 us 0.1 us 0.500 software-cost calibrates holds"),
        "{text}"
    );
    assert!(
        line("bandwidth").contains("6.7 6.70 Gb/s -0.07 % 0.5 % 6.80 protocol-bytes predicted holds"),
        "{text}"
    );
    assert!(line("share").contains("98.5 98.5 % -0.04 % - - derived shown"), "{text}");
    assert!(text.ends_with("- The seed is 1.\nAll 2 judged rows hold."), "{text}");
}

#[test]
fn missing_mechanism_puts_its_rows_out_and_is_in_the_title() {
    for (mechanism, what) in [("software-cost", "latency"), ("protocol-bytes", "bandwidth")] {
        let table = run(&without(mechanism));
        let out: Vec<_> = table
            .rows
            .iter()
            .filter(|row| row.holds() == Some(false))
            .map(|row| &row.expected().what)
            .collect();

        assert_eq!(out, [what]);
        assert!(table.text().starts_with(&format!("A made-up link, WITHOUT {mechanism}, seed 1\n")));
        assert!(table.text().ends_with("1 of 2 judged rows hold, 1 out."));
    }
}

#[test]
fn quick_run_measures_quick_rows_only_and_says_so() {
    let table = run(&Options { quick: true, ..Options::default() });

    assert_eq!(table.rows.len(), 1);
    assert_eq!(Verdict::of(std::slice::from_ref(&table)), Verdict { judged: 1, hold: 1 });
    assert!(table.text().starts_with("A made-up link, seed 1, quick rows only\n"));
}

#[test]
fn row_that_cannot_fail_ends_the_run_even_when_it_is_left_out() {
    for quick in [false, true] {
        let options = Options { quick, ..Options::default() };
        let failure = Run::of(&CANNOT_FAIL, &options, &|| false).unwrap_err();

        assert_eq!(failure.code, EXIT_RESULT);
        assert!(failure.message.contains("half the distance to the null model"), "{failure}");
    }
}

#[test]
fn row_that_the_experiment_does_not_name_is_refused() {
    let failure = Run::of(&UNNAMED, &Options::default(), &|| false).unwrap_err();
    assert!(failure.message.contains("row \"latency\" is not among the rows"), "{failure}");
}

#[test]
fn run_that_the_user_ends_at_any_check_fails_as_interrupted() {
    // The first check is that before the experiment, and each row has one.
    for checks in 0_u32..3 {
        let remaining = Cell::new(checks);
        let interrupted = || remaining.replace(remaining.get().saturating_sub(1)) == 0;

        let failure = Run::of(&LINK, &Options::default(), &interrupted).unwrap_err();
        assert_eq!(failure.code, EXIT_INTERRUPTED);
    }
}

#[test]
fn json_has_the_documented_fields() {
    let tables: Value = serde_json::from_str(&json(&[run(&Options::default())], true).unwrap()).unwrap();
    let paper = &tables["papers"][0];

    assert_eq!((&tables["judged"], &tables["hold"]), (&json!(2), &json!(2)));
    assert_eq!(tables["complete"], json!(true));
    assert_eq!((&paper["name"], &paper["seed"], &paper["quick"]), (&json!("link"), &json!(1), &json!(false)));
    assert_eq!((&paper["without"], &paper["notes"]), (&json!([]), &json!(["The seed is 1."])));

    let expected = json!({
        "what": "latency", "unit": "us", "paper": 2.0, "ours": 2.0, "difference": 0.0, "error_percent": 0.0,
        "null_model": { "without": "software-cost", "value": 0.5 }, "role": "calibrates",
        "judgement": { "within": { "microseconds": 0.1 } }, "quick": true, "holds": true,
    });
    assert_eq!(paper["rows"][0], expected);
    assert_eq!(paper["rows"][2]["judgement"], json!("unjudged"));
    assert_eq!(paper["rows"][2]["holds"], Value::Null);

    let figure = &paper["figures"][0];
    assert_eq!(figure["x"], json!({ "label": "size (bytes)", "scale": "log2" }));
    assert_eq!(figure["series"][0]["paper"][1], json!([4096.0, 6.7]));
}

#[test]
fn same_seed_gives_the_same_bytes_twice() {
    let folder = tempfile::tempdir().unwrap();
    let output = |seed, name: &str| {
        let table = run(&Options { seed, ..Options::default() });
        let directory = folder.path().join(name);
        plot::write(&table, &directory).unwrap();
        let picture = fs::read_to_string(directory.join("link-bandwidth.svg")).unwrap();
        (table.text(), table.markdown(), json(&[table], true).unwrap(), picture)
    };

    assert_eq!(output(7, "first"), output(7, "second"));
    assert_ne!(output(7, "third").0, output(8, "fourth").0);
}

#[test]
fn plot_shows_both_series_with_texts_in_a_generic_font() {
    let table = run(&without("protocol-bytes"));
    let picture = plot::svg(&table.figures[0], &table).unwrap();

    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"), "{picture}");
    assert!(picture.contains("font-family=\"sans-serif\""), "{picture}");
    for text in
        ["Bandwidth, WITHOUT protocol-bytes", "size (bytes)", "one way, paper", "one way, ours", "4 K"]
    {
        assert!(picture.contains(text), "{text}: {picture}");
    }
    // Two points of the paper's, its mark in the legend, and the dots of the simulated line.
    assert_eq!(picture.matches("<circle ").count(), 5, "{picture}");
}

#[test]
fn markdown_has_a_heading_and_a_line_for_each_row() {
    let markdown = run(&Options::default()).markdown();
    assert!(markdown.starts_with("## A made-up link, seed 1\n\nN. Author"), "{markdown}");
    assert!(markdown.contains("| latency | 2 | 2 | us |"), "{markdown}");
}

#[test]
fn command_ends_by_the_verdict_on_the_judged_rows() {
    assert_eq!(command(&["link"]).unwrap(), 0);
    assert_eq!(command(&["link", "--quick", "--without", "protocol-bytes"]).unwrap(), 0);
    assert_eq!(command(&["link", "--without", "protocol-bytes"]).unwrap(), EXIT_RESULT);
    assert_eq!(command(&["link", "--json", "--without", "software-cost"]).unwrap(), EXIT_RESULT);
    assert_eq!(command(&["list"]).unwrap(), 0);
    assert_eq!(command(&["all"]).unwrap_err().code, EXIT_RESULT);
}

#[test]
fn directory_of_the_plots_is_made_before_the_first_run() {
    // The run itself would fail with another code.
    let failure = command(&["cannot-fail", "--plot", "/dev/null/plots"]).unwrap_err();
    assert_eq!(failure.code, EXIT_ENVIRONMENT, "{failure}");
}

#[test]
fn options_without_an_effect_are_refused() {
    for options in [&["--without", "heat"][..], &["--quick"], &["--markdown"], &["--seed", "1"]] {
        let failure = command(&[&["list"], options].concat()).unwrap_err();
        assert_eq!(failure.code, EXIT_USAGE, "{failure}");
        assert!(failure.message.contains("--json is its only option"), "{failure}");
    }
}

#[test]
fn unknown_paper_and_unknown_mechanism_are_refused_with_the_known_ones() {
    let paper = command(&["lnik"]).unwrap_err();
    let mechanism = command(&["link", "--without", "heat"]).unwrap_err();
    let none = command(&["cannot-fail", "--without", "heat"]).unwrap_err();

    assert_eq!([paper.code, mechanism.code, none.code], [EXIT_USAGE; 3]);
    assert!(paper.message.contains("link, cannot-fail, all and list"), "{paper}");
    assert!(mechanism.message.contains("protocol-bytes, software-cost"), "{mechanism}");
    assert!(none.message.contains("no mechanism"), "{none}");
}
