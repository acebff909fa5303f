//! Steps of a task: each prints a line, runs a command, and reports its duration.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Why a task ended.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl Failed {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs steps in the workspace.
pub(crate) struct Steps {
    root: PathBuf,
}

impl Steps {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn say(&self, what: &str) {
        eprintln!("=== {what}");
    }

    pub(crate) fn cargo(&self, what: &str, arguments: &[&str]) -> Result<(), Failed> {
        self.cargo_with(what, arguments, &[])
    }

    pub(crate) fn cargo_with(
        &self,
        what: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(), Failed> {
        self.say(what);
        let start = Instant::now();
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let status = Command::new(&cargo)
            .args(arguments)
            .envs(environment.iter().copied())
            .current_dir(&self.root)
            .status()
            .map_err(|error| Failed::new(format!("{what}: can't start {cargo}: {error}")))?;

        if !status.success() {
            return Err(Failed::new(format!("{what} failed (cargo {}): {status}", arguments.join(" "))));
        }

        eprintln!("=== {what}: done in {:.0} s", start.elapsed().as_secs_f64());
        Ok(())
    }
}
