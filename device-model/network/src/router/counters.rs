//! Counters of a router.

use nicforge_core::time::Nanos;

use super::Row;

/// A number that changes over time, with its integral.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    value: u64,
    since: Nanos,
    integral: u64,
}

impl Level {
    /// Sets the number from now on.
    #[inline]
    pub(super) fn set(&mut self, value: u64, now: Nanos) {
        if now > self.since {
            self.integral = self.integral_until(now);
            self.since = now;
        }
        self.value = value;
    }

    /// Returns the number.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Returns the integral over the nanoseconds until `now`. Divided by the time, it is the mean;
    /// divided by the packets, it is the time that each spent in the queue (Little's law).
    pub fn integral_until(&self, now: Nanos) -> u64 {
        let elapsed = now.0.saturating_sub(self.since.0);
        self.integral.saturating_add(self.value.saturating_mul(elapsed))
    }
}

/// Counters of an input: a virtual channel of a port, or an injection FIFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputCounters {
    /// Packets that have left the input. A packet with several targets counts once.
    pub packets: u64,
    /// Bytes of these packets with their framing.
    pub bytes: u64,
    /// Nanoseconds for which packets were first in the input and could not leave: the integral of
    /// the number of waiting heads, which is 0 or 1.
    pub waited: u64,
}

impl InputCounters {
    /// Counts packets that have left the input without a wait.
    #[inline]
    pub(super) fn add(&mut self, row: Row) {
        self.packets += u64::from(row.packets);
        self.bytes += row.bytes;
    }
}

/// Counters of an output port, for all virtual channels together. Those of each virtual channel
/// are the link's: [`nicforge_core::fabric::Ports::sent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputCounters {
    /// Packets sent that came from links.
    pub through: u64,
    /// Packets sent that came from injection FIFOs.
    pub injected: u64,
    /// Times that the wire was idle and packets waited, and none of them had room.
    pub stalls: u64,
}

/// Counters of a router that belong to no port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounters {
    /// Packets put into reception FIFOs, copies included.
    pub delivered: u64,
    /// Times that a packet found its reception FIFO full.
    pub full: u64,
    /// Packets dropped, because their route word has no meaning.
    pub dropped: u64,
    /// Packets that left a virtual channel for the escape channel of their candidates.
    pub escaped: u64,
    /// Times that the fabric had no packet for a copy.
    pub starved: u64,
}
