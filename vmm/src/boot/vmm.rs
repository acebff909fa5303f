//! `--vmm`: the choice between QEMU and our own virtual machine.

use nicforge_guest::{Toolkit, Vmm};

use super::options::{AcceleratorChoice, DriverChoice, Options, VmmChoice};
use crate::failure::{Failure, print_note};

/// Chooses the program that makes the guests' machines. It starts nothing but a trial of KVM.
///
/// # Errors
/// A failure of usage when our own virtual machine is asked for with an option that it does not
/// support, and one of the environment when this host cannot run it.
pub(super) fn choose(options: &Options) -> Result<Vmm, Failure> {
    let unsupported = qemu_only_option(options);

    match (options.guest.vmm, unsupported) {
        (VmmChoice::Qemu, _) => Ok(Vmm::Qemu),
        (VmmChoice::Own, Some(option)) => {
            let text = format!("our own virtual machine has no {option}; use --vmm qemu");
            Err(Failure::usage(text))
        }
        (VmmChoice::Own, None) => match nicforge_kvm::probe() {
            Ok(()) => Ok(Vmm::Own),
            Err(error) => {
                let text = "our own virtual machine cannot run here";
                let advice = "use --vmm qemu, or --nested for a look at it";
                Err(Failure::environment(format!("{text}: {error}; {advice}")))
            }
        },
        (VmmChoice::Auto, _) => {
            let (vmm, reason) = choose_by_host(options, unsupported);
            let name = match vmm {
                Vmm::Qemu => "QEMU",
                Vmm::Own => "our own virtual machine",
            };

            print_note(format_args!("{name} runs the guests: {reason} (--vmm)"));
            Ok(vmm)
        }
    }
}

/// Chooses our own virtual machine if the options and the host allow it. `unsupported` is an option
/// that needs QEMU. Returns the choice, and its reason for the user.
fn choose_by_host(options: &Options, unsupported: Option<&'static str>) -> (Vmm, String) {
    if let Some(option) = unsupported {
        return (Vmm::Qemu, format!("our own virtual machine has no {option}"));
    }
    // The user may want the files that guests write there.
    if options.contents.share.is_some() {
        return (Vmm::Qemu, "its guests can write to --share".into());
    }
    if options.provision.qemu.is_some() {
        return (Vmm::Qemu, "it is named".into());
    }
    match nicforge_kvm::probe() {
        Ok(()) => (Vmm::Own, "KVM runs 64-bit code here".into()),
        Err(error) => (Vmm::Qemu, error.to_string()),
    }
}

/// Checks that our own virtual machine can start the kernel. Otherwise QEMU starts it, unless the
/// user has asked for our own virtual machine. Returns the program that makes the machines.
///
/// # Errors
/// A failure of usage when our own virtual machine is asked for.
pub(super) fn check_kernel(options: &Options, toolkit: &Toolkit, vmm: Vmm) -> Result<Vmm, Failure> {
    if vmm == Vmm::Qemu || toolkit.kernel.unpacked().is_some() {
        return Ok(vmm);
    }

    let text = format!("{} has no PVH entry, or cannot be unpacked here", toolkit.kernel.image.display());
    match options.guest.vmm {
        VmmChoice::Own => Err(Failure::usage(format!("{text}; use --vmm qemu"))),
        VmmChoice::Auto | VmmChoice::Qemu => {
            print_note(format_args!("QEMU runs the guests after all: {text}"));
            Ok(Vmm::Qemu)
        }
    }
}

/// Returns an option that our own virtual machine does not support, if one is given.
pub(super) fn qemu_only_option(options: &Options) -> Option<&'static str> {
    let guest = &options.guest;
    let only_qemu = [
        (guest.iommu, "--iommu"),
        (guest.driver == DriverChoice::Vfio, "--driver vfio"),
        (guest.root_ports, "--root-ports"),
        (guest.accel == AcceleratorChoice::Tcg, "--accel tcg"),
        (!guest.qemu_arguments.is_empty(), "--qemu-arg"),
    ];
    only_qemu.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
}
