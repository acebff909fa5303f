//! The bodies of every other door, in a guest of QEMU: through VFIO behind a virtual IOMMU, and
//! through the kernel shim. Those in our own virtual machine are in `nested`.
//!
//! Bodies that need more contiguous memory than a kernel has go through the shim behind an IOMMU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::thread;

use nicforge_guest::Guest;
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    bgl_body,
    bodies::{self, GuestDoor, Guests, TestMachine},
    extoll_body, fcnp_body, guest, own_vm, portals_body, proof_body, rma_body, spi_body, tree_body,
    velo_body,
};

/// A machine that a guest reaches, and the machines whose bodies run on it: itself, and others that
/// are made alike.
type Shared = (&'static TestMachine, &'static [&'static TestMachine]);

/// EXTOLL cards, which three libraries use.
const EXTOLL: Shared =
    (&velo_body::MACHINE, &[&velo_body::MACHINE, &rma_body::MACHINE, &extoll_body::MACHINE]);
/// EXTOLL cards, in a guest for the bodies that need much memory.
const EXTOLL_MEMORY: Shared = (&rma_body::MACHINE, &[&rma_body::MACHINE, &extoll_body::MACHINE]);
const BGL: Shared = (&bgl_body::MACHINE, &[&bgl_body::MACHINE]);
const FCNP: Shared = (&fcnp_body::MACHINE, &[&fcnp_body::MACHINE]);
const PORTALS: Shared = (&portals_body::MACHINE, &[&portals_body::MACHINE]);
const PROOF: Shared = (&proof_body::MACHINE, &[&proof_body::MACHINE]);
const SPI: Shared = (&spi_body::MACHINE, &[&spi_body::MACHINE]);
const TREE: Shared = (&tree_body::MACHINE, &[&tree_body::MACHINE]);

/// Boots a guest with all attachments of machines, whose functions have different names, and runs
/// the machines' bodies in it.
fn bodies_hold(name: &str, door: GuestDoor, machines: &[Shared]) {
    let part = std::env::var("NICFORGE_BODIES").unwrap_or_default();
    let served: Vec<_> =
        machines.iter().map(|(machine, _)| Served::new((machine.make)(), EventLoopKind::Auto)).collect();
    let sockets = machines.iter().zip(&served).flat_map(|((machine, _), served)| machine.sockets(served));
    let config = guest::config(name, door, sockets.collect())
        .terminal(true)
        .program(env!("CARGO_BIN_EXE_guest_bodies"));
    let guest = guest::boot(&config);

    let names: Vec<_> =
        machines.iter().flat_map(move |(_, alike)| alike.iter()).map(|machine| machine.name).collect();
    thread::scope(|scope| {
        scope.spawn(|| guest::answer_requests(&served, guest.terminal().expect("it was asked for")));
        // Kills the guest in every case, which ends the operator's thread too.
        let _end = KillOnDrop(&guest);
        let line = "stty -F /dev/ttyS2 raw -echo";
        guest::run(&guest, &format!("{line}; guest_bodies {} {} {part}", door.name(), names.join(",")));
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
    ($($test:ident: $door:ident [$($machine:ident),+];)+) => {
        /// The guests that the tests boot.
        const BOOTED: &[(GuestDoor, &[Shared])] = &[$((GuestDoor::$door, &[$($machine),+]),)+];

        $(#[test]
        fn $test() {
            bodies_hold(stringify!($test), GuestDoor::$door, &[$($machine),+]);
        })+
    };
}

// A boot takes an emulated processor as long as many bodies, so that machines share guests.
guests! {
    extoll_portals_and_spi_through_vfio: Vfio [EXTOLL, PORTALS, SPI];
    extoll_portals_and_spi_through_the_shim: Shim [EXTOLL, PORTALS, SPI];
    fcnp_and_proof_devices_through_vfio: Vfio [FCNP, PROOF];
    fcnp_and_proof_devices_through_the_shim: Shim [FCNP, PROOF];
    extoll_through_the_shim_behind_an_iommu: ShimIommu [EXTOLL_MEMORY];
    the_tree_and_the_torus_through_vfio: Vfio [TREE, BGL];
    the_tree_and_the_torus_through_the_shim: Shim [TREE, BGL];
}

#[test]
fn every_machine_has_a_guest_for_each_of_its_doors() {
    for machine in bodies::all().iter().flat_map(|body| body.machines) {
        let Guests::Booted { doors, .. } = machine.guests else { continue };

        for door in doors {
            let in_own_vm = own_vm::MACHINES.iter().map(|machine| (*machine, GuestDoor::Own));
            let on_qemu = BOOTED.iter().flat_map(|(door, machines)| {
                machines.iter().flat_map(move |(_, alike)| alike.iter().map(move |machine| (*machine, *door)))
            });
            let booted = on_qemu.chain(in_own_vm);
            let boots = booted.filter(|(booted, through)| booted.name == machine.name && through == door);
            assert_eq!(boots.count(), 1, "{} through {}", machine.name, door.name());
        }
    }
}
