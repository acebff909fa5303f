//! Lanes: the virtual channels of each direction of a link, with their buffers and credits.

use std::collections::VecDeque;

use super::{
    CreditUnit, LaneStats, LinkSpec, MAX_CHANNELS, Node, Packet,
    queue::{Moved, Queue},
    schedule::{Event, EventKind, Schedule},
    track::Track,
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
    /// Index of the sending node.
    pub(super) sender: u32,
    /// Index of the receiving node, and its port.
    pub(super) receiver: u32,
    pub(super) port: u8,
    /// Number of the virtual channel.
    pub(super) channel: u8,
}

/// One virtual channel in one direction of a link, with its own buffers and credits. The fabric
/// keeps all lanes of all links in one table.
///
/// A lane is of one of these kinds, which [`Lane::new`] decides:
///
/// - An instant lane takes no time, and each of its packets takes one credit.
/// - A timed lane takes time, and each of its packets takes one credit.
/// - A tracked lane has a [`Track`] of its packets, because it cuts through or counts bytes.
pub(super) struct Lane {
    /// Packets sent and not taken.
    pub(super) queue: Queue,
    /// Number of packets that have arrived, from the front of `queue`.
    pub(super) visible: u32,
    /// Credits that the sender has left.
    pub(super) credits: u32,
    /// Number of credits at which the sender is woken, or 0.
    wake_at: u32,
    ends: Ends,
    /// Only the delay affects a packet: see [`super::path::Path::is_plain`].
    plain: bool,
    /// A packet arrives when it is sent, and takes one credit.
    instant: bool,
    /// A credit returns when its packet is taken, and the sender waits for no number of credits.
    pub(super) direct: bool,
    /// A stall was counted since the last credit returned.
    pub(super) stall_counted: bool,
    /// Index of the path, and its delay in nanoseconds.
    pub(super) path: u32,
    pub(super) delay: u64,
    pub(super) limits: PacketLimits,
    /// Arrival time of the last packet. A later packet must not arrive before it.
    pub(super) last_arrival: Nanos,
    pub(super) stats: LaneStats,
    /// State of a tracked lane.
    pub(super) track: Option<Box<Track>>,
}

impl Lane {
    pub(super) fn new(path: u32, ends: Ends, credits: u32, spec: &LinkSpec) -> Self {
        let track = Track::needed_for(spec, credits).map(Box::new);
        Self {
            queue: Queue::new(credits),
            visible: 0,
            credits,
            wake_at: 0,
            ends,
            plain: spec.bits_per_second == 0,
            instant: spec.bits_per_second == 0 && spec.delay == 0 && track.is_none(),
            direct: spec.delay == 0 && track.is_none(),
            stall_counted: false,
            path,
            delay: spec.delay,
            limits: PacketLimits { longest: spec.max_packet as u32, longest_small: 0 },
            last_arrival: Nanos::ZERO,
            stats: LaneStats::default(),
            track,
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
        self.instant = plain && self.delay == 0 && self.track.is_none();
    }

    /// Adds a packet that arrives at `arrival`, and takes one credit. Not for tracked lanes.
    #[inline]
    pub(super) fn push(&mut self, arrival: Nanos, packet: Packet) {
        self.count_sent(1, packet.wire_bytes(), arrival);
        self.queue.push(packet);
    }

    /// Adds a packet to a lane of any kind. Its tail arrives at `tail`, and it takes `credits`
    /// credits.
    pub(super) fn push_timed(&mut self, tail: Nanos, credits: u32, packet: Packet) {
        let bytes = packet.wire_bytes();
        self.queue.push(packet);
        if let Some(track) = &mut self.track {
            track.push(tail, credits);
        }

        self.credits -= credits;
        self.last_arrival = tail;
        self.stats.packets += 1;
        self.stats.bytes += bytes;
    }

    /// Counts sent packets of one credit each. The last of them arrives at `arrival`.
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
        if self.direct {
            self.return_credits(packets, nodes, woken);
        } else {
            self.return_later(packets, lane_index, now, nodes, woken, schedule);
        }
    }

    /// Returns the credits of the first packets, which were taken at `now`, after the delay.
    #[cold]
    #[inline(never)]
    fn return_later(
        &mut self,
        packets: u32,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        woken: &mut VecDeque<u32>,
        schedule: &mut Schedule,
    ) {
        let credits = self.credits_of_first(packets);
        let due = now.after(self.delay);
        if due <= now {
            self.return_timed(credits, nodes, woken);
        } else {
            schedule.add(due, Event::of_lane(lane_index, EventKind::Credit { credits }));
        }
    }

    /// Returns the credits that the first packets have taken, and forgets the packets' track.
    pub(super) fn credits_of_first(&mut self, packets: u32) -> u32 {
        match &mut self.track {
            None => packets,
            Some(track) => (0..packets).map(|_| track.pop().credits).sum(),
        }
    }

    /// Returns the credits that a packet takes.
    pub(super) fn credits_for(&self, packet: &Packet) -> u32 {
        self.track.as_ref().map_or(1, |track| track.unit.needed(packet.wire_bytes()))
    }

    /// Counts packets that were taken after their arrival.
    #[inline(always)]
    pub(super) fn count_taken(&mut self, packets: u32, nodes: &mut [Node]) {
        self.visible -= packets;
        if self.visible == 0 {
            nodes[self.ends.receiver as usize].arrived[usize::from(self.ends.channel) % MAX_CHANNELS] &=
                !(1 << (self.ends.port % 64));
        }
    }

    /// Makes the next packets of the queue visible to the receiver.
    #[inline(always)]
    pub(super) fn deliver(&mut self, packets: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        self.visible += packets;
        let node = &mut nodes[self.ends.receiver as usize];
        node.arrived[usize::from(self.ends.channel) % MAX_CHANNELS] |= 1 << (self.ends.port % 64);
        node.wake(self.ends.receiver, woken);
    }

    /// Returns the longest packet in bytes, with its framing, if a packet that takes `credits`
    /// credits is longer.
    pub(super) fn longest_for(&self, credits: u32) -> Option<u32> {
        let track = self.track.as_ref()?;
        match track.unit {
            CreditUnit::Bytes(unit) if credits > track.total => Some(unit.saturating_mul(track.total)),
            _ => None,
        }
    }

    /// Returns credits to the sender, and wakes it if it had none. Only for lanes that are
    /// [`Lane::direct`].
    #[inline(always)]
    pub(super) fn return_credits(&mut self, credits: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        if self.credits == 0 {
            nodes[self.ends.sender as usize].wake(self.ends.sender, woken);
        }
        self.credits += credits;
        self.stall_counted = false;
    }

    /// Returns credits to the sender of any lane. Wakes it if it had none, or has as many as it
    /// waits for.
    pub(super) fn return_timed(&mut self, credits: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        let had_none = self.credits == 0;
        self.credits += credits;
        self.stall_counted = false;

        let has_enough = self.wake_at > 0 && self.credits >= self.wake_at;
        if has_enough {
            self.wake_at = 0;
            self.direct = self.delay == 0 && self.track.is_none();
        }
        if had_none || has_enough {
            nodes[self.ends.sender as usize].wake(self.ends.sender, woken);
        }
    }

    /// Lets the sender wake when it has `credits` credits, or a smaller number that it already
    /// waits for.
    pub(super) fn wake_sender_at(&mut self, credits: u32) {
        // A sender without credits is woken at the first one in any case.
        if credits > 1 {
            self.wake_at = if self.wake_at == 0 { credits } else { self.wake_at.min(credits) };
            self.direct = false;
        }
    }

    /// Shows the receiver the head of the next packet.
    pub(super) fn show_head(&mut self, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        let Some(track) = &mut self.track else { return };
        track.heads += 1;
        let node = &mut nodes[self.ends.receiver as usize];
        node.heads[usize::from(self.ends.channel) % MAX_CHANNELS] |= 1 << (self.ends.port % 64);
        node.wake(self.ends.receiver, woken);
    }

    /// Makes the packet visible whose tail has arrived, unless it was forwarded before.
    pub(super) fn show_tail(&mut self, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        let Some(track) = &mut self.track else { return };
        if track.forwarded_heads > 0 {
            track.forwarded_heads -= 1;
            return;
        }

        track.heads = track.heads.saturating_sub(1);
        self.update_heads(nodes);
        self.deliver(1, nodes, woken);
    }

    /// Clears the port's bit for heads, if there are none.
    fn update_heads(&self, nodes: &mut [Node]) {
        if self.heads() == 0 {
            nodes[self.ends.receiver as usize].heads[usize::from(self.ends.channel) % MAX_CHANNELS] &=
                !(1 << (self.ends.port % 64));
        }
    }

    /// Returns the number of packets of which only the head has arrived, behind the visible ones.
    pub(super) fn heads(&self) -> u32 {
        self.track.as_ref().map_or(0, |track| track.heads)
    }

    /// Returns whether the head of the first packet has arrived, or all of it.
    #[inline]
    pub(super) fn has_head(&self) -> bool {
        self.visible > 0 || self.heads() > 0
    }

    /// Takes the first packet for forwarding, if its head has arrived. Returns it with the credits
    /// that it has taken, and the time of its tail if that has not arrived.
    pub(super) fn pop_head(&mut self, nodes: &mut [Node]) -> Option<(Packet, u32, Option<Nanos>)> {
        if !self.has_head() {
            return None;
        }

        let packet = self.queue.pop()?;
        if self.visible > 0 {
            self.count_taken(1, nodes);
            return Some((packet, self.credits_of_first(1), None));
        }

        let track = self.track.as_mut()?;
        track.heads -= 1;
        track.forwarded_heads += 1;
        let flight = track.pop();
        self.update_heads(nodes);

        Some((packet, flight.credits, Some(flight.tail)))
    }

    /// Counts a stall of a packet that has too few credits, and lets the sender wake when it has
    /// enough.
    #[cold]
    pub(super) fn refuse(&mut self, packet: &Packet) {
        self.count_stall();
        self.wake_sender_at(self.credits_for(packet));
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
