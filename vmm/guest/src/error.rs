//! What can go wrong between a package mirror and a command's exit status.

use std::{path::PathBuf, process::ExitStatus, time::Duration};

use thiserror::Error;

/// Why a guest, or what a guest needs, is not there.
#[derive(Debug, Error)]
pub enum GuestError {
    /// A file or directory of ours.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// There is no place for what is downloaded and built.
    #[error("{path} can't be used as the cache: {why}; name another directory with NICFORGE_CACHE")]
    Cache {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// This host has no packages to take something from.
    #[error("there is no {what} here, and it can't be provisioned: {why}. {advice}")]
    Unprovided {
        /// What is missing.
        what: &'static str,
        /// Why it can't be had.
        why: String,
        /// What to do.
        advice: &'static str,
    },
    /// A file that the caller named, or that a package should contain, is not what it should be.
    #[error("{path}: {problem}")]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A tool of the host failed.
    #[error("{what} failed ({status}):\n{output}")]
    Tool {
        /// What it was doing.
        what: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// A tool of the host can't be started.
    #[error("{what}: can't start {program}: {source}; is it installed?")]
    Start {
        /// What it was to do.
        what: String,
        /// The program.
        program: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Something was asked for that can't be.
    #[error("{0}")]
    Request(String),
    /// The caller's cancellation, as by Ctrl-C.
    #[error("interrupted")]
    Cancelled,
    /// Something did not happen in time.
    #[error("{node}: {what} took longer than {limit:?}{end}")]
    Timeout {
        /// The guest.
        node: String,
        /// What.
        what: String,
        /// The deadline.
        limit: Duration,
        /// The end of the console and of QEMU's messages.
        end: LogEnds,
    },
    /// The guest is gone: it powered off, crashed, or QEMU ended.
    #[error("{node}: the guest ended during {what} ({status}){end}")]
    Ended {
        /// The guest.
        node: String,
        /// What was going on.
        what: String,
        /// QEMU's status, where it is known.
        status: String,
        /// The end of the console and of QEMU's messages.
        end: LogEnds,
    },
    /// The guest started anew while a command ran.
    #[error("{node}: the guest started anew during {what}")]
    Restarted {
        /// The guest.
        node: String,
        /// The command.
        what: String,
    },
    /// QEMU refused a command of its monitor.
    #[error("{node}: QEMU refused {command}: {answer}")]
    Monitor {
        /// The guest.
        node: String,
        /// The command.
        command: String,
        /// What it said.
        answer: String,
    },
}

/// The ends of a guest's logs, and where the whole is.
#[derive(Clone, Debug, Default)]
pub struct LogEnds {
    /// A title and lines for each log that has any.
    pub logs: Vec<(PathBuf, String)>,
}

impl std::fmt::Display for LogEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (path, end) in &self.logs {
            write!(f, "\n--- the end of {}:\n{}", path.display(), end.trim_end())?;
        }
        Ok(())
    }
}

/// Attach what was being done to an error of the system.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, GuestError>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, GuestError> {
        self.map_err(|error| GuestError::Io { what: what(), source: error.into() })
    }
}
