//! Links. Each of the two directions has virtual channels with their own buffers and credits.

use std::collections::VecDeque;

use super::{
    DEFAULT_MAX_PACKET, FaultHook, Node, Packet,
    queue::{Moved, Queue},
    schedule::{Event, Schedule},
};
use crate::{ids::FunctionId, time::Nanos};

/// Largest number of virtual channels of a link.
pub const MAX_CHANNELS: usize = 16;
/// Largest number of credits of a virtual channel.
pub const MAX_CREDITS: u32 = 4096;

/// Number of a link in its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Direction of a link, named after the ends given to [`super::Fabric::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first end to the second.
    Forward,
    /// From the second end to the first.
    Backward,
}

/// Properties of a link, the same in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Time from the end of a transmission to the packet's arrival, in nanoseconds. A credit takes
    /// the same time back.
    pub delay: u64,
    /// Bandwidth of all virtual channels together, in bits per second. 0 means infinite.
    pub bits_per_second: u64,
    /// Packet buffers at the receiving end for each virtual channel, 1 to [`MAX_CREDITS`].
    pub credits: Vec<u32>,
    /// The longest packet in bytes without framing, 1 to [`super::MAX_PACKET`]. A longer one is
    /// refused.
    pub max_packet: usize,
}

impl LinkSpec {
    /// Returns a link without delay and of infinite bandwidth. It has `channels` virtual channels
    /// with `credits` packets of buffer each. Its packets have up to `max_packet` bytes.
    pub fn new(channels: usize, credits: u32, max_packet: usize) -> Self {
        Self { delay: 0, bits_per_second: 0, credits: vec![credits; channels], max_packet }
    }
}

impl Default for LinkSpec {
    /// Returns two virtual channels of 4 packets of at most [`DEFAULT_MAX_PACKET`] bytes, without
    /// delay, of infinite bandwidth.
    fn default() -> Self {
        Self { delay: 0, bits_per_second: 0, credits: vec![4, 4], max_packet: DEFAULT_MAX_PACKET }
    }
}

/// Statistics of a virtual channel in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of these packets on the wire, without retransmissions.
    pub bytes: u64,
    /// Stalls: times that a sender found no credit. The next stall counts only after a credit has
    /// returned.
    pub stalls: u64,
    /// Transmissions repeated because of a checksum error.
    pub retransmissions: u64,
}

/// One direction of a link: the state that its virtual channels share.
pub(super) struct Path {
    /// Sending end: index of the node in the fabric's table, and port.
    pub(super) sender: (u32, u8),
    /// Receiving end: function and port.
    pub(super) receiver_end: (FunctionId, u8),
    /// Index of its first lane in the fabric's table. The lanes of the other virtual channels
    /// follow.
    pub(super) first_lane: u32,
    pub(super) channels: u8,
    delay: u64,
    /// Transmission time of a byte in 2^-32 ns.
    per_byte: u128,
    /// End of the last transmission in 2^-32 ns.
    busy_until: u128,
    /// Transmissions since the hook was set.
    pub(super) transmissions: u64,
    pub(super) hook: Option<FaultHook>,
}

/// Fractional bits of a time in 2^-32 ns.
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

    /// Returns the indices of the path's lanes in the fabric's table.
    pub(super) fn lanes(&self) -> std::ops::Range<usize> {
        self.first_lane as usize..self.first_lane as usize + usize::from(self.channels)
    }

    /// Returns whether only the delay affects a packet, so that a send can skip the path.
    pub(super) fn is_plain(&self) -> bool {
        self.per_byte == 0 && self.hook.is_none()
    }

    /// Transmits `bytes` as soon as the wire is free. Returns the time at which the last byte
    /// arrives.
    pub(super) fn transmit(&mut self, now: Nanos, bytes: u64) -> Nanos {
        self.transmissions += 1;
        let start = self.busy_until.max(u128::from(now.0) << FRACTION);
        self.busy_until = start + self.per_byte * u128::from(bytes);

        // Rounded up, because a packet has arrived only with its last bit.
        let end = (self.busy_until + ((1 << FRACTION) - 1)) >> FRACTION;
        Nanos(u64::try_from(end).unwrap_or(u64::MAX)).after(self.delay)
    }

    /// Keeps the wire idle for the round trip in which the receiver requests a retransmission.
    pub(super) fn wait_for_repeat(&mut self, now: Nanos) {
        let start = self.busy_until.max(u128::from(now.0) << FRACTION);
        self.busy_until = start + (u128::from(self.delay) << (FRACTION + 1));
    }
}

/// The lengths of the packets that a lane takes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketLimits {
    /// The longest packet: that of the link.
    pub(super) longest: u32,
    /// The longest packet that also fits into the pool's smallest buffers.
    pub(super) longest_small: u32,
}

impl PacketLimits {
    /// Takes over the size of the pool's smallest buffers.
    pub(super) fn set_smallest_buffer(&mut self, bytes: usize) {
        // A link's longest packet is at most 64 KiB, and so are buffers.
        self.longest_small = self.longest.min(bytes as u32);
    }
}

/// One virtual channel in one direction of a link, with its own buffers and credits. The fabric
/// keeps all lanes of all links in one table.
pub(super) struct Lane {
    /// Packets sent and not taken.
    pub(super) queue: Queue,
    /// Number of packets that have arrived, from the front of `queue`.
    pub(super) visible: u32,
    /// Packets that the sender can still send.
    pub(super) credits: u32,
    /// Index of the sending node.
    pub(super) sender: u32,
    /// Index of the receiving node, and its port.
    pub(super) receiver: u32,
    pub(super) port: u8,
    /// Number of the virtual channel.
    pub(super) channel: u8,
    /// Only the delay affects a packet: see [`Path::is_plain`].
    plain: bool,
    /// The lane is plain and has no delay.
    instant: bool,
    /// A stall was counted since the last credit returned.
    pub(super) stall_counted: bool,
    /// Index of the path, and its delay in nanoseconds.
    pub(super) path: u32,
    pub(super) delay: u64,
    pub(super) limits: PacketLimits,
    /// Arrival time of the last packet. A later packet must not arrive before it.
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
            instant: spec.bits_per_second == 0 && spec.delay == 0,
            stall_counted: false,
            path,
            delay: spec.delay,
            limits: PacketLimits { longest: spec.max_packet as u32, longest_small: 0 },
            last_arrival: Nanos::ZERO,
            stats: LaneStats::default(),
        }
    }

    /// Returns whether a packet sent at `now` arrives at `now`. An earlier packet that a fault hook
    /// has delayed also prevents this.
    #[inline]
    pub(super) fn is_instant(&self, now: Nanos) -> bool {
        self.instant && self.last_arrival <= now
    }

    /// Returns whether only the delay affects a packet.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Sets whether only the delay affects a packet.
    pub(super) fn set_plain(&mut self, plain: bool) {
        self.plain = plain;
        self.instant = plain && self.delay == 0;
    }

    /// Adds a packet that arrives at `arrival`, and takes one credit.
    #[inline]
    pub(super) fn push(&mut self, arrival: Nanos, packet: Packet) {
        self.count_sent(1, packet.wire_bytes(), arrival);
        self.queue.push(packet);
    }

    /// Counts sent packets. The last of them arrives at `arrival`.
    #[inline]
    pub(super) fn count_sent(&mut self, packets: u32, bytes: u64, arrival: Nanos) {
        self.credits -= packets;
        self.last_arrival = arrival;
        self.stats.packets += u64::from(packets);
        self.stats.bytes += bytes;
    }

    /// Moves packets that arrived here to `out`, where they arrive at once, while `goes` returns
    /// true. At most `limit` packets move, and at most as many as `out` has credits. Returns their
    /// number.
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
        let mut row = Forwarded { lane: self, out, nodes, woken, now, moved: Moved::default() };
        let most = arrived.min(row.out.credits) as usize;
        row.lane.queue.move_to(&mut row.out.queue, most, &mut row.moved, &goes);

        let moved = row.moved.packets;
        if moved == row.out.credits && moved < arrived && row.lane.queue.front().is_some_and(&goes) {
            row.out.count_stall();
        }

        moved
    }

    /// Takes the first packet if it has arrived. The caller returns the credit.
    #[inline]
    pub(super) fn pop_arrived(&mut self, nodes: &mut [Node]) -> Option<Packet> {
        if self.visible == 0 {
            return None;
        }

        let packet = self.queue.pop()?;
        self.count_taken(1, nodes);

        Some(packet)
    }

    /// Second half of a dequeue: frees the buffer slots of the first packets, which were taken out
    /// with [`Queue::take`] at `now`, and returns the credits to the sender.
    ///
    /// `lane_index` is this lane's index in the fabric's table.
    #[inline(always)]
    pub(super) fn complete_take(
        &mut self,
        packets: u32,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        woken: &mut VecDeque<u32>,
        schedule: &mut Schedule,
    ) {
        self.queue.skip(packets as usize);
        self.count_taken(packets, nodes);
        let credit_arrival = now.after(self.delay);
        if credit_arrival <= now {
            self.return_credits(packets, nodes, woken);
        } else {
            for _ in 0..packets {
                schedule.add(credit_arrival, Event::Credit { lane: lane_index });
            }
        }
    }

    /// Counts packets that were taken after their arrival.
    #[inline(always)]
    pub(super) fn count_taken(&mut self, packets: u32, nodes: &mut [Node]) {
        self.visible -= packets;
        if self.visible == 0 {
            nodes[self.receiver as usize].arrived[usize::from(self.channel) % MAX_CHANNELS] &=
                !(1 << (self.port % 64));
        }
    }

    /// Makes the next packets of the queue visible to the receiver.
    #[inline(always)]
    pub(super) fn deliver(&mut self, packets: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        self.visible += packets;
        let node = &mut nodes[self.receiver as usize];
        node.arrived[usize::from(self.channel) % MAX_CHANNELS] |= 1 << (self.port % 64);
        node.wake(self.receiver, woken);
    }

    /// Returns credits to the sender, and wakes it if it had none.
    #[inline(always)]
    pub(super) fn return_credits(&mut self, credits: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        if self.credits == 0 {
            nodes[self.sender as usize].wake(self.sender, woken);
        }
        self.credits += credits;
        self.stall_counted = false;
    }

    /// Counts a stall, unless one was counted since the last credit returned.
    #[cold]
    pub(super) fn count_stall(&mut self) {
        if !self.stall_counted {
            self.stall_counted = true;
            self.stats.stalls += 1;
        }
    }
}

/// Packets that are being forwarded from one lane to another. The drop completes the work, so that
/// a device's panic in between leaves both lanes consistent.
struct Forwarded<'a> {
    lane: &'a mut Lane,
    out: &'a mut Lane,
    nodes: &'a mut [Node],
    woken: &'a mut VecDeque<u32>,
    now: Nanos,
    moved: Moved,
}

impl Drop for Forwarded<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let Self { lane, out, nodes, woken, now, moved: Moved { packets, bytes } } = self;
        if *packets == 0 {
            return;
        }

        lane.count_taken(*packets, nodes);
        lane.return_credits(*packets, nodes, woken);
        out.count_sent(*packets, *bytes, *now);
        out.deliver(*packets, nodes, woken);
    }
}
