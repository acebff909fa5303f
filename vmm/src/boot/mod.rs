//! `nicforge boot`: serves a machine, boots a Linux guest for each node with the node's functions
//! plugged in, and runs a command in each guest.

mod barrier;
mod configure;
mod jobs;
mod nested;
mod options;
mod terminal;
mod together;
mod vmm;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use nicforge_family::Families;
use nicforge_guest::{Accelerator, Driver, GuestError, Job, Prepared, Progress, Provision, Toolkit, Vmm};
use nicforge_machine::build::{Node, NodeAttachment};

use crate::{
    failure::{EXIT_INTERRUPTED, EXIT_RESULT, Failure, print_note, program},
    serve::Served,
    signals::Signals,
};

pub use self::options::{
    AcceleratorChoice, DriverChoice, GuestOptions, HostFiles, ModuleWord, Options, Task, VmmChoice,
};
use self::{
    configure::{Hardware, Machine, choose_driver, choose_nodes, find_and_show_stock_drivers, guest_config},
    jobs::{GuestFiles, run_all, run_shell},
};

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
A command calls `nicforge-barrier NAME [SECONDS]` to wait until the commands of
all guests have called it with that NAME. It ends with 0 then, with 1 when the
command of a guest has ended without a call, and with 124 after 300 seconds, or
after SECONDS.

QEMU and a kernel are downloaded once from a Debian mirror into NICFORGE_CACHE
(by default ~/.cache/nicforge); no root is needed and nothing is installed.
NICFORGE_QEMU, NICFORGE_KERNEL, NICFORGE_MODULES and NICFORGE_INITRD stand for
the options of those names. The exit code is that of the first command that
failed, and the other guests are ended then.

Without --vmm, our own virtual machine runs the guests where KVM runs 64-bit
code and no option needs QEMU. With --nested, an emulated QEMU guest holds all
of it, the served machine too: this works without any KVM, and is slow. A
guest takes its first command after one to three minutes.

Examples: {program} boot MACHINE --node NODE --shell
          {program} boot MACHINE --lspci
          {program} boot MACHINE --program ./test -- test --fast
          {program} boot MACHINE --node NODE --nested --lspci",
        program = program()
    )
}

/// How long a command may take, unless the user sets a limit.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long a shell may take, unless the user sets a limit.
const SHELL_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The folder, in that of prepared files, in which each guest has a file of its name once its
/// command has begun. By these the program outside a nested guest sees that all has started.
const STARTED: &str = "started";
/// How long the engine may take to notice that clients have detached.
const DETACH_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two checks in a wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the command with the machine of a file.
pub fn main(machine: &Path, families: &Families, options: &Options) -> Result<u8, Failure> {
    if options.nested {
        return nested::main(machine, families, options);
    }
    with(options, || Served::start(machine, families, &options.serve))
}

/// Boots the guests of a machine that `serve` serves.
///
/// `serve` is called once the signals that end the command are blocked, because the threads that it
/// starts inherit that.
///
/// # Errors
/// Returns the errors of `serve`, and a [`Failure`] when a guest cannot be booted. A nested boot
/// needs a machine's file ([`main`]), and is refused here.
pub fn with(options: &Options, serve: impl FnOnce() -> Result<Served, Failure>) -> Result<u8, Failure> {
    if options.nested {
        return Err(Failure::usage("--nested needs a machine that is described by a file"));
    }

    // Options that our own virtual machine does not support are refused before anything starts. The
    // trial of KVM has threads of its own, which have ended when the signals are blocked.
    let vmm = vmm::choose(options)?;
    let progress = cancelled_by_signals()?;
    // The machine comes first, so that a mistake in its file is reported before anything is
    // downloaded.
    let served = serve()?;

    let result = boot(options, &served, vmm, &progress);
    wait_for_detach(&served);
    let panics = report_panics(&served);
    let stopped = served.stop();
    let code = result?;
    stopped?;

    // A command may succeed without noticing that its device has panicked.
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

/// Returns a progress that Ctrl-C and SIGTERM cancel. The signals are blocked from now on.
fn cancelled_by_signals() -> Result<Progress, Failure> {
    let signals = Signals::block().map_err(|error| Failure::environment(format!("signals: {error}")))?;
    Ok(Progress::on_stderr().cancelled_by(move || signals.take().is_some()))
}

/// Boots the guests of a served machine, and runs the task in them. Returns its exit code.
fn boot(options: &Options, served: &Served, vmm: Vmm, progress: &Progress) -> Result<u8, Failure> {
    let socket = |node: &Node, attachment: &NodeAttachment| served.socket(node, attachment);
    let machine = Machine { built: served.built(), identities: served.identities(), socket: &socket };
    let nodes = choose_nodes(options, machine.built)?;

    let (files, hardware) = match &options.prepared {
        Some(folder) => {
            // The driver is in the prepared files.
            let hardware = Hardware { vmm, accelerator: Accelerator::Kvm, driver: Driver::None };
            let prepared = Prepared::open(folder, options.provision.vm.clone())?;
            (GuestFiles::Prepared(prepared, folder.clone()), hardware)
        }
        None => {
            let (toolkit, vmm) = provide(options, vmm, progress)?;
            let hardware = choose_hardware(options, &toolkit, vmm, progress)?;
            find_and_show_stock_drivers(options, &machine, &nodes, &toolkit, hardware.driver, progress)?;
            (GuestFiles::Toolkit(Box::new(toolkit)), hardware)
        }
    };

    let configs = nodes.into_iter().map(|node| guest_config(options, &machine, node, hardware));
    let guests = configs.collect::<Result<_, _>>()?;
    match &options.task {
        Task::Shell => run_shell(options, &files, guests, progress),
        Task::Lspci => run_all(options, &files, guests, &Job::shell(LSPCI), progress),
        Task::Command(words) => run_all(options, &files, guests, &Job::program(words), progress),
    }
}

/// Provides the parts of the guests, and returns them with the program that runs the guests: `vmm`,
/// or QEMU if that cannot start the kernel. QEMU is among the parts only if it runs the guests.
fn provide(options: &Options, vmm: Vmm, progress: &Progress) -> Result<(Toolkit, Vmm), Failure> {
    let provision = |vmm| Provision { without_qemu: vmm == Vmm::Own, ..options.provision.clone() };
    let toolkit = provision(vmm).provide(progress)?;
    match vmm::check_kernel(options, &toolkit, vmm)? {
        Vmm::Qemu if vmm == Vmm::Own => Ok((provision(Vmm::Qemu).provide(progress)?, Vmm::Qemu)),
        vmm => Ok((toolkit, vmm)),
    }
}

/// Chooses how the guests' machines are made, and prints the choice.
fn choose_hardware(
    options: &Options,
    toolkit: &Toolkit,
    vmm: Vmm,
    progress: &Progress,
) -> Result<Hardware, Failure> {
    let (accelerator, reason) = match (vmm, options.guest.accel) {
        (Vmm::Own, _) => (Accelerator::Kvm, "it runs on nothing else".to_owned()),
        (Vmm::Qemu, AcceleratorChoice::Kvm) => (Accelerator::Kvm, "as asked for".to_owned()),
        (Vmm::Qemu, AcceleratorChoice::Tcg) => (Accelerator::Tcg, "as asked for".to_owned()),
        (Vmm::Qemu, AcceleratorChoice::Auto) => {
            let choice = toolkit.accelerator(progress)?;
            (choice.accelerator, choice.reason)
        }
    };
    let driver = choose_driver(options, toolkit, progress)?;

    let how = match accelerator {
        Accelerator::Kvm => "by the host's processors (KVM)",
        Accelerator::Tcg => "emulated (TCG)",
    };
    let program = match vmm {
        Vmm::Qemu => format!("QEMU {}", toolkit.qemu()?.version()),
        Vmm::Own => "our own virtual machine".to_owned(),
    };
    print_note(format_args!("{program}, Linux {}; {how}: {reason}", toolkit.kernel.version));

    Ok(Hardware { vmm, accelerator, driver })
}

/// Waits for up to [`DETACH_TIMEOUT`] until the engine has noticed that the guests have ended. An
/// engine that is stopped while it has clients reports that it had to disconnect them.
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

impl From<GuestError> for Failure {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::Cancelled => Failure { message: error.to_string(), code: EXIT_INTERRUPTED },
            GuestError::Request(_) | GuestError::Unsuitable { .. } => Failure::usage(error.to_string()),
            _ => Failure::environment(error.to_string()),
        }
    }
}
