//! The boot of a guest: its files, the process of its machine, and the channels to it.

use std::{
    fs::File,
    io::Write,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tempfile::TempDir;

use super::{
    Guest,
    agent::{AgentChannel, StartOutcome},
    command_line::{self, AGENT, CONSOLE, MONITOR, TERMINAL},
    config::{Driver, GuestConfig, PluggedFunction, quoted},
    console, ended_error,
    logs::Logs,
    monitor::{Monitor, MonitorError},
    own,
    prepared::{OwnMachine, Prepared},
    process::Process,
    vmm::Vmm,
};
use crate::{
    error::{ErrorContext, GuestError},
    initramfs::{self, Contents},
    module_plan::ModulePlan,
    progress::Progress,
    provision::Toolkit,
    qemu::Qemu,
};

/// Interval at which a wait checks whether it is to end.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Paths by which the program of a machine opens files that have no name: it inherits them as its
/// standard input and output.
const STANDARD_INPUT: &str = "/proc/self/fd/0";
const STANDARD_OUTPUT: &str = "/proc/self/fd/1";

impl Guest {
    /// Boots a guest and waits until it accepts jobs.
    ///
    /// # Errors
    /// - [`GuestError::Request`]: the configuration is impossible.
    /// - [`GuestError::Unprovided`]: the program of our own virtual machine, or an unpacked kernel
    ///   for it, is missing.
    /// - [`GuestError::Timeout`] and [`GuestError::Ended`], with the ends of the logs: the boot
    ///   failed.
    /// - [`GuestError::Cancelled`].
    pub fn boot(toolkit: &Toolkit, config: &GuestConfig, progress: &Progress) -> Result<Self, GuestError> {
        let site = Site::new(config)?;
        // A file without a name disappears with the machine, however this process ends.
        let initrd = tempfile::tempfile_in(site.folder.path()).context(|| "a guest's initramfs".into())?;
        write_initramfs(toolkit, config, &site.functions, &initrd, progress)?;

        match config.hardware.vmm {
            Vmm::Qemu => {
                let command = qemu_command(toolkit.qemu()?, toolkit.kernel.file(), config, &site)?;
                site.start(config, command, initrd, progress)
            }
            Vmm::Own => {
                let machine = toolkit.own_machine()?;
                let share = config.software.share.as_ref().map(|share| share.open(progress)).transpose()?;
                site.start_own(config, &machine, initrd, share, progress)
            }
        }
    }

    /// Boots a guest from prepared files, and waits until it accepts jobs. Its programs, modules,
    /// variables and `/share` are those of the configuration with which it was prepared. QEMU is
    /// there if the files were prepared for a guest of QEMU.
    ///
    /// # Errors
    /// As [`Self::boot`]; [`GuestError::Io`] when a file is missing.
    pub fn boot_prepared(
        prepared: &Prepared,
        config: &GuestConfig,
        progress: &Progress,
    ) -> Result<Self, GuestError> {
        let site = Site::new(config)?;
        let path = prepared.initrd(config.node());
        let initrd = File::open(&path).context(|| path.display().to_string())?;
        match config.hardware.vmm {
            Vmm::Qemu => {
                let command = qemu_command(&prepared.qemu()?, prepared.kernel(), config, &site)?;
                site.start(config, command, initrd, progress)
            }
            Vmm::Own => {
                let share = prepared.share(config.node())?;
                site.start_own(config, &prepared.own_machine()?, initrd, share, progress)
            }
        }
    }
}

/// The directory, the logs and the functions of a guest that is not started yet.
struct Site {
    functions: Vec<PluggedFunction>,
    /// The directory of its sockets, and of its logs if the caller named no other one.
    folder: TempDir,
    logs: Logs,
}

impl Site {
    /// Checks a configuration, and makes the directories of its guest.
    fn new(config: &GuestConfig) -> Result<Self, GuestError> {
        let functions = config.plugged_functions()?;
        config.check_vmm()?;

        let folder = tempfile::Builder::new()
            .prefix("nicforge-guest-")
            .tempdir()
            .context(|| "a directory for a guest's sockets".into())?;
        let logs_folder = config.logging.folder.as_deref().unwrap_or(folder.path());
        std::fs::create_dir_all(logs_folder).context(|| logs_folder.display().to_string())?;
        let logs = Logs::in_folder(logs_folder, &config.node, config.hardware.vmm);

        Ok(Self { functions, folder, logs })
    }

    /// Starts our own virtual machine. It opens the image of `/share` by its standard output, to
    /// which it prints nothing.
    fn start_own(
        self,
        config: &GuestConfig,
        machine: &OwnMachine,
        initrd: File,
        share: Option<File>,
        progress: &Progress,
    ) -> Result<Guest, GuestError> {
        let files = own::Files {
            machine,
            initrd: STANDARD_INPUT,
            share: share.is_some().then_some(STANDARD_OUTPUT),
            sockets: self.folder.path(),
        };
        let mut command = own::command(config, &self.functions, &files);
        command.stdout(share.map_or_else(Stdio::null, Stdio::from));
        self.start(config, command, initrd, progress)
    }

    /// Starts the program of the machine, and waits until the guest accepts jobs.
    fn start(
        self,
        config: &GuestConfig,
        mut command: Command,
        initrd: File,
        progress: &Progress,
    ) -> Result<Guest, GuestError> {
        let Self { functions, folder, logs } = self;
        let mut log = File::create(&logs.machine).context(|| logs.machine.display().to_string())?;
        writeln!(log, "{command:?}").context(|| logs.machine.display().to_string())?;
        command.stdin(initrd).stderr(log);

        let listeners = Listeners::bind(folder.path(), config)?;
        let process =
            Process::start(command, || ()).context(|| format!("{}: start its machine", config.node))?;

        let until = Instant::now() + config.boot_deadline;
        let starting = Starting { config, logs: &logs, process: &process, until, progress };
        let Channels { agent, monitor, terminal } = starting.connect(listeners, folder.path())?;
        starting.wait_for_agent(&agent)?;

        let guest = Guest {
            node: config.node.clone(),
            functions,
            boot_deadline: config.boot_deadline,
            process: Arc::new(process),
            monitor: monitor.map(Mutex::new),
            agent: Arc::new(agent),
            terminal,
            show_logs: config.logging.folder.is_some(),
            logs,
            _folder: folder,
        };

        for note in guest.agent.notes() {
            tracing::warn!(node = guest.node, "{note}");
        }

        Ok(guest)
    }
}

impl Toolkit {
    /// Writes the initramfs of a guest to a file, for another virtual machine than QEMU. The guest
    /// has its console on its first serial port and the agent on its second one.
    ///
    /// # Errors
    /// As [`Guest::boot`].
    pub fn write_initramfs(
        &self,
        config: &GuestConfig,
        path: &Path,
        progress: &Progress,
    ) -> Result<(), GuestError> {
        let file = File::create(path).context(|| path.display().to_string())?;
        write_initramfs(self, config, &config.plugged_functions()?, &file, progress)
    }
}

/// Writes a guest's initramfs to an open file.
fn write_initramfs(
    toolkit: &Toolkit,
    config: &GuestConfig,
    functions: &[PluggedFunction],
    file: &File,
    progress: &Progress,
) -> Result<(), GuestError> {
    let shim = match config.software.driver {
        Driver::Shim => Some(toolkit.shim(progress)?),
        Driver::None | Driver::Vfio => None,
    };
    let modules =
        ModulePlan::new(toolkit, &config.software, config.share_modules(), shim.as_deref(), progress)?;

    let contents = Contents {
        extras: &config.software.extras,
        modules: &modules,
        config: settings(config, functions),
        environment: environment_script(config),
        shim: shim.as_deref(),
        barriers: config.software.barriers,
    };
    initramfs::write(toolkit, &contents, file, progress)
}

/// Returns the command that runs QEMU, with the output of its trace.
fn qemu_command(
    qemu: &Qemu,
    kernel: &Path,
    config: &GuestConfig,
    site: &Site,
) -> Result<Command, GuestError> {
    let logs = &site.logs;
    // A misbehaving guest can fill a trace without end, so a thread limits the default trace.
    // Events that the caller requested are written by QEMU itself, completely and at once.
    let is_limited = config.logging.folder.is_some() && config.logging.trace.is_empty();
    let trace = if is_limited { Path::new(STANDARD_OUTPUT) } else { &logs.trace };
    let files = command_line::Files {
        qemu,
        kernel,
        initrd: STANDARD_INPUT,
        trace: config.logging.folder.as_ref().map(|_| trace),
        sockets: site.folder.path(),
    };

    let mut command = command_line::command(config, &site.functions, &files);
    command.stdout(Stdio::null());

    if is_limited {
        let (line, trace) = std::io::pipe().context(|| "a pipe for QEMU's trace".into())?;
        command.stdout(trace);
        let file = File::create(&logs.trace).context(|| logs.trace.display().to_string())?;
        // The thread ends with QEMU.
        console::spawn_writer(line, file).context(|| format!("{}: QEMU's trace", config.node))?;
    }

    Ok(command)
}

/// The sockets that the machine connects to.
struct Listeners {
    console: UnixListener,
    agent: UnixListener,
    monitor: Option<UnixListener>,
    terminal: Option<UnixListener>,
}

impl Listeners {
    /// Listens in `folder`. QEMU's monitor and a terminal have sockets if the guest has them.
    fn bind(folder: &Path, config: &GuestConfig) -> Result<Self, GuestError> {
        let listen = |name: &str| {
            let path = folder.join(name);
            UnixListener::bind(&path).context(|| format!("listen on {}", path.display()))
        };
        let listen_if = |wanted: bool, name: &str| wanted.then(|| listen(name)).transpose();

        Ok(Self {
            console: listen(CONSOLE)?,
            agent: listen(AGENT)?,
            monitor: listen_if(config.hardware.vmm == Vmm::Qemu, MONITOR)?,
            terminal: listen_if(config.hardware.terminal, TERMINAL)?,
        })
    }
}

/// The connections to a guest.
struct Channels {
    agent: AgentChannel,
    monitor: Option<Monitor>,
    terminal: Option<UnixStream>,
}

/// A guest between the start of its machine and the agent's first message.
struct Starting<'a> {
    config: &'a GuestConfig,
    logs: &'a Logs,
    process: &'a Process,
    /// The end of the boot deadline.
    until: Instant,
    progress: &'a Progress,
}

impl Starting<'_> {
    /// Accepts the machine's connections, keeps the console's output, and removes the sockets'
    /// names.
    fn connect(&self, listeners: Listeners, folder: &Path) -> Result<Channels, GuestError> {
        let node = &self.config.node;
        let file = File::create(&self.logs.console).context(|| self.logs.console.display().to_string())?;
        // The thread ends with the machine.
        console::spawn_writer(self.accept(&listeners.console)?, file)
            .context(|| format!("{node}: its console"))?;

        let agent =
            AgentChannel::new(self.accept(&listeners.agent)?).context(|| format!("{node}: its agent"))?;
        let monitor = listeners.monitor.map(|listener| self.accept(&listener)).transpose()?;
        let terminal = listeners.terminal.map(|listener| self.accept(&listener)).transpose()?;

        for name in [CONSOLE, AGENT, MONITOR, TERMINAL] {
            // The sockets are connected. A name that can't be removed now is removed with the
            // folder.
            let _ = std::fs::remove_file(folder.join(name));
        }

        let monitor = monitor.map(|stream| Monitor::new(stream, self.until)).transpose();
        let monitor = monitor.map_err(|error| self.monitor_error(error))?;
        Ok(Channels { agent, monitor, terminal })
    }

    /// Waits for a connection of the machine, and accepts it.
    fn accept(&self, listener: &UnixListener) -> Result<UnixStream, GuestError> {
        loop {
            let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::from(CHECK_INTERVAL.as_millis() as u16));
            if ready.is_ok_and(|ready| ready > 0) {
                let (stream, _) =
                    listener.accept().context(|| format!("{}: its machine's line", self.config.node))?;
                return Ok(stream);
            }
            self.check()?;
        }
    }

    /// Waits until the agent has started. Ends with an error when the machine or the channel has
    /// ended.
    fn wait_for_agent(&self, agent: &AgentChannel) -> Result<(), GuestError> {
        loop {
            match agent.wait_started(1, Instant::now() + CHECK_INTERVAL) {
                StartOutcome::Started => return Ok(()),
                StartOutcome::TimedOut => self.check()?,
                StartOutcome::Gone => {
                    return Err(ended_error(&self.config.node, "booting", self.process, self.logs));
                }
            }
        }
    }

    /// Returns an error when the wait is to end: after a cancellation, the machine's end, or the
    /// deadline.
    fn check(&self) -> Result<(), GuestError> {
        self.progress.check()?;
        if self.process.status().is_some() {
            return Err(ended_error(&self.config.node, "booting", self.process, self.logs));
        }
        if Instant::now() >= self.until { Err(self.timeout()) } else { Ok(()) }
    }

    /// Returns the error of a boot that exceeded its deadline.
    fn timeout(&self) -> GuestError {
        GuestError::Timeout {
            node: self.config.node.clone(),
            what: "booting".into(),
            limit: self.config.boot_deadline,
            end: self.logs.ends(),
        }
    }

    /// Returns the error of a boot whose monitor failed.
    fn monitor_error(&self, error: MonitorError) -> GuestError {
        match error {
            MonitorError::DeadlinePassed => self.timeout(),
            MonitorError::Refused(_) | MonitorError::Gone(_) => {
                ended_error(&self.config.node, "booting", self.process, self.logs)
            }
        }
    }
}

/// Returns the shell assignments that init and agent read.
fn settings(config: &GuestConfig, functions: &[PluggedFunction]) -> String {
    let pairs: Vec<_> = functions
        .iter()
        .map(|plugged| format!("{}={}", plugged.function.name, plugged.slot_setting()))
        .collect();
    // The agent looks for a name between blanks, so there is one at each end too.
    let users = functions.iter().filter(|plugged| plugged.function.user);
    let users: Vec<_> = users.map(|plugged| plugged.function.name.as_str()).collect();
    let share = match (&config.software.share, config.hardware.vmm) {
        (None, _) => "",
        (Some(_), Vmm::Qemu) => "9p",
        (Some(_), Vmm::Own) => own::SHARE_ADDRESS,
    };

    format!(
        "NF_DRIVER={}\nNF_FUNCTIONS={}\nNF_USERS={}\nNF_SHARE={share}\n",
        config.software.driver.name(),
        quoted(&pairs.join(" ")),
        quoted(&format!(" {} ", users.join(" "))),
    )
}

/// Returns shell text that exports the variables of the commands in the guest.
fn environment_script(config: &GuestConfig) -> String {
    let variables = [("NICFORGE_NODE".to_owned(), config.node.clone())];
    variables
        .iter()
        .chain(&config.software.environment)
        .map(|(name, value)| format!("export {name}={}\n", quoted(value)))
        .collect()
}
