//! A running guest: the process of its machine, QEMU's monitor, and the agent inside.

mod agent;
mod boot;
mod command_line;
pub(crate) mod config;
mod console;
pub(crate) mod logs;
mod monitor;
mod own;
mod prepared;
mod process;
mod running;
mod vmm;

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

pub use agent::{BarrierCall, Job, LineSink, Output, Stream};
pub use config::{Driver, Function, GuestConfig};
pub use prepared::Prepared;
pub use running::Running;
pub use vmm::Vmm;

use self::{
    agent::{AgentChannel, StartOutcome},
    config::PluggedFunction,
    logs::Logs,
    monitor::{Monitor, MonitorError},
    process::Process,
    vmm::only_qemu,
};
use crate::error::{ErrorContext, GuestError, LogEnds};

/// Time limit for an answer of QEMU's monitor, and for the end of a killed machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from the end of a machine's channel within which its process ends too.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A booted guest. It is killed on drop.
pub struct Guest {
    node: String,
    functions: Vec<PluggedFunction>,
    boot_deadline: Duration,
    // Fields are dropped in this order: the machine first, then the connections to it, then the
    // files.
    process: Arc<Process>,
    /// QEMU's monitor. Our own virtual machine has none.
    monitor: Option<Mutex<Monitor>>,
    agent: Arc<AgentChannel>,
    terminal: Option<UnixStream>,
    logs: Logs,
    /// Whether a panic prints the ends of the logs.
    show_logs: bool,
    /// The directory of the guest's sockets, which is removed at the end.
    _folder: TempDir,
}

impl Guest {
    /// Returns its name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the problems of its start, such as a module that did not load.
    pub fn problems(&self) -> Vec<String> {
        self.agent.notes()
    }

    /// Returns the process id of QEMU, or of our own virtual machine.
    pub fn pid(&self) -> u32 {
        self.process.pid().as_raw() as u32
    }

    /// Returns the host's end of the guest's `/dev/ttyS2`, if [`GuestConfig::terminal`] asked for
    /// one.
    pub fn terminal(&self) -> Option<&UnixStream> {
        self.terminal.as_ref()
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] (the job is killed then), [`GuestError::Ended`],
    /// [`GuestError::Restarted`].
    pub fn run(&self, job: impl Into<Job>, limit: Duration) -> Result<Output, GuestError> {
        self.start(job)?.wait(limit)
    }

    /// Starts a job. Jobs can run concurrently.
    ///
    /// # Errors
    /// [`GuestError::Ended`], or [`GuestError::Io`] when the guest accepts no jobs.
    pub fn start(&self, job: impl Into<Job>) -> Result<Running, GuestError> {
        let job = job.into();
        let what = format!("{job:?}");
        let number = match self.agent.start(&job) {
            Ok(number) => number,
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                return Err(ended_error(&self.node, &what, &self.process, &self.logs));
            }
            Err(error) => return Err(error).context(|| format!("{}: start {what}", self.node)),
        };

        Ok(Running {
            node: self.node.clone(),
            agent: self.agent.clone(),
            process: self.process.clone(),
            logs: self.logs.clone(),
            number,
            what,
        })
    }

    /// Resets the guest as its reset button would, and waits until it accepts jobs again. It must
    /// have been configured with [`GuestConfig::reboots`].
    ///
    /// # Errors
    /// As [`Self::boot`]; [`GuestError::Request`] for a guest of another program than QEMU.
    pub fn reset(&self) -> Result<(), GuestError> {
        let starts = self.agent.starts();
        self.execute("system_reset", json!({}))?;
        self.wait_started(starts + 1)
    }

    /// Returns the number of starts: 1, plus one for each reboot and reset.
    pub fn starts(&self) -> u64 {
        self.agent.starts()
    }

    /// Waits until the guest has started `starts` times in all, for example after a reboot by a
    /// job.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] after the boot deadline, [`GuestError::Ended`].
    pub fn wait_started(&self, starts: u64) -> Result<(), GuestError> {
        match self.agent.wait_started(starts, Instant::now() + self.boot_deadline) {
            StartOutcome::Started => Ok(()),
            StartOutcome::TimedOut => Err(GuestError::Timeout {
                node: self.node.clone(),
                what: "starting anew".into(),
                limit: self.boot_deadline,
                end: self.logs.ends(),
            }),
            StartOutcome::Gone => Err(ended_error(&self.node, "starting anew", &self.process, &self.logs)),
        }
    }

    /// Asks the guest to release a function and unplugs it. The function needs
    /// [`Function::hotplug`].
    ///
    /// QEMU up to 11.1 aborts when the function has MSI-X: its `vfio-user-pci` then removes the
    /// region of the pending bits twice (`vfio_user_msix_teardown`). This call then returns
    /// [`GuestError::Ended`], and the server's client disconnects.
    ///
    /// # Errors
    /// [`GuestError::Request`], [`GuestError::Monitor`], or [`GuestError::Timeout`] when the guest
    /// does not release it.
    pub fn unplug(&self, name: &str, limit: Duration) -> Result<(), GuestError> {
        let id = self.unpluggable(name)?.id();
        self.monitor()?.forget_events();
        self.execute("device_del", json!({ "id": id }))?;

        let deleted =
            |event: &str, data: &serde_json::Value| event == "DEVICE_DELETED" && data["device"] == id;
        let unplugged = self.monitor()?.event(deleted, Instant::now() + limit);

        unplugged.map_err(|error| self.error(&format!("unplugging {name}"), limit, error))
    }

    /// Plugs an unplugged function in again.
    ///
    /// # Errors
    /// [`GuestError::Request`], [`GuestError::Monitor`] when QEMU can't reach its socket.
    pub fn plug(&self, name: &str) -> Result<(), GuestError> {
        let plugged = self.unpluggable(name)?;
        self.execute("device_add", command_line::device(plugged)).map(drop)
    }

    /// Returns the function of this name if it can be unplugged.
    fn unpluggable(&self, name: &str) -> Result<&PluggedFunction, GuestError> {
        match self.functions.iter().find(|plugged| plugged.function.name == name) {
            Some(plugged) if plugged.function.hotplug => Ok(plugged),
            Some(_) => {
                let text = format!("{}: {name} was plugged in to stay (Function::hotplug)", self.node);
                Err(GuestError::Request(text))
            }
            None => Err(GuestError::Request(format!("{}: there is no function {name}", self.node))),
        }
    }

    /// Runs a command of QEMU's monitor.
    ///
    /// # Errors
    /// [`GuestError::Monitor`] with QEMU's refusal; [`GuestError::Timeout`]; [`GuestError::Ended`];
    /// [`GuestError::Request`] for a guest of another program than QEMU.
    pub fn execute(
        &self,
        command: &str,
        arguments: serde_json::Value,
    ) -> Result<serde_json::Value, GuestError> {
        let result = self.monitor()?.execute(command, arguments, Instant::now() + ANSWER_TIMEOUT);
        result.map_err(|error| self.error(command, ANSWER_TIMEOUT, error))
    }

    /// Powers the guest off and waits for its end.
    ///
    /// # Errors
    /// [`GuestError::Timeout`]; the guest is killed then.
    pub fn power_off(self, limit: Duration) -> Result<(), GuestError> {
        // A guest that has ended can't take the request.
        let _ = self.agent.quit();
        self.wait_end(limit)
    }

    /// Waits until the guest has ended by itself.
    ///
    /// # Errors
    /// [`GuestError::Timeout`].
    pub fn wait_end(&self, limit: Duration) -> Result<(), GuestError> {
        match self.process.wait(limit) {
            Some(_) => Ok(()),
            None => Err(GuestError::Timeout {
                node: self.node.clone(),
                what: "its end".into(),
                limit,
                end: self.logs.ends(),
            }),
        }
    }

    /// Watches the guest for `limit`.
    ///
    /// # Errors
    /// [`GuestError::Ended`] at once when the guest ends. `what` is the operation in progress.
    pub fn watch(&self, what: &str, limit: Duration) -> Result<(), GuestError> {
        match self.process.wait(limit) {
            Some(_) => Err(ended_error(&self.node, what, &self.process, &self.logs)),
            None => Ok(()),
        }
    }

    /// Returns the calls of `nicforge-barrier` since the last time. Each waits until it is answered
    /// or its time is over.
    pub fn barrier_calls(&self) -> Vec<BarrierCall> {
        self.agent.take_calls()
    }

    /// Ends a call of a barrier. Its program ends with `status`. It prints `text` if that is not 0.
    ///
    /// # Errors
    /// [`GuestError::Ended`], or [`GuestError::Io`] when the guest accepts no requests.
    pub fn answer_barrier(&self, call: u64, status: u8, text: &str) -> Result<(), GuestError> {
        match self.agent.answer(call, status, text) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                Err(ended_error(&self.node, "a barrier", &self.process, &self.logs))
            }
            answered => answered.context(|| format!("{}: answer a barrier", self.node)),
        }
    }

    /// Kills its machine. For the guest this is a loss of power at any point.
    pub fn kill(&self) {
        self.process.signal(Signal::SIGKILL);
    }

    /// Returns the ends of its logs.
    pub fn log_ends(&self) -> LogEnds {
        self.logs.ends()
    }

    /// Returns QEMU's monitor, or an error when the machine is not QEMU's.
    fn monitor(&self) -> Result<MutexGuard<'_, Monitor>, GuestError> {
        let monitor = self.monitor.as_ref().ok_or_else(|| only_qemu(&self.node, "monitor"))?;
        Ok(monitor.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the error of an operation, `what`, whose command of the monitor has no result.
    fn error(&self, what: &str, limit: Duration, error: MonitorError) -> GuestError {
        let (node, what) = (self.node.clone(), what.to_owned());
        match error {
            MonitorError::Refused(answer) => GuestError::Monitor { node, command: what, answer },
            MonitorError::DeadlinePassed => GuestError::Timeout { node, what, limit, end: self.logs.ends() },
            MonitorError::Gone(error) => {
                tracing::debug!(%error, node, "monitor");
                ended_error(&node, &what, &self.process, &self.logs)
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.wait(ANSWER_TIMEOUT);
        // The caller's code, such as a test, may have failed because of what the guest did.
        if self.show_logs && std::thread::panicking() {
            eprintln!("{}: the ends of its logs{}", self.node, self.logs.ends());
        }
    }
}

/// Returns the error of an operation whose guest has ended.
fn ended_error(node: &str, what: &str, process: &Process, logs: &Logs) -> GuestError {
    // The channel may have ended shortly before the process, whose status is still to come.
    let status = process.wait(END_TIMEOUT);
    let status = match status {
        Some(status) => format!("its machine: {status}"),
        None => "its machine still runs".to_owned(),
    };
    GuestError::Ended { node: node.to_owned(), what: what.to_owned(), status, end: logs.ends() }
}
