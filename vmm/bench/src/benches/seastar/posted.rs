//! The number of receives that a process can have posted, in each mode.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_portals::{Criteria, Descriptor, Mode, Options, Position, Refusal, Target, Threshold, Unlink};

use super::{
    TWO,
    nodes::{MATCH_BITS, PORTAL, Process, Receiver, SeaStars, Sender},
};
use crate::{
    bench::Run,
    row::{Backing, Goal, Outcome, Row},
};

/// The goal in NIC-based mode.
const MIN_ON_CARD: u64 = 1_000;
/// The goal in host-based mode, and the greatest number of receives that are posted there.
const MIN_IN_KERNEL: u64 = 10_000;
/// More receives than a card's scratch memory has room for.
const TOO_MANY: u64 = 1 << 16;
/// Bytes of a message.
const BYTES: u64 = 8;
/// Bytes of the memory of a process.
const MEMORY: usize = 4096;

/// A measurement in one mode.
struct Measured {
    /// The name of the row.
    path: &'static str,
    mode: Mode,
    /// Number of the process that has this mode.
    process: u16,
    /// The greatest number of receives that it posts.
    max_receives: u64,
    /// The goal, and its description.
    min_receives: u64,
    goal: &'static str,
}

/// The measurements.
const MODES: [Measured; 2] = [
    Measured {
        path: "posted-nic-based",
        mode: Mode::NicBased,
        process: 0,
        max_receives: TOO_MANY,
        min_receives: MIN_ON_CARD,
        goal: "receives that are posted on the card",
    },
    Measured {
        path: "posted-host-based",
        mode: Mode::HostBased,
        process: 1,
        max_receives: MIN_IN_KERNEL,
        min_receives: MIN_IN_KERNEL,
        goal: "receives that are posted in the kernel",
    },
];
/// Number of measurements.
pub(super) const STEPS: usize = MODES.len();

/// Posts receives in both modes, and sends a message to the last one.
pub(super) fn measure(run: &Run<'_>) -> Result<Outcome, Failure> {
    let machine = SeaStars::in_process(TWO)?;
    let kernels = [machine.boot(0)?, machine.boot(1)?];
    let sender = Sender::new(Process::open(&machine, &kernels[0], 0, Mode::NicBased, MEMORY)?)?;

    let mut outcome = Outcome::default();
    for Measured { path, mode, process, max_receives, min_receives, goal } in MODES {
        run.step(path)?;
        let process = Process::open(&machine, &kernels[1], process, mode, MEMORY)?;
        let receiver = Receiver::new(process)?;
        let count = post_many(&receiver, max_receives)?;
        reach_last(&sender, &receiver, count)?;

        let row = Row { backing: Some(Backing::InProcess), ..Row::new(path) };
        outcome.rows.push(row.figure("receives", count as f64));
        outcome.goals.push(Goal::at_least(goal, min_receives as f64, count as f64));
    }

    outcome.notes.push(format!(
        "posted: receives of one process until PTL_NO_SPACE, at most {MIN_IN_KERNEL} in host-based mode; a message finds the last one"
    ));
    Ok(outcome)
}

/// Posts up to `maximum` receives, each for match bits of its own. Returns the number that found
/// room.
fn post_many(receiver: &Receiver, maximum: u64) -> Result<u64, Failure> {
    let values = Descriptor {
        threshold: Threshold::Operations(1),
        unlink: Unlink::Automatic,
        ..receiver.receive(Options::empty())
    };

    for number in 0..maximum {
        let (position, criteria) = (Position::Tail(PORTAL), Criteria::bits(MATCH_BITS + number));
        let posted = receiver.process.interface.post(position, criteria, Unlink::Automatic, &values, None);
        match posted {
            Err(error) if error.refusal() == Some(Refusal::NoSpace) => return Ok(number),
            posted => posted.map(drop).context(|| format!("receive {number}"))?,
        }
    }
    Ok(maximum)
}

/// Sends a message to the last of `count` receives, and checks that this receive takes it.
fn reach_last(sender: &Sender, receiver: &Receiver, count: u64) -> Result<(), Failure> {
    let last_bits = MATCH_BITS + count.saturating_sub(1);
    let target = Target::new(receiver.id(), PORTAL, last_bits);
    sender.put(0, BYTES, &target, count).context(|| "a put".into())?;

    let event = receiver.next(BYTES)?;
    if event.message.match_bits == last_bits {
        return Ok(());
    }
    Err(Failure::result(format!("the message for the last receive took another one: {event:?}")))
}
