//! The engine's loop. A round steps the machine, collects events, serves clients and accepts
//! connections.
//!
//! After its last work the engine polls the memory of its clients for a while, and yields the
//! processor meanwhile: a client that posts in this time needs no system call. Then it sleeps until
//! a client wakes it. On a busy host ([`pace`]) a yield would cost milliseconds, so the engine
//! polls for much shorter, and spins meanwhile. For a guest, whose wake-ups cost an exit, it yields
//! as ever.

use std::time::{Duration, Instant};

use nicforge_core::{machine::Next, time::Nanos};
use nicforge_shm::pace;

use crate::{
    engine::{Engine, nanoseconds},
    error::EngineError,
    stop::Stop,
    wait::Event,
    watched::Watched,
};

/// Rounds with work in the machine from one check of the sockets to the next, where a check is a
/// system call.
const BUSY_ROUNDS_PER_CHECK: u32 = 16;
/// Rounds without work from one such check to the next. With a system call in each round, the
/// engine would spin much longer before it yields its processor to the application that it waits
/// for.
const IDLE_ROUNDS_PER_CHECK: u32 = 8;
/// Rounds without work after which the engine no longer polls for a stalled access, but sleeps
/// [`STALL_SLEEP`] between two attempts.
const STALL_ROUNDS: u32 = 256;
/// Longest sleep while an access is stalled.
const STALL_SLEEP: Duration = Duration::from_millis(1);

/// State that the loop keeps from one round to the next.
#[derive(Default)]
struct LoopState {
    /// Rounds in a row that found no work.
    empty_rounds: u32,
    /// Time of the first of them that paused.
    idle_since: Option<Instant>,
    /// Rounds since the sockets were checked for events.
    rounds_without_check: u32,
    /// Whether the last step returned [`Next::At`]: the machine waits for a time or an access.
    machine_is_asleep: bool,
    /// Whether functions go cold as on a busy host.
    cools_early: bool,
}

impl LoopState {
    /// Returns whether the engine spins, and does not yield. On a busy host it spins until the
    /// functions of this host's clients are cold. Those of guests are hot for longer. A guest may
    /// share the engine's processor, and goes on while the engine yields.
    fn spins_at(&self, now: Instant) -> bool {
        let is_soon = |since: Instant| now.saturating_duration_since(since) < 2 * pace::BUSY_SPIN;
        self.cools_early && self.idle_since.is_some_and(is_soon)
    }

    /// Returns whether the rounds without work were enough for a stalled access.
    fn has_polled_for_stall(&self) -> bool {
        self.empty_rounds >= STALL_ROUNDS || (self.cools_early && self.empty_rounds > 0)
    }
}

impl Engine {
    /// Runs rounds until `stop` is used.
    pub(crate) fn run_rounds(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let mut events = Vec::with_capacity(64);
        let mut state = LoopState::default();

        while !stop.is_stopped() {
            self.round_counters.rounds += 1;
            let before = self.clock.elapsed();
            self.follow_pace(&mut state);
            let next = self.step(before, state.machine_is_asleep);
            state.machine_is_asleep = matches!(next, Next::At(_));
            self.round_counters.worked += u64::from(next == Next::Now);
            let now = Instant::now();
            let step_time = self.clock.since_start(now).saturating_sub(before);
            self.round_counters.longest.record_step(step_time);

            self.distribute_dma_messages(now);
            let goes_on = self.queues.count_deferred() > 0 && self.retry_deferred(now);
            let next = if goes_on { Next::Now } else { next };

            self.collect_events(next, now, &mut state, &mut events)?;
            self.handle_events(&mut events);
        }
        Ok(())
    }

    /// Takes one step of the machine. After each `safety_timeout` the step checks the mapped memory
    /// of all functions, because a client's wake-up can get lost. If the whole machine was asleep,
    /// functions in whose memory the check finds no work go cold at once, so that the engine sleeps
    /// again.
    fn step(&mut self, now: Duration, was_asleep: bool) -> Next {
        let time = Nanos(nanoseconds(now));
        if !self.attachments.has_clients() || !self.clock.is_scan_due(now, self.config.safety_timeout) {
            return self.machine.step(time, self.config.budget);
        }

        self.clock.note_scan(now);
        self.closers.start_missing_thread();
        if was_asleep {
            self.machine.cool_in_next_step();
        }

        self.machine.rescan();
        self.machine.step(time, self.config.budget)
    }

    /// Lets functions of this host's clients go cold as early as the pace of the host suggests.
    fn follow_pace(&mut self, state: &mut LoopState) {
        let is_busy = pace::is_busy();
        if is_busy != state.cools_early {
            state.cools_early = is_busy;
            let limit = if is_busy { nanoseconds(pace::BUSY_SPIN) } else { u64::MAX };
            self.machine.set_near_cool_after(limit);
        }
    }

    /// Collects events. Depending on `next`, when the machine must be stepped again, it sleeps,
    /// yields the processor, or leaves the sockets for a later round.
    fn collect_events(
        &mut self,
        next: Next,
        now: Instant,
        state: &mut LoopState,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let mut must_check = true;
        match next {
            // Clients wait for a turn or connections to be accepted, so the engine does not sleep.
            _ if self.queues.has_work() => state.empty_rounds = 0,
            Next::Now => {
                state.empty_rounds = 0;
                state.rounds_without_check += 1;
                must_check =
                    self.events.poll_is_cheap() || state.rounds_without_check >= BUSY_ROUNDS_PER_CHECK;
            }
            Next::Poll => {
                self.pause(state, now);
                state.rounds_without_check += 1;
                must_check =
                    self.events.poll_is_cheap() || state.rounds_without_check >= IDLE_ROUNDS_PER_CHECK;
            }
            // A stalled access is tried again in each round. Only work of the machine lets it go
            // on, so after a while a short sleep does no harm.
            Next::At(_) if self.queues.count_deferred() > 0 && !state.has_polled_for_stall() => {
                self.pause(state, now);
            }
            Next::At(wake_time) => match self.sleep_time(wake_time, now) {
                Some(duration) if duration < self.events.shortest_sleep() => self.pause(state, now),
                duration => {
                    let duration = match self.queues.count_deferred() {
                        0 => duration,
                        _ => Some(duration.map_or(STALL_SLEEP, |duration| duration.min(STALL_SLEEP))),
                    };
                    self.round_counters.sleeps += 1;
                    self.events.wait(duration, events).map_err(|reason| self.wait_error(reason))?;
                    must_check = false;
                    if self.queues.count_deferred() == 0 {
                        state.empty_rounds = 0;
                    }
                }
            },
        }

        if must_check {
            state.rounds_without_check = 0;
            self.events.poll(events).map_err(|reason| self.wait_error(reason))?;
        }
        Ok(())
    }

    /// Lets a moment pass after a round without work: spins, or yields the processor once `spin`
    /// such rounds have followed each other.
    fn pause(&mut self, state: &mut LoopState, now: Instant) {
        if state.empty_rounds == 0 {
            state.idle_since = Some(now);
        }
        if state.empty_rounds < self.config.spin || state.spins_at(now) {
            std::hint::spin_loop();
        } else {
            self.round_counters.yields += 1;
            if pace::yield_now() {
                self.machine.restart_idle_times();
            }
        }
        state.empty_rounds = state.empty_rounds.saturating_add(1);
    }

    /// Returns how long to sleep: until the machine has work at `machine_time` or a deadline
    /// passes, and with clients no longer than the safety time-out. `None` means until an event
    /// comes.
    fn sleep_time(&self, machine_time: Nanos, now: Instant) -> Option<Duration> {
        let scan_interval = self.attachments.has_clients().then_some(self.config.safety_timeout);
        self.clock.sleep_time(machine_time, now, scan_interval, self.events.shortest_sleep())
    }

    fn wait_error(&self, reason: std::io::Error) -> EngineError {
        EngineError::Wait { event_loop: self.events.name(), reason }
    }

    /// Handles the events of a round, serves the clients that are ready, and accepts connections.
    fn handle_events(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match Watched::from_token(event.token) {
                Some(Watched::Waker) => self.on_wake(),
                Some(Watched::Listener(index)) => self.on_connections(index),
                Some(Watched::Client(key)) => self.on_client(key, &event),
                Some(Watched::SecondSocket(key)) => self.on_second_socket(key),
                Some(Watched::Unmask(key)) => self.on_unmask(key),
                // `run_rounds` checks the flag of `Stop` itself.
                Some(Watched::Stop) | None => {}
            }
        }

        if self.queues.has_work() {
            let round_end = Instant::now() + self.config.service_limit;
            self.serve_queued(round_end);
            self.accept_queued(round_end);
        }

        if self.faults.take_new_fault() {
            self.end_faulted();
        }
        if self.watchdog.take_newly_given_up() {
            self.end_clients_of_blocking_eventfds();
        }
        if let Some(now) = self.clock.take_due() {
            self.on_deadline(now);
        }
    }
}
