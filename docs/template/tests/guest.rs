//! The program: on this host, and in two guests that are connected by the cards.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

/// Runs the program with `courier-ping` on each card. Returns its output. It must succeed.
fn courier(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_courier"));
    let (name, rest) = arguments.split_first().unwrap();
    command.args([name, concat!(env!("CARGO_MANIFEST_DIR"), "/machine.toml"), "--dir"]);
    let output = command.arg(folder.path().join("m")).args(rest).output().unwrap();

    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn two_programs_of_this_host_send_frames() {
    let output = courier(&["run", "--", env!("CARGO_BIN_EXE_courier-ping")]);

    assert_eq!(output.matches("100 frames went to and fro").count(), 2, "{output}");
}

// ANCHOR: guest
#[test]
#[ignore = "boots two guests: cargo test --test guest -- --include-ignored"]
fn two_guests_send_frames() {
    let program = env!("CARGO_BIN_EXE_courier-ping");
    let output = courier(&["boot", "--driver", "vfio", "--program", program, "--", "courier-ping"]);

    assert_eq!(output.matches("100 frames went to and fro").count(), 2, "{output}");
}
// ANCHOR_END: guest
