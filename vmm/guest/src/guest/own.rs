//! The command line of our own virtual machine: the hidden command `vm` of programs made from
//! `nicforge::App`.

use std::{path::Path, process::Command};

use super::{
    command_line::{AGENT, CONSOLE, TERMINAL, kernel_parameters},
    config::{GuestConfig, PluggedFunction},
    prepared::OwnMachine,
};

/// The program's command that runs a machine.
const COMMAND: &str = "vm";
/// The PCI address of the disk for `/share`, which follows from the slot that the command gives it.
pub(crate) const SHARE_ADDRESS: &str = "0000:00:02.0";

/// The files that a machine starts from.
pub(crate) struct Files<'a> {
    pub(crate) machine: &'a OwnMachine,
    pub(crate) initrd: &'a str,
    /// The image of `/share`.
    pub(crate) share: Option<&'a str>,
    /// The directory of the sockets that the program connects to.
    pub(crate) sockets: &'a Path,
}

/// Returns the command that runs the guest.
pub(crate) fn command(config: &GuestConfig, functions: &[PluggedFunction], files: &Files<'_>) -> Command {
    let mut command = Command::new(&files.machine.program);
    command
        .arg(COMMAND)
        .args(["--memory", &config.hardware.memory_mib.to_string()])
        .args(["--cpus", &config.hardware.processors.to_string()]);

    if config.reboots {
        command.arg("--reboots");
    }

    // The serial ports, in their order.
    let terminal = config.hardware.terminal.then_some(TERMINAL);
    for name in [CONSOLE, AGENT].into_iter().chain(terminal) {
        command.arg("--serial").arg(files.sockets.join(name));
    }

    for plugged in functions {
        command.arg("--function").arg(format!("{}={}", plugged.slot, plugged.function.socket.display()));
    }

    if let Some(share) = files.share {
        command.args(["--share", share]);
    }

    command.arg("--kernel").arg(&files.machine.kernel).args(["--initrd", files.initrd]);
    command.args(["--append", &kernel_parameters(config)]);
    command
}
