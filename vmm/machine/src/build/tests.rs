//! Machines built from files with the families that come with nicforge.

use nicforge_nics::families;

use super::*;
use crate::description::parse;

/// Returns the nodes of the machine of a machine file.
fn build_text(text: &str) -> Built {
    build(&parse(text, "m.toml", &families()).unwrap()).unwrap().1
}

#[test]
fn a_pset_has_an_io_node_and_its_compute_nodes_with_four_cores_and_an_admin() {
    let built = build_text("name = \"p\"\n[[pset]]\ncompute_nodes = 2\n");
    let names: Vec<_> =
        built.nodes.iter().map(|node| (node.name.as_str(), node.role.name(), node.rank)).collect();
    assert_eq!(names, [("io0", "io", 0), ("cn0", "compute", 0), ("cn1", "compute", 1)]);
    assert_eq!(built.nodes[0].users().count(), 4);
    assert_eq!(built.nodes[0].attachments.len(), 5);
}

#[test]
fn node_numbers_continue_from_one_pset_to_the_next() {
    let built = build_text("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[[pset]]\ncompute_nodes = 2\n");
    for name in ["io0", "io1", "cn0", "cn1", "cn2"] {
        assert!(built.node(name).is_some(), "{name}");
    }
    assert_eq!(built.nodes.len(), 5);
}

#[test]
fn a_network_has_cards_with_their_vpids_and_an_admin() {
    let text = "name = \"p\"\n[[extoll]]\ntorus = [2, 2]\nvpids = 3\n[[extoll]]\nmesh = 2\n";
    let built = build_text(text);
    let names: Vec<_> = built.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["ex0", "ex1", "ex2", "ex3", "ex4", "ex5"]);
    assert_eq!(built.nodes[3].users().count(), 3);
    assert_eq!(built.nodes[3].attachments.len(), 4);
    assert_eq!(built.nodes[5].users().count(), usize::from(nicforge_hwi::extoll::DEFAULT_VPIDS));
}

#[test]
fn single_functions_are_devices() {
    let built = build_text("name = \"p\"\n[[function]]\nname = \"x\"\nkind = \"addressed-send\"\n");
    assert_eq!(built.nodes[0].role, Role::DEVICE);
    assert_eq!(built.nodes[0].users().count(), 4);
}

#[test]
fn the_largest_pset_is_built() {
    let built = build_text("name = \"p\"\n[[pset]]\ncompute_nodes = 256\n");
    assert_eq!(built.nodes.len(), 257);
}

/// Returns the error of building the machine of a machine file.
fn build_error(text: &str) -> String {
    let plan = parse(text, "m.toml", &families()).unwrap();
    match build(&plan) {
        Ok(_) => "no error".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_link_to_a_port_that_the_device_does_not_have_is_refused() {
    let linked = |kind: &str, port: u8| {
        let mac = if kind == "virtio-net" { "mac = \"52:54:00:00:01:01\"\n" } else { "" };
        build_error(&format!(
            "name = \"p\"\n[[function]]\nname = \"nic0\"\nkind = \"{kind}\"\n{mac}\
             [[function]]\nname = \"hub0\"\nkind = \"ethernet-switch\"\n\
             [[link]]\na = \"nic0:{port}\"\nb = \"hub0:63\"\n"
        ))
    };

    assert_eq!(linked("virtio-net", 0), "no error");
    assert_eq!(linked("virtio-net", 1), "[[link]]: nic0:1 is no port of the device: it has one, port 0");
    assert_eq!(linked("idio-16", 0), "[[link]]: nic0:0 is no port of the device: it has no ports");
}
