//! The program's command line in a process.

use std::process::{Command, Output};

fn nicforge_sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nicforge-sim")).args(arguments).output().unwrap()
}

#[test]
fn help_names_the_command_as_the_user_types_it_and_the_exit_codes() {
    let output = nicforge_sim(&["paper", "--help"]);
    let help = String::from_utf8_lossy(&output.stdout);

    assert_eq!(output.status.code(), Some(0));
    assert!(help.contains("nicforge paper") && help.contains("Exit codes"), "{help}");
}

#[test]
fn unknown_paper_is_a_wrong_command_line() {
    let output = nicforge_sim(&["paper", "nothing"]);
    let stderr = String::from_utf8_lossy(&output.stderr);

    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.contains("there is no paper nothing"), "{stderr}");
}

#[test]
fn figures_of_quick_rows_are_refused() {
    let output = nicforge_sim(&["paper", "fcnp", "--quick", "--plot", "plots"]);
    let stderr = String::from_utf8_lossy(&output.stderr);

    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--plot") && stderr.contains("--quick"), "{stderr}");
}

#[test]
fn traffic_prints_the_same_bytes_for_the_same_seed_and_others_for_another_one() {
    let run = |seed| {
        let output = nicforge_sim(&["traffic", "--torus", "4x4", "--loads", "50", "--json", "--seed", seed]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn impossible_arguments_of_traffic_are_a_wrong_command_line() {
    let impossible = [
        ["--torus", "8x0"],
        ["--torus", "60000x60000"],
        ["--torus", "2x2x2x2x2x2"],
        ["--packet", "0"],
        ["--gbit-s", "0"],
        ["--gbit-s", "nan"],
        ["--window-us", "0"],
        ["--loads", "-1"],
    ];
    for arguments in impossible {
        let output = nicforge_sim(&[&["traffic"], &arguments[..]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    }
}
