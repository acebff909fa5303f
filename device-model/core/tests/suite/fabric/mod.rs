//! Tests of the fabric's timed links: cut-through, credits, wires and errors.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod arbitration;
mod credit_units;
mod cut_through;
mod leases;
mod link_errors;

use nicforge_core::{
    fabric::{Fabric, LinkId, LinkSpec, Ports, Refusal},
    ids::FunctionId,
    time::Nanos,
};

/// Functions of the tests.
const A: FunctionId = FunctionId(0);
const B: FunctionId = FunctionId(1);
const C: FunctionId = FunctionId(2);

/// Bandwidth at which a byte takes one nanosecond.
const BYTE_A_NANOSECOND: u64 = 8_000_000_000;

/// A time after the last event in which all credits return. Only those that a sender waits for are
/// events.
const LONGEST_DELAY: u64 = 1000;

/// Returns A and B with a link at their ports 0.
fn pair(spec: LinkSpec) -> (Fabric, LinkId) {
    let mut fabric = Fabric::new();
    let link = fabric.connect((A, 0), (B, 0), spec).unwrap();
    woken(&mut fabric);
    (fabric, link)
}

/// Returns A, B and C in a row. B has A at port 0 and C at port 1.
fn row(first: LinkSpec, second: LinkSpec) -> Fabric {
    let mut fabric = Fabric::new();
    fabric.connect((A, 0), (B, 0), first).unwrap();
    fabric.connect((B, 1), (C, 0), second).unwrap();
    woken(&mut fabric);
    fabric
}

/// Returns the functions that the fabric has woken since the last call.
fn woken(fabric: &mut Fabric) -> Vec<FunctionId> {
    std::iter::from_fn(|| fabric.pop_woken()).collect()
}

/// Returns a function's ports at a time, after the events that are due.
fn ports(fabric: &mut Fabric, function: FunctionId, now: u64) -> Ports<'_> {
    fabric.advance(Nanos(now));
    fabric.ports(function, Nanos(now))
}

/// Sends a packet of `bytes` bytes from port 0 of A.
fn send(fabric: &mut Fabric, now: u64, channel: usize, (bytes, number): (usize, u64)) -> Result<(), Refusal> {
    let mut ports = ports(fabric, A, now);
    let mut packet = ports.new_packet(bytes).unwrap();
    packet.header = number;

    ports.send(0, channel, packet).map_err(|unsent| {
        ports.recycle(unsent.packet);
        unsent.reason
    })
}

/// Takes a packet at port 0 of a function. Returns its number.
fn take(fabric: &mut Fabric, function: FunctionId, now: u64, channel: usize) -> Option<u64> {
    let mut ports = ports(fabric, function, now);
    let packet = ports.take(0, channel)?;
    let number = packet.header;
    ports.recycle(packet);
    Some(number)
}

/// Carries out all events. Returns the time of the last one, or `now` if there is none.
fn finish(fabric: &mut Fabric, mut now: u64) -> u64 {
    while fabric.next_event() != Nanos::NEVER {
        now = now.max(fabric.next_event().0);
        fabric.advance(Nanos(now));
    }
    now
}
