//! The machines of benches: described, served or in this process, and how their devices are opened.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge::{
    cli::ServeOptions,
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nicforge_core::{machine::Machine, time::Nanos};
use nicforge_driver::{Backoff, Device, DeviceAddress, Error, GoneCause, OpenOptions, OpenProblem, Relax};
use nicforge_family::Plan;
use nicforge_machine::{
    build::{self, Built},
    description,
    in_process::LocalMachine,
};
use nicforge_nics::families;
use nix::errno::Errno;

use crate::{bench::Run, placement::Placement};

/// The interval between two attempts to open a device.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The simulated time of one step, in nanoseconds.
const TICK_NS: u64 = 1_000;
/// The first time of the simulated clock. It is later than every time of the real clock in the
/// machine.
const START: Nanos = Nanos(1 << 42);

/// Describes the machine of a bench by the sections of a machine file. The machine's name contains
/// `bench` and this process's number.
///
/// # Errors
/// Returns an error when such a machine is impossible.
pub fn describe(bench: &str, sections: &str) -> Result<Plan, Failure> {
    let text = format!("name = \"bench-{bench}-{}\"\n{sections}", std::process::id());
    description::parse(&text, "the bench's machine", &families())
        .map_err(|error| Failure::usage(error.to_string()))
}

/// Builds a described machine in this process.
///
/// # Errors
/// Returns an error when a device or link of the plan is impossible.
pub fn build(plan: &Plan) -> Result<(Machine, Built), Failure> {
    build::build(plan).map_err(|error| Failure::usage(error.to_string()))
}

/// Serves a described machine, with the engine on its processor.
///
/// # Errors
/// Returns an error when the machine cannot be served.
pub fn serve(run: &Run<'_>, plan: &Plan, placement: &Placement) -> Result<Served, Failure> {
    let options = ServeOptions::new(None, run.event_loop);
    placement.within("engine", || Served::start_plan(plan, &options))
}

/// Returns the address of an attachment of a served machine, by its node's name and its index in
/// the node.
///
/// # Errors
/// Returns an error when the machine has no such attachment.
pub fn served_at(server: &Served, node: &str, attachment: usize) -> Result<DeviceAddress, Failure> {
    let found = server.built().node(node).and_then(|found| Some((found, found.attachments.get(attachment)?)));
    let (node, attachment) = found
        .ok_or_else(|| Failure::environment(format!("there is no attachment {attachment} of {node}")))?;
    server.socket(node, attachment).map(DeviceAddress::VfioUser)
}

/// Opens an attachment of a machine in this process, by its node's name and its own name.
///
/// # Errors
/// Returns an error when the machine has no such attachment, or when it is open already.
pub fn open_in_process(machine: &Arc<LocalMachine>, node: &str, attachment: &str) -> Result<Device, Failure> {
    let context = || format!("{node}.{attachment}");
    let backing = machine.open_named(node, attachment).context(context)?;
    Device::from_backing(backing).context(context)
}

/// Opens a device whose previous client may still be detaching. It retries for at most `patience`.
///
/// # Errors
/// Returns the error of the last attempt. Only an error that may pass is retried.
pub fn open(address: &DeviceAddress, options: OpenOptions, patience: Duration) -> Result<Device, Failure> {
    let start = Instant::now();
    loop {
        match Device::open_at(address, options) {
            Err(error) if is_transient(address, &error) && start.elapsed() < patience => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            device => return device.context(|| address.to_string()),
        }
    }
}

/// Returns whether a later attempt to open a device may succeed: its attachment is busy, or its
/// socket is missing.
///
/// A server refuses a client until it has noticed the disconnect of the previous one, by EBUSY, by
/// EAGAIN during a back-off, or by closing the connection when it is refusing many.
fn is_transient(address: &DeviceAddress, error: &Error) -> bool {
    match error {
        Error::Refused { errno, .. } => matches!(Errno::from_raw(*errno), Errno::EBUSY | Errno::EAGAIN),
        Error::DeviceGone { cause: GoneCause::HungUp } => true,
        Error::Open { problem: OpenProblem::Busy, .. } => true,
        Error::Connection { .. } => matches!(address, DeviceAddress::VfioUser(path) if !path.exists()),
        _ => false,
    }
}

/// An attachment of a node, by which a machine of either kind finds it.
#[derive(Clone, Copy, Debug)]
pub struct AttachmentOfNode<'a> {
    /// Its name, which a machine in this process needs.
    pub name: &'a str,
    /// Its index in the node, which a served machine needs.
    pub index: usize,
}

/// A machine of a bench that measures with both kinds.
pub enum Host {
    /// In this process. A waiting thread steps it.
    InProcess(Arc<LocalMachine>),
    /// Served, with an engine thread.
    Served(Box<Served>),
}

impl Host {
    /// Builds a described machine in this process.
    ///
    /// # Errors
    /// Returns the errors of [`build()`].
    pub fn in_process(plan: &Plan) -> Result<Self, Failure> {
        Ok(Self::InProcess(LocalMachine::new(build(plan)?.0)))
    }

    /// Serves a described machine, with the engine on its processor.
    ///
    /// # Errors
    /// Returns the errors of [`serve`].
    pub fn served(run: &Run<'_>, plan: &Plan, placement: &Placement) -> Result<Self, Failure> {
        serve(run, plan, placement).map(|server| Self::Served(Box::new(server)))
    }

    /// Opens an attachment of a node. A served one may still have its previous client for up to
    /// `patience`.
    ///
    /// # Errors
    /// Returns an error when there is no such attachment, and the errors of opening it.
    pub fn open(
        &self,
        node: &str,
        attachment: AttachmentOfNode<'_>,
        patience: Duration,
    ) -> Result<Device, Failure> {
        match self {
            Self::InProcess(machine) => open_in_process(machine, node, attachment.name),
            Self::Served(server) => {
                open(&served_at(server, node, attachment.index)?, OpenOptions::default(), patience)
            }
        }
    }

    /// Ends the engine, if there is one. All devices must have been dropped.
    ///
    /// # Errors
    /// Returns an error when the engine failed.
    pub fn stop(self) -> Result<(), Failure> {
        match self {
            Self::InProcess(_) => Ok(()),
            Self::Served(server) => server.stop().map(drop),
        }
    }
}

/// Returns a waiting loop that never sleeps, like the engine's.
pub fn never_sleeping_wait() -> Relax {
    Relax::with_backoff(Backoff::default().polling())
}

/// A machine in this process with a simulated clock, for counts that must not depend on the
/// scheduling of threads. The thread that uses its devices also makes its steps.
pub struct SteppedMachine {
    machine: Arc<LocalMachine>,
    now: Nanos,
}

impl SteppedMachine {
    /// Wraps a machine. Its first step follows the start of the simulated clock.
    pub fn new(machine: Machine) -> Self {
        Self { machine: LocalMachine::new(machine), now: START }
    }

    /// Opens a device, as [`open_in_process`] does.
    ///
    /// # Errors
    /// Returns the errors of [`open_in_process`].
    pub fn open(&self, node: &str, attachment: &str) -> Result<Device, Failure> {
        open_in_process(&self.machine, node, attachment)
    }

    /// Makes `count` steps, each a tick of the simulated clock after the one before. `step` is
    /// called with the machine and the time, and makes one of them.
    #[inline]
    pub fn steps<T>(&mut self, count: u32, mut step: impl FnMut(&mut Machine, Nanos) -> T) {
        let now = &mut self.now;
        self.machine.with(|machine| {
            for _ in 0..count {
                *now = now.after(TICK_NS);
                step(machine, *now);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_busy_attachment_and_a_missing_socket_are_retried() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let (existing, missing) =
            (DeviceAddress::VfioUser(file), DeviceAddress::VfioUser(folder.path().join("missing")));
        let refused = |errno| Error::system("opening", errno);
        let no_server = Error::Connection { reason: "nothing listens".into() };
        let is_busy = Error::Open { device: "vfio:0000:00:03.0".into(), problem: OpenProblem::Busy };
        let is_closed = Error::DeviceGone { cause: GoneCause::HungUp };

        for error in [refused(Errno::EBUSY), refused(Errno::EAGAIN), is_busy, is_closed] {
            assert!(is_transient(&existing, &error), "{error}");
        }
        assert!(is_transient(&missing, &no_server));

        for error in [refused(Errno::EACCES), refused(Errno::ENOMEM), no_server] {
            assert!(!is_transient(&existing, &error), "{error}");
        }
    }

    #[test]
    fn an_error_that_stays_is_returned_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();

        let start = Instant::now();
        let opened = open(&DeviceAddress::VfioUser(file), OpenOptions::default(), Duration::from_secs(3600));

        assert!(opened.is_err() && start.elapsed() < Duration::from_secs(60));
    }
}
