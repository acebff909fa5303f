//! `nicforge bench busy`: what other work on the machine costs messages and streams.
//!
//! The bench starts processes that only compute, and measures beside them:
//!
//! - half a round trip of 8 bytes between two processes, of each library for messages, of FCNP, and
//!   of sockets and pipes. An engine in a process of its own serves the machine;
//! - the demonstration, beside a pipeline of `cat`;
//! - the same half round trip, without other work, while the other ranks of the job wait in a
//!   barrier.
//!
//! No measurement waits without limit. A row that is not done within its time says so, and counts
//! as a missed goal.
//!
//! | file | contents |
//! | --- | --- |
//! | `pairs.rs`, `demo.rs`, `waiting.rs` | the three parts |
//! | `group.rs` | the processes of a contestant, and its measurement with a time limit |
//! | `loops.rs` | the processes that compute |
//! | `switches.rs` | counts of context switches |
//! | `task.rs` | tasks of child processes, orders and answers |
//! | `child.rs`, `partner.rs` | the child processes |

mod child;
mod demo;
mod group;
mod loops;
mod pairs;
mod partner;
mod switches;
mod task;
mod waiting;

use std::time::Duration;

use nicforge::failure::{Failure, print_note};

use self::{group::Contestant, task::Library};
use crate::{
    bench::{Bench, Run},
    row::{Goal, Outcome, Row},
};

/// The bench. `all` leaves it out, because it takes the processors from everything else on the
/// machine.
pub const BENCH: Bench = Bench::new(
    "busy",
    "messages, FCNP and the demonstration beside busy processes, which it starts and ends",
    run,
)
.with_child(child::main)
.not_in_all();

/// What is measured, how often and for how long.
struct Extent {
    /// The numbers of processes that compute, one after the other.
    loops: &'static [u32],
    contestants: &'static [Contestant],
    rounds: usize,
    /// Duration of a turn. The last round trip may take longer.
    turn: Duration,
    /// How long all turns of a row may take together.
    limit: Duration,
    /// Whether the demonstration and the waiting ranks are measured.
    is_whole: bool,
}

/// All contestants with pairs of processes.
const CONTESTANTS: [Contestant; 7] = [
    Contestant::Library(Library::Extoll),
    Contestant::Library(Library::Unit),
    Contestant::Library(Library::Torus),
    Contestant::Library(Library::SeaStar),
    Contestant::Fcnp,
    Contestant::SocketPair,
    Contestant::PipePair,
];

/// The contestants of a quick run.
const QUICK_CONTESTANTS: [Contestant; 3] =
    [Contestant::Library(Library::Extoll), Contestant::Fcnp, Contestant::SocketPair];

impl Extent {
    /// Returns the extent of a quick or full run.
    fn of(run: &Run<'_>) -> Self {
        if run.quick {
            Self {
                loops: &[0, 4],
                contestants: &QUICK_CONTESTANTS,
                rounds: 2,
                turn: Duration::from_millis(150),
                limit: Duration::from_secs(10),
                is_whole: false,
            }
        } else {
            Self {
                loops: &[0, 4, 12, 30],
                contestants: &CONTESTANTS,
                rounds: 5,
                turn: Duration::from_millis(500),
                limit: Duration::from_secs(30),
                is_whole: true,
            }
        }
    }
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let extent = Extent::of(run);
    let most = extent.loops.iter().copied().max().unwrap_or(0);
    if !run.is_silent() {
        print_note(format_args!("this bench starts up to {most} processes that only compute, and ends them"));
    }

    let pairs = extent.loops.len() * extent.contestants.len();
    let whole = if extent.is_whole { demo::STEPS + waiting::steps(&extent) } else { 0 };
    run.steps((pairs * (extent.rounds + 1) + whole) as u64);

    let mut outcome = pairs::measure(run, &extent)?;
    if extent.is_whole {
        for part in [demo::measure(run)?, waiting::measure(run, &extent)?] {
            outcome.rows.extend(part.rows);
            outcome.goals.extend(part.goals);
            outcome.notes.extend(part.notes);
        }
    }

    let counts: Vec<_> = extent.loops.iter().map(u32::to_string).collect();
    outcome.notes.push(format!(
        "beside loops: processes that only compute, which the bench has started and ended ({})",
        counts.join(", ")
    ));
    Ok(outcome)
}

/// Returns the goal that a figure is at most `limit`. The goal of a row that was not measured to
/// its end is missed. Its figure is that of an operation that took as long as the row may take.
fn goal(description: String, limit: f64, row: &Row, figure: f64) -> Goal {
    match &row.not_measured {
        None => Goal::at_most(description, limit, figure),
        Some(why) => Goal {
            met: false,
            ..Goal::at_most(format!("{description} ({why}; the limit is taken)"), limit, figure)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_of_a_row_without_a_measurement_is_missed() {
        let row = Row { not_measured: Some("not done in 3 s".into()), ..Row::new("a") };
        let missed = goal("time".into(), 4.0, &row, 3.0);
        assert!(!missed.met && missed.what.contains("not done in 3 s"), "{missed:?}");
        assert!(goal("time".into(), 4.0, &Row::new("a"), 3.0).met);
    }
}
