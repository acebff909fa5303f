//! Machines that are accepted, and machines that are refused.

use super::*;

#[test]
fn one_pset_of_sixteen_is_a_binary_tree_below_its_io_node() {
    let topology = Topology::psets(&[16]).unwrap();

    assert_eq!(topology.nodes.len(), 17);
    assert_eq!(topology.links.len(), 16);
    assert_eq!(topology.nodes[0].pset_rank, None);
    assert_eq!(topology.nodes[16].pset_rank, Some(15));
    assert_eq!(topology.nodes[0].routes.targets[2], Route::Port(2));
    assert_eq!(topology.nodes[1].routes.targets[0], Route::Port(0));
    assert_eq!(topology.nodes[5].routes.targets[5], Route::Local);
}

#[test]
fn several_psets_are_connected_and_have_separate_classes() {
    let topology = Topology::psets(&[4, 4, 4]).unwrap();

    assert_eq!(topology.validate(), Ok(()));
    let second_io = &topology.nodes[5];
    assert_eq!(second_io.io_node, 5);
    assert_eq!(second_io.routes.classes[CLASS_PSET].up(), 0);
    assert_eq!(second_io.routes.classes[CLASS_PSET].children(), 0b010);
    assert_eq!(second_io.routes.classes[CLASS_ALL].up(), 0b001);
    assert_eq!(second_io.routes.classes[CLASS_ALL].children(), 0b110);
    assert!(!second_io.routes.classes[CLASS_COMPUTE].sends());
}

#[test]
fn the_largest_machine_is_accepted_and_one_node_more_refused() {
    assert!(Topology::psets(&[63; 16]).is_ok());
    assert_eq!(Topology::psets(&[1024]), Err(TopologyError::Nodes { nodes: 1025 }));
}

#[test]
fn a_cycle_is_refused() {
    let mut topology = Topology::psets(&[3]).unwrap();
    topology.links.push(TopologyLink { a: (2, 1), b: (3, 1) });

    assert!(matches!(topology.validate(), Err(TopologyError::Cycle { .. })));
}

#[test]
fn a_missing_link_is_refused() {
    let mut topology = Topology::psets(&[3]).unwrap();
    topology.links.pop();

    assert_eq!(topology.validate(), Err(TopologyError::Unreachable { node: 3 }));
}

#[test]
fn two_links_at_a_port_are_refused() {
    let mut topology = Topology::psets(&[2]).unwrap();
    topology.links.push(TopologyLink { a: (0, 1), b: (2, 1) });

    assert_eq!(topology.validate(), Err(TopologyError::PortTaken { node: 0, port: 1 }));
}

#[test]
fn two_classes_with_different_roots_can_deadlock_and_are_refused() {
    let mut topology = Topology::psets(&[3]).unwrap();
    topology.set_class(4, 3, |_| true).unwrap();

    assert!(matches!(topology.validate(), Err(TopologyError::Deadlock { .. })));
}

#[test]
fn a_class_that_its_neighbour_does_not_know_is_refused() {
    let mut topology = Topology::psets(&[3]).unwrap();
    topology.nodes[1].routes.classes[CLASS_ALL] = ClassRoute::default();

    assert!(matches!(topology.validate(), Err(TopologyError::ClassMismatch { class: CLASS_ALL, .. })));
}

#[test]
fn a_route_in_the_wrong_direction_is_refused() {
    let mut topology = Topology::psets(&[3]).unwrap();
    topology.nodes[0].routes.targets[3] = Route::Port(2);

    assert_eq!(topology.validate(), Err(TopologyError::WrongRoute { node: 0, target: 3 }));
}
