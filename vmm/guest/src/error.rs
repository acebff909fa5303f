//! Errors of provisioning, of a guest and of its commands.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use thiserror::Error;

use crate::guest::logs;

/// An error of a guest, or of obtaining its parts.
#[derive(Debug, Error)]
pub enum GuestError {
    /// An operation on a local file or directory failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation, with the path.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The directory for downloaded and built files is unusable.
    #[error("{path} can't be used as the cache: {why}; name another directory with NICFORGE_CACHE")]
    Cache {
        /// The directory.
        path: PathBuf,
        /// The problem with it.
        why: String,
    },
    /// A part of a guest is missing and can't be downloaded on this host.
    #[error("there is no {what} here, and it can't be provisioned: {why}. {advice}")]
    Unprovided {
        /// The missing part.
        what: &'static str,
        /// Why it can't be provisioned.
        why: String,
        /// Advice for the user.
        advice: &'static str,
    },
    /// A file that the caller named, or that a package should contain, is unsuitable.
    #[error("{path}: {problem}")]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// A tool of the host failed.
    #[error("{what} failed ({status}):\n{output}")]
    Tool {
        /// The operation.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// A tool of the host can't be started.
    #[error("{what}: can't start {program}: {source}; is it installed?")]
    Start {
        /// The operation.
        what: String,
        /// The program.
        program: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The caller's request can't be fulfilled.
    #[error("{0}")]
    Request(String),
    /// The caller cancelled, as by Ctrl-C.
    #[error("interrupted")]
    Cancelled,
    /// An operation exceeded its deadline.
    #[error("{node}: {what} took longer than {limit:?}{end}")]
    Timeout {
        /// The guest's name.
        node: String,
        /// The operation.
        what: String,
        /// The deadline.
        limit: Duration,
        /// The end of the console and of QEMU's messages.
        end: LogEnds,
    },
    /// The guest powered off or crashed, or QEMU ended.
    #[error("{node}: the guest ended during {what} ({status}){end}")]
    Ended {
        /// The guest's name.
        node: String,
        /// The operation in progress.
        what: String,
        /// The status of the machine's process, where it is known.
        status: String,
        /// The end of the console and of QEMU's messages.
        end: LogEnds,
    },
    /// The guest rebooted while a command ran.
    #[error("{node}: the guest started anew during {what}")]
    Restarted {
        /// The guest's name.
        node: String,
        /// The command.
        what: String,
    },
    /// QEMU refused a command on its monitor.
    #[error("{node}: QEMU refused {command}: {answer}")]
    Monitor {
        /// The guest's name.
        node: String,
        /// The command.
        command: String,
        /// QEMU's answer.
        answer: String,
    },
}

/// The ends of a guest's logs, and the paths of the whole logs.
#[derive(Clone, Debug, Default)]
pub struct LogEnds {
    /// Path and last lines of each log that has content.
    pub logs: Vec<(PathBuf, String)>,
}

impl LogEnds {
    /// Adds the ends of the logs in a folder, by their names. A folder that cannot be read has
    /// none.
    pub fn add_folder(&mut self, folder: &Path) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        // A guest may share the folder, and a pipe in it would be waited for.
        let files =
            entries.flatten().filter(|entry| entry.file_type().is_ok_and(|file_type| file_type.is_file()));
        let mut paths: Vec<_> = files.map(|entry| entry.path()).collect();
        paths.sort();
        self.logs.extend(paths.into_iter().filter_map(|path| {
            let end = logs::end(&path)?;
            Some((path, end))
        }));
    }
}

impl std::fmt::Display for LogEnds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (path, end) in &self.logs {
            write!(f, "\n--- the end of {}:\n{}", path.display(), end.trim_end())?;
        }
        Ok(())
    }
}

/// Adds the failed operation to an error of the system.
pub(crate) trait ErrorContext<T> {
    /// Returns [`GuestError::Io`] with `what`, the operation that failed.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, GuestError>;
}

impl<T, E: Into<std::io::Error>> ErrorContext<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, GuestError> {
        self.map_err(|error| GuestError::Io { what: what(), source: error.into() })
    }
}
