//! `nicforge bench mu`: messages by the Message Units of Blue Gene/Q.
//!
//! Two nodes have a link between them, which takes no time. The results are:
//!
//! - the instructions of a memory-FIFO packet by part, with one injection FIFO alone and with one
//!   active FIFO among all 544 of its node,
//! - the bandwidth of direct puts of 1 MB, beside copies of the same bytes,
//! - the latency of a direct put with a counter, and rate and latency of memory-FIFO packets,
//!   beside VELO's,
//! - the rate of matched messages beside that of memory-FIFO packets.
//!
//! | file | contents |
//! | --- | --- |
//! | `nodes.rs` | the machine, and a sender with its receiver |
//! | `count.rs` | instructions of a packet, counted by callgrind |
//! | `large.rs` | puts of 1 MB |
//! | `short.rs` | messages of 8 bytes |
//! | `matching.rs` | the same with matching |

mod count;
mod large;
mod matching;
mod nodes;
mod short;

use nicforge::failure::Failure;

use crate::{
    bench::{Bench, Run},
    row::Outcome,
};

/// The bench.
pub const BENCH: Bench = Bench::new(
    "mu",
    "Message Units of Blue Gene/Q: packets, puts, latency beside VELO (valgrind counts instructions)",
    run,
)
.with_child(count::run_child);

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let rounds = if run.quick { 1 } else { 7 };
    let contestants = large::CONTESTANTS + short::CONTESTANTS;
    run.steps((count::STEPS + contestants * rounds) as u64);

    let parts = [count::instructions(run)?, large::measure(run, rounds)?, short::measure(run, rounds)?];
    let mut outcome = Outcome::default();
    for part in parts {
        outcome.rows.extend(part.rows);
        outcome.goals.extend(part.goals);
        outcome.notes.extend(part.notes);
    }
    Ok(outcome)
}
