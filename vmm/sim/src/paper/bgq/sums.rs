//! Sums of floating-point numbers on all nodes: their latency (Table 3) and throughput (Table 4).

use super::{Benchmark, Failure, Model, Run, SUM_LATENCY_NS, messages::TimeByHops, rows};
use crate::{
    paper::figure::{Axis, Figure, Scale, Series},
    world::Picos,
};

/// Operations of a measurement. The simulation is deterministic.
const ROUNDS: u32 = 2;
/// Nodes of Table 4.
const ALL_NODES: u32 = 512;
/// Bytes of the numbers of Table 3.
const NUMBER_BYTES: u64 = 8;

/// Returns the lengths of a box of nodes, a power of two of them, within the 4x4x4x4x2 nodes of the
/// paper. The dimensions are doubled in turn.
fn shape(nodes: u32) -> [u32; 5] {
    let mut shape = [1; 5];
    for doubling in 0..nodes.ilog2() as usize {
        shape[doubling % 5] *= 2;
    }
    shape
}

/// Returns the times in nanoseconds of sums of these numbers of bytes.
fn times(run: &Run<'_>, model: Model, nodes: u32, sizes: &[u64]) -> Result<Vec<f64>, Failure> {
    let benchmark =
        Benchmark { latency_ns: SUM_LATENCY_NS, ..Benchmark::of_messages(shape(nodes), [false; 5]) };
    let times = model.nodes(run, benchmark).allreduce(sizes, ROUNDS)?;
    Ok(times.into_iter().map(Picos::as_nanos).collect())
}

/// Measures Table 3. Returns the latency by hops.
pub(super) fn latencies(run: &mut Run<'_>, model: Model) -> Result<TimeByHops, Failure> {
    let mut points = Vec::new();
    for (nodes, hops, paper) in rows::SUMS {
        let measured = run.measure(rows::sum(nodes, hops, paper), |run| {
            times(run, model, nodes, &[NUMBER_BYTES]).map(|times| times[0])
        })?;
        points.extend(measured.map(|time| (hops, time)));
    }
    // The paper's mean is that from 2 to 512 nodes.
    let by_hops = TimeByHops::between(points[0], points[points.len() - 1]);
    run.record(rows::sum_hop(), by_hops.hop_ns)?;

    if !run.is_quick() {
        run.figure(Figure {
            name: "sum-latency",
            title: "Table 3: Latency of a sum of 8 bytes".into(),
            x: Axis::new("hops up and down", Scale::Linear),
            y: Axis::new("latency (ns)", Scale::Linear),
            series: vec![Series::new(
                "2 to 512 nodes",
                rows::SUMS.map(|(_, hops, time)| (f64::from(hops), time)),
                points.iter().map(|&(hops, time)| (f64::from(hops), time)).collect::<Vec<_>>(),
            )],
        });
    }
    Ok(by_hops)
}

/// Measures Table 4.
pub(super) fn throughputs(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let is_quick =
        |&(bytes, paper, null_model): &(u64, f64, f64)| rows::throughput(bytes, paper, null_model).quick;
    let (quick, long): (Vec<_>, Vec<_>) = rows::THROUGHPUTS.into_iter().partition(is_quick);
    let mut points = Vec::new();

    // One machine carries out the quick sums; a long one has a machine and a progress of its own.
    let long = if run.is_quick() { &[][..] } else { &long };
    for group in [&quick[..]].into_iter().chain(long.chunks(1)) {
        let sizes: Vec<u64> = group.iter().map(|&(bytes, ..)| bytes).collect();
        let names: Vec<_> = sizes.iter().map(|&bytes| rows::size(bytes)).collect();
        run.show(format!("sum on {ALL_NODES} nodes, {}", names.join(", ")))?;

        let measured = times(run, model, ALL_NODES, &sizes)?;
        for (&(bytes, paper, null_model), time) in group.iter().zip(measured) {
            let rate = bytes as f64 / time;
            run.record(rows::throughput(bytes, paper, null_model), rate)?;
            points.push((bytes as f64, rate));
        }
    }

    if !run.is_quick() {
        run.figure(Figure {
            name: "sum-throughput",
            title: "Table 4: Throughput of a sum on 512 nodes".into(),
            x: Axis::new("message size (bytes)", Scale::Log2),
            y: Axis::new("throughput (GB/s)", Scale::Linear),
            series: vec![Series::new(
                "512 nodes",
                rows::THROUGHPUTS.map(|(bytes, rate, _)| (bytes as f64, rate)),
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
    fn boxes_have_the_requested_number_of_nodes() {
        assert_eq!(shape(2), [2, 1, 1, 1, 1]);
        assert_eq!(shape(ALL_NODES), [4, 4, 4, 4, 2]);
        for nodes in [2, 4, 8, 16, 32, 64, 128, 256, 512] {
            assert_eq!(shape(nodes).iter().product::<u32>(), nodes);
        }
    }
}
