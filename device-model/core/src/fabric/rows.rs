//! Several packets of one lane in a row, which share the fixed costs.

use super::{
    Contents, Node, Packet, Refusal, Unsent, lane::Lane, packet::Pool, schedule::Schedule, wake::WakeQueue,
};
use crate::time::Nanos;

/// Packets that were forwarded in a row: see [`super::Ports::forward_row`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedRow {
    /// Number of packets moved.
    pub moved: u32,
    /// More packets, or the head of one, are waiting at the port that they came from.
    pub has_more: bool,
}

/// The packets that arrived on a lane, to be taken in order: see [`super::Ports::take_run`]. The
/// credits return to the sender together, on drop.
pub struct Arrivals<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) lane_index: u32,
    pub(super) nodes: &'a mut [Node],
    pub(super) woken: &'a mut WakeQueue,
    pub(super) pool: &'a mut Pool,
    pub(super) schedule: &'a mut Schedule,
    pub(super) now: Nanos,
    /// Number of packets that may still be taken.
    pub(super) remaining: u32,
    /// Number of packets taken so far.
    pub(super) taken: u32,
}

impl Arrivals<'_> {
    /// Returns the packet in front, if one may still be taken.
    #[inline(always)]
    pub fn front(&self) -> Option<&Packet> {
        if self.remaining == 0 { None } else { self.lane.queue.get(self.taken as usize) }
    }

    /// Takes the packet in front and returns its buffer to the pool.
    #[inline(always)]
    pub fn recycle_front(&mut self) {
        if let Some(packet) = self.take() {
            self.pool.put_back(packet);
        }
    }

    /// Takes the packet in front. Its credit returns on drop, with those of the others.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Packet> {
        if self.remaining == 0 {
            return None;
        }
        let packet = self.lane.queue.take(self.taken as usize)?;
        self.remaining -= 1;
        self.taken += 1;
        Some(packet)
    }

    /// Returns the number of packets taken so far.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

impl Drop for Arrivals<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.taken == 0 {
            return;
        }

        let Self { lane, lane_index, now, taken, .. } = self;
        lane.complete_take(*taken, *lane_index, *now, self.nodes, self.woken, self.schedule);
    }
}

/// The way out of a port for several packets: see [`super::Ports::run`]. They arrive together, on
/// drop.
pub struct Run<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) nodes: &'a mut [Node],
    pub(super) woken: &'a mut WakeQueue,
    pub(super) pool: &'a mut Pool,
    pub(super) now: Nanos,
    /// Number of packets that may still be sent.
    pub(super) room: u32,
    /// Value of `room` at the start.
    pub(super) initial_room: u32,
    /// Bytes of the packets sent, on the wire.
    pub(super) bytes: u64,
}

impl Run<'_> {
    /// Limits the run to `packets` packets, even if there are more credits.
    #[inline]
    pub fn at_most(mut self, packets: u32) -> Self {
        self.room = self.room.min(packets);
        self.initial_room = self.room;
        self
    }

    /// Sends a packet with these bytes. `prepare` sets its header and framing.
    ///
    /// # Errors
    /// [`Refusal::NoCredit`], also at the limit of [`Run::at_most`], [`Refusal::TooLong`],
    /// [`Refusal::PoolEmpty`]. `prepare` is not called then.
    #[inline(always)]
    pub fn send(&mut self, bytes: &[u8], prepare: impl FnOnce(&mut Contents)) -> Result<(), Refusal> {
        self.send_with(bytes.len(), |packet| {
            packet.fill(bytes);
            prepare(packet);
        })
    }

    /// Sends a packet of `length` bytes, which `fill` must overwrite. Otherwise the same as
    /// [`Run::send`].
    ///
    /// # Errors
    /// Those of [`Run::send`].
    #[inline(always)]
    pub fn send_with(&mut self, length: usize, fill: impl FnOnce(&mut Contents)) -> Result<(), Refusal> {
        if self.room == 0 {
            self.lane.record_stall();
            return Err(Refusal::NoCredit);
        }

        let packet = if length <= self.lane.limits.longest_small as usize {
            self.pool.take_smallest(length)
        } else {
            self.take_larger(length)?
        };
        let Some(mut packet) = packet else { return Err(Refusal::PoolEmpty) };
        fill(&mut packet);
        self.bytes += packet.wire_bytes();
        self.lane.queue.push(packet);
        self.room -= 1;

        Ok(())
    }

    /// Sends a packet, which must be one that the link takes: of at most
    /// [`super::Ports::max_packet`] bytes.
    ///
    /// # Errors
    /// [`Unsent`] with the packet, and a reason of [`Run::send`].
    #[inline(always)]
    pub fn send_packet(&mut self, packet: Packet) -> Result<(), Unsent> {
        if self.room == 0 {
            self.lane.record_stall();
            return Err(Unsent { packet, reason: Refusal::NoCredit });
        }
        let longest = self.lane.limits.longest;
        if packet.is_longer_than(longest) {
            return Err(Unsent { packet, reason: Refusal::TooLong { longest } });
        }

        self.bytes += packet.wire_bytes();
        self.lane.queue.push(packet);
        self.room -= 1;
        Ok(())
    }

    /// Takes a packet that does not fit into the pool's smallest buffers, if the link takes it.
    #[inline(never)]
    fn take_larger(&mut self, length: usize) -> Result<Option<Packet>, Refusal> {
        let longest = self.lane.limits.longest;
        if length > longest as usize {
            return Err(Refusal::TooLong { longest });
        }
        Ok(self.pool.take(length))
    }

    /// Returns the number of credits left, or the rest of the limit of [`Run::at_most`].
    #[inline]
    pub fn room(&self) -> u32 {
        self.room
    }
}

impl Drop for Run<'_> {
    #[inline]
    fn drop(&mut self) {
        let sent = self.initial_room - self.room;
        if sent > 0 {
            self.lane.record_sent(sent, self.bytes, self.now);
            self.lane.deliver(sent, self.nodes, self.woken);
        }
    }
}
