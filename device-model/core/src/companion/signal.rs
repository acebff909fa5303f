//! The wake-up of a machine that may sleep, by a companion that has sent an event.
//!
//! Each side stores and then looks at the other side's store, with a fence between. So the machine
//! finds the signal before it sleeps, or the companion finds that it may sleep and wakes it. The
//! tests below check that under every interleaving that the memory model allows.

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// Whether the machine looks at the signals without a wake-up.
pub(super) struct Awake(AtomicBool);

impl Awake {
    /// Returns the state of a machine that is awake.
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Reports that the machine is awake. It calls [`Awake::end_step`] before it sleeps.
    pub(super) fn begin_step(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Reports that the machine may sleep. It must look at all signals after this, and must not
    /// sleep if one of them is raised.
    pub(super) fn end_step(&self) {
        self.0.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// A word of signals, all of them lowered at first.
pub(super) type Word = Arc<AtomicU64>;

/// The signal of a companion: it has sent an event, or has halted. It is a bit of a word that
/// companions share.
pub(super) struct Signal {
    word: Word,
    bit: u64,
}

impl Signal {
    /// Returns the signal that is this bit of a word.
    pub(super) fn new(word: &Word, bit: u64) -> Self {
        Self { word: Arc::clone(word), bit }
    }

    /// Raises the signal. Returns whether the caller must wake the machine.
    #[inline]
    pub(super) fn raise(&self, machine: &Awake) -> bool {
        // A signal that is raised already has not been taken yet. The call that raised it wakes the
        // machine if necessary.
        if self.word.fetch_or(self.bit, Ordering::AcqRel) & self.bit != 0 {
            return false;
        }
        fence(Ordering::SeqCst);
        !machine.0.load(Ordering::Relaxed)
    }
}

/// Returns a new word.
pub(super) fn new_word() -> Word {
    Arc::new(AtomicU64::new(0))
}

/// Lowers all signals of a word, and returns those that were raised. The caller sees what was sent
/// before.
#[inline]
pub(super) fn take_all(word: &AtomicU64) -> u64 {
    if is_any_raised(word) { word.swap(0, Ordering::AcqRel) } else { 0 }
}

/// Returns whether a signal of a word is raised.
#[inline]
pub(super) fn is_any_raised(word: &AtomicU64) -> bool {
    word.load(Ordering::Relaxed) != 0
}

/// Run with:
/// ```sh
/// RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 \
///     cargo test -p nicforge-core --lib companion::signal
/// ```
#[cfg(all(test, loom))]
mod tests {
    use loom::{
        sync::{
            Arc, Notify,
            atomic::{AtomicU32, AtomicU64, Ordering},
        },
        thread,
    };

    use super::{Awake, Signal, is_any_raised, take_all};

    /// A machine, and the incarnations of two companions.
    struct Shared {
        awake: Awake,
        /// The waker of the machine's holder.
        waker: Notify,
        signals: Arc<AtomicU64>,
        incarnations: [Incarnation; 2],
    }

    /// The companion's end of an incarnation.
    struct Incarnation {
        signal: Signal,
        /// Number of events. The accesses are relaxed, so only the signal orders them.
        sent: AtomicU32,
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let signals = Arc::new(AtomicU64::new(0));
            let incarnation =
                |bit| Incarnation { signal: Signal::new(&signals, bit), sent: AtomicU32::new(0) };
            let incarnations = [incarnation(1), incarnation(2)];
            Arc::new(Self { awake: Awake::new(), waker: Notify::new(), signals, incarnations })
        }

        /// Sends events as a companion does.
        fn send(&self, incarnation: usize, count: u32) {
            let incarnation = &self.incarnations[incarnation];
            for number in 1..=count {
                incarnation.sent.store(number, Ordering::Relaxed);
                if incarnation.signal.raise(&self.awake) {
                    self.waker.notify();
                }
            }
        }

        /// Steps and sleeps as a machine does, until all events are received. A wake-up that is
        /// missing lets it sleep for ever, which the checker reports.
        fn receive(&self, expected: [u32; 2]) {
            let mut received = [0; 2];
            loop {
                self.awake.begin_step();
                let raised = take_all(&self.signals);
                for (index, (incarnation, received)) in
                    self.incarnations.iter().zip(&mut received).enumerate()
                {
                    if raised >> index & 1 != 0 {
                        *received = incarnation.sent.load(Ordering::Relaxed);
                    }
                }
                if received == expected {
                    return;
                }

                self.awake.end_step();
                if !is_any_raised(&self.signals) {
                    self.waker.wait();
                }
            }
        }
    }

    #[test]
    fn events_that_are_sent_while_the_machine_goes_to_sleep_wake_it() {
        loom::model(|| {
            let shared = Shared::new();
            let companion = thread::spawn({
                let shared = shared.clone();
                move || shared.send(0, 2)
            });

            shared.receive([2, 0]);
            companion.join().unwrap();
        });
    }

    #[test]
    fn wake_up_of_one_companion_does_not_hide_that_of_another() {
        loom::model(|| {
            let shared = Shared::new();
            let companions = [0, 1].map(|incarnation| {
                let shared = shared.clone();
                thread::spawn(move || shared.send(incarnation, 1))
            });

            shared.receive([1, 1]);
            for companion in companions {
                companion.join().unwrap();
            }
        });
    }
}
