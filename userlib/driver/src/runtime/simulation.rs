//! Virtual time: the simulation in which the calling thread runs.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use super::Cost;

/// A simulation: it runs the threads of programs one at a time, on a clock of its own.
///
/// The calls concern the simulated thread that makes them. Those that take time return when that
/// time has come.
pub trait Simulation {
    /// Returns the time since the simulation began.
    fn now(&self) -> Duration;

    /// Passes the time of `count` times work of a kind.
    fn charge(&self, kind: Cost, count: usize);

    /// Records that the calling thread has made a store that a device or another thread may see.
    fn note_store(&self);

    /// Passes the time of one pause of a loop that waits for a lock.
    fn pause(&self);

    /// Passes time.
    fn sleep(&self, time: Duration);

    /// Passes time until [`Simulation::notify`] is called with the same event, at most `maximum`.
    fn wait(&self, event: usize, maximum: Duration);

    /// Ends the waits for an event.
    fn notify(&self, event: usize);

    /// Returns the number of the calling thread, unique in the simulation.
    fn thread(&self) -> u32;

    /// Starts a thread in the calling thread's process. Returns its number.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce()>) -> u32;

    /// Advances virtual time until a thread has ended.
    fn join(&self, thread: u32);

    /// Returns the next number of the simulation's random sequence.
    fn random(&self) -> u64;
}

thread_local! {
    /// Whether [`CURRENT`] has a simulation: a check that costs less than a look at it.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
    /// The simulation whose threads this operating-system thread runs.
    static CURRENT: RefCell<Option<Rc<dyn Simulation>>> = const { RefCell::new(None) };
}

/// A guard: while it exists, its operating-system thread runs the threads of a simulation. Its drop
/// restores the simulation that the thread ran before, if there was one.
#[must_use]
pub struct Entered {
    /// The simulation that the thread ran before.
    former: Option<Rc<dyn Simulation>>,
}

/// Prepares the calling operating-system thread to run threads of a simulation.
pub fn enter(simulation: Rc<dyn Simulation>) -> Entered {
    ENTERED.set(true);
    Entered { former: CURRENT.replace(Some(simulation)) }
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(self.former.is_some());
        CURRENT.replace(self.former.take());
    }
}

/// Returns whether the calling thread runs in a simulation.
#[inline(always)]
pub(super) fn is_entered() -> bool {
    ENTERED.get()
}

/// Calls `call` with the simulation in which the calling thread runs. Returns `None`, without a
/// call, if it runs in none.
#[inline(always)]
pub(super) fn with<R>(call: impl FnOnce(&dyn Simulation) -> R) -> Option<R> {
    if ENTERED.get() { in_simulation(call) } else { None }
}

/// Calls `call` with the current simulation.
#[cold]
fn in_simulation<R>(call: impl FnOnce(&dyn Simulation) -> R) -> Option<R> {
    // The borrow of the cell ends before the call, which may switch to another simulated thread
    // that borrows it.
    let simulation = CURRENT.with_borrow(Clone::clone)?;
    Some(call(&*simulation))
}
