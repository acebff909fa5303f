//! The rows of Blue Gene/Q's paper.

use crate::paper::{judgement::Tolerance, row::Expected};

/// Hops and the hardware latencies in nanoseconds that calibrate the model (Table 1).
pub(super) const HARDWARE_LATENCIES: [(u32, f64); 2] = [(1, 622.0), (13, 1166.0)];

/// Table 1: hops, hardware latency and total latency in nanoseconds.
pub(super) const LATENCIES: [(u32, f64, f64); 13] = [
    (1, 622.0, 718.0),
    (2, 671.0, 769.0),
    (3, 713.0, 813.0),
    (4, 760.0, 856.0),
    (5, 808.0, 906.0),
    (6, 849.0, 950.0),
    (7, 891.0, 989.0),
    (8, 940.0, 1038.0),
    (9, 981.0, 1080.0),
    (10, 1022.0, 1122.0),
    (11, 1069.0, 1166.0),
    (12, 1118.0, 1216.0),
    (13, 1166.0, 1264.0),
];

/// The name of a missing mechanism, and the value without it. Calibrating rows need none.
type NullModel = Option<(&'static str, f64)>;

/// Table 2: bytes of a message, GB/s, and the null model with its GB/s.
pub(super) const LOOPS: [(u64, f64, NullModel); 10] = [
    (4 << 10, 17.0, None),
    (8 << 10, 23.0, Some(("software-cost", 30.7))),
    (16 << 10, 27.9, Some((PROTOCOL, 28.8))),
    (32 << 10, 31.3, Some((PROTOCOL, 32.5))),
    (64 << 10, 33.3, Some((PROTOCOL, 34.6))),
    (128 << 10, 34.2, Some((PROTOCOL, 35.6))),
    (256 << 10, 34.9, Some((PROTOCOL, 36.3))),
    (512 << 10, 35.2, Some((PROTOCOL, 36.7))),
    (1 << 20, 35.4, None),
    (256 << 20, 25.0, None),
];
/// Sizes of Table 2 at which the L2 is too small for all messages, and the throughput in percent of
/// that of 1 MB.
pub(super) const DROPS: [(u64, f64); 2] = [(2 << 20, 74.6), (4 << 20, 69.8)];

/// Table 3: nodes, hops up and down, and nanoseconds.
pub(super) const SUMS: [(u32, u32, f64); 9] = [
    (2, 2, 641.0),
    (4, 4, 742.0),
    (8, 6, 876.0),
    (16, 8, 984.0),
    (32, 10, 1099.0),
    (64, 12, 1203.0),
    (128, 14, 1321.0),
    (256, 16, 1443.0),
    (512, 18, 1558.0),
];

/// Table 4: bytes of a message, GB/s, and the GB/s of collective logic without delays.
pub(super) const THROUGHPUTS: [(u64, f64, f64); 12] = [
    (512, 0.26, 0.295),
    (1 << 10, 0.45, 0.503),
    (2 << 10, 0.72, 0.786),
    (4 << 10, 1.01, 1.090),
    (8 << 10, 1.27, 1.351),
    (16 << 10, 1.45, 1.536),
    (32 << 10, 1.57, 1.648),
    (64 << 10, 1.64, 1.710),
    (128 << 10, 1.67, 1.743),
    (256 << 10, 1.69, 1.760),
    (512 << 10, 1.70, 1.769),
    (1 << 20, 1.70, 1.773),
];
/// Maximum number of nodes of Table 3 that quick runs measure, apart from 512.
const QUICK_NODES: u32 = 32;
/// Bytes of the longest message of Table 4 that quick runs measure.
const QUICK_SUM: u64 = 4 << 10;
/// Bytes of the longest message of Table 2 that quick runs measure.
const QUICK_LOOP: u64 = 64 << 10;
/// Time of the sum of 8 bytes on 2 nodes without its hops, in nanoseconds: the null model of
/// Table 3.
const SUM_WITHOUT_HOPS_NS: f64 = 527.0;
/// Time of a hop of a sum without collective logic, in nanoseconds.
const SUM_HOP_WITHOUT_LOGIC_NS: f64 = 45.0;

/// Sizes of the all-to-all with its percent of the peak, and that without protocol bytes.
pub(super) const ALL_TO_ALL: [(u64, f64, f64); 2] = [(4 << 10, 95.0, 99.1), (32 << 10, 97.0, 101.2)];

const PROTOCOL: &str = "protocol-bytes";
const LOGIC: &str = "collective-logic";

/// Returns all rows, in the order of the table.
pub(super) fn all() -> Vec<Expected> {
    let mut rows = HARDWARE_LATENCIES.map(|(hops, time)| hardware(hops, time)).to_vec();
    rows.push(software());
    rows.extend(LATENCIES.map(|(hops, hardware, total)| latency(hops, hardware, total)));
    rows.push(payload_share());
    rows.extend(LOOPS.map(|(bytes, rate, null_model)| loops(bytes, rate, null_model)));
    rows.extend(DROPS.map(|(bytes, percent)| drop_behind_l2(bytes, percent)));
    rows.extend(SUMS.map(|(nodes, hops, time)| sum(nodes, hops, time)));
    rows.push(sum_hop());
    rows.extend(THROUGHPUTS.map(|(bytes, rate, null_model)| throughput(bytes, rate, null_model)));
    rows.extend(ALL_TO_ALL.map(|(bytes, percent, null_model)| all_to_all(bytes, percent, null_model)));
    rows.push(longer_all_to_all());
    rows.extend([without_zones(), with_zones(), with_zones_of_three()]);
    rows.extend([worst_latency(), worst_sum(), worst_barrier()]);
    rows
}

/// Returns a size in the paper's words.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Returns the row of a hardware latency of [`HARDWARE_LATENCIES`].
pub(super) fn hardware(hops: u32, time: f64) -> Expected {
    Expected::calibrates(format!("hardware latency, {hops} hops"), "ns", time)
        .within(Tolerance::Percent(0.5))
        .quick()
}

/// Returns the row of the time that software adds to a latency.
pub(super) fn software() -> Expected {
    Expected::calibrates("software of a message", "ns", 96.0).within(Tolerance::Percent(1.0)).quick()
}

/// Returns the row of a total latency of Table 1. Without the cost of software, it is the hardware
/// latency.
pub(super) fn latency(hops: u32, hardware: f64, total: f64) -> Expected {
    let description = format!("latency with software, {hops} hops");
    let expected = match hops {
        // Those of HARDWARE_LATENCIES.
        1 | 13 => Expected::derived(description, "ns", total),
        _ => Expected::predicted(description, "ns", total),
    };
    expected.null_model("software-cost", hardware).within(Tolerance::Percent(1.5)).quick()
}

/// Returns the row of the share of a busy link that packets leave to their payload.
pub(super) fn payload_share() -> Expected {
    // A payload of 512 bytes, of 552 with header and check bytes.
    Expected::predicted("payload on a busy link, of its raw bandwidth", "%", 90.0)
        .null_model(PROTOCOL, 92.8)
        .at_most()
        .quick()
}

/// Returns the row of a throughput of Table 2.
pub(super) fn loops(bytes: u64, rate: f64, null_model: NullModel) -> Expected {
    let description = format!("ten looped links, {}", size(bytes));
    let expected = match null_model {
        None => Expected::calibrates(description, "GB/s", rate).within(Tolerance::Percent(1.0)),
        Some((without, value)) => Expected::predicted(description, "GB/s", rate)
            .null_model(without, value)
            .within(Tolerance::Percent(1.5)),
    };
    if bytes <= QUICK_LOOP { expected.quick() } else { expected }
}

/// Returns the row of a throughput of [`DROPS`].
pub(super) fn drop_behind_l2(bytes: u64, percent: f64) -> Expected {
    let description = format!("ten looped links, {} of 1 MB", size(bytes));
    Expected::predicted(description, "%", percent).null_model("memory", 100.0).within(Tolerance::Points(5.0))
}

/// Returns the row of a latency of Table 3. That of 2 nodes calibrates the time of memory and
/// ports. The null model of 4 nodes is one without hops. That of larger machines is one without
/// collective logic, which is closer there.
pub(super) fn sum(nodes: u32, hops: u32, time: f64) -> Expected {
    let description = format!("sum of 8 bytes, {nodes} nodes");
    let expected = match nodes {
        2 => Expected::calibrates(description, "ns", time).within(Tolerance::Percent(0.5)),
        4 => Expected::predicted(description, "ns", time)
            .null_model("hops", SUM_WITHOUT_HOPS_NS)
            .within(Tolerance::Percent(3.0)),
        _ => Expected::predicted(description, "ns", time)
            .null_model(LOGIC, SUM_WITHOUT_HOPS_NS + SUM_HOP_WITHOUT_LOGIC_NS * f64::from(hops))
            .within(Tolerance::Percent(3.0)),
    };
    if nodes <= QUICK_NODES || nodes == 512 { expected.quick() } else { expected }
}

/// Returns the row of the time by which a further hop lengthens a sum.
pub(super) fn sum_hop() -> Expected {
    Expected::predicted("the same, a hop from 2 to 512 nodes", "ns", 57.2)
        .null_model(LOGIC, 45.3)
        .within(Tolerance::Percent(3.0))
        .quick()
}

/// Returns the row of a throughput of Table 4. That of 1 MB calibrates the collective logic.
pub(super) fn throughput(bytes: u64, rate: f64, null_model: f64) -> Expected {
    const CALIBRATING_BYTES: u64 = 1 << 20;
    let description = format!("sum on 512 nodes, {}", size(bytes));
    let expected = match bytes {
        CALIBRATING_BYTES => Expected::calibrates(description, "GB/s", rate),
        _ => Expected::predicted(description, "GB/s", rate),
    };
    let expected = expected.null_model(LOGIC, null_model).within(Tolerance::Percent(2.0));
    if bytes <= QUICK_SUM { expected.quick() } else { expected }
}

/// Returns the row of a throughput of [`ALL_TO_ALL`].
pub(super) fn all_to_all(bytes: u64, percent: f64, null_model: f64) -> Expected {
    Expected::predicted(format!("all-to-all on 512 nodes, {}, of the peak", size(bytes)), "%", percent)
        .null_model(PROTOCOL, null_model)
        .within(Tolerance::Points(2.0))
}

/// Returns the row of the throughput of the longer messages of [`ALL_TO_ALL`], in percent of that
/// of the shorter.
pub(super) fn longer_all_to_all() -> Expected {
    Expected::predicted("all-to-all on 512 nodes, 32 KB of 4 KB", "%", 100.0)
        .null_model("start of messages", 100.0)
        .above()
}

/// Returns the row of a torus with one long dimension, whose packets choose any dimension first.
pub(super) fn without_zones() -> Expected {
    Expected::predicted("all-to-all on a torus 2:1:1:1 without zones, of the peak", "%", 75.0)
        .null_model("asymmetry", 93.0)
        .at_most()
}

/// Returns the row of the same torus, whose packets go along the longest dimension first.
pub(super) fn with_zones() -> Expected {
    Expected::predicted("the same with zones, longest dimension first", "%", 90.0)
        .null_model("zones", 66.0)
        .at_least()
}

/// Returns the row of a torus with three long dimensions, whose packets go along these first.
pub(super) fn with_zones_of_three() -> Expected {
    Expected::predicted("all-to-all on a torus 2:2:2:1 with zones, of the peak", "%", 95.0)
        .null_model("zones", 75.0)
        .at_least()
}

/// Returns the row of the paper's projection for the most distant nodes of a large machine. The
/// delay of the cables and link chips between these was chosen by it.
pub(super) fn worst_latency() -> Expected {
    Expected::calibrates("projection: latency on 16x16x16x12x2, 31 hops and cables", "us", 2.6).quick()
}

/// Returns the row of the paper's projection for a sum on the same machine.
pub(super) fn worst_sum() -> Expected {
    Expected::derived("projection: sum of 8 bytes there, 31 hops up and down", "us", 6.5).quick()
}

/// Returns the row of the paper's projection for a barrier on the same machine.
pub(super) fn worst_barrier() -> Expected {
    Expected::derived("projection: barrier there", "us", 6.3).quick()
}
