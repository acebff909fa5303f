//! The sleep of a client from which the engine wakes it.
//!
//! A pause that sleeps has two steps, between which the library looks for its event once more: the
//! first *arms* the wake-up, and the second blocks. To arm it, the client sets its waiting word and
//! executes the barrier. The engine loads the word after each step that worked for the client, and
//! signals the eventfd if it is set. See [`nicforge_hwi::attachment::waiting`].
//!
//! A thread that is woken and finds nothing was woken for another one's events. After a few of them
//! it naps before it arms the wake-up again. A thread that waits for long would otherwise cost
//! one that is at work a wake-up a packet.
//!
//! Threads that wait for the same device share the word and the eventfd. One of them, the *leader*,
//! blocks in the kernel. The others sleep on a condition, which the leader signals when it leaves.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use nicforge_shm::{
    SharedU32, pace,
    wake::{BarrierKind, Sleeper},
};
use nix::sys::eventfd::EventFd;

use super::Backing;
use crate::{
    Error, Relax,
    interrupt::block_in_kernel,
    runtime::{self, Event},
};

/// Number of wake-ups in vain after which a thread naps. The completion of the thread's own send
/// often comes before the answer that it waits for, so that the first ones say nothing.
const FREE_WAKES: u32 = 3;
/// Length of the first nap. Each is twice as long as the one before, [`MAX_DOUBLINGS`] times.
const FIRST_NAP: Duration = Duration::from_micros(20);
/// Maximum number of times that the length of a nap is doubled.
const MAX_DOUBLINGS: u32 = 4;

/// What the first step of a sleep has prepared: the count of [`ClientWake::left`] at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed(u32);

/// What wakes the threads of this process that wait for one device.
pub struct ClientWake {
    /// Not 0 while a thread waits, or is about to. The engine clears it when it signals `event`.
    waiting: SharedU32,
    /// Readable once the engine has signalled it, until the leader empties it.
    event: EventFd,
    barrier: Sleeper<nicforge_shm::wake::Membarrier>,
    /// Whether a thread is the leader.
    has_leader: AtomicBool,
    /// Notified when the leader has emptied `event`, and again when it leads no more.
    left: Event,
}

impl ClientWake {
    /// Returns the wake-up by this word and eventfd, or `None` if this process has no barrier that
    /// reaches the engine at once.
    pub(super) fn new(waiting: SharedU32, event: EventFd) -> Option<Self> {
        let barrier = Sleeper::open();
        (barrier.kind() == BarrierKind::GlobalExpedited).then(|| Self {
            waiting,
            event,
            barrier,
            has_leader: AtomicBool::new(false),
            left: Event::default(),
        })
    }

    /// Returns the eventfd that the engine signals.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes the next step of a sleep: arms the wake-up, or blocks until the engine wakes the
    /// client, the backing has events, or the limit of [`Relax::limit_of_sleep`] is over. `time` is
    /// the sleep's length by the back-off.
    pub(super) fn sleep<B: Backing + ?Sized>(
        &self,
        backing: &B,
        relax: &mut Relax,
        time: Duration,
    ) -> Result<(), Error> {
        let Some(armed) = relax.armed.take() else {
            if let Some(naps) = relax.wakes.checked_sub(FREE_WAKES) {
                runtime::sleep(FIRST_NAP * (1 << naps.min(MAX_DOUBLINGS)));
            }
            relax.armed = Some(self.arm());
            return Ok(());
        };

        let limit = relax.limit_of_sleep(time);
        relax.has_slept = true;
        if self.has_leader.swap(true, Ordering::SeqCst) {
            self.left.sleep(armed.0, limit);
            relax.wakes += u32::from(self.left.count() != armed.0);
            return Ok(());
        }

        let slept = self.lead(backing, armed, limit);
        self.has_leader.store(false, Ordering::Release);
        // A thread that has found a leader just before this sleeps with the present count.
        self.left.notify();
        if slept? {
            relax.wakes += 1;
            pace::note_woken(relax.waited());
        }
        Ok(())
    }

    /// Wakes the threads of this process that sleep, after a change by one of its own. Without
    /// sleepers it makes no system call.
    pub(crate) fn wake_threads(&self) {
        // A thread that is about to lead sees the count, or this thread sees the leader.
        self.left.notify();
        if self.has_leader.load(Ordering::SeqCst) {
            // The write fails only when the counter is full, and the leader is woken then.
            let _ = self.event.write(1);
        }
    }

    /// Sets the waiting word, and executes the barrier. The caller looks for its event after this.
    fn arm(&self) -> Armed {
        // The count comes first: a leader that takes the signal for this thread counts after that.
        let armed = Armed(self.left.count());
        self.waiting.store(1, Ordering::SeqCst);
        self.barrier.barrier();
        armed
    }

    /// Blocks for all threads that wait. Returns whether the engine has woken them.
    fn lead<B: Backing + ?Sized>(&self, backing: &B, armed: Armed, limit: Duration) -> Result<bool, Error> {
        if self.left.count() != armed.0 {
            // Another leader may have taken a signal that was for this thread.
            return Ok(false);
        }

        if backing.expects_events() {
            backing.handle_events()?;
        }
        block_in_kernel(backing, &[self.event.as_fd()], Some(limit), None)?;
        let is_woken = self.event.read().is_ok();
        if is_woken {
            self.left.notify();
        }
        Ok(is_woken)
    }
}
