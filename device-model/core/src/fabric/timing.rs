//! The times of a packet's transmission over a wire, as pure functions.
//!
//! The fabric's links and networks without a machine (`nicforge_network`) share them.
//!
//! A transmission of `n` bytes starts at `start`, when the packet was sent and the wire was idle.
//!
//! | event | time |
//! | --- | --- |
//! | the head has arrived: a router may forward the packet | `start` + head bytes + delay |
//! | the tail has left, and the wire is idle | `end` = max(`start` + `n` bytes, tail in) |
//! | the tail has arrived: a device may take the packet | `end` + delay |
//!
//! "Tail in" is the time at which a packet's tail arrives at the forwarding router. A faster wire
//! thus waits for it. If the head is longer than that of the incoming link, it leaves when all of
//! it has come in.

use super::LinkSpec;
use crate::time::Nanos;

/// Fractional bits of a time in 2^-32 ns.
pub(super) const FRACTION: u32 = 32;
/// A nanosecond in 2^-32 ns.
const NANOSECOND: u128 = 1 << FRACTION;

/// The properties of a wire on which the times of its transmissions depend.
#[derive(Clone, Copy, Debug)]
pub struct WireSpeed {
    /// Time from the end of a transmission to the packet's arrival.
    pub(super) delay: u64,
    /// Transmission time of a byte in 2^-32 ns: at most 4.29 s, which is just above 2 bits a
    /// second.
    pub(super) per_byte: u64,
    /// Bytes of a packet's head: see [`LinkSpec::cut_through`]. Without cut-through, it is longer
    /// than any packet.
    pub(super) head_bytes: u32,
}

/// A packet's way into the router that forwards it, if its tail has not arrived there.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Time of the tail.
    tail: Nanos,
    /// Bytes of the head, which has arrived.
    head_bytes: u32,
    /// Transmission time of a byte in 2^-32 ns.
    per_byte: u64,
}

/// The times of a packet's transmission.
#[derive(Clone, Copy, Debug)]
pub struct Passage {
    /// The head arrives.
    pub head: Nanos,
    /// The tail arrives.
    pub tail: Nanos,
    /// The tail has left the sender.
    pub end: Nanos,
}

/// The start of a transmission on a wire, in 2^-32 ns.
#[derive(Clone, Copy, Debug)]
pub struct Start(u128);

impl WireSpeed {
    /// Returns the speed of a link's wires.
    pub fn new(spec: &LinkSpec) -> Self {
        let per_byte = match spec.bits_per_second {
            0 => 0,
            bits => {
                u64::try_from(((8 * 1_000_000_000u128) << FRACTION) / u128::from(bits)).unwrap_or(u64::MAX)
            }
        };
        Self { delay: spec.delay, per_byte, head_bytes: spec.cut_through.unwrap_or(u32::MAX) }
    }

    /// Returns the way of a packet that arrives over such a wire until `tail`.
    #[inline]
    pub fn incoming(&self, tail: Nanos) -> Incoming {
        Incoming { tail, head_bytes: self.head_bytes, per_byte: self.per_byte }
    }

    /// Transmits `bytes` from `start` on. Returns the times, and when the wire can start the next
    /// transmission.
    #[inline(always)]
    pub fn transmit(&self, Start(start): Start, bytes: u64, incoming: Incoming) -> (Passage, Start) {
        let sent = start + duration(self.per_byte, bytes);
        let end = sent.max(exact(incoming.tail));

        // A wire of infinite bandwidth carries other packets meanwhile.
        let busy_until = if self.per_byte == 0 { sent } else { end };

        // Rounded up, because a byte has arrived only with its last bit.
        let whole = rounded_up(end);
        let head = if u64::from(self.head_bytes) < bytes {
            let own = start + duration(self.per_byte, self.head_bytes.into());
            rounded_up(incoming.hold(own, self.head_bytes.into(), bytes))
        } else {
            whole
        };
        let passage = Passage { head: head.after(self.delay), tail: whole.after(self.delay), end: whole };
        (passage, Start(busy_until))
    }
}

impl Start {
    /// The start of a wire that has carried nothing.
    pub const FIRST: Self = Self(0);

    /// Returns the start of a transmission that is sent at `now`, over a wire that can start it at
    /// `self`.
    ///
    /// A sender that has waited for the wire to fall idle sends in the nanosecond in which the last
    /// transmission ends. Its transmission starts exactly at that end, so that fractions of a
    /// nanosecond add up as they do for booked transmissions.
    #[inline]
    pub fn from(self, now: Nanos, has_waited: bool) -> Self {
        let now = exact(now);
        let fell_idle_now = has_waited && self.0 + NANOSECOND > now;
        if fell_idle_now { self } else { Self(self.0.max(now)) }
    }

    /// Returns the time in 2^-32 ns.
    pub(super) fn exact(self) -> u128 {
        self.0
    }

    /// Returns a start that is later by `ticks`, in 2^-32 ns.
    pub(super) fn later(self, ticks: u128) -> Self {
        Self(self.0 + ticks)
    }

    /// Returns the time, rounded up.
    #[inline]
    pub fn rounded_up(self) -> Nanos {
        rounded_up(self.0)
    }
}

impl Incoming {
    /// A packet that has arrived as a whole.
    pub const WHOLE: Self = Self { tail: Nanos::ZERO, head_bytes: u32::MAX, per_byte: 0 };

    /// Returns whether the packet has arrived as a whole.
    pub(super) fn is_whole(&self) -> bool {
        self.head_bytes == u32::MAX
    }

    /// Returns `time`, or the time at which the first `head` of `bytes` bytes have arrived if that
    /// is later, in 2^-32 ns.
    #[inline]
    fn hold(&self, time: u128, head: u64, bytes: u64) -> u128 {
        if head <= self.head_bytes.into() {
            return time;
        }

        let behind = duration(self.per_byte, bytes - head);
        time.max(exact(self.tail).saturating_sub(behind))
    }
}

impl Passage {
    /// Returns the passage over a wire that carries any packet in no time.
    pub(super) fn plain(now: Nanos, delay: u64) -> Self {
        let arrival = now.after(delay);
        Self { head: arrival, tail: arrival, end: now }
    }

    /// Returns the passage with arrivals that are `nanoseconds` later.
    pub(super) fn later(self, nanoseconds: u64) -> Self {
        Self { head: self.head.after(nanoseconds), tail: self.tail.after(nanoseconds), ..self }
    }
}

/// Returns the transmission time of `bytes` bytes in 2^-32 ns.
#[inline]
pub(super) fn duration(per_byte: u64, bytes: u64) -> u128 {
    u128::from(per_byte) * u128::from(bytes)
}

/// Returns a time in 2^-32 ns.
#[inline]
pub(super) fn exact(time: Nanos) -> u128 {
    u128::from(time.0) << FRACTION
}

/// Returns a time of 2^-32 ns in nanoseconds, rounded up.
#[inline]
fn rounded_up(time: u128) -> Nanos {
    Nanos(u64::try_from((time + (NANOSECOND - 1)) >> FRACTION).unwrap_or(u64::MAX))
}
