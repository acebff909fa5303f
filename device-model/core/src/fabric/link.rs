//! Links: two directions, each with virtual channels that have their own buffers and credits.

use std::collections::VecDeque;

use super::{FaultHook, Packet};
use crate::{device::FunctionId, time::Nanos};

/// Virtual channels of a link at most.
pub const MAX_CHANNELS: usize = 16;
/// Credits of a virtual channel at most.
pub const MAX_CREDITS: u32 = 4096;

/// A link of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A direction of a link, by the ends that were given to [`super::Fabric::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first end to the second.
    Forward,
    /// From the second end to the first.
    Backward,
}

/// What a link is like; the same in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Time from the end of a transmission to the packet being visible, in nanoseconds; also the time a credit takes back.
    pub delay: u64,
    /// Bits a second of all virtual channels together; 0 is infinitely fast.
    pub bits_per_second: u64,
    /// Packets of buffer at the receiving end, a number a virtual channel: 1 to [`MAX_CREDITS`] each.
    pub credits: Vec<u32>,
}

impl Default for LinkSpec {
    /// Two virtual channels of 4 packets, no delay, infinitely fast.
    fn default() -> Self {
        Self { delay: 0, bits_per_second: 0, credits: vec![4, 4] }
    }
}

/// What a virtual channel of one direction of a link has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of them on the wire, repeats not counted.
    pub bytes: u64,
    /// Times a sender found no credit, counted once until one came back.
    pub stalls: u64,
    /// Transmissions repeated because of a checksum error.
    pub retransmissions: u64,
}

/// One direction of a link.
pub(super) struct Path {
    /// The node that receives and the one that sends, as indices into the fabric's table.
    pub(super) receiver: u32,
    pub(super) sender: u32,
    pub(super) receiver_end: (FunctionId, u8),
    /// Its lanes in the fabric's table: one a virtual channel from here on.
    pub(super) first_lane: u32,
    pub(super) channels: u8,
    pub(super) up: bool,
    pub(super) delay: u64,
    /// Time a byte takes in 2^-32 ns.
    per_byte: u128,
    /// When the last transmission ends, in 2^-32 ns.
    busy_until: u128,
    pub(super) transmissions: u64,
    pub(super) hook: Option<FaultHook>,
}

/// A time in 2^-32 ns.
const FRACTION: u32 = 32;

impl Path {
    pub(super) fn new(sender: u32, receiver: u32, end: (FunctionId, u8), lane: u32, spec: &LinkSpec) -> Self {
        let per_byte = match spec.bits_per_second {
            0 => 0,
            bits => ((8 * 1_000_000_000u128) << FRACTION) / u128::from(bits),
        };
        Self {
            receiver,
            sender,
            receiver_end: end,
            first_lane: lane,
            channels: spec.credits.len() as u8,
            up: true,
            delay: spec.delay,
            per_byte,
            busy_until: 0,
            transmissions: 0,
            hook: None,
        }
    }

    /// Puts `bytes` on the wire as soon as it is free; returns when the last of them is at the other end.
    #[inline]
    pub(super) fn transmit(&mut self, now: Nanos, bytes: u64) -> Nanos {
        self.transmissions += 1;
        if self.per_byte == 0 && self.busy_until == 0 {
            return now.after(self.delay);
        }
        let start = self.busy_until.max(u128::from(now.0) << FRACTION);
        self.busy_until = start + self.per_byte * u128::from(bytes);
        // Rounded up: a packet is not there before its last bit.
        let end = (self.busy_until + ((1 << FRACTION) - 1)) >> FRACTION;
        Nanos(u64::try_from(end).unwrap_or(u64::MAX)).after(self.delay)
    }

    /// Keeps the wire quiet for the time in which the receiver asks for a packet again.
    pub(super) fn wait_for_repeat(&mut self, now: Nanos) {
        let start = self.busy_until.max(u128::from(now.0) << FRACTION);
        self.busy_until = start + (u128::from(self.delay) << (FRACTION + 1));
    }
}

/// A virtual channel of one direction.
pub(super) struct Lane {
    pub(super) path: u32,
    /// Packets sent and not yet taken; room for all credits.
    pub(super) queue: VecDeque<Packet>,
    /// How many of them have arrived, from the front.
    pub(super) visible: u32,
    pub(super) credits: u32,
    /// When the last packet arrives, so that a delayed one is not overtaken.
    pub(super) last_arrival: Nanos,
    pub(super) starved: bool,
    pub(super) stats: LaneStats,
}

impl Lane {
    pub(super) fn new(path: u32, credits: u32) -> Self {
        Self {
            path,
            queue: VecDeque::with_capacity(credits as usize),
            visible: 0,
            credits,
            last_arrival: Nanos::ZERO,
            starved: false,
            stats: LaneStats::default(),
        }
    }

    pub(super) fn note_stall(&mut self) {
        if !self.starved {
            self.starved = true;
            self.stats.stalls += 1;
        }
    }
}
