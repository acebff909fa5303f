//! Counts instructions of a bench's child process, which runs under valgrind's tool callgrind.
//!
//! Counts do not depend on the processor, on other programs or on the placement of threads, so
//! counts of different days can be compared.

mod pairs;
mod parts;

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus, Stdio},
};

use nicforge::failure::{ErrorContext, Failure};
use tempfile::TempDir;

pub use self::{pairs::PairsTask, parts::Parts};
use crate::{bench::Run, process, row::Outcome};

/// The name of the program.
const VALGRIND: &str = "valgrind";
/// The file name of the counts of all threads.
const COUNTS: &str = "counts";
/// The file name of the first thread's counts, where callgrind writes one file for each thread.
const FIRST_THREAD: &str = "counts-01";

/// An installed valgrind.
pub struct Callgrind {
    version: String,
}

/// A child process, and the functions to be counted in it.
pub struct Count<'a> {
    /// The name of the count in messages.
    pub name: &'a str,
    /// The benchmark whose child process is counted.
    pub bench: &'a str,
    /// The task of the child process.
    pub task: String,
    /// Patterns for the names of the functions whose instructions count, with all functions that
    /// they call. callgrind begins to count at the entry of such a function, or ends a count that
    /// has begun, and does the opposite at its end. [`pattern`] returns one.
    pub functions: Vec<String>,
    /// Count the first thread alone, and not all threads together.
    pub first_thread_only: bool,
}

/// Returns a pattern for the name of a function of this crate: the path of its module, by
/// `module_path!()`, and its name. The pattern also matches mangled names. The function must not be
/// inlined.
pub fn pattern(module: &str, function: &str) -> String {
    format!("*{}*{function}*", module.replace("::", "*"))
}

/// The counts of a child process, as callgrind wrote them.
pub struct Counts {
    text: String,
    total: u64,
}

impl Counts {
    /// Returns the number of all counted instructions, which is at least one.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of instructions of each part, by name.
    pub fn by_part(&self, parts: &Parts) -> std::collections::HashMap<&'static str, u64> {
        parts.count(&self.text)
    }
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

    /// Calls `count` if valgrind is installed. Otherwise the outcome is a note that begins with
    /// `description`, such as "instructions a message are ", and says that they were left out.
    ///
    /// # Errors
    /// Returns the errors of `count`.
    pub fn if_installed(
        description: &str,
        count: impl FnOnce(&Self) -> Result<Outcome, Failure>,
    ) -> Result<Outcome, Failure> {
        match Self::find() {
            Ok(callgrind) => count(&callgrind),
            Err(missing) => {
                Ok(Outcome { notes: vec![format!("{description}left out: {missing}")], ..Outcome::default() })
            }
        }
    }

    /// Returns valgrind's version in its own words.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs a child process, and returns its counts.
    ///
    /// # Errors
    /// Returns an error when the child fails, when its counts cannot be read, and when there are
    /// none.
    pub fn run(&self, run: &Run<'_>, count: &Count<'_>) -> Result<Counts, Failure> {
        let directory = TempDir::new().context(|| "a directory for callgrind's counts".into())?;
        let errors = directory.path().join("errors");
        let counts = directory.path().join(COUNTS);
        let child = process::child_command(count.bench, &count.task)?;

        let mut command = Command::new(VALGRIND);
        command.args(["-q", "--tool=callgrind", "--collect-atstart=no"]);
        if count.first_thread_only {
            command.args(["--separate-threads=yes", "--fair-sched=try"]);
        }
        command
            .arg(format!("--callgrind-out-file={}", counts.display()))
            .args(count.functions.iter().map(|function| format!("--toggle-collect={function}")))
            .arg(child.get_program())
            .args(child.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors).context(|| "a file for callgrind's messages".into())?);

        let status = process::status(run, &mut command)?;
        if !status.success() {
            return Err(child_failure(count.name, status, &errors));
        }

        let file = if count.first_thread_only { directory.path().join(FIRST_THREAD) } else { counts };
        let text = fs::read_to_string(file)
            .context(|| format!("the counts of {} for {}", self.version, count.name))?;
        match total(&text) {
            Some(total) if total > 0 => Ok(Counts { text, total }),
            _ => Err(Failure::environment(format!(
                "{} counted nothing for {}: it finds the functions by their names; has this program been stripped of its symbols?",
                self.version, count.name
            ))),
        }
    }
}

/// Number of lines of a failed child's output that its error contains.
const SHOWN_LINES: usize = 8;

/// Returns the error of a child under callgrind, with the end of its output in the file `errors`.
fn child_failure(name: &str, status: ExitStatus, errors: &Path) -> Failure {
    let errors = fs::read_to_string(errors).unwrap_or_default();
    let hint = if errors.contains("unhandled instruction") || errors.contains("Illegal opcode") {
        "; valgrind does not know an instruction of this build: build for a simpler target-cpu, without AVX-512"
    } else {
        ""
    };

    let mut last_lines: Vec<_> = errors.lines().rev().take(SHOWN_LINES).collect();
    last_lines.reverse();

    Failure::environment(format!(
        "{VALGRIND}, counting {name}, ended with {status}{hint}:\n{}",
        last_lines.join("\n")
    ))
}

/// Returns the sum of all events in callgrind's file: its line `totals: N`, or the sum of the lines
/// `summary: N` of its dumps.
fn total(text: &str) -> Option<u64> {
    let number_after = |line: &str, label: &str| -> Option<u64> {
        line.strip_prefix(label)?.split_whitespace().next()?.parse().ok()
    };
    text.lines().find_map(|line| number_after(line, "totals:")).or_else(|| {
        let summaries: Vec<_> = text.lines().filter_map(|line| number_after(line, "summary:")).collect();
        (!summaries.is_empty()).then(|| summaries.iter().sum())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_the_path_of_the_module() {
        assert_eq!(pattern("a_crate::module", "count"), "*a_crate*module*count*");
    }

    #[test]
    fn totals_are_read_before_summaries() {
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 12\n\nfn=(1)\n1 5\n\ntotals: 34\n"), Some(34));
        assert_eq!(total("events: Ir\nsummary: 12\n\nsummary: 5 7\n"), Some(17));
        assert_eq!(total("events: Ir\nfn=(1)\n"), None);
    }
}
