//! The paper's projections for 16x16x16x12x2 nodes. They are composed of measured parts.

use super::{Failure, Run, messages::TimeByHops, rows};

/// Hops of the longest way: half of each ring.
const LONGEST_HOPS: f64 = 31.0;
/// The paper's latency of the longest way in nanoseconds.
const WORST_LATENCY_NS: f64 = 2600.0;

/// Adds the projections, which follow from the measured latencies of a message and of a sum.
pub(super) fn record(run: &mut Run<'_>, message: &TimeByHops, sum: &TimeByHops) -> Result<(), Failure> {
    // The paper gives no delay of cables and link chips. Their delay here is what the way over the
    // chips leaves of the paper's latency. That latency thus calibrates it, and is met exactly.
    let chips_ns = message.base_ns + LONGEST_HOPS * message.hop_ns;
    let cables_ns = (WORST_LATENCY_NS - chips_ns).max(0.0);

    run.record(rows::worst_latency(), (chips_ns + cables_ns) / 1e3)?;
    let up_and_down_ns = 2.0 * (LONGEST_HOPS * sum.hop_ns + cables_ns);
    run.record(rows::worst_sum(), (sum.base_ns + up_and_down_ns) / 1e3)?;
    // A barrier carries no data, so it takes no time for descriptors and memory.
    let barrier_ns = 2.0 * (LONGEST_HOPS * message.hop_ns + cables_ns);
    run.record(rows::worst_barrier(), barrier_ns / 1e3)?;

    run.note(format!(
        "projections: {:.0} ns and {LONGEST_HOPS} hops of {:.1} ns leave {cables_ns:.0} ns of the paper's 2.6 us for cables and \
         link chips; a sum is {:.0} ns and {LONGEST_HOPS} hops of {:.1} ns up and down, with the cables twice; a barrier is \
         the hops of a message and the cables, twice, without the ports",
        message.base_ns, message.hop_ns, sum.base_ns, sum.hop_ns
    ));
    Ok(())
}
