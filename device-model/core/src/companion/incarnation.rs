//! One incarnation of a companion: the state that its device, the machine and the companion share,
//! and the companion's thread.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Waker,
    thread::{self, Thread},
    time::Duration,
};

use super::{
    Companion, CompanionEnd, CompanionStatus, Halt,
    signal::{Awake, Signal},
    signals::CompanionFlags,
};
use crate::{panic::message_of, progress::Progress};

/// Budget of one poll on a thread: about this many commands.
const POLL_BUDGET: u32 = 64;
/// Longest sleep of a companion's thread. It bounds the delay of a companion that looks at
/// something else than its commands.
const LONGEST_PARK: Duration = Duration::from_millis(250);

/// Progress of a companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// It is being polled, or about to be.
    Polling = 0,
    /// It sleeps until a message comes, or is stepped.
    Waiting = 1,
    /// It has ended, with a panic or without. Nothing of it runs any more.
    Over = 2,
}

/// The state by which companions wake a machine.
pub(super) struct MachineFlags {
    /// Whether the machine is awake, and needs no wake-up.
    pub(super) awake: Awake,
    /// Wakes the holder of the machine.
    pub(super) waker: Waker,
}

/// The shared state of an incarnation.
pub(super) struct Incarnation {
    /// Number of this incarnation among those of its companion, from 1.
    epoch: u32,
    machine: Arc<MachineFlags>,
    /// The companion's flags. Its work flag tells the machine to poll the companion or to end it.
    flags: CompanionFlags,
    /// Raised when the companion has sent an event or halted, until the machine takes it.
    signal: Signal,
    /// The machine's steps poll the companion.
    is_stepped: bool,
    /// The device has dropped its end.
    has_ended: AtomicBool,
    /// A poll on the companion's thread took longer than the limit.
    is_hung: AtomicBool,
    /// A [`Phase`].
    phase: AtomicU8,
    /// Number of polls so far. The machine sees by it that a thread has not stayed in one poll.
    polls: AtomicU64,
    /// Message of the companion's panic.
    panic: OnceLock<String>,
    /// The companion's thread, if it has one.
    thread: OnceLock<Thread>,
}

impl Incarnation {
    pub(super) fn new(
        epoch: u32,
        machine: Arc<MachineFlags>,
        flags: CompanionFlags,
        is_stepped: bool,
    ) -> Self {
        // Every companion is polled once after its start.
        flags.note_work();
        Self {
            epoch,
            machine,
            signal: flags.signal(),
            flags,
            is_stepped,
            has_ended: AtomicBool::new(false),
            is_hung: AtomicBool::new(false),
            phase: AtomicU8::new(Phase::Polling as u8),
            polls: AtomicU64::new(0),
            panic: OnceLock::new(),
            thread: OnceLock::new(),
        }
    }

    /// Returns the incarnation's number among those of its companion.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns whether the companion runs, or why it has halted.
    pub(super) fn status(&self) -> CompanionStatus {
        if self.is_hung() {
            return CompanionStatus::Halted(Halt::Hung);
        }
        match self.panic.get() {
            None => CompanionStatus::Running,
            Some(message) => CompanionStatus::Halted(Halt::Panicked(message.clone())),
        }
    }

    /// Returns whether the machine's steps poll the companion.
    pub(super) fn is_stepped(&self) -> bool {
        self.is_stepped
    }

    /// Returns whether the companion takes commands.
    #[inline]
    pub(super) fn takes_commands(&self) -> bool {
        !self.is_hung() && !self.has_ended() && self.panic.get().is_none()
    }

    /// Returns whether a poll took too long, so that the companion counts as halted.
    #[inline]
    pub(super) fn is_hung(&self) -> bool {
        self.is_hung.load(Ordering::Acquire)
    }

    /// Declares that a poll takes too long.
    pub(super) fn set_hung(&self) {
        self.is_hung.store(true, Ordering::Release);
    }

    /// Returns whether the device has ended the incarnation.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the incarnation. The companion's thread ends after the poll that is in progress.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.flags.note_work();
        self.wake_companion();
    }

    /// Returns what the companion does at present.
    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Polling,
            1 => Phase::Waiting,
            _ => Phase::Over,
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Returns the number of polls so far.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Acquire)
    }

    /// Sets the companion's thread. The machine and the thread itself both do that, since either
    /// may need it first.
    pub(super) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Requests a poll of the companion. If its thread is awake, the unpark makes its next park
    /// return at once, so no wake-up is lost.
    #[inline]
    pub(super) fn wake_companion(&self) {
        if self.is_stepped {
            self.flags.note_work();
        } else if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Requests that the machine calls the device in its next step, and wakes the machine if it may
    /// sleep.
    #[inline]
    pub(super) fn wake_device(&self) {
        if self.signal.raise(&self.machine.awake) {
            self.machine.waker.wake_by_ref();
        }
    }

    /// Polls the companion once. A panic halts it, and [`Progress::Idle`] is returned.
    pub(super) fn poll(&self, body: &mut dyn Body, budget: u32) -> Progress {
        self.set_phase(Phase::Polling);
        self.polls.fetch_add(1, Ordering::Release);

        // Unwind safety: a companion that has panicked is not polled again, only dropped.
        match panic::catch_unwind(AssertUnwindSafe(|| body.poll(budget))) {
            Ok(progress) => {
                self.set_phase(Phase::Waiting);
                progress
            }
            Err(payload) => {
                self.note_panic(message_of(payload));
                Progress::Idle
            }
        }
    }

    /// Drops the companion, after which nothing of it runs any more.
    pub(super) fn drop_body(&self, body: Box<dyn Body>) {
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(body))) {
            self.note_panic(message_of(payload));
        }
        self.set_phase(Phase::Over);
        self.wake_device();
    }

    /// Keeps the message of the companion's first panic.
    fn note_panic(&self, message: String) {
        // An error means that there is an earlier message, which stays.
        let _ = self.panic.set(message);
    }

    /// Returns whether the companion has panicked, so that it must not be polled again.
    pub(super) fn has_panicked(&self) -> bool {
        self.panic.get().is_some()
    }

    /// Runs the companion on this thread until the incarnation ends or the companion panics.
    pub(super) fn run(&self, mut body: Box<dyn Body>) {
        self.set_thread(thread::current());

        while !self.has_ended() {
            let progress = self.poll(body.as_mut(), POLL_BUDGET);
            if self.has_panicked() {
                break;
            }
            if progress == Progress::Idle {
                thread::park_timeout(LONGEST_PARK);
            }
        }

        self.drop_body(body);
    }
}

/// A companion with its end of the FIFOs, whatever its types.
pub(super) trait Body: Send {
    /// Polls the companion. It handles about `budget` commands at most.
    fn poll(&mut self, budget: u32) -> Progress;
}

/// The [`Body`] of one type of companions.
pub(super) struct TypedBody<C: Companion> {
    pub(super) companion: C,
    pub(super) end: CompanionEnd<C::Command, C::Event>,
}

impl<C: Companion> Body for TypedBody<C> {
    fn poll(&mut self, budget: u32) -> Progress {
        self.companion.poll(&mut self.end, budget)
    }
}
