//! Traffic on a network alone ([`nicforge_network::alone`]): routers with a generator of packets.
//!
//! [`run`] measures a network at several offered loads. Each node creates packets at random times,
//! by a Poisson process. A packet waits in front of the injection FIFOs for as long as they are
//! full. Its latency is the time from its creation until its tail is in the reception FIFO of its
//! target.
//!
//! ```text
//!   0 ────────── warm-up ──────────┬── window ──┬── window ──┬── drain ──┐
//!                                  │ packets created here    │           │
//!                                  │ count for the latency   │           end
//!                                  │ bytes received here     │
//!                                  │ are the accepted load   │
//! ```
//!
//! Loads are fractions of the bandwidth of one link, for each node: a node with a load of 0.5 sends
//! the bytes that one of its links carries in half of the time, framing included.
//! [`uniform_capacity`] is the load at which the busiest links of a network are full under uniform
//! traffic.
//!
//! The result depends on the sweep alone, to the byte. Each node has random numbers of its
//! own, from the seed and its number.

pub mod command;
mod measure;
mod node;
mod pattern;
mod random;

use std::sync::Arc;

use nicforge_core::{fabric::LinkSpec, time::Nanos};
use nicforge_network::{
    alone::{self, AloneError, Endless},
    deadlock::{DeadlockError, NodeChannels, WaitGraph, bubble},
    router::{
        FifoSpec, Router, RouterError, RouterPlan, RouterSpec,
        policies::{Fixed, PolicyError, TorusPolicy, TorusRules, escape_routes},
    },
    shape::{Cabling, Dimension, ShapeError, Torus},
};
use serde::Serialize;
use thiserror::Error;

pub use self::pattern::Pattern;
use self::{
    measure::{Collector, Spans},
    node::{Source, TrafficNode},
    pattern::Targets,
    random::Random,
};

/// Number of slices of a run, after each of which the caller can stop it.
const SLICES: u64 = 64;
/// Maximum number of windows of a measurement.
const MAX_WINDOWS: u32 = 1024;

/// A network of routers.
#[derive(Clone, Debug)]
pub struct Network {
    /// The dimensions of the torus or mesh.
    pub dimensions: Vec<Dimension>,
    /// Kind of all links. Its bandwidth must be finite.
    pub link: LinkSpec,
    /// Framing of a packet in bytes.
    pub framing: u32,
    /// Virtual channels and orders of dimensions. All packets are of class 0.
    pub rules: TorusRules,
    /// Zone of adaptive packets, or `None` for packets in dimension order.
    pub adaptive_zone: Option<u8>,
    /// Number of packets from links that an output sends between two injected ones, while both wait
    /// for it.
    pub through_ratio: u8,
    /// Number of injection FIFOs of a node.
    pub injection_fifos: u8,
    /// Packets that an injection FIFO and the reception FIFO have room for.
    pub fifo_packets: u16,
}

/// Times of a measurement, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Time before the first window, in nanoseconds.
    pub warm_up: u64,
    /// Length of a window, in nanoseconds.
    pub window: u64,
    /// Number of windows, 1 to 1024.
    pub windows: u32,
    /// Time after the last window for packets that are still on their way, in nanoseconds.
    pub drain: u64,
}

/// A measurement of a network at several offered loads: its traffic, and the times.
#[derive(Clone, Debug)]
pub struct LoadSweep {
    /// The network.
    pub network: Network,
    /// Pattern of the traffic.
    pub pattern: Pattern,
    /// Content of each packet in bytes, at least 1.
    pub packet_bytes: usize,
    /// Offered loads, each above 0.
    pub loads: Vec<f64>,
    /// Times of the measurement. [`Pattern::AllToAll`] uses none of them: it is measured from its
    /// begin to its end.
    pub windows: Windows,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Results of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// Number of nodes.
    pub nodes: u32,
    /// Pattern of the traffic.
    pub pattern: Pattern,
    /// Content of each packet in bytes.
    pub packet_bytes: usize,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Results for the loads, in their order.
    pub points: Vec<Point>,
}

/// Results at one offered load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The offered load.
    pub offered: f64,
    /// The accepted load: the bytes that nodes received, in the unit of the offered one.
    pub accepted: f64,
    /// The accepted load in each window.
    pub accepted_by_window: Vec<f64>,
    /// Latency of the packets that were created in the windows and have arrived.
    pub latency: Latency,
    /// Packets that were created in the windows, were injected, and have not arrived.
    pub unfinished: u64,
    /// Packets received at any time.
    pub received: u64,
    /// Packets over links, at any time: a packet counts once for each link.
    pub hops: u64,
    /// Time at which the last packet was received, in nanoseconds.
    pub last_received_ns: u64,
}

/// Latencies in nanoseconds. The percentiles are exact to 1/64.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Number of packets.
    pub packets: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 90 % are at most this.
    pub p90: u64,
    /// 99 % are at most this.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

/// Reasons why a sweep cannot be run.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TrafficError {
    /// The dimensions are no torus or mesh.
    #[error("the network has a wrong shape: {0}")]
    Shape(#[from] ShapeError),
    /// The routing does not fit the network.
    #[error("the routing does not fit the network: {0}")]
    Policy(#[from] PolicyError),
    /// The routing can deadlock.
    #[error("the routing is not safe: {0}")]
    Deadlock(#[from] DeadlockError),
    /// The router does not fit the link.
    #[error("the router is refused: {0}")]
    Router(#[from] RouterError),
    /// The links are refused.
    #[error("the network is refused: {0}")]
    Network(#[from] AloneError),
    /// A node did not come to the end of a time.
    #[error("the network does not come to rest: {0}")]
    Endless(#[from] Endless),
    /// The network has no two nodes.
    #[error("a network of {nodes} nodes: traffic needs at least 2")]
    TooFew {
        /// Number of nodes.
        nodes: u32,
    },
    /// The pattern names a node that does not exist, or a share above 100 %.
    #[error(
        "a hot spot of {percent} % at node {node} of {nodes}: choose a node of the network, and at most 100 %"
    )]
    HotSpot {
        /// The node.
        node: u32,
        /// The share.
        percent: u8,
        /// Number of nodes.
        nodes: u32,
    },
    /// The packets do not fit the link.
    #[error("packets of {bytes} bytes: choose 1 to {longest}, the longest packet of the link")]
    Packet {
        /// Bytes of a packet's content.
        bytes: usize,
        /// The longest packet of the link.
        longest: usize,
    },
    /// The bandwidth of the links is infinite, so no load is a fraction of it.
    #[error("links of infinite bandwidth: give them a finite one")]
    Bandwidth,
    /// An offered load is not a positive number.
    #[error("an offered load of {load}: choose a number above 0")]
    Load {
        /// The load.
        load: f64,
    },
    /// There is no window, too many of them, or a window has no length.
    #[error("{windows} windows of {window} ns: choose 1 to {MAX_WINDOWS} windows, of at least 1 ns")]
    Windows {
        /// Number of windows.
        windows: u32,
        /// Length of a window.
        window: u64,
    },
    /// The caller has stopped the run.
    #[error("the run was stopped")]
    Stopped,
    /// The number of injection FIFOs does not fit.
    #[error("a node without injection FIFOs sends nothing: give it at least one")]
    NoFifo,
}

/// Measures a network at each offered load. Each load begins with an empty network.
///
/// # Errors
/// [`TrafficError`] names the value that does not fit.
pub fn run(sweep: &LoadSweep) -> Result<Curve, TrafficError> {
    run_unless(sweep, &|| false)
}

/// Measures as [`run`] does. It asks `is_stopped` many times at each load, and ends when that
/// returns true. [`Pattern::AllToAll`] is not stopped.
///
/// # Errors
/// Those of [`run`], and [`TrafficError::Stopped`].
pub fn run_unless(sweep: &LoadSweep, is_stopped: &dyn Fn() -> bool) -> Result<Curve, TrafficError> {
    let torus = Torus::new(&sweep.network.dimensions)?;
    check_values(sweep, &torus)?;

    let points: Result<Vec<_>, _> =
        sweep.loads.iter().map(|&load| run_load(sweep, &torus, load, is_stopped)).collect();
    Ok(Curve {
        nodes: torus.nodes(),
        pattern: sweep.pattern,
        packet_bytes: sweep.packet_bytes,
        seed: sweep.seed,
        points: points?,
    })
}

/// Returns the load at which the busiest links of a network are full, if each packet goes to a
/// random node and takes a shortest way. It is an upper bound of the accepted load of
/// [`Pattern::Uniform`].
///
/// # Errors
/// [`ShapeError`] if the dimensions are no torus or mesh.
pub fn uniform_capacity(dimensions: &[Dimension]) -> Result<f64, ShapeError> {
    let torus = Torus::new(dimensions)?;

    // One of the n targets in the formulas is the node itself: packets to it cross no link.
    let crossing_share = f64::from(torus.nodes() - 1) / f64::from(torus.nodes());
    let busiest = dimensions.iter().map(|&dimension| busiest_link(dimension)).fold(0.0, f64::max);
    Ok(if busiest == 0.0 { 0.0 } else { crossing_share / busiest })
}

/// Returns the mean number of packets over the busiest link of a line, for each packet that every
/// node of the line sends to a random one of them.
fn busiest_link(dimension: Dimension) -> f64 {
    let length = u64::from(dimension.length);
    // The packets over the link if each node sends one to each node of the line.
    let crossing = if dimension.wraps {
        // Hops of the shortest ways to all nodes, over the two links of a node.
        let hops: u64 = (0..length).map(|apart| apart.min(length - apart)).sum();
        hops as f64 / 2.0
    } else {
        // From one half of the line to the other.
        ((length / 2) * length.div_ceil(2)) as f64
    };
    crossing / length as f64
}

/// Checks the values of a sweep.
fn check_values(sweep: &LoadSweep, torus: &Torus) -> Result<(), TrafficError> {
    let LoadSweep { network, windows, .. } = sweep;
    let nodes = torus.nodes();
    if nodes < 2 {
        return Err(TrafficError::TooFew { nodes });
    }
    if let Pattern::HotSpot { node, percent } = sweep.pattern
        && (node >= nodes || percent > 100)
    {
        return Err(TrafficError::HotSpot { node, percent, nodes });
    }

    let (bytes, longest) = (sweep.packet_bytes, network.link.max_packet);
    if !(1..=longest).contains(&bytes) {
        return Err(TrafficError::Packet { bytes, longest });
    }
    if network.link.bits_per_second == 0 {
        return Err(TrafficError::Bandwidth);
    }
    if network.injection_fifos == 0 {
        return Err(TrafficError::NoFifo);
    }
    if let Some(&load) = sweep.loads.iter().find(|&&load| !(load.is_finite() && load > 0.0)) {
        return Err(TrafficError::Load { load });
    }
    if windows.window == 0 || !(1..=MAX_WINDOWS).contains(&windows.windows) {
        return Err(TrafficError::Windows { windows: windows.windows, window: windows.window });
    }

    check_deadlock(network, torus)
}

/// Checks that packets cannot wait for each other in a circle on their escape channels, which have
/// the bubble rule or no cycle.
fn check_deadlock(network: &Network, torus: &Torus) -> Result<(), TrafficError> {
    let vcs = network.link.credits.len() as u8;
    let mut graph = WaitGraph::new(torus, NodeChannels { vcs, fifos: 0 })?;
    graph.add_routes(&escape_routes(torus, network.rules, 0)?)?;
    match network.rules.classes[0].fixed {
        Fixed::Bubble { vc } => graph.check_with(bubble(torus, vc))?,
        Fixed::Dateline { .. } | Fixed::Plain { .. } => graph.check()?,
    }
    Ok(())
}

/// Measures a network at one load: builds it, runs it to the end of the measurement in slices, and
/// reads the counts.
fn run_load(
    sweep: &LoadSweep,
    torus: &Torus,
    load: f64,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Point, TrafficError> {
    let Windows { warm_up, window, windows, drain } = sweep.windows;
    // An all-to-all ends by itself. Its only window is its whole time.
    let ends_by_itself = matches!(sweep.pattern, Pattern::AllToAll { .. });
    let spans = if ends_by_itself {
        Spans { warm_up: 0, window: u64::MAX, windows: 1 }
    } else {
        Spans { warm_up, window, windows }
    };

    let collector = Arc::new(Collector::new(spans));
    let mut network = build(sweep, torus, load, spans.end(), &collector)?;
    let end = if ends_by_itself { Nanos::NEVER } else { spans.end().after(drain) };
    if !ends_by_itself {
        for slice in 1..SLICES {
            network.run_until(Nanos(end.0 / SLICES * slice))?;
            if is_stopped() {
                return Err(TrafficError::Stopped);
            }
        }
    }
    network.run_until(end)?;

    // A load of 1 is a link's bytes in a window, for each node.
    let (received, last_received) = collector.total();
    let window_ns = if ends_by_itself { last_received.0 } else { window };
    let bytes_per_ns = sweep.network.link.bits_per_second as f64 / 8e9;
    let full_load = bytes_per_ns * window_ns as f64 * f64::from(torus.nodes());
    let by_window: Vec<_> = collector.bytes().iter().map(|&bytes| bytes as f64 / full_load).collect();

    Ok(Point {
        offered: load,
        accepted: by_window.iter().sum::<f64>() / by_window.len() as f64,
        accepted_by_window: by_window,
        latency: collector.latency(),
        unfinished: collector.unfinished(),
        received,
        hops: network.hops(),
        last_received_ns: last_received.0,
    })
}

/// Returns the network of a sweep, whose nodes create packets at a load until `end`.
fn build(
    sweep: &LoadSweep,
    torus: &Torus,
    load: f64,
    end: Nanos,
    collector: &Arc<Collector>,
) -> Result<alone::Network<TrafficNode>, TrafficError> {
    let network = &sweep.network;
    let plan = RouterPlan::new(&router_spec(network, torus))?;
    let policy = TorusPolicy::new(torus, 0, network.rules)?;
    // The check has refused packets that are longer than those of the link.
    let bytes = (sweep.packet_bytes as u32).saturating_add(network.framing);
    let picoseconds_on_link = f64::from(bytes) * 8e12 / network.link.bits_per_second as f64;
    let interval_ps = picoseconds_on_link / load;

    let mut nodes = Vec::with_capacity(torus.nodes() as usize);
    for node in 0..torus.nodes() {
        let mut random = Random::of_node(sweep.seed, node);
        let source = Source {
            targets: Targets::new(sweep.pattern, *torus, node, &mut random),
            random,
            interval_ps,
            bytes,
            adaptive_zone: network.adaptive_zone,
            end,
        };
        let router = Router::of_packets(&plan, policy.at(node)?);
        nodes.push(TrafficNode::new(router, network.injection_fifos, source, Arc::clone(collector)));
    }
    Ok(alone::Network::new(torus, &network.link, nodes)?)
}

/// Returns the description of the routers.
fn router_spec(network: &Network, torus: &Torus) -> RouterSpec {
    let longest = (network.link.max_packet as u32).saturating_add(network.framing);
    let bytes = longest.saturating_mul(network.fifo_packets.into());
    let fifo = FifoSpec { bytes, packets: network.fifo_packets, priority: 0 };
    let bubble_vcs = match network.rules.classes[0].fixed {
        Fixed::Bubble { vc } => 1_u16.checked_shl(vc.into()).unwrap_or(0),
        Fixed::Dateline { .. } | Fixed::Plain { .. } => 0,
    };

    RouterSpec {
        ports: torus.ports(),
        link: network.link.clone(),
        framing: network.framing,
        priorities: vec![0; network.link.credits.len()],
        bubble_vcs,
        through_ratio: network.through_ratio,
        injection: vec![fifo; network.injection_fifos.into()],
        reception: vec![fifo],
    }
}
