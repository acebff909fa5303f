#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;

use super::*;

/// Asserts that each node has a route to each node, and that all cards' configurations are valid.
fn assert_all_reachable(topology: &Topology) {
    // The number of VPIDs does not matter here.
    const VPIDS: u16 = 4;

    for from in 0..topology.nodes() {
        for to in 0..topology.nodes() {
            assert!(topology.hops(from, to).is_some(), "{from} to {to}");
        }
        topology.config(from, VPIDS).validate().unwrap();
    }
}

#[test]
fn tori_reach_every_node_by_the_shortest_way() {
    for dimensions in
        [&[][..], &[1], &[2], &[3], &[4], &[7], &[2, 2], &[4, 3], &[2, 2, 2], &[3, 4, 5], &[8, 8, 8]]
    {
        let topology = Topology::torus(dimensions).unwrap();
        assert_eq!(topology.nodes(), dimensions.iter().product::<u32>());

        let first: Vec<_> = (0..topology.nodes()).map(|to| topology.hops(0, to).unwrap()).collect();
        for (to, hops) in (0..).zip(first) {
            let mut stride = 1;
            let mut shortest = 0;
            for &size in dimensions {
                let at = to / stride % size;
                shortest += at.min(size - at);
                stride *= size;
            }
            assert_eq!(hops, shortest, "{dimensions:?} to {to}");
        }

        if topology.nodes() <= 64 {
            assert_all_reachable(&topology);
        }
    }
}

#[test]
fn hypercubes_and_meshes_reach_every_node() {
    for dimensions in 0..=6 {
        let topology = Topology::hypercube(dimensions).unwrap();
        assert_eq!(topology.hops(0, topology.nodes() - 1), Some(dimensions));
        assert_all_reachable(&topology);
    }

    for nodes in 1..=7 {
        let topology = Topology::full_mesh(nodes).unwrap();
        assert_eq!(topology.links().len() as u32, nodes * (nodes - 1) / 2);
        assert_all_reachable(&topology);
    }
}

#[test]
fn a_torus_of_the_maximum_number_of_nodes_can_be_built() {
    assert_eq!(Topology::torus(&[16, 16, 8]).unwrap().nodes(), MAX_NODES);
}

#[test]
fn impossible_shapes_are_refused_with_their_numbers() {
    assert_eq!(Topology::torus(&[2, 2, 2, 2]), Err(TopologyError::Degree { what: "a torus", links: 8 }));
    assert_eq!(Topology::torus(&[0, 4]), Err(TopologyError::Nodes { nodes: 0 }));
    assert_eq!(
        Topology::torus(&[u32::MAX, u32::MAX, u32::MAX]),
        Err(TopologyError::Nodes { nodes: u64::MAX })
    );
    assert_eq!(Topology::torus(&[2049]), Err(TopologyError::Nodes { nodes: 2049 }));
    assert_eq!(Topology::hypercube(7), Err(TopologyError::Degree { what: "a hypercube", links: 7 }));
    assert_eq!(Topology::full_mesh(8), Err(TopologyError::Degree { what: "a full mesh", links: 7 }));
    assert_eq!(Topology::full_mesh(0), Err(TopologyError::Nodes { nodes: 0 }));
}

#[test]
fn tables_of_a_torus_are_in_dimension_order_and_change_lanes_at_the_dateline() {
    let torus = Topology::torus(&[4, 2]).unwrap();
    let port = |port, lane| Route::Port { port, lane };

    let first =
        [Route::Local, port(0, 1), port(0, 1), port(1, 0), port(2, 1), port(0, 1), port(0, 1), port(1, 0)];
    assert_eq!(torus.routes().of(0), first);
    let last =
        [port(0, 0), port(0, 0), port(1, 1), port(3, 1), port(0, 0), port(0, 0), port(1, 1), Route::Local];
    assert_eq!(torus.routes().of(7), last);
}

#[test]
fn links_of_a_torus_lead_from_the_port_up_to_the_next_nodes_port_down() {
    let link = |a, b| TopologyLink { a, b };

    assert_eq!(Topology::torus(&[2]).unwrap().links(), [link((0, 0), (1, 1))]);
    assert_eq!(
        Topology::torus(&[3]).unwrap().links(),
        [link((0, 0), (1, 1)), link((1, 0), (2, 1)), link((2, 0), (0, 1))]
    );
}

#[test]
fn a_ring_without_a_dateline_is_refused_and_its_cycle_is_named() {
    let ring = Topology::torus(&[4]).unwrap();
    let mut routes = Routes::new(4);
    for node in 0..4 {
        for target in (0..4).filter(|&target| target != node) {
            routes.set(node, target, Route::Port { port: 0, lane: 0 });
        }
    }

    let refused = Topology::with_routes(4, ring.links().to_vec(), routes);
    assert!(matches!(refused, Err(TopologyError::Deadlock { lane: 0, port: 0, .. })), "{refused:?}");
    let text = refused.unwrap_err().to_string();
    assert!((0..4).all(|node| text.contains(&format!("node {node} port 0 channel 0 -> "))), "{text}");
}

#[test]
fn a_table_that_leads_in_a_circle_or_to_a_port_without_a_link_is_refused() {
    let ring = Topology::torus(&[3]).unwrap();
    // Nodes 0 and 1 send packets for node 2 to each other.
    let mut routes = ring.routes().clone();
    routes.set(0, 2, Route::Port { port: 0, lane: 1 });
    routes.set(1, 2, Route::Port { port: 1, lane: 1 });
    let refused = Topology::with_routes(3, ring.links().to_vec(), routes);
    assert!(matches!(refused, Err(TopologyError::Deadlock { .. })), "{refused:?}");

    let mut routes = ring.routes().clone();
    routes.set(0, 2, Route::Port { port: 5, lane: 0 });
    let refused = Topology::with_routes(3, ring.links().to_vec(), routes);
    assert_eq!(refused, Err(TopologyError::Unreachable { node: 0, target: 2 }));
}

#[test]
fn impossible_links_are_refused() {
    let link = TopologyLink { a: (0, 0), b: (1, 6) };
    assert_eq!(Topology::from_links(2, vec![link]), Err(TopologyError::Link { link }));

    let link = TopologyLink { a: (0, 0), b: (0, 1) };
    assert_eq!(Topology::from_links(2, vec![link]), Err(TopologyError::Link { link }));

    let twice = vec![TopologyLink { a: (0, 0), b: (1, 0) }, TopologyLink { a: (0, 0), b: (1, 1) }];
    assert_eq!(Topology::from_links(2, twice), Err(TopologyError::PortTaken { node: 0, port: 0 }));
    assert_eq!(Topology::from_links(2, Vec::new()), Err(TopologyError::Unreachable { node: 1, target: 0 }));
}

proptest! {
    /// Any connected network gets tables that reach every node and can't deadlock.
    #[test]
    fn any_connected_network_is_routed(nodes in 2u32..24, picks in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..60)) {
        let mut used = vec![0u8; nodes as usize];
        let mut links = Vec::new();

        // A tree in which each node has at most four links keeps the network connected.
        let tree = (1..nodes).map(|node| (node, (node - 1) / 3));
        let more = picks.into_iter().map(|(a, b)| (a % nodes, b % nodes));
        for (a, b) in tree.chain(more) {
            if a != b && used[a as usize] < 6 && used[b as usize] < 6 {
                links.push(TopologyLink { a: (a, used[a as usize]), b: (b, used[b as usize]) });
                used[a as usize] += 1;
                used[b as usize] += 1;
            }
        }

        let topology = Topology::from_links(nodes, links).unwrap();
        assert_all_reachable(&topology);
    }
}
