//! The command line of traffic on a network alone.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use nicforge::{
    failure::{EXIT_HELD, ErrorContext, Failure, print_line},
    table::{TableColumn, TableData},
};
use nicforge_core::fabric::{CreditUnit, LinkSpec};
use nicforge_network::{
    router::policies::{ChannelClass, Fixed, TorusRules},
    shape::Dimension,
};

use super::{Curve, LoadSweep, Network, Pattern, Point, TrafficError, Windows, run, uniform_capacity};

/// Bytes of a credit. Packets of more than 8 KiB have larger credits.
const CREDIT_BYTES: u32 = 32;
/// Maximum number of credits that a packet takes.
const MAX_PACKET_CREDITS: u32 = 256;
/// Packets that the buffers of a link hold, over all virtual channels.
const BUFFERED_PACKETS: u32 = 12;
/// Virtual channels of a network with adaptive packets: the escape channel and two others.
const ADAPTIVE_NETWORK_CHANNELS: usize = 3;
/// The channels of such a network for adaptive packets, one bit for each.
const ADAPTIVE_CHANNELS: u16 = 0b110;
/// Bytes after which a router forwards a packet.
const HEAD_BYTES: u32 = 32;
/// Packets from links between two injected ones, while both wait for one output.
const THROUGH_RATIO: u8 = 3;
/// Windows into which a measurement is divided.
const WINDOWS: u32 = 2;
/// Injection FIFOs of a node.
const INJECTION_FIFOS: u8 = 4;
/// Packets that a FIFO has room for.
const FIFO_PACKETS: u16 = 4;

/// The arguments of `nicforge traffic`.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// Nodes of each dimension, 1 to 5 of them. A dimension with an `m` is a mesh, the others are
    /// tori: 8x8x8, or 4x4x2m.
    #[arg(long, value_name = "AxBxC", default_value = "8x8", value_parser = parse_dimensions)]
    pub torus: Dimensions,
    /// The pattern of the traffic.
    #[arg(long, value_enum, default_value_t = PatternName::Uniform)]
    pub pattern: PatternName,
    /// Offered loads in percent of the network's capacity for uniform traffic.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = parse_load, default_values_t = [10.0, 30.0, 50.0, 70.0, 80.0, 90.0, 100.0])]
    pub loads: Vec<f64>,
    /// Bytes of a packet.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    pub packet: u32,
    /// Gb/s of a link in each direction.
    #[arg(long, value_name = "GBIT", default_value_t = 8.0)]
    pub gbit_s: f64,
    /// Nanoseconds that a packet's end takes over a link.
    #[arg(long, value_name = "NS", default_value_t = 40)]
    pub delay_ns: u64,
    /// Let packets choose among the shortest ways, instead of dimension order.
    #[arg(long)]
    pub adaptive: bool,
    /// Routers wait for the whole packet before they forward it.
    #[arg(long)]
    pub store_and_forward: bool,
    /// Length of the measurement in microseconds of virtual time, after as long a warm-up.
    #[arg(long, value_name = "US", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub window_us: u64,
    /// The seed of all random numbers. The same seed gives the same output.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print the results as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The dimensions of a torus or mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimensions(Vec<Dimension>);

/// The name of a pattern on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PatternName {
    /// Each packet goes to a random other node.
    Uniform,
    /// Each node goes through all others in random orders.
    Permutation,
    /// Each node sends to its neighbours in turn.
    Neighbour,
    /// Each node sends one packet to each other node, and then no more.
    AllToAll,
    /// Each packet crosses the middle of the longest dimension.
    Bisection,
    /// A tenth of the packets goes to node 0.
    HotSpot,
}

impl PatternName {
    /// Returns the pattern of a name.
    fn pattern(self) -> Pattern {
        match self {
            Self::Uniform => Pattern::Uniform,
            Self::Permutation => Pattern::PermutationWalk,
            Self::Neighbour => Pattern::NearestNeighbour,
            Self::AllToAll => Pattern::AllToAll { packets: 1 },
            Self::Bisection => Pattern::Bisection,
            Self::HotSpot => Pattern::HotSpot { node: 0, percent: 10 },
        }
    }
}

/// Parses dimensions such as `4x4x2m`.
fn parse_dimensions(text: &str) -> Result<Dimensions, String> {
    let dimension = |part: &str| {
        let (digits, is_mesh) = part.strip_suffix('m').map_or((part, false), |digits| (digits, true));
        let length = u32::from_str(digits).map_err(|_| {
            format!(
                "{part:?} is no dimension: write a number of nodes, with m behind it for a mesh, as in 4x4x2m"
            )
        })?;
        Ok(if is_mesh { Dimension::mesh(length) } else { Dimension::torus(length) })
    };
    text.split('x').map(dimension).collect::<Result<_, String>>().map(Dimensions)
}

/// Parses an offered load in percent.
fn parse_load(text: &str) -> Result<f64, String> {
    let load: Option<f64> = text.parse().ok();
    load.filter(|load| *load > 0.0 && load.is_finite())
        .ok_or_else(|| format!("{text:?} is no load: write percents above 0, as in 10,50,100"))
}

impl Arguments {
    /// Returns the sweep of these arguments at one load, which is a fraction of a link's bandwidth.
    fn sweep(&self, load: f64) -> LoadSweep {
        let credit_bytes = self.packet.div_ceil(MAX_PACKET_CREDITS).next_multiple_of(CREDIT_BYTES);
        let link_credits = BUFFERED_PACKETS * self.packet.div_ceil(credit_bytes);

        // The first channel is the escape from the others.
        let (credits, adaptive) = if self.adaptive {
            let channel_credits = link_credits / ADAPTIVE_NETWORK_CHANNELS as u32;
            (vec![channel_credits; ADAPTIVE_NETWORK_CHANNELS], ADAPTIVE_CHANNELS)
        } else {
            (vec![link_credits], 0)
        };

        let network = Network {
            dimensions: self.torus.0.clone(),
            link: LinkSpec {
                delay: self.delay_ns,
                bits_per_second: (self.gbit_s * 1e9).round() as u64,
                credits,
                credit_unit: CreditUnit::Bytes(credit_bytes),
                max_packet: self.packet as usize,
                cut_through: (!self.store_and_forward).then_some(HEAD_BYTES),
            },
            framing: 0,
            rules: TorusRules::shared(ChannelClass { fixed: Fixed::Bubble { vc: 0 }, adaptive }),
            adaptive_zone: self.adaptive.then_some(0),
            through_ratio: THROUGH_RATIO,
            injection_fifos: INJECTION_FIFOS,
            fifo_packets: FIFO_PACKETS,
        };

        let window_ns = self.window_us * 1000 / u64::from(WINDOWS);
        LoadSweep {
            network,
            pattern: self.pattern.pattern(),
            packet_bytes: self.packet as usize,
            loads: vec![load],
            windows: Windows {
                warm_up: 2 * window_ns,
                window: window_ns,
                windows: WINDOWS,
                drain: window_ns,
            },
            seed: self.seed,
        }
    }
}

impl From<TrafficError> for Failure {
    fn from(error: TrafficError) -> Self {
        match error {
            TrafficError::Endless(_) => Self { message: error.to_string(), code: EXIT_HELD },
            TrafficError::Stopped => Self::interrupted(),
            _ => Self::usage(error.to_string()),
        }
    }
}

/// Measures the network at each load, and prints the results. Returns the exit code.
///
/// # Errors
/// Returns an error when an argument does not fit.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let capacity = uniform_capacity(&arguments.torus.0).map_err(TrafficError::from)?;

    let mut curve: Option<Curve> = None;
    for percent in &arguments.loads {
        let measured = run(&arguments.sweep(percent / 100.0 * capacity))?;
        match &mut curve {
            Some(curve) => curve.points.extend(measured.points),
            None => curve = Some(measured),
        }
    }

    let curve = curve.ok_or_else(|| Failure::usage("--loads: name at least one load"))?;
    if arguments.json {
        print_line(serde_json::to_string_pretty(&curve).context(|| "the results".into())?)?;
    } else {
        print_line(table(&curve, capacity).table())?;
        print_line(format_args!(
            "{} nodes; loads in percent of {:.3} of a link's bandwidth a node, which uniform traffic can use at most",
            curve.nodes, capacity
        ))?;
    }
    Ok(0)
}

/// Returns the results as a table, with loads in percent of `capacity`.
fn table(curve: &Curve, capacity: f64) -> TableData {
    let columns =
        ["offered %", "accepted %", "mean ns", "50 % ns", "99 % ns", "longest ns", "packets", "hops"];
    let row = |point: &Point| {
        let percent = |load: f64| format!("{:.1}", 100.0 * load / capacity);
        let latency = &point.latency;
        vec![
            percent(point.offered),
            percent(point.accepted),
            format!("{:.0}", latency.mean),
            latency.p50.to_string(),
            latency.p99.to_string(),
            latency.max.to_string(),
            point.received.to_string(),
            point.hops.to_string(),
        ]
    };

    TableData {
        columns: columns.map(|name| TableColumn::new(name, true)).into(),
        rows: curve.points.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_tori_unless_they_are_marked() {
        let parsed = parse_dimensions("4x2m").unwrap();
        assert_eq!(parsed, Dimensions(vec![Dimension::torus(4), Dimension::mesh(2)]));
        assert!(parse_dimensions("4xm").is_err() && parse_dimensions("").is_err());
    }
}
