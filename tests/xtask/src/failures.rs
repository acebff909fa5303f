//! The failures in the output of test programs, which are listed again at its end.

use std::io::{self, BufRead, Write};

/// Lines that are kept of the failures of one test program.
const MAX_LINES: usize = 200;

/// The failures of all test programs of a command, as the programs described them.
#[derive(Default)]
pub(crate) struct Failures {
    lines: Vec<String>,
    /// Lines read so far of the failures of a program; `None` outside of failures.
    lines_of_program: Option<usize>,
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

        Ok(failures)
    }

    /// Returns the kept lines.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Keeps a line of the output, if it belongs to failures.
    fn note(&mut self, line: &str) {
        if line == "failures:" {
            self.lines_of_program.get_or_insert(0);
        }
        let Some(count) = &mut self.lines_of_program else { return };
        let is_last = line.starts_with("test result:");

        *count += 1;
        if *count <= MAX_LINES || is_last {
            self.lines.push(line.to_owned());
        } else if *count == MAX_LINES + 1 {
            self.lines.push("... (the rest is above)".to_owned());
        }
        if is_last {
            self.lines_of_program = None;
        }
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
    }

    #[test]
    fn long_failures_are_cut_and_keep_their_result() {
        let text = format!("failures:\n{}test result: FAILED\n", "line\n".repeat(MAX_LINES * 2));
        let lines = kept_lines(&text);

        // The lines, the remark that some are missing, and the result.
        assert_eq!(lines.len(), MAX_LINES + 2);
        assert_eq!(lines.last().unwrap(), "test result: FAILED");
    }
}
