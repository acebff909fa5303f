//! `nicforge boot`: serves a machine, boots a Linux guest for each node with the node's functions
//! plugged in, and runs a command in each guest.

mod barrier;
mod options;
mod terminal;
mod together;

use std::{
    path::Path,
    sync::{Arc, mpsc::channel},
    time::{Duration, Instant},
};

use nicforge_core::spec::Identity;
use nicforge_family::Families;
use nicforge_guest::{
    Accelerator, Driver, Function, Guest, GuestConfig, GuestError, Job, PciIdentity, Progress,
    Stream as GuestStream, Toolkit,
};
use nicforge_machine::build::Node;

use crate::{
    failure::{EXIT_INTERRUPTED, EXIT_RESULT, Failure, print_note, program},
    lines::{Printer, Stream},
    serve::Served,
    signals::Signals,
};

pub use self::options::{
    AcceleratorChoice, DriverChoice, GuestOptions, HostFiles, ModuleWord, Options, Task,
};
use self::together::{GuestGroup, Member};

/// Returns the help text below the options.
pub fn help() -> String {
    format!(
        "\
The command finds in its environment:
  NICFORGE_SOCKET   how programs open the node's user attachments, with ':'
                    between: shim:/dev/nicforge0 or vfio:0000:00:03.0
  NICFORGE_DEVICES  each attachment's PCI address: nic0.user0=0000:00:03.0,...
  NICFORGE_NODE, NICFORGE_ROLE, NICFORGE_RANK, NICFORGE_SIZE, NICFORGE_MACHINE,
  and the variables that the node's devices set: as with `{program} run`
In it, `nicforge-barrier NAME [SECONDS]` waits until the commands of all guests
have come to NAME; it ends with 0, with 1 when the command of one has ended
without coming, and with 124 after 300 seconds or as many as you name.

QEMU and a kernel are downloaded once from a Debian mirror into NICFORGE_CACHE
(by default ~/.cache/nicforge); no root is needed and nothing is installed.
NICFORGE_QEMU, NICFORGE_KERNEL, NICFORGE_MODULES and NICFORGE_INITRD stand for
the options of those names. The exit code is that of the first command that
failed, and the other guests are ended then.

Examples: {program} boot MACHINE --node NODE --shell
          {program} boot MACHINE --lspci
          {program} boot MACHINE --program ./test -- test --fast",
        program = program()
    )
}

/// How long a command may take, unless the user sets a limit.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a shell may take, unless the user sets a limit.
const SHELL_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// How long a guest's boot may take.
const BOOT_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the engine may take to notice that clients have detached.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two checks in a wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the command with the machine of a file.
pub fn main(machine: &Path, families: &Families, options: &Options) -> Result<u8, Failure> {
    with(options, || Served::start(machine, families, &options.serve))
}

/// Boots the guests of a machine that `serve` serves.
///
/// `serve` is called once the signals that end the command are blocked, because the threads that it
/// starts inherit that.
///
/// # Errors
/// Returns the errors of `serve`, and a [`Failure`] when a guest cannot be booted.
pub fn with(options: &Options, serve: impl FnOnce() -> Result<Served, Failure>) -> Result<u8, Failure> {
    let signals =
        Arc::new(Signals::block().map_err(|error| Failure::environment(format!("signals: {error}")))?);
    let progress = Progress::on_stderr().cancelled_by({
        let signals = signals.clone();
        move || signals.take().is_some()
    });
    // The machine comes first, so that a mistake in its file is reported before anything is
    // downloaded.
    let served = serve()?;

    let result = boot(options, &served, &progress);
    wait_for_detach(&served);
    let panics = report_panics(&served);
    let stopped = served.stop();
    let code = result?;
    stopped?;

    // A command that does not notice the end of its device hides it otherwise.
    Ok(if code == 0 && panics > 0 { EXIT_RESULT } else { code })
}

/// Prints which devices have panicked. Returns their number.
fn report_panics(served: &Served) -> usize {
    let Ok(snapshot) = served.snapshot() else { return 0 };
    let panics: Vec<_> = snapshot.nodes.iter().flat_map(|node| &node.panics).collect();
    for panic in &panics {
        print_note(panic);
    }

    panics.len()
}

/// Boots the guests of a served machine, and runs the task in them. Returns its exit code.
fn boot(options: &Options, served: &Served, progress: &Progress) -> Result<u8, Failure> {
    let nodes = choose_nodes(options, served)?;
    let toolkit = options.provision.provide(progress)?;

    let (accelerator, reason) = match options.guest.accel {
        AcceleratorChoice::Kvm => (Accelerator::Kvm, "as asked for".to_owned()),
        AcceleratorChoice::Tcg => (Accelerator::Tcg, "as asked for".to_owned()),
        AcceleratorChoice::Auto => {
            let choice = toolkit.accelerator(progress)?;
            (choice.accelerator, choice.reason)
        }
    };

    let guest_driver = choose_driver(options, &toolkit, progress)?;

    let how = match accelerator {
        Accelerator::Kvm => "by the host's processors (KVM)",
        Accelerator::Tcg => "emulated (TCG)",
    };

    print_note(format_args!(
        "QEMU {}, Linux {}; {how}: {reason}",
        toolkit.qemu.version(),
        toolkit.kernel.version
    ));

    find_and_show_stock_drivers(options, served, &nodes, &toolkit, guest_driver, progress)?;

    let mut guests = Vec::new();
    for node in nodes {
        guests.push(guest_config(options, served, node, accelerator, guest_driver)?);
    }

    match &options.task {
        Task::Shell => run_shell(options, &toolkit, guests, progress),
        Task::Lspci => run_all(options, &toolkit, guests, &Job::shell(LSPCI), progress),
        Task::Command(words) => run_all(options, &toolkit, guests, &Job::program(words), progress),
    }
}

/// Waits for up to [`DETACH_TIMEOUT`] until the engine has noticed that the guests have ended. It
/// would otherwise report clients that it had to disconnect.
fn wait_for_detach(served: &Served) {
    let until = Instant::now() + DETACH_TIMEOUT;
    let has_client = || {
        served.snapshot().is_ok_and(|snapshot| {
            let attachments = snapshot.nodes.iter().flat_map(|node| &node.attachments);
            attachments.into_iter().any(|attachment| attachment.pid.is_some())
        })
    };

    while Instant::now() < until && has_client() {
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// The script for `--lspci`. It prints each function below its name.
const LSPCI: &str = "\
IFS=,
for device in $NICFORGE_DEVICES; do
    echo \"== ${device%%=*}\"
    lspci -nn -vvv -s \"${device#*=}\" || exit
done";

/// Returns the nodes that get a guest.
fn choose_nodes<'a>(options: &Options, served: &'a Served) -> Result<Vec<&'a Node>, Failure> {
    let all = &served.built().nodes;
    let names = || all.iter().take(20).map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut nodes = Vec::new();

    for name in &options.nodes {
        match served.built().node(name) {
            Some(node) if node.attachments.is_empty() => {
                return Err(Failure::usage(format!("{name} has no attachments to plug into a guest")));
            }
            Some(node) => nodes.push(node),
            None => return Err(Failure::usage(format!("there is no node {name}; there are {}", names()))),
        }
    }

    if nodes.is_empty() {
        // A switch has no attachments, and nothing of it can be plugged into a guest.
        nodes.extend(all.iter().filter(|node| !node.attachments.is_empty()));
        if nodes.is_empty() {
            return Err(Failure::usage("no node of the machine has attachments to plug into a guest"));
        }
        if options.task == Task::Shell && nodes.len() > 1 {
            nodes.truncate(1);
            print_note(format_args!("a shell in {} (others: --node, of {})", nodes[0].name, names()));
        }
    }

    if options.task == Task::Shell && nodes.len() > 1 {
        return Err(Failure::usage("--shell is for one node"));
    }

    Ok(nodes)
}

/// Returns the driver that the guests load for the functions of clients. A kernel module for it is
/// built here.
fn choose_driver(options: &Options, toolkit: &Toolkit, progress: &Progress) -> Result<Driver, Failure> {
    let driver = match options.guest.driver {
        DriverChoice::Shim => Driver::Shim,
        DriverChoice::Vfio => Driver::Vfio,
        DriverChoice::None | DriverChoice::Stock => Driver::None,
        DriverChoice::Auto if toolkit.has_shim() => Driver::Shim,
        DriverChoice::Auto => {
            let version = &toolkit.kernel.version;
            print_note(format_args!(
                "no kernel module of nicforge can be built here for Linux {version}: \
                 the functions have Linux's own drivers, or none"
            ));
            Driver::None
        }
    };

    if driver == Driver::Shim {
        // The module is built once here, and not in each guest's thread.
        toolkit.shim(progress)?;
    }

    Ok(driver)
}

/// Finds Linux's own drivers of the nodes' functions, and shows them.
///
/// The first look-up fills the cache with the index of the modules' aliases. The guests' threads
/// look the same drivers up when they boot, and must find the index there instead of making it.
fn find_and_show_stock_drivers(
    options: &Options,
    served: &Served,
    nodes: &[&Node],
    toolkit: &Toolkit,
    guest_driver: Driver,
    progress: &Progress,
) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for node in nodes {
        for identity in stock_identities(options, served, node) {
            // Nodes of one kind have the same driver, which is shown for the first.
            if seen.contains(&identity) {
                continue;
            }
            seen.push(identity);

            let modules = toolkit.stock_drivers(guest_driver, identity, progress)?;
            if !modules.is_empty() {
                let (name, modules) = (&node.name, modules.join(", "));
                print_note(format_args!("Linux has a driver for {name}: {modules}"));
            }
        }
    }

    Ok(())
}

/// Returns the identities of the node's functions, if Linux's own drivers are to be found for them.
fn stock_identities(options: &Options, served: &Served, node: &Node) -> Vec<PciIdentity> {
    if !options.guest.driver.allows_stock() {
        return Vec::new();
    }
    let functions = node.functions.iter();
    functions.filter_map(|function| served.identity(function.id)).map(pci_identity).collect()
}

/// Returns the identity by which the guest's kernel looks for a driver.
fn pci_identity(identity: &Identity) -> PciIdentity {
    let &Identity { vendor, device, subsystem_vendor, subsystem, class, revision: _ } = identity;
    PciIdentity { vendor, device, subsystem_vendor, subsystem, class }
}

/// Returns the configuration of the guest of a node.
fn guest_config(
    options: &Options,
    served: &Served,
    node: &Node,
    accelerator: Accelerator,
    driver: Driver,
) -> Result<GuestConfig, Failure> {
    let built = served.built();
    let size = built.nodes.iter().filter(|other| other.role == node.role).count();
    let mut config = GuestConfig::new(&node.name)
        .boot_deadline(BOOT_TIMEOUT)
        .accelerator(accelerator)
        .driver(driver)
        .iommu(options.guest.iommu || driver == Driver::Vfio)
        .memory(options.guest.memory)
        .processors(options.guest.cpus)
        .terminal(options.task == Task::Shell)
        .barriers(options.task != Task::Shell)
        .env("NICFORGE_ROLE", node.role.name())
        .env("NICFORGE_RANK", node.rank.to_string())
        .env("NICFORGE_SIZE", size.to_string())
        .env("NICFORGE_MACHINE", &built.name);

    for (name, value) in &node.environment {
        config = config.env(name, value);
    }

    for ModuleWord { name, parameter } in &options.guest.kernel_modules {
        config = match parameter {
            Some(parameter) => config.module_parameter(name, parameter),
            None => config.module(name),
        };
    }

    for identity in stock_identities(options, served, node) {
        config = config.driver_for(identity);
    }

    for attachment in node.attachments.iter().filter(|attachment| options.guest.admin || !attachment.admin) {
        config = config.function(Function {
            name: format!("{}.{}", node.name, attachment.name),
            socket: served.socket(node, attachment)?,
            hotplug: options.guest.root_ports,
            user: !attachment.admin,
        });
    }

    for program in &options.contents.programs {
        config = config.program(program);
    }

    if let Some(share) = &options.contents.share {
        config = config.share(share);
    }
    if let Some(logs) = &options.logs {
        config = config.logs(logs);
    }

    Ok(config)
}

/// Runs the job in all guests at the same time. Returns the first failure, or 0.
fn run_all(
    options: &Options,
    toolkit: &Toolkit,
    guests: Vec<GuestConfig>,
    job: &Job,
    progress: &Progress,
) -> Result<u8, Failure> {
    let width = guests.iter().map(|config| config.node().len()).max().unwrap_or(0);
    let printer = Arc::new(Printer::new(width));
    let limit = options.timeout.unwrap_or(COMMAND_TIMEOUT);
    let (result_sender, results) = channel();
    let count = guests.len();
    let together = GuestGroup::new(&guests, options.hold, limit);

    std::thread::scope(|scope| {
        // A guest that fails ends the others, and so does Ctrl-C.
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ending = {
            let (is_over, progress) = (is_over.clone(), progress.clone());
            Progress::silent().cancelled_by(move || {
                is_over.load(std::sync::atomic::Ordering::Relaxed) || progress.is_cancelled()
            })
        };

        let together = &together;
        for (number, config) in guests.iter().enumerate() {
            let (result_sender, ending, printer, job) =
                (result_sender.clone(), ending.clone(), printer.clone(), job.clone());
            scope.spawn(move || {
                let member = together.member(number);
                let result = run_in_guest(toolkit, config, job, &printer, &member, &ending);
                // The receiver may already have ended the loop.
                let _ = result_sender.send((config.node().to_owned(), result));
            });
        }

        drop(result_sender);

        let mut first_failure: Option<Result<u8, Failure>> = None;
        for _ in 0..count {
            let (node, result) = match results.recv() {
                Ok(node_and_result) => node_and_result,
                Err(_) => break,
            };

            if matches!(result, Ok(0)) || first_failure.is_some() {
                continue;
            }

            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            if let (Ok(code), true) = (&result, count > 1) {
                print_note(format_args!("the command in {node} ended with {code}; ending the other guests"));
            }

            first_failure = Some(result.map_err(Failure::from));
        }
        first_failure.unwrap_or(Ok(0))
    })
}

/// Boots a guest, and runs the job in it. Returns the job's status.
fn run_in_guest(
    toolkit: &Toolkit,
    config: &GuestConfig,
    job: Job,
    printer: &Arc<Printer>,
    member: &Member<'_>,
    progress: &Progress,
) -> Result<u8, GuestError> {
    let guest = Guest::boot(toolkit, config, progress)?;
    let node = guest.node().to_owned();
    let limit = member.limit();
    let until = Instant::now() + limit;

    // A blocked output must not keep Ctrl-C or the time limit from ending the guest.
    let give_up = {
        let progress = progress.clone();
        move || progress.is_cancelled() || Instant::now() >= until
    };

    for problem in guest.problems() {
        printer.line(&node, Stream::Error, &problem, &give_up);
    }

    let running = guest.start(job.on_line({
        let (node, printer, give_up) = (node.clone(), printer.clone(), give_up.clone());
        Arc::new(move |stream, line: &str| {
            let stream = match stream {
                GuestStream::Output => Stream::Output,
                GuestStream::Error => Stream::Error,
            };
            printer.line(&node, stream, line, &give_up);
        })
    }))?;

    loop {
        if let Some(output) = running.wait_for(CHECK_INTERVAL)? {
            member.end_command();
            // A command that failed ends all guests, so its own does not stay either.
            if output.status == 0 {
                member.hold(&guest, progress)?;
            }
            return Ok(output.status);
        }

        member.serve(&guest, &give_up)?;
        if progress.is_cancelled() {
            return Err(GuestError::Cancelled);
        }

        if Instant::now() >= until {
            let what = "the command (--timeout)".to_owned();
            return Err(GuestError::Timeout { node, what, limit, end: guest.log_ends() });
        }
    }
}

/// Boots a guest, and connects its shell to this terminal.
fn run_shell(
    options: &Options,
    toolkit: &Toolkit,
    mut guests: Vec<GuestConfig>,
    progress: &Progress,
) -> Result<u8, Failure> {
    let Some(config) = guests.pop() else { return Err(Failure::usage("the machine has no node")) };
    let guest = Guest::boot(toolkit, &config, progress)?;
    for problem in guest.problems() {
        print_note(format_args!("{}: {problem}", guest.node()));
    }
    print_note(format_args!("a shell in {}; Ctrl-D ends it", guest.node()));
    terminal::run(&guest, options.timeout.unwrap_or(SHELL_TIMEOUT), progress)
}

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Cancelled => Failure { message: error.to_string(), code: EXIT_INTERRUPTED },
            GuestError::Request(_) | GuestError::Unsuitable { .. } => Failure::usage(error.to_string()),
            _ => Failure::environment(error.to_string()),
        }
    }
}
