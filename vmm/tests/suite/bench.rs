//! Tests that `nicforge bench` starts the program of the benches, which is beside its own.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Returns a folder with the program under test alone.
fn nicforge_alone() -> TempDir {
    let program = Path::new(env!("CARGO_BIN_EXE_nicforge"));
    // A hard link needs the file system of the program.
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    std::fs::hard_link(program, folder.path().join("nicforge")).unwrap();
    folder
}

#[test]
fn bench_passes_its_arguments_streams_and_exit_code_through() {
    let folder = nicforge_alone();
    let script = "#!/bin/sh\necho \"$*; $A_VARIABLE; $(cat)\"\necho complaint >&2\nexit 7\n";
    let benches = folder.path().join("nicforge-bench");
    std::fs::write(&benches, script).unwrap();
    std::fs::set_permissions(&benches, std::fs::Permissions::from_mode(0o755)).unwrap();

    let mut child = Command::new(folder.path().join("nicforge"))
        .args(["bench", "--json", "packet", "--help", "--part", "a:b"])
        .env("A_VARIABLE", "value")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"input").unwrap();
    let output = child.wait_with_output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "--json packet --help --part a:b; value; input\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "complaint\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn bench_without_its_program_says_how_to_build_it() {
    let folder = nicforge_alone();
    let output = Command::new(folder.path().join("nicforge")).args(["bench", "list"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);

    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("cargo build") && said.contains("nicforge-bench"), "{said}");
}
