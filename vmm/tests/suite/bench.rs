//! Tests that `nicforge bench`, `nicforge paper` and `nicforge run --virtual` start the programs of
//! the benches and of virtual time, which are beside its own.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Returns a folder with the program under test alone.
fn folder_with_only_nicforge() -> TempDir {
    let program = Path::new(env!("CARGO_BIN_EXE_nicforge"));
    // A hard link needs the file system of the program.
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    std::fs::hard_link(program, folder.path().join("nicforge")).unwrap();
    folder
}

/// Puts a script beside the program, as `name`. It shows its arguments, a variable and its input,
/// complains, and ends with exit code 7.
fn put_script_next_to(folder: &TempDir, name: &str) {
    let script = "#!/bin/sh\necho \"$*; $A_VARIABLE; $(cat)\"\necho complaint >&2\nexit 7\n";
    let program = folder.path().join(name);
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn bench_passes_its_arguments_streams_and_exit_code_through() {
    let folder = folder_with_only_nicforge();
    put_script_next_to(&folder, "nicforge-bench");

    let mut child = Command::new(folder.path().join("nicforge"))
        .args(["bench", "--json", "packet", "--help", "--task", "a:b"])
        .env("A_VARIABLE", "value")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"input").unwrap();
    let output = child.wait_with_output().unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "--json packet --help --task a:b; value; input\n");
    // What the shell adds, or a program that it is set up to start, is not nicforge's.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.lines().any(|line| line == "complaint"), "{stderr}");
    assert!(!stderr.contains("nicforge:"), "{stderr}");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn paper_names_itself_before_its_arguments_and_passes_the_exit_code_through() {
    let folder = folder_with_only_nicforge();
    put_script_next_to(&folder, "nicforge-sim");

    let output = Command::new(folder.path().join("nicforge"))
        .args(["paper", "all", "--quick"])
        .stdin(Stdio::null())
        .output()
        .unwrap();

    assert_eq!(String::from_utf8_lossy(&output.stdout), "paper all --quick; ; \n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn run_in_virtual_time_passes_the_machine_its_options_and_the_program() {
    let folder = folder_with_only_nicforge();
    put_script_next_to(&folder, "nicforge-sim");

    let output = Command::new(folder.path().join("nicforge"))
        .args(["run", "--virtual", "machine.toml", "--json", "--per-core", "--", "ping_pong", "3"])
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let expected = "run --per-core --json machine.toml -- ping_pong 3; ; \n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn run_refuses_json_without_virtual_time_and_a_directory_with_it() {
    let run = |options: &[&str]| {
        let program = env!("CARGO_BIN_EXE_nicforge");
        let programs = ["machine.toml", "--", "ping_pong"];
        let output = Command::new(program).arg("run").args(options).args(programs).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };

    for options in [&["--json"][..], &["--virtual", "--dir", "somewhere"]] {
        let (code, stderr) = run(options);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("--virtual"), "{stderr}");
    }
}

#[test]
fn paper_without_its_program_prints_how_to_build_it() {
    let folder = folder_with_only_nicforge();
    let output = Command::new(folder.path().join("nicforge")).args(["paper", "all"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);

    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("cargo build") && stderr.contains("-p nicforge-sim"), "{stderr}");
}

#[test]
fn bench_without_its_program_prints_how_to_build_it() {
    let folder = folder_with_only_nicforge();
    let output = Command::new(folder.path().join("nicforge")).args(["bench", "list"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);

    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("cargo build") && stderr.contains("nicforge-bench"), "{stderr}");
}
