//! Tests VELO's C example: linked with the archive and the shared library, under a sanitizer, on a
//! torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

/// Compiles the example with these options, and checks its output on eight nodes.
fn run_example(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("velo_ring", folder.path(), options);
    let out = run("extoll.toml", folder.path(), &["--", &program]);
    assert!(out.contains("ex0 | 1000 rounds over 8 nodes"), "{out}");
}

#[test]
fn c_example_linked_with_the_archive_sends_a_message_round() {
    run_example(&archive());
}

#[test]
fn c_example_linked_with_the_shared_library_sends_a_message_round() {
    run_example(&shared());
}

#[test]
fn c_example_under_address_sanitizer_sends_a_message_round() {
    run_example(&[sanitizers(), shared()].concat());
}
