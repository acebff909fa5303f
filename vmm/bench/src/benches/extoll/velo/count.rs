//! Counts the instructions of a message by the number of pairs. This program runs itself again
//! under callgrind, with a machine of its own.
//!
//! The thread that sends and receives also steps the machine, with a simulated clock. The count
//! therefore does not depend on the scheduling of threads.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_velo::Port;

use super::{
    super::cards::two_cards,
    BENCH, BYTES,
    pairs::{Pair, config},
};
use crate::{
    bench::Run,
    callgrind::{Callgrind, PairsTask, pattern},
    machine::{SteppedMachine, build},
    row::{Backing, Goal, Outcome, Row},
};

/// Numbers of pairs for which instructions are counted.
pub(super) const PAIRS: [u16; 2] = [1, 8];
/// The goal for a message of one pair, in instructions.
const MAX_INSTRUCTIONS: f64 = 400.0;
/// The goal for a message of 8 pairs, as a multiple of that of one.
const MAX_RATIO_OF_PAIRS: f64 = 1.05;
/// Number of messages that each pair sends and receives at a time.
const BURST: u32 = 32;
/// Number of steps of the machine between two polls of the receivers.
const STEPS: u32 = 4;
/// The work budget of each function in one step, as in the engine.
const WORK_BUDGET: u32 = 64;
/// Maximum number of polls until a burst has arrived.
const MAX_POLLS: u32 = 1000;
/// Bursts before the counted ones, which touch all memory once.
const WARM_UP_BURSTS: u32 = 8;

/// Counts instructions, if valgrind is installed.
pub(super) fn instructions(run: &Run<'_>) -> Result<Outcome, Failure> {
    Callgrind::if_installed("instructions a message are ", |callgrind| count(run, callgrind))
}

/// Counts the instructions of a message with callgrind, for each number of pairs.
fn count(run: &Run<'_>, callgrind: &Callgrind) -> Result<Outcome, Failure> {
    let messages: u32 = if run.quick { 64 } else { 4096 };
    let mut counts = Vec::new();
    for pairs in PAIRS {
        let task = PairsTask { pairs, transfers: messages };
        let counted = task.count(run, callgrind, BENCH.name, pattern(module_path!(), "round"))?;
        counts.push(counted.total() as f64 / f64::from(messages) / f64::from(pairs));
    }

    let rows = PAIRS.iter().zip(&counts).map(|(pairs, count)| {
        Row { backing: Some(Backing::InProcess), bytes: Some(BYTES as u64), ..Row::new("velo-instructions") }
            .figure("pairs", f64::from(*pairs))
            .figure("instructions", *count)
    });

    let ratio = counts[PAIRS.len() - 1] / counts[0];
    Ok(Outcome {
        rows: rows.collect(),
        goals: vec![
            Goal::at_most("instructions a message with 1 pair", MAX_INSTRUCTIONS, counts[0]),
            Goal::at_most(
                "instructions a message with 8 pairs, of those with 1, times",
                MAX_RATIO_OF_PAIRS,
                ratio,
            ),
        ],
        notes: vec![format!(
            "velo-instructions: send, all of the machine's work, and receive, in bursts of {BURST} a pair; counted by callgrind"
        )],
    })
}

/// Runs the child process. The transfers of its task are messages.
pub(super) fn run_child(task: &str) -> Result<u8, Failure> {
    let PairsTask { pairs, transfers: messages } = PairsTask::parse(task)?;
    let mut machine = SteppedMachine::new(build(&two_cards(BENCH.name)?)?.0);
    let port = |function: &str, vpid: u16| -> Result<Port, Failure> {
        let device = machine.open(function, &format!("vpid{vpid}"))?;
        Port::open(device, config()).context(|| format!("VPID {vpid} of {function}"))
    };

    let mut pairs = (0..pairs)
        .map(|vpid| Pair::new(port("ex0", vpid)?, port("ex1", vpid)?))
        .collect::<Result<Vec<_>, _>>()?;

    for _ in 0..WARM_UP_BURSTS {
        warm_up(&mut machine, &mut pairs)?;
    }

    let mut counted = 0;
    while counted < messages {
        round(&mut machine, &mut pairs)?;
        counted += BURST;
    }

    Ok(0)
}

/// Does the same as [`round`], under a name at which callgrind does not count.
#[inline(never)]
fn warm_up(machine: &mut SteppedMachine, pairs: &mut [Pair]) -> Result<(), Failure> {
    // The compiler may merge two identical functions. This one would then be counted, too.
    std::hint::black_box("not counted");
    burst(machine, pairs)
}

/// Sends, delivers and receives a burst of each pair. callgrind counts here.
#[inline(never)]
fn round(machine: &mut SteppedMachine, pairs: &mut [Pair]) -> Result<(), Failure> {
    burst(machine, pairs)
}

/// Sends a burst of each pair, and steps the machine until all messages have been received.
#[inline(always)]
fn burst(machine: &mut SteppedMachine, pairs: &mut [Pair]) -> Result<(), Failure> {
    for pair in pairs.iter_mut() {
        let sent = pair.send(BURST)?;
        if sent != BURST {
            return Err(Failure::result(format!("{sent} of {BURST} messages could be sent")));
        }
    }

    let mut remaining = pairs.len() as u32 * BURST;
    for _ in 0..MAX_POLLS {
        machine.steps(STEPS, |machine, now| machine.step(now, WORK_BUDGET));

        for pair in pairs.iter_mut() {
            remaining -= pair.receive(BURST)?;
            pair.progress()?;
        }

        if remaining == 0 {
            return Ok(());
        }
    }

    Err(Failure::result(format!("{remaining} messages did not arrive")))
}
