//! Lanes: the virtual channels of each direction of a link, with their buffers and credits.

mod timed;

use super::{
    CreditUnit, LaneStats, LinkSpec, MAX_CHANNELS, MAX_PORTS, Node, Packet,
    queue::{Moved, Queue},
    schedule::Schedule,
    track::{Track, is_simple},
    wake::WakeQueue,
};
use crate::time::Nanos;

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

/// The two ends of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// Index of the sending node, and its port.
    pub(super) sender: u32,
    pub(super) sender_port: u8,
    /// Index of the receiving node, and its port.
    pub(super) receiver: u32,
    pub(super) port: u8,
    /// Number of the virtual channel.
    pub(super) channel: u8,
}

impl Ends {
    /// Returns the bit of the receiving port in the masks of its node.
    #[inline(always)]
    fn port_bit(self) -> u64 {
        1 << (self.port % MAX_PORTS)
    }

    /// Returns the virtual channel's index in the arrays of masks of a node.
    #[inline(always)]
    fn mask_index(self) -> usize {
        // The remainder shows the compiler that the index is in bounds.
        usize::from(self.channel) % MAX_CHANNELS
    }
}

/// The buffers at the receiving end of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Credits in total, at most [`super::MAX_CREDITS`].
    total: u16,
    /// Bytes of buffer that a credit stands for, or 0 for a packet of any length.
    unit_bytes: u32,
}

// Numbers of credits fit into 16 bits.
const _: () = assert!(super::MAX_CREDITS <= u16::MAX as u32);

impl Capacity {
    fn new(credits: u32, unit: CreditUnit) -> Self {
        let unit_bytes = match unit {
            CreditUnit::Packets => 0,
            CreditUnit::Bytes(bytes) => bytes,
        };
        Self { total: saturated(credits), unit_bytes }
    }

    /// Returns the credits in total.
    pub(super) fn total(self) -> u32 {
        self.total.into()
    }

    /// Returns the amount of buffer that a credit stands for.
    #[inline]
    pub(super) fn unit(self) -> CreditUnit {
        if self.unit_bytes == 0 { CreditUnit::Packets } else { CreditUnit::Bytes(self.unit_bytes) }
    }
}

/// Returns a number of credits in 16 bits, at most `u16::MAX`.
fn saturated(credits: u32) -> u16 {
    u16::try_from(credits).unwrap_or(u16::MAX)
}

/// The properties of a link that affect the time and the credits of a packet.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// A packet takes the link's delay and no other time: see [`super::path::Path::is_plain`].
    is_plain: bool,
    /// Each packet takes one credit, and arrives as a whole.
    is_simple: bool,
    /// A packet arrives when it is sent, and takes one credit.
    is_instant: bool,
}

impl Pace {
    /// Returns the properties of a lane whose link has a delay of `delay` nanoseconds.
    fn new(is_plain: bool, delay: u64, is_simple: bool) -> Self {
        Self { is_plain, is_simple, is_instant: is_plain && delay == 0 && is_simple }
    }
}

/// The departure of a packet from the buffer at the receiving end of a lane.
#[derive(Clone, Copy)]
pub(super) struct Departure {
    /// The present time, at which the packet was taken or its forwarding began.
    pub(super) now: Nanos,
    /// Time at which the packet's tail has left the buffer.
    pub(super) end: Nanos,
}

/// A packet that was taken from a lane for forwarding.
pub(super) struct PoppedHead {
    pub(super) packet: Packet,
    /// Number of credits that it has taken on the lane.
    pub(super) credits: u32,
    /// Time at which its tail arrives, or `None` if it has arrived.
    pub(super) tail_due: Option<Nanos>,
}

/// One virtual channel in one direction of a link, with its own buffers and credits. The fabric
/// keeps all lanes of all links in one table.
///
/// A lane is of one of these kinds, which [`Lane::new`] decides:
///
/// - An instant lane takes no time, and each of its packets takes one credit.
/// - A timed lane takes time, cuts through or counts bytes. It has a [`Track`] of the packets that
///   are coming and the credits that go back, from the first packet on.
///
/// An instant lane, too, gets a track with the first packet that takes time, because of a fault
/// hook or because its tail is still coming in.
///
/// Methods that schedule an event get the lane's own index in that table as `lane_index`.
///
/// The fields of the receiving end come first, and those of the sending end behind them, each on a
/// cache line. Large networks have more lanes than a cache holds.
#[repr(C, align(64))]
pub(super) struct Lane {
    /// Packets sent and not taken.
    pub(super) queue: Queue,
    /// The packets and credits that are in progress, from the first packet that takes time on.
    pub(super) track: Option<Box<Track>>,
    pub(super) ends: Ends,
    /// Number of packets that have arrived, from the front of `queue`.
    pub(super) visible: u32,
    /// The buffers that credits stand for.
    pub(super) capacity: Capacity,
    /// Index of the path.
    pub(super) path: u32,
    /// Credits that the sender has left, without those of the track that are back by now and that
    /// [`Lane::add_returned_credits`] has not added.
    pub(super) credits: u32,
    /// Delay of the path in nanoseconds.
    pub(super) delay: u64,
    /// Arrival time of the last packet. A later packet must not arrive before it.
    pub(super) last_arrival: Nanos,
    pub(super) limits: PacketLimits,
    /// Number of credits for which the sender waits, or 0 if it waits for none or for the first
    /// one.
    awaited_credits: u16,
    pace: Pace,
    /// A credit returns as soon as its packet is taken, and the sender waits for no number of
    /// credits.
    pub(super) returns_at_once: bool,
    /// A stall was counted since the last credit returned.
    pub(super) stall_counted: bool,
    pub(super) stats: LaneStats,
}

// A lane has two cache lines. The fields in front of `credits` fill the first one.
const _: () = assert!(size_of::<Lane>() <= 128 && std::mem::offset_of!(Lane, credits) >= 60);

impl Lane {
    pub(super) fn new(path: u32, ends: Ends, credits: u32, spec: &LinkSpec) -> Self {
        let is_simple = is_simple(spec);
        Self {
            queue: Queue::new(),
            visible: 0,
            credits,
            capacity: Capacity::new(credits, spec.credit_unit),
            awaited_credits: 0,
            ends,
            pace: Pace::new(spec.bits_per_second == 0, spec.delay, is_simple),
            returns_at_once: spec.delay == 0 && is_simple,
            stall_counted: false,
            path,
            delay: spec.delay,
            limits: PacketLimits { longest: spec.max_packet as u32, longest_small: 0 },
            last_arrival: Nanos::ZERO,
            stats: LaneStats::default(),
            track: None,
        }
    }

    /// Returns whether a packet sent at `now` arrives at `now`. An earlier packet that a fault hook
    /// has delayed also prevents this.
    #[inline]
    pub(super) fn is_instant(&self, now: Nanos) -> bool {
        self.pace.is_instant && self.last_arrival <= now
    }

    /// Returns whether a packet that the sender has as a whole takes the delay and no other time.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.pace.is_plain && self.pace.is_simple
    }

    /// Sets whether a packet takes the delay and no other time.
    pub(super) fn set_plain(&mut self, is_plain: bool) {
        self.pace = Pace::new(is_plain, self.delay, self.pace.is_simple);
    }

    /// Adds a packet that arrives at `arrival`, and takes one credit. Only for instant lanes.
    #[inline]
    pub(super) fn push(&mut self, arrival: Nanos, packet: Packet) {
        self.record_sent(1, packet.wire_bytes(), arrival);
        self.queue.push(packet);
    }

    /// Records sent packets of one credit each. The last of them arrives at `arrival`.
    #[inline]
    pub(super) fn record_sent(&mut self, packets: u32, bytes: u64, arrival: Nanos) {
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
        (nodes, woken): (&mut [Node], &mut WakeQueue),
        goes: impl Fn(&Packet) -> bool,
    ) -> u32 {
        let arrived = limit.min(self.visible);
        let mut row = Forwarded { lane: self, out, nodes, woken, now, moved: Moved::default() };
        let maximum = arrived.min(row.out.credits) as usize;
        row.lane.queue.move_to(&mut row.out.queue, maximum, &mut row.moved, &goes);

        // The next packet would have moved with one more credit.
        let moved = row.moved.packets;
        if moved == row.out.credits && moved < arrived && row.lane.queue.front().is_some_and(&goes) {
            row.out.record_stall();
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
        self.remove_visible(1, nodes);

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
        woken: &mut WakeQueue,
        schedule: &mut Schedule,
    ) {
        self.queue.skip(packets as usize);
        self.remove_visible(packets, nodes);
        if self.returns_at_once {
            self.return_credits(packets, nodes, woken);
        } else {
            self.return_taken(packets, lane_index, now, nodes, woken, schedule);
        }
    }

    /// Returns the credits of the first packets, which were taken at `now`, after the delay. It
    /// does this part of [`Lane::complete_take`] for lanes that are not [`Lane::returns_at_once`].
    #[cold]
    #[inline(never)]
    fn return_taken(
        &mut self,
        packets: u32,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        woken: &mut WakeQueue,
        schedule: &mut Schedule,
    ) {
        let credits = self.take_costs(packets);
        self.show_next_head(lane_index, now, nodes, schedule);
        self.return_later(credits, lane_index, Departure { now, end: now }, nodes, woken, schedule);
    }

    /// Returns the number of credits that the first packets have taken. Where that differs from
    /// packet to packet, removes their entries.
    #[inline]
    pub(super) fn take_costs(&mut self, packets: u32) -> u32 {
        let Some(track) = &mut self.track else { return packets };
        match self.capacity.unit() {
            CreditUnit::Packets => packets,
            CreditUnit::Bytes(_) => track.pop_costs(packets),
        }
    }

    /// Returns the credits that a packet takes.
    pub(super) fn credits_for(&self, packet: &Packet) -> u32 {
        self.capacity.unit().needed(packet.wire_bytes())
    }

    /// Removes packets that were taken from the visible ones.
    #[inline(always)]
    pub(super) fn remove_visible(&mut self, packets: u32, nodes: &mut [Node]) {
        self.visible -= packets;
        if self.visible == 0 {
            let node = &mut nodes[self.ends.receiver as usize];
            node.arrived[self.ends.mask_index()] &= !self.ends.port_bit();
        }
    }

    /// Makes the next packets of the queue visible to the receiver.
    #[inline(always)]
    pub(super) fn deliver(&mut self, packets: u32, nodes: &mut [Node], woken: &mut WakeQueue) {
        self.visible += packets;
        let node = &mut nodes[self.ends.receiver as usize];
        node.arrived[self.ends.mask_index()] |= self.ends.port_bit();
        node.wake(self.ends.receiver, woken);
    }

    /// Returns the length of the longest possible packet in bytes, with its framing, if a packet
    /// that takes `credits` credits is longer. Returns `None` if it is not.
    pub(super) fn limit_exceeded_by(&self, credits: u32) -> Option<u32> {
        match self.capacity.unit() {
            CreditUnit::Bytes(unit) if credits > self.capacity.total() => {
                Some(unit.saturating_mul(self.capacity.total()))
            }
            _ => None,
        }
    }

    /// Returns credits to the sender, and wakes it if it had none. Only for lanes that are
    /// [`Lane::returns_at_once`].
    #[inline(always)]
    pub(super) fn return_credits(&mut self, credits: u32, nodes: &mut [Node], woken: &mut WakeQueue) {
        if self.credits == 0 {
            let node = &mut nodes[self.ends.sender as usize];
            node.freed |= 1 << (self.ends.sender_port % MAX_PORTS);
            node.wake(self.ends.sender, woken);
        }
        self.credits += credits;
        self.stall_counted = false;
    }

    /// Returns whether the head of the first packet has arrived, or all of it.
    #[inline]
    pub(super) fn has_head(&self) -> bool {
        self.visible > 0 || self.track.as_ref().is_some_and(|track| track.has_head)
    }

    /// Counts a stall of a packet for which there are too few credits, and has the sender woken
    /// when there are enough.
    #[cold]
    pub(super) fn refuse(&mut self, packet: &Packet, lane_index: u32, now: Nanos, schedule: &mut Schedule) {
        self.record_stall();
        self.await_credits(self.credits_for(packet), lane_index, now, schedule);
    }

    /// Counts a stall in the statistics, unless one was counted since the last credit returned.
    #[cold]
    pub(super) fn record_stall(&mut self) {
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
    woken: &'a mut WakeQueue,
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

        lane.remove_visible(*packets, nodes);
        lane.return_credits(*packets, nodes, woken);
        out.record_sent(*packets, *bytes, *now);
        out.deliver(*packets, nodes, woken);
    }
}
