//! Links: two directions, each with virtual channels that have their own buffers and credits.

use std::collections::VecDeque;

use super::{
    FaultHook, Node, Packet,
    queue::Queue,
    schedule::{Event, Schedule},
};
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
    /// Time from the end of a transmission to the packet being visible, in nanoseconds; also the
    /// time a credit takes back.
    pub delay: u64,
    /// Bits a second of all virtual channels together; 0 is infinitely fast.
    pub bits_per_second: u64,
    /// Packets of buffer at the receiving end, a number a virtual channel: 1 to [`MAX_CREDITS`]
    /// each.
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

/// One direction of a link: what its virtual channels share.
pub(super) struct Path {
    /// The end that sends: a node as an index into the fabric's table, and its port.
    pub(super) sender: (u32, u8),
    pub(super) receiver_end: (FunctionId, u8),
    /// Its lanes in the fabric's table: one a virtual channel from here on.
    pub(super) first_lane: u32,
    pub(super) channels: u8,
    delay: u64,
    /// Time a byte takes in 2^-32 ns.
    per_byte: u128,
    /// When the last transmission ends, in 2^-32 ns.
    busy_until: u128,
    /// Transmissions since the hook was put on.
    pub(super) transmissions: u64,
    pub(super) hook: Option<FaultHook>,
}

/// Bits behind the point of a time in 2^-32 ns.
const FRACTION: u32 = 32;

impl Path {
    pub(super) fn new(
        sender: (u32, u8),
        receiver_end: (FunctionId, u8),
        first_lane: u32,
        spec: &LinkSpec,
    ) -> Self {
        let per_byte = match spec.bits_per_second {
            0 => 0,
            bits => ((8 * 1_000_000_000u128) << FRACTION) / u128::from(bits),
        };

        Self {
            sender,
            receiver_end,
            first_lane,
            channels: spec.credits.len() as u8,
            delay: spec.delay,
            per_byte,
            busy_until: 0,
            transmissions: 0,
            hook: None,
        }
    }

    /// The path's lanes in the fabric's table.
    pub(super) fn lanes(&self) -> std::ops::Range<usize> {
        self.first_lane as usize..self.first_lane as usize + usize::from(self.channels)
    }

    /// Whether a packet takes the delay and nothing else, so that nobody has to look here.
    pub(super) fn is_plain(&self) -> bool {
        self.per_byte == 0 && self.hook.is_none()
    }

    /// Puts `bytes` on the wire as soon as it is free; returns when the last of them is at the
    /// other end.
    pub(super) fn transmit(&mut self, now: Nanos, bytes: u64) -> Nanos {
        self.transmissions += 1;
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
    /// Packets sent and not yet taken.
    pub(super) queue: Queue,
    /// How many of them have arrived, from the front.
    pub(super) visible: u32,
    pub(super) credits: u32,
    /// The nodes at the ends, the receiver's port, and the virtual channel.
    pub(super) sender: u32,
    pub(super) receiver: u32,
    pub(super) port: u8,
    pub(super) channel: u8,
    /// Nothing but the delay happens to a packet: see [`Path::is_plain`].
    pub(super) plain: bool,
    pub(super) starved: bool,
    pub(super) path: u32,
    pub(super) delay: u64,
    /// When the last packet arrives, so that a delayed one is not overtaken.
    pub(super) last_arrival: Nanos,
    pub(super) stats: LaneStats,
}

impl Lane {
    pub(super) fn new(path: u32, ends: (u32, u32, u8), channel: u8, credits: u32, spec: &LinkSpec) -> Self {
        let (sender, receiver, port) = ends;
        Self {
            queue: Queue::new(credits),
            visible: 0,
            credits,
            sender,
            receiver,
            port,
            channel,
            plain: spec.bits_per_second == 0,
            starved: false,
            path,
            delay: spec.delay,
            last_arrival: Nanos::ZERO,
            stats: LaneStats::default(),
        }
    }

    /// Whether a packet sent at `now` is visible then: nothing delays it, nor one in front of it (a
    /// fault hook may have).
    #[inline]
    pub(super) fn is_instant(&self, now: Nanos) -> bool {
        self.plain && self.delay == 0 && self.last_arrival <= now
    }

    /// Adds a packet that arrives at `arrival`, on one of the sender's credits.
    #[inline]
    pub(super) fn push(&mut self, arrival: Nanos, packet: Packet) {
        self.sent(1, packet.wire_bytes(), arrival);
        self.queue.push(packet);
    }

    /// Counts packets that were sent, the last of which arrives at `arrival`.
    #[inline]
    pub(super) fn sent(&mut self, packets: u32, bytes: u64, arrival: Nanos) {
        self.credits -= packets;
        self.last_arrival = arrival;
        self.stats.packets += u64::from(packets);
        self.stats.bytes += bytes;
    }

    /// Sends packets that have arrived here on through `out`, where they arrive at once, as long as
    /// `goes` says so: at most `limit`, and what `out` has credits for. Gives how many.
    #[inline(always)]
    pub(super) fn forward(
        &mut self,
        out: &mut Self,
        now: Nanos,
        limit: u32,
        ends: (&mut [Node], &mut VecDeque<u32>),
        goes: impl Fn(&Packet) -> bool,
    ) -> u32 {
        let (nodes, woken) = ends;
        let arrived = limit.min(self.visible);
        let (moved, bytes) = self.queue.move_to(&mut out.queue, arrived.min(out.credits) as usize, &goes);
        let moved = moved as u32;
        if moved == out.credits && moved < arrived && self.queue.front().is_some_and(&goes) {
            out.note_stall();
        }

        if moved != 0 {
            self.taken(moved, nodes);
            self.give_credits(moved, nodes, woken);
            out.sent(moved, bytes, now);
            out.show(moved, nodes, woken);
        }

        moved
    }

    /// Takes the first packet, if it has arrived.
    #[inline]
    pub(super) fn pop_arrived(&mut self, nodes: &mut [Node]) -> Option<Packet> {
        if self.visible == 0 {
            return None;
        }
        let packet = self.queue.pop()?;
        self.taken(1, nodes);
        Some(packet)
    }

    /// The first packets have left the queue at `now` ([`Queue::take`]): their places, and their
    /// credits on the way back to the sender.
    #[inline(always)]
    pub(super) fn left(
        &mut self,
        packets: u32,
        index: u32,
        now: Nanos,
        nodes: &mut [Node],
        woken: &mut VecDeque<u32>,
        schedule: &mut Schedule,
    ) {
        self.queue.skip(packets as usize);
        self.taken(packets, nodes);
        let back = now.after(self.delay);
        if back <= now {
            self.give_credits(packets, nodes, woken);
        } else {
            for _ in 0..packets {
                schedule.add(back, Event::Credit { lane: index });
            }
        }
    }

    /// Packets that had arrived were taken.
    #[inline(always)]
    pub(super) fn taken(&mut self, packets: u32, nodes: &mut [Node]) {
        self.visible -= packets;
        if self.visible == 0 {
            nodes[self.receiver as usize].arrived[usize::from(self.channel) % MAX_CHANNELS] &=
                !(1 << (self.port % 64));
        }
    }

    /// The next packets have arrived.
    #[inline(always)]
    pub(super) fn show(&mut self, packets: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        self.visible += packets;
        let node = &mut nodes[self.receiver as usize];
        node.arrived[usize::from(self.channel) % MAX_CHANNELS] |= 1 << (self.port % 64);
        node.wake(self.receiver, woken);
    }

    /// Credits have come back.
    #[inline(always)]
    pub(super) fn give_credits(&mut self, credits: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        if self.credits == 0 {
            nodes[self.sender as usize].wake(self.sender, woken);
        }
        self.credits += credits;
        self.starved = false;
    }

    #[cold]
    pub(super) fn note_stall(&mut self) {
        if !self.starved {
            self.starved = true;
            self.stats.stalls += 1;
        }
    }
}
