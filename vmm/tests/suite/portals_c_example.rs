//! Tests the C example of Portals: linked with the archive and the shared library, under a
//! sanitizer, matched by the card and by the kernel, on a torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

const NODES: u32 = 8;

/// Compiles the example with these options, runs it with the arguments `words`, and checks each
/// node's output.
fn run_example(options: &[String], words: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("portals_ring", folder.path(), options);
    let programs: Vec<_> = ["--", &program].into_iter().chain(words.iter().copied()).collect();
    let out = run("seastar.toml", folder.path(), &programs);

    for node in 0..NODES {
        let line = format!("node {node}: 65536 bytes went to node {} and back", (node + 1) % NODES);
        assert!(out.contains(&line), "{out}");
    }
}

#[test]
fn c_example_linked_with_the_archive_puts_and_gets_round() {
    run_example(&archive(), &[]);
}

#[test]
fn c_example_linked_with_the_shared_library_puts_and_gets_round() {
    run_example(&shared(), &[]);
}

#[test]
fn c_example_matched_by_the_kernel_puts_and_gets_round() {
    run_example(&shared(), &["host"]);
}

#[test]
fn c_example_under_address_sanitizer_puts_and_gets_round() {
    let options = [sanitizers(), shared()].concat();
    run_example(&options, &[]);
    run_example(&options, &["host"]);
}
