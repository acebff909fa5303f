//! A machine and its software on one virtual clock.
//!
//! A [`World`] has a machine, and *processes* whose *threads* run programs. The programs use the
//! same libraries as on a host, in the same way. A thread is a coroutine with a clock in
//! picoseconds. It runs when its clock is the earliest of all threads and of the machine's events.
//! Its clock moves where the library says so ([`nicforge_driver::runtime`]):
//!
//! - [`Cost`](nicforge_driver::runtime::Cost)s pass the time that the process's [`Profile`] has for
//!   them.
//! - A loop that waits for a device polls with the profile's period. The thread sleeps until the
//!   first poll after the device's next event, which gives the same result.
//! - Sleeps, waits for other threads and deadlines pass virtual time.
//!
//! The machine's time is in nanoseconds: an access takes effect at the next full nanosecond.
//!
//! Everything runs on one thread of the operating system, in an order that depends on the programs,
//! the profile and the seed only.

mod agenda;
mod fiber;
mod profile;
mod simulation;
mod time;

use std::{rc::Rc, sync::Arc, time::Duration};

use nicforge::failure::{EXIT_HELD, Failure};
use nicforge_core::{
    ids::FunctionId,
    machine::{Endless, Machine},
};
use nicforge_driver::{Device, Error as DriverError, OpenOptions, runtime};
use nicforge_machine::in_process::{LocalMachine, OpenError};
use thiserror::Error;

pub(crate) use self::simulation::mix;
use self::{
    fiber::Fiber,
    simulation::{RunEnd, VirtualClock, WorldState},
};
pub use self::{profile::Profile, time::Picos};

/// Maximum number of threads that an error names.
const MAX_NAMES: usize = 5;

/// The reason why a simulation ended before its programs.
#[derive(Debug, Error)]
pub enum WorldError {
    /// The time limit has passed.
    #[error("{}", describe_limit(*limit, waiting))]
    TimeLimit {
        /// The limit.
        limit: Duration,
        /// Names of the threads that have not ended.
        waiting: Vec<String>,
    },
    /// The caller has stopped the run.
    #[error("the run was stopped")]
    Stopped,
    /// A device works for ever at one time.
    #[error("{name}: {endless}")]
    Endless {
        /// Name of the function, or `the machine` if all companions are concerned.
        name: String,
        /// The work.
        endless: Endless,
    },
}

impl From<WorldError> for Failure {
    fn from(error: WorldError) -> Self {
        match error {
            WorldError::Stopped => Self::interrupted(),
            WorldError::TimeLimit { .. } | WorldError::Endless { .. } => {
                Self { message: error.to_string(), code: EXIT_HELD }
            }
        }
    }
}

/// Returns the message for threads that did not end.
fn describe_limit(limit: Duration, waiting: &[String]) -> String {
    let names = first_names(waiting);
    match limit {
        Duration::MAX => format!("{names} wait for ever"),
        _ => format!("{names} did not end within {limit:?} of virtual time"),
    }
}

/// Returns the first names, and the number of the others.
fn first_names(names: &[String]) -> String {
    match names.split_at_checked(MAX_NAMES) {
        None | Some((_, [])) => names.join(", "),
        Some((first, others)) => format!("{} and {} other threads", first.join(", "), others.len()),
    }
}

/// The reason why a program could not open a device.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The machine refused.
    #[error(transparent)]
    Machine(#[from] OpenError),
    /// The driver library failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Number of a process of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(usize);

/// A machine and its software in virtual time.
///
/// A world in which threads have not ended keeps their stacks and devices until the process ends:
/// a suspended thread may hold locks that the destructors of others would wait for.
pub struct World {
    shared: Rc<WorldState>,
    machine: Arc<LocalMachine>,
}

impl World {
    /// Creates a world with a machine. `seed` determines the random numbers of the libraries.
    pub fn new(machine: Machine, seed: u64) -> Self {
        let machine = LocalMachine::with_clock(machine, Box::new(VirtualClock));
        Self { shared: WorldState::new(machine.clone(), seed), machine }
    }

    /// Adds a process that uses these functions, on processors with this profile.
    pub fn add_process(&mut self, functions: Vec<FunctionId>, profile: Profile) -> Process {
        Process(self.shared.add_process(functions, profile))
    }

    /// Starts a thread of a process, at the current time. `name` is for error messages.
    pub fn start(&mut self, process: Process, name: &str, body: impl FnOnce() + 'static) {
        self.shared.start(process.0, name, Fiber::new(Box::new(body)));
    }

    /// Returns a handle by which programs open devices.
    pub fn devices(&self) -> Devices {
        Devices { machine: self.machine.clone() }
    }

    /// Returns the current time.
    pub fn now(&self) -> Picos {
        self.shared.now()
    }

    /// Calls `f` with the machine, to read counters or to set faults.
    pub fn with_machine<R>(&self, f: impl FnOnce(&mut Machine) -> R) -> R {
        self.machine.with(f)
    }

    /// Runs until all threads have ended.
    ///
    /// # Errors
    /// [`WorldError::TimeLimit`] if that takes longer than `limit` of virtual time, and
    /// [`WorldError::Endless`].
    ///
    /// # Panics
    /// When a thread panics. The threads that have not ended stay suspended. Destructors that run
    /// meanwhile pass time, and the machine runs, but no other thread does.
    pub fn run(&mut self, limit: Duration) -> Result<(), WorldError> {
        self.run_unless(limit, &|| false)
    }

    /// Runs as [`World::run`] does. It asks `is_stopped` every few thousand turns of the threads
    /// and the machine, and ends when that returns true.
    ///
    /// # Errors
    /// Those of [`World::run`], and [`WorldError::Stopped`].
    pub fn run_unless(&mut self, limit: Duration, is_stopped: &dyn Fn() -> bool) -> Result<(), WorldError> {
        let end = self.now() + limit.into();
        let _entered = runtime::enter(self.shared.clone());
        let _current = self.shared.make_current();
        match self.shared.run_until(end, is_stopped) {
            Ok(RunEnd::AllEnded) => Ok(()),
            Ok(RunEnd::TimeOver) => Err(WorldError::TimeLimit { limit, waiting: self.shared.waiting() }),
            Ok(RunEnd::Stopped) => Err(WorldError::Stopped),
            Err(endless) => Err(self.name_endless(endless)),
        }
    }

    /// Returns the error for endless work, with the name of the function that does it.
    fn name_endless(&self, endless: Endless) -> WorldError {
        let name = match endless {
            Endless::Function { function, .. } => {
                self.machine.with(|machine| machine.name(function).map(str::to_owned))
            }
            Endless::Companions { .. } => None,
        };
        WorldError::Endless { name: name.unwrap_or_else(|| "the machine".to_owned()), endless }
    }
}

/// The devices of a world's machine.
#[derive(Clone)]
pub struct Devices {
    machine: Arc<LocalMachine>,
}

impl Devices {
    /// Opens an attachment of a function, both by name. Waits for interrupts do not poll first.
    ///
    /// A thread of the world calls it. The function becomes one of its process, whose stores reach
    /// it from then on.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn open(&self, function: &str, attachment: &str) -> Result<Device, DeviceError> {
        let find_function = |machine: &mut Machine| {
            (0..machine.functions()).map(FunctionId).find(|&id| machine.name(id) == Some(function))
        };
        if let Some(id) = self.machine.with(find_function) {
            WorldState::add_function(id);
        }

        let backing = self.machine.open_named(function, attachment)?;
        let options = OpenOptions { spin: Duration::ZERO, heartbeat: None, ..OpenOptions::default() };
        Ok(Device::open(backing, options)?)
    }
}
