//! Routers in machines: times, order, back-pressure, fairness, and copies.

use nicforge_core::time::Nanos;
use nicforge_network::{
    deadlock::{NodeChannels, WaitGraph, bubble},
    router::{
        Decision, FifoSpec, InputCounters, Policy, RouterError, RouterSpec, Source,
        policies::{
            ChannelClass, Fixed, PolicyError, TablePolicy, TableRules, TableWord, TorusPolicy, TorusRules,
            TorusWord, escape_routes, table_routes,
        },
    },
    shape::{Cabling, Dimension, FullMesh, Shape, Torus, Tree},
};

use crate::bed::{Bed, LONGEST, Message, link, spec};

/// Rules with the bubble rule on virtual channel 0, and adaptive packets on 1.
const BUBBLE: TorusRules =
    TorusRules::shared(ChannelClass { fixed: Fixed::Bubble { vc: 0 }, adaptive: 0b10 });

/// Returns a torus of one dimension.
fn ring(nodes: u32) -> Torus {
    Torus::new(&[Dimension::torus(nodes)]).unwrap()
}

/// Returns a torus of routers with these rules, and room for this many packets on each virtual
/// channel.
fn torus_bed(torus: &Torus, rules: TorusRules, packets: &[u32], change: impl Fn(&mut RouterSpec)) -> Bed {
    let bubbles = match rules.classes[0].fixed {
        Fixed::Bubble { vc } => 1 << vc,
        _ => 0,
    };
    let mut spec = spec(torus.ports(), &link(packets), bubbles);
    change(&mut spec);
    Bed::new(torus, &spec, |node| TorusPolicy::new(torus, node, rules).unwrap())
}

/// Returns a message from one node of a torus to another.
fn message(torus: &Torus, from: u32, to: u32, bytes: usize, mark: u64) -> Message {
    let word = TorusWord::between(torus, from, to, 0).unwrap();
    Message { fifo: 0, word: word.0, bytes, mark }
}

#[test]
fn packet_crosses_a_ring_of_four_routers_and_cuts_through() {
    let torus = ring(4);
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

    bed.send(0, message(&torus, 0, 2, 96, 7));
    bed.run();

    // Two links: the head of 32 bytes and 20 ns, then all 96 bytes and 20 ns.
    let received = bed.node(2).received.clone();
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].time, received[0].bytes, received[0].mark), (Nanos(52 + 116), 96, 7));
    assert_eq!(bed.packets_in_use(), 0);
}

#[test]
fn policy_of_another_node_decides_as_one_that_was_made_for_it() {
    let torus = Torus::new(&[Dimension::torus(4), Dimension::mesh(3)]).unwrap();
    let rules = TorusRules { order: [1, 0, 2, 3, 4], ..BUBBLE };
    let first = TorusPolicy::new(&torus, 0, rules).unwrap();

    for (node, target) in (0..torus.nodes()).flat_map(|node| (0..torus.nodes()).map(move |to| (node, to))) {
        let (own, shared) = (TorusPolicy::new(&torus, node, rules).unwrap(), first.at(node).unwrap());
        let word = TorusWord::between(&torus, node, target, 0).unwrap();
        for word in [word, word.adaptive()] {
            let source = Source::Injection { fifo: 0 };
            assert_eq!(own.decide(word.0, source), shared.decide(word.0, source));
        }
    }
    assert_eq!(first.at(12).err(), Some(PolicyError::NoNode { node: 12, nodes: 12 }));
}

#[test]
fn packet_to_the_own_node_is_delivered_without_a_link() {
    let torus = ring(4);
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

    bed.send(1, message(&torus, 1, 1, 32, 9));
    bed.run();

    let received = bed.node(1).received.clone();
    assert_eq!((received.len(), received[0].time, received[0].mark), (1, Nanos(0), 9));
}

#[test]
fn full_reception_fifo_holds_packets_back_and_loses_none() {
    let torus = Torus::new(&[Dimension::mesh(2)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());
    bed.node(1).takes_nothing = true;

    for mark in 0..20 {
        bed.send(0, message(&torus, 0, 1, LONGEST, mark));
    }
    bed.run();

    // Two packets are in each of the reception FIFO, the link's buffer and the injection FIFO.
    assert_eq!(bed.packets_in_use(), 6);
    assert_eq!(bed.node(0).to_send.len(), 14);
    assert_eq!(bed.node(1).counters.full, 1);

    bed.node(1).takes_nothing = false;
    bed.wake(1);
    bed.run();

    assert_eq!(bed.marks(1), (0..20).collect::<Vec<_>>());
}

#[test]
fn reset_empties_the_fifos_and_the_router_goes_on() {
    let torus = Torus::new(&[Dimension::mesh(2)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());
    bed.node(1).takes_nothing = true;
    for mark in 0..6 {
        bed.send(0, message(&torus, 0, 1, LONGEST, mark));
    }
    bed.run();

    bed.reset(0);
    bed.reset(1);
    bed.node(1).takes_nothing = false;
    bed.wake(1);
    bed.run();

    // The two packets in the buffer of the link are left.
    assert_eq!(bed.marks(1), [2, 3]);
    bed.send(0, message(&torus, 0, 1, LONGEST, 6));
    bed.run();
    assert_eq!((bed.marks(1), bed.packets_in_use()), (vec![2, 3, 6], 0));
}

#[test]
fn counters_tell_packets_bytes_and_waiting_times() {
    let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

    bed.send(0, message(&torus, 0, 2, LONGEST, 0));
    for mark in 1..3 {
        bed.send(1, message(&torus, 1, 2, LONGEST, mark));
    }
    bed.run();

    // Node 1 sends its first packet until 128. The packet of node 0 comes at 52, waits until 128,
    // and goes before the second one, which waits until 256 and is alone in its FIFO for as long.
    let node = bed.node(1);
    assert_eq!(node.links[1], InputCounters { packets: 1, bytes: 128, waited: 128 - 52 });
    assert_eq!(node.injection, (InputCounters { packets: 2, bytes: 256, waited: 128 }, 256));
    assert_eq!((node.outputs[0].through, node.outputs[0].injected), (1, 2));
}

#[test]
fn word_without_a_route_is_dropped_and_counted() {
    let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

    // The target of the first word is no node of the mesh. The second leads around a ring, where
    // the mesh has no cable.
    let outside = TorusWord(200).0;
    let outwards = TorusWord::between(&ring(3), 0, 2, 0).unwrap().0;
    for word in [outside, outwards] {
        bed.send(0, Message { fifo: 0, word, bytes: 32, mark: 0 });
    }
    bed.run();

    let dropped = bed.node(0).counters.dropped;
    assert_eq!((dropped, bed.packets_in_use()), (2, 0));
}

#[test]
fn packet_after_a_dropped_one_is_forwarded() {
    let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

    // The target of this word is no node of the mesh.
    bed.send(0, Message { fifo: 0, word: TorusWord(200).0, bytes: 32, mark: 0 });
    bed.send(0, message(&torus, 0, 1, LONGEST, 1));
    bed.run();

    assert_eq!((bed.marks(1), bed.node(0).counters.dropped), (vec![1], 1));
}

/// Returns the packets that arrive, of 96, when each node of a ring of eight sends twelve to the
/// node opposite.
fn arrivals_on_a_saturated_ring(rules: TorusRules) -> usize {
    let torus = ring(8);
    let mut bed = torus_bed(&torus, rules, &[2, 2], |_| ());

    for node in 0..8 {
        for mark in 0..12 {
            bed.send(node, message(&torus, node, (node + 4) % 8, LONGEST, mark));
        }
    }
    bed.run();

    (0..8).map(|node| bed.node(node).received.len()).sum()
}

#[test]
fn saturated_ring_without_the_bubble_rule_deadlocks() {
    let without = TorusRules::shared(ChannelClass { fixed: Fixed::Plain { vc: 0 }, adaptive: 0 });
    let dateline = TorusRules::shared(ChannelClass { fixed: Fixed::Dateline { vcs: [0, 1] }, adaptive: 0 });

    assert!(arrivals_on_a_saturated_ring(without) < 96);
    assert_eq!(arrivals_on_a_saturated_ring(BUBBLE), 96);
    assert_eq!(arrivals_on_a_saturated_ring(dateline), 96);
}

#[test]
fn through_traffic_and_injection_share_an_output_by_the_ratio() {
    for ratio in [1, 3, 7] {
        let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
        let mut bed = torus_bed(&torus, BUBBLE, &[8, 2], |spec| spec.through_ratio = ratio);
        for node in [0, 1] {
            for mark in 0..400 {
                bed.send(node, message(&torus, node, 2, LONGEST, u64::from(node) << 32 | mark));
            }
        }

        bed.run_until(Nanos(30_000));

        let counters = bed.node(1).outputs[0];
        let share = counters.through as f64 / counters.injected as f64;
        let expected = f64::from(ratio);
        assert!((share - expected).abs() < expected * 0.1, "{counters:?} at a ratio of {ratio}");
    }
}

/// Returns the policies of a shape's fixed paths.
fn tables(shape: &impl Shape) -> Vec<TablePolicy> {
    let nodes = shape.nodes();
    let table = |node| {
        let mut table = TablePolicy::new(nodes, TableRules { first_vcs: [0, 1, 0, 1] });
        for target in 0..nodes {
            let is_set = match shape.port_towards(node, target) {
                Some(port) => table.set_exit(target, port, 0),
                None => table.set_local(target),
            };
            assert!(is_set);
        }
        table
    };
    (0..nodes).map(table).collect()
}

#[test]
fn inputs_of_an_output_take_turns() {
    // Five leaves of a star send to a sixth. Each leaf has one packet in a row at most.
    let star = Tree::new(7, 6).unwrap();
    let tables = tables(&star);
    let spec = spec(star.ports(), &link(&[4, 4]), 0);
    let mut bed = Bed::new(&star, &spec, |node| tables[node as usize].clone());
    for leaf in 1..=5 {
        for _ in 0..200 {
            // Short packets must not overtake long ones.
            let bytes = if leaf % 2 == 0 { 32 } else { LONGEST };
            let word = TableWord::new(6, 0).0;
            bed.send(leaf, Message { fifo: 0, word, bytes, mark: leaf.into() });
        }
    }

    bed.run_until(Nanos(20_000));

    let marks = bed.marks(6);
    let counts: Vec<_> = (1..=5).map(|leaf| marks.iter().filter(|&&mark| mark == leaf).count()).collect();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*least > 20 && most - least <= 2, "{counts:?}");
}

#[test]
fn higher_priority_goes_first() {
    let torus = Torus::new(&[Dimension::mesh(2)]).unwrap();
    let fifo = FifoSpec { bytes: 32 * LONGEST as u32, packets: 32, priority: 1 };
    let mut bed = torus_bed(&torus, BUBBLE, &[8, 2], |spec| {
        spec.injection = vec![fifo, FifoSpec { priority: 0, ..fifo }];
    });

    for mark in 0..10 {
        bed.send(0, message(&torus, 0, 1, LONGEST, mark));
    }
    for mark in 10..20 {
        bed.send(0, Message { fifo: 1, ..message(&torus, 0, 1, LONGEST, mark) });
    }
    bed.run();

    assert_eq!(bed.marks(1), (10..20).chain(0..10).collect::<Vec<_>>());
}

#[test]
fn packet_leaves_a_full_adaptive_channel_on_the_escape_channel() {
    let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[4, 1], |_| ());
    bed.node(2).takes_nothing = true;

    for mark in 0..40 {
        let word = TorusWord::between(&torus, 0, 2, 0).unwrap().adaptive();
        bed.send(0, Message { fifo: 0, word: word.0, bytes: LONGEST, mark });
    }
    bed.run();

    assert!(bed.node(0).counters.escaped > 0);
    bed.node(2).takes_nothing = false;
    bed.wake(2);
    bed.run();

    let mut marks = bed.marks(2);
    marks.sort_unstable();
    assert_eq!(marks, (0..40).collect::<Vec<_>>());
}

#[test]
fn adaptive_packet_takes_the_less_loaded_dimension() {
    let torus = Torus::new(&[Dimension::mesh(2), Dimension::mesh(2)]).unwrap();
    let mut bed = torus_bed(&torus, BUBBLE, &[4, 4], |_| ());

    for mark in 0..20 {
        let word = TorusWord::between(&torus, 0, 3, 0).unwrap().adaptive();
        bed.send(0, Message { fifo: 0, word: word.0, bytes: LONGEST, mark });
    }
    bed.run();

    let outputs = bed.node(0).outputs.clone();
    assert_eq!(bed.node(3).received.len(), 20);
    assert!(outputs[0].injected >= 8 && outputs[2].injected >= 8, "{outputs:?}");
}

#[test]
fn zones_order_the_dimensions_of_adaptive_packets() {
    let torus = Torus::new(&[Dimension::torus(4), Dimension::torus(4), Dimension::torus(4)]).unwrap();
    let mut rules = BUBBLE;
    rules.zones[1] = [0b100, 0b011, 0, 0, 0];
    let policy = TorusPolicy::new(&torus, 0, rules).unwrap();
    // Bit 2d of a set of ports leads up in dimension d.
    let ports = |to: u32, zone: u8| {
        let word = TorusWord::between(&torus, 0, to, 0).unwrap().adaptive().with_zone(zone);
        match policy.decide(word.0, Source::Injection { fifo: 0 }) {
            Decision::Any(candidates) => candidates.ports,
            other => panic!("{other:?}"),
        }
    };

    assert_eq!(ports(1 + 4 + 16, 0), 0b010101);
    assert_eq!(ports(1 + 4 + 16, 1), 0b010000);
    assert_eq!(ports(1 + 4, 1), 0b000101);
}

#[test]
fn line_broadcast_reaches_each_node_of_a_line_once() {
    let dimensions = [Dimension::torus(5), Dimension::mesh(3)];
    let torus = Torus::new(&dimensions).unwrap();
    for (dimension, from, down) in [(0, 0, false), (0, 7, true), (1, 2, false), (1, 12, true)] {
        let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

        let word = TorusWord::line(&torus, from, dimension, down).unwrap();
        bed.send(from, Message { fifo: 0, word: word.0, bytes: LONGEST, mark: 5 });
        bed.run();

        let own = torus.coordinates(from).unwrap();
        for node in 0..torus.nodes() {
            let at = torus.coordinates(node).unwrap();
            let is_on_line = (0..2).all(|other| other == dimension || at[other] == own[other]);
            let expected = usize::from(node != from && is_on_line);
            assert_eq!(bed.node(node).received.len(), expected, "node {node} from {from}");
        }
        assert_eq!(bed.packets_in_use(), 0);
    }
}

#[test]
fn line_broadcast_cuts_through_each_node_and_is_complete_with_its_tail() {
    let torus = ring(4);
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());

    let word = TorusWord::line(&torus, 0, 0, false).unwrap();
    bed.send(0, Message { fifo: 0, word: word.0, bytes: LONGEST, mark: 5 });
    bed.run();

    let times: Vec<_> = (1..4).map(|node| bed.node(node).received[0].time.0).collect();
    assert_eq!(times, [148, 148 + 52, 148 + 2 * 52]);
}

#[test]
fn line_broadcast_waits_for_a_full_node_and_goes_on() {
    let torus = ring(4);
    let mut bed = torus_bed(&torus, BUBBLE, &[2, 2], |_| ());
    bed.node(2).takes_nothing = true;

    let word = TorusWord::line(&torus, 0, 0, false).unwrap();
    for mark in 0..30 {
        bed.send(0, Message { fifo: 0, word: word.0, bytes: LONGEST, mark });
    }
    bed.run();
    assert!(bed.node(3).received.len() < 30);
    bed.node(2).takes_nothing = false;
    bed.wake(2);
    bed.run();

    for node in 1..4 {
        assert_eq!(bed.marks(node), (0..30).collect::<Vec<_>>(), "node {node}");
    }
}

#[test]
fn packets_go_to_the_reception_fifo_of_the_port_by_which_they_came() {
    let torus = Torus::new(&[Dimension::mesh(3)]).unwrap();
    let mut spec = spec(torus.ports(), &link(&[2, 2]), 1);
    spec.reception = vec![spec.reception[0]; 3];
    let mut bed = Bed::new(&torus, &spec, |node| {
        TorusPolicy::new(&torus, node, BUBBLE).unwrap().with_reception_by_port()
    });

    for from in 0..3 {
        bed.send(from, message(&torus, from, 1, 32, from.into()));
    }
    bed.run();

    let mut fifos: Vec<_> = bed.node(1).received.iter().map(|receipt| (receipt.mark, receipt.fifo)).collect();
    fifos.sort_unstable();
    // FIFO 0 is that of port 0, which leads up, so packets from node 2 come by it. Packets of the
    // node itself go to the last FIFO.
    assert_eq!(fifos, [(0, 1), (1, 2), (2, 0)]);
}

#[test]
fn wrong_descriptions_are_refused_with_their_values() {
    let torus = ring(4);
    let refused = |change: &dyn Fn(&mut RouterSpec)| {
        let mut spec = spec(torus.ports(), &link(&[2, 2]), 1);
        change(&mut spec);
        let policy = TorusPolicy::new(&torus, 0, BUBBLE).unwrap();
        nicforge_network::router::Router::new(&spec, policy).map(|_| ()).unwrap_err()
    };

    assert_eq!(refused(&|spec| spec.ports = 0), RouterError::Ports { ports: 0 });
    assert_eq!(refused(&|spec| spec.priorities.clear()), RouterError::Channels { served: 0, channels: 2 });
    assert_eq!(refused(&|spec| spec.through_ratio = 0), RouterError::Ratio);
    assert_eq!(refused(&|spec| spec.priorities[1] = 4), RouterError::Priority { priority: 4 });
    assert_eq!(
        refused(&|spec| spec.link.credits[0] = 7),
        RouterError::SmallBuffer { vc: 0, credits: 7, packets: 2, needed: 8 }
    );
    assert_eq!(
        refused(&|spec| spec.injection[0].bytes = 100),
        RouterError::SmallFifo { bytes: 100, packets: 4, longest: 128 }
    );
    assert_eq!(
        refused(&|spec| spec.injection = vec![spec.reception[0]; 65]),
        RouterError::Fifos { fifos: 65 }
    );
}

#[test]
fn tables_of_fixed_paths_are_accepted_by_the_deadlock_check() {
    let mesh = FullMesh::new(6).unwrap();
    let tables = tables(&mesh);

    let mut graph = WaitGraph::new(&mesh, NodeChannels { vcs: 2, fifos: 0 }).unwrap();
    graph.add_routes(&table_routes(&tables, 0)).unwrap();
    graph.add_routes(&table_routes(&tables, 1)).unwrap();

    assert_eq!(graph.check(), Ok(()));
}

#[test]
fn plain_channel_of_a_torus_is_refused_by_the_deadlock_check() {
    let torus = ring(5);
    let plain = TorusRules::shared(ChannelClass { fixed: Fixed::Plain { vc: 0 }, adaptive: 0 });
    let graph = |rules| {
        let mut graph = WaitGraph::new(&torus, NodeChannels { vcs: 1, fifos: 0 }).unwrap();
        graph.add_routes(&escape_routes(&torus, rules, 0).unwrap()).unwrap();
        graph
    };

    assert!(graph(plain).check().is_err());
    assert_eq!(graph(BUBBLE).check_with(bubble(&torus, 0)), Ok(()));
}
