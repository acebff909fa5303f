//! Tests RMA's C example: linked with the archive and the shared library, under a sanitizer, on a
//! torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

/// Compiles the example with these options, and checks its output on eight nodes.
fn run_example(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("rma_ring", folder.path(), options);
    let addresses = tempfile::tempdir().unwrap();
    let out = run("extoll.toml", folder.path(), &["--", &program, addresses.path().to_str().unwrap()]);
    assert!(out.contains("ex0 | 100 rounds of 65536 bytes over 8 nodes"), "{out}");
}

#[test]
fn c_example_linked_with_the_archive_puts_memory_round() {
    run_example(&archive());
}

#[test]
fn c_example_linked_with_the_shared_library_puts_memory_round() {
    run_example(&shared());
}

#[test]
fn c_example_under_address_sanitizer_puts_memory_round() {
    run_example(&[sanitizers(), shared()].concat());
}
