//! `nicforge bench seastar`: Portals on SeaStars.
//!
//! The results are:
//!
//! - the instructions of an 8-byte put in NIC-based mode, by part,
//! - the bandwidth of puts of 1 MB, beside copies of the same bytes,
//! - the number of receives that a process can have posted, in each mode,
//! - the bandwidth into one node from one stream, and from 256 nodes at once.
//!
//! | file | contents |
//! | --- | --- |
//! | `nodes.rs` | the machine, its processes, and a sender with its receiver |
//! | `count.rs` | instructions of a put, counted by callgrind |
//! | `large.rs` | puts of 1 MB |
//! | `posted.rs` | posted receives |
//! | `streams.rs` | streams into one node |

mod count;
mod large;
mod nodes;
mod posted;
mod streams;

use nicforge::failure::Failure;

use crate::{
    bench::{Bench, Run},
    row::Outcome,
};

/// The bench.
pub const BENCH: Bench = Bench::new(
    "seastar",
    "Portals on SeaStars: puts, posted receives, streams into one node (valgrind counts instructions)",
    run,
)
.with_child(count::run_child);

/// A torus of two nodes.
const TWO: &[u32] = &[2];

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let rounds = if run.quick { 1 } else { 7 };
    let contestants = large::CONTESTANTS + streams::CONTESTANTS;
    run.steps((count::BURSTS.len() + posted::STEPS + contestants * rounds) as u64);

    let parts = [
        count::instructions(run)?,
        large::measure(run, rounds)?,
        posted::measure(run)?,
        streams::measure(run, rounds)?,
    ];
    let mut outcome = Outcome::default();
    for part in parts {
        outcome.rows.extend(part.rows);
        outcome.goals.extend(part.goals);
        outcome.notes.extend(part.notes);
    }
    Ok(outcome)
}
