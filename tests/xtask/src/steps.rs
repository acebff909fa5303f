//! Steps of a task: each prints a line, runs a command, and reports its duration.

use std::{
    fmt,
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Instant,
};

use crate::failures::Failures;

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
        let mut command = self.command(arguments);
        let status = command.envs(environment.iter().copied()).status();
        let status = status.map_err(|error| Failed::new(format!("{what}: can't start cargo: {error}")))?;

        ended(what, arguments, status, start)
    }

    /// Runs tests. After their output, what failed is said again.
    pub(crate) fn tests(
        &self,
        what: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(), Failed> {
        self.say(what);
        let start = Instant::now();
        let mut command = self.command(arguments);
        let child = command.envs(environment.iter().copied()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| Failed::new(format!("{what}: can't start cargo: {error}")))?;
        let output = child.stdout.take().map(BufReader::new);

        let failures = output.map(|output| Failures::copy(output, io::stdout().lock())).transpose();
        let status = child.wait().map_err(|error| Failed::new(format!("{what}: {error}")))?;
        let failures = failures.map_err(|error| Failed::new(format!("{what}: {error}")))?;

        if !status.success() {
            self.say(&format!("what failed of {what}"));
            failures.iter().flat_map(Failures::lines).for_each(|line| eprintln!("{line}"));
        }

        ended(what, arguments, status, start)
    }

    /// Runs cargo, and returns its standard output.
    pub(crate) fn cargo_output(&self, what: &str, arguments: &[&str]) -> Result<String, Failed> {
        let output = self.command(arguments).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| Failed::new(format!("{what}: can't start cargo: {error}")))?;
        let status = output.status;

        if !status.success() {
            return Err(Failed::new(format!("{what} failed (cargo {}): {status}", arguments.join(" "))));
        }

        String::from_utf8(output.stdout).map_err(|error| Failed::new(format!("{what}: {error}")))
    }

    /// Returns the target triple of this host.
    pub(crate) fn host(&self) -> Result<String, Failed> {
        let version = self.cargo_output("cargo's version", &["-vV"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        host.map(str::to_owned).ok_or_else(|| Failed::new("cargo does not name its host"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        command.args(arguments).current_dir(&self.root);
        command
    }
}

/// Reports how a command of cargo ended.
fn ended(what: &str, arguments: &[&str], status: ExitStatus, start: Instant) -> Result<(), Failed> {
    if !status.success() {
        return Err(Failed::new(format!("{what} failed (cargo {}): {status}", arguments.join(" "))));
    }

    eprintln!("=== {what}: done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
