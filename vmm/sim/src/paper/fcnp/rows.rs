//! The rows of FCNP's paper.

use super::{HEADER_BYTES, INTERRUPT_PENALTIES, KIB, LINK_GBIT_S, PAYLOAD_BYTES};
use crate::{
    paper::{judgement::Tolerance, number::rounded, row::Expected},
    pset::Direction,
};

/// Sizes in bytes of the messages whose bandwidth the paper names, with the paper's percent of the
/// best and that of the null model.
pub(super) const SIZES: [(usize, f64, f64); 2] = [(64 * KIB, 86.0, 97.5), (350 * KIB, 97.0, 99.5)];

/// The directions of an experiment, with the name of the core's call.
pub(super) const DIRECTIONS: [(Direction, &str); 2] =
    [(Direction::ToCompute, "read"), (Direction::ToIo, "write")];

/// The calls of the two cores while both directions are in use.
pub(super) const BOTH: [&str; 2] = ["reading", "writing"];

/// A message of which the paper says whether it has the penalty of an interrupt.
#[derive(Clone, Copy)]
pub(super) struct Penalty {
    pub(super) direction: Direction,
    /// The name of the core's call.
    call: &'static str,
    pub(super) bytes: usize,
    /// The paper's penalty in microseconds.
    paper_us: f64,
    /// The mechanism that the null model lacks.
    without: &'static str,
    /// The null model's penalty in microseconds.
    null_us: f64,
}

/// Messages with and without the penalty of an interrupt.
pub(super) const PENALTIES: [Penalty; 3] = {
    let (_, penalty_us) = INTERRUPT_PENALTIES[0];
    [
        Penalty {
            direction: Direction::ToCompute,
            call: "read",
            bytes: 32 * KIB,
            paper_us: 0.0,
            without: "the time of polling",
            null_us: penalty_us,
        },
        Penalty {
            direction: Direction::ToCompute,
            call: "read",
            bytes: 64 * KIB,
            paper_us: penalty_us,
            without: "the end of polling",
            null_us: 0.0,
        },
        Penalty {
            direction: Direction::ToIo,
            call: "write",
            bytes: 64 * KIB,
            paper_us: 0.0,
            without: "the pause of the daemon",
            null_us: penalty_us,
        },
    ]
};

/// Returns all rows, in the order of the table.
pub(super) fn all() -> Vec<Expected> {
    let mut rows =
        vec![free_packets(), packets(), awaited_latency(), read_latency(), time_of_a_byte(), write_latency()];
    rows.extend(SIZES.map(|(bytes, paper, null_model)| bandwidth_of_size(bytes, paper, null_model)));
    rows.extend(DIRECTIONS.map(|(_, call)| long_message(call)));
    rows.extend(BOTH.map(both_ways));
    rows.extend(INTERRUPT_PENALTIES.map(|(threads, penalty_us)| interrupt(threads, penalty_us)));
    rows.extend(PENALTIES.map(penalty));
    rows.push(ciod());
    rows
}

/// Returns the rate of the packets' data on a busy link, in Gb/s.
fn ceiling() -> f64 {
    rounded(LINK_GBIT_S * PAYLOAD_BYTES / (PAYLOAD_BYTES + HEADER_BYTES), 3)
}

/// Returns the row of the bandwidth of packets if software takes no time: that of the link.
pub(super) fn free_packets() -> Expected {
    Expected::derived("bare packets, cores of no cost", "Gb/s", ceiling())
        .null_model("packet headers", LINK_GBIT_S)
        .within(Tolerance::Percent(0.5))
        .quick()
}

/// Returns the row of the bandwidth of packets with the cores' costs.
pub(super) fn packets() -> Expected {
    Expected::calibrates("bare packets", "Gb/s", 6.54)
        .null_model("the cost of a packet", ceiling())
        .within(Tolerance::Percent(0.5))
        .quick()
}

/// Returns the row of the latency of a read that a thread of the I/O node already awaits.
pub(super) fn awaited_latency() -> Expected {
    Expected::calibrates("latency when the I/O node already waits", "us", 2.1)
        .null_model("the cost of locks and packets", 0.71)
        .within(Tolerance::Percent(3.0))
        .quick()
}

/// Returns the row of a read's latency, without the time of its bytes.
pub(super) fn read_latency() -> Expected {
    Expected::calibrates("latency of a read", "us", 13.3)
        .null_model("taking over from the daemon", 2.1)
        .within(Tolerance::Percent(2.0))
        .quick()
}

/// Returns the row of the time by which a byte more lengthens a read.
pub(super) fn time_of_a_byte() -> Expected {
    Expected::derived("time of a byte", "ns", 1.22)
        .null_model("the cost of a packet", 1.195)
        .within(Tolerance::Percent(0.8))
        .quick()
}

/// Returns the row of a write's latency less that of a read.
pub(super) fn write_latency() -> Expected {
    Expected::predicted("latency of a write, more than of a read", "us", 0.6)
        .null_model("the path of the acknowledgement", 0.0)
        .within(Tolerance::Microseconds(0.2))
        .quick()
}

/// Returns the row of a size of [`SIZES`].
pub(super) fn bandwidth_of_size(bytes: usize, paper: f64, null_model: f64) -> Expected {
    Expected::derived(format!("bandwidth at {} KB of the best", bytes / KIB), "%", paper)
        .null_model("taking over from the daemon", null_model)
        .within(Tolerance::Points(1.0))
        .quick()
}

/// Returns the row of long messages. Its null model is a header of 16 bytes in each packet, as
/// protocols on packets usually have.
pub(super) fn long_message(call: &str) -> Expected {
    Expected::predicted(format!("a {call} of 16 MB, of bare packets"), "%", 100.0)
        .null_model("the interrupt bit: a header in each packet", 93.75)
        .within(Tolerance::Points(1.0))
}

/// Returns the row of the bandwidth of a call, in percent of that of bare packets.
pub(super) fn both_ways(call: &str) -> Expected {
    Expected::predicted(format!("{call} while both go on, of bare packets"), "%", 100.0)
        .null_model("a link in each direction", 50.0)
        .within(Tolerance::Points(2.0))
        .quick()
}

/// Returns the row of a penalty of [`INTERRUPT_PENALTIES`].
pub(super) fn interrupt(threads: &str, penalty_us: f64) -> Expected {
    Expected::calibrates(format!("penalty of an interrupt, {threads}"), "us", penalty_us)
        .null_model("interrupts", 0.0)
        .within(Tolerance::Percent(10.0))
}

/// Returns the row of a message of [`PENALTIES`].
pub(super) fn penalty(Penalty { call, bytes, paper_us, without, null_us, .. }: Penalty) -> Expected {
    Expected::predicted(format!("penalty of an interrupt in a {call} of {} KB", bytes / KIB), "us", paper_us)
        .null_model(without, null_us)
        .within(Tolerance::Microseconds(1.0))
        .quick()
}

/// Returns the row of the bandwidth of a write through the sockets that FCNP replaces.
pub(super) fn ciod() -> Expected {
    Expected::calibrates("a write of 1 MB through CIOD's sockets", "Gb/s", 2.05)
        .null_model("copies and system calls", 6.54)
        .within(Tolerance::Percent(3.0))
}
