//! The companions of a machine's devices: where they run, and their state.

use std::task::Waker;

use super::Machine;
use crate::{
    companion::{CompanionMode, CompanionReport},
    ids::FunctionId,
    time::Nanos,
};

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
    #[cold]
    pub(super) fn step_companions(&mut self, budget: u32) -> bool {
        let companions = &mut self.shared.companions;
        companions.begin_step();
        companions.supervise(self.shared.now);
        self.poll_companions(budget)
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
