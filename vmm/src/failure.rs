//! How a command fails: a message for a person and an exit code for a script.

use std::{io::Write, process::ExitCode, time::Duration};

use thiserror::Error;

use crate::lines::{Stream, is_writable};

/// How long a message waits for somebody to read standard error.
const PATIENCE: Duration = Duration::from_millis(300);

/// The work was done and the result is bad (digests differ, a program failed).
pub const EXIT_RESULT: u8 = 1;
/// The command line or a machine file is wrong. (clap uses the same.)
pub const EXIT_USAGE: u8 = 2;
/// Something around it failed: a socket is taken, a process can't be started, a server is gone.
pub const EXIT_ENVIRONMENT: u8 = 3;
/// The engine did not end in time: a client holds it up. The sockets are removed.
pub const EXIT_HELD: u8 = 4;
/// Ended by Ctrl-C or SIGTERM, as shells count it (128 + SIGINT).
pub const EXIT_INTERRUPTED: u8 = 130;

/// Nobody reads standard output any more; as shells count it (128 + SIGPIPE).
pub const EXIT_UNREAD: u8 = 141;

/// Why a command ended early.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct Failure {
    /// What happened and what to do.
    pub message: String,
    /// The process's exit code.
    pub code: u8,
}

impl Failure {
    /// The command line or a file that the user wrote is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_USAGE }
    }

    /// The surroundings failed.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_ENVIRONMENT }
    }

    /// The result is bad.
    pub fn result(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_RESULT }
    }

    /// Ended by the user.
    pub fn interrupted() -> Self {
        Self { message: "interrupted".into(), code: EXIT_INTERRUPTED }
    }
}

/// The exit code of a command, after its failure was written to standard error.
pub fn report(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if failure.code != EXIT_UNREAD {
                tell(format_args!("nicforge: {failure}"));
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Write a line to standard output. A reader that is gone, as in `nicforge stat ... | head`, ends the command without a word.
pub fn say(line: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => {
            Failure { message: "nobody reads the output".into(), code: EXIT_UNREAD }
        }
        _ => Failure::environment(format!("standard output: {error}")),
    })
}

/// Write a line to standard error, if that can be done: a message never decides how a command ends.
pub fn tell(line: impl std::fmt::Display) {
    if is_writable(Stream::Error, PATIENCE) {
        // It may be closed, or on a disk that is full.
        let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    }
}

/// Attach what was being done to an error.
pub trait Doing<T> {
    /// A failure of the surroundings: "`what`: error".
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::environment(format!("{}: {error}", what())))
    }
}
