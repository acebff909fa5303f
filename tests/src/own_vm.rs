//! A guest of our own virtual machine with NICs of two families: the test's host prepares its
//! files, and a program in another guest, where KVM runs 64-bit code, boots it (`guest-own`).

use std::path::PathBuf;

use nicforge_core::machine::Machine;
use nicforge_guest::GuestConfig;
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;

use crate::{
    backing::PATIENCE,
    bodies::{GuestDoor, TestMachine},
    fcnp_body, guest, rma_body, velo_body,
};

/// The name of the guest.
pub const NAME: &str = "own";
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

/// The compute core outside the guest, by its rank.
pub const OUTER_RANK: u32 = 8;
/// The VPID outside the guest, of `ex1`.
pub const OUTER_VPID: u16 = 4;

/// Functions with the attachments that the guest gets: those that [`BODIES`] need.
const ATTACHMENTS: [(&[&str], &[&str]); 2] =
    [(&["io0", "cn0"], &["core0"]), (&["ex0", "ex1"], &["vpid0", "vpid1"])];

/// Returns one machine with all functions of [`MACHINES`], and room for programs outside the guest:
/// a third compute node, and a fifth VPID on each card.
pub fn machine() -> Machine {
    let pset = format!("[[pset]]\ncompute_nodes = 3\nfifo_depth = {}\n", fcnp_body::DEPTH);
    let text = format!("name = \"own\"\n{pset}[[extoll]]\nmesh = 2\nvpids = 5\n");
    build(&parse(&text, "own.toml", &families()).expect("a description")).expect("a machine").0
}

/// Returns the configuration of the guest. `socket` returns the socket of an attachment.
pub fn config(socket: impl Fn(&str, &str) -> PathBuf) -> GuestConfig {
    let all = ATTACHMENTS.iter().flat_map(|(functions, attachments)| {
        functions.iter().flat_map(|function| attachments.iter().map(move |name| (*function, *name)))
    });
    let sockets = all.map(|(function, name)| (format!("{function}.{name}"), socket(function, name)));
    let config = guest::config(NAME, GuestDoor::Own, sockets.collect()).terminal(true);
    config.env(PATIENCE, "10").boot_deadline(3 * guest::LONG)
}
