//! The bodies of every other door, in a guest of QEMU: through VFIO behind a virtual IOMMU, and
//! through the kernel shim. Those in our own virtual machine are in `nested`.
//!
//! Bodies that need more contiguous memory than a kernel has go through the shim behind an IOMMU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::thread;

use nicforge_guest::Guest;
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    bodies::{self, GuestDoor, Guests, TestMachine},
    extoll_body, fcnp_body, guest, own_vm, portals_body, proof_body, rma_body, spi_body, tree_body,
    velo_body,
};

/// Boots a guest with all attachments of a machine, and runs the machine's bodies in it.
fn bodies_hold(door: GuestDoor, machine: &TestMachine) {
    let part = std::env::var("NICFORGE_BODIES").unwrap_or_default();
    let served = Served::new((machine.make)(), EventLoopKind::Auto);
    let (word, name) = (door.name(), machine.name);
    let config = guest::config(&format!("{word}-{name}"), door, machine.sockets(&served))
        .terminal(true)
        .program(env!("CARGO_BIN_EXE_guest_bodies"));
    let guest = guest::boot(&config);

    thread::scope(|scope| {
        scope.spawn(|| guest::answer_requests(&served, guest.terminal().expect("it was asked for")));
        // Kills the guest in every case, which ends the operator's thread too.
        let _end = KillOnDrop(&guest);
        let line = "stty -F /dev/ttyS2 raw -echo";
        guest::run(&guest, &format!("{line}; guest_bodies {word} {name} {part}"));
    });
}

/// Kills a guest on drop.
struct KillOnDrop<'a>(&'a Guest);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

macro_rules! guests {
    ($($test:ident: $door:ident $library:ident;)+) => {
        /// The guests that the tests boot.
        const BOOTED: &[(&TestMachine, GuestDoor)] = &[$((&$library::MACHINE, GuestDoor::$door),)+];

        $(#[test]
        fn $test() {
            bodies_hold(GuestDoor::$door, &$library::MACHINE);
        })+
    };
}

guests! {
    proof_devices_through_vfio: Vfio proof_body;
    proof_devices_through_the_shim: Shim proof_body;
    the_tree_through_vfio: Vfio tree_body;
    the_tree_through_the_shim: Shim tree_body;
    fcnp_through_vfio: Vfio fcnp_body;
    fcnp_through_the_shim: Shim fcnp_body;
    velo_through_vfio: Vfio velo_body;
    velo_through_the_shim: Shim velo_body;
    rma_through_vfio: Vfio rma_body;
    rma_through_the_shim: Shim rma_body;
    matching_over_extoll_through_the_shim: Shim extoll_body;
    matching_over_extoll_through_vfio: Vfio extoll_body;
    matching_over_extoll_through_the_shim_behind_an_iommu: ShimIommu extoll_body;
    rma_through_the_shim_behind_an_iommu: ShimIommu rma_body;
    portals_through_vfio: Vfio portals_body;
    portals_through_the_shim: Shim portals_body;
    spi_through_vfio: Vfio spi_body;
    spi_through_the_shim: Shim spi_body;
}

#[test]
fn every_machine_has_a_guest_for_each_of_its_doors() {
    for machine in bodies::all().iter().flat_map(|body| body.machines) {
        let Guests::Booted { doors, .. } = machine.guests else { continue };

        for door in doors {
            let in_own_vm = own_vm::MACHINES.iter().map(|machine| (*machine, GuestDoor::Own));
            let booted = BOOTED.iter().copied().chain(in_own_vm);
            let boots = booted.filter(|(booted, through)| booted.name == machine.name && through == door);
            assert_eq!(boots.count(), 1, "{} through {}", machine.name, door.name());
        }
    }
}
