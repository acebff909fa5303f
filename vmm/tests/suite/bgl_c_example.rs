//! Tests the C example of Blue Gene/L's message layer: linked with the archive and the shared
//! library, under a sanitizer, on a torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

/// Number of nodes of the machine.
const NODES: u32 = 16;

/// Compiles the example with these options, and checks the greetings of all nodes.
fn run_example(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("bgl_hello", folder.path(), options);
    let out = run("bgl.toml", folder.path(), &["--", &program]);

    // A line has the name of its node, padded to the longest name.
    let lines: Vec<_> = out.lines().filter_map(|line| line.split_once('|')).collect();
    for node in 0..NODES {
        let (next, rank) = (format!("bgl{}", (node + 1) % NODES), 2 * node);
        let greeting = format!("rank {rank} says: hello from node {node}");
        let is_greeting = |(name, text): &(&str, &str)| name.trim() == next && text.trim() == greeting;
        assert!(lines.iter().any(is_greeting), "{next} did not print {greeting:?}: {out}");
    }
}

#[test]
fn c_example_linked_with_the_archive_greets_the_next_node() {
    run_example(&archive());
}

#[test]
fn c_example_linked_with_the_shared_library_greets_the_next_node() {
    run_example(&shared());
}

#[test]
fn c_example_under_address_sanitizer_greets_the_next_node() {
    run_example(&[sanitizers(), shared()].concat());
}
