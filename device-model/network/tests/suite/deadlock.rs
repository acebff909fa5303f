//! Networks that the deadlock check accepts, and networks that it refuses.

use std::collections::VecDeque;

use nicforge_network::{
    deadlock::{
        Channel, Cycle, DeadlockError, Exits, NodeChannels, Routing, WaitGraph, bubble, by_target,
        fixed_paths,
    },
    shape::{Cabling, Dimension, Direction, FullMesh, Hypercube, Shape, Torus, Tree},
};
use proptest::prelude::*;

use crate::strategies;

/// One virtual channel on each link, and no FIFO that packets wait for.
const ONE_CHANNEL: NodeChannels = NodeChannels { vcs: 1, fifos: 0 };

/// Returns the graph of a routing on one virtual channel.
fn graph(cabling: &impl Cabling, routing: &impl Routing) -> WaitGraph {
    let mut graph = WaitGraph::new(cabling, ONE_CHANNEL).unwrap();
    graph.add_routes(routing).unwrap();
    graph
}

/// Returns the graph of a shape's fixed paths on one virtual channel.
fn fixed(shape: &impl Shape) -> WaitGraph {
    graph(shape, &fixed_paths(shape, 0))
}

/// Returns the cycle for which a graph is refused.
fn cycle_of(checked: Result<(), DeadlockError>) -> Cycle {
    match checked {
        Err(DeadlockError::Deadlock { cycle } | DeadlockError::Endless { cycle, .. }) => cycle,
        other => panic!("no cycle in {other:?}"),
    }
}

/// Returns virtual channel 0 of the link at a port.
fn link(node: u32, port: u8) -> Channel {
    Channel::Link { node, port, vc: 0 }
}

/// Asserts that each channel of a cycle begins at the node at which the one before it ends.
fn assert_connected(cabling: &impl Cabling, cycle: &Cycle) {
    let channels = cycle.channels();
    for (index, channel) in channels.iter().enumerate() {
        let place = match *channel {
            Channel::Link { node, port, .. } => cabling.far_end(node, port).unwrap().node,
            Channel::Fifo { node, .. } => node,
        };
        let (Channel::Link { node, .. } | Channel::Fifo { node, .. }) =
            channels[(index + 1) % channels.len()];
        assert_eq!(node, place, "{cycle}");
    }
}

#[test]
fn ring_without_the_bubble_rule_is_refused_and_its_cycle_is_named() {
    let ring = Torus::new(&[Dimension::torus(4)]).unwrap();
    let graph = fixed(&ring);

    let error = graph.check().unwrap_err();

    let text = error.to_string();
    let mut channels = cycle_of(Err(error)).channels().to_vec();
    channels.sort_unstable();
    assert_eq!(channels, [link(0, 0), link(1, 0), link(2, 0), link(3, 0)]);
    assert!(text.contains("node 2 port 0 channel 0 -> node 3 port 0 channel 0 -> "), "{text}");
    assert!(text.ends_with("-> back to the first"), "{text}");
    assert_eq!(graph.check_with(bubble(&ring, 0)), Ok(()));
}

#[test]
fn bubble_rule_of_another_channel_does_not_help() {
    let ring = Torus::new(&[Dimension::torus(4)]).unwrap();

    assert!(fixed(&ring).check_with(bubble(&ring, 1)).is_err());
}

#[test]
fn cycle_of_a_long_ring_is_named_in_short() {
    let ring = Torus::new(&[Dimension::torus(100)]).unwrap();

    let error = fixed(&ring).check().unwrap_err();

    assert!(error.to_string().ends_with("-> 84 more -> back to the first"), "{error}");
    assert_eq!(cycle_of(Err(error)).channels().len(), 100);
}

#[test]
fn ring_with_a_dateline_needs_no_bubble() {
    let ring = Torus::new(&[Dimension::torus(5)]).unwrap();
    let dateline = by_target(5, |node, target, exits: &mut Exits| match ring.port_towards(node, target) {
        Some(port) => {
            let crosses = if port == 0 { target < node } else { target > node };
            exits.link(port, u8::from(!crosses));
        }
        None => exits.deliver(),
    });

    let mut graph = WaitGraph::new(&ring, NodeChannels { vcs: 2, fifos: 0 }).unwrap();
    graph.add_routes(&dateline).unwrap();

    assert_eq!(graph.check(), Ok(()));
}

proptest! {
    #[test]
    fn dimension_order_is_accepted_with_the_bubble_rule_and_refused_without(torus in strategies::torus()) {
        let graph = fixed(&torus);
        prop_assert_eq!(graph.check_with(bubble(&torus, 0)), Ok(()));

        // A packet waits for another one of its ring only if some path has two hops in a ring.
        let has_cycle = torus.dimensions().iter().any(|dimension| dimension.wraps && dimension.length > 3);
        match graph.check() {
            Ok(()) => prop_assert!(!has_cycle),
            refused => {
                prop_assert!(has_cycle);
                assert_connected(&torus, &cycle_of(refused));
            }
        }
    }

    #[test]
    fn fixed_paths_of_trees_are_accepted(nodes in 1u32..=64, fan_out in 1u32..=8) {
        prop_assert_eq!(fixed(&Tree::new(nodes, fan_out).unwrap()).check(), Ok(()));
    }

    /// All up*/down* routes at once: a packet may choose at each node.
    #[test]
    fn up_down_routes_of_any_network_are_accepted(wiring in strategies::wiring()) {
        let rank = ranks(&wiring);
        let is_up = |node: u32, next: u32| rank[next as usize] < rank[node as usize];
        let below: Vec<Vec<bool>> = (0..wiring.nodes()).map(|target| reaching_down(&wiring, &rank, target)).collect();

        let routing = by_target(wiring.nodes(), |node, target, exits: &mut Exits| {
            if node == target {
                return exits.deliver();
            }
            let goes_down = below[target as usize][node as usize];
            for (port, far) in wiring.neighbours(node) {
                let up = is_up(node, far.node);
                if up != goes_down && (up || below[target as usize][far.node as usize]) {
                    exits.link(port, 0);
                }
            }
        });

        prop_assert_eq!(graph(&wiring, &routing).check(), Ok(()));
    }
}

/// Returns each node's position in a breadth-first walk from node 0.
fn ranks(cabling: &impl Cabling) -> Vec<u32> {
    let mut rank = vec![u32::MAX; cabling.nodes() as usize];
    let mut waiting = VecDeque::from([0]);
    rank[0] = 0;

    let mut next = 1;
    while let Some(node) = waiting.pop_front() {
        for (_, far) in cabling.neighbours(node) {
            if rank[far.node as usize] == u32::MAX {
                rank[far.node as usize] = next;
                next += 1;
                waiting.push_back(far.node);
            }
        }
    }
    rank
}

/// Returns for each node whether hops to higher ranks alone lead to the target.
fn reaching_down(cabling: &impl Cabling, rank: &[u32], target: u32) -> Vec<bool> {
    let mut reaches = vec![false; cabling.nodes() as usize];
    let mut waiting = VecDeque::from([target]);
    reaches[target as usize] = true;

    while let Some(node) = waiting.pop_front() {
        for (_, far) in cabling.neighbours(node) {
            if rank[far.node as usize] < rank[node as usize] && !reaches[far.node as usize] {
                reaches[far.node as usize] = true;
                waiting.push_back(far.node);
            }
        }
    }
    reaches
}

#[test]
fn lowest_bit_first_in_hypercubes_is_accepted() {
    for dimensions in 0..=7 {
        assert_eq!(fixed(&Hypercube::new(dimensions).unwrap()).check(), Ok(()));
    }
}

#[test]
fn any_bit_first_in_a_hypercube_is_refused() {
    let cube = Hypercube::new(3).unwrap();
    let any_bit = by_target(8, |node, target, exits: &mut Exits| match node ^ target {
        0 => exits.deliver(),
        bits => (0..3).filter(|bit| bits & (1 << bit) != 0).for_each(|bit| exits.link(bit, 0)),
    });

    let cycle = cycle_of(graph(&cube, &any_bit).check());

    assert_connected(&cube, &cycle);
}

#[test]
fn direct_paths_of_a_full_mesh_are_accepted() {
    assert_eq!(fixed(&FullMesh::new(16).unwrap()).check(), Ok(()));
}

/// Adds the ports of all shortest paths of a mesh on a virtual channel, and with `west_first` only
/// the way down dimension 0 while there is one.
fn adaptive(mesh: &Torus, node: u32, target: u32, west_first: bool, exits: &mut Exits) {
    let (from, to) = (mesh.coordinates(node).unwrap(), mesh.coordinates(target).unwrap());
    for dimension in 0..mesh.dimensions().len() {
        let Some(way) = mesh.way(dimension, from[dimension], to[dimension]) else { continue };
        let down = way.direction == Direction::Down;
        exits.link(dimension as u8 * 2 + u8::from(down), 0);
        if west_first && dimension == 0 && down {
            return;
        }
    }
    if node == target {
        exits.deliver();
    }
}

#[test]
fn adaptive_routes_in_a_mesh_are_refused_unless_west_comes_first() {
    let mesh = Torus::new(&[Dimension::mesh(4), Dimension::mesh(4)]).unwrap();
    let routing = |west_first| {
        by_target(16, move |node, target, exits: &mut Exits| adaptive(&mesh, node, target, west_first, exits))
    };

    let cycle = cycle_of(graph(&mesh, &routing(false)).check());

    assert!(cycle.channels().len() >= 4, "{cycle}");
    assert_connected(&mesh, &cycle);
    assert_eq!(graph(&mesh, &routing(true)).check(), Ok(()));
}

#[test]
fn bubble_rule_does_not_cover_a_cycle_through_two_dimensions() {
    let torus = Torus::new(&[Dimension::torus(4), Dimension::torus(4)]).unwrap();
    // Packets for nodes with even numbers correct dimension 1 first.
    let mixed = by_target(16, |node, target, exits: &mut Exits| {
        let order = if target % 2 == 0 { [1, 0] } else { [0, 1] };
        let (from, to) = (torus.coordinates(node).unwrap(), torus.coordinates(target).unwrap());
        let first = order
            .into_iter()
            .find_map(|dimension| Some((dimension, torus.way(dimension, from[dimension], to[dimension])?)));
        match first {
            Some((dimension, way)) => {
                exits.link(dimension as u8 * 2 + u8::from(way.direction == Direction::Down), 0);
            }
            None => exits.deliver(),
        }
    });

    let cycle = cycle_of(graph(&torus, &mixed).check_with(bubble(&torus, 0)));

    assert_connected(&torus, &cycle);
    let in_first = cycle.channels().iter().any(|channel| matches!(channel, Channel::Link { port: ..2, .. }));
    let in_second = cycle.channels().iter().any(|channel| matches!(channel, Channel::Link { port: 2.., .. }));
    assert!(in_first && in_second, "{cycle}");
}

#[test]
fn route_that_passes_its_target_on_a_ring_is_refused_despite_the_bubble_rule() {
    let ring = Torus::new(&[Dimension::torus(4)]).unwrap();
    let passes = by_target(4, |node, target, exits: &mut Exits| {
        if node == target && target != 2 {
            exits.deliver();
        } else {
            exits.link(0, 0);
        }
    });

    let refused = WaitGraph::new(&ring, ONE_CHANNEL).unwrap().add_routes(&passes);

    assert!(matches!(refused, Err(DeadlockError::Endless { word: 2, .. })), "{refused:?}");
    assert_eq!(cycle_of(refused).channels(), [link(0, 0), link(1, 0), link(2, 0), link(3, 0)]);
}

#[test]
fn wrong_routes_are_refused_with_their_place() {
    let mesh = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let with = |wrong: fn(&mut Exits)| {
        let routing = by_target(3, |node, target, exits: &mut Exits| match mesh.port_towards(node, target) {
            Some(_) if (node, target) == (1, 2) => wrong(exits),
            Some(port) => exits.link(port, 0),
            None => exits.deliver(),
        });
        WaitGraph::new(&mesh, ONE_CHANNEL).unwrap().add_routes(&routing)
    };

    assert_eq!(with(|_| ()), Err(DeadlockError::NoRoute { node: 1, word: 2 }));
    assert_eq!(with(Exits::deliver), Err(DeadlockError::WrongNode { node: 1, word: 2, target: 2 }));
    assert_eq!(
        with(|exits| exits.link(0, 1)),
        Err(DeadlockError::NoChannel { channel: Channel::Link { node: 1, port: 0, vc: 1 } })
    );
    assert_eq!(
        with(|exits| exits.fifo(0)),
        Err(DeadlockError::NoChannel { channel: Channel::Fifo { node: 1, fifo: 0 } })
    );

    let back = with(|exits| exits.link(1, 0));
    assert!(matches!(back, Err(DeadlockError::Endless { word: 2, .. })), "{back:?}");
    assert_eq!(cycle_of(back).channels(), [link(0, 0), link(1, 1)]);
}

#[test]
fn route_to_a_port_without_a_cable_is_refused() {
    let mesh = Torus::new(&[Dimension::mesh(2)]).unwrap();
    let outwards = by_target(
        2,
        |node, target, exits: &mut Exits| {
            if node == target { exits.deliver() } else { exits.link(node as u8, 0) }
        },
    );
    assert_eq!(WaitGraph::new(&mesh, ONE_CHANNEL).unwrap().add_routes(&outwards), Ok(()));

    let wrong = by_target(
        2,
        |node, target, exits: &mut Exits| {
            if node == target { exits.deliver() } else { exits.link(1 - node as u8, 0) }
        },
    );
    let refused = WaitGraph::new(&mesh, ONE_CHANNEL).unwrap().add_routes(&wrong);
    assert_eq!(refused, Err(DeadlockError::NoChannel { channel: link(1, 0) }));
}

/// Returns the graph of requests on virtual channel 0 of a mesh that need room in FIFO 0 of their
/// target, which sends a reply on virtual channel `reply_vc`.
fn remote_gets(mesh: &Torus, reply_vc: u8) -> WaitGraph {
    let mut graph = WaitGraph::new(mesh, NodeChannels { vcs: 2, fifos: 1 }).unwrap();
    let requests =
        by_target(mesh.nodes(), |node, target, exits: &mut Exits| match mesh.port_towards(node, target) {
            Some(port) => exits.link(port, 0),
            None => exits.fifo(0),
        });
    graph.add_routes(&requests).unwrap();
    graph.add_routes(&fixed_paths(mesh, reply_vc)).unwrap();

    for node in 0..mesh.nodes() {
        for (port, _) in mesh.neighbours(node) {
            let reply = Channel::Link { node, port, vc: reply_vc };
            graph.add_wait(Channel::Fifo { node, fifo: 0 }, reply).unwrap();
        }
    }
    graph
}

#[test]
fn requests_that_wait_for_replies_on_their_own_channel_are_refused() {
    let mesh = Torus::new(&[Dimension::mesh(3), Dimension::mesh(3)]).unwrap();

    let cycle = cycle_of(remote_gets(&mesh, 0).check());

    assert!(cycle.channels().iter().any(|channel| matches!(channel, Channel::Fifo { .. })), "{cycle}");
    assert_connected(&mesh, &cycle);
    assert_eq!(remote_gets(&mesh, 1).check(), Ok(()));
}

#[test]
fn protocol_edges_between_channels_that_do_not_meet_are_refused() {
    let mesh = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let mut graph = WaitGraph::new(&mesh, ONE_CHANNEL).unwrap();

    assert_eq!(graph.add_wait(link(0, 0), link(1, 0)), Ok(()));
    assert_eq!(
        graph.add_wait(link(0, 0), link(0, 0)),
        Err(DeadlockError::Apart { from: link(0, 0), to: link(0, 0) })
    );
    assert_eq!(graph.add_wait(link(1, 0), link(2, 0)), Err(DeadlockError::NoChannel { channel: link(2, 0) }));
    assert_eq!(graph.add_wait(link(3, 1), link(2, 1)), Err(DeadlockError::NoChannel { channel: link(3, 1) }));
}

#[test]
fn looped_cable_waits_for_itself_unless_it_has_the_bubble_rule() {
    let looped = Torus::new(&[Dimension::torus(1)]).unwrap();
    let mut graph = WaitGraph::new(&looped, ONE_CHANNEL).unwrap();
    graph.add_wait(link(0, 0), link(0, 0)).unwrap();

    assert_eq!(cycle_of(graph.check()).channels(), [link(0, 0)]);
    assert_eq!(graph.check_with(bubble(&looped, 0)), Ok(()));
}

#[test]
fn networks_beyond_the_limits_are_refused_with_their_numbers() {
    let mesh = FullMesh::new(66).unwrap();
    assert_eq!(WaitGraph::new(&mesh, ONE_CHANNEL).map(|_| ()), Err(DeadlockError::Channels { channels: 65 }));

    let large = Torus::new(&[Dimension::mesh(1 << 17)]).unwrap();
    let mut graph = WaitGraph::new(&large, ONE_CHANNEL).unwrap();
    let many = by_target(1 << 18, |_, _, exits: &mut Exits| exits.deliver());
    assert_eq!(graph.add_routes(&many), Err(DeadlockError::Lookups { nodes: 1 << 17, words: 1 << 18 }));
}

#[test]
fn torus_of_eight_thousand_nodes_is_checked() {
    let torus = Torus::new(&[Dimension::torus(32), Dimension::torus(16), Dimension::torus(16)]).unwrap();
    let graph = fixed(&torus);

    assert_eq!(torus.nodes(), 8192);
    assert_eq!(graph.check_with(bubble(&torus, 0)), Ok(()));
    assert_connected(&torus, &cycle_of(graph.check()));
}
