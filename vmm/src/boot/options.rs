//! The options of `nicforge boot`.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::Args;
use nicforge_guest::{Provision, Share};

use crate::cli::ServeOptions;

/// The work in the guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// A shell on the terminal, in one guest.
    Shell,
    /// `lspci -vvv` of the machine's functions.
    Lspci,
    /// A command and its arguments.
    Command(Vec<String>),
}

/// The driver of the functions in the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DriverChoice {
    /// The kernel module of nicforge, if it can be built, for the functions that it knows, and
    /// Linux's own drivers for the others.
    Auto,
    /// The kernel module of nicforge.
    Shim,
    /// Linux's own drivers.
    Stock,
    /// Linux's VFIO (with --iommu).
    Vfio,
    /// No driver.
    None,
}

impl DriverChoice {
    /// Returns whether the kernel's own drivers are looked for by modalias.
    pub(super) const fn allows_stock(self) -> bool {
        matches!(self, Self::Auto | Self::Stock)
    }
}

/// A kernel module to be loaded, as in `8139too` or `8139too:debug=3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleWord {
    pub(super) name: String,
    pub(super) parameter: Option<String>,
}

impl FromStr for ModuleWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };

        if name.is_empty() || parameter.is_some_and(|parameter| !parameter.contains('=')) {
            return Err("write NAME or NAME:PARAM=VALUE, such as 8139too:debug=3".into());
        }
        Ok(Self { name: name.to_owned(), parameter: parameter.map(str::to_owned) })
    }
}

/// How the guests' processors run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AcceleratorChoice {
    /// KVM if a guest boots with it, else TCG.
    Auto,
    /// By the host's processors.
    Kvm,
    /// Emulated.
    Tcg,
}

/// The program that makes the guests' machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum VmmChoice {
    /// Our own virtual machine where KVM runs 64-bit code and the options allow it, else QEMU.
    Auto,
    /// Our own virtual machine, on KVM.
    Own,
    /// QEMU, with KVM or emulated.
    Qemu,
}

/// Files of the host for the guests.
#[derive(Clone, Debug, Args)]
pub struct HostFiles {
    /// A directory of this host that the guests have as /share. Guests of our own virtual machine
    /// have a copy, which they cannot change.
    #[arg(long, value_name = "DIR")]
    pub share: Option<Share>,
    /// A program of this host that the guests have in /root, with its libraries; may be given
    /// several times.
    #[arg(long = "program", value_name = "FILE")]
    pub programs: Vec<PathBuf>,
}

/// How each guest is made, and which functions it gets.
#[derive(Clone, Debug, Args)]
pub struct GuestOptions {
    /// The program that makes the guests' machines.
    #[arg(long, value_enum, value_name = "VMM", default_value_t = VmmChoice::Auto)]
    pub vmm: VmmChoice,
    /// Give the guests a virtual IOMMU.
    #[arg(long)]
    pub iommu: bool,
    /// The driver of the functions in the guests; vfio implies --iommu.
    #[arg(long, value_enum, value_name = "DRIVER", default_value_t = DriverChoice::Auto)]
    pub driver: DriverChoice,
    /// Load a module of the guests' kernel, with the modules it needs, before any driver that is
    /// found for a function; may be given several times, also for further parameters of one module.
    #[arg(long = "module", value_name = "NAME[:PARAM=VALUE]")]
    pub kernel_modules: Vec<ModuleWord>,
    /// Plug in the admin attachments too.
    #[arg(long)]
    pub admin: bool,
    /// Put each function behind a PCIe root port of its own, like a card in a slot, and not onto
    /// the root bus.
    #[arg(long)]
    pub root_ports: bool,
    /// How QEMU runs the guests' processors.
    #[arg(long, value_enum, value_name = "ACCEL", default_value_t = AcceleratorChoice::Auto)]
    pub accel: AcceleratorChoice,
    /// A word for the end of QEMU's command line, such as -trace or its value; may be given several
    /// times, and needs QEMU.
    #[arg(long = "qemu-arg", value_name = "WORD", allow_hyphen_values = true)]
    pub qemu_arguments: Vec<String>,
    /// MiB of memory for each guest.
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(128..=1 << 20))]
    pub memory: u32,
    /// Processors of each guest.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
}

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where and how to serve the machine.
    pub serve: ServeOptions,
    /// Nodes that get a guest. All nodes get one when this is empty.
    pub nodes: Vec<String>,
    /// Paths of QEMU, the kernel and others that replace the found or downloaded ones.
    pub provision: Provision,
    /// Files of the host for the guests.
    pub contents: HostFiles,
    /// How each guest is made.
    pub guest: GuestOptions,
    /// Whether server and guests run in an emulated guest, with our own virtual machine.
    pub nested: bool,
    /// Files that another `nicforge boot` has made for guests of our own virtual machine.
    pub prepared: Option<PathBuf>,
    /// Whether guests stay until the commands of all have ended.
    pub hold: bool,
    /// How long the task may take.
    pub timeout: Option<Duration>,
    /// How long a guest's boot may take.
    pub boot_timeout: Duration,
    /// A directory for the guests' consoles and the messages of their machines.
    pub logs: Option<PathBuf>,
    /// The work in the guests.
    pub task: Task,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_has_a_name_and_perhaps_one_parameter() {
        let word = |name: &str, parameter: Option<&str>| {
            Ok(ModuleWord { name: name.into(), parameter: parameter.map(str::to_owned) })
        };

        assert_eq!("8139too".parse(), word("8139too", None));
        assert_eq!("8139too:debug=3".parse(), word("8139too", Some("debug=3")));
        assert_eq!(
            "vfio-pci:ids=1efc:0001,1efc:0002".parse(),
            word("vfio-pci", Some("ids=1efc:0001,1efc:0002"))
        );

        for wrong in ["", ":debug=3", "8139too:", "8139too:debug"] {
            assert!(wrong.parse::<ModuleWord>().is_err(), "{wrong}");
        }
    }
}
