//! The command line: the commands of every program made from [`crate::App`], and their options.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use nicforge_engine::{EngineConfig, EventLoopKind, Quotas};
use nicforge_family::Families;
use nicforge_trace::{Kind, Selection};

use crate::{access::SocketGrant, boot, failure::Failure, regs, run, serve, stat, top, trace, vm};

/// The commands of every program made from [`crate::App`].
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a machine's devices on UNIX sockets until Ctrl-C.
    Serve(ServeArguments),
    /// Serve a machine and run a program on each of its nodes.
    Run(RunArguments),
    /// Serve a machine and boot Linux guests with its functions plugged in.
    Boot(Box<BootArguments>),
    /// Run one of our own virtual machines, as `boot --vmm own` does for each guest.
    #[command(hide = true)]
    Vm(vm::VmOptions),
    /// Show what a served machine is doing.
    Stat(StatArguments),
    /// Show register accesses, DMA, interrupts and packets of a served machine, as they happen.
    Trace(TraceArguments),
    /// Show what a served machine is doing as a live page with rates, until Ctrl-C.
    Top(TopArguments),
    /// Show the registers of an attachment of a served machine, without an effect on them.
    Regs(RegsArguments),
    /// Reset a node of a served machine, whatever its programs did.
    Reset(ResetArguments),
}

/// Events that are kept for `--trace` until they are written, and by default for `trace`.
const TRACE_RECORDS: usize = 1 << 16;

/// Where and how to serve.
#[derive(Clone, Debug, Args)]
pub struct ServeOptions {
    /// Directory for the sockets [default: one named after the machine, in
    /// $XDG_RUNTIME_DIR/nicforge or the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How the engine waits for sockets.
    #[arg(long, value_enum, value_name = "KIND", default_value_t = EventLoop::Auto)]
    pub event_loop: EventLoop,
    /// Bytes of files that each client may have mapped for DMA, such as 512M or 8G. Further memory
    /// is accessed by DMA messages, which is slow. A guest's memory is one such file [default: 8G,
    /// and 128M for clients of other users, which `serve --socket-owner` and `--socket-group` let
    /// in].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub mapped_limit: Option<u64>,
    /// Write what crosses the boundary of the devices to this file, until the end: register
    /// accesses, DMA, interrupts, packets. A name that ends with .json is written for Perfetto's
    /// UI, any other one as text.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Keep this many of the last such events, of about 200 bytes each, for `trace --last`.
    #[arg(long, value_name = "EVENTS")]
    pub trace_ring: Option<usize>,
    /// Write the packets at these ports to a pcapng file, which Wireshark reads:
    /// nic0:0=ping.pcapng, or nic0:0,nic1:0=all.pcapng with an interface for each; may be given
    /// several times.
    #[arg(long = "capture", value_name = "NODE:PORT,...=FILE", value_parser = parse_capture)]
    pub captures: Vec<CaptureOption>,
    /// Seconds from which on a system call of the engine for a client is charged to the client.
    /// An emulator may take the engine's processor away for that long.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, hide = true)]
    pub long_call: Option<Duration>,
}

/// Ports whose packets are captured, and the file for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOption {
    /// The ports, each as `NODE:PORT`.
    pub ports: Vec<String>,
    /// The file.
    pub file: PathBuf,
}

/// Parses ports and the file for their packets.
fn parse_capture(text: &str) -> Result<CaptureOption, String> {
    match text.split_once('=') {
        Some((ports, file)) if !ports.is_empty() && !file.is_empty() => {
            Ok(CaptureOption { ports: ports.split(',').map(str::to_owned).collect(), file: file.into() })
        }
        _ => Err("write ports and a file, such as nic0:0=ping.pcapng".into()),
    }
}

/// Parses a number of bytes with an optional unit: K, M, G or T.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        unit => return Err(format!("{unit:?} is no unit: write K, M, G or T")),
    };

    let number: u64 = digits.parse().map_err(|error| format!("{error}: write a number such as 512M"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "larger than any memory".to_owned())
}

impl ServeOptions {
    /// Returns options with sockets in `dir` or in the default directory.
    pub fn new(dir: Option<PathBuf>, event_loop: EventLoop) -> Self {
        Self {
            dir,
            event_loop,
            mapped_limit: None,
            trace: None,
            trace_ring: None,
            captures: Vec::new(),
            long_call: None,
        }
    }

    /// Returns the number of events that the machine keeps, if it keeps any.
    pub(crate) fn trace_records(&self) -> Option<usize> {
        self.trace_ring.or(self.trace.as_ref().map(|_| TRACE_RECORDS))
    }

    /// Returns the engine's configuration.
    pub(crate) fn engine(&self) -> EngineConfig {
        let mut quotas = Quotas::default();
        if let Some(limit) = self.mapped_limit {
            quotas = Quotas { mapped_bytes: limit, foreign_mapped_bytes: limit, ..quotas };
        }
        if let Some(limit) = self.long_call {
            quotas.long_call = limit;
        }

        EngineConfig { event_loop: self.event_loop.into(), quotas, ..EngineConfig::default() }
    }
}

/// The engine's event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EventLoop {
    /// io_uring where the kernel and the container allow it, else epoll.
    Auto,
    /// io_uring or an error.
    IoUring,
    /// epoll.
    Epoll,
}

impl From<EventLoop> for EventLoopKind {
    fn from(kind: EventLoop) -> Self {
        match kind {
            EventLoop::Auto => Self::Auto,
            EventLoop::IoUring => Self::IoUring,
            EventLoop::Epoll => Self::Epoll,
        }
    }
}

// The arguments of the commands. Doc comments on these types would be help texts.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The machine file (TOML).
    machine: PathBuf,
    #[command(flatten)]
    options: ServeOptions,
    /// Give the user attachments' sockets to a user: a name or number, for all, for a node's
    /// (nic0=alice) or for one (nic0.user0=alice); may be given several times. Needs root.
    #[arg(long = "socket-owner", value_name = "[NODE[.ATTACHMENT]=]USER")]
    socket_owners: Vec<SocketGrant>,
    /// Give them to a group in the same way: its members may use them.
    #[arg(long = "socket-group", value_name = "[NODE[.ATTACHMENT]=]GROUP")]
    socket_groups: Vec<SocketGrant>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The machine file (TOML).
    machine: PathBuf,
    #[command(flatten)]
    options: ServeOptions,
    /// Start a program for each user attachment, such as a core, instead of one for each node.
    #[arg(long)]
    per_core: bool,
    /// Run message_rate, ping_pong or random_access in virtual time on the EXTOLL cards, SeaStars
    /// or Message Units of the machine, without processes; the chapter *Machine files and the
    /// program* has their arguments.
    #[arg(long = "virtual", conflicts_with_all = ["dir", "event_loop", "mapped_limit"])]
    in_virtual_time: bool,
    /// With --virtual: the software whose costs are charged, `opteron` (the paper's; on Blue
    /// Gene/Q that of its own cores) or `none` [default: opteron].
    #[arg(long, value_name = "NAME", requires = "in_virtual_time")]
    profile: Option<String>,
    /// With --virtual: the seed of all random numbers [default: 1].
    #[arg(long, value_name = "N", requires = "in_virtual_time")]
    seed: Option<u64>,
    /// With --virtual on SeaStars: let the kernel match messages instead of the card.
    #[arg(long, requires = "in_virtual_time")]
    host_based: bool,
    /// With --virtual: print the result as JSON.
    #[arg(long, requires = "in_virtual_time")]
    json: bool,
    /// The programs and their arguments; see below.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAMS")]
    programs: Vec<String>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("task").required(true).args(["shell", "lspci", "command"])))]
pub(crate) struct BootArguments {
    /// The machine file (TOML).
    machine: PathBuf,
    #[command(flatten)]
    options: ServeOptions,
    /// Boot a guest for this node; may be given several times [default: all nodes].
    #[arg(long = "node", value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    provision: ProvisionArguments,
    #[command(flatten)]
    contents: boot::HostFiles,
    #[command(flatten)]
    guest: boot::GuestOptions,
    /// Run server and guests in an emulated QEMU guest, with our own virtual machine: slow, for
    /// hosts without a KVM for it. Nothing outside reaches the served machine.
    #[arg(long, conflicts_with = "dir")]
    nested: bool,
    /// Take the kernel and the guests' initramfs that `boot --nested` has made.
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "nested")]
    prepared: Option<PathBuf>,
    /// Keep each guest up until the commands of all have ended, so that the others can still reach
    /// it.
    #[arg(long, conflicts_with = "shell")]
    hold: bool,
    /// Give up after this number of seconds [default: 3600; with --shell a day].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// Give up a guest's boot after this number of seconds. With --nested it is tried three times.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "300")]
    boot_timeout: Duration,
    /// Keep the guests' consoles and the messages of their machines here.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    #[command(flatten)]
    task: TaskArguments,
}

/// The files that guests are made of.
#[derive(Debug, Args)]
struct ProvisionArguments {
    /// A QEMU that has vfio-user-pci (10.1 or newer) [default: the system's, or one from Debian's
    /// packages].
    #[arg(long, value_name = "PROGRAM", env = "NICFORGE_QEMU")]
    qemu: Option<PathBuf>,
    /// A kernel (bzImage) [default: one from Debian's packages].
    #[arg(long, value_name = "FILE", env = "NICFORGE_KERNEL")]
    kernel: Option<PathBuf>,
    /// That kernel's modules [default: /lib/modules/VERSION, if it is there].
    #[arg(long, value_name = "DIR", env = "NICFORGE_MODULES", requires = "kernel")]
    modules: Option<PathBuf>,
    /// An initramfs to start from; what nicforge needs is added below /nicforge.
    #[arg(long, value_name = "FILE", env = "NICFORGE_INITRD")]
    initrd: Option<PathBuf>,
}

/// The work in the guests.
#[derive(Debug, Args)]
struct TaskArguments {
    /// A shell in one guest, on this terminal.
    #[arg(long)]
    shell: bool,
    /// Show the functions as the guests' lspci -vvv decodes them.
    #[arg(long)]
    lspci: bool,
    /// The command for each guest, after --.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl From<TaskArguments> for boot::Task {
    fn from(arguments: TaskArguments) -> Self {
        if arguments.shell {
            Self::Shell
        } else if arguments.lspci {
            Self::Lspci
        } else {
            Self::Command(arguments.command)
        }
    }
}

impl From<BootArguments> for boot::Options {
    fn from(arguments: BootArguments) -> Self {
        let ProvisionArguments { qemu, kernel, modules, initrd } = arguments.provision;
        // This program has the command `vm`.
        let vm = std::env::current_exe().ok();
        Self {
            serve: arguments.options,
            nodes: arguments.nodes,
            provision: nicforge_guest::Provision { qemu, kernel, modules, initrd, vm, ..Default::default() },
            contents: arguments.contents,
            guest: arguments.guest,
            nested: arguments.nested,
            prepared: arguments.prepared,
            hold: arguments.hold,
            timeout: arguments.timeout,
            boot_timeout: arguments.boot_timeout,
            logs: arguments.logs,
            task: arguments.task.into(),
        }
    }
}

/// The served machine.
#[derive(Debug, Args)]
struct Served {
    /// The directory it is served in, or its name.
    #[arg(value_name = "DIR|NAME")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatArguments {
    #[command(flatten)]
    served: Served,
    /// Repeat at this interval in seconds (0.05 to 86400), with rates, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    every: Option<Duration>,
    /// Print one JSON object for each sample, with all counters of the devices.
    #[arg(long)]
    json: bool,
    /// Show each attachment, not just the nodes.
    #[arg(long)]
    attachments: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArguments {
    #[command(flatten)]
    served: Served,
    /// Nodes and attachments to show, such as cn0 or cn0.core1 [default: all].
    #[arg(value_name = "NODE[.ATTACHMENT]")]
    sources: Vec<String>,
    /// Kinds of events to show: client, reset, read, write, posted, stall, interrupt, dma, packet,
    /// warning, device [default: all].
    #[arg(long = "kind", value_name = "KIND,...", value_delimiter = ',', value_parser = parse_kind)]
    kinds: Vec<Kind>,
    /// Show accesses of this register alone, by its name; may be given several times.
    #[arg(long = "register", value_name = "NAME")]
    registers: Vec<String>,
    /// Show the last events that a server with --trace-ring has kept, and end.
    #[arg(long, value_name = "EVENTS", conflicts_with = "duration")]
    last: Option<usize>,
    /// Show nothing until an event is an error, then the events from that many before it on.
    #[arg(long, value_name = "EVENTS", num_args = 0..=1, default_missing_value = "50")]
    since_error: Option<usize>,
    /// End after this many seconds (0.05 to 86400) instead of at Ctrl-C.
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Write a file for Perfetto's UI instead of text.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    perfetto: Option<PathBuf>,
    /// Print one JSON object for each event.
    #[arg(long)]
    json: bool,
    /// Events that the server keeps until they are read.
    #[arg(long, value_name = "EVENTS", default_value_t = TRACE_RECORDS)]
    records: usize,
}

impl From<TraceArguments> for trace::Options {
    fn from(arguments: TraceArguments) -> Self {
        let TraceArguments { sources, kinds, registers, .. } = arguments;
        Self {
            selection: Selection { sources, kinds, registers },
            perfetto: arguments.perfetto,
            json: arguments.json,
            last: arguments.last,
            before_error: arguments.since_error,
            duration: arguments.duration,
            records: arguments.records,
        }
    }
}

/// Parses a kind of events.
fn parse_kind(text: &str) -> Result<Kind, String> {
    let names = Kind::ALL.map(Kind::name);
    let position = names.iter().position(|name| *name == text);
    position.map(|position| Kind::ALL[position]).ok_or_else(|| format!("the kinds are {}", names.join(", ")))
}

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    served: Served,
    /// Seconds between two pages (0.05 to 86400).
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "1")]
    interval: Duration,
    /// Print one page after one interval, and end.
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RegsArguments {
    #[command(flatten)]
    served: Served,
    /// The attachment: its node's name, a dot, and its own, as the sockets are called.
    #[arg(value_name = "NODE.ATTACHMENT")]
    attachment: String,
    /// Repeat at this interval in seconds (0.05 to 86400), until Ctrl-C.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    watch: Option<Duration>,
    /// Print one JSON object for each sample.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArguments {
    #[command(flatten)]
    served: Served,
    /// The node's name.
    node: String,
}

/// Parses a number of seconds, 0.05 to 86400.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
    if (0.05..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("0.05 to 86400 seconds are possible".into())
    }
}

/// Runs a command with machine files of `families`. Returns the exit code.
pub(crate) fn carry_out(command: Command, families: &Families) -> Result<u8, Failure> {
    match command {
        Command::Serve(arguments) => serve::main(
            &arguments.machine,
            families,
            &arguments.options,
            &arguments.socket_owners,
            &arguments.socket_groups,
        ),

        Command::Run(arguments) if arguments.in_virtual_time => {
            let options = run::VirtualOptions {
                per_core: arguments.per_core,
                host_based: arguments.host_based,
                profile: arguments.profile,
                seed: arguments.seed,
                trace: arguments.options.trace,
                json: arguments.json,
            };
            run::in_virtual_time(&arguments.machine, &options, &arguments.programs)
        }
        Command::Run(arguments) => run::main(
            &arguments.machine,
            families,
            &arguments.options,
            arguments.per_core,
            &arguments.programs,
        ),

        Command::Boot(arguments) => {
            let machine = arguments.machine.clone();
            boot::main(&machine, families, &(*arguments).into())
        }
        Command::Vm(options) => vm::main(options),
        Command::Stat(arguments) => {
            stat::main(&arguments.served.directory, arguments.every, arguments.json, arguments.attachments)
        }
        Command::Trace(arguments) => {
            let directory = arguments.served.directory.clone();
            trace::main(&directory, &arguments.into())
        }
        Command::Top(arguments) => top::main(&arguments.served.directory, arguments.interval, arguments.once),
        Command::Regs(arguments) => {
            regs::main(&arguments.served.directory, &arguments.attachment, arguments.watch, arguments.json)
        }
        Command::Reset(arguments) => stat::reset(&arguments.served.directory, &arguments.node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_mapped_bytes_is_low_for_clients_of_other_users_unless_it_is_named() {
        let limits = |options: &ServeOptions| {
            let quotas = options.engine().quotas;
            (quotas.mapped_bytes, quotas.foreign_mapped_bytes)
        };
        let usual = ServeOptions::new(None, EventLoop::Auto);
        let named = ServeOptions { mapped_limit: Some(1 << 30), ..usual.clone() };

        assert_eq!(limits(&usual), (8 << 30, 128 << 20));
        assert_eq!(limits(&named), (1 << 30, 1 << 30));
    }

    #[test]
    fn size_is_a_number_with_a_unit_that_fits_64_bits() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("3k"), Ok(3 << 10));
        assert_eq!(parse_size("128M"), Ok(128 << 20));
        assert_eq!(parse_size("8G"), Ok(8 << 30));
        assert_eq!(parse_size("16777215T"), Ok(16_777_215 << 40));

        for wrong in ["", "M", "-1", "1.5G", "8GB", "8 G", "16777216T", "99999999999999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
