//! The description of a network's routers: virtual channels, queues, priorities and FIFOs.

use nicforge_hwi::mu_packet::{IO_PORT, MAX_PACKET, PORTS, channel, fifo_map, reception_fifo};
use nicforge_network::router::{FifoSpec, RouterSpec};

use super::THROUGH_RATIO;
use crate::config::Options;

/// Virtual channel of the second queue of dynamic packets. Packets in one queue do not wait for
/// those in the other one. The chip has seven (`nd_rese_dcr.h`). More than two carry hardly
/// more.
pub(super) const SECOND_QUEUE: u8 = channel::SYSTEM + 1;
/// Number of the first network injection FIFO of the router. Those below are for collectives.
pub(super) const FIRST_ROUTED: u8 = fifo_map::SYSTEM.trailing_zeros() as u8;
/// Number of network reception FIFOs of the router. Those behind are for collectives.
const ROUTED_RECEPTION: u8 = reception_fifo::COLLECTIVE_USER;

/// Priorities of the senders: collective and system packets first, then user packets of high
/// priority, and then others (section II.E).
mod priority {
    pub(super) const SYSTEM: u8 = 0;
    pub(super) const HIGH: u8 = 1;
    pub(super) const NORMAL: u8 = 2;
}

/// Returns the number of packets that a network FIFO holds. On links without a bandwidth it is
/// larger, because more packets at a time save steps of the router.
pub(super) fn fifo_packets(options: &Options) -> u16 {
    if options.is_timed() { 4 } else { 16 }
}

/// Returns whether dynamic packets have two queues at a receiver, and not one.
///
/// A router has 64 inputs at most, so that the second queue takes the place of the I/O link, and
/// networks with I/O nodes have one queue. On links without a bandwidth no packet waits for a wire,
/// and one queue is enough.
pub(super) fn has_second_queue(options: &Options) -> bool {
    options.is_timed() && options.io_nodes.is_empty()
}

/// Returns the virtual channels of the queues of dynamic packets, one bit for each.
pub(super) fn dynamic_queues(options: &Options) -> u16 {
    1 << channel::DYNAMIC | u16::from(has_second_queue(options)) << SECOND_QUEUE
}

/// Divides the credits of the dynamic channel among its queues.
///
/// A packet takes the queue with the most credits, and of two alike the first one. An odd credit is
/// the second queue's. So the queue with the most credits is one with the fewest packets, which the
/// chip takes.
pub(crate) fn divide_dynamic_credits(options: &mut Options) {
    if has_second_queue(options) {
        let credits = &mut options.link.credits;
        let both = credits[usize::from(channel::DYNAMIC)];
        credits[usize::from(channel::DYNAMIC)] = (both / 2).max(1);
        credits[usize::from(SECOND_QUEUE)] = both.div_ceil(2);
    }
}

/// Returns the description of the routers of a network.
pub(crate) fn router_spec(options: &Options) -> RouterSpec {
    let framing = options.framing() + options.max_reference();
    let fifo = |priority| {
        let packets = fifo_packets(options);
        let bytes = (MAX_PACKET as u32 + framing) * u32::from(packets);
        FifoSpec { bytes, packets, priority }
    };
    let injection_fifo = |number: u32| match 1 << number {
        fifo_map::SYSTEM => fifo(priority::SYSTEM),
        fifo_map::PRIORITY => fifo(priority::HIGH),
        _ => fifo(priority::NORMAL),
    };

    // By virtual channel, from 0 on.
    let mut priorities = vec![priority::NORMAL, priority::NORMAL, priority::HIGH, priority::SYSTEM];
    let mut ports = PORTS;
    if has_second_queue(options) {
        priorities.push(priority::NORMAL);
        ports = IO_PORT;
    }

    RouterSpec {
        ports,
        link: options.link.clone(),
        framing,
        priorities,
        bubble_vcs: 1 << channel::DETERMINISTIC | 1 << channel::HIGH_PRIORITY | 1 << channel::SYSTEM,
        through_ratio: THROUGH_RATIO,
        injection: (FIRST_ROUTED.into()..fifo_map::COUNT).map(injection_fifo).collect(),
        reception: (0..ROUTED_RECEPTION).map(|_| fifo(0)).collect(),
    }
}

// Without the I/O link, which has the last port, the ports of the torus are left.
const _: () = assert!(IO_PORT == PORTS - 1);
