//! Counts the instructions of a message by part. This program runs itself again under callgrind,
//! with a machine and ranks of its own.
//!
//! The thread that runs all ranks also steps the machine, with a simulated clock. The count
//! therefore does not depend on the scheduling of threads.
//!
//! callgrind reports the number of executed instructions for each source line, and inlined code
//! counts for the file that it was written in. A part is a set of source files. Code of the
//! standard library, of libc, or of shared memory and its layouts counts for the function that it
//! is inlined in.

use std::collections::HashMap;

use nicforge_core::time::Nanos;
use nicforge_driver::Device;
use nicforge_extoll_transport::ExtollTransport;
use nicforge_machine::{build::build, in_process::LocalMachine};
use nicforge_mpi_programs::{Program, message_rate::Side};
use nicforge_velo::Address;

use super::{
    super::{
        Run,
        callgrind::{Callgrind, Count},
        cards::two_cards,
        row::{Backing, Outcome, Row},
    },
    WINDOW,
    ranks::Ranks,
    velo::BYTES,
};
use crate::failure::{ErrorContext, Failure};

/// Numbers of pairs for which instructions are counted.
pub(super) const PAIRS: [u16; 2] = [1, 8];
/// Steps of the machine after each turn of the ranks.
const STEPS: u32 = 4;
/// The simulated time of one step, in nanoseconds.
const TICK: u64 = 1_000;
/// The first time of the simulated clock. It is later than every time of the real clock.
const START: u64 = 1 << 42;
/// The function whose instructions count, with all functions that it calls.
const COUNTED: &str = "*bench::extoll_mpi::count::round*";
/// Windows of each pair before the counted ones.
const WARM_UP: u32 = 8;

/// The parts, each with the beginnings of its sources' paths in the repository. The longest
/// matching path applies.
const PARTS: [(&str, &[&str]); 8] = [
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
];
/// Sources that both sides use. Inlined code from them counts for the function that it is inlined
/// in.
const OF_BOTH: [&str; 2] = ["device-model/shm/", "device-model/hwi/"];

/// Counts instructions, if valgrind is installed.
pub(super) fn instructions(run: &Run<'_>) -> Result<Outcome, Failure> {
    let callgrind = match Callgrind::find() {
        Ok(callgrind) => callgrind,
        Err(missing) => {
            let note = format!("instructions a message are left out: {missing}");
            return Ok(Outcome { notes: vec![note], ..Outcome::default() });
        }
    };

    let windows = if run.quick { 2 } else { 40 };
    let mut rows = Vec::new();

    for pairs in PAIRS {
        run.step(format!("instructions, {pairs} pairs"))?;
        let counted = callgrind.run(
            run,
            &Count {
                name: "messages",
                bench: "extoll-mpi",
                part: format!("{pairs}:{windows}"),
                functions: &[COUNTED],
                first_thread_only: false,
            },
        )?;
        let counts = by_part(&counted);
        let messages = f64::from(windows * WINDOW) * f64::from(pairs);
        let all: u64 = counts.values().sum();
        let row = Row {
            backing: Some(Backing::InProcess),
            bytes: Some(BYTES as u64),
            ..Row::new("mpi-instructions")
        };

        let mut row = row.figure("pairs", pairs.into()).figure("instructions", all as f64 / messages);
        for (part, _) in PARTS {
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

/// Returns the part that a source file belongs to.
fn part_of(file: &str) -> Option<&'static str> {
    let fits = |(part, paths): &(&'static str, &[&str])| {
        let longest = paths.iter().filter(|path| is_below(file, path)).map(|path| path.len()).max()?;
        Some((longest, *part))
    };
    PARTS.iter().filter_map(fits).max().map(|(_, part)| part)
}

/// Returns whether `path` occurs in the path of `file` at the beginning of a name.
fn is_below(file: &str, path: &str) -> bool {
    file.match_indices(path).any(|(at, _)| at == 0 || file.as_bytes()[at - 1] == b'/')
}

/// Reads callgrind's output, and returns the number of instructions of each part.
///
/// - `fn=(number) name` begins a function. A name occurs only once, and its number stands for it
///   later.
/// - `fl=`, `fi=` and `fe=` change the source file.
/// - `calls=` is followed by a line with the cost of the called function, which is counted there.
/// - Other lines that begin with a position end with a count.
fn by_part(text: &str) -> HashMap<&'static str, u64> {
    // The parts of each file: for code of a function's own source, and for inlined code.
    let mut names: HashMap<&str, [Option<&'static str>; 2]> = HashMap::new();
    let mut counts = HashMap::new();
    // The part of the function, and the part of the code inlined in it.
    let (mut outer, mut inner) = (None, None);
    let mut below = false;

    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=') {
            if matches!(key, "fl" | "fi" | "fe" | "cfi" | "cfl") {
                let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                let [own, inlined] = *names.entry(number).or_insert_with(|| {
                    let own = part_of(name);
                    [own, own.filter(|_| !OF_BOTH.iter().any(|path| is_below(name, path)))]
                });
                match key {
                    "fl" => (outer, inner) = (own, own),
                    "fi" | "fe" => inner = inlined,
                    // These name the called function's file.
                    _ => {}
                }
            }

            below |= key == "calls";
            continue;
        }

        let is_cost = line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first));
        if is_cost
            && !std::mem::take(&mut below)
            && let Some(cost) = line.split_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok())
        {
            *counts.entry(inner.or(outer).unwrap_or("program")).or_default() += cost;
        }
    }

    counts
}

/// Runs the child process for `PAIRS:WINDOWS`.
pub(super) fn part(part: &str) -> Result<u8, Failure> {
    let usage = || Failure::usage(format!("there is no part {part}"));
    let (pairs, windows) = part.split_once(':').ok_or_else(usage)?;
    let pairs: u16 = pairs.parse().map_err(|_| usage())?;
    let windows: u32 = windows.parse().map_err(|_| usage())?;
    let (machine, _) = build(&two_cards("extoll-mpi")?).map_err(|error| Failure::usage(error.to_string()))?;
    let machine = LocalMachine::new(machine);
    let device = |address: Address| {
        let backing = machine.open_named(&format!("ex{}", address.node), &format!("vpid{}", address.vpid));
        Device::from_backing(backing.context(|| address.to_string())?).context(|| address.to_string())
    };
    let mut ranks = Ranks::open(device, pairs)?;
    let mut now = START;
    let mut sides = ranks.sides(pairs, BYTES, WARM_UP)?;

    while !sides.iter().all(Program::is_done) {
        warm_up(&machine, &mut sides, &mut now)?;
    }

    let mut sides = ranks.sides(pairs, BYTES, windows)?;
    while !sides.iter().all(Program::is_done) {
        round(&machine, &mut sides, &mut now)?;
    }

    Ok(0)
}

/// Does the same as [`round`], under a name that does not count.
#[inline(never)]
fn warm_up(
    machine: &LocalMachine,
    sides: &mut [Side<'_, ExtollTransport>],
    now: &mut u64,
) -> Result<(), Failure> {
    // The compiler may merge two identical functions, and this one would then count.
    std::hint::black_box("not counted");
    turn(machine, sides, now)
}

/// Makes a turn of each rank, and some steps of the machine.
#[inline(never)]
fn round(
    machine: &LocalMachine,
    sides: &mut [Side<'_, ExtollTransport>],
    now: &mut u64,
) -> Result<(), Failure> {
    turn(machine, sides, now)
}

#[inline(always)]
fn turn(
    machine: &LocalMachine,
    sides: &mut [Side<'_, ExtollTransport>],
    now: &mut u64,
) -> Result<(), Failure> {
    for side in sides {
        side.step().context(|| "a rank".into())?;
    }

    machine.with(|machine| {
        for _ in 0..STEPS {
            *now += TICK;
            machine.step(Nanos(*now), 64);
        }
    });

    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_the_part_whose_path_fits_best() {
        assert_eq!(part_of("userlib/matching/src/queues/bins.rs"), Some("match"));
        assert_eq!(part_of("/build/userlib/matching/src/wire.rs"), Some("protocol"));
        assert_eq!(part_of("userlib/velo/src/send.rs"), Some("velo"));
        assert_eq!(part_of("device-model/shm/src/posted/producer.rs"), Some("posting"));
        assert_eq!(part_of("device-model/shm/src/window.rs"), Some("machine"));
        assert_eq!(part_of("device-model/core/src/machine/mod.rs"), Some("machine"));
        assert_eq!(part_of("/rustc/library/core/src/option.rs"), None);
    }

    #[test]
    fn instructions_count_where_they_were_written_and_calls_do_not() {
        let text = "events: Ir\nfl=(1) userlib/velo/src/send.rs\nfn=(1) send\n10 4\nfi=(2) /rustc/library/core/src/option.rs\n7 3\n\
                    fi=(4) device-model/shm/src/window.rs\n7 1\nfe=(1)\n+2 1\ncfi=(3) userlib/driver/src/ring.rs\ncfn=(2) post\ncalls=1 40\n12 100\n13 2\n\n\
                    fl=(3)\nfn=(2)\n40 100\n\ntotals: 111\n";
        assert_eq!(by_part(text), HashMap::from([("velo", 11), ("posting", 100)]));
    }
}
