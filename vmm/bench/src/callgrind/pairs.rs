//! The task of a child process in which pairs of ends exchange messages.

use std::fmt;

use nicforge::failure::Failure;

use super::{Callgrind, Count, Counts};
use crate::{bench::Run, process::unknown_task};

/// A number of pairs, and how much each of them transfers. On a command line it is
/// `PAIRS:TRANSFERS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairsTask {
    /// Number of pairs.
    pub pairs: u16,
    /// Number of messages, or of windows of messages, of each pair.
    pub transfers: u32,
}

impl fmt::Display for PairsTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pairs, self.transfers)
    }
}

impl PairsTask {
    /// Parses the task of a child process.
    ///
    /// # Errors
    /// Returns an error of usage that names `task`.
    pub fn parse(task: &str) -> Result<Self, Failure> {
        task.split_once(':')
            .and_then(|(pairs, transfers)| {
                Some(Self { pairs: pairs.parse().ok()?, transfers: transfers.parse().ok()? })
            })
            .ok_or_else(|| unknown_task(task))
    }

    /// Counts the instructions of the task. `function` is the pattern of the function that counts.
    ///
    /// # Errors
    /// Returns the errors of [`Callgrind::run`], and an error when the user has ended the run.
    pub fn count(
        self,
        run: &Run<'_>,
        callgrind: &Callgrind,
        bench: &str,
        function: String,
    ) -> Result<Counts, Failure> {
        run.step(format!("instructions, {} pairs", self.pairs))?;

        let task = self.to_string();
        let functions = vec![function];
        callgrind.run(run, &Count { name: "messages", bench, task, functions, first_thread_only: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_parsed_as_it_is_printed() {
        let task = PairsTask { pairs: 8, transfers: 4096 };
        assert_eq!(PairsTask::parse(&task.to_string()).unwrap(), task);

        for task in ["", ":", "8", "8:", ":4", "8:x", "65536:1", "1:4294967296"] {
            assert!(PairsTask::parse(task).is_err(), "{task}");
        }
    }
}
