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
const LEAST: u64 = 1_000;
/// The goal in host-based mode, and the receives that are posted there.
const MANY: u64 = 10_000;
/// More receives than a card's scratch memory has bytes for.
const TOO_MANY: u64 = 1 << 16;
/// Bytes of a message.
const BYTES: u64 = 8;

/// Modes, the processes that have them, and the receives that each posts at most.
const MODES: [(&str, Mode, u16, u64); 2] =
    [("posted-nic-based", Mode::NicBased, 0, TOO_MANY), ("posted-host-based", Mode::HostBased, 1, MANY)];
/// Number of measurements.
pub(super) const STEPS: usize = MODES.len();

/// Posts receives in both modes, and sends a message to the last one.
pub(super) fn measure(run: &Run<'_>) -> Result<Outcome, Failure> {
    let machine = SeaStars::in_process(TWO)?;
    let kernels = [machine.boot(0)?, machine.boot(1)?];
    let sender = Sender::new(Process::open(&machine, &kernels[0], 0, Mode::NicBased, 4096)?)?;

    let mut outcome = Outcome::default();
    for (path, mode, number, most) in MODES {
        run.step(path)?;
        let process = Process::open(&machine, &kernels[1], number, mode, 4096)?;
        let receiver = Receiver::new(process)?;
        let count = post_many(&receiver, most)?;
        reach_last(&sender, &receiver, count)?;

        let row = Row { backing: Some(Backing::InProcess), ..Row::new(path) };
        outcome.rows.push(row.figure("receives", count as f64));
        let (what, least) = match mode {
            Mode::NicBased => ("receives that are posted on the card", LEAST),
            Mode::HostBased => ("receives that are posted in the kernel", MANY),
        };
        outcome.goals.push(Goal::at_least(what, least as f64, count as f64));
    }

    outcome.notes.push(format!(
        "posted: receives of one process until PTL_NO_SPACE, at most {MANY} in host-based mode; a message finds the last one"
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

/// Sends a message to the last of `count` receives.
fn reach_last(sender: &Sender, receiver: &Receiver, count: u64) -> Result<(), Failure> {
    let bits = MATCH_BITS + count.saturating_sub(1);
    sender.put(0, BYTES, &Target::new(receiver.id(), PORTAL, bits), count).context(|| "a put".into())?;

    let event = receiver.next(BYTES)?;
    if event.message.match_bits == bits {
        return Ok(());
    }
    Err(Failure::result(format!("the message for the last receive took another one: {event:?}")))
}
