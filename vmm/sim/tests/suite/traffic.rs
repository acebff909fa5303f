//! Measurements of networks alone.

use nicforge_core::fabric::{CreditUnit, LinkSpec};
use nicforge_network::{
    deadlock::DeadlockError,
    router::policies::{ChannelClass, Fixed, TorusRules},
    shape::Dimension,
};
use nicforge_sim::traffic::{
    LoadSweep, Network, Pattern, Point, TrafficError, Windows, run, run_unless, uniform_capacity,
};

/// Bytes of a packet.
const PACKET: usize = 128;

/// Returns a network of links of a byte in a nanosecond, with a head of 32 bytes and a delay of 20
/// ns.
fn network(dimensions: &[Dimension], adaptive: bool) -> Network {
    let class = ChannelClass { fixed: Fixed::Bubble { vc: 0 }, adaptive: if adaptive { 0b10 } else { 0 } };
    Network {
        dimensions: dimensions.to_vec(),
        link: LinkSpec {
            delay: 20,
            bits_per_second: 8_000_000_000,
            credits: vec![16; if adaptive { 2 } else { 1 }],
            credit_unit: CreditUnit::Bytes(32),
            max_packet: PACKET,
            cut_through: Some(32),
        },
        framing: 0,
        rules: TorusRules::shared(class),
        adaptive_zone: adaptive.then_some(0),
        through_ratio: 3,
        injection_fifos: 4,
        fifo_packets: 4,
    }
}

/// Returns a sweep with packets of [`PACKET`] bytes at one load.
fn sweep(dimensions: &[Dimension], pattern: Pattern, load: f64) -> LoadSweep {
    LoadSweep {
        network: network(dimensions, true),
        pattern,
        packet_bytes: PACKET,
        loads: vec![load],
        windows: Windows { warm_up: 5_000, window: 5_000, windows: 2, drain: 20_000 },
        seed: 7,
    }
}

/// Returns the only point of a sweep.
fn point(sweep: &LoadSweep) -> Point {
    let mut points = run(sweep).unwrap().points;
    assert_eq!(points.len(), 1);
    points.remove(0)
}

const SQUARE: [Dimension; 2] = [Dimension::torus(4), Dimension::torus(4)];

#[test]
fn a_stopped_run_has_no_result() {
    let sweep = sweep(&SQUARE, Pattern::Uniform, 0.5);
    assert_eq!(run_unless(&sweep, &|| true), Err(TrafficError::Stopped));
    assert_eq!(run_unless(&sweep, &|| false), run(&sweep));
}

#[test]
fn same_seed_gives_the_same_bytes_and_another_seed_others() {
    let mut sweep = sweep(&SQUARE, Pattern::Uniform, 0.4);
    sweep.loads.push(1.2);
    let text = |sweep: &LoadSweep| serde_json::to_string(&run(sweep).unwrap()).unwrap();

    let first = text(&sweep);
    let second = text(&sweep);
    sweep.seed += 1;

    assert_eq!(first, second);
    assert_ne!(first, text(&sweep));
}

#[test]
fn idle_network_has_the_latency_of_its_links() {
    let chain = [Dimension::mesh(2)];
    let mut sweep = sweep(&chain, Pattern::NearestNeighbour, 0.001);
    sweep.windows.window = 1_000_000;

    let point = point(&sweep);

    // One link: 128 bytes and 20 ns.
    assert!(point.latency.packets > 5, "{point:?}");
    assert_eq!((point.latency.p50, point.latency.max), (148, 148));
    assert_eq!((point.unfinished, point.hops), (0, point.received));
}

#[test]
fn load_whose_first_packet_comes_after_all_times_sends_nothing() {
    let point = point(&sweep(&SQUARE, Pattern::Uniform, 1e-22));
    assert_eq!((point.received, point.unfinished), (0, 0));
}

#[test]
fn network_accepts_a_low_load_as_it_is_offered() {
    for pattern in [Pattern::Uniform, Pattern::PermutationWalk, Pattern::NearestNeighbour, Pattern::Bisection]
    {
        let mut sweep = sweep(&SQUARE, pattern, 0.3);
        sweep.windows.window = 20_000;

        let point = point(&sweep);

        assert!((point.accepted - 0.3).abs() < 0.03, "{pattern:?}: {point:?}");
        assert_eq!(point.unfinished, 0, "{pattern:?}");
    }
}

#[test]
fn saturated_network_accepts_most_of_its_capacity_and_no_more() {
    let capacity = uniform_capacity(&SQUARE).unwrap();
    // Each packet has one hop in each dimension on the average, over two links of a node.
    assert!((capacity - 2.0 * 15.0 / 16.0).abs() < 1e-9, "{capacity}");

    let point = point(&sweep(&SQUARE, Pattern::Uniform, 2.0 * capacity));

    let share = point.accepted / capacity;
    assert!((0.7..=1.0).contains(&share), "{share}: {point:?}");
    assert!(point.latency.mean > 1000.0);
}

#[test]
fn capacity_of_a_mesh_is_that_of_its_middle() {
    // Half of the packets of four nodes cross each direction of the middle of an 8-node line.
    let capacity = uniform_capacity(&[Dimension::mesh(8)]).unwrap();

    assert!((capacity - 7.0 / 8.0 / 2.0).abs() < 1e-9, "{capacity}");
}

#[test]
fn neighbours_use_all_links_at_once() {
    let point = point(&sweep(&SQUARE, Pattern::NearestNeighbour, 4.0));

    assert!((3.5..=4.0).contains(&point.accepted), "{point:?}");
}

#[test]
fn all_to_all_sends_each_packet_once_and_ends() {
    let point = point(&sweep(&SQUARE, Pattern::AllToAll { packets: 3 }, 4.0));

    let packets = 16 * 15 * 3;
    assert_eq!((point.received, point.latency.packets, point.unfinished), (packets, packets, 0));
    let share = point.accepted / uniform_capacity(&SQUARE).unwrap();
    assert!((0.5..=1.0).contains(&share), "{share}");
}

#[test]
fn hot_spot_limits_the_load_of_all() {
    // A node receives by four links, and 15 nodes send half of their packets to it.
    let pattern = Pattern::HotSpot { node: 5, percent: 50 };
    let point = point(&sweep(&SQUARE, pattern, 2.0));

    assert!(point.accepted < 0.6, "{point:?}");
}

#[test]
fn all_virtual_channels_of_dimension_order_work_under_load() {
    let mut sweep = sweep(&SQUARE, Pattern::Uniform, 3.0);
    sweep.network = network(&SQUARE, false);
    let bubble = point(&sweep).accepted;

    sweep.network.link.credits = vec![16; 2];
    let class = ChannelClass { fixed: Fixed::Dateline { vcs: [0, 1] }, adaptive: 0 };
    sweep.network.rules = TorusRules::shared(class);
    let dateline = point(&sweep).accepted;

    assert!(bubble > 1.0 && dateline > 1.0, "{bubble}, {dateline}");
}

#[test]
fn wrong_experiments_are_refused_with_their_values() {
    let refused = |change: &dyn Fn(&mut LoadSweep)| {
        let mut sweep = sweep(&SQUARE, Pattern::Uniform, 0.3);
        change(&mut sweep);
        run(&sweep).unwrap_err()
    };

    assert_eq!(refused(&|changed| changed.loads.push(0.0)), TrafficError::Load { load: 0.0 });
    assert_eq!(refused(&|changed| changed.packet_bytes = 0), TrafficError::Packet { bytes: 0, longest: 128 });
    assert_eq!(
        refused(&|changed| changed.packet_bytes = 129),
        TrafficError::Packet { bytes: 129, longest: 128 }
    );
    assert_eq!(refused(&|changed| changed.network.link.bits_per_second = 0), TrafficError::Bandwidth);
    assert_eq!(refused(&|changed| changed.network.injection_fifos = 0), TrafficError::NoFifo);
    assert_eq!(
        refused(&|changed| changed.windows.windows = 0),
        TrafficError::Windows { windows: 0, window: 5_000 }
    );
    assert_eq!(
        refused(&|changed| changed.network.dimensions = vec![Dimension::mesh(1)]),
        TrafficError::TooFew { nodes: 1 }
    );
    assert_eq!(
        refused(&|changed| changed.pattern = Pattern::HotSpot { node: 16, percent: 50 }),
        TrafficError::HotSpot { node: 16, percent: 50, nodes: 16 }
    );

    let plain = ChannelClass { fixed: Fixed::Plain { vc: 0 }, adaptive: 0 };
    let deadlock = refused(&|changed| {
        changed.network.dimensions = vec![Dimension::torus(8)];
        changed.network.rules = TorusRules::shared(plain);
    });
    assert!(matches!(deadlock, TrafficError::Deadlock(DeadlockError::Deadlock { .. })), "{deadlock}");
}
