//! The engine's loop. A round steps the machine, collects events, serves clients and accepts
//! connections.

use std::time::{Duration, Instant};

use nicforge_core::{machine::Next, time::Nanos};

use crate::{
    engine::{Engine, nanoseconds},
    error::EngineError,
    stop::Stop,
    wait::Event,
    watched::Watched,
};

/// Rounds with work between two checks of the sockets, where a check is a system call.
const BUSY_ROUNDS: u32 = 16;
/// Rounds without work between two such checks. With a system call in each round, the engine would
/// spin much longer before it yields its processor to the application that it waits for.
const IDLE_ROUNDS: u32 = 8;

/// State that the loop keeps from one round to the next.
#[derive(Default)]
struct LoopState {
    /// Rounds in a row that found no work.
    empty_rounds: u32,
    /// Rounds since the events were polled for.
    rounds_without_poll: u32,
    /// Whether the machine had nothing to do in the last round but to wait for its time.
    asleep: bool,
}

impl Engine {
    /// Runs rounds until `stop` is used.
    pub(crate) fn run_rounds(&mut self, stop: &Stop) -> Result<(), EngineError> {
        let mut events = Vec::with_capacity(64);
        let mut state = LoopState::default();

        while !stop.is_stopped() {
            self.turns.turns += 1;
            let before = self.clock.elapsed();
            let next = self.step(before, state.asleep);
            state.asleep = matches!(next, Next::At(_));
            let now = Instant::now();
            self.turns.longest.record(self.clock.since_start(now).saturating_sub(before), None, 0);

            self.distribute_dma_messages(now);
            if self.queues.count_stalled() > 0 {
                self.retry_stalled(now);
            }

            self.collect_events(next, now, &mut state, &mut events)?;
            self.handle_events(&mut events);
        }
        Ok(())
    }

    /// Takes one step of the machine. After each `safety_timeout` the step checks the mapped memory
    /// of all functions, because a client's wake-up can get lost. If the whole machine was asleep,
    /// functions in whose memory the check finds no work go back to sleep at once.
    fn step(&mut self, now: Duration, was_asleep: bool) -> Next {
        let time = Nanos(nanoseconds(now));
        if !self.needs_scans() || !self.clock.is_scan_due(now, self.config.safety_timeout) {
            return self.machine.step(time, self.config.budget);
        }

        self.clock.note_scan(now);
        self.unmap_released();
        if was_asleep {
            self.machine.set_cool_after(0);
        }

        self.machine.rescan();
        let next = self.machine.step(time, self.config.budget);
        self.machine.set_cool_after(nanoseconds(self.config.cool_after));
        next
    }

    /// Returns whether all mapped memory must be checked at each `safety_timeout`: there are
    /// clients, or devices hold memory of earlier clients.
    fn needs_scans(&self) -> bool {
        self.attachments.has_clients() || self.cleanup.has_held_memory()
    }

    /// Unmaps memory that devices have released since its ranges were unmapped.
    fn unmap_released(&mut self) {
        for attachment in self.attachments.iter_mut() {
            if let Some(client) = &mut attachment.client
                && client.state.memory.has_leftover()
            {
                client.closing.drop_memory(client.state.memory.sweep());
            }
        }
        self.cleanup.sweep();
    }

    /// Collects events. It sleeps, yields the processor, or leaves the sockets for a later round,
    /// depending on what the machine has to do next.
    fn collect_events(
        &mut self,
        next: Next,
        now: Instant,
        state: &mut LoopState,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let mut must_poll = true;
        match next {
            _ if self.queues.has_work() => state.empty_rounds = 0,
            Next::Now => {
                state.empty_rounds = 0;
                state.rounds_without_poll += 1;
                must_poll = self.events.poll_is_cheap() || state.rounds_without_poll >= BUSY_ROUNDS;
            }
            Next::Poll => {
                self.pause(state);
                state.rounds_without_poll += 1;
                must_poll = self.events.poll_is_cheap() || state.rounds_without_poll >= IDLE_ROUNDS;
            }
            Next::At(_) if self.queues.count_stalled() > 0 => self.pause(state),
            Next::At(time) => match self.sleep_time(time, now) {
                Some(time) if time < self.events.shortest_sleep() => self.pause(state),
                time => {
                    self.turns.sleeps += 1;
                    self.events.wait(time, events).map_err(|reason| self.failed(reason))?;
                    must_poll = false;
                    state.empty_rounds = 0;
                }
            },
        }

        if must_poll {
            state.rounds_without_poll = 0;
            self.events.poll(events).map_err(|reason| self.failed(reason))?;
        }
        Ok(())
    }

    /// Spins after an empty step, and from the `spin`th one on yields the processor.
    fn pause(&self, state: &mut LoopState) {
        if state.empty_rounds >= self.config.spin {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        state.empty_rounds = state.empty_rounds.saturating_add(1);
    }

    /// Returns how long to sleep: until the machine has work or an event is due, and with clients
    /// no longer than the safety time-out. `None` means until an event comes.
    fn sleep_time(&self, machine: Nanos, now: Instant) -> Option<Duration> {
        let scan_interval = self.needs_scans().then_some(self.config.safety_timeout);
        self.clock.sleep_time(machine, now, scan_interval, self.events.shortest_sleep())
    }

    fn failed(&self, reason: std::io::Error) -> EngineError {
        EngineError::Wait { event_loop: self.events.name(), reason }
    }

    /// Handles the events of a round, serves the clients that are ready, and accepts connections.
    fn handle_events(&mut self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            match Watched::from_token(event.token) {
                Some(Watched::Waker) => self.on_wake(),
                Some(Watched::Listener(index)) => self.on_connection(index),
                Some(Watched::Client(key)) => self.on_client(key, &event),
                Some(Watched::SecondSocket(key)) => self.on_second_socket(key),
                Some(Watched::Unmask(key)) => self.on_unmask(key),
                // The loop checks the flag.
                Some(Watched::Stop) | None => {}
            }
        }

        if self.queues.has_work() {
            let round_end = Instant::now() + self.config.clients_turn;
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
