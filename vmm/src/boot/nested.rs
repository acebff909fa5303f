//! `nicforge boot --nested`: an emulated QEMU guest whose processors virtualise (SVM) holds the
//! server, and our own virtual machines on its KVM.
//!
//! This program, the machine's file, a kernel and the finished initramfs of each guest are put into
//! the outer guest, and the same command runs there. Nothing is provisioned inside.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_family::Families;
use nicforge_guest::{
    Accelerator, Guest, GuestConfig, GuestError, Job, Progress, Stream as GuestStream, Vmm,
};

use super::{
    BOOT_TIMEOUT, CHECK_INTERVAL, COMMAND_TIMEOUT, SHELL_TIMEOUT, cancelled_by_signals,
    configure::{Hardware, Machine, choose_driver, choose_nodes, find_and_show_stock_drivers, guest_config},
    options::{Options, Task, VmmChoice},
    terminal,
    vmm::qemu_only_option,
};
use crate::{
    cli::EventLoop,
    failure::{ErrorContext, Failure, print_note},
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
    // This folder is the outer guest's `/share`: the prepared files, and the inner guests' logs.
    let folder = tempfile::tempdir().context(|| "a directory for a nested guest".into())?;
    std::fs::create_dir(folder.path().join(LOGS)).context(|| folder.path().display().to_string())?;
    toolkit.prepare(&configs, folder.path(), &progress)?;
    let names: Vec<_> = configs.iter().map(GuestConfig::node).collect();

    let program = std::env::current_exe().context(|| "this program's own file".into())?;
    let outer = outer_config(options, machine, &program, folder.path(), names.len());
    let command = inner_command(options, &program, &names);
    let guest = Guest::boot(&toolkit, &outer, &progress)?;
    guest.problems().iter().for_each(|problem| print_note(format_args!("{OUTER}: {problem}")));

    let result = run(options, &guest, &command, &progress);
    drop(guest);
    if let Some(logs) = &options.logs {
        copy_logs(&folder.path().join(LOGS), logs)?;
    }
    result
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
        .boot_deadline(BOOT_TIMEOUT)
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
fn inner_command(options: &Options, program: &Path, nodes: &[&str]) -> Vec<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let guest = &options.guest;
    let mut words =
        [&name, "boot", MACHINE_FILE, "--vmm", "own", "--prepared", PREPARED].map(str::to_owned).to_vec();
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);

    add("--long-call", LONG_CALL.to_string());
    add("--memory", guest.memory.to_string());
    add("--cpus", guest.cpus.to_string());
    nodes.iter().for_each(|node| add("--node", (*node).to_owned()));
    if let Some(limit) = options.serve.mapped_limit {
        add("--mapped-limit", limit.to_string());
    }
    if let Some(limit) = options.timeout {
        add("--timeout", limit.as_secs_f64().to_string());
    }
    if options.logs.is_some() {
        add("--logs", format!("{PREPARED}/{LOGS}"));
    }
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

/// Runs the command in the outer guest, and passes its output on.
fn run(options: &Options, guest: &Guest, command: &[String], progress: &Progress) -> Result<u8, Failure> {
    if options.task == Task::Shell {
        let limit = options.timeout.unwrap_or(SHELL_TIMEOUT) + BOOT_TIMEOUT;
        return terminal::run_program(guest, command, limit, progress);
    }

    // The inner command has a shorter limit, so that its own message is shown.
    let limit = options.timeout.unwrap_or(COMMAND_TIMEOUT) + 2 * BOOT_TIMEOUT;
    Ok(run_command(guest, command, limit, progress)?)
}

/// Runs a command in a guest, and prints its lines without a prefix. Returns its exit code.
fn run_command(
    guest: &Guest,
    command: &[String],
    limit: Duration,
    progress: &Progress,
) -> Result<u8, GuestError> {
    let until = Instant::now() + limit;
    let printer = Printer::new(0);
    let give_up = {
        let progress = progress.clone();
        move || progress.is_cancelled() || Instant::now() >= until
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
        if Instant::now() >= until {
            let (node, what) = (OUTER.to_owned(), "the command (--timeout)".to_owned());
            return Err(GuestError::Timeout { node, what, limit, end: guest.log_ends() });
        }
    }
}

/// Copies the logs of the inner guests beside those of the outer one.
fn copy_logs(from: &Path, to: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(from).context(|| from.display().to_string())? {
        let entry = entry.context(|| from.display().to_string())?;
        // The outer guest can make links here, which could lead to any file of the host.
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        std::fs::copy(entry.path(), to.join(entry.file_name())).context(|| to.display().to_string())?;
    }
    Ok(())
}
