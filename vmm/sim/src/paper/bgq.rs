//! D. Chen et al., *The IBM Blue Gene/Q Interconnection Network and Message Unit*: latencies,
//! throughput of links and of collective operations, all-to-all, and zone routing.
//!
//! The programs use the SPI, and the device is that of a served machine. Zone routing is measured
//! on the network alone, as in the paper.

mod messages;
mod network;
mod projections;
mod rows;
mod sums;

use nicforge::failure::Failure;
use nicforge_driver::runtime::Cost;

use super::experiment::{Experiment, Mechanism, Run};
use crate::{
    bgq::BlueGene,
    world::{Picos, Profile},
};

/// The time of software.
const SOFTWARE_COST: Mechanism = Mechanism { name: "software-cost", without: "software takes no time" };
/// The acknowledgements and tokens of links.
const PROTOCOL: Mechanism = Mechanism {
    name: "protocol-bytes",
    without: "no acknowledgements and tokens between the packets of a link",
};
/// The cycles of the collective logic.
const LOGIC: Mechanism =
    Mechanism { name: "collective-logic", without: "the collective logic adds no cycles to a packet" };

/// The experiments of the paper.
pub const BGQ: Experiment = Experiment {
    name: "bgq",
    title: "Blue Gene/Q: network and Message Unit",
    citation: "D. Chen et al., The IBM Blue Gene/Q Interconnection Network and Message Unit, SC 2011",
    mechanisms: &[SOFTWARE_COST, PROTOCOL, LOGIC],
    rows: rows::all,
    run,
};

/// Frequencies of the Message Unit and of the network in MHz (section II.A).
const UNIT_MHZ: u32 = 800;
const NETWORK_MHZ: u32 = 500;
/// Rate of a link in Gb/s, and the bytes after which a packet is forwarded.
const LINK_GBIT_S: f64 = 16.0;
const HEAD_BYTES: u32 = 32;
/// Calibrated by the hardware latencies of 1 and 13 hops: delay of a link in nanoseconds, beyond
/// the 16 of a packet's head, and the latencies of memory and ports at both ends.
const HOP_NS: u32 = 29;
const LATENCY_NS: u32 = 526;
/// Calibrated by the sum on 2 nodes: latencies of memory and ports in nanoseconds, for a
/// contribution to a sum and its result.
const SUM_LATENCY_NS: u32 = 361;
/// Calibrated by the sum of 1 MB: cycles of the collective logic between two packets. A packet
/// takes 150 cycles with them.
const COLLECTIVE_CYCLES: u32 = 6;
/// Calibrated by the software in the latency: time in which software injects a descriptor, and that
/// in which it sees and ends a wait, in nanoseconds.
const SEND_NS: f64 = 48.0;
const RECEIVE_NS: f64 = 48.0;
/// Calibrated by 4 KB on ten links: the time of a descriptor in that benchmark.
const LOOP_SEND_NS: f64 = 174.0;
/// Calibrated by 256 MB on ten links: what the Message Unit reads and writes in memory in MB/s when
/// the messages do not fit into the L2.
const MEMORY_MB_S: u32 = 25_000;
/// Bytes of the L2, by the compute chip's description (the paper's reference 1).
const L2_BYTES: u64 = 32 << 20;

/// The mechanisms of the model that this run has, and its seed.
#[derive(Clone, Copy)]
struct Model {
    software: bool,
    protocol: bool,
    logic: bool,
    seed: u64,
}

/// The values in which the benchmarks differ.
#[derive(Clone, Copy)]
struct Benchmark {
    shape: [u32; 5],
    wraps: [bool; 5],
    /// Application subgroups of a node.
    subgroups: u16,
    /// Latency of memory and ports in nanoseconds.
    latency: u32,
    /// Time of a descriptor in nanoseconds.
    send: f64,
    /// The messages do not fit into the L2.
    exceeds_l2: bool,
    /// Nanoseconds between two polls of a waiting process.
    poll: u64,
}

impl Benchmark {
    /// Returns a benchmark of messages from node to node.
    fn of_messages(shape: [u32; 5], wraps: [bool; 5]) -> Self {
        Self { shape, wraps, subgroups: 1, latency: LATENCY_NS, send: SEND_NS, exceeds_l2: false, poll: 1 }
    }
}

impl Model {
    /// Returns the model with the mechanisms that this run has.
    fn of(run: &Run<'_>) -> Self {
        Self {
            software: run.has(&SOFTWARE_COST),
            protocol: run.has(&PROTOCOL),
            logic: run.has(&LOGIC),
            seed: run.seed(),
        }
    }

    fn without_software(self) -> Self {
        Self { software: false, ..self }
    }

    /// Returns the nodes of a benchmark with their software.
    fn nodes<'a>(self, run: &Run<'a>, benchmark: Benchmark) -> BlueGene<'a> {
        let Benchmark { shape, wraps, subgroups, latency, send, exceeds_l2, poll } = benchmark;
        let (network, recovery) = if self.logic { (NETWORK_MHZ, COLLECTIVE_CYCLES) } else { (0, 0) };
        let memory = if exceeds_l2 { MEMORY_MB_S } else { 0 };
        let protocol = if self.protocol { "" } else { "protocol_bytes = 0\n" };
        let costs = [(Cost::SendMessage, send), (Cost::ReceiveMessage, RECEIVE_NS)];
        let profile = if self.software { Profile::of_nanos(costs) } else { Profile::default() };

        BlueGene {
            shape,
            wraps,
            subgroups,
            unit: format!(
                "mu_mhz = {UNIT_MHZ}\nnetwork_mhz = {network}\nlatency_ns = {latency}\nmemory_mbytes_s = {memory}\n\
                 collective_cycles = {recovery}\nzones = [\"ABCD E\"]\n{protocol}"
            ),
            link: format!("delay_ns = {HOP_NS}\ngbit_s = {LINK_GBIT_S:.1}\ncut_through_bytes = {HEAD_BYTES}"),
            profile: profile.with_poll(Picos::nanos(poll)),
            seed: self.seed,
            interrupted: run.interrupted(),
        }
    }
}

/// Measures all rows and figures.
fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    let model = Model::of(run);
    let hop = messages::latencies(run, model)?;
    messages::loops(run, model)?;
    let sum_hop = sums::latencies(run, model)?;
    sums::throughputs(run, model)?;
    network::all_to_all(run, model)?;
    network::zones(run, model)?;
    projections::record(run, &hop, &sum_hop)
}
