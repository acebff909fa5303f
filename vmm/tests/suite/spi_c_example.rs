//! Tests the C example of the SPI: linked with the archive and the shared library, and under a
//! sanitizer, on 32 nodes of Blue Gene/Q.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

const NODES: u32 = 32;

/// Compiles the example with these options, and checks each node's output.
fn run_example(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("mu_ring", folder.path(), options);
    let out = run("bgq.toml", folder.path(), &["--", &program]);

    for node in 0..NODES {
        let line = format!("node {node}: 65536 bytes went to node {} and back", (node + 1) % NODES);
        assert!(out.contains(&line), "{out}");
    }
}

#[test]
fn c_example_linked_with_the_archive_completes_its_ring() {
    run_example(&archive());
}

#[test]
fn c_example_linked_with_the_shared_library_completes_its_ring() {
    run_example(&shared());
}

#[test]
fn c_example_under_address_sanitizer_completes_its_ring() {
    run_example(&[sanitizers(), shared()].concat());
}
