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

use std::cmp::Reverse;

use super::LinkSpec;
use crate::time::Nanos;

/// Fractional bits of a time in 2^-32 ns.
const FRACTION: u32 = 32;

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

/// The arrival of a packet at the router that forwards it, which the forwarding has to wait for if
/// the packet's tail has not arrived. [`Incoming::WHOLE`] stands for a packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Time at which the tail arrives.
    tail: Nanos,
    /// Bytes of the head on the incoming link, all of which have arrived.
    head_bytes: u32,
    /// Transmission time of a byte on the incoming link in 2^-32 ns.
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

/// The start of a transmission on a wire, exact to 2^-32 ns.
///
/// It is kept as the time rounded up and the part by which it is earlier. Most callers need the
/// time rounded up, and 64 bits suffice for each step. The times end at [`Nanos::NEVER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The time, rounded up.
    ceiling: Nanos,
    /// The part of a nanosecond by which it is earlier, in 2^-32 ns.
    earlier: u32,
}

/// A transmission time.
#[derive(Clone, Copy, Debug)]
struct Duration {
    nanoseconds: u64,
    /// The part of a nanosecond, in 2^-32 ns.
    fraction: u32,
}

impl WireSpeed {
    /// Returns the speed of a link's wires.
    pub fn new(spec: &LinkSpec) -> Self {
        /// The bits of a byte, times the nanoseconds of a second, in 2^-32 ns.
        const BYTE_SECOND: u128 = (8 * 1_000_000_000u128) << FRACTION;

        let per_byte = match spec.bits_per_second {
            0 => 0,
            bits => u64::try_from(BYTE_SECOND / u128::from(bits)).unwrap_or(u64::MAX),
        };
        Self { delay: spec.delay, per_byte, head_bytes: spec.cut_through.unwrap_or(u32::MAX) }
    }

    /// Returns the arrival of a packet whose tail arrives over such a wire at `tail`.
    #[inline]
    pub fn incoming(&self, tail: Nanos) -> Incoming {
        Incoming { tail, head_bytes: self.head_bytes, per_byte: self.per_byte }
    }

    /// Transmits `bytes` from `start` on. Returns the times, and when the wire can start the next
    /// transmission.
    #[inline]
    pub fn transmit(&self, start: Start, bytes: u64, incoming: Incoming) -> (Passage, Start) {
        let hold = |own| incoming.hold(own, self.head_bytes.into(), bytes);
        let (passage, sent, end) = self.transmit_held(start, bytes, incoming.tail, hold);
        // A wire of infinite bandwidth carries other packets meanwhile.
        (passage, if self.per_byte == 0 { sent } else { end })
    }

    /// Transmits `bytes` as [`WireSpeed::transmit`] does, from a wire of the same speed. The tail
    /// comes in at `tail`, or at [`Nanos::ZERO`] if it has arrived. Over wires of infinite
    /// bandwidth it must have arrived: there no tail comes in later than its head.
    #[inline(always)]
    pub fn transmit_alike(&self, start: Start, bytes: u64, tail: Nanos) -> (Passage, Start) {
        let (passage, _, end) = self.transmit_held(start, bytes, tail, |own| own);
        (passage, end)
    }

    /// Does the work of [`WireSpeed::transmit`]. `hold` gets the time at which the wire could have
    /// carried the head, and returns the time at which it has: not before the head has come in.
    /// Returns the passage, when the wire alone could have carried all bytes, and when it has: not
    /// before the tail has come in.
    #[inline(always)]
    fn transmit_held(
        &self,
        start: Start,
        bytes: u64,
        tail: Nanos,
        hold: impl FnOnce(Start) -> Start,
    ) -> (Passage, Start, Start) {
        let sent = start.after(Duration::of(self.per_byte, bytes));
        let end = if tail >= sent.ceiling { Start::at(tail) } else { sent };

        // Rounded up, because a byte has arrived only with its last bit.
        let tail_left = end.ceiling;
        let head_left = if u64::from(self.head_bytes) < bytes {
            hold(start.after(Duration::of(self.per_byte, self.head_bytes.into()))).ceiling
        } else {
            tail_left
        };
        let passage =
            Passage { head: head_left.after(self.delay), tail: tail_left.after(self.delay), end: tail_left };
        (passage, sent, end)
    }
}

impl Start {
    /// The start of a wire that has carried nothing.
    pub const FIRST: Self = Self::at(Nanos::ZERO);
    /// The start of a wire that does not exist.
    pub const NEVER: Self = Self::at(Nanos::NEVER);

    /// Returns the start at a time.
    #[inline]
    const fn at(time: Nanos) -> Self {
        Self { ceiling: time, earlier: 0 }
    }

    /// Returns the start of a transmission that is sent at `now`, over a wire that can start it at
    /// `self`.
    ///
    /// A sender that has waited for the wire to fall idle sends in the nanosecond in which the last
    /// transmission ends. Its transmission starts exactly at that end, so that fractions of a
    /// nanosecond add up as they do for booked transmissions.
    #[inline(always)]
    pub fn from(self, now: Nanos, has_waited: bool) -> Self {
        let fell_idle_now = has_waited && self.ceiling == now;
        if self.ceiling > now || fell_idle_now { self } else { Self::at(now) }
    }

    /// Returns the start that is later by a transmission time.
    #[inline(always)]
    fn after(self, duration: Duration) -> Self {
        // A later start is earlier than its ceiling by less. An underflow leads to the next
        // ceiling.
        let (earlier, is_next_nanosecond) = self.earlier.overflowing_sub(duration.fraction);
        let nanoseconds = duration.nanoseconds.saturating_add(is_next_nanosecond.into());
        Self { ceiling: self.ceiling.after(nanoseconds), earlier }
    }

    /// Returns the start that is earlier by a transmission time, at least [`Start::FIRST`].
    fn before(self, duration: Duration) -> Self {
        let (earlier, is_previous_nanosecond) = self.earlier.overflowing_add(duration.fraction);
        let nanoseconds = duration.nanoseconds.saturating_add(is_previous_nanosecond.into());
        match self.ceiling.0.checked_sub(nanoseconds) {
            Some(0) | None => Self::FIRST,
            Some(ceiling) => Self { ceiling: Nanos(ceiling), earlier },
        }
    }

    /// Returns the later one of two starts.
    fn max(self, other: Self) -> Self {
        // Of two starts with the same ceiling, the one that is earlier by less is the later one.
        let order = |start: Self| (start.ceiling, Reverse(start.earlier));
        if order(other) > order(self) { other } else { self }
    }

    /// Returns the time in 2^-32 ns.
    pub(super) fn exact(self) -> u128 {
        exact(self.ceiling).saturating_sub(self.earlier.into())
    }

    /// Returns a start that is later by a number of nanoseconds.
    pub(super) fn later(self, nanoseconds: u64) -> Self {
        Self { ceiling: self.ceiling.after(nanoseconds), ..self }
    }

    /// Returns the time, rounded up.
    #[inline]
    pub fn rounded_up(self) -> Nanos {
        self.ceiling
    }
}

impl Duration {
    /// Returns the transmission time of `bytes` bytes.
    #[inline(always)]
    fn of(per_byte: u64, bytes: u64) -> Self {
        let exact = duration(per_byte, bytes);
        let nanoseconds = u64::try_from(exact >> FRACTION).unwrap_or(u64::MAX);
        Self { nanoseconds, fraction: exact as u32 }
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
    /// is later.
    #[inline]
    fn hold(&self, time: Start, head: u64, bytes: u64) -> Start {
        if head <= self.head_bytes.into() {
            return time;
        }
        time.max(Start::at(self.tail).before(Duration::of(self.per_byte, bytes - head)))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the times of a transmission in 2^-32 ns, as the module documentation states them:
    /// the head has left, the tail has left, the wire is idle.
    fn stated(speed: &WireSpeed, start: u128, bytes: u64, incoming: Incoming) -> [u128; 3] {
        let sent = start + duration(speed.per_byte, bytes);
        let end = sent.max(exact(incoming.tail));
        let head_bytes = u64::from(speed.head_bytes);
        let head = if head_bytes >= bytes {
            end
        } else if head_bytes <= incoming.head_bytes.into() {
            start + duration(speed.per_byte, head_bytes)
        } else {
            let rest = duration(incoming.per_byte, bytes - head_bytes);
            exact(incoming.tail).saturating_sub(rest).max(start + duration(speed.per_byte, head_bytes))
        };
        [head, end, if speed.per_byte == 0 { sent } else { end }]
    }

    fn ceiling(time: u128) -> Nanos {
        Nanos(time.div_ceil(1 << FRACTION) as u64)
    }

    proptest! {
        #[test]
        fn transmissions_take_the_stated_times(
            per_byte in prop_oneof![Just(0), 1..1u64 << 34, any::<u64>()],
            came_per_byte in prop_oneof![0..1u64 << 34, any::<u64>()],
            head_bytes in prop_oneof![1..64u32, Just(u32::MAX)],
            came_head_bytes in prop_oneof![1..64u32, Just(u32::MAX)],
            packets in prop::collection::vec((0..3_000u64, 1..300u64, 0..4_000u64), 1..20),
            has_waited in any::<bool>(),
        ) {
            let speed = WireSpeed { delay: 7, per_byte, head_bytes };
            let (mut start, mut now) = (Start::FIRST, Nanos(1_000));
            for (later, bytes, tail) in packets {
                now = now.after(later);
                let tail = Nanos(now.0.saturating_sub(1_000).saturating_add(tail));
                let incoming = Incoming { tail, head_bytes: came_head_bytes, per_byte: came_per_byte };

                let former = start.exact();
                let fell_idle_now = has_waited && former + (1 << FRACTION) > exact(now);
                let begun = start.from(now, has_waited);
                prop_assert_eq!(begun.exact(), if fell_idle_now { former } else { former.max(exact(now)) });

                let [head, end, idle] = stated(&speed, begun.exact(), bytes, incoming);
                let (passage, busy_until) = speed.transmit(begun, bytes, incoming);
                prop_assert_eq!(passage.head, ceiling(head).after(7));
                prop_assert_eq!(passage.tail, ceiling(end).after(7));
                prop_assert_eq!((passage.end, busy_until.exact()), (ceiling(end), idle));
                start = busy_until;
            }
        }
    }

    #[test]
    fn times_end_at_never() {
        let speed = WireSpeed { delay: 1, per_byte: u64::MAX, head_bytes: 1 };
        let (passage, busy_until) = speed.transmit(Start::at(Nanos(u64::MAX - 5)), 1 << 20, Incoming::WHOLE);
        assert_eq!((passage.tail, busy_until.rounded_up()), (Nanos::NEVER, Nanos::NEVER));
    }
}
