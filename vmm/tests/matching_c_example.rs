//! The C example of matching: compiled with the system's compiler against the generated header, linked both ways, and run on a torus.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the libraries are: beside the program under test.
fn libraries() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_nicforge")).parent().unwrap().to_owned();
    // A test's own package is built for it, and nothing else.
    let status = Command::new(std::env::var("CARGO").unwrap())
        .args(["build", "--quiet", "--package", "nicforge-matching-c", "--target-dir"])
        .arg(folder.parent().unwrap())
        .current_dir(workspace())
        .status()
        .unwrap();
    assert!(status.success(), "nicforge-matching-c was not built");
    folder
}

fn goes_round(link: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let room = workspace().join("userlib/extoll-transport/c-api");
    let program = folder.path().join("matching_ring");
    let output = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg("-I")
        .arg(room.join("include"))
        .arg(room.join("examples/matching_ring.c"))
        .arg("-o")
        .arg(&program)
        .args(link)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .arg("run")
        .arg(workspace().join("machines/extoll.toml"))
        .arg("--dir")
        .arg(folder.path().join("m"))
        .arg("--")
        .arg(&program)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    for bytes in [100, 1_000_000] {
        assert!(out.contains(&format!("ex0 | {bytes} bytes went over 8 ranks")), "{out}");
    }
}

#[test]
fn c_example_linked_with_the_archive_sends_a_message_round() {
    let archive = libraries().join("libnicforge_matching_c.a");
    goes_round(&[archive.display().to_string(), "-lpthread".into(), "-ldl".into(), "-lm".into()]);
}

#[test]
fn c_example_linked_with_the_shared_library_sends_a_message_round() {
    let folder = libraries();
    goes_round(&[
        format!("-L{}", folder.display()),
        "-lnicforge_matching_c".into(),
        format!("-Wl,-rpath,{}", folder.display()),
    ]);
}
