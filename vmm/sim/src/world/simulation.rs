//! The order in which a world's machine and threads run.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use nicforge_core::{
    ids::FunctionId,
    machine::{Endless, TurnLimits},
    time::Nanos,
};
use nicforge_driver::runtime::{Cost, Simulation};
use nicforge_machine::in_process::{Clock, LocalMachine};

use super::{
    Picos, Profile,
    agenda::{Agenda, LATEST_END, Process, ThreadId, Wait},
    fiber::{Fiber, suspend},
};

/// Turns of machine and threads between two checks of whether the caller has stopped the run.
const TURNS_BETWEEN_CHECKS: u32 = 4096;
/// Maximum number of waits of threads that panic. A destructor with more waits counts as waiting
/// for a thread that is suspended.
const MAX_UNWINDING_WAITS: u32 = 1 << 16;
/// The longest time of such a wait. The machine can have timers for ever.
const LONGEST_UNWINDING_WAIT: Picos = Picos::nanos(1_000_000_000);

thread_local! {
    /// The world that runs on this thread.
    static CURRENT: RefCell<Option<Rc<WorldState>>> = const { RefCell::new(None) };
}

/// The state that a world shares with the libraries of its programs.
pub(super) struct WorldState {
    machine: Arc<LocalMachine>,
    agenda: RefCell<Agenda>,
    /// The clock of the thread that runs, or the time of the last event.
    now: Cell<Picos>,
    /// Time at which the run ends.
    end: Cell<Picos>,
    /// The thread that runs.
    running: Cell<ThreadId>,
    /// The running thread has stored to memory since the machine last looked.
    has_stored: Cell<bool>,
    /// Turns of machine and threads since the last check of whether the caller has stopped the run.
    turns: Cell<u32>,
    /// Number of waits of threads that panic.
    unwinding_waits: Cell<u32>,
    /// Work of the machine that did not end.
    endless: Cell<Option<Endless>>,
    /// State of the sequence of random numbers: see [`mix`].
    random: Cell<u64>,
}

/// The clock of a machine in the world that runs on the calling thread.
pub(super) struct VirtualClock;

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        CURRENT.with_borrow(|world| world.as_ref().map_or(Nanos::ZERO, |world| world.now.get().round_up()))
    }

    fn wait(&self, function: FunctionId) {
        if let Some(world) = CURRENT.with_borrow(Clone::clone) {
            world.poll(function);
        }
    }
}

/// The way in which a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// All threads have ended.
    AllEnded,
    /// The end of its time has come.
    TimeOver,
    /// The caller has stopped it.
    Stopped,
}

/// The time in which a world runs on this thread. The former world continues afterwards.
pub(super) struct CurrentWorld {
    previous: Option<Rc<WorldState>>,
}

impl Drop for CurrentWorld {
    fn drop(&mut self) {
        CURRENT.replace(self.previous.take());
    }
}

impl WorldState {
    /// Returns the state of a world without threads, at time 0.
    pub(super) fn new(machine: Arc<LocalMachine>, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            machine,
            agenda: RefCell::default(),
            now: Cell::default(),
            end: Cell::default(),
            running: Cell::default(),
            has_stored: Cell::default(),
            turns: Cell::default(),
            unwinding_waits: Cell::default(),
            endless: Cell::default(),
            random: Cell::new(seed),
        })
    }

    /// Makes this the world that runs on the calling thread, until the result is dropped.
    pub(super) fn make_current(self: &Rc<Self>) -> CurrentWorld {
        CurrentWorld { previous: CURRENT.replace(Some(self.clone())) }
    }

    /// Adds a function to the process of the thread that runs, whose stores then reach it.
    pub(super) fn add_function(function: FunctionId) {
        let Some(world) = CURRENT.with_borrow(Clone::clone) else { return };
        let mut agenda = world.agenda.borrow_mut();
        let process = agenda.threads.get(world.running.get() as usize).map(|thread| thread.process);
        if let Some(process) = process.and_then(|process| agenda.processes.get_mut(process))
            && !process.functions.contains(&function)
        {
            process.functions.push(function);
        }
    }

    /// Adds a process, and returns its number.
    pub(super) fn add_process(&self, functions: Vec<FunctionId>, profile: Profile) -> usize {
        let processes = &mut self.agenda.borrow_mut().processes;
        processes.push(Process { functions, profile });
        processes.len() - 1
    }

    /// Adds a thread of a process, which runs from now on.
    pub(super) fn start(&self, process: usize, name: &str, fiber: Fiber) -> ThreadId {
        self.agenda.borrow_mut().add(process, name, fiber, self.now.get())
    }

    /// Returns the clock of the thread that runs, or the time of the last event.
    pub(super) fn now(&self) -> Picos {
        self.now.get()
    }

    /// Returns the names of the threads that have not ended.
    pub(super) fn waiting(&self) -> Vec<String> {
        self.agenda.borrow().waiting()
    }

    /// Runs machine and threads until all threads have ended, until `end`, or until `is_stopped`
    /// returns true. That is called every [`TURNS_BETWEEN_CHECKS`] turns.
    pub(super) fn run_until(&self, end: Picos, is_stopped: &dyn Fn() -> bool) -> Result<RunEnd, Endless> {
        // Threads that wait for ever are scheduled after this end.
        let end = end.min(LATEST_END);
        self.end.set(end);
        loop {
            let Some(thread_time) = self.agenda.borrow().next_time() else { return Ok(RunEnd::AllEnded) };

            let event_time = Picos::from(self.machine.with(|machine| machine.next_event()));
            let next = thread_time.min(event_time);
            if next > end {
                return Ok(RunEnd::TimeOver);
            }

            let is_check_due = self.count_turn();
            if is_check_due {
                self.turns.set(0);
                if is_stopped() {
                    return Ok(RunEnd::Stopped);
                }
            }

            self.now.set(next.max(self.now.get()));
            if event_time <= thread_time {
                self.run_machine();
            } else {
                self.resume_next();
            }
            if let Some(endless) = self.endless.take() {
                return Err(endless);
            }
        }
    }

    /// Counts a turn. Returns whether [`TURNS_BETWEEN_CHECKS`] have passed since the last check.
    fn count_turn(&self) -> bool {
        self.turns.set(self.turns.get().saturating_add(1));
        self.turns.get() >= TURNS_BETWEEN_CHECKS
    }

    /// Runs the thread whose time has come, until it waits or has ended.
    fn resume_next(&self) {
        let Some((id, mut fiber)) = self.agenda.borrow_mut().take_next() else { return };
        self.running.set(id);
        let has_ended = fiber.resume();
        self.publish_stores();

        self.agenda.borrow_mut().end_turn(id, fiber, has_ended, self.now.get());
    }

    /// Runs the machine until now, and lets the threads that poll its functions poll again.
    fn run_machine(&self) {
        let now = self.now.get().round_up();
        let mut agenda = self.agenda.borrow_mut();
        self.machine.with(|machine| {
            if let Err(endless) = machine.run_until(now, TurnLimits::default()) {
                self.endless.set(Some(endless));
            }
            machine.take_active(|function| agenda.note_activity(function, now.into()));
        });
    }

    /// Makes the running thread's stores visible to the machine. A thread calls it before it waits,
    /// lets time pass, or ends.
    fn publish_stores(&self) {
        if !self.has_stored.take() {
            return;
        }

        let agenda = self.agenda.borrow();
        let process = agenda.threads[self.running.get() as usize].process;
        let now = self.now.get().round_up();
        self.machine.with(|machine| {
            // The machine runs until now first, so that the stores take effect at this time.
            if let Err(endless) = machine.run_until(now, TurnLimits::default()) {
                self.endless.set(Some(endless));
            }
            // Any function of the process may read the memory, so all of them are woken.
            for &function in &agenda.processes[process].functions {
                machine.wake(function);
            }
        });

        drop(agenda);
        self.run_machine();
    }

    /// Lets the running thread wait for an event, until `at` at the latest.
    fn wait_for(&self, wait: Wait, at: Picos) {
        if std::thread::panicking() {
            return self.pass_unwinding(at);
        }

        let id = self.running.get();
        self.agenda.borrow_mut().schedule(id, wait, at);
        suspend();
    }

    /// Advances the clock to `at` for a thread that panics, and runs the machine until then. The
    /// other threads stay suspended, because the panic ends the run.
    ///
    /// A destructor that waits for one of them would wait for ever. After [`MAX_UNWINDING_WAITS`]
    /// waits, the process is aborted.
    fn pass_unwinding(&self, at: Picos) {
        let waits = self.unwinding_waits.get() + 1;
        self.unwinding_waits.set(waits);
        if waits >= MAX_UNWINDING_WAITS {
            let agenda = self.agenda.borrow();
            let name = agenda.threads.get(self.running.get() as usize).map_or("", |thread| &thread.name);
            eprintln!("{name} panics, and a destructor of it waits for a thread that is suspended");
            std::process::abort();
        }

        let now = self.now.get();
        self.now.set(at.min(now + LONGEST_UNWINDING_WAIT).min(self.end.get()).max(now));
        self.run_machine();
    }

    /// Lets the running thread wait for a function's work in a loop that polls, until its next poll
    /// can find some.
    fn poll(&self, function: FunctionId) {
        self.publish_stores();
        let (id, now) = (self.running.get(), self.now.get());
        if std::thread::panicking() {
            let period = self.agenda.borrow().profile(id).poll();
            return self.pass_unwinding(now + period);
        }

        self.agenda.borrow_mut().schedule_poll(id, function, now);
        suspend();
    }

    /// Lets `time` pass for the running thread. The thread continues without a switch if no event
    /// and no other thread is due until then.
    fn pass(&self, time: Picos) {
        self.publish_stores();
        let at = self.now.get() + time;
        if std::thread::panicking() {
            return self.pass_unwinding(at);
        }

        let next_event = Picos::from(self.machine.with(|machine| machine.next_event()));
        let next_thread = self.agenda.borrow().next_time().unwrap_or(Picos::NEVER);
        let is_next = next_event > at && next_thread > at && at <= self.end.get();
        if is_next && !self.count_turn() {
            self.now.set(at);
        } else {
            self.wait_for(Wait::Time, at);
        }
    }
}

impl Simulation for WorldState {
    fn now(&self) -> Duration {
        self.now.get().into()
    }

    fn charge(&self, kind: Cost, count: usize) {
        let time = self.agenda.borrow().profile(self.running.get()).cost(kind, count);
        if time > Picos::ZERO {
            self.pass(time);
        }
    }

    fn note_store(&self) {
        self.has_stored.set(true);
    }

    fn pause(&self) {
        let period = self.agenda.borrow().profile(self.running.get()).poll();
        self.pass(period);
    }

    fn sleep(&self, time: Duration) {
        self.pass(time.into());
    }

    fn wait(&self, event: usize, maximum: Duration) {
        self.publish_stores();
        self.wait_for(Wait::Event(event), self.now.get() + maximum.into());
    }

    fn notify(&self, event: usize) {
        self.agenda.borrow_mut().notify(Wait::Event(event), self.now.get());
    }

    fn thread(&self) -> u32 {
        self.running.get()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce()>) -> u32 {
        let process = self.agenda.borrow().threads[self.running.get() as usize].process;
        self.start(process, name, Fiber::new(body))
    }

    fn join(&self, thread: u32) {
        let has_ended =
            |agenda: &Agenda| agenda.threads.get(thread as usize).is_none_or(|thread| thread.has_ended);

        self.publish_stores();
        while !has_ended(&self.agenda.borrow()) && !std::thread::panicking() {
            self.wait_for(Wait::End(thread), Picos::NEVER);
        }
    }

    fn random(&self) -> u64 {
        let state = self.random.get();
        self.random.set(state.wrapping_add(INCREMENT));
        mix(state)
    }
}

/// The difference between two successive states of the sequence of random numbers.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the random number of a state, or of a seed: SplitMix64 (G. L. Steele, D. Lea, C. H.
/// Flood, 2014).
pub(crate) fn mix(state: u64) -> u64 {
    let state = state.wrapping_add(INCREMENT);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
