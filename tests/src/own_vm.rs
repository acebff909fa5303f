//! A guest of our own virtual machine and one of QEMU, with NICs of three families: the test's host
//! prepares their files, and a program in another guest, where KVM runs 64-bit code, boots them
//! (`guest-own`).

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use nicforge_core::machine::Machine;
use nicforge_guest::{Accelerator, GuestConfig};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;

use crate::{
    backing::PATIENCE,
    bodies::{GuestDoor, TestMachine},
    fcnp_body, guest, rma_body, velo_body,
};

/// Time limit of a guest's boot. It took 97 s beside other work, with a load of 10 for two
/// processors. A guest that hangs is booted again.
const BOOT: Duration = Duration::from_secs(240);

/// The name of the guest of our own virtual machine.
pub const NAME: &str = "own";
/// The name of QEMU's guest.
pub const QEMU_NAME: &str = "qemu";
/// MiB of memory of each guest.
const MEMORY: u32 = 256;
/// The machines whose bodies run in the guest.
pub static MACHINES: [&TestMachine; 3] = [&fcnp_body::MACHINE, &velo_body::MACHINE, &rma_body::MACHINE];

/// The bodies that run in the guest: messages, transfers and interrupts of each kind of NIC.
pub const BODIES: [&str; 5] = [
    "interrupt_mode_wakes_the_daemon_and_the_call",
    "a_port_sends_to_itself",
    "messages_of_other_tags_are_kept_in_order",
    "puts_and_gets_of_all_sizes_arrive",
    "an_immediate_put_wakes_a_sleeping_receiver",
];

/// The compute core of a program outside both guests, by its rank.
pub const OUTER_RANK: u32 = 8;
/// The compute core in QEMU's guest, by its rank.
pub const QEMU_RANK: u32 = 9;
/// The VPID of a program outside both guests, of `ex1`.
pub const OUTER_VPID: u16 = 4;
/// The VPID in QEMU's guest, of `ex1`.
pub const QEMU_VPID: u16 = 5;

/// Functions with some of their attachments.
type Attachments = [(&'static [&'static str], &'static [&'static str]); 4];

/// The function by which the costs of accesses and interrupts are measured in our own virtual
/// machine.
pub const MEASURED: &str = "dma0";
/// As [`MEASURED`], in QEMU's guest.
pub const QEMU_MEASURED: &str = "dma1";

/// Those of our own virtual machine: what [`BODIES`] need, a network device, and [`MEASURED`].
const ATTACHMENTS: Attachments = [
    (&["io0", "cn0"], &["core0"]),
    (&["ex0", "ex1"], &["vpid0", "vpid1"]),
    (&["en0"], &["user0"]),
    (&[MEASURED], &["user0"]),
];
/// Those of QEMU's guest.
const QEMU_ATTACHMENTS: Attachments =
    [(&["cn2"], &["core1"]), (&["ex1"], &["vpid5"]), (&["en1"], &["user0"]), (&[QEMU_MEASURED], &["user0"])];

/// Returns one machine with all functions of [`MACHINES`], room for programs outside the first
/// guest (a third compute node, and two more VPIDs on each card), a network of two stations, and a
/// function in each guest for measurements.
pub fn machine() -> Machine {
    let pset = format!("[[pset]]\ncompute_nodes = 3\nfifo_depth = {}\n", fcnp_body::DEPTH);
    let mut text =
        format!("name = \"own\"\n{pset}[[extoll]]\nmesh = 2\nvpids = 6\n[[ethernet]]\nstations = 2\n");
    for name in [MEASURED, QEMU_MEASURED] {
        text += &format!("[[function]]\nname = \"{name}\"\nkind = \"dma-engine\"\n");
    }
    build(&parse(&text, "own.toml", &families()).expect("a description")).expect("a machine").0
}

/// Returns the configuration of the guest of our own virtual machine. `socket` returns the socket
/// of an attachment.
pub fn config(socket: impl Fn(&str, &str) -> PathBuf) -> GuestConfig {
    let config = guest::config(NAME, GuestDoor::Own, sockets(&ATTACHMENTS, socket));
    // With two, the kernel's idle second processor once had a double fault; whether the emulated
    // SVM caused it is not known. `guest-vms` has a machine with two.
    common(config).processors(1).terminal(true).reboots(true)
}

/// A file of the directory that our own virtual machine shares, in a folder and by a link to that.
pub const SHARED_FILE: &str = "lines";
/// Files in a folder of the shared directory.
pub const SHARED_COUNT: usize = 1000;

/// Returns the content of [`SHARED_FILE`], of many blocks.
pub fn shared_text() -> String {
    (0..40_000).map(|line| format!("line {line}\n")).collect()
}

/// Fills the directory that our own virtual machine shares.
///
/// # Errors
/// Those of the file system.
pub fn fill_shared(directory: &Path) -> io::Result<()> {
    for folder in ["folder", "many"] {
        fs::create_dir(directory.join(folder))?;
    }
    fs::write(directory.join("folder").join(SHARED_FILE), shared_text())?;
    symlink("folder", directory.join("link"))?;

    // More names than a block of the folder holds.
    for number in 0..SHARED_COUNT {
        fs::write(directory.join(format!("many/a-file-with-a-long-name-{number}")), "")?;
    }
    Ok(())
}

/// Returns the configuration of QEMU's guest, as [`config`].
pub fn qemu_config(socket: impl Fn(&str, &str) -> PathBuf) -> GuestConfig {
    let config = guest::config(QEMU_NAME, GuestDoor::Shim, sockets(&QEMU_ATTACHMENTS, socket));
    common(config).accelerator(Accelerator::Kvm).processors(1)
}

/// Returns the configuration of a guest of our own virtual machine with the functions of QEMU's, by
/// which the times of both virtual machines until the first instruction are compared.
pub fn config_like_qemus(socket: impl Fn(&str, &str) -> PathBuf) -> GuestConfig {
    let config = guest::config(NAME, GuestDoor::Own, sockets(&QEMU_ATTACHMENTS, socket));
    common(config).processors(1)
}

/// Adds what both guests have.
fn common(config: GuestConfig) -> GuestConfig {
    let config = config.memory(MEMORY).module("virtio_pci").module("virtio_net");
    config.env(PATIENCE, "5").boot_deadline(BOOT)
}

/// Returns the names of attachments with their sockets.
fn sockets(attachments: &Attachments, socket: impl Fn(&str, &str) -> PathBuf) -> Vec<(String, PathBuf)> {
    let all = attachments.iter().flat_map(|(functions, attachments)| {
        functions.iter().flat_map(|function| attachments.iter().map(move |name| (*function, *name)))
    });
    all.map(|(function, name)| (format!("{function}.{name}"), socket(function, name))).collect()
}
