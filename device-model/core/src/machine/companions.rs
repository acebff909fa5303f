//! The companions of a machine's devices: where they run, and their state.

use std::task::Waker;

use super::{Machine, schedule::MAX_TOUCHED};
use crate::{
    companion::{CompanionMode, CompanionReport},
    ids::FunctionId,
    time::Nanos,
};

/// Maximum number of polls of the companions in a step: a message between two SeaStars takes up to
/// seven.
const POLLS: u32 = 8;
/// The part of a step's budget that each poll after the first has, and each turn between polls: a
/// quarter, and at least 1. With a budget of 4 or more, all of them together thus have less than
/// two turns, and a client that keeps its device busy has less than three in a step.
const SHARE: u32 = 4;

impl Machine {
    /// Sets where companions run. The holder of the machine calls this before it drives it; a
    /// companion that runs already stays as it is.
    ///
    /// A companion on a thread calls `waker` when a device should run while the machine may be
    /// asleep. The holder should step the machine then. The default is [`CompanionMode::Stepped`],
    /// for which [`Waker::noop`] is enough.
    pub fn set_companions(&mut self, mode: CompanionMode, waker: Waker) {
        self.shared.companions.set_mode(mode, waker);
    }

    /// Sets the time after which a companion's poll on a thread counts as hung, in nanoseconds. The
    /// default is [`crate::companion::COMPANION_LIMIT`].
    pub fn set_companion_limit(&mut self, nanoseconds: u64) {
        self.shared.companions.set_limit(nanoseconds);
    }

    /// Returns the companions of a function's device.
    pub fn companions(&self, function: FunctionId) -> Vec<CompanionReport> {
        self.shared.companions.report(function)
    }

    /// Polls stepped companions, supervises those on threads, and wakes the functions for which
    /// they have sent events. Returns whether there is more work at once.
    ///
    /// A companion and its device often answer each other several times for one packet. The
    /// functions that the companions have woken thus have short turns in this step, and the
    /// companions are polled again, at most [`POLLS`] times in all. Otherwise each answer would
    /// take a step, with turns of all hot functions.
    #[cold]
    pub(super) fn step_companions(&mut self, budget: u32) -> bool {
        let companions = &mut self.shared.companions;
        companions.begin_step();
        companions.supervise(self.shared.now);

        let mut busy = self.poll_companions(budget);
        let short = (budget / SHARE).max(1);
        for _ in 1..POLLS {
            self.run_woken_by_companions(short);
            if self.shared.touched >= MAX_TOUCHED || !self.shared.companions.has_work() {
                break;
            }
            busy |= self.poll_companions(short);
        }
        busy
    }

    /// Runs a turn of each function that the last poll of the companions has woken, while DMA has
    /// touched less than [`MAX_TOUCHED`] in this step. The next step runs the others.
    fn run_woken_by_companions(&mut self, budget: u32) {
        let mut next = 0;
        // After the panic of a device, the turns of the others follow.
        while self.guarded(|machine| machine.run_woken_from(&mut next, budget)).is_err() {
            while self.guarded(Self::wake_for_fabric).is_err() {}
        }
    }

    /// Does the work of [`Machine::run_woken_by_companions`] from an index of the list on, and
    /// advances the index.
    fn run_woken_from(&mut self, next: &mut usize, budget: u32) {
        while self.shared.touched < MAX_TOUCHED
            && let Some(&function) = self.shared.companions.woken().get(*next)
        {
            *next += 1;
            if let Some(mut active) = self.active(function) {
                active.drain_and_step(budget);
            }
            self.collect_woken();
        }
    }

    /// Polls stepped companions, and wakes the functions for which companions have sent events.
    /// Returns whether there is more to do at once.
    #[cold]
    pub(super) fn poll_companions(&mut self, budget: u32) -> bool {
        let companions = &mut self.shared.companions;
        let mut busy = companions.poll(budget);

        let (slots, schedule) = (&mut self.slots, &mut self.schedule);
        companions.take_woken(|function| {
            if let Some(slot) = slots.get_mut(function.0 as usize) {
                schedule.wake(slot);
                busy = true;
            }
        });

        busy
    }

    /// Returns the time of the next step of a machine that has nothing to do until `time`, or
    /// `None` if it should step at once, because a companion has sent an event.
    #[cold]
    pub(super) fn end_step_with_companions(&self, time: Nanos) -> Option<Nanos> {
        self.shared.companions.end_step(time)
    }
}
