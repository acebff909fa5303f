//! Counts instructions of this program, which it runs again under valgrind's tool callgrind.

use std::{
    env,
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus, Stdio},
};

use tempfile::TempDir;

use super::{Run, counting};
use crate::failure::{ErrorContext, Failure};

/// The name of the program.
const VALGRIND: &str = "valgrind";
/// The file name of the counts.
const COUNTS: &str = "counts";
/// The file name of the first thread's counts, where callgrind writes one file for each thread.
const FIRST_THREAD: &str = "counts-01";

/// An installed valgrind.
pub struct Callgrind {
    version: String,
}

/// A child process, and the functions to be counted in it.
pub struct Count<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// The benchmark whose child process is counted, and that process's task.
    pub bench: &'a str,
    /// As `bench`.
    pub part: String,
    /// The functions whose instructions count, with all functions that they call.
    pub functions: &'a [&'a str],
    /// Count the first thread alone, and not all threads together.
    pub first_thread_only: bool,
}

impl Callgrind {
    /// Looks for valgrind in `PATH`.
    ///
    /// # Errors
    /// Returns an error that names the package to install.
    pub fn find() -> Result<Self, Failure> {
        let output = Command::new(VALGRIND).arg("--version").stdin(Stdio::null()).output().map_err(|error| {
            Failure::environment(format!(
                "instructions are counted with valgrind's tool callgrind, and {VALGRIND} can't be started: {error}; \
                 install it (Debian and Ubuntu: apt install valgrind; Fedora: dnf install valgrind)"
            ))
        })?;
        Ok(Self { version: String::from_utf8_lossy(&output.stdout).trim().to_owned() })
    }

    /// Returns valgrind's version in its own words.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns callgrind's file, which has at least one counted instruction.
    ///
    /// # Errors
    /// Returns an error when the child fails, when its counts cannot be read, and when there are
    /// none.
    pub fn run(&self, run: &Run<'_>, count: &Count<'_>) -> Result<String, Failure> {
        let directory = TempDir::new().context(|| "a directory for callgrind's counts".into())?;
        let errors = directory.path().join("errors");
        let counts = directory.path().join(COUNTS);
        let program = env::current_exe().context(|| "this program's own file".into())?;

        let mut command = Command::new(VALGRIND);
        command.args(["-q", "--tool=callgrind", "--collect-atstart=no"]);
        if count.first_thread_only {
            command.args(["--separate-threads=yes", "--fair-sched=try"]);
        }
        command
            .arg(format!("--callgrind-out-file={}", counts.display()))
            .args(count.functions.iter().map(|function| format!("--toggle-collect={function}")))
            .arg(program)
            .args(["bench", count.bench, "--part", &count.part])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors).context(|| "a file for callgrind's messages".into())?);

        let status = counting::status(run, &mut command)?;
        if !status.success() {
            return Err(failed(count.name, status, &errors));
        }

        let file = if count.first_thread_only { directory.path().join(FIRST_THREAD) } else { counts };
        let text = fs::read_to_string(file)
            .context(|| format!("the counts of {} for {}", self.version, count.name))?;
        match total(&text) {
            Some(instructions) if instructions > 0 => Ok(text),
            _ => Err(Failure::environment(format!(
                "{} counted nothing for {}: it finds the functions by their names; has this program been stripped of its symbols?",
                self.version, count.name
            ))),
        }
    }
}

fn failed(name: &str, status: ExitStatus, errors: &Path) -> Failure {
    let errors = fs::read_to_string(errors).unwrap_or_default();
    let hint = if errors.contains("unhandled instruction") || errors.contains("Illegal opcode") {
        "; valgrind does not know an instruction of this build: build for a simpler target-cpu, without AVX-512"
    } else {
        ""
    };

    let last: Vec<_> = errors.lines().rev().take(8).collect();
    let last: Vec<_> = last.into_iter().rev().collect();

    Failure::environment(format!(
        "{VALGRIND}, counting {name}, ended with {status}{hint}:\n{}",
        last.join("\n")
    ))
}

/// Returns the sum of all events in callgrind's file: its line `totals: N`, or the sum of its
/// dumps' `summary: N`.
pub fn total(text: &str) -> Option<u64> {
    let figure = |line: &str, name: &str| -> Option<u64> {
        line.strip_prefix(name)?.split_whitespace().next()?.parse().ok()
    };
    text.lines().find_map(|line| figure(line, "totals:")).or_else(|| {
        let summaries: Vec<_> = text.lines().filter_map(|line| figure(line, "summary:")).collect();
        (!summaries.is_empty()).then(|| summaries.iter().sum())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_before_summaries() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 12\n\nfn=(1)\n1 5\n\ntotals: 34\n"), Some(34));
        assert_eq!(total("events: Ir\nsummary: 12\n\nsummary: 5 7\n"), Some(17));
        assert_eq!(total("events: Ir\nfn=(1)\n"), None);
    }
}
