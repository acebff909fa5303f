//! Messages from node to node: their latency (Table 1), and the throughput of links (Table 2).

use super::{Benchmark, Failure, L2_BYTES, LOOP_SEND_NS, Model, Run, rows};
use crate::{
    paper::figure::{Axis, Figure, Scale, Series},
    world::Picos,
};

/// The mesh of Table 1.
const MESH_SHAPE: [u32; 5] = [4, 4, 4, 4, 2];
/// Hops of the longest way in that mesh.
const LONGEST_HOPS: u32 = 13;
/// Round trips of a measurement. The simulation is deterministic.
const ROUNDS: u32 = 2;
/// Streams of the ten links: each link sends one and receives one.
const STREAMS: u64 = 20;
/// GB/s of a link in one direction.
const RAW_GB_S: f64 = 2.0;
/// Bytes of the longest message at which all messages fit into the L2.
const FITS_L2_BYTES: u64 = 1 << 20;

/// A time that grows with the number of hops.
pub(super) struct TimeByHops {
    /// Time without hops, in nanoseconds.
    pub(super) base_ns: f64,
    /// Time of a hop in nanoseconds.
    pub(super) hop_ns: f64,
}

impl TimeByHops {
    /// Returns the line through two points. Each is a number of hops and the time in nanoseconds.
    pub(super) fn between((near_hops, near_ns): (u32, f64), (far_hops, far_ns): (u32, f64)) -> Self {
        let hop_ns = (far_ns - near_ns) / f64::from(far_hops - near_hops);
        Self { base_ns: near_ns - hop_ns * f64::from(near_hops), hop_ns }
    }
}

/// Returns a node of the mesh that is `hops` hops from node 0: along A first, and then along the
/// other dimensions.
fn node_at(mut hops: u32) -> u32 {
    let mut stride = 1;
    let mut node = 0;
    for length in MESH_SHAPE {
        let along = hops.min(length - 1);
        node += along * stride;
        hops -= along;
        stride *= length;
    }
    node
}

/// Measures Table 1. Returns the hardware latency by hops.
pub(super) fn latencies(run: &mut Run<'_>, model: Model) -> Result<TimeByHops, Failure> {
    let mesh = Benchmark::of_messages(MESH_SHAPE, [false; 5]);
    // The times of 1 to LONGEST_HOPS hops, in nanoseconds.
    let times_by_hops = |run: &Run<'_>, model: Model| -> Result<Vec<f64>, Failure> {
        let others: Vec<u32> = (1..=LONGEST_HOPS).map(node_at).collect();
        let times = model.nodes(run, mesh).ping_pong(&others, ROUNDS)?;
        Ok(times.into_iter().map(Picos::as_nanos).collect())
    };

    run.show("latencies without software")?;
    let hardware_times = times_by_hops(run, model.without_software())?;
    let (nearest, farthest) = (hardware_times[0], hardware_times[LONGEST_HOPS as usize - 1]);
    for ((hops, paper), simulated) in rows::HARDWARE_LATENCIES.into_iter().zip([nearest, farthest]) {
        run.record(rows::hardware(hops, paper), simulated)?;
    }

    run.show("latencies")?;
    let total_times = times_by_hops(run, model)?;
    run.record(rows::software(), total_times[0] - nearest)?;

    let mut points = Vec::new();
    for ((hops, hardware, total), simulated) in rows::LATENCIES.into_iter().zip(total_times) {
        run.record(rows::latency(hops, hardware, total), simulated)?;
        points.push((f64::from(hops), simulated));
    }

    if !run.is_quick() {
        run.figure(Figure {
            name: "latency",
            title: "Table 1: Latency by hops".into(),
            x: Axis::new("hops", Scale::Linear),
            y: Axis::new("latency (ns)", Scale::Linear),
            series: vec![Series::new(
                "with software",
                rows::LATENCIES.map(|(hops, _, total)| (f64::from(hops), total)),
                points,
            )],
        });
    }
    Ok(TimeByHops::between((1, nearest), (LONGEST_HOPS, farthest)))
}

/// Measures Table 2: messages of a node over its ten links to itself.
pub(super) fn loops(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let time_ns = |run: &Run<'_>, bytes| -> Result<f64, Failure> {
        run.show(format!("ten looped links, {}", rows::size(bytes)))?;
        let node = Benchmark {
            subgroups: 2,
            send_ns: LOOP_SEND_NS,
            exceeds_l2: STREAMS * bytes > L2_BYTES,
            ..Benchmark::of_messages([1; 5], [true; 5])
        };
        let rounds = if bytes < FITS_L2_BYTES { ROUNDS } else { 1 };
        Ok(model.nodes(run, node).loops(bytes, rounds)?.as_nanos())
    };
    // Bytes per nanosecond are GB/s.
    let rate = |run: &Run<'_>, bytes: u64| -> Result<f64, Failure> {
        Ok((STREAMS * bytes) as f64 / time_ns(run, bytes)?)
    };

    // The difference of two lengths leaves out the time before the first and after the last packet.
    let (short, long) = (32 << 10, 64 << 10);
    let difference_ns = time_ns(run, long)? - time_ns(run, short)?;
    run.record(rows::payload_share(), 100.0 * (long - short) as f64 / difference_ns / RAW_GB_S)?;

    let mut points = Vec::new();
    for (bytes, paper, null_model) in rows::LOOPS {
        let expected = rows::loops(bytes, paper, null_model);
        if let Some(simulated) = run.measure(expected, |run| rate(run, bytes))? {
            points.push((bytes as f64, simulated));
        }
    }

    for (bytes, percent) in rows::DROPS {
        run.measure(rows::drop_behind_l2(bytes, percent), |run| {
            let [exceeding, fitting] = [bytes, FITS_L2_BYTES].map(|bytes| rate(run, bytes));
            Ok(100.0 * exceeding? / fitting?)
        })?;
    }

    if !run.is_quick() {
        run.figure(Figure {
            name: "loops",
            title: "Table 2: Throughput of ten looped links".into(),
            x: Axis::new("message size (bytes)", Scale::Log2),
            y: Axis::new("throughput, sent and received (GB/s)", Scale::Linear),
            series: vec![Series::new(
                "ten links",
                rows::LOOPS.map(|(bytes, rate, _)| (bytes as f64, rate)),
                points,
            )],
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_node_is_thirteen_hops_away() {
        assert_eq!([0, 1, 3, 4, 13].map(node_at), [0, 1, 3, 3 + 4, 511]);
    }
}
