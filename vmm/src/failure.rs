//! The failure of a command: a message for the user, and an exit code for scripts.

use std::{io::Write, os::fd::AsFd, process::ExitCode, sync::OnceLock, time::Duration};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::write,
};
use thiserror::Error;

use crate::{
    escape,
    lines::{PIPE_WRITE, Stream, is_writable},
    signals::Signals,
};

/// How long a message waits until standard error is writable.
const WRITE_TIMEOUT: Duration = Duration::from_millis(300);

/// The command has run, and its result is bad: digests differ, or a program failed.
pub const EXIT_RESULT: u8 = 1;
/// The command line or a machine file is wrong. (clap uses the same.)
pub const EXIT_USAGE: u8 = 2;
/// Something outside the command failed: a socket is taken, a process cannot be started, or a
/// server is gone.
pub const EXIT_ENVIRONMENT: u8 = 3;
/// The engine did not end in time, because a client holds it; the sockets are removed. Or a run in
/// virtual time did not end within its limit.
pub const EXIT_HELD: u8 = 4;
/// The engine panicked, which is a defect of nicforge. The sockets are removed.
pub const EXIT_PANICKED: u8 = 5;
/// The command was ended by Ctrl-C or SIGTERM. The value is the shells' one (128 + SIGINT).
pub const EXIT_INTERRUPTED: u8 = 130;

/// The reader of standard output has closed it. The value is the shells' one (128 + SIGPIPE).
pub const EXIT_UNREAD: u8 = 141;

/// The name of this program in its messages.
static PROGRAM: OnceLock<&'static str> = OnceLock::new();

/// Returns the name of this program in its messages. It is `nicforge`, unless [`name_program`] was
/// called.
pub fn program() -> &'static str {
    PROGRAM.get().copied().unwrap_or("nicforge")
}

/// Sets the name of this program in its messages. Only the first call has an effect.
pub fn name_program(name: &'static str) {
    // A later call would change the name between two messages.
    let _ = PROGRAM.set(name);
}

/// The reason why a command ended early.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct Failure {
    /// A description of the problem, and of what to do.
    pub message: String,
    /// The process's exit code.
    pub code: u8,
}

impl Failure {
    /// Returns a failure of the command line, or of a file that the user wrote.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_USAGE }
    }

    /// Returns a failure of the environment.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_ENVIRONMENT }
    }

    /// Returns a failure because of a bad result.
    pub fn result(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_RESULT }
    }

    /// Returns the failure of a server whose engine panicked.
    pub fn panicked(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EXIT_PANICKED }
    }

    /// Returns the failure of a command that the user has ended.
    pub fn interrupted() -> Self {
        Self { message: "interrupted".into(), code: EXIT_INTERRUPTED }
    }
}

/// Writes a failure to standard error. Returns the command's exit code.
pub fn report(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if failure.code != EXIT_UNREAD {
                print_note(&failure);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Returns a number with its noun, as in "1 node" and "2 nodes".
pub fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Writes a line to standard output, with escapes for control characters. A reader that has closed
/// it, as in `nicforge stat ... | head`, ends the command without a message.
pub fn print_line(line: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", escape::lines(&line.to_string())).and_then(|()| out.flush()).map_err(output_failure)
}

/// Writes a line to standard output, as [`print_line`] does, unless one of `signals` comes while
/// the output takes no bytes. `start` comes first, as it is. Returns whether the line was written.
pub fn print_line_unless_signalled(
    start: &str,
    line: impl std::fmt::Display,
    signals: &Signals,
) -> Result<bool, Failure> {
    let (line, out) = (line.to_string(), std::io::stdout());
    let text = format!("{start}{}\n", escape::lines(&line));
    let mut unwritten = text.as_bytes();

    while !unwritten.is_empty() {
        let mut fds =
            [PollFd::new(out.as_fd(), PollFlags::POLLOUT), PollFd::new(signals.fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(output_failure(errno.into())),
        }

        if fds[0].any().unwrap_or(false) {
            // The standard library's buffer would write more than the output takes.
            match write(&out, &unwritten[..unwritten.len().min(PIPE_WRITE)]) {
                Ok(written) => unwritten = &unwritten[written..],
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(errno) => return Err(output_failure(errno.into())),
            }
        } else if signals.take().is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the failure of a write to standard output.
fn output_failure(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => {
            Failure { message: "the reader of standard output has closed it".into(), code: EXIT_UNREAD }
        }
        _ => Failure::environment(format!("standard output: {error}")),
    }
}

/// Writes a line to standard error, with escapes for control characters, if that is possible. An
/// error here never changes how a command ends.
pub fn print_error(line: impl std::fmt::Display) {
    if is_writable(Stream::Error, WRITE_TIMEOUT) {
        let text = format!("{}\n", escape::lines(&line.to_string()));
        // Standard error may be closed, or on a full disk.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Writes a message of the program to standard error, after its name.
pub fn print_note(message: impl std::fmt::Display) {
    print_error(format_args!("{}: {message}", program()));
}

/// Adds a description of the failed action to an error.
pub trait ErrorContext<T> {
    /// Returns a failure of the environment with the message "`description`: error".
    fn context(self, description: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> ErrorContext<T> for Result<T, E> {
    fn context(self, description: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::environment(format!("{}: {error}", description())))
    }
}
