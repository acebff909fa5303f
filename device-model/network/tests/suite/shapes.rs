//! Neighbours, cables, distances and paths of all shapes.

use std::collections::{HashSet, VecDeque};

use nicforge_network::shape::{
    Cable, CableEnd, Cabling, Coordinates, Dimension, Direction, FullMesh, Hypercube, MAX_NODES, Partition,
    PartitionRule, Shape, ShapeError, Torus, Tree, Way, Wiring, WiringError,
};
use proptest::prelude::*;

use crate::strategies;

/// Returns the distances of all nodes from one, by a breadth-first search.
fn distances(cabling: &impl Cabling, from: u32) -> Vec<Option<u32>> {
    let mut found = vec![None; cabling.nodes() as usize];
    let mut waiting = VecDeque::from([from]);
    found[from as usize] = Some(0);

    while let Some(node) = waiting.pop_front() {
        for (_, far) in cabling.neighbours(node) {
            if found[far.node as usize].is_none() {
                found[far.node as usize] = found[node as usize].map(|hops: u32| hops + 1);
                waiting.push_back(far.node);
            }
        }
    }
    found
}

/// Asserts that both ends of each cable know each other, and that each cable is counted once.
fn assert_cables_are_mutual(cabling: &impl Cabling) {
    let mut ends = 0;
    for node in 0..cabling.nodes() {
        for (port, far) in cabling.neighbours(node) {
            assert_eq!(cabling.far_end(far.node, far.port), Some(CableEnd { node, port }));
            ends += 1;
        }
        assert_eq!(cabling.far_end(node, cabling.ports()), None);
    }
    assert_eq!(cabling.far_end(cabling.nodes(), 0), None);

    let mut seen = HashSet::new();
    for Cable { a, b } in cabling.cables() {
        assert_eq!(cabling.far_end(a.node, a.port), Some(b));
        assert!(seen.insert(a) && seen.insert(b), "{a:?} to {b:?} is counted twice");
    }
    assert_eq!(seen.len(), ends);
}

/// Asserts that distances are those of a breadth-first search, and that fixed paths have them.
fn assert_paths_are_shortest(shape: &impl Shape) {
    let nodes = shape.nodes();
    for from in 0..nodes {
        let expected = distances(shape, from);
        for to in 0..nodes {
            assert_eq!(shape.distance(from, to), expected[to as usize], "{from} to {to}");

            let (mut node, mut hops) = (from, 0);
            while let Some(port) = shape.port_towards(node, to) {
                node = shape.far_end(node, port).unwrap().node;
                hops += 1;
                assert!(hops <= nodes, "the path from {from} to {to} does not end");
            }
            assert_eq!((node, Some(hops)), (to, expected[to as usize]));
        }
    }

    assert_eq!(shape.distance(0, nodes), None);
    assert_eq!(shape.port_towards(nodes, 0), None);
}

/// Asserts all that holds for each shape.
fn assert_shape(shape: &impl Shape) {
    assert_cables_are_mutual(shape);
    assert_paths_are_shortest(shape);
}

proptest! {
    #[test]
    fn tori_have_mutual_neighbours_and_shortest_paths(torus in strategies::torus()) {
        assert_shape(&torus);
    }

    #[test]
    fn coordinates_and_node_numbers_are_inverse(torus in strategies::torus()) {
        for node in 0..torus.nodes() {
            let coordinates = torus.coordinates(node).unwrap();
            prop_assert_eq!(torus.node(&coordinates), Some(node));
        }

        let beyond: Vec<u32> = torus.dimensions().iter().map(|dimension| dimension.length).collect();
        prop_assert_eq!(torus.node(&beyond), None);
        prop_assert_eq!(torus.coordinates(torus.nodes()), None);
    }

    #[test]
    fn ports_lead_along_their_dimension(torus in strategies::torus()) {
        for node in 0..torus.nodes() {
            let from = torus.coordinates(node).unwrap();
            for (port, far) in torus.neighbours(node) {
                let dimension = usize::from(port / 2);
                let length = torus.dimensions()[dimension].length;
                let step = if port % 2 == 0 { 1 } else { length - 1 };

                let mut expected = from.to_vec();
                expected[dimension] = (expected[dimension] + step) % length;
                prop_assert_eq!(torus.node(&expected), Some(far.node));
                prop_assert_eq!(far.port, port ^ 1);
            }
        }
    }

    #[test]
    fn trees_have_mutual_neighbours_and_shortest_paths(nodes in 1u32..=64, fan_out in 1u32..=8) {
        assert_shape(&Tree::new(nodes, fan_out).unwrap());
    }

    #[test]
    fn wirings_have_mutual_neighbours(wiring in strategies::wiring()) {
        assert_cables_are_mutual(&wiring);
    }

    #[test]
    fn nodes_of_a_partition_are_those_of_its_box(
        torus in strategies::torus(),
        picks in proptest::collection::vec((any::<u32>(), any::<u32>()), 5),
    ) {
        let (mut origin, mut lengths) = (Vec::new(), Vec::new());
        for (dimension, (start, length)) in torus.dimensions().iter().zip(picks) {
            let length = 1 + length % dimension.length;
            lengths.push(length);
            origin.push(start % (dimension.length - length + 1));
        }

        let partition = Partition::new(torus, &origin, &lengths, PartitionRule::WHOLE).unwrap();
        assert_cables_are_mutual(partition.shape());

        let mut inside = 0;
        for machine_node in 0..torus.nodes() {
            let coordinates = torus.coordinates(machine_node).unwrap();
            let in_box = (0..origin.len())
                .all(|index| (origin[index]..origin[index] + lengths[index]).contains(&coordinates[index]));

            let node = partition.node(machine_node);
            prop_assert_eq!(node.is_some(), in_box);
            if let Some(node) = node {
                prop_assert_eq!(partition.machine_node(node), Some(machine_node));
                inside += 1;
            }
        }
        prop_assert_eq!(inside, partition.shape().nodes());
    }

    #[test]
    fn cables_of_a_whole_length_partition_are_the_machines(torus in strategies::torus()) {
        let lengths: Vec<u32> = torus.dimensions().iter().map(|dimension| dimension.length).collect();
        let origin = vec![0; lengths.len()];

        let partition = Partition::new(torus, &origin, &lengths, PartitionRule::WHOLE).unwrap();

        prop_assert_eq!(partition.shape(), &torus);
    }
}

#[test]
fn hypercubes_have_mutual_neighbours_and_shortest_paths() {
    for dimensions in 0..=6 {
        let cube = Hypercube::new(dimensions).unwrap();
        assert_eq!(cube.nodes(), 1 << dimensions);
        assert_shape(&cube);
    }
}

#[test]
fn full_meshes_have_mutual_neighbours_and_shortest_paths() {
    for nodes in 1..=16 {
        let mesh = FullMesh::new(nodes).unwrap();
        assert_eq!(mesh.cables().count() as u32, nodes * (nodes - 1) / 2);
        assert_shape(&mesh);
    }
}

#[test]
fn torus_of_length_one_has_looped_cables_and_mesh_of_length_one_none() {
    let looped = Torus::new(&[Dimension::torus(1); 5]).unwrap();
    let cables: Vec<_> = looped.cables().collect();
    assert_eq!(cables.len(), 5);
    assert_eq!(cables[4], Cable { a: CableEnd::new(0, 8), b: CableEnd::new(0, 9) });
    assert_eq!(looped.distance(0, 0), Some(0));

    let alone = Torus::new(&[Dimension::mesh(1)]).unwrap();
    assert_eq!(alone.cables().count(), 0);
}

#[test]
fn torus_of_length_two_has_two_cables_and_mesh_of_length_two_one() {
    let double = Torus::new(&[Dimension::torus(2)]).unwrap();
    let expected = [
        Cable { a: CableEnd::new(0, 0), b: CableEnd::new(1, 1) },
        Cable { a: CableEnd::new(1, 0), b: CableEnd::new(0, 1) },
    ];
    assert_eq!(double.cables().collect::<Vec<_>>(), expected);
    assert_eq!(double.way(0, 0, 1), Some(Way { hops: 1, direction: Direction::Either }));

    let single = Torus::new(&[Dimension::mesh(2)]).unwrap();
    assert_eq!(single.cables().collect::<Vec<_>>(), expected[..1]);
    assert_eq!(single.way(0, 1, 0), Some(Way { hops: 1, direction: Direction::Down }));
}

#[test]
fn ways_lead_around_a_torus_and_not_around_a_mesh() {
    let torus = Torus::new(&[Dimension::torus(6), Dimension::mesh(6)]).unwrap();

    assert_eq!(torus.way(0, 0, 5), Some(Way { hops: 1, direction: Direction::Down }));
    assert_eq!(torus.way(0, 5, 1), Some(Way { hops: 2, direction: Direction::Up }));
    assert_eq!(torus.way(0, 1, 4), Some(Way { hops: 3, direction: Direction::Either }));
    assert_eq!(torus.way(1, 0, 5), Some(Way { hops: 5, direction: Direction::Up }));
    assert_eq!(torus.way(1, 3, 3), None);
    assert_eq!(torus.way(1, 0, 6), None);
    assert_eq!(torus.way(2, 0, 1), None);
}

#[test]
fn largest_shapes_answer_without_tables() {
    let torus = Torus::new(&[16, 16, 16, 16, 2].map(Dimension::torus)).unwrap();
    assert_eq!(torus.nodes(), MAX_NODES);
    assert_eq!(torus.coordinates(MAX_NODES - 1).unwrap().to_string(), "(15, 15, 15, 15, 1)");
    assert_eq!(torus.distance(0, MAX_NODES - 1), Some(5));
    assert_eq!(torus.distance(0, torus.node(&[8, 8, 8, 8, 1]).unwrap()), Some(33));

    let chain = Tree::new(MAX_NODES, 1).unwrap();
    assert_eq!(chain.distance(0, MAX_NODES - 1), Some(MAX_NODES - 1));
}

#[test]
fn partition_is_a_torus_where_it_is_whole_and_a_mesh_elsewhere() {
    let machine = Torus::new(&[Dimension::torus(8), Dimension::torus(8), Dimension::mesh(8)]).unwrap();

    let partition = Partition::new(machine, &[0, 4, 0], &[8, 4, 8], PartitionRule::WHOLE).unwrap();
    assert_eq!(partition.shape().dimensions(), [Dimension::torus(8), Dimension::mesh(4), Dimension::mesh(8)]);
    assert_eq!(partition.machine_node(0), machine.node(&[0, 4, 0]));
    assert_eq!(partition.origin(), Coordinates::new(&[0, 4, 0]).unwrap());

    let partition = Partition::new(machine, &[0, 4, 2], &[8, 4, 2], PartitionRule::BLUE_GENE_Q).unwrap();
    assert_eq!(
        partition.shape().dimensions(),
        [Dimension::torus(8), Dimension::torus(4), Dimension::mesh(2)]
    );
}

#[test]
fn impossible_shapes_are_refused_with_their_numbers() {
    let lengths = |lengths: &[u32]| lengths.iter().copied().map(Dimension::torus).collect::<Vec<_>>();

    assert_eq!(Torus::new(&[]), Err(ShapeError::Dimensions { dimensions: 0, min: 1, max: 5 }));
    assert_eq!(Torus::new(&lengths(&[1; 6])), Err(ShapeError::Dimensions { dimensions: 6, min: 1, max: 5 }));
    assert_eq!(Torus::new(&lengths(&[4, 0])), Err(ShapeError::Nodes { nodes: 0 }));
    assert_eq!(Torus::new(&lengths(&[u32::MAX; 3])), Err(ShapeError::Nodes { nodes: u64::MAX }));
    assert_eq!(Hypercube::new(18), Err(ShapeError::Dimensions { dimensions: 18, min: 0, max: 17 }));
    assert_eq!(FullMesh::new(0), Err(ShapeError::Nodes { nodes: 0 }));
    assert_eq!(FullMesh::new(257), Err(ShapeError::Ports { ports: 256 }));
    assert_eq!(Tree::new(4, 0), Err(ShapeError::FanOut { nodes: 4 }));
    assert_eq!(Tree::new(4, 255), Err(ShapeError::Ports { ports: 256 }));
    assert_eq!(Tree::new(MAX_NODES + 1, 2), Err(ShapeError::Nodes { nodes: u64::from(MAX_NODES) + 1 }));
}

#[test]
fn partitions_outside_their_machine_are_refused() {
    let machine = Torus::new(&[Dimension::torus(4), Dimension::torus(4)]).unwrap();
    let partition = |origin: &[u32], lengths: &[u32]| {
        Partition::new(machine, origin, lengths, PartitionRule::WHOLE).map(|_| ())
    };
    let outside = |dimension, origin, length| ShapeError::Outside { dimension, origin, length, limit: 4 };

    assert_eq!(partition(&[1, 0], &[4, 4]), Err(outside(0, 1, 4)));
    assert_eq!(partition(&[0, u32::MAX], &[4, 2]), Err(outside(1, u32::MAX, 2)));
    assert_eq!(partition(&[0, 0], &[4, 5]), Err(outside(1, 0, 5)));
    assert_eq!(partition(&[0, 0], &[0, 4]), Err(outside(0, 0, 0)));
    assert_eq!(partition(&[0, 0], &[4]), Err(ShapeError::PartitionDimensions { dimensions: 1, machine: 2 }));
}

#[test]
fn impossible_cables_are_refused_with_their_ends() {
    let cable = |a: (u32, u8), b: (u32, u8)| Cable { a: CableEnd::new(a.0, a.1), b: CableEnd::new(b.0, b.1) };
    let wiring = |cables: &[Cable]| Wiring::new(2, 2, cables.iter().copied()).map(|_| ());

    let far = cable((0, 0), (2, 0));
    assert_eq!(wiring(&[far]), Err(WiringError::NoNode { cable: far, node: 2, nodes: 2 }));
    let high = cable((0, 2), (1, 0));
    assert_eq!(wiring(&[high]), Err(WiringError::NoPort { cable: high, node: 0, port: 2, ports: 2 }));
    let twice = [cable((0, 0), (1, 0)), cable((0, 0), (1, 1))];
    assert_eq!(wiring(&twice), Err(WiringError::PortTaken { node: 0, port: 0 }));
    assert_eq!(Wiring::new(0, 2, []).map(|_| ()), Err(WiringError::Nodes { nodes: 0 }));
    assert_eq!(wiring(&[cable((0, 0), (0, 1))]), Ok(()));
}
