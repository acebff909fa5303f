//! The rows of FCNP's paper.

use super::{HEADER_BYTES, INTERRUPT_PENALTIES, KIB, LINK_GBIT_S, PAYLOAD_BYTES};
use crate::{
    paper::{judgement::Tolerance, number::rounded, row::Expected},
    pset::Direction,
};

/// Sizes in bytes of the messages whose bandwidth the paper names, with the paper's percent of the
/// best and that of the null model.
pub(super) const SIZES: [(usize, f64, f64); 2] = [(64 * KIB, 86.0, 97.5), (350 * KIB, 97.0, 99.5)];

/// The directions of an experiment, with the core's call.
pub(super) const DIRECTIONS: [(Direction, &str); 2] =
    [(Direction::ToCompute, "read"), (Direction::ToIo, "write")];

/// The calls of the two cores while both directions are in use.
pub(super) const BOTH: [&str; 2] = ["reading", "writing"];

/// A message whose penalty of an interrupt is known.
#[derive(Clone, Copy)]
pub(super) struct Penalty {
    pub(super) direction: Direction,
    name: &'static str,
    pub(super) bytes: usize,
    paper: f64,
    without: &'static str,
    null: f64,
}

/// Messages with and without the penalty of an interrupt.
pub(super) const PENALTIES: [Penalty; 3] = {
    let penalty = INTERRUPT_PENALTIES[0].1;
    [
        Penalty {
            direction: Direction::ToCompute,
            name: "read",
            bytes: 32 * KIB,
            paper: 0.0,
            without: "the time of polling",
            null: penalty,
        },
        Penalty {
            direction: Direction::ToCompute,
            name: "read",
            bytes: 64 * KIB,
            paper: penalty,
            without: "the end of polling",
            null: 0.0,
        },
        Penalty {
            direction: Direction::ToIo,
            name: "write",
            bytes: 64 * KIB,
            paper: 0.0,
            without: "the pause of the daemon",
            null: penalty,
        },
    ]
};

/// Returns all rows, in the order of the table.
pub(super) fn all() -> Vec<Expected> {
    let mut rows =
        vec![free_packets(), packets(), awaited_latency(), read_latency(), time_of_a_byte(), write_latency()];
    rows.extend(SIZES.map(bandwidth_of_size));
    rows.extend(DIRECTIONS.map(|(_, name)| long_message(name)));
    rows.extend(BOTH.map(both_ways));
    rows.extend(INTERRUPT_PENALTIES.map(interrupt));
    rows.extend(PENALTIES.map(penalty));
    rows.push(ciod());
    rows
}

/// Returns the rate of the packets' data on the link.
fn ceiling() -> f64 {
    rounded(LINK_GBIT_S * PAYLOAD_BYTES / (PAYLOAD_BYTES + HEADER_BYTES), 3)
}

pub(super) fn free_packets() -> Expected {
    Expected::derived("bare packets, cores of no cost", "Gb/s", ceiling())
        .null_model("packet headers", LINK_GBIT_S)
        .within(Tolerance::Percent(0.5))
        .quick()
}

pub(super) fn packets() -> Expected {
    Expected::calibrates("bare packets", "Gb/s", 6.54)
        .null_model("the cost of a packet", ceiling())
        .within(Tolerance::Percent(0.5))
        .quick()
}

pub(super) fn awaited_latency() -> Expected {
    Expected::calibrates("latency when the I/O node already waits", "us", 2.1)
        .null_model("the cost of locks and packets", 0.71)
        .within(Tolerance::Percent(3.0))
        .quick()
}

pub(super) fn read_latency() -> Expected {
    Expected::calibrates("latency of a read", "us", 13.3)
        .null_model("taking over from the daemon", 2.1)
        .within(Tolerance::Percent(2.0))
        .quick()
}

pub(super) fn time_of_a_byte() -> Expected {
    Expected::derived("time of a byte", "ns", 1.22)
        .null_model("the cost of a packet", 1.195)
        .within(Tolerance::Percent(0.8))
        .quick()
}

pub(super) fn write_latency() -> Expected {
    Expected::predicted("latency of a write, more than of a read", "us", 0.6)
        .null_model("the path of the acknowledgement", 0.0)
        .within(Tolerance::Microseconds(0.2))
        .quick()
}

/// Returns the row of a size of [`SIZES`].
pub(super) fn bandwidth_of_size((bytes, paper, null): (usize, f64, f64)) -> Expected {
    Expected::derived(format!("bandwidth at {} KB of the best", bytes / KIB), "%", paper)
        .null_model("taking over from the daemon", null)
        .within(Tolerance::Points(1.0))
        .quick()
}

/// Returns the row of long messages. Its null model is a header of 16 bytes in each packet, as
/// protocols on packets usually have.
pub(super) fn long_message(name: &str) -> Expected {
    Expected::predicted(format!("a {name} of 16 MB, of bare packets"), "%", 100.0)
        .null_model("the interrupt bit: a header in each packet", 93.75)
        .within(Tolerance::Points(1.0))
}

pub(super) fn both_ways(name: &str) -> Expected {
    Expected::predicted(format!("{name} while both go on, of bare packets"), "%", 100.0)
        .null_model("a link in each direction", 50.0)
        .within(Tolerance::Points(2.0))
        .quick()
}

/// Returns the row of a penalty of [`INTERRUPT_PENALTIES`].
pub(super) fn interrupt((threads, penalty): (&str, f64)) -> Expected {
    Expected::calibrates(format!("penalty of an interrupt, {threads}"), "us", penalty)
        .null_model("interrupts", 0.0)
        .within(Tolerance::Percent(10.0))
}

pub(super) fn penalty(Penalty { name, bytes, paper, without, null, .. }: Penalty) -> Expected {
    Expected::predicted(format!("penalty of an interrupt in a {name} of {} KB", bytes / KIB), "us", paper)
        .null_model(without, null)
        .within(Tolerance::Microseconds(1.0))
        .quick()
}

pub(super) fn ciod() -> Expected {
    Expected::calibrates("a write of 1 MB through CIOD's sockets", "Gb/s", 2.05)
        .null_model("copies and system calls", 6.54)
        .within(Tolerance::Percent(3.0))
}
