//! Tests the installed C library itself: its headers, its name and its symbols.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use crate::c_program::{headers, shared_library};

/// Returns the headers of a folder.
fn headers_in(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "h")).collect()
}

/// Returns the functions that a generated header declares. Its only other parentheses outside its
/// comments are those of function pointers, which have no name in front.
fn declared_functions(header: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(header).unwrap();
    let outside =
        |part: &str| part.split_once("*/").map_or_else(|| part.to_owned(), |(_, code)| code.to_owned());
    let code: String = text.split("/*").map(outside).collect();

    let is_part_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut before: Vec<_> = code.split('(').collect();
    before.pop();
    before
        .iter()
        .map(|text| text.rsplit(|letter| !is_part_of_name(letter)).next().unwrap().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Runs a program of the linker's package on the shared library, and returns its output.
fn inspect_library(program: &str, options: &[&str]) -> String {
    let output =
        Command::new(program).args(options).arg(shared_library()).env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_header_compiles_by_itself() {
    let protocols = headers_in(&headers().join("nicforge"));
    let all = [headers_in(&headers()), protocols].concat();
    assert_eq!(all.len(), 11);

    for standard in ["-std=c11", "-std=gnu99"] {
        for header in &all {
            let output = Command::new("cc")
                .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"])
                .arg("-I")
                .arg(headers())
                .arg("-include")
                .arg(header)
                .args(["-x", "c", "/dev/null"])
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn shared_library_exports_exactly_the_functions_of_the_headers() {
    let mut protocols = headers_in(&headers().join("nicforge"));
    // The functions of this header are inline, so the library does not export them.
    protocols.retain(|header| !header.ends_with("muhwi.h"));
    let expected: BTreeSet<_> = protocols.iter().flat_map(|header| declared_functions(header)).collect();
    let symbols = inspect_library("nm", &["--dynamic", "--defined-only"]);
    let exported = symbols.lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();

    assert!(expected.contains("velo_send") && expected.contains("nicforge_fcnp_cn_init"));
    assert_eq!(expected, exported);
}

#[test]
fn programs_record_the_name_of_the_shared_library_with_its_major_version() {
    let dynamic = inspect_library("readelf", &["--dynamic"]);
    assert!(dynamic.contains("Library soname: [libnicforge.so.0]"), "{dynamic}");
}
