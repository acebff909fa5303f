//! The FIFOs between a router and its device.

use std::collections::VecDeque;

use nicforge_core::{fabric::Packet, time::Nanos};

use super::{FifoSpec, RoutedPacket, Row, counters::Level};

/// The room in a FIFO. A packet needs its bytes with the framing, and a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoRoom {
    /// Bytes of further packets with their framing.
    pub bytes: u32,
    /// Number of further packets.
    pub packets: u32,
}

impl FifoRoom {
    /// Returns whether a packet of `bytes` bytes with its framing has room.
    #[inline]
    pub fn fits(self, bytes: u32) -> bool {
        bytes <= self.bytes && self.packets > 0
    }
}

/// An injection FIFO: packets of the device that wait for the network.
///
/// One packet is in service at a time. The next one is considered when the tail of the one before
/// has left, and its place is free from then on.
#[derive(Debug)]
pub(crate) struct InjectionFifo<K = Packet> {
    spec: FifoSpec,
    packets: VecDeque<K>,
    /// Bytes of these packets.
    bytes: u32,
    /// Time until which the last packet in service occupies the FIFO.
    pub(super) busy_until: Nanos,
    /// Bytes of that packet.
    leaving: u32,
    pub(super) level: Level,
}

impl<K: RoutedPacket> InjectionFifo<K> {
    pub(crate) fn new(spec: FifoSpec) -> Self {
        Self {
            spec,
            packets: VecDeque::with_capacity(spec.packets.into()),
            bytes: 0,
            busy_until: Nanos::ZERO,
            leaving: 0,
            level: Level::default(),
        }
    }

    /// Returns the room for further packets.
    #[inline]
    pub(crate) fn room(&self, now: Nanos) -> FifoRoom {
        let is_leaving = now < self.busy_until;
        let bytes = self.bytes + if is_leaving { self.leaving } else { 0 };
        let packets = self.packets.len() + usize::from(is_leaving);
        FifoRoom {
            bytes: self.spec.bytes.saturating_sub(bytes),
            packets: u32::from(self.spec.packets).saturating_sub(packets as u32),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, packet: K, now: Nanos) {
        self.bytes += packet.wire_bytes();
        self.packets.push_back(packet);
        self.level.set(self.packets.len() as u64, now);
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&K> {
        self.packets.front()
    }

    /// Takes the first packet, whose tail leaves later: see [`InjectionFifo::serve_until`].
    #[inline]
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<K> {
        let packet = self.packets.pop_front()?;
        self.leaving = packet.wire_bytes();
        self.bytes -= self.leaving;
        self.busy_until = now;
        self.level.set(self.packets.len() as u64, now);
        Some(packet)
    }

    /// Adds a packet that has room. The caller must call [`InjectionFifo::note_level`] after the
    /// last one.
    #[inline(always)]
    pub(super) fn add(&mut self, packet: K) {
        self.bytes += packet.wire_bytes();
        self.packets.push_back(packet);
    }

    /// Records the number of packets.
    #[inline]
    pub(super) fn note_level(&mut self, now: Nanos) {
        self.level.set(self.packets.len() as u64, now);
    }

    /// Takes the first packet if it has this route word. The caller must call
    /// [`InjectionFifo::end_row`] after the last one.
    #[inline(always)]
    pub(super) fn pop_of_row(&mut self, word: u64) -> Option<K> {
        if self.packets.front()?.word() != word {
            return None;
        }
        let packet = self.packets.pop_front()?;
        self.leaving = packet.wire_bytes();
        self.bytes -= self.leaving;
        Some(packet)
    }

    /// Records that the packets taken last have left, without taking time.
    #[inline]
    pub(super) fn end_row(&mut self, now: Nanos) {
        self.busy_until = now;
        self.note_level(now);
    }

    /// Puts the packet back that [`InjectionFifo::pop`] has returned.
    pub(crate) fn put_back(&mut self, packet: K, now: Nanos) {
        self.bytes += packet.wire_bytes();
        self.packets.push_front(packet);
        self.level.set(self.packets.len() as u64, now);
    }

    /// Records the time at which the tail of the packet that was taken last has left.
    #[inline]
    pub(crate) fn serve_until(&mut self, time: Nanos) {
        self.busy_until = time;
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// A packet in a reception FIFO.
#[derive(Debug)]
struct Received<K> {
    packet: K,
    /// Time at which its tail is there.
    complete: Nanos,
}

/// A reception FIFO: packets of the network that wait for the device.
#[derive(Debug)]
pub(crate) struct ReceptionFifo<K = Packet> {
    spec: FifoSpec,
    packets: VecDeque<Received<K>>,
    /// Bytes of these packets.
    bytes: u32,
    /// Packets that have passed in this step without a stay here. They use places until its end.
    bypassed: Row,
    /// Input that was served last.
    pub(super) last: u8,
    pub(super) level: Level,
}

impl<K: RoutedPacket> ReceptionFifo<K> {
    pub(crate) fn new(spec: FifoSpec) -> Self {
        let packets = VecDeque::with_capacity(spec.packets.into());
        Self { spec, packets, bytes: 0, bypassed: Row::default(), last: 0, level: Level::default() }
    }

    /// Returns the number of packets that use places.
    #[inline]
    fn used(&self) -> usize {
        self.packets.len() + self.bypassed.packets as usize
    }

    /// Records packets of an input that pass.
    #[inline]
    pub(super) fn count_bypassed(&mut self, input: u8, row: Row) {
        self.bypassed.packets += row.packets;
        self.bypassed.bytes += row.bytes;
        self.bytes += row.bytes as u32;
        self.last = input;
    }

    /// Takes back the record of a packet that has not passed.
    pub(super) fn remove_bypassed(&mut self, bytes: u32) {
        self.bypassed.packets -= 1;
        self.bypassed.bytes -= u64::from(bytes);
        self.bytes -= bytes;
    }

    /// Frees the places of the packets that have passed.
    #[inline]
    pub(super) fn end_bypass(&mut self) {
        self.bytes -= self.bypassed.bytes as u32;
        self.bypassed = Row::default();
    }

    /// Returns whether there is room for a packet of `bytes` bytes with its framing.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u32) -> bool {
        self.used() < usize::from(self.spec.packets) && bytes <= self.spec.bytes - self.bytes
    }

    /// Returns the room for further packets.
    #[inline]
    pub(super) fn room(&self) -> FifoRoom {
        let packets = usize::from(self.spec.packets) - self.used();
        FifoRoom { bytes: self.spec.bytes - self.bytes, packets: packets as u32 }
    }

    /// Adds a packet that has room, and is there as a whole. The caller must call
    /// [`ReceptionFifo::end_row`] after the last one.
    #[inline(always)]
    pub(super) fn add(&mut self, packet: K, now: Nanos) {
        self.bytes += packet.wire_bytes();
        self.packets.push_back(Received { packet, complete: now });
    }

    /// Records the input of the packets added last.
    #[inline]
    pub(super) fn end_row(&mut self, input: u8, now: Nanos) {
        self.last = input;
        self.note_level(now);
    }

    /// Removes the first packet. The caller must call [`ReceptionFifo::note_level`] after the last
    /// one.
    #[inline(always)]
    pub(super) fn remove(&mut self) -> Option<K> {
        let packet = self.packets.pop_front()?.packet;
        self.bytes -= packet.wire_bytes();
        Some(packet)
    }

    /// Records the number of packets.
    #[inline]
    pub(super) fn note_level(&mut self, now: Nanos) {
        self.level.set(self.packets.len() as u64, now);
    }

    /// Adds a packet that has room. Its tail is there at `complete`.
    #[inline]
    pub(crate) fn push(&mut self, packet: K, complete: Nanos, now: Nanos) {
        self.bytes += packet.wire_bytes();
        self.packets.push_back(Received { packet, complete });
        self.level.set(self.packets.len() as u64, now);
    }

    /// Returns the first packet, and the time at which its tail is there.
    #[inline]
    pub(crate) fn front(&self) -> Option<(&K, Nanos)> {
        self.packets.front().map(|received| (&received.packet, received.complete))
    }

    /// Takes the first packet if its tail is there.
    #[inline]
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<K> {
        if self.packets.front()?.complete > now {
            return None;
        }
        self.pop_any(now)
    }

    /// Takes the first packet.
    pub(crate) fn pop_any(&mut self, now: Nanos) -> Option<K> {
        let packet = self.packets.pop_front()?.packet;
        self.bytes -= packet.wire_bytes();
        self.level.set(self.packets.len() as u64, now);
        Some(packet)
    }
}
