//! Counts the instructions of an 8-byte put by part. This program runs itself again under
//! callgrind, with a machine of its own.
//!
//! One thread puts, steps the machine while it waits for the results of its commands, and takes the
//! events. The count therefore does not depend on the scheduling of threads. The nodes stay hot, so
//! that it does not depend on the speed of the processor either.
//!
//! Inlined code of shared memory and its layouts counts for the function that it is inlined in.

use std::fmt;

use nicforge::failure::Failure;

use super::{
    BENCH, TWO,
    nodes::{Pair, SeaStars},
};
use crate::{
    bench::Run,
    callgrind::{Callgrind, Count, Parts, pattern},
    process::unknown_task,
    row::{Backing, Goal, Outcome, Row},
};

/// Numbers of puts in a burst for which instructions are counted.
pub(super) const BURSTS: [u32; 2] = [1, 32];
/// Bytes of a put.
const BYTES: u64 = 8;
/// The goal, in instructions.
const MAX_INSTRUCTIONS: f64 = 1_500.0;
/// Puts before the counted ones, which touch all memory once.
const WARM_UP_PUTS: u32 = 512;
/// Bytes of the sender's and of the receiver's memory.
const MEMORY: usize = 4096;

/// The parts of a put's work.
const PARTS: Parts = Parts {
    paths: &[
        ("program", &["vmm/"]),
        ("library_put", &["userlib/portals/"]),
        ("library_event", &["userlib/portals/src/queue.rs", "userlib/portals/src/types.rs"]),
        ("driver", &["userlib/driver/"]),
        ("machine", &["device-model/", "vmm/machine/"]),
        ("network", &["device-model/network/"]),
        ("device", &["device-model/nics/seastar/"]),
        ("firmware", &["device-model/nics/seastar-firmware/"]),
    ],
    shared: &["device-model/shm/", "device-model/hwi/"],
    other: "standard_library",
};

/// The task of the child process. On its command line it is `BURST:PUTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Task {
    /// Puts that are sent before their events are taken.
    burst: u32,
    /// Number of counted puts, a multiple of the burst.
    puts: u32,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.burst, self.puts)
    }
}

impl Task {
    /// Parses the task of a child process.
    fn parse(text: &str) -> Result<Self, Failure> {
        text.split_once(':')
            .and_then(|(burst, puts)| Some(Self { burst: burst.parse().ok()?, puts: puts.parse().ok()? }))
            .filter(|task| BURSTS.contains(&task.burst))
            .ok_or_else(|| unknown_task(text))
    }
}

/// Counts instructions, if valgrind is installed.
pub(super) fn instructions(run: &Run<'_>) -> Result<Outcome, Failure> {
    Callgrind::if_installed("instructions of a put are ", |callgrind| count(run, callgrind))
}

/// Counts the instructions of a put with callgrind, for each of [`BURSTS`], and attributes them to
/// parts by source file.
fn count(run: &Run<'_>, callgrind: &Callgrind) -> Result<Outcome, Failure> {
    let puts = if run.quick { 64 } else { 4096 };
    let mut outcome = Outcome::default();

    for burst in BURSTS {
        run.step(format!("instructions of puts in bursts of {burst}"))?;
        let functions = vec![pattern(module_path!(), "round")];
        let task = Task { burst, puts }.to_string();
        let counted = callgrind.run(
            run,
            &Count { name: "puts", bench: BENCH.name, task, functions, first_thread_only: false },
        )?;

        let all = counted.total() as f64 / f64::from(puts);
        let row = Row { backing: Some(Backing::InProcess), bytes: Some(BYTES), ..Row::new("put8") };
        let mut row = row.figure("burst", burst.into()).figure("instructions", all);
        let counts = counted.by_part(&PARTS);
        for part in PARTS.paths.iter().map(|(part, _)| *part).chain([PARTS.other]) {
            let count = counts.get(part).copied().unwrap_or_default();
            row = row.figure(part, count as f64 / f64::from(puts));
        }

        outcome.rows.push(row);
        let description = format!("instructions of an 8-byte put, in bursts of {burst}");
        outcome.goals.push(Goal::at_most(description, MAX_INSTRUCTIONS, all));
    }

    outcome.notes.push(
        "put8: put, all of the machine's work, and event, NIC-based, counted by callgrind and attributed by source file: library_put (the \
         call and its command), library_event (taking the event), driver (doorbell, waiting loops), machine (steps, locks, memory of \
         clients), network (router, links), device (mailbox, engines, FIFOs to the firmware), firmware (matching, flow control, events), \
         standard_library (what is not inlined: copies, locks, the clock)"
            .into(),
    );
    Ok(outcome)
}

/// Runs the child process.
pub(super) fn run_child(task: &str) -> Result<u8, Failure> {
    let task = Task::parse(task)?;
    let machine = SeaStars::never_cold(TWO)?;
    let mut pair = Pair::open(&machine, MEMORY)?;

    for _ in 0..WARM_UP_PUTS / task.burst {
        warm_up(&mut pair, task.burst)?;
    }

    for _ in 0..task.puts / task.burst {
        round(&mut pair, task.burst)?;
    }
    Ok(0)
}

/// Does the same as [`round`], under a name at which callgrind does not count.
#[inline(never)]
fn warm_up(pair: &mut Pair, burst: u32) -> Result<(), Failure> {
    // The compiler may merge two identical functions. This one would then be counted, too.
    std::hint::black_box("not counted");
    exchange(pair, burst)
}

/// Puts a burst, and takes its events. callgrind counts here.
#[inline(never)]
fn round(pair: &mut Pair, burst: u32) -> Result<(), Failure> {
    exchange(pair, burst)
}

/// Puts a burst, and takes its events.
#[inline(always)]
fn exchange(pair: &mut Pair, burst: u32) -> Result<(), Failure> {
    for _ in 0..burst {
        pair.put(0, BYTES)?;
    }
    for _ in 0..burst {
        pair.arrive(BYTES)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_parsed_as_it_is_printed() {
        let task = Task { burst: 32, puts: 4096 };
        assert_eq!(Task::parse(&task.to_string()).unwrap(), task);

        for task in ["", ":", "32", "32:", ":4", "0:4", "2:4", "1:x", "1:4294967296"] {
            assert!(Task::parse(task).is_err(), "{task}");
        }
    }
}
