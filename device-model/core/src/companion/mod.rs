//! Companions: what a device needs that must not run in its methods.
//!
//! A device never waits. Work that takes long, or that may wait for the operating system, is a
//! [`Companion`]. The device starts it with [`crate::context::Context::start_companion`], and then
//! reaches it only by two bounded FIFOs: commands to it ([`DeviceEnd`]), events from it
//! ([`CompanionEnd`]). Messages own what they carry, so neither side can see the other's state.
//!
//! The holder of the machine chooses where companions run ([`CompanionMode`]):
//!
//! - *stepped*: [`crate::machine::Machine::step`] polls them. This is the default, and what tests
//!   and virtual time use;
//! - *on threads*: each has a thread of its own. The engine uses it. A companion whose
//!   [`CompanionSpec::mode`] is *stepped* has none there, either.
//!
//! Incarnations
//!
//! - Each start begins a new *incarnation*, which has new FIFOs and the next *epoch*. The
//!   incarnation before it ends. Messages that the device has not received from it are dropped with
//!   its FIFOs.
//! - An incarnation ends when the device drops its end. The companion is dropped after the poll
//!   that is in progress. Its thread is never joined. A thread that does not return is *abandoned*,
//!   and counted. With [`MAX_ABANDONED`] such threads no further incarnation begins.
//! - A companion is *halted* when it panics, or when a poll takes longer than the machine's limit.
//!   The device sees [`CompanionStatus::Halted`] and starts a new incarnation when it is reset.
//!
//! Wake-ups
//!
//! - A message to a companion unparks its thread. That is an atomic swap, and a system call only if
//!   the thread sleeps.
//! - A message to a device is noted in the incarnation. The machine looks at the notes in each
//!   step, and wakes the function. The companion calls the holder's waker only if the machine may
//!   be asleep.
//!
//! The FIFOs are rings of the crate `rtrb`, with one producer and one consumer each. A message is
//! a copy and a store, both ends only *try*, and nothing allocates after the start.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the trait, the modes, states and errors |
//! | `ends.rs` | the two ends of the FIFOs |
//! | `incarnation.rs` | the state that both sides and the machine share, and a companion's thread |
//! | `signal.rs` | the wake-up of a machine that may sleep |
//! | `signals.rs` | which companions have work, or something for their devices |
//! | `table.rs` | the companions of a machine: starting, polling, supervision |

mod ends;
mod incarnation;
mod signal;
mod signals;
mod table;

use std::{fmt, io};

use thiserror::Error;

pub use self::ends::{CompanionEnd, DeviceEnd, EventSender, SendError};
pub(crate) use self::table::Companions;
use crate::progress::Progress;

/// Maximum number of threads of earlier incarnations of a companion that have not returned. With
/// this many, no new incarnation begins.
pub const MAX_ABANDONED: usize = 16;
/// Maximum number of companions of a function.
pub const MAX_COMPANIONS: usize = 16;
/// Maximum number of messages of a FIFO.
pub const MAX_MESSAGES: usize = 4096;
/// Default limit of a poll on a thread, in nanoseconds.
/// [`crate::machine::Machine::set_companion_limit`] changes it.
pub const COMPANION_LIMIT: u64 = 5_000_000_000;

/// The body of a companion.
pub trait Companion: Send + 'static {
    /// Message from the device.
    type Command: Send + 'static;
    /// Message to the device.
    type Event: Send + 'static;

    /// Does a bounded piece of work: at most about `budget` commands.
    ///
    /// It is called after the start, after the device has sent a command or received an event, and
    /// again after [`Progress::Busy`]. On a thread it is also called now and then without a reason,
    /// and it may wait in the call, for less than the machine's limit. Stepped, it must not wait.
    fn poll(&mut self, end: &mut CompanionEnd<Self::Command, Self::Event>, budget: u32) -> Progress;
}

/// Name of a companion, and the sizes of its FIFOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompanionSpec {
    /// Name in tables, and of the thread. A function's companions have different names.
    pub name: &'static str,
    /// Maximum number of commands in the FIFO to the companion, 1 to [`MAX_MESSAGES`].
    pub commands: usize,
    /// Maximum number of events in the FIFO to the device, 1 to [`MAX_MESSAGES`].
    pub events: usize,
    /// Where it runs on a machine whose companions have threads. [`CompanionMode::Stepped`] spares
    /// the thread: the machine's steps poll it then, without a limit for its polls.
    pub mode: CompanionMode,
}

/// Where companions run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompanionMode {
    /// In the machine's steps.
    #[default]
    Stepped,
    /// Each on a thread of its own.
    Threads,
}

/// State of an incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompanionStatus {
    /// It takes commands.
    Running,
    /// It takes no more commands in this incarnation.
    Halted(Halt),
    /// The device has ended the incarnation, and has begun no other one.
    Ended,
}

/// Reason why a companion is halted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It panicked, with this message.
    Panicked(String),
    /// A poll took longer than the limit.
    Hung,
}

impl fmt::Display for CompanionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => write!(f, "running"),
            Self::Ended => write!(f, "ended"),
            Self::Halted(Halt::Hung) => write!(f, "hung"),
            Self::Halted(Halt::Panicked(message)) => write!(f, "panicked: {message}"),
        }
    }
}

/// A companion as tables show it. It is displayed as `NAME (epoch 2) hung, 1 thread abandoned`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompanionReport {
    /// Its name.
    pub name: &'static str,
    /// Number of its current incarnation, from 1.
    pub epoch: u32,
    /// Where that incarnation runs.
    pub mode: CompanionMode,
    /// State of that incarnation.
    pub status: CompanionStatus,
    /// Threads of earlier incarnations that have not returned.
    pub abandoned: usize,
}

impl CompanionReport {
    /// Returns whether the companion is not halted, and has left no thread behind.
    pub fn is_healthy(&self) -> bool {
        !matches!(self.status, CompanionStatus::Halted(_)) && self.abandoned == 0
    }
}

impl fmt::Display for CompanionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {}) {}", self.name, self.epoch, self.status)?;
        match self.abandoned {
            0 => Ok(()),
            1 => write!(f, ", 1 thread abandoned"),
            count => write!(f, ", {count} threads abandoned"),
        }
    }
}

/// Reason why an incarnation could not begin.
#[derive(Debug, Error)]
pub enum CompanionError {
    /// Too many threads of earlier incarnations have not returned.
    #[error("{count} earlier threads of companion {name} have not returned; no further one is started")]
    Abandoned {
        /// Name of the companion.
        name: &'static str,
        /// Number of the threads.
        count: usize,
    },
    /// The function has too many companions.
    #[error("companion {name} would be one more than {MAX_COMPANIONS} of this function")]
    TooMany {
        /// Name of the companion.
        name: &'static str,
    },
    /// A FIFO's size is out of range.
    #[error("companion {name} needs FIFOs of 1 to {MAX_MESSAGES} messages")]
    Size {
        /// Name of the companion.
        name: &'static str,
    },
    /// The thread could not be started.
    #[error("the thread of companion {name} could not be started: {reason}")]
    Thread {
        /// Name of the companion.
        name: &'static str,
        /// The system's answer.
        reason: io::Error,
    },
}
