//! Tests the C example of matching: linked with the archive and the shared library, under a
//! sanitizer, on a torus of EXTOLL cards, on one of Blue Gene/Q and on one of Blue Gene/L.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

fn run_example(options: &[String]) {
    run_example_on("extoll.toml", 8, options);
}

/// Compiles the example with these options, and checks its output on a machine.
fn run_example_on(machine: &str, ranks: u32, options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("matching_ring", folder.path(), options);
    let out = run(machine, folder.path(), &["--", &program]);
    for bytes in [100, 1_000_000] {
        assert!(out.contains(&format!("{bytes} bytes went over {ranks} ranks")), "{out}");
    }
}

#[test]
fn c_example_sends_messages_round_the_nodes_of_blue_gene_q() {
    run_example_on("bgq.toml", 32, &shared());
}

#[test]
fn c_example_sends_messages_round_the_nodes_of_blue_gene_l() {
    run_example_on("bgl.toml", 16, &shared());
}

#[test]
fn c_example_linked_with_the_archive_sends_messages_round() {
    run_example(&archive());
}

#[test]
fn c_example_linked_with_the_shared_library_sends_messages_round() {
    run_example(&shared());
}

#[test]
fn c_example_under_address_sanitizer_sends_messages_round() {
    run_example(&[sanitizers(), shared()].concat());
}
