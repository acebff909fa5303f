//! The failures in the output of test programs, which are listed again at its end.

use std::{
    collections::VecDeque,
    io::{self, BufRead, Write},
};

/// Numbers of lines that are kept of the failures of one test program: the first ones, and the last
/// ones, where a test with much output reports why it failed.
const FIRST_LINES: usize = 100;
const LAST_LINES: usize = 100;

/// The failures of all test programs of a command, as the programs described them.
#[derive(Default)]
pub(crate) struct Failures {
    lines: Vec<String>,
    /// The failures of the program whose output is read; `None` outside of failures.
    program: Option<ProgramFailures>,
}

/// The failures of one program.
#[derive(Default)]
struct ProgramFailures {
    first: Vec<String>,
    /// The lines after `first`, without those left out.
    last: VecDeque<String>,
    /// Number of lines left out between the two.
    left_out: usize,
}

impl ProgramFailures {
    /// Adds a line. When there are too many, one in the middle is left out.
    fn push(&mut self, line: &str) {
        if self.first.len() < FIRST_LINES {
            self.first.push(line.to_owned());
            return;
        }

        self.last.push_back(line.to_owned());
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
            self.left_out += 1;
        }
    }

    /// Returns the kept lines, with a remark where lines were left out.
    fn into_lines(self) -> impl Iterator<Item = String> {
        let remark = format!("... ({} lines are above)", self.left_out);
        let remark = (self.left_out > 0).then_some(remark);
        self.first.into_iter().chain(remark).chain(self.last)
    }
}

impl Failures {
    /// Copies the output of test programs, and keeps the parts that describe failures.
    pub(crate) fn copy(mut from: impl BufRead, mut to: impl Write) -> io::Result<Self> {
        let mut failures = Self::default();
        let mut line = Vec::new();

        while from.read_until(b'\n', &mut line)? > 0 {
            to.write_all(&line)?;
            to.flush()?;
            failures.note(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }

        failures.end_program();
        Ok(failures)
    }

    /// Returns the kept lines.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Keeps a line of the output, if it belongs to failures. These stand between the lines
    /// "failures:" and "test result:" of a program.
    fn note(&mut self, line: &str) {
        if line == "failures:" {
            self.program.get_or_insert_default();
        } else if line.starts_with("running ") {
            // The next program begins. The one before was killed, so its failures have no last
            // line.
            self.end_program();
        }
        let Some(program) = &mut self.program else { return };

        program.push(line);
        if line.starts_with("test result:") {
            self.end_program();
        }
    }

    /// Ends the failures of a program.
    fn end_program(&mut self) {
        self.lines.extend(self.program.take().into_iter().flat_map(ProgramFailures::into_lines));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines kept of a text, after a check that all of it was copied.
    fn kept_lines(text: &str) -> Vec<String> {
        let mut copy = Vec::new();
        let failures = Failures::copy(text.as_bytes(), &mut copy).unwrap();
        assert_eq!(copy, text.as_bytes());
        failures.lines().to_vec()
    }

    #[test]
    fn failures_are_kept_from_their_heading_to_the_result() {
        let passed = "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed\n";
        let failed =
            "failures:\n\n---- b stdout ----\nno\n\nfailures:\n    b\n\ntest result: FAILED. 1 failed\n";
        let expected: Vec<_> = failed.lines().collect();

        assert_eq!(kept_lines(&[passed, failed, passed].concat()), expected);
        assert_eq!(kept_lines(&[passed, passed].concat()), Vec::<String>::new());
        assert_eq!(kept_lines("failures:\nthe program was killed"), ["failures:", "the program was killed"]);
    }

    #[test]
    fn long_failures_keep_their_first_and_last_lines() {
        let numbers = (0..1000).map(|number| format!("{number}\n")).collect::<String>();
        let lines = kept_lines(&format!("failures:\n{numbers}test result: FAILED\n"));

        assert_eq!(lines.len(), FIRST_LINES + 1 + LAST_LINES);
        assert_eq!(lines[..2], ["failures:", "0"]);
        assert_eq!(lines[FIRST_LINES], "... (802 lines are above)");
        assert_eq!(lines[lines.len() - 2..], ["999", "test result: FAILED"]);
    }
}
