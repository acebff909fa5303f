//! Steps of a task: each prints a line, runs a command, and reports its duration.
//!
//! Steps can run beside others, with the processor time that these leave.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use crate::failures::Failures;

/// Why a task ended.
#[derive(Debug)]
pub(crate) struct Failed(String);

impl Failed {
    /// Returns a failure with a message for the user.
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
    priority: Priority,
}

/// The priority of commands beside those of other steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Priority {
    Usual,
    /// They get the processor time that the others leave.
    Low,
}

impl Steps {
    /// Returns the steps of a workspace.
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, priority: Priority::Usual }
    }

    /// Returns the same steps with the processor time that others leave. The output of their tests
    /// comes in one piece, at the end of a step.
    pub(crate) fn with_low_priority(&self) -> Self {
        Self { root: self.root.clone(), priority: Priority::Low }
    }

    /// Returns the root of the workspace.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Prints the heading of a step.
    pub(crate) fn print_heading(&self, description: &str) {
        eprintln!("=== {description}");
    }

    /// Runs cargo, which must succeed.
    pub(crate) fn cargo(&self, description: &str, arguments: &[&str]) -> Result<(), Failed> {
        self.cargo_with(description, arguments, &[])
    }

    /// Runs cargo with more environment variables. It must succeed.
    pub(crate) fn cargo_with(
        &self,
        description: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(), Failed> {
        self.print_heading(description);
        let start = Instant::now();
        let mut command = self.command(arguments);
        let status = command.envs(environment.iter().copied()).status();
        let status =
            status.map_err(|error| Failed::new(format!("{description}: can't start cargo: {error}")))?;

        report_end(description, arguments, status, start)
    }

    /// Runs tests. Prints the failures again after their output.
    pub(crate) fn tests(
        &self,
        description: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<(), Failed> {
        self.tests_and(description, arguments, environment, || ())
    }

    /// Runs tests, and `others` beside them, which begin with the first test: only one cargo can
    /// compile at a time.
    pub(crate) fn tests_beside(
        &self,
        description: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
        others: impl FnOnce() -> Result<(), Failed> + Send,
    ) -> Result<(), Failed> {
        let (begin, begun) = mpsc::channel();

        thread::scope(|scope| {
            let others = scope.spawn(move || {
                // An error means that cargo ended without a test.
                let _ = begun.recv();
                others()
            });
            let tested = self.tests_and(description, arguments, environment, move || {
                let _ = begin.send(());
            });

            let others = others.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
            tested.and(others)
        })
    }

    /// Runs tests, and calls `begun` when they print their first line, or end without one.
    fn tests_and(
        &self,
        description: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
        begun: impl FnOnce(),
    ) -> Result<(), Failed> {
        self.print_heading(description);
        let start = Instant::now();
        let mut command = self.command(arguments);
        let child = command.envs(environment.iter().copied()).stdout(Stdio::piped()).spawn();
        let mut child =
            child.map_err(|error| Failed::new(format!("{description}: can't start cargo: {error}")))?;
        let output = child.stdout.take().map(BufReader::new);

        // The output is read to its end before the wait, because a full pipe would block the tests.
        let failures = output.map(|mut output| {
            output.fill_buf()?;
            begun();
            self.copy_output(output)
        });
        let status = child.wait().map_err(|error| Failed::new(format!("{description}: {error}")))?;
        let failures =
            failures.transpose().map_err(|error| Failed::new(format!("{description}: {error}")))?;

        if !status.success() {
            self.print_heading(&format!("the failures of {description}"));
            failures.iter().flat_map(Failures::lines).for_each(|line| eprintln!("{line}"));
        }

        report_end(description, arguments, status, start)
    }

    /// Copies the output of test programs to this program's, and returns the failures in it.
    fn copy_output(&self, output: impl BufRead) -> io::Result<Failures> {
        match self.priority {
            Priority::Usual => Failures::copy(output, io::stdout()),
            Priority::Low => {
                let mut text = Vec::new();
                let failures = Failures::copy(output, &mut text)?;
                io::stdout().write_all(&text)?;
                Ok(failures)
            }
        }
    }

    /// Runs cargo, and returns its standard output.
    pub(crate) fn cargo_output(&self, description: &str, arguments: &[&str]) -> Result<String, Failed> {
        let output = self.command(arguments).stderr(Stdio::inherit()).output();
        let output =
            output.map_err(|error| Failed::new(format!("{description}: can't start cargo: {error}")))?;
        let status = output.status;

        if !status.success() {
            return Err(Failed::new(format!(
                "{description} failed (cargo {}): {status}",
                arguments.join(" ")
            )));
        }

        String::from_utf8(output.stdout).map_err(|error| Failed::new(format!("{description}: {error}")))
    }

    /// Returns the target triple of this host.
    pub(crate) fn host(&self) -> Result<String, Failed> {
        let version = self.cargo_output("cargo's version", &["-vV"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        host.map(str::to_owned).ok_or_else(|| Failed::new("cargo does not name its host"))
    }

    /// Returns a command of the same cargo as this program's, in the workspace.
    fn command(&self, arguments: &[&str]) -> Command {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let mut command = match self.priority {
            Priority::Usual => Command::new(cargo),
            Priority::Low => {
                let mut command = Command::new("nice");
                command.args(["-n", "19", &cargo]);
                command
            }
        };

        command.args(arguments).current_dir(&self.root);
        command
    }
}

/// Prints how long a step took, from its `start` until now. Returns a failure if its command of
/// cargo failed.
fn report_end(
    description: &str,
    arguments: &[&str],
    status: ExitStatus,
    start: Instant,
) -> Result<(), Failed> {
    if !status.success() {
        return Err(Failed::new(format!("{description} failed (cargo {}): {status}", arguments.join(" "))));
    }

    eprintln!("=== {description}: done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
