//! `nicforge boot --nested`: an emulated QEMU guest whose processors virtualise (SVM) holds the
//! server, and our own virtual machines on its KVM.
//!
//! This program, the machine's file, a kernel and the finished initramfs of each guest are put into
//! the outer guest, and the same command runs there. Nothing is provisioned inside.
//!
//! The emulator hangs or crashes in the start of some guests. All limits are therefore kept here,
//! by the host's clock: a guest that hangs may have no clock. A start that fails before any command
//! has begun is tried again, up to [`MAX_STARTS`] times in all.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_family::Families;
use nicforge_guest::{
    Accelerator, Guest, GuestConfig, GuestError, Job, Progress, Stream as GuestStream, Toolkit, Vmm,
};
use tempfile::TempDir;

use super::{
    CHECK_INTERVAL, COMMAND_TIMEOUT, SHELL_TIMEOUT, STARTED, cancelled_by_signals,
    configure::{Hardware, Machine, choose_driver, choose_nodes, find_and_show_stock_drivers, guest_config},
    options::{Options, Task, VmmChoice},
    terminal,
    vmm::qemu_only_option,
};
use crate::{
    cli::EventLoop,
    failure::{EXIT_ENVIRONMENT, ErrorContext, Failure, print_note},
    lines::{Printer, Stream},
    serve::{build_plan, identities, read_plan},
};

/// The name of the outer guest.
const OUTER: &str = "nested";
/// The module of the outer guest's kernel that virtualises. Emulated processors are AMD's.
const KVM_MODULE: &str = "kvm_amd";
/// Processors of the outer guest. With one, the server waits for each exit of a virtual machine.
const PROCESSORS: u32 = 2;
/// MiB of memory of the outer guest for itself. Its file system, with this program, is in memory.
const OUTER_MIB: u32 = 768;
/// MiB of the outer guest that each virtual machine takes beside its own memory.
const MACHINE_MIB: u32 = 64;
/// Where the outer guest has the machine's file, and the prepared files.
const MACHINE_FILE: &str = "/root/machine.toml";
const PREPARED: &str = "/share";
/// The folder of logs among the prepared files.
const LOGS: &str = "logs";
/// Number of starts of the outer guest, if commands begin in none of the others.
const MAX_STARTS: u32 = 3;
/// Time beyond the commands' own limit after which the command in the outer guest is ended here.
/// The message of the command itself comes first, if that still works.
const GRACE: Duration = Duration::from_secs(60);
/// Seconds that a system call of the inner server for a client may take. The emulator may stop the
/// processor in the middle of one, for which the client must not be blamed.
const LONG_CALL: u32 = 400;

/// Runs the command with the machine of a file. Returns the exit code of the command inside.
pub(super) fn main(machine: &Path, families: &Families, options: &Options) -> Result<u8, Failure> {
    if let Some(option) = qemu_only_option(options) {
        return Err(Failure::usage(format!("our own virtual machine has no {option}, so --nested has not")));
    }
    if options.guest.vmm == VmmChoice::Qemu {
        return Err(Failure::usage("--nested runs our own virtual machine, not --vmm qemu"));
    }

    let progress = cancelled_by_signals()?;
    let (model, built) = build_plan(&read_plan(machine, families)?)?;
    let identities = identities(&model);
    // The machine is served in the outer guest. Here only its description is needed.
    drop(model);
    // The inner guests' sockets exist in the outer guest only, so this path is never opened.
    let no_socket = |_: &_, _: &_| Ok("inside".into());
    let view = Machine { built: &built, identities: &identities, socket: &no_socket };
    let nodes = choose_nodes(options, view.built)?;

    let toolkit = options.provision.provide(&progress)?;
    let driver = choose_driver(options, &toolkit, &progress)?;
    print_note(format_args!(
        "an emulated guest of QEMU {} holds the server and our own virtual machine, Linux {}; it is slow",
        toolkit.qemu()?.version(),
        toolkit.kernel.version
    ));
    find_and_show_stock_drivers(options, &view, &nodes, &toolkit, driver, &progress)?;

    let hardware = Hardware { vmm: Vmm::Own, accelerator: Accelerator::Kvm, driver };
    let configs = nodes.iter().map(|node| guest_config(options, &view, node, hardware));
    let configs: Vec<_> = configs.collect::<Result<_, _>>()?;
    let share = Share::new(configs.iter().map(|config| config.node().to_owned()).collect())?;
    toolkit.prepare(&configs, share.path(), &progress)?;

    let program = std::env::current_exe().context(|| "this program's own file".into())?;
    let nested = Nested {
        options,
        toolkit: &toolkit,
        outer: outer_config(options, machine, &program, share.path(), share.guests.len()),
        command: inner_command(options, &program, &share.guests),
        share: &share,
        progress: &progress,
    };
    let result = nested.run();
    if let Some(logs) = &options.logs {
        copy_logs(&share.path().join(LOGS), logs)?;
    }
    result
}

/// The folder of this host that is the outer guest's `/share`: the prepared files, the inner
/// guests' logs, and the reports of their starts.
struct Share {
    folder: TempDir,
    /// The names of the inner guests.
    guests: Vec<String>,
}

impl Share {
    /// Makes the folder for inner guests of these names.
    fn new(guests: Vec<String>) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().context(|| "a directory for a nested guest".into())?;
        let share = Self { folder, guests };
        share.clear()?;
        Ok(share)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Removes the logs and reports of an earlier start.
    fn clear(&self) -> Result<(), Failure> {
        for name in [LOGS, STARTED] {
            let path = self.path().join(name);
            if path.exists() {
                std::fs::remove_dir_all(&path).context(|| path.display().to_string())?;
            }
            std::fs::create_dir(&path).context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Returns the names of the inner guests whose commands have not begun.
    fn missing(&self) -> Vec<&str> {
        let is_missing = |name: &&String| !self.path().join(STARTED).join(name).exists();
        self.guests.iter().filter(is_missing).map(String::as_str).collect()
    }

    /// Returns whether the command of an inner guest has begun.
    fn has_begun(&self) -> bool {
        self.missing().len() < self.guests.len()
    }
}

/// A nested boot.
struct Nested<'a> {
    options: &'a Options,
    toolkit: &'a Toolkit,
    outer: GuestConfig,
    /// The command in the outer guest.
    command: Vec<String>,
    share: &'a Share,
    progress: &'a Progress,
}

impl Nested<'_> {
    /// Boots the outer guest, and runs the command in it. A start that fails is tried again unless
    /// the command of an inner guest has begun. Returns the exit code of the command inside.
    fn run(&self) -> Result<u8, Failure> {
        let mut start = 1;
        loop {
            let begin = Instant::now();
            let result = self.run_once();
            let failed = match &result {
                Ok(code) => *code == EXIT_ENVIRONMENT,
                Err(failure) => failure.code == EXIT_ENVIRONMENT,
            };
            if !failed || self.share.has_begun() || start == MAX_STARTS {
                return result;
            }

            // The command inside has printed the message of its own failure.
            if let Err(failure) = result {
                print_note(&failure);
            }
            start += 1;
            let (elapsed, limit) = (begin.elapsed(), self.options.boot_timeout);
            let what = match elapsed < limit {
                true => format!("failed in its start after {:.0} s", elapsed.as_secs_f64()),
                false => format!("did not start within {} s", limit.as_secs_f64()),
            };
            print_note(format_args!("nested guest {what}; trying again ({start} of {MAX_STARTS})"));
            self.share.clear()?;
        }
    }

    /// Boots the outer guest once, and runs the command in it.
    fn run_once(&self) -> Result<u8, Failure> {
        let guest = Guest::boot(self.toolkit, &self.outer, self.progress)?;
        guest.problems().iter().for_each(|problem| print_note(format_args!("{OUTER}: {problem}")));

        let (task_limit, is_shell) = match self.options.task {
            Task::Shell => (SHELL_TIMEOUT, true),
            Task::Lspci | Task::Command(_) => (COMMAND_TIMEOUT, false),
        };
        let mut limits = Limits {
            share: self.share,
            boot: self.options.boot_timeout,
            task: self.options.timeout.unwrap_or(task_limit) + GRACE,
            begin: Instant::now(),
            is_started: false,
        };

        if is_shell {
            // Its limit is checked here, so that the terminal's own one is longer.
            let limit = limits.boot + limits.task + GRACE;
            let takes_input = |_| -> Result<bool, Failure> {
                limits.check(&guest)?;
                Ok(limits.is_started)
            };
            terminal::run_program(&guest, &self.command, limit, self.progress, takes_input)
        } else {
            Ok(run_command(&guest, &self.command, &mut limits, self.progress)?)
        }
    }
}

/// The limits of the command in the outer guest, by the host's clock.
struct Limits<'a> {
    share: &'a Share,
    /// Time within which the commands of all inner guests must begin.
    boot: Duration,
    /// Time that the commands in them have then.
    task: Duration,
    /// When the present one of both began.
    begin: Instant,
    /// Whether the commands of all inner guests have begun.
    is_started: bool,
}

impl Limits<'_> {
    /// Checks the limit of the start, and then that of the commands.
    ///
    /// # Errors
    /// [`GuestError::Timeout`] with the ends of the logs of all guests, the outer one and the inner
    /// ones.
    fn check(&mut self, guest: &Guest) -> Result<(), GuestError> {
        if !self.is_started && self.share.missing().is_empty() {
            (self.is_started, self.begin) = (true, Instant::now());
        }

        let limit = if self.is_started { self.task } else { self.boot };
        if self.begin.elapsed() < limit {
            return Ok(());
        }

        let what = match self.is_started {
            true => "the command (--timeout)".to_owned(),
            false => format!("the start of {} in it (--boot-timeout)", self.share.missing().join(", ")),
        };
        let mut end = guest.log_ends();
        end.add_folder(&self.share.path().join(LOGS));
        Err(GuestError::Timeout { node: OUTER.to_owned(), what, limit, end })
    }
}

/// Returns the configuration of the outer guest. `prepared` is the folder of prepared files, and
/// `guests` the number of inner guests.
fn outer_config(
    options: &Options,
    machine: &Path,
    program: &Path,
    prepared: &Path,
    guests: usize,
) -> GuestConfig {
    let memory = options.guest.memory.saturating_add(MACHINE_MIB);
    let memory = memory.saturating_mul(guests as u32).saturating_add(OUTER_MIB);
    let config = GuestConfig::new(OUTER)
        .boot_deadline(options.boot_timeout)
        .processors(PROCESSORS)
        .memory(memory)
        .module(KVM_MODULE)
        .program(program)
        .file(machine, MACHINE_FILE)
        .share(prepared)
        .terminal(options.task == Task::Shell);

    match &options.logs {
        Some(logs) => config.logs(logs),
        None => config,
    }
}

/// Returns the command that runs in the outer guest: this program's `boot` with the same options,
/// as far as they concern the inner guests.
fn inner_command(options: &Options, program: &Path, nodes: &[String]) -> Vec<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let guest = &options.guest;
    let mut words =
        [&name, "boot", MACHINE_FILE, "--vmm", "own", "--prepared", PREPARED].map(str::to_owned).to_vec();
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);

    add("--long-call", LONG_CALL.to_string());
    add("--memory", guest.memory.to_string());
    add("--cpus", guest.cpus.to_string());
    nodes.iter().for_each(|node| add("--node", node.clone()));
    if let Some(limit) = options.serve.mapped_limit {
        add("--mapped-limit", limit.to_string());
    }
    if let Some(limit) = options.timeout {
        add("--timeout", limit.as_secs_f64().to_string());
    }
    add("--boot-timeout", options.boot_timeout.as_secs_f64().to_string());
    // The logs are outside, so that they can be shown when the outer guest hangs.
    add("--logs", format!("{PREPARED}/{LOGS}"));
    match options.serve.event_loop {
        EventLoop::Auto => (),
        EventLoop::IoUring => add("--event-loop", "io-uring".to_owned()),
        EventLoop::Epoll => add("--event-loop", "epoll".to_owned()),
    }

    let flags = [(guest.admin, "--admin"), (options.hold, "--hold")];
    words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.to_owned()));
    match &options.task {
        Task::Shell => words.push("--shell".into()),
        Task::Lspci => words.push("--lspci".into()),
        Task::Command(command) => {
            words.push("--".into());
            words.extend(command.iter().cloned());
        }
    }
    words
}

/// Runs a command in a guest, and prints its lines without a prefix. Returns its exit code.
fn run_command(
    guest: &Guest,
    command: &[String],
    limits: &mut Limits<'_>,
    progress: &Progress,
) -> Result<u8, GuestError> {
    let printer = Printer::new(0);
    // A blocked output must not keep Ctrl-C or a limit from ending the guest.
    let is_over = Arc::new(AtomicBool::new(false));
    let give_up = {
        let (progress, is_over) = (progress.clone(), is_over.clone());
        move || progress.is_cancelled() || is_over.load(Ordering::Relaxed)
    };

    let running = guest.start(Job::program(command).on_line(Arc::new(move |stream, line: &str| {
        let stream = match stream {
            GuestStream::Output => Stream::Output,
            GuestStream::Error => Stream::Error,
        };
        printer.unnamed(stream, line, &give_up);
    })))?;

    loop {
        if let Some(output) = running.wait_for(CHECK_INTERVAL)? {
            return Ok(output.status);
        }
        if progress.is_cancelled() {
            return Err(GuestError::Cancelled);
        }
        limits.check(guest).inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
    }
}

/// Copies the logs of the inner guests beside those of the outer one.
fn copy_logs(from: &Path, to: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(from).context(|| from.display().to_string())? {
        let entry = entry.context(|| from.display().to_string())?;
        // The outer guest can put links and pipes into the folder.
        if !entry.file_type().is_ok_and(|file_type| file_type.is_file()) {
            continue;
        }
        std::fs::copy(entry.path(), to.join(entry.file_name())).context(|| to.display().to_string())?;
    }
    Ok(())
}
