//! The rows of SeaStar's paper.

use super::MODES;
use crate::{
    paper::{judgement::Tolerance, row::Expected},
    seastar::programs::Collective,
};

/// Returns all rows, in the order of the table.
pub(super) fn all() -> Vec<Expected> {
    let mut rows = vec![posting_with_one_call(), posting_with_three_calls(), posting_host_based()];
    rows.extend([advantage_of_1_kb(), advantage_of_8_bytes(), advantage_of_one_interrupt()]);
    rows.extend(MODES.map(|(_, name)| second_packet(name)));
    rows.extend([
        bandwidth(),
        both_ways(),
        rate_of_1_kb(),
        implicit_acks(),
        passed_receive(),
        equal_queues(),
    ]);
    rows.extend(Collective::ALL.map(|(_, name)| collective(name)));
    rows.extend([reduce_of_allreduce(), advantage_of_64_nodes()]);
    rows.extend([protocol_time_on_card(), advantage_with_protocol(), rate_with_protocol()]);
    rows.extend(MODES.map(|(_, name)| barrier_with_protocol(name)));
    rows.extend([stages_on_host(), stages_on_card(), router_of_host_interface()]);
    rows
}

/// Returns the row of the time in which one call posts a receive on the card.
pub(super) fn posting_with_one_call() -> Expected {
    Expected::calibrates("posting a receive with PtlPost, NIC-based", "us", 1.0)
        .within(Tolerance::Microseconds(0.1))
        .quick()
}

/// Returns the row of the time in which three calls do the same, in percent of that of one call.
pub(super) fn posting_with_three_calls() -> Expected {
    Expected::predicted("the same with three calls, of that with PtlPost", "%", 300.0)
        .null_model("PtlPost", 100.0)
        .within(Tolerance::Percent(5.0))
        .quick()
}

/// Returns the row of the time of the three calls in host-based mode, which are system calls.
pub(super) fn posting_host_based() -> Expected {
    Expected::derived("three calls, host-based", "us", 0.195)
        .null_model("system calls", 1.0)
        .within(Tolerance::Microseconds(0.02))
        .quick()
}

/// Returns the row of the difference of the modes for a message that does not fit its header
/// packet.
pub(super) fn advantage_of_1_kb() -> Expected {
    Expected::calibrates("latency of 1 KB, host-based more than NIC-based", "us", 3.0)
        .null_model("interrupts", 0.64)
        .within(Tolerance::Microseconds(0.3))
        .quick()
}

/// Returns the row of the difference of the modes for a message that fits its header packet.
pub(super) fn advantage_of_8_bytes() -> Expected {
    Expected::predicted("latency of 8 bytes, host-based more than NIC-based", "us", 1.0)
        .null_model("interrupts", -0.2)
        .at_least()
        .quick()
}

/// Returns the row of the difference for 8 bytes, in percent of that for 1 KB. The host-based mode
/// has one interrupt for the former and two for the latter.
pub(super) fn advantage_of_one_interrupt() -> Expected {
    Expected::predicted("the same, of the difference for 1 KB: one interrupt against two", "%", 100.0)
        .null_model("data in the header packet", 100.0)
        .below()
        .quick()
}

/// Returns the row of the time that a message needs for its second packet.
pub(super) fn second_packet(name: &str) -> Expected {
    let description = format!("step of the latency between 16 and 32 bytes, {name}");
    Expected::predicted(description, "us", 0.0).null_model("data in the header packet", 0.0).above().quick()
}

/// Returns the row of the bandwidth of a stream in one direction.
pub(super) fn bandwidth() -> Expected {
    Expected::calibrates("bandwidth of 1 MB", "GB/s", 1.1).at_least().quick()
}

/// Returns the row of the bandwidth of both directions together, in percent of that of one.
pub(super) fn both_ways() -> Expected {
    Expected::predicted("bandwidth of 1 MB in both directions, of one", "%", 200.0)
        .null_model("an engine for each direction", 100.0)
        .within(Tolerance::Points(4.0))
        .quick()
}

/// Returns the row of the NIC-based rate of messages, in percent of the host-based one.
pub(super) fn rate_of_1_kb() -> Expected {
    Expected::predicted("messages of 1 KB, NIC-based, of the host-based rate", "%", 100.0)
        .null_model("matching on the card", 100.0)
        .above()
        .quick()
}

/// Returns the row of the rate with implicit acknowledgements, in percent of that without them.
pub(super) fn implicit_acks() -> Expected {
    Expected::predicted("messages of 8 bytes with implicit acknowledgements, NIC-based", "%", 110.0).quick()
}

/// Returns the row of the time in which the card passes a posted receive that does not match.
pub(super) fn passed_receive() -> Expected {
    Expected::derived("a posted receive that is passed, NIC-based", "ns", 30.0)
        .null_model("the embedded processor", 5.0)
        .within(Tolerance::Percent(10.0))
        .quick()
}

/// Returns the row of the number of posted receives at which the card's slower matching makes up
/// for the host's interrupts.
pub(super) fn equal_queues() -> Expected {
    Expected::calibrates("posted receives that are passed when the modes are equally fast", "", 50.0)
        .null_model("the embedded processor", 1000.0)
        .within(Tolerance::Percent(20.0))
        .quick()
}

/// Returns the row of the NIC-based time of a collective operation, in percent of the host-based
/// one.
pub(super) fn collective(name: &str) -> Expected {
    Expected::predicted(format!("{name} of 16 nodes, NIC-based, of host-based"), "%", 100.0)
        .null_model("matching on the card", 100.0)
        .below()
        .quick()
}

/// Returns the row of the difference of the modes in a large barrier, in percent of that in a small
/// one.
pub(super) fn advantage_of_64_nodes() -> Expected {
    Expected::predicted("advantage in a barrier of 64 nodes, of that of 16", "%", 100.0)
        .null_model("steps that each gain", 100.0)
        .above()
}

/// Returns the row of the part that reduce takes of its host-based time, in percent of the part
/// that allreduce takes of its own.
pub(super) fn reduce_of_allreduce() -> Expected {
    Expected::predicted("the part of reduce, of that of allreduce", "%", 100.0).quick()
}

/// Returns the row of the time by which flow control slows the card more than the host.
pub(super) fn protocol_time_on_card() -> Expected {
    Expected::predicted(
        "protocol's time for 1 KB of streams in both directions, NIC-based more than host-based",
        "ns",
        0.0,
    )
    .null_model("protocol", 0.0)
    .above()
    .quick()
}

/// Returns the row of the quotient of the host-based and the NIC-based time with flow control, in
/// percent of that without it.
pub(super) fn advantage_with_protocol() -> Expected {
    Expected::predicted(
        "advantage of NIC-based mode in these, with the protocol, of that without it",
        "%",
        100.0,
    )
    .null_model("protocol", 100.0)
    .below()
    .quick()
}

/// Returns the row of the NIC-based rate with flow control, in percent of that without it.
pub(super) fn rate_with_protocol() -> Expected {
    Expected::predicted("rate of these, NIC-based, with the protocol, of that without it", "%", 100.0)
        .null_model("protocol", 100.0)
        .below()
        .quick()
}

/// Returns the row of the time of a barrier with flow control, in percent of that without it.
pub(super) fn barrier_with_protocol(name: &str) -> Expected {
    Expected::predicted(
        format!("barrier of 16 nodes, {name}, with the protocol, of that without it"),
        "%",
        100.0,
    )
    .null_model("protocol", 100.0)
    .above()
    .quick()
}

/// Returns the row of the time that the host has more to do in the host-based mode.
pub(super) fn stages_on_host() -> Expected {
    Expected::predicted("kernel and interrupts for 8 bytes, host-based more than NIC-based", "us", 0.0)
        .null_model("matching on the card", 0.0)
        .above()
        .quick()
}

/// Returns the row of the time that the card has more to do in the NIC-based mode.
pub(super) fn stages_on_card() -> Expected {
    Expected::calibrates("embedded processor for 8 bytes, NIC-based more than host-based", "us", 0.0)
        .null_model("matching on the card", 0.0)
        .above()
        .quick()
}

/// Returns the row of the time in routers and links, in percent of that of the host interface.
pub(super) fn router_of_host_interface() -> Expected {
    // The paper's routers of InfiniBand take an order of magnitude more time.
    Expected::calibrates("router and links for 8 bytes, NIC-based, of the host interface", "%", 100.0)
        .null_model("a fast router", 260.0)
        .below()
        .quick()
}
