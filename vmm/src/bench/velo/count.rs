//! Counts the instructions of a message by the number of pairs. This program runs itself again
//! under callgrind, with a machine of its own.
//!
//! The thread that sends and receives also steps the machine, with a simulated clock. The count
//! therefore does not depend on the scheduling of threads.

use nicforge_core::time::Nanos;
use nicforge_driver::Device;
use nicforge_machine::{build::build, in_process::LocalMachine};
use nicforge_velo::Port;

use super::{
    super::{
        Run,
        callgrind::{Callgrind, Count, total},
        cards::two_cards,
        row::{Backing, Goal, Outcome, Row},
    },
    BYTES,
    pairs::{Pair, config},
};
use crate::failure::{ErrorContext, Failure};

/// Numbers of pairs for which instructions are counted.
pub(super) const PAIRS: [usize; 2] = [1, 8];
/// Number of messages that each pair sends and receives at a time.
const BURST: u32 = 32;
/// Number of steps after which a burst has arrived.
const STEPS: u32 = 4;
/// The simulated time of one step, in nanoseconds.
const TICK: u64 = 1_000;
/// The first time of the simulated clock. It is later than every time of the real clock.
const START: u64 = 1 << 42;
/// The function whose instructions count, with all functions that it calls.
const COUNTED: &str = "*bench::velo::count::round*";

/// Counts instructions, if valgrind is installed.
pub(super) fn instructions(run: &Run<'_>) -> Result<Outcome, Failure> {
    let callgrind = match Callgrind::find() {
        Ok(callgrind) => callgrind,
        Err(missing) => {
            let note = format!("instructions a message are left out: {missing}");
            return Ok(Outcome { notes: vec![note], ..Outcome::default() });
        }
    };

    let messages: u32 = if run.quick { 64 } else { 4096 };
    let mut counts = Vec::new();
    for pairs in PAIRS {
        run.step(format!("instructions, {pairs} pairs"))?;
        let counted = callgrind.run(
            run,
            &Count {
                name: "messages",
                bench: "velo",
                part: format!("{pairs}:{messages}"),
                functions: &[COUNTED],
                first_thread_only: false,
            },
        )?;
        let total = total(&counted).unwrap_or_default() as f64;
        counts.push(total / f64::from(messages) / pairs as f64);
    }

    let rows = PAIRS.iter().zip(&counts).map(|(pairs, count)| {
        Row { backing: Some(Backing::InProcess), bytes: Some(BYTES as u64), ..Row::new("velo-instructions") }
            .figure("pairs", *pairs as f64)
            .figure("instructions", *count)
    });

    let ratio = counts[PAIRS.len() - 1] / counts[0];
    Ok(Outcome {
        rows: rows.collect(),
        goals: vec![Goal::at_most(
            "instructions a message with 8 pairs, of those with 1, times",
            1.05,
            ratio,
        )],
        notes: vec![format!(
            "velo-instructions: send, all of the machine's work, and receive, in bursts of {BURST} a pair; counted by callgrind"
        )],
    })
}

/// Runs the child process for `PAIRS:MESSAGES`.
pub(super) fn part(part: &str) -> Result<u8, Failure> {
    let usage = || Failure::usage(format!("there is no part {part}"));
    let (pairs, messages) = part.split_once(':').ok_or_else(usage)?;
    let count: u16 = pairs.parse().map_err(|_| usage())?;
    let messages: u32 = messages.parse().map_err(|_| usage())?;
    let (machine, _) = build(&two_cards("velo")?).map_err(|error| Failure::usage(error.to_string()))?;
    let machine = LocalMachine::new(machine);
    let port = |function: &str, vpid: u16| -> Result<Port, Failure> {
        let backing = machine.open_named(function, &format!("vpid{vpid}")).context(|| function.to_owned())?;
        let device = Device::from_backing(backing).context(|| function.to_owned())?;
        Port::open(device, config()).context(|| format!("VPID {vpid} of {function}"))
    };

    let mut pairs = (0..count)
        .map(|vpid| Pair::new(port("ex0", vpid)?, port("ex1", vpid)?))
        .collect::<Result<Vec<_>, _>>()?;

    let mut now = START;
    // The first rounds touch all memory once.
    for _ in 0..8 {
        warm_up(&machine, &mut pairs, &mut now)?;
    }

    let mut counted = 0;
    while counted < messages {
        round(&machine, &mut pairs, &mut now)?;
        counted += BURST;
    }

    Ok(0)
}

/// Does the same as [`round`], under a name that does not count.
#[inline(never)]
fn warm_up(machine: &LocalMachine, pairs: &mut [Pair], now: &mut u64) -> Result<(), Failure> {
    // The compiler may merge two identical functions, and this one would then count.
    std::hint::black_box("not counted");
    burst(machine, pairs, now)
}

/// Sends, delivers and receives a burst of each pair.
#[inline(never)]
fn round(machine: &LocalMachine, pairs: &mut [Pair], now: &mut u64) -> Result<(), Failure> {
    burst(machine, pairs, now)
}

#[inline(always)]
fn burst(machine: &LocalMachine, pairs: &mut [Pair], now: &mut u64) -> Result<(), Failure> {
    for pair in pairs.iter_mut() {
        let sent = pair.send(BURST)?;
        if sent != BURST {
            return Err(Failure::result(format!("{sent} of {BURST} messages could be sent")));
        }
    }

    let mut left = pairs.len() as u32 * BURST;
    for _ in 0..1000 {
        machine.with(|machine| {
            for _ in 0..STEPS {
                *now += TICK;
                machine.step(Nanos(*now), 64);
            }
        });

        for pair in pairs.iter_mut() {
            left -= pair.receive(BURST)?;
            pair.progress()?;
        }

        if left == 0 {
            return Ok(());
        }
    }

    Err(Failure::result(format!("{left} messages did not arrive")))
}
