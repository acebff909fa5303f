//! Starts valgrind, and reads its counts.

use std::{
    env,
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus, Stdio},
};

use tempfile::TempDir;

use super::{
    super::{Run, counting},
    part::Part,
};
use crate::failure::{Doing, Failure};

/// The name of the program.
const VALGRIND: &str = "valgrind";
/// The file name of the first thread's counts. callgrind writes one file for each thread.
const FIRST_THREAD: &str = "counts-01";

/// An installed valgrind.
pub(super) struct Callgrind {
    version: String,
}

impl Callgrind {
    /// Looks for valgrind in `PATH`.
    ///
    /// # Errors
    /// Returns an error that names the package to install.
    pub(super) fn find() -> Result<Self, Failure> {
        let output = Command::new(VALGRIND).arg("--version").stdin(Stdio::null()).output().map_err(|error| {
            Failure::environment(format!(
                "bench packet counts instructions with valgrind's tool callgrind, and {VALGRIND} can't be started: {error}; \
                 install it (Debian and Ubuntu: apt install valgrind; Fedora: dnf install valgrind)"
            ))
        })?;
        Ok(Self { version: String::from_utf8_lossy(&output.stdout).trim().to_owned() })
    }

    /// Returns valgrind's version in its own words.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Returns the instructions that `part` takes for `packets` packets, on the first thread of its
    /// process.
    ///
    /// # Errors
    /// Returns an error when the child fails, or when its counts cannot be read.
    pub(super) fn count(&self, run: &Run<'_>, part: Part, packets: u64) -> Result<u64, Failure> {
        let directory = TempDir::new().doing(|| "a directory for callgrind's counts".into())?;
        let errors = directory.path().join("errors");
        let counts = directory.path().join("counts");
        let program = env::current_exe().doing(|| "this program's own file".into())?;
        let mut command = Command::new(VALGRIND);
        command
            .args(["-q", "--tool=callgrind", "--collect-atstart=no", "--separate-threads=yes"])
            .arg("--fair-sched=try")
            .arg(format!("--callgrind-out-file={}", counts.display()))
            .args(part.toggles().iter().map(|function| format!("--toggle-collect={function}")))
            .arg(program)
            .args(["bench", "packet", "--part", &format!("{}:{packets}", part.name())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors).doing(|| "a file for callgrind's messages".into())?);

        let status = counting::status(run, &mut command)?;
        if !status.success() {
            return Err(failed(part, status, &errors));
        }

        let text = fs::read_to_string(directory.path().join(FIRST_THREAD))
            .doing(|| format!("what {} counted for {}", self.version, part.name()))?;
        match total(&text) {
            Some(instructions) if instructions > 0 => Ok(instructions),
            _ => Err(Failure::environment(format!(
                "{} counted nothing for {}: it finds the functions by their names; has this program been stripped of its symbols?",
                self.version,
                part.name()
            ))),
        }
    }
}

fn failed(part: Part, status: ExitStatus, errors: &Path) -> Failure {
    let errors = fs::read_to_string(errors).unwrap_or_default();
    let hint = if errors.contains("unhandled instruction") || errors.contains("Illegal opcode") {
        "; valgrind does not know an instruction of this build: build for a simpler target-cpu, without AVX-512"
    } else {
        ""
    };

    let last: Vec<_> = errors.lines().rev().take(8).collect();
    let last: Vec<_> = last.into_iter().rev().collect();

    Failure::environment(format!(
        "{VALGRIND}, counting {}, ended with {status}{hint}:\n{}",
        part.name(),
        last.join("\n")
    ))
}

/// Returns the sum of all events in callgrind's file: its line `totals: N`, or the sum of its
/// dumps' `summary: N`.
fn total(text: &str) -> Option<u64> {
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
