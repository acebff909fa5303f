//! The card as Linux finds it in a guest.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;

use ferry::registers::{DEVICE, VENDOR};

#[test]
#[ignore = "boots two guests: cargo test --test guest -- --include-ignored"]
fn a_guest_finds_the_card_by_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferry"));
    command.args(["boot", concat!(env!("CARGO_MANIFEST_DIR"), "/machine.toml"), "--dir"]);
    command.arg(folder.path().join("m"));
    let output = command.args(["--driver", "none", "--", "cat", "/proc/bus/pci/devices"]).output().unwrap();

    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let ids = format!("{VENDOR:04x}{DEVICE:04x}");
    assert_eq!(text(&output.stdout).matches(&ids).count(), 2, "{}", text(&output.stdout));
}
