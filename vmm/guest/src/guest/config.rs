//! Configuration of a guest.

use std::{path::PathBuf, time::Duration};

use super::vmm::Vmm;
use crate::{accel::Accelerator, error::GuestError, identity::PciIdentity, initramfs::Extra, share::Share};

/// The first and the last slot of the guest's root bus for functions.
const SLOTS: std::ops::RangeInclusive<u8> = 3..=0x1c;

/// The driver of nicforge's functions inside the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// No driver; programs get PCI addresses.
    #[default]
    None,
    /// The kernel module `kmod-shim`; programs get `shim:/dev/nicforge0`.
    Shim,
    /// Linux's VFIO; programs get `vfio:0000:00:03.0`. It needs the virtual IOMMU.
    Vfio,
}

impl Driver {
    /// Returns the driver's name for init and agent.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Shim => "shim",
            Self::Vfio => "vfio",
        }
    }
}

/// A served function to plug in.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name, as in `io0.core0`.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    /// Whether it is behind a PCI Express port of its own, so that it can be unplugged.
    pub hotplug: bool,
    /// Whether it is listed in `NICFORGE_SOCKET`. Functions for the kernel's role are in
    /// `NICFORGE_DEVICES` alone.
    pub user: bool,
}

/// A function and its slot on the root bus; with [`Function::hotplug`] the slot is its port's.
#[derive(Clone, Debug)]
pub(crate) struct PluggedFunction {
    pub(crate) function: Function,
    pub(crate) slot: u8,
}

impl PluggedFunction {
    /// Returns the slot as the agent reads it: `03.0`, or `03.0/` for a function behind that port.
    pub(crate) fn slot_setting(&self) -> String {
        format!("{:02x}.0{}", self.slot, if self.function.hotplug { "/" } else { "" })
    }

    /// Returns QEMU's name of its port, if it has one.
    pub(crate) fn port(&self) -> String {
        format!("port{:02x}", self.slot)
    }

    /// Returns QEMU's name of the function.
    pub(crate) fn id(&self) -> String {
        format!("function{:02x}", self.slot)
    }
}

/// The machine of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Hardware {
    /// The program that makes the machine.
    pub(crate) vmm: Vmm,
    /// The functions, in the order of their slots.
    pub(crate) functions: Vec<Function>,
    /// Further devices, as values of `-device`.
    pub(crate) devices: Vec<String>,
    /// Networks of such devices, as values of `-netdev`.
    pub(crate) networks: Vec<String>,
    /// Arguments at the end of QEMU's command line.
    pub(crate) arguments: Vec<String>,
    pub(crate) memory_mib: u32,
    pub(crate) processors: u32,
    pub(crate) accelerator: Accelerator,
    /// Whether there is a virtual IOMMU.
    pub(crate) iommu: bool,
    /// Whether there is a serial line for a terminal.
    pub(crate) terminal: bool,
}

/// A kernel module that is loaded at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModuleRequest {
    pub(crate) name: String,
    /// Its parameters, as in `debug=3`.
    pub(crate) parameters: Vec<String>,
}

/// The software of a guest, and the files of the host that it finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Software {
    /// Text that is appended to the kernel's command line.
    pub(crate) append: String,
    /// The driver of the functions.
    pub(crate) driver: Driver,
    /// Kernel modules to be loaded at the start.
    pub(crate) modules: Vec<ModuleRequest>,
    /// The functions for which the kernel's own drivers are loaded.
    pub(crate) identities: Vec<PciIdentity>,
    /// Whether commands have `nicforge-barrier`.
    pub(crate) barriers: bool,
    /// Files and programs of the host.
    pub(crate) extras: Vec<Extra>,
    /// A directory of the host for `/share`.
    pub(crate) share: Option<Share>,
    /// Variables for all commands.
    pub(crate) environment: Vec<(String, String)>,
}

/// The logs of a guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logging {
    /// The folder of the logs; they are deleted with the guest without one.
    pub(crate) folder: Option<PathBuf>,
    /// Events of QEMU to be traced.
    pub(crate) trace: Vec<String>,
}

/// Configuration of a guest that is not booted yet.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// The guest's name.
    pub(crate) node: String,
    pub(crate) hardware: Hardware,
    pub(crate) software: Software,
    pub(crate) logging: Logging,
    /// Time limit of a boot.
    pub(crate) boot_deadline: Duration,
    /// Whether it boots again after a reboot, a panic or a reset.
    pub(crate) reboots: bool,
}

impl GuestConfig {
    /// Returns an emulated guest without functions, with 512 MiB of memory and one processor. Its
    /// boot deadline is five minutes; a boot takes some seconds on an idle machine.
    pub fn new(node: impl Into<String>) -> Self {
        let hardware = Hardware {
            vmm: Vmm::default(),
            functions: Vec::new(),
            devices: Vec::new(),
            networks: Vec::new(),
            arguments: Vec::new(),
            memory_mib: 512,
            processors: 1,
            accelerator: Accelerator::Tcg,
            iommu: false,
            terminal: false,
        };

        Self {
            node: node.into(),
            hardware,
            software: Software::default(),
            logging: Logging::default(),
            boot_deadline: Duration::from_secs(300),
            reboots: false,
        }
    }

    /// Returns the guest's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Adds a served function. The first gets `0000:00:03.0`, the second `0000:00:04.0`, and so on.
    /// A function that can be unplugged is behind a port at that address.
    pub fn function(mut self, function: Function) -> Self {
        self.hardware.functions.push(function);
        self
    }

    /// Adds a function for user programs that can't be unplugged.
    pub fn user_function(self, name: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        self.function(Function { name: name.into(), socket: socket.into(), hotplug: false, user: true })
    }

    /// Adds another QEMU device, as the value of `-device`, for example `edu`.
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.hardware.devices.push(device.into());
        self
    }

    /// Adds a network for a [`Self::device`], as the value of QEMU's `-netdev`, for example
    /// `dgram,id=n,...`.
    pub fn network(mut self, backend: impl Into<String>) -> Self {
        self.hardware.networks.push(backend.into());
        self
    }

    /// Adds a word to the end of QEMU's command line, for what this configuration has no name for.
    /// An option and its value are two words.
    pub fn qemu_argument(mut self, word: impl Into<String>) -> Self {
        self.hardware.arguments.push(word.into());
        self
    }

    /// Sets the memory, in MiB.
    pub fn memory(mut self, mib: u32) -> Self {
        self.hardware.memory_mib = mib;
        self
    }

    /// Sets the number of processors.
    pub fn processors(mut self, number: u32) -> Self {
        self.hardware.processors = number;
        self
    }

    /// Sets whether there is a virtual IOMMU with interrupt remapping.
    pub fn iommu(mut self, on: bool) -> Self {
        self.hardware.iommu = on;
        self
    }

    /// Sets the driver of the functions.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.software.driver = driver;
        self
    }

    /// Copies a program of the host with its libraries to `/root/NAME`. Commands find it by its
    /// name.
    pub fn program(mut self, source: impl Into<PathBuf>) -> Self {
        let source = source.into();
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.software.extras.push(Extra { source, guest_path: format!("/root/{name}"), program: true });
        self
    }

    /// Copies a program of the host with its libraries to `/root` under another name.
    pub fn program_as(mut self, source: impl Into<PathBuf>, name: &str) -> Self {
        self.software.extras.push(Extra {
            source: source.into(),
            guest_path: format!("/root/{name}"),
            program: true,
        });
        self
    }

    /// Copies a file or directory of the host to an absolute path in the guest.
    pub fn file(mut self, source: impl Into<PathBuf>, guest_path: impl Into<String>) -> Self {
        self.software.extras.push(Extra {
            source: source.into(),
            guest_path: guest_path.into(),
            program: false,
        });
        self
    }

    /// Loads a kernel module and its dependencies at the start, before nicforge's own module.
    pub fn module(mut self, name: impl Into<String>) -> Self {
        self.software.modules.push(ModuleRequest { name: name.into(), parameters: Vec::new() });
        self
    }

    /// Loads a kernel module as [`Self::module`] does, with a parameter such as `debug=3`. Further
    /// parameters of the same module can be added.
    pub fn module_parameter(mut self, name: impl Into<String>, parameter: impl Into<String>) -> Self {
        self.software.modules.push(ModuleRequest { name: name.into(), parameters: vec![parameter.into()] });
        self
    }

    /// Loads the kernel's own drivers of a function of this identity at the start: all modules with
    /// an alias that matches. It is no error when there is none.
    ///
    /// With [`Driver::Shim`], a function that is in the aliases of that module is left to it. A
    /// driver that is loaded by [`Self::module`] comes first in either case.
    pub fn driver_for(mut self, identity: PciIdentity) -> Self {
        self.software.identities.push(identity);
        self
    }

    /// Sets whether commands have the program `nicforge-barrier`. The caller must then answer
    /// [`Guest::barrier_calls`](crate::Guest::barrier_calls).
    pub fn barriers(mut self, wanted: bool) -> Self {
        self.software.barriers = wanted;
        self
    }

    /// Mounts a directory of the host at `/share`. A guest of QEMU reads and writes the directory
    /// itself. One of our own virtual machine reads a copy, which is made when the first guest with
    /// a clone of this [`Share`] is booted.
    pub fn share(mut self, share: impl Into<Share>) -> Self {
        self.software.share = Some(share.into());
        self
    }

    /// Adds a variable to the environment of all commands.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.software.environment.push((name.into(), value.into()));
        self
    }

    /// Appends to the kernel's command line.
    pub fn append(mut self, text: &str) -> Self {
        self.software.append.push(' ');
        self.software.append.push_str(text);
        self
    }

    /// Sets the program that makes the guest's machine. Our own virtual machine cannot do all that
    /// QEMU does ([`Self::needs_qemu`]).
    pub fn vmm(mut self, vmm: Vmm) -> Self {
        self.hardware.vmm = vmm;
        self
    }

    /// Sets how QEMU executes the guest's processors.
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.hardware.accelerator = accelerator;
        self
    }

    /// Sets the time limit of the boot.
    pub fn boot_deadline(mut self, limit: Duration) -> Self {
        self.boot_deadline = limit;
        self
    }

    /// Sets whether the guest boots again after a reboot, a panic (which reboots) or a reset. By
    /// default it ends.
    pub fn reboots(mut self, again: bool) -> Self {
        self.reboots = again;
        self
    }

    /// Sets whether it has a serial line for [`Guest::terminal`](crate::Guest::terminal).
    pub fn terminal(mut self, wanted: bool) -> Self {
        self.hardware.terminal = wanted;
        self
    }

    /// Traces events of QEMU into the folder of logs, as in `vfio_user_*`. The file then grows
    /// without a limit.
    pub fn trace(mut self, events: &str) -> Self {
        self.logging.trace.push(events.to_owned());
        self
    }

    /// Sets the folder of the logs `NODE.console.log`, `NODE.qemu.log` and `NODE.trace.log`. Our
    /// own virtual machine has `NODE.vm.log` and no trace. Without a folder they are deleted with
    /// the guest. Console and trace begin anew at 4 MiB.
    pub fn logs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.logging.folder = Some(folder.into());
        self
    }

    /// Checks the names and the functions of the guest, and returns the functions with their slots.
    ///
    /// # Errors
    /// [`GuestError::Request`]: there are too few slots, VFIO has no IOMMU, or a name is
    /// impossible.
    pub(crate) fn plugged_functions(&self) -> Result<Vec<PluggedFunction>, GuestError> {
        if self.hardware.functions.len() > SLOTS.count() {
            return Err(GuestError::Request(format!(
                "{}: {} functions are to be plugged in; a guest has {} slots for them",
                self.node,
                self.hardware.functions.len(),
                SLOTS.count()
            )));
        }

        if self.software.driver == Driver::Vfio && !self.hardware.iommu {
            let text = "VFIO in the guest needs the virtual IOMMU (iommu, --iommu): its kernel has no other way to confine DMA";
            return Err(GuestError::Request(format!("{}: {text}", self.node)));
        }

        let is_name = |name: &str| {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };

        for name in
            std::iter::once(&self.node).chain(self.hardware.functions.iter().map(|function| &function.name))
        {
            if !is_name(name) {
                return Err(GuestError::Request(format!(
                    "{name:?} is no name: letters, digits, '.', '_' and '-' are"
                )));
            }
        }

        Ok(self
            .hardware
            .functions
            .iter()
            .cloned()
            .zip(SLOTS)
            .map(|(function, slot)| PluggedFunction { function, slot })
            .collect())
    }

    /// Returns the maximum number of functions of a guest.
    pub fn max_functions() -> usize {
        SLOTS.count()
    }
}

/// Quotes any text as one word for the shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_slots_in_their_order() {
        let config = GuestConfig::new("n").user_function("a", "/s/a").function(Function {
            name: "b".into(),
            socket: "/s/b".into(),
            hotplug: true,
            user: false,
        });

        let slots: Vec<_> =
            config.plugged_functions().unwrap().iter().map(PluggedFunction::slot_setting).collect();
        assert_eq!(slots, ["03.0", "04.0/"]);
    }

    #[test]
    fn more_functions_than_slots_are_refused() {
        let many = (0..=GuestConfig::max_functions())
            .fold(GuestConfig::new("n"), |config, number| config.user_function(format!("f{number}"), "/s"));
        assert!(many.plugged_functions().unwrap_err().to_string().contains("slots"));
    }

    #[test]
    fn vfio_without_an_iommu_is_refused() {
        let error = GuestConfig::new("n").driver(Driver::Vfio).plugged_functions().unwrap_err();
        assert!(error.to_string().contains("--iommu"), "{error}");
    }

    #[test]
    fn a_name_that_is_a_shell_command_is_refused() {
        assert!(GuestConfig::new("n").user_function("a b;c", "/s").plugged_functions().is_err());
    }

    #[test]
    fn a_quoted_word_is_one_word() {
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
