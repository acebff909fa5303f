//! Counts the instructions of a message by part. This program runs itself again under callgrind,
//! with a machine and ranks of its own.
//!
//! The thread that runs all ranks also steps the machine, with a simulated clock. The count
//! therefore does not depend on the scheduling of threads.
//!
//! Inlined code of shared memory and its layouts counts for the function that it is inlined in.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_extoll_transport::ExtollTransport;
use nicforge_matching::Endpoint;
use nicforge_mpi_programs::{Program, message_rate::Side};
use nicforge_velo::Address;

use super::{super::cards::two_cards, BENCH, WINDOW, ranks::Ranks, velo::BYTES};
use crate::{
    bench::Run,
    callgrind::{Callgrind, PairsTask, Parts, pattern},
    machine::{SteppedMachine, build},
    row::{Backing, Outcome, Row},
};

/// Numbers of pairs for which instructions are counted.
pub(super) const PAIRS: [u16; 2] = [1, 8];
/// Steps of the machine after each step of the ranks.
const STEPS_PER_ROUND: u32 = 4;
/// The work budget of each function in one step, as in the engine.
const WORK_BUDGET: u32 = 64;
/// Windows of each pair before the counted ones.
const WARM_UP_WINDOWS: u32 = 8;

/// The parts of a message's work.
const PARTS: Parts = Parts {
    paths: &[
        ("program", &["userlib/mpi-programs/", "vmm/"]),
        (
            "requests",
            &[
                "userlib/matching/src/endpoint/mod.rs",
                "userlib/matching/src/endpoint/core.rs",
                "userlib/matching/src/endpoint/requests.rs",
                "userlib/matching/src/pool.rs",
                "userlib/matching/src/lists.rs",
                "userlib/matching/src/buffer.rs",
            ],
        ),
        ("match", &["userlib/matching/src/queues/", "userlib/matching/src/endpoint/receive.rs"]),
        ("protocol", &["userlib/matching/"]),
        ("transport", &["userlib/extoll-transport/"]),
        ("velo", &["userlib/velo/"]),
        (
            "posting",
            &[
                "userlib/driver/",
                "device-model/shm/src/posted/producer.rs",
                "device-model/shm/src/posted/cells.rs",
            ],
        ),
        ("machine", &["device-model/", "vmm/machine/"]),
    ],
    shared: &["device-model/shm/", "device-model/hwi/"],
    other: "program",
};

/// Counts instructions, if valgrind is installed.
pub(super) fn instructions(run: &Run<'_>) -> Result<Outcome, Failure> {
    Callgrind::if_installed("instructions a message are ", |callgrind| count(run, callgrind))
}

/// Counts the instructions for a message of 8 bytes with callgrind, for each number of pairs, and
/// attributes them to parts of the libraries and the machine by source file.
fn count(run: &Run<'_>, callgrind: &Callgrind) -> Result<Outcome, Failure> {
    // A quick run only shows that the benchmark works.
    let windows = if run.quick { 2 } else { 40 };
    let mut rows = Vec::new();

    for pairs in PAIRS {
        let task = PairsTask { pairs, transfers: windows };
        let counted = task.count(run, callgrind, BENCH.name, pattern(module_path!(), "round"))?;
        let counts = counted.by_part(&PARTS);
        let messages = f64::from(windows * WINDOW) * f64::from(pairs);
        let all: u64 = counts.values().sum();
        let row = Row {
            backing: Some(Backing::InProcess),
            bytes: Some(BYTES as u64),
            ..Row::new("mpi-instructions")
        };

        let mut row = row.figure("pairs", pairs.into()).figure("instructions", all as f64 / messages);
        for (part, _) in PARTS.paths {
            row = row.figure(part, counts.get(part).copied().unwrap_or_default() as f64 / messages);
        }

        rows.push(row);
    }

    Ok(Outcome {
        rows,
        notes: vec![format!(
            "mpi-instructions: both ends of a message and all of the machine's work, in windows of {WINDOW} a pair, counted by callgrind and \
             attributed by source file: requests (made, completed, their buffers), match (the queues), protocol (headers, window, order), \
             transport (ranks, padding), velo (credits, slots), posting (the ring, the doorbell), machine (what is the engine's)"
        )],
        ..Outcome::default()
    })
}

/// Runs the child process. The transfers of its task are windows.
pub(super) fn run_child(task: &str) -> Result<u8, Failure> {
    let PairsTask { pairs, transfers: windows } = PairsTask::parse(task)?;
    let mut machine = SteppedMachine::new(build(&two_cards(BENCH.name)?)?.0);
    let device =
        |address: Address| machine.open(&format!("ex{}", address.node), &format!("vpid{}", address.vpid));
    let mut ranks = Ranks::open(device, pairs)?;
    let mut sides = ranks.sides(pairs, BYTES, WARM_UP_WINDOWS)?;

    while !sides.iter().all(Program::is_done) {
        warm_up(&mut machine, &mut sides)?;
    }

    let mut sides = ranks.sides(pairs, BYTES, windows)?;
    while !sides.iter().all(Program::is_done) {
        round(&mut machine, &mut sides)?;
    }

    Ok(0)
}

/// Does the same as [`round`], under a name at which callgrind does not count.
#[inline(never)]
fn warm_up(
    machine: &mut SteppedMachine,
    sides: &mut [Side<'_, Endpoint<ExtollTransport>>],
) -> Result<(), Failure> {
    // The compiler may merge two identical functions. This one would then be counted, too.
    std::hint::black_box("not counted");
    step_all(machine, sides)
}

/// Steps each rank once, and the machine [`STEPS_PER_ROUND`] times. callgrind counts here.
#[inline(never)]
fn round(
    machine: &mut SteppedMachine,
    sides: &mut [Side<'_, Endpoint<ExtollTransport>>],
) -> Result<(), Failure> {
    step_all(machine, sides)
}

/// Steps each rank once, and the machine [`STEPS_PER_ROUND`] times.
#[inline(always)]
fn step_all(
    machine: &mut SteppedMachine,
    sides: &mut [Side<'_, Endpoint<ExtollTransport>>],
) -> Result<(), Failure> {
    for side in sides {
        side.step().context(|| "a rank".into())?;
    }

    machine.steps(STEPS_PER_ROUND, |machine, now| machine.step(now, WORK_BUDGET));
    Ok(())
}
