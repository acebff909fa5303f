//! Tests the C example of matching: linked with the archive and the shared library, under a
//! sanitizer, on a torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::c_program::{archive, compile, run, sanitizers, shared};

fn run_example(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("matching_ring", folder.path(), options);
    let out = run("extoll.toml", folder.path(), &["--", &program]);
    for bytes in [100, 1_000_000] {
        assert!(out.contains(&format!("ex0 | {bytes} bytes went over 8 ranks")), "{out}");
    }
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
