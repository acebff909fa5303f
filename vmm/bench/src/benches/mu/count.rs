//! Counts the instructions of a memory-FIFO packet, and of a put, by part. This program runs itself
//! again under callgrind, with a machine of its own.
//!
//! One thread sends, steps the machine with a simulated clock, and receives. The count therefore
//! does not depend on the scheduling of threads.
//!
//! Inlined code of shared memory and its layouts counts for the function that it is inlined in.

use std::fmt;

use nicforge::failure::Failure;
use nicforge_hwi::mu::{ALL_INJECTION_FIFOS, USER_SUBGROUPS};

use super::{
    BENCH,
    nodes::{BYTES, CREDITS, IdleFifos, Pair, two_nodes},
};
use crate::{
    bench::Run,
    callgrind::{Callgrind, Count, Parts, pattern},
    machine::{SteppedMachine, build},
    process::unknown_task,
    row::{Backing, Goal, Outcome, Row},
};

/// Number of runs of the child process.
pub(super) const STEPS: usize = TASKS.len();
/// Packets that are sent and received at a time.
const BURST: u32 = 32;
/// Steps of the machine between two polls of the receiver.
const MACHINE_STEPS: u32 = 4;
/// The work budget of each function in one step, as in the engine.
const WORK_BUDGET: u32 = 64;
/// Maximum number of polls until a burst or a put has arrived.
const MAX_POLLS: u32 = 1000;
/// The goal for a memory-FIFO packet, in instructions.
const MAX_INSTRUCTIONS: f64 = 500.0;
/// The goal for one active FIFO among all, as a multiple of one alone.
const MAX_RATIO_AMONG_ALL: f64 = 1.05;
/// Bursts before the counted ones, which touch all memory once.
const WARM_UP_BURSTS: u32 = 16;
/// Bytes of the sender's and of the receiver's memory.
const MEMORY: u64 = 4096;

/// The parts of a packet's work.
const PARTS: Parts = Parts {
    paths: &[
        ("program", &["vmm/"]),
        ("library", &["userlib/spi/"]),
        ("driver", &["userlib/driver/", "device-model/shm/src/posted/producer.rs"]),
        ("machine", &["device-model/", "vmm/machine/"]),
        ("network", &["device-model/network/"]),
        ("device", &["device-model/nics/mu/", "device-model/kit/"]),
    ],
    shared: &["device-model/shm/", "device-model/hwi/"],
    other: "standard_library",
};

/// The injection FIFOs that are enabled at the sender's node. One of them sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fifos {
    /// The sender's alone.
    One,
    /// All of the node.
    All,
}

impl Fifos {
    const ALL: [Self; 2] = [Self::One, Self::All];

    /// Returns the word in a task.
    fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::All => "all",
        }
    }
}

/// The messages that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Messages {
    /// Bursts of memory-FIFO packets.
    Fifo,
    /// Puts with a counter, each after the end of the one before.
    Put,
}

impl Messages {
    const ALL: [Self; 2] = [Self::Fifo, Self::Put];

    /// Returns the name in the rows, which is also the word in a task.
    fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo8",
            Self::Put => "put8",
        }
    }
}

/// Packets of buffer of a virtual channel with which a burst does not wait.
const DEEP_CREDITS: u32 = 64;
/// Messages, FIFOs, and packets of buffer of a virtual channel. Each run has a row.
const TASKS: [(Messages, Fifos, u32); 4] = [
    (Messages::Fifo, Fifos::One, CREDITS),
    (Messages::Fifo, Fifos::All, CREDITS),
    (Messages::Fifo, Fifos::One, DEEP_CREDITS),
    (Messages::Put, Fifos::One, CREDITS),
];

/// The task of the child process. On its command line it is `MESSAGES:FIFOS:CREDITS:PACKETS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Task {
    messages: Messages,
    fifos: Fifos,
    /// Packets of buffer of a virtual channel.
    credits: u32,
    /// Number of counted packets, a multiple of [`BURST`].
    packets: u32,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { messages, fifos, credits, packets } = self;
        write!(f, "{}:{}:{credits}:{packets}", messages.name(), fifos.name())
    }
}

impl Task {
    /// Parses the task of a child process.
    fn parse(text: &str) -> Result<Self, Failure> {
        let task = text.split_once(':').and_then(|(messages, rest)| {
            let messages = Messages::ALL.into_iter().find(|kind| kind.name() == messages)?;
            let (fifos, numbers) = rest.split_once(':')?;
            let fifos = Fifos::ALL.into_iter().find(|which| which.name() == fifos)?;
            let (credits, packets) = numbers.split_once(':')?;
            Some(Self { messages, fifos, credits: credits.parse().ok()?, packets: packets.parse().ok()? })
        });
        task.ok_or_else(|| unknown_task(text))
    }
}

/// Counts instructions, if valgrind is installed.
pub(super) fn instructions(run: &Run<'_>) -> Result<Outcome, Failure> {
    Callgrind::if_installed("instructions of a packet are ", |callgrind| count(run, callgrind))
}

/// Counts instructions with callgrind, for each of [`TASKS`], and attributes them to parts by
/// source file.
fn count(run: &Run<'_>, callgrind: &Callgrind) -> Result<Outcome, Failure> {
    let packets = if run.quick { 2 * BURST } else { 4096 };
    let (mut outcome, mut counts_by_task) = (Outcome::default(), Vec::new());

    for (messages, fifos, credits) in TASKS {
        let (name, enabled) = (messages.name(), fifos.name());
        run.step(format!("instructions of {name} with {enabled} FIFOs, {credits} credits"))?;
        let functions = vec![pattern(module_path!(), "round")];
        let task = Task { messages, fifos, credits, packets }.to_string();
        let counted = callgrind.run(
            run,
            &Count { name: "packets", bench: BENCH.name, task, functions, first_thread_only: false },
        )?;

        let all = counted.total() as f64 / f64::from(packets);
        let enabled = match fifos {
            Fifos::One => 1,
            Fifos::All => ALL_INJECTION_FIFOS,
        };
        let row = Row { backing: Some(Backing::InProcess), bytes: Some(BYTES), ..Row::new(name) };
        let mut row =
            row.figure("fifos", enabled.into()).figure("credits", credits.into()).figure("instructions", all);
        let by_part = counted.by_part(&PARTS);
        for part in PARTS.paths.iter().map(|(part, _)| *part).chain([PARTS.other]) {
            let count = by_part.get(part).copied().unwrap_or_default();
            row = row.figure(part, count as f64 / f64::from(packets));
        }
        outcome.rows.push(row);
        counts_by_task.push(all);
    }

    let [one_fifo, all_fifos, one_fifo_deep] = [0, 1, 2].map(|task| counts_by_task[task]);
    outcome.goals = vec![
        Goal::at_most(
            "instructions of a memory-FIFO packet of 8 bytes, 7 packets of buffer",
            MAX_INSTRUCTIONS,
            one_fifo,
        ),
        Goal::at_most("the same with 64 packets of buffer", MAX_INSTRUCTIONS, one_fifo_deep),
        Goal::at_most(
            "one active injection FIFO among 544, of one alone, times",
            MAX_RATIO_AMONG_ALL,
            all_fifos / one_fifo,
        ),
    ];
    outcome.notes.push(format!(
        "fifo8: send, all of the machine's work, and receive, in bursts of {BURST}; counted by callgrind and attributed by source file: \
         program (the loop, numbers of messages), library (the SPI: descriptors, FIFOs), driver (posted writes), machine (steps, locks, \
         memory of clients, links), network (router), device (Message Unit), standard_library (what is not inlined). put8: the same of a put \
         with counter that is alone in the machine"
    ));
    Ok(outcome)
}

/// Runs the child process.
pub(super) fn run_child(task: &str) -> Result<u8, Failure> {
    let task = Task::parse(task)?;
    let mut machine = SteppedMachine::new(build(&two_nodes(USER_SUBGROUPS, task.credits)?)?.0);
    let open = |node: &str, name: &str| machine.open(node, name);
    let mut pair = Pair::open(&open("bgq0", "s0")?, &open("bgq1", "s0")?, MEMORY)?;

    // The idle FIFOs stay enabled until the end.
    let _idle = match task.fifos {
        Fifos::One => None,
        Fifos::All => {
            pair.enable_other_fifos()?;
            let users = (1..USER_SUBGROUPS).map(|subgroup| open("bgq0", &format!("s{subgroup}")));
            let users = users.collect::<Result<Vec<_>, _>>()?;
            Some(IdleFifos::enable(&users, open("bgq0", "kernel")?)?)
        }
    };

    for _ in 0..WARM_UP_BURSTS {
        warm_up(&mut machine, &mut pair, task.messages)?;
    }
    for _ in 0..task.packets / BURST {
        round(&mut machine, &mut pair, task.messages)?;
    }
    Ok(0)
}

/// Does the same as [`round`], under a name at which callgrind does not count.
#[inline(never)]
fn warm_up(machine: &mut SteppedMachine, pair: &mut Pair, messages: Messages) -> Result<(), Failure> {
    // The compiler may merge two identical functions. This one would then be counted, too.
    std::hint::black_box("not counted");
    exchange(machine, pair, messages)
}

/// Sends, delivers and receives [`BURST`] messages. callgrind counts here.
#[inline(never)]
fn round(machine: &mut SteppedMachine, pair: &mut Pair, messages: Messages) -> Result<(), Failure> {
    exchange(machine, pair, messages)
}

/// Sends, delivers and receives [`BURST`] messages.
#[inline(always)]
fn exchange(machine: &mut SteppedMachine, pair: &mut Pair, messages: Messages) -> Result<(), Failure> {
    match messages {
        Messages::Fifo => burst(machine, pair),
        Messages::Put => (0..BURST).try_for_each(|_| put(machine, pair)),
    }
}

/// Puts a message, and steps the machine until the counter shows it.
#[inline(always)]
fn put(machine: &mut SteppedMachine, pair: &mut Pair) -> Result<(), Failure> {
    pair.expect(BYTES);
    if !pair.put(0, BYTES)? {
        return Err(Failure::result("a put finds no room"));
    }

    for _ in 0..MAX_POLLS {
        machine.steps(1, |machine, now| machine.step(now, WORK_BUDGET));
        if pair.left() == 0 {
            return Ok(());
        }
    }
    Err(Failure::result("a put does not arrive"))
}

/// Sends a burst of memory-FIFO packets, and steps the machine until all have been received.
#[inline(always)]
fn burst(machine: &mut SteppedMachine, pair: &mut Pair) -> Result<(), Failure> {
    let sent = pair.send(BURST)?;
    if sent != BURST {
        return Err(Failure::result(format!("{sent} of {BURST} packets could be sent")));
    }

    let mut remaining = BURST;
    for _ in 0..MAX_POLLS {
        machine.steps(MACHINE_STEPS, |machine, now| machine.step(now, WORK_BUDGET));
        remaining -= pair.receive(remaining)?;
        if remaining == 0 {
            return Ok(());
        }
    }
    Err(Failure::result(format!("{remaining} packets did not arrive")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_parsed_as_it_is_printed() {
        for (messages, fifos, credits) in TASKS {
            let task = Task { messages, fifos, credits, packets: 4096 };
            assert_eq!(Task::parse(&task.to_string()).unwrap(), task);
        }
        for task in [
            "",
            "fifo8",
            "fifo8:one:7",
            "put8::7:4",
            "put8:two:7:4",
            "get8:one:7:4",
            "fifo8:all:7:4294967296",
        ] {
            assert!(Task::parse(task).is_err(), "{task}");
        }
    }
}
