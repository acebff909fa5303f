//! QEMU's command line for a guest.

use std::{path::Path, process::Command};

use serde_json::json;

use super::config::{GuestConfig, PluggedFunction};
use crate::{accel::Accelerator, qemu::Qemu};

/// The program, and the paths of a guest's sockets and files.
pub(crate) struct Files<'a> {
    pub(crate) qemu: &'a Qemu,
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a str,
    /// Where QEMU writes its trace, if anywhere.
    pub(crate) trace: Option<&'a Path>,
    /// The directory of the sockets that QEMU connects to.
    pub(crate) sockets: &'a Path,
}

/// The sockets of every guest.
pub(crate) const CONSOLE: &str = "console";
pub(crate) const AGENT: &str = "agent";
/// The socket of QEMU's monitor.
pub(crate) const MONITOR: &str = "monitor";
/// The socket of the optional terminal.
pub(crate) const TERMINAL: &str = "terminal";

/// Returns a function's parameters for QEMU's `-device` and `device_add`.
pub(crate) fn device(plugged: &PluggedFunction) -> serde_json::Value {
    let mut device = json!({
        "driver": "vfio-user-pci",
        "id": plugged.id(),
        "socket": { "type": "unix", "path": plugged.function.socket },
    });

    if plugged.function.hotplug {
        device["bus"] = json!(plugged.port());
    } else {
        device["bus"] = json!("pcie.0");
        device["addr"] = json!(format!("{:x}", plugged.slot));
    }

    device
}

/// Returns the command that runs the guest.
pub(crate) fn command(config: &GuestConfig, functions: &[PluggedFunction], files: &Files<'_>) -> Command {
    let mut command = files.qemu.command();
    let is_kvm = config.hardware.accelerator == Accelerator::Kvm;

    // Interrupt remapping and KVM's full in-kernel interrupt controller exclude each other.
    let split = if is_kvm && config.hardware.iommu { ",kernel-irqchip=split" } else { "" };
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-machine", &format!("q35,memory-backend=memory{split}")])
        .args(["-accel", config.hardware.accelerator.name(), "-cpu", config.hardware.accelerator.processor()])
        .args([
            "-smp",
            &config.hardware.processors.to_string(),
            "-m",
            &config.hardware.memory_mib.to_string(),
        ])
        // The functions' server maps the guest's memory, so it must be shared.
        .args([
            "-object",
            &format!("memory-backend-memfd,id=memory,size={}M,share=on", config.hardware.memory_mib),
        ])
        .args(["-action", if config.reboots { "reboot=reset" } else { "reboot=shutdown" }])
        .args(["-name", &config.node]);

    let mut add_socket = |id: &str| {
        let path = escape_option_value(&files.sockets.join(id));
        command.args(["-chardev", &format!("socket,id={id},path={path}")]);
    };

    for id in [CONSOLE, AGENT, MONITOR] {
        add_socket(id);
    }

    if config.hardware.terminal {
        add_socket(TERMINAL);
    }

    command.args(["-serial", "chardev:console", "-serial", "chardev:agent"]);
    if config.hardware.terminal {
        command.args(["-serial", "chardev:terminal"]);
    }

    command.args(["-qmp", "chardev:monitor"]);
    if config.hardware.iommu {
        // The IOMMU must precede all devices that it confines.
        command.args(["-device", "intel-iommu,intremap=on,caching-mode=on"]);
    }

    for plugged in functions {
        add_function(&mut command, plugged);
    }

    if let Some(share) = &config.software.share {
        command
            .args([
                "-fsdev",
                &format!("local,id=share,path={},security_model=none", escape_option_value(share.folder())),
            ])
            .args(["-device", "virtio-9p-pci,fsdev=share,mount_tag=share,addr=2"]);
    }

    for network in &config.hardware.networks {
        command.args(["-netdev", network]);
    }

    for device in &config.hardware.devices {
        command.args(["-device", device]);
    }

    if let Some(trace) = files.trace {
        command.args(["-d", "guest_errors", "-D"]).arg(trace);
    }

    for events in &config.logging.trace {
        command.args(["-trace", events]);
    }

    command.arg("-kernel").arg(files.kernel).arg("-initrd").arg(files.initrd);
    command.args(["-append", &kernel_parameters(config)]);
    command.args(&config.hardware.arguments);
    command
}

/// Returns the kernel's command line.
pub(crate) fn kernel_parameters(config: &GuestConfig) -> String {
    let iommu = if config.hardware.iommu { " intel_iommu=on" } else { "" };
    let append = &config.software.append;

    // Without no_timer_check, Linux panics when its timer does not tick in time, which happens on a
    // loaded host. cryptomgr.notests omits tests of ciphers, which take an emulated guest a second.
    format!(
        "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests rdinit=/nicforge/init{iommu}{append}"
    )
}

/// Adds a function, behind a port of its own if it can be unplugged.
fn add_function(command: &mut Command, plugged: &PluggedFunction) {
    if plugged.function.hotplug {
        let (port, slot) = (plugged.port(), plugged.slot);
        command.args([
            "-device",
            &format!("pcie-root-port,id={port},bus=pcie.0,addr={slot:x},chassis={slot},slot={slot}"),
        ]);
    }

    command.args(["-device", &device(plugged).to_string()]);
}

/// Escapes a path for the value of a QEMU option, where a comma is written twice.
fn escape_option_value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_arguments_are_at_the_end_as_they_are_given() {
        let config = GuestConfig::new("n").qemu_argument("-trace").qemu_argument("vfio_region_*,file=a b");
        let files = Files {
            qemu: &Qemu::unexamined(),
            kernel: Path::new("/kernel"),
            initrd: "/initrd",
            trace: None,
            sockets: Path::new("/sockets"),
        };

        let command = command(&config, &[], &files);

        let words: Vec<_> = command.get_args().collect();
        assert_eq!(words[words.len() - 2..], ["-trace", "vfio_region_*,file=a b"]);
    }
}
