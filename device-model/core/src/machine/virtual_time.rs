//! Virtual time: the machine runs from event to event, without a clock.
//!
//! [`Machine::run_until`] is the other way to drive a machine, beside [`Machine::step`]. Time is
//! that of the events: the machine's time moves to the next timer or fabric event, and only the
//! functions that have work run. At one time the order is:
//!
//! 1. Timers that are due, by time and number of the function, and the fabric's events.
//! 2. Turns of the functions that timers and the owner woke, and then of those that the fabric
//!    woke, each in the order in which they were woken. A function runs again while it makes
//!    progress, and after each event that concerns it.
//! 3. Polls of stepped companions with work, and turns of the functions that they woke.
//!
//! The order depends on nothing but the calls of the owner. The same calls thus cause the same
//! calls of devices.
//!
//! The machine does not poll the mapped memory of functions. The owner reports by [`Machine::wake`]
//! that a client may have stored to it. No sleeping word is set, no barrier takes place, and the
//! heartbeat in the mirrors makes no progress.

use nicforge_shm::prefetch_lines;
use thiserror::Error;

use super::{Machine, active::ActiveFunction};
use crate::{ids::FunctionId, time::Nanos};

/// Number of cache lines of a [`FunctionSlot`](super::FunctionSlot) that are prefetched before a
/// turn: those that each turn uses.
const SLOT_LINES: usize = 3;
/// Number of cache lines of a device that are prefetched before a turn: those that a turn of a
/// router uses.
const DEVICE_LINES: usize = 8;

/// Bounds of the work of a machine in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// Approximate number of packets or descriptors in a turn of a function, at least 1.
    pub budget: u32,
    /// Maximum number of turns of a function at one time, and of rounds of polls of the companions.
    /// At least 1.
    pub turns: u32,
}

impl Default for TurnLimits {
    /// Returns 64 packets in a turn, and 65,536 turns.
    fn default() -> Self {
        Self { budget: 64, turns: 1 << 16 }
    }
}

/// Work at one time that did not end within [`TurnLimits::turns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Endless {
    /// A function still made progress, or was woken again and again.
    #[error("function {} has had {turns} turns at {} ns, and is not done", function.0, time.0)]
    Function {
        /// The function.
        function: FunctionId,
        /// Number of its turns at this time.
        turns: u32,
        /// The machine's time.
        time: Nanos,
    },
    /// The companions still made progress.
    #[error("the companions have been polled {rounds} times at {} ns, and are not done", time.0)]
    Companions {
        /// Number of the rounds of polls.
        rounds: u32,
        /// The machine's time.
        time: Nanos,
    },
}

/// A function's part of the state of virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TurnCount {
    /// Value of [`VirtualTime::instant`] at the last turn.
    instant: u64,
    /// Number of turns in that instant.
    turns: u32,
    /// The function is in [`VirtualTime::active`].
    is_listed: bool,
}

/// The machine's part of the state of virtual time.
#[derive(Debug, Default)]
pub(super) struct VirtualTime {
    /// The last turns were those of [`Machine::run_until`].
    pub(super) is_on: bool,
    /// Number of times at which the machine has run. A further call at the same time counts as
    /// another one.
    instant: u64,
    /// Rounds of polls of the companions in this instant.
    rounds: u32,
    /// Functions that have run since the last [`Machine::take_active`], in the order of their first
    /// turns.
    active: Vec<FunctionId>,
}

impl Machine {
    /// Carries out everything that is due until `time`, inclusive, in order of time. Only functions
    /// with work run. The machine's time is `time` afterwards, and nothing is due.
    ///
    /// A time earlier than the machine's counts as the machine's. With [`Nanos::NEVER`], the
    /// machine runs until nothing is due, and its time is that of the last event.
    ///
    /// A function has work if a timer or a fabric event concerns it, after an access or
    /// another call of this machine on its behalf, after [`Machine::wake`], and while it makes
    /// progress. A caller whose client has stored to mapped memory calls [`Machine::wake`] before.
    /// DMA messages wait for [`Machine::pop_outgoing`] as they do between steps.
    ///
    /// Stepped companions with work are polled at each time, after the functions. Their work thus
    /// takes no virtual time. Companions on threads run in the time of their threads: their
    /// messages arrive at the machine's time of that moment, and the result is not the same twice.
    ///
    /// A machine is driven in one way during its incarnation, or changes between two calls: the
    /// first `run_until` after a [`Machine::step`] begins virtual time, and the next `step` ends
    /// it. The functions that the machine polled run once at the beginning, and all functions at
    /// the end.
    ///
    /// # Errors
    /// [`Endless`] if work at one time does not end within the limit. The machine's time is that
    /// time then. A further call continues with the work.
    pub fn run_until(&mut self, time: Nanos, limits: TurnLimits) -> Result<(), Endless> {
        let limits = TurnLimits { budget: limits.budget.max(1), turns: limits.turns.max(1) };
        self.virtual_time.is_on = true;
        self.virtual_time.begin_instant();

        // One `guarded` call is around all turns, so that they share its cost. After the panic of a
        // device, the loop continues with the other turns.
        loop {
            if let Ok(result) = self.guarded(|machine| machine.run_instants(time, limits)) {
                return result;
            }
        }
    }

    /// Returns the time of the next event: the machine's time if there is work now, the time of the
    /// next timer or fabric event, or [`Nanos::NEVER`] if only a client's access causes work.
    ///
    /// A stored word in mapped memory is no work before [`Machine::wake`] reports it.
    pub fn next_event(&mut self) -> Nanos {
        let has_work = !self.schedule.hot.is_empty()
            || self.fabric.has_woken()
            || (!self.shared.companions.is_empty() && self.shared.companions.has_work());
        if has_work { self.shared.now } else { self.next_due().max(self.shared.now) }
    }

    /// Passes to `take` the functions that have run in virtual time since the last call, each once,
    /// in the order of their first turns. Clients that poll their memory should look again.
    pub fn take_active(&mut self, mut take: impl FnMut(FunctionId)) {
        for function in self.virtual_time.active.drain(..) {
            if let Some(slot) = self.slots.get_mut(function.0 as usize) {
                slot.turns.is_listed = false;
            }
            take(function);
        }
    }

    /// Ends virtual time: the next turns look at the memory of all functions, and the machine polls
    /// them for a while.
    #[cold]
    pub(super) fn end_virtual_time(&mut self) {
        self.virtual_time.is_on = false;
        for slot in &mut self.slots {
            self.schedule.wake(slot);
        }
    }

    /// Runs all instants until `time`.
    fn run_instants(&mut self, time: Nanos, limits: TurnLimits) -> Result<(), Endless> {
        loop {
            self.fire_timers();
            self.fabric.advance(self.shared.now);
            self.run_woken(limits)?;

            let due = self.next_due();
            if due > time || due == Nanos::NEVER {
                break;
            }
            if due > self.shared.now {
                self.shared.now = due;
                self.virtual_time.begin_instant();
            }
        }

        if time < Nanos::NEVER {
            self.shared.now = self.shared.now.max(time);
        }
        Ok(())
    }

    /// Runs functions and companions until none has work at this time, except for timers.
    fn run_woken(&mut self, limits: TurnLimits) -> Result<(), Endless> {
        loop {
            let by_machine = self.schedule.hot.len();
            let by_fabric = self.fabric.count_woken();
            if by_machine + by_fabric > 0 {
                self.run_woken_by_machine(by_machine, limits)?;
                self.run_woken_by_fabric(by_fabric, limits)?;
                continue;
            }

            if self.shared.companions.is_empty() || !self.poll_companions(limits.budget) {
                return Ok(());
            }

            let time = self.shared.now;
            self.virtual_time.rounds += 1;
            if self.virtual_time.rounds > limits.turns {
                return Err(Endless::Companions { rounds: limits.turns, time });
            }
        }
    }

    /// Runs the first `count` functions that timers, companions or the owner have woken.
    fn run_woken_by_machine(&mut self, count: usize, limits: TurnLimits) -> Result<(), Endless> {
        for _ in 0..count {
            let Some(function) = self.schedule.hot.pop_front() else { break };
            if let Some(slot) = self.slots.get_mut(function.0 as usize) {
                slot.queued = false;
            }
            let changed_ports = self.fabric.rearm_wake_up(function);
            self.run_function(function, changed_ports, limits)?;
        }
        Ok(())
    }

    /// Runs the first `count` functions that the fabric has woken, except those that the machine
    /// has woken, too: these run with [`Machine::run_woken_by_machine`].
    #[inline]
    fn run_woken_by_fabric(&mut self, count: usize, limits: TurnLimits) -> Result<(), Endless> {
        for _ in 0..count {
            self.prefetch_woken();
            let Some((function, changed_ports)) = self.fabric.take_next_woken() else { break };
            if changed_ports == 0 && self.slots.get(function.0 as usize).is_some_and(|slot| slot.queued) {
                continue;
            }
            self.run_function(function, changed_ports, limits)?;
        }
        Ok(())
    }

    /// Has the processor load the state of the functions that run next: the functions of a large
    /// network are in no cache.
    ///
    /// The state of the second next function is loaded first, and one turn later its device, whose
    /// address is in that state.
    #[inline]
    fn prefetch_woken(&self) {
        let slot = |function: FunctionId| self.slots.get(function.0 as usize);
        if let Some(slot) = self.fabric.prefetch_woken(2).and_then(slot) {
            prefetch_lines::<SLOT_LINES, _>(slot);
        }
        if let Some(slot) = self.fabric.peek_woken(1).and_then(slot) {
            prefetch_lines::<DEVICE_LINES, _>(&*slot.device);
        }
    }

    /// Runs one turn of a function. Before it, reports changes of the links at the ports of the bit
    /// mask `changed_ports`.
    #[inline]
    fn run_function(
        &mut self,
        function: FunctionId,
        changed_ports: u64,
        limits: TurnLimits,
    ) -> Result<(), Endless> {
        if changed_ports != 0 {
            self.report_links(function, changed_ports);
        }

        let instant = self.virtual_time.instant;
        let Some(mut active) = self.active(function) else { return Ok(()) };
        active.virtual_turn(instant, limits)?;

        // `Machine::take_active` reports the function.
        if !std::mem::replace(&mut active.slot.turns.is_listed, true) {
            self.virtual_time.active.push(function);
        }
        Ok(())
    }

    /// Returns the time of the first timer or fabric event, or [`Nanos::NEVER`].
    fn next_due(&mut self) -> Nanos {
        let timer = self.schedule.next_timer(&self.slots).map_or(Nanos::NEVER, |(time, _)| time);
        timer.min(self.fabric.next_event())
    }
}

impl VirtualTime {
    /// Begins a new instant, in which turns and rounds are counted from 0.
    fn begin_instant(&mut self) {
        self.instant += 1;
        self.rounds = 0;
    }
}

impl ActiveFunction<'_> {
    /// Runs the function for one turn, and queues it again if it made progress.
    ///
    /// # Errors
    /// [`Endless`], without a turn, if the function has had all its turns of this instant. It is
    /// queued then, too.
    #[inline(always)]
    fn virtual_turn(&mut self, instant: u64, limits: TurnLimits) -> Result<(), Endless> {
        let function = self.id();
        let count = &mut self.slot.turns;
        if count.instant != instant {
            (count.instant, count.turns) = (instant, 0);
        }
        if count.turns >= limits.turns {
            self.wake();
            return Err(Endless::Function { function, turns: limits.turns, time: self.shared.now });
        }
        count.turns += 1;

        self.shared.touched = 0;
        if self.drain_and_step(limits.budget) {
            self.wake();
        }
        Ok(())
    }
}
