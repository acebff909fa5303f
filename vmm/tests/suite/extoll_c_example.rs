//! Tests the C example of VELO and RMA together: linked with the archive and the shared library,
//! under a sanitizer, on a torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::{
    built::workspace,
    c_program::{CApi, run, sanitizers},
};

const EXTOLL: CApi = CApi { room: "userlib/extoll-c", package: "nicforge-extoll-c" };

/// Returns include options for both libraries, whose headers the example's header includes.
fn headers() -> Vec<String> {
    let room = |name| format!("-I{}", workspace().join("userlib").join(name).join("c-api/include").display());
    ["rma", "velo"].map(room).to_vec()
}

fn goes_round(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let program = EXTOLL.compile("extoll_both", folder.path(), &[&headers(), options].concat());
    let out = run("extoll.toml", folder.path(), &["--", &program]);
    assert!(out.contains("ex0 | 100 rounds of 65536 bytes over 8 nodes"), "{out}");
}

#[test]
fn c_example_linked_with_the_archive_uses_both_libraries() {
    goes_round(&EXTOLL.archive());
}

#[test]
fn c_example_linked_with_the_shared_library_uses_both_libraries() {
    goes_round(&EXTOLL.shared());
}

#[test]
fn c_example_under_address_sanitizer_uses_both_libraries() {
    goes_round(&[sanitizers(), EXTOLL.shared()].concat());
}
