//! A running guest: QEMU's process, its monitor, and the agent inside.

mod agent;
mod command_line;
pub(crate) mod config;
mod console;
pub(crate) mod logs;
mod monitor;
mod process;

use std::{
    fs::File,
    io::Write,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use serde_json::json;
use tempfile::TempDir;

pub use agent::{Job, LineSink, Output, Stream};
pub use config::{Driver, Function, GuestConfig};

use self::{
    agent::{Agent, Outcome},
    config::{Placed, quoted},
    logs::Logs,
    monitor::{Monitor, Trouble},
    process::Process,
};
use crate::{
    error::{Doing, GuestError, LogEnds},
    initramfs::{self, Contents},
    provision::Toolkit,
    watch::Watch,
};

/// Interval at which a wait checks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Time limit for an answer of QEMU's monitor.
const ANSWER: Duration = Duration::from_secs(30);

/// Paths by which QEMU opens files that have no name.
const STANDARD_INPUT: &str = "/proc/self/fd/0";
const STANDARD_OUTPUT: &str = "/proc/self/fd/1";

/// A booted guest. It is killed on drop.
pub struct Guest {
    node: String,
    functions: Vec<Placed>,
    boot_deadline: Duration,
    // Fields drop in this order: QEMU first, then its peers, then the files.
    process: Arc<Process>,
    monitor: Mutex<Monitor>,
    agent: Arc<Agent>,
    terminal: Option<UnixStream>,
    logs: Logs,
    show_logs: bool,
    _folder: TempDir,
}

/// A job that runs in a guest.
pub struct Running {
    node: String,
    agent: Arc<Agent>,
    process: Arc<Process>,
    logs: Logs,
    number: u64,
    what: String,
}

impl Guest {
    /// Boots a guest and waits until it accepts jobs.
    ///
    /// # Errors
    /// - [`GuestError::Request`]: the configuration is impossible.
    /// - [`GuestError::Timeout`] and [`GuestError::Ended`], with the ends of the logs: the boot
    ///   failed.
    /// - [`GuestError::Cancelled`].
    pub fn boot(toolkit: &Toolkit, config: &GuestConfig, watch: &Watch) -> Result<Self, GuestError> {
        let functions = config.placed()?;
        let shim = match config.driver {
            Driver::Shim => Some(toolkit.shim(watch)?),
            Driver::None | Driver::Vfio => None,
        };
        let folder = tempfile::Builder::new()
            .prefix("nicforge-guest-")
            .tempdir()
            .doing(|| "a directory for a guest's sockets".into())?;
        let logs_folder = config.logs.as_deref().unwrap_or(folder.path());

        std::fs::create_dir_all(logs_folder).doing(|| logs_folder.display().to_string())?;
        let logs = Logs::in_folder(logs_folder, &config.node);
        let in_folder = |name: &str| folder.path().join(name);

        // A file without a name disappears with QEMU, however this process ends.
        let initrd = tempfile::tempfile_in(folder.path()).doing(|| "a guest's initramfs".into())?;
        let contents = Contents {
            extras: &config.extras,
            modules: &config.modules,
            config: settings(config, &functions),
            environment: environment(config),
            shim: shim.as_deref(),
        };

        initramfs::write(toolkit, &contents, &initrd, watch)?;
        let listen = |name: &str| {
            let path = in_folder(name);
            UnixListener::bind(&path).doing(|| format!("listen on {}", path.display()))
        };
        let [console, agent, monitor] = command_line::LINES.map(listen);
        let terminal = config.terminal.then(|| listen(command_line::TERMINAL)).transpose()?;

        // A misbehaving guest can fill a trace without end, so the default trace is limited.
        // Requested events are written completely and at once.
        let limited = config.logs.is_some() && config.trace.is_empty();
        let trace = if limited { Path::new(STANDARD_OUTPUT) } else { &logs.trace };
        let files = command_line::Files {
            initrd: STANDARD_INPUT,
            trace: config.logs.as_ref().map(|_| trace),
            sockets: folder.path(),
        };

        let mut command = command_line::command(toolkit, config, &functions, &files);
        let mut log = File::create(&logs.qemu).doing(|| logs.qemu.display().to_string())?;
        writeln!(log, "{command:?}").doing(|| logs.qemu.display().to_string())?;
        command.stdin(initrd).stdout(Stdio::null()).stderr(log);

        if limited {
            let (line, trace) = std::io::pipe().doing(|| "a pipe for QEMU's trace".into())?;
            command.stdout(trace);
            let file = File::create(&logs.trace).doing(|| logs.trace.display().to_string())?;
            // The thread ends with QEMU.
            console::keep(line, file).doing(|| format!("{}: QEMU's trace", config.node))?;
        }

        let process = Process::start(command, || ()).doing(|| format!("{}: start QEMU", config.node))?;
        let starting = Starting {
            config,
            logs: &logs,
            process: &process,
            until: Instant::now() + config.boot_deadline,
            watch,
        };

        let file = File::create(&logs.console).doing(|| logs.console.display().to_string())?;
        // The thread ends with QEMU.
        console::keep(starting.accept(&console?)?, file).doing(|| format!("{}: its console", config.node))?;

        let agent = Agent::new(starting.accept(&agent?)?).doing(|| format!("{}: its agent", config.node))?;
        let monitor = starting.accept(&monitor?)?;
        let terminal = terminal.map(|listener| starting.accept(&listener)).transpose()?;

        for name in command_line::LINES.into_iter().chain([command_line::TERMINAL]) {
            // The sockets are connected. A name that can't be removed now is removed with the
            // folder.
            let _ = std::fs::remove_file(in_folder(name));
        }

        let monitor = Monitor::new(monitor, starting.until).map_err(|trouble| starting.monitor(trouble))?;
        starting.wait(&agent)?;
        let guest = Self {
            node: config.node.clone(),
            functions,
            boot_deadline: config.boot_deadline,
            process: Arc::new(process),
            monitor: Mutex::new(monitor),
            agent: Arc::new(agent),
            terminal,
            show_logs: config.logs.is_some(),
            logs,
            _folder: folder,
        };

        for note in guest.agent.notes() {
            tracing::warn!(node = guest.node, "{note}");
        }

        Ok(guest)
    }

    /// Returns its name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the problems of its start, such as a module that did not load.
    pub fn problems(&self) -> Vec<String> {
        self.agent.notes()
    }

    /// Returns the process id of QEMU.
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
                return Err(ended(&self.node, &what, &self.process, &self.logs));
            }
            Err(error) => return Err(error).doing(|| format!("{}: start {what}", self.node)),
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
    /// As [`Self::boot`].
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
            Ok(true) => Ok(()),
            Ok(false) => Err(GuestError::Timeout {
                node: self.node.clone(),
                what: "starting anew".into(),
                limit: self.boot_deadline,
                end: self.logs.ends(),
            }),
            Err(()) => Err(ended(&self.node, "starting anew", &self.process, &self.logs)),
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
        let id = self.hotplug(name)?.id();
        self.monitor().forget_events();
        self.execute("device_del", json!({ "id": id }))?;

        let deleted =
            |event: &str, data: &serde_json::Value| event == "DEVICE_DELETED" && data["device"] == id;
        let told = self.monitor().event(deleted, Instant::now() + limit);

        told.map_err(|trouble| self.trouble(&format!("unplugging {name}"), limit, trouble))
    }

    /// Plugs an unplugged function in again.
    ///
    /// # Errors
    /// [`GuestError::Request`], [`GuestError::Monitor`] when QEMU can't reach its socket.
    pub fn plug(&self, name: &str) -> Result<(), GuestError> {
        let placed = self.hotplug(name)?;
        self.execute("device_add", command_line::device(placed)).map(drop)
    }

    /// Returns the function of this name if it can be unplugged.
    fn hotplug(&self, name: &str) -> Result<&Placed, GuestError> {
        match self.functions.iter().find(|placed| placed.function.name == name) {
            Some(placed) if placed.function.hotplug => Ok(placed),
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
    /// [`GuestError::Monitor`] with QEMU's refusal; [`GuestError::Timeout`]; [`GuestError::Ended`].
    pub fn execute(
        &self,
        command: &str,
        arguments: serde_json::Value,
    ) -> Result<serde_json::Value, GuestError> {
        let result = self.monitor().execute(command, arguments, Instant::now() + ANSWER);
        result.map_err(|trouble| self.trouble(command, ANSWER, trouble))
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

    /// Kills QEMU. For the guest this is a loss of power at any point.
    pub fn kill(&self) {
        self.process.signal(Signal::SIGKILL);
    }

    /// Returns the ends of its logs.
    pub fn log_ends(&self) -> LogEnds {
        self.logs.ends()
    }

    fn monitor(&self) -> std::sync::MutexGuard<'_, Monitor> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self, what: &str, limit: Duration, trouble: Trouble) -> GuestError {
        let (node, what) = (self.node.clone(), what.to_owned());
        match trouble {
            Trouble::Refused(answer) => GuestError::Monitor { node, command: what, answer },
            Trouble::Late => GuestError::Timeout { node, what, limit, end: self.logs.ends() },
            Trouble::Gone(error) => {
                tracing::debug!(%error, node, "monitor");
                ended(&node, &what, &self.process, &self.logs)
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.wait(ANSWER);
        if self.show_logs && std::thread::panicking() {
            eprintln!("{}: the ends of its logs{}", self.node, self.logs.ends());
        }
    }
}

impl Running {
    /// Waits for the job's end.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] (the job is killed then), [`GuestError::Ended`],
    /// [`GuestError::Restarted`].
    pub fn wait(&self, limit: Duration) -> Result<Output, GuestError> {
        match self.wait_for(limit)? {
            Some(output) => Ok(output),
            None => {
                self.kill()?;
                let what = format!("{} (which said: {:?})", self.what, self.agent.said(self.number));
                Err(GuestError::Timeout { node: self.node.clone(), what, limit, end: self.logs.ends() })
            }
        }
    }

    /// Waits at most `limit` for the job's end. Returns `None` when it still runs.
    ///
    /// # Errors
    /// [`GuestError::Ended`], [`GuestError::Restarted`].
    pub fn wait_for(&self, limit: Duration) -> Result<Option<Output>, GuestError> {
        match self.agent.wait(self.number, Instant::now() + limit) {
            Outcome::Done(output) => Ok(Some(output)),
            Outcome::Late => Ok(None),
            Outcome::Restarted => {
                Err(GuestError::Restarted { node: self.node.clone(), what: self.what.clone() })
            }
            Outcome::Gone => Err(ended(&self.node, &self.what, &self.process, &self.logs)),
        }
    }

    /// Kills the job's process group. Processes that made a group of their own survive. The job
    /// ends with status 137 soon after.
    ///
    /// # Errors
    /// [`GuestError::Io`] when the guest accepts no requests.
    pub fn kill(&self) -> Result<(), GuestError> {
        self.agent.kill(self.number).doing(|| format!("{}: kill {}", self.node, self.what))
    }

    /// Returns the job's output so far.
    pub fn said(&self) -> Output {
        self.agent.said(self.number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.agent.forget(self.number);
    }
}

fn ended(node: &str, what: &str, process: &Process, logs: &Logs) -> GuestError {
    // The channel may have ended shortly before the process.
    let status = process.wait(Duration::from_secs(5));
    let status = status.map_or_else(|| "QEMU still runs".to_owned(), |status| format!("QEMU: {status}"));
    GuestError::Ended { node: node.to_owned(), what: what.to_owned(), status, end: logs.ends() }
}

/// A guest between the start of QEMU and the agent's first message.
struct Starting<'a> {
    config: &'a GuestConfig,
    logs: &'a Logs,
    process: &'a Process,
    until: Instant,
    watch: &'a Watch,
}

impl Starting<'_> {
    /// Accepts QEMU's connection.
    fn accept(&self, listener: &UnixListener) -> Result<UnixStream, GuestError> {
        loop {
            let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::from(LOOK.as_millis() as u16));
            if ready.is_ok_and(|ready| ready > 0) {
                let (stream, _) = listener.accept().doing(|| format!("{}: QEMU's line", self.config.node))?;
                return Ok(stream);
            }
            self.check()?;
        }
    }

    fn wait(&self, agent: &Agent) -> Result<(), GuestError> {
        loop {
            match agent.wait_started(1, Instant::now() + LOOK) {
                Ok(true) => return Ok(()),
                Ok(false) => self.check()?,
                Err(()) => return Err(ended(&self.config.node, "booting", self.process, self.logs)),
            }
        }
    }

    fn check(&self) -> Result<(), GuestError> {
        self.watch.check()?;
        if self.process.status().is_some() {
            return Err(ended(&self.config.node, "booting", self.process, self.logs));
        }
        if Instant::now() >= self.until { Err(self.late()) } else { Ok(()) }
    }

    fn late(&self) -> GuestError {
        GuestError::Timeout {
            node: self.config.node.clone(),
            what: "booting".into(),
            limit: self.config.boot_deadline,
            end: self.logs.ends(),
        }
    }

    fn monitor(&self, trouble: Trouble) -> GuestError {
        match trouble {
            Trouble::Late => self.late(),
            Trouble::Refused(_) | Trouble::Gone(_) => {
                ended(&self.config.node, "booting", self.process, self.logs)
            }
        }
    }
}

/// Returns the shell assignments that init and agent read.
fn settings(config: &GuestConfig, functions: &[Placed]) -> String {
    let pairs: Vec<_> =
        functions.iter().map(|placed| format!("{}={}", placed.function.name, placed.place())).collect();
    let users = functions.iter().filter(|placed| placed.function.user);
    let users: Vec<_> = users.map(|placed| placed.function.name.as_str()).collect();
    let share = if config.share.is_some() { "yes" } else { "" };
    let mut modules: Vec<&str> = config.modules.iter().map(String::as_str).collect();
    if config.share.is_some() {
        modules.extend(["virtio_pci", "9pnet_virtio", "9p"]);
    }

    format!(
        "NF_DRIVER={}\nNF_FUNCTIONS={}\nNF_USERS={}\nNF_MODULES={}\nNF_SHARE={share}\n",
        config.driver.name(),
        quoted(&pairs.join(" ")),
        quoted(&format!(" {} ", users.join(" "))),
        quoted(&modules.join(" ")),
    )
}

fn environment(config: &GuestConfig) -> String {
    let variables = [("NICFORGE_NODE".to_owned(), config.node.clone())];
    variables
        .iter()
        .chain(&config.environment)
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect()
}
