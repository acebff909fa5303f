//! Errors of an engine itself. An error of a client ends that client and is counted.

use std::{io, path::PathBuf};

use nix::errno::Errno;
use thiserror::Error;

/// Why an engine could not be made, or could not serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A system call failed.
    #[error("{what}: {errno}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Error of the kernel.
        errno: Errno,
    },
    /// io_uring was requested and does not work here.
    #[error("io_uring does not work here ({reason}): container profiles often forbid it; use epoll")]
    IoUring {
        /// Error of the attempt.
        reason: io::Error,
    },
    /// The event loop failed.
    #[error("waiting for events with {event_loop}: {reason}")]
    Wait {
        /// Name of the event loop.
        event_loop: &'static str,
        /// Error of the event loop.
        reason: io::Error,
    },
    /// Code of the engine or of the machine panicked, which is a defect. The clients have lost
    /// their attachments. The panic of a device ends no engine: see [`Machine::device_panic`].
    ///
    /// [`Machine::device_panic`]: nicforge_core::machine::Machine::device_panic
    #[error("the engine panicked: {message}; this is a defect of nicforge, not of a device or a client")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A thread could not be started.
    #[error("starting the thread {what}: {reason}")]
    Thread {
        /// The thread's job.
        what: &'static str,
        /// The system's answer.
        reason: io::Error,
    },
    /// The machine has no such attachment.
    #[error("the machine has no attachment {attachment} of function {function}")]
    NoSuchAttachment {
        /// Requested function.
        function: u32,
        /// Requested attachment.
        attachment: u16,
    },
    /// The engine serves as many attachments as it can.
    #[error("the engine serves {limit} attachments, and no more: serve the others by another one")]
    TooMany {
        /// Maximum that an engine serves.
        limit: usize,
    },
    /// The attachment is served already.
    #[error("attachment {attachment} of function {function} is served at {path} already")]
    AlreadyServed {
        /// Requested function.
        function: u32,
        /// Requested attachment.
        attachment: u16,
        /// Path where it is served.
        path: PathBuf,
    },
    /// Another server uses this socket.
    #[error("{path} is in use by a running server: choose another path, or end that server")]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The file at the socket's path is no socket.
    #[error("{path} exists and is no socket: choose another path, or remove it")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("{what} {path}: {reason}")]
    Socket {
        /// The attempted operation.
        what: &'static str,
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
}

/// Why an [`crate::EngineHandle`] got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HandleError {
    /// The queue of commands is full.
    #[error("the engine has {limit} commands waiting already: try again later")]
    Full {
        /// Number of commands that can wait.
        limit: usize,
    },
    /// The engine was dropped. An engine that exists but does not run keeps commands until it runs.
    #[error("the engine has ended")]
    Ended,
    /// No answer came within the given time: the engine is busy, or does not run. The command may
    /// still be carried out.
    #[error("the engine did not answer within {milliseconds} ms")]
    Timeout {
        /// The given time.
        milliseconds: u128,
    },
}
