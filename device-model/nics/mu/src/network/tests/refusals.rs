//! Headers and networks without a meaning.

use nicforge_hwi::{
    mu::fault,
    mu_packet::{Destination, channel, fifo_map, kind, routing},
};

use super::bed::{Bed, Message};
use crate::{
    config::{LONGEST, MAX_NODES, Network, NetworkError, Options},
    network::RouteError,
};

/// Returns the error of a packet that node 0 of a network sends.
fn refusal(bed: &mut Bed, message: Message) -> RouteError {
    bed.send(0, message);
    bed.run();
    let refused = std::mem::take(&mut bed.node(0).refused);
    let [error] = refused[..] else { panic!("{} errors", refused.len()) };
    error
}

#[test]
fn wrong_headers_are_refused() {
    let mut bed = Bed::torus(&[4, 1, 3], &[true, false, false], Options::default());
    let network = bed.network.clone();
    let to = |target, number| Message::to(&network, target, number, 0);
    let user = || to(1, channel::DETERMINISTIC);

    let mut unknown = user();
    unknown.header.data_packet_type = 3;
    assert_eq!(refusal(&mut bed, unknown), RouteError::Kind { kind: 3 });

    for number in [channel::USER_COMM_WORLD, 7] {
        let error = RouteError::Channel { channel: number, kind: kind::POINT_TO_POINT };
        assert_eq!(refusal(&mut bed, to(1, number)), error);
    }
    let user_on_system = Message { is_system: false, ..to(1, channel::SYSTEM) };
    let error = refusal(&mut bed, user_on_system);
    assert_eq!((error, error.fault()), (RouteError::Permission { channel: 3 }, fault::PERMISSION));

    for map in [0, fifo_map::LOCAL0, fifo_map::TORUS | fifo_map::SYSTEM, 1 << 16, u64::MAX] {
        let possible = fifo_map::TORUS as u16;
        assert_eq!(refusal(&mut bed, Message { map, ..user() }), RouteError::Fifos { map, possible });
    }
    let own = to(0, channel::DETERMINISTIC);
    assert!(matches!(refusal(&mut bed, own), RouteError::Fifos { possible: 0x30, .. }));

    for coordinates in [[4, 0, 0, 0, 0], [0, 1, 0, 0, 0], [63; 5], [0, 0, 0, 0, 1]] {
        let mut outside = user();
        outside.header.destination = Destination::new(coordinates);
        assert_eq!(refusal(&mut bed, outside), RouteError::Destination { coordinates });
    }
}

#[test]
fn hint_bits_that_lead_nowhere_are_refused() {
    let mut bed = Bed::torus(&[4, 1, 3], &[true, false, false], Options::default());
    let network = bed.network.clone();
    let user = |target| Message::to(&network, target, channel::DETERMINISTIC, 0);

    let both = user(1).with_hint(0, false).with_hint(0, true);
    assert_eq!(refusal(&mut bed, both), RouteError::Hints { dimension: 0 });
    for (message, dimension) in [
        (user(1).with_hint(2, false), 2),
        (user(1).with_hint(1, false), 1),
        (user(1).with_hint(4, true), 4),
        (user(4).with_hint(2, true), 2),
        (user(0).with_hint(0, false), 0),
    ] {
        assert_eq!(refusal(&mut bed, message), RouteError::Hints { dimension });
    }

    // A loop cable is no part of another way.
    let mut bed = Bed::torus(&[1, 2], &[true, true], Options::default());
    let network = bed.network.clone();
    let looped = Message::to(&network, 1, channel::DETERMINISTIC, 0).with_hint(0, false);
    assert!(matches!(refusal(&mut bed, looped), RouteError::Destination { .. }));
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let options = Options { io_nodes: vec![vec![2]], ..Options::default() };
    let mut bed = Bed::torus(&[4, 3], &[], options);
    let network = bed.network.clone();
    let to = |target, number| Message::to(&network, target, number, 0);
    let user = |target| to(target, channel::DETERMINISTIC);

    assert_eq!(refusal(&mut bed, user(1).with_routing(routing::DYNAMIC)), RouteError::Dynamic);
    let mut fixed = to(1, channel::DYNAMIC);
    fixed.header.byte2 = 0;
    assert_eq!(refusal(&mut bed, fixed), RouteError::Dynamic);

    let corner = user(5).with_routing(routing::DEPOSIT);
    assert_eq!(refusal(&mut bed, corner), RouteError::Deposit { dimensions: 2 });
    let dynamic = to(1, channel::DYNAMIC).with_routing(routing::DEPOSIT);
    assert_eq!(refusal(&mut bed, dynamic), RouteError::Deposit { dimensions: 1 });

    for message in [
        user(2).with_routing(routing::TO_IO),
        to(1, channel::SYSTEM).with_routing(routing::TO_IO),
        to(1, channel::SYSTEM).with_routing(routing::FROM_IO),
    ] {
        assert_eq!(refusal(&mut bed, message), RouteError::IoLink);
    }
}

#[test]
fn io_nodes_send_by_their_links_alone() {
    let options = Options { io_nodes: vec![vec![2]], ..Options::default() };
    let mut bed = Bed::torus(&[4], &[], options);
    let network = bed.network.clone();
    for (number, port) in [(channel::SYSTEM, 0), (channel::SYSTEM, 1), (channel::DETERMINISTIC, 3)] {
        let message = Message::to(&network, 1, number, 0);
        bed.send(4, message.with_routing(port << routing::FROM_IO.trailing_zeros()));
    }
    bed.run();
    assert_eq!(bed.node(4).refused, [RouteError::IoLink; 3]);
}

#[test]
fn networks_without_a_meaning_are_refused() {
    let torus = |lengths: &[u32], options| Network::torus(lengths, &[], options).map(drop);
    let options = Options::default;

    assert!(matches!(torus(&[], options()), Err(NetworkError::Shape(_))));
    assert!(matches!(torus(&[2; 6], options()), Err(NetworkError::Shape(_))));
    assert!(matches!(torus(&[0], options()), Err(NetworkError::Shape(_))));
    assert!(torus(&[64], options()).is_ok());
    for dimension in 0..5 {
        let mut lengths = [1; 5];
        lengths[dimension] = LONGEST[dimension] + 1;
        assert!(matches!(torus(&lengths, options()), Err(NetworkError::Dimension { .. })));
    }
    let too_many = torus(&[16, 16, 9], options());
    assert!(matches!(too_many, Err(NetworkError::Nodes { nodes }) if nodes > MAX_NODES.into()));

    for subgroups in [0, 65] {
        let options = Options { subgroups, ..options() };
        assert!(matches!(torus(&[2], options), Err(NetworkError::Subgroups { .. })));
    }
    for order in [[0, 1, 2, 3, 3], [0, 1, 2, 3, 5], [255; 5]] {
        let options = Options { order, ..options() };
        assert!(matches!(torus(&[2], options), Err(NetworkError::Order { .. })));
    }

    let with_io = |io_nodes: Vec<Vec<u32>>| torus(&[4], Options { io_nodes, ..options() });
    assert!(matches!(with_io(vec![vec![]]), Err(NetworkError::Exits { exits: 0, .. })));
    assert!(matches!(with_io(vec![vec![0, 1, 2, 3]]), Err(NetworkError::Exits { exits: 4, .. })));
    assert!(matches!(with_io(vec![vec![4]]), Err(NetworkError::Exit { node: 4, .. })));
    assert!(matches!(with_io(vec![vec![1], vec![1]]), Err(NetworkError::Exit { node: 1, .. })));

    let small = {
        let mut options = options();
        options.link.credits = vec![1; 4];
        options
    };
    assert!(matches!(torus(&[4], small), Err(NetworkError::Router(_))));
    let network = Network::torus(&[2], &[], options()).unwrap();
    assert!(matches!(network.node(2), Err(NetworkError::NoNode { node: 2, nodes: 2 })));
}
