//! The NIC families and devices that come with nicforge. The program, tests and benches take them
//! from this list, and no other place names all of them.
#![forbid(unsafe_code)]

use nicforge_family::Families;

/// Returns all NIC families and kinds of devices that come with nicforge.
pub fn families() -> Families {
    let families = Families::new()
        .family(nicforge_tree::Psets)
        .family(nicforge_extoll::Networks)
        .family(nicforge_seastar::Networks::default())
        .family(nicforge_mu::Networks)
        .family(nicforge_torus::Networks)
        .family(nicforge_virtio_net::Ethernets);
    let kinds = nicforge_proof::kinds()
        .into_iter()
        .chain([nicforge_idio16::kind()])
        .chain(nicforge_virtio_net::kinds())
        .chain(nicforge_virtio_devices::kinds());
    kinds.fold(families, Families::device)
}
