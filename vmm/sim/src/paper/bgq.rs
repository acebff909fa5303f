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

/// Frequency of the Message Unit in MHz (section II.A).
const UNIT_MHZ: u32 = 800;
/// Frequency of the network in MHz (section II.A).
const NETWORK_MHZ: u32 = 500;
/// Rate of a link in Gb/s.
const LINK_GBIT_S: f64 = 16.0;
/// Bytes of a packet after which a router forwards it.
const HEAD_BYTES: u32 = 32;
/// Delay of a link in nanoseconds, beyond the 16 of a packet's head. Calibrated by the hardware
/// latencies of 1 and 13 hops.
const HOP_NS: u32 = 29;
/// Latency of memory and ports at both ends of a message, in nanoseconds. Calibrated by the same.
const LATENCY_NS: u32 = 526;
/// Latency of memory and ports for a contribution to a sum and its result, in nanoseconds.
/// Calibrated by the sum on 2 nodes.
const SUM_LATENCY_NS: u32 = 361;
/// Calibrated by the sum of 1 MB: cycles of the collective logic between two packets. A packet
/// takes 150 cycles with them.
const COLLECTIVE_CYCLES: u32 = 6;
/// Time in which software injects a descriptor, in nanoseconds. Calibrated by the software's part
/// of the latency.
const SEND_NS: f64 = 48.0;
/// Time in which software sees the end of a wait, in nanoseconds. Calibrated by the same.
const RECEIVE_NS: f64 = 48.0;
/// Calibrated by 4 KB on ten links: the time of a descriptor in that benchmark.
const LOOP_SEND_NS: f64 = 174.0;
/// Calibrated by 256 MB on ten links: rate in MB/s at which the Message Unit reads and writes
/// memory when the messages do not fit into the L2.
const MEMORY_MB_S: u32 = 25_000;
/// Bytes of the L2, by the compute chip's description (the paper's reference 1).
const L2_BYTES: u64 = 32 << 20;

/// The mechanisms of the model that this run has, and its seed.
#[derive(Clone, Copy)]
struct Model {
    /// [`SOFTWARE_COST`].
    software_cost: bool,
    /// [`PROTOCOL`].
    protocol_bytes: bool,
    /// [`LOGIC`].
    collective_logic: bool,
    seed: u64,
}

/// The values in which the benchmarks differ.
#[derive(Clone, Copy)]
struct Benchmark {
    /// Nodes in the dimensions A to E.
    shape: [u32; 5],
    /// Whether the dimensions are closed to rings.
    wraps: [bool; 5],
    /// Application subgroups of a node.
    subgroups: u16,
    /// Latency of memory and ports in nanoseconds.
    latency_ns: u32,
    /// Time of a descriptor in nanoseconds.
    send_ns: f64,
    /// The messages do not fit into the L2.
    exceeds_l2: bool,
    /// Nanoseconds between two polls of a waiting process.
    poll_ns: u64,
}

impl Benchmark {
    /// Returns a benchmark of messages from node to node.
    fn of_messages(shape: [u32; 5], wraps: [bool; 5]) -> Self {
        Self {
            shape,
            wraps,
            subgroups: 1,
            latency_ns: LATENCY_NS,
            send_ns: SEND_NS,
            exceeds_l2: false,
            poll_ns: 1,
        }
    }
}

impl Model {
    /// Returns the model with the mechanisms that this run has.
    fn of(run: &Run<'_>) -> Self {
        Self {
            software_cost: run.has(&SOFTWARE_COST),
            protocol_bytes: run.has(&PROTOCOL),
            collective_logic: run.has(&LOGIC),
            seed: run.seed(),
        }
    }

    /// Returns the model in which software takes no time.
    fn without_software(self) -> Self {
        Self { software_cost: false, ..self }
    }

    /// Returns the nodes of a benchmark with their software.
    fn nodes<'a>(self, run: &Run<'a>, benchmark: Benchmark) -> BlueGene<'a> {
        let Benchmark { shape, wraps, subgroups, latency_ns, send_ns, exceeds_l2, poll_ns } = benchmark;
        // In the machine file, zero stands for no delay and for no limit.
        let (network_mhz, collective_cycles) =
            if self.collective_logic { (NETWORK_MHZ, COLLECTIVE_CYCLES) } else { (0, 0) };
        let memory_mb_s = if exceeds_l2 { MEMORY_MB_S } else { 0 };
        let protocol_line = if self.protocol_bytes { "" } else { "protocol_bytes = 0\n" };
        let costs = [(Cost::SendMessage, send_ns), (Cost::ReceiveMessage, RECEIVE_NS)];
        let profile = if self.software_cost { Profile::of_nanos(costs) } else { Profile::default() };

        BlueGene {
            shape,
            wraps,
            subgroups,
            unit: format!(
                "mu_mhz = {UNIT_MHZ}\nnetwork_mhz = {network_mhz}\nlatency_ns = {latency_ns}\n\
                 memory_mbytes_s = {memory_mb_s}\ncollective_cycles = {collective_cycles}\nzones = [\"ABCD E\"]\n\
                 {protocol_line}"
            ),
            link: format!("delay_ns = {HOP_NS}\ngbit_s = {LINK_GBIT_S:.1}\ncut_through_bytes = {HEAD_BYTES}"),
            profile: profile.with_poll(Picos::nanos(poll_ns)),
            seed: self.seed,
            interrupted: run.interrupted(),
        }
    }
}

/// Measures all rows and figures.
fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    let model = Model::of(run);
    let message_latency = messages::latencies(run, model)?;
    messages::loops(run, model)?;
    let sum_latency = sums::latencies(run, model)?;
    sums::throughputs(run, model)?;
    network::all_to_all(run, model)?;
    network::zones(run, model)?;
    projections::record(run, &message_latency, &sum_latency)
}
