//! Tests the program of the book's first page on every machine file of the project with a pset.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{path::PathBuf, process::Command};

use crate::built::{built, workspace};

/// Builds the example beside the program under test, and returns its path.
fn hello() -> PathBuf {
    built(&["--package", "nicforge-fcnp", "--example", "hello"]).join("examples/hello")
}

/// Runs the example on all nodes of a machine, and checks that each compute node's greeting came.
fn check_greetings(machine: &str, compute_nodes: usize) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .arg("run")
        .arg(workspace().join("machines").join(machine))
        .arg("--dir")
        .arg(folder.path().join("m"))
        .arg("--")
        .arg(hello())
        .output()
        .unwrap();

    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    for node in 0..compute_nodes {
        let greeting = format!("core {} (compute node {node}) says: hello from cn{node}", 4 * node);
        assert!(out.lines().any(|line| line.ends_with(&greeting)), "no {greeting:?} in\n{out}");
    }
}

#[test]
fn hello_greets_from_every_node_of_a_small_pset() {
    check_greetings("pset.toml", 4);
}

#[test]
fn hello_greets_from_every_node_of_a_full_pset() {
    check_greetings("pset64.toml", 64);
}

#[test]
fn hello_greets_over_links_that_take_time() {
    check_greetings("pset-timed.toml", 4);
}
