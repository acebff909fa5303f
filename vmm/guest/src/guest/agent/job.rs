//! Jobs for a guest, and what they leave.

use std::sync::Arc;

use crate::guest::config::quoted;

/// One of a job's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Callback for each line of a job as it arrives.
///
/// It runs on the channel's thread. While it blocks, no other line of the guest is read. A job can
/// still be waited for with a limit and killed, and the guest can be ended. The last call may still
/// run when the guest is gone.
pub type LineSink = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// A script or program to run in a guest.
#[derive(Clone)]
pub struct Job {
    pub(super) script: String,
    pub(super) sink: Option<LineSink>,
}

impl Job {
    /// Returns a job for a script of busybox's shell.
    pub fn shell(script: impl Into<String>) -> Self {
        Self { script: script.into(), sink: None }
    }

    /// Returns a job for a program with its arguments.
    pub fn program<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let words: Vec<String> = words.into_iter().map(|word| quoted(word.as_ref())).collect();
        Self::shell(format!("exec {}", words.join(" ")))
    }

    /// Adds a variable to the job's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.script = format!("export {name}={}\n{}", quoted(value), self.script);
        self
    }

    /// Passes the job's lines to `sink` as they arrive.
    pub fn on_line(mut self, sink: LineSink) -> Self {
        self.sink = Some(sink);
        self
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("script", &self.script).finish_non_exhaustive()
    }
}

impl From<&str> for Job {
    fn from(script: &str) -> Self {
        Self::shell(script)
    }
}

/// The result of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its exit status in the shell's convention: 128 plus the signal's number for a killed job.
    pub status: u8,
    /// Its standard output. Lines end with `\n`.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Whether output beyond 16 MiB was discarded.
    pub truncated: bool,
}
