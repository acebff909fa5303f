//! The paper's projections for 16x16x16x12x2 nodes. They are composed of measured parts.

use super::{Failure, Run, messages::TimeByHops, rows};

/// Hops of the longest way: half of each ring.
const LONGEST_HOPS: f64 = 31.0;
/// The paper's latency of the longest way in nanoseconds.
const WORST_LATENCY_NS: f64 = 2600.0;

/// Adds the projections, by the measured latencies of messages and sums.
pub(super) fn record(run: &mut Run<'_>, message: &TimeByHops, sum: &TimeByHops) -> Result<(), Failure> {
    // The paper gives no delay of cables and link chips. Their delay here is what the way over the
    // chips leaves of the paper's latency.
    let on_chips = message.base + LONGEST_HOPS * message.hop;
    let cables = (WORST_LATENCY_NS - on_chips).max(0.0);

    run.record(rows::worst_latency(), (on_chips + cables) / 1e3)?;
    let up_and_down = 2.0 * (LONGEST_HOPS * sum.hop + cables);
    run.record(rows::worst_sum(), (sum.base + up_and_down) / 1e3)?;
    // A barrier carries no data, so it pays for neither descriptors nor memory.
    let barrier = 2.0 * (LONGEST_HOPS * message.hop + cables);
    run.record(rows::worst_barrier(), barrier / 1e3)?;

    run.note(format!(
        "projections: {:.0} ns and {LONGEST_HOPS} hops of {:.1} ns leave {cables:.0} ns of the paper's 2.6 us for cables and \
         link chips; a sum is {:.0} ns and {LONGEST_HOPS} hops of {:.1} ns up and down, with the cables twice; a barrier is \
         the hops of a message and the cables, twice, without the ports",
        message.base, message.hop, sum.base, sum.hop
    ));
    Ok(())
}
