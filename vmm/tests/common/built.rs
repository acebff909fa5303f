//! Builds what a test starts besides its own package's program, which is all that cargo builds.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The environment variable that says that everything is built. `cargo xtask test` builds it
/// together with the tests, so that all of it uses the same crates with the same features.
const BUILT: &str = "NICFORGE_BUILT";

/// Runs `cargo build` with some arguments for the target folder of the program under test. Returns
/// the folder of programs and libraries there.
pub(crate) fn built(arguments: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_nicforge")).parent().unwrap().to_owned();
    if std::env::var_os(BUILT).is_none() {
        let status = Command::new(std::env::var("CARGO").unwrap())
            .args(["build", "--quiet"])
            .args(arguments)
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .current_dir(workspace())
            .status()
            .unwrap();
        assert!(status.success(), "cargo build {} failed", arguments.join(" "));
    }

    folder
}

/// Returns the workspace's folder.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
