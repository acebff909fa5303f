//! The choice of the program that makes a guest's machine.

use super::config::{Driver, GuestConfig};
use crate::error::GuestError;

/// The program that makes a guest's machine (virtual machine monitor).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vmm {
    /// QEMU, with KVM or its own emulation.
    #[default]
    Qemu,
    /// Our own virtual machine, which needs a KVM for 64-bit code. It is the hidden command `vm` of
    /// every program made from `nicforge::App`: see
    /// [`Provision::vm`](crate::Provision::vm).
    Own,
}

impl Vmm {
    /// Returns the part of the name of a log with the program's messages.
    pub(crate) const fn log_name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Own => "vm",
        }
    }
}

impl GuestConfig {
    /// Returns what this guest has that our own virtual machine cannot do, or `None`.
    pub fn needs_qemu(&self) -> Option<&'static str> {
        let hardware = &self.hardware;
        let needs = [
            (hardware.iommu || self.software.driver == Driver::Vfio, "IOMMU"),
            (hardware.functions.iter().any(|function| function.hotplug), "ports for hot-plug"),
            (!hardware.devices.is_empty() || !hardware.networks.is_empty(), "devices of QEMU"),
            (!self.logging.trace.is_empty(), "trace of QEMU"),
            (!hardware.arguments.is_empty(), "arguments of QEMU"),
        ];
        needs.into_iter().find_map(|(is_needed, what)| is_needed.then_some(what))
    }

    /// Refuses what the chosen program cannot do.
    pub(crate) fn check_vmm(&self) -> Result<(), GuestError> {
        match (self.hardware.vmm, self.needs_qemu()) {
            (Vmm::Own, Some(what)) => Err(only_qemu(&self.node, what)),
            _ => Ok(()),
        }
    }
}

/// Returns the error of a request that our own virtual machine cannot fulfil.
pub(crate) fn only_qemu(node: &str, what: &str) -> GuestError {
    GuestError::Request(format!("{node}: our own virtual machine has no {what}; use QEMU (--vmm qemu)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_virtual_machine_refuses_what_only_qemu_does() {
        let own = || GuestConfig::new("n").vmm(Vmm::Own);
        assert!(
            own().user_function("a", "/s").terminal(true).reboots(true).share("/tmp").check_vmm().is_ok()
        );

        let wrong = [
            own().iommu(true),
            own().driver(Driver::Vfio),
            own().device("edu"),
            own().trace("vfio_*"),
            own().qemu_argument("-snapshot"),
        ];
        for config in wrong {
            let error = config.check_vmm().unwrap_err().to_string();
            assert!(error.contains("--vmm qemu"), "{error}");
            assert!(config.vmm(Vmm::Qemu).check_vmm().is_ok());
        }
    }
}
