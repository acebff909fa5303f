//! The bodies of every other door, in a guest: through VFIO behind a virtual IOMMU, and through the
//! kernel shim. Bodies that need more contiguous memory than a kernel has go through the shim
//! behind an IOMMU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::thread;

use nicforge_guest::Guest;
use nicforge_tests::{
    backing::{EventLoopKind, Served},
    guest,
    guest_bodies::{Door, machine},
};

/// Boots a guest with all attachments of a machine, and runs the machine's bodies in it.
fn bodies_hold(door: Door, name: &str, part: &str) {
    let bodies = machine(name);
    let served = Served::new((bodies.make)(), EventLoopKind::Auto);
    let word = door.name();
    let config = guest::config(&format!("{word}-{name}"), door, bodies.sockets(&served))
        .terminal(true)
        .program(env!("CARGO_BIN_EXE_guest_bodies"));
    let guest = guest::boot(&config);

    thread::scope(|scope| {
        scope.spawn(|| guest::operate(&served, guest.terminal().expect("it was asked for")));
        // Kills the guest in every case, which ends the operator's thread too.
        let _end = EndOf(&guest);
        let line = "stty -F /dev/ttyS2 raw -echo";
        guest::run(&guest, &format!("{line}; guest_bodies {word} {name} {part}"));
    });
}

/// Kills a guest on drop.
struct EndOf<'a>(&'a Guest);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

macro_rules! machines {
    ($($test:ident: $door:ident $name:literal;)+) => {
        $(#[test]
        fn $test() {
            bodies_hold(Door::$door, $name, &std::env::var("NICFORGE_BODIES").unwrap_or_default());
        })+
    };
}

machines! {
    proof_devices_through_vfio: Vfio "proof";
    proof_devices_through_the_shim: Shim "proof";
    the_tree_through_vfio: Vfio "tree";
    the_tree_through_the_shim: Shim "tree";
    fcnp_through_vfio: Vfio "fcnp";
    fcnp_through_the_shim: Shim "fcnp";
    velo_through_vfio: Vfio "velo";
    velo_through_the_shim: Shim "velo";
    rma_through_vfio: Vfio "rma";
    rma_through_the_shim: Shim "rma";
    matching_over_extoll_through_the_shim: Shim "transport";
    matching_over_extoll_through_vfio: Vfio "transport";
    matching_over_extoll_through_the_shim_behind_an_iommu: ShimIommu "transport";
    rma_through_the_shim_behind_an_iommu: ShimIommu "rma";
}
