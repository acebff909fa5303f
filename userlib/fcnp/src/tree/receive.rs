//! The receive FIFO.

use std::sync::atomic::Ordering;

use nicforge_driver::{
    Doorbell,
    runtime::{Cost, burst, charge},
};
use nicforge_hwi::tree::{Header, PAYLOAD, mirror, window};
use nicforge_shm::{SharedU32, Window};

use super::PacketSlots;
use crate::Error;

/// The irq bit of a header. It is clear in data packets.
const IRQ: u32 = Header::point_to_point(0, 0, true).0 ^ Header::point_to_point(0, 0, false).0;

/// Maximum number of packets after which the head is published.
const MAX_BATCH: u32 = 8;

/// The words and slots of a receive FIFO.
#[derive(Debug)]
pub(super) struct ReceivePort {
    slots: PacketSlots,
    head: SharedU32,
    tail: SharedU32,
    /// Number of packets after which the head is published: at most half of the FIFO, so that the
    /// NIC fills one half while the other is read.
    batch: u32,
}

impl ReceivePort {
    /// Opens a receive FIFO of `depth` slots.
    pub(super) fn new(windows: &Window, mirrors: &Window, depth: u32) -> Result<Self, Error> {
        Ok(Self {
            slots: PacketSlots::new(mirrors, mirror::RECV, depth)?,
            head: windows.u32(window::RECV_HEAD)?,
            tail: mirrors.u32(mirror::RECV_TAIL)?,
            batch: (depth / 2).clamp(1, MAX_BATCH),
        })
    }

    /// Frees the slots from packet `from` up to packet `to`.
    ///
    /// It does nothing if the head has changed, because the device was then reset: the NIC has
    /// freed the lock and discarded these packets. An older head would be invalid to the NIC, and
    /// the node's FIFO would stop.
    #[inline]
    fn free(&self, from: u32, to: u32, doorbell: &Doorbell) {
        let _ = self.head.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
        // A lost device is detected in the next turn of a waiting loop.
        let _ = doorbell.after_store();
    }

    /// Returns the number of packets that the NIC has put into the slots, modulo 2^32.
    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }
}

/// The result of [`Receiver::take_data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Number of packets taken.
    pub packets: usize,
    /// Whether an irq-marked packet ended the data.
    pub control: bool,
}

/// Receives packets under the receive lock. It frees slots every few packets, and when it is
/// dropped.
#[derive(Debug)]
pub struct Receiver<'a, G> {
    port: &'a ReceivePort,
    doorbell: &'a Doorbell,
    /// Number of the first packet in the FIFO.
    head: u32,
    /// The head that the NIC knows: the slots before it are free.
    published: u32,
    /// The last field, so that the lock is freed after the slots.
    held: G,
}

impl<'a, G> Receiver<'a, G> {
    /// Begins at the first packet in the FIFO. `guard` is the receive lock.
    pub(super) fn begin(port: &'a ReceivePort, doorbell: &'a Doorbell, guard: G) -> Self {
        let head = port.head.load(Ordering::Acquire);
        Self { port, doorbell, head, published: head, held: guard }
    }

    /// Returns the holder of the lock.
    #[inline]
    pub fn held(&mut self) -> &mut G {
        &mut self.held
    }

    /// Returns the number of the first packet in the FIFO, or of the next one to come, modulo 2^32.
    #[inline]
    pub fn position(&self) -> u32 {
        self.head
    }

    /// Returns the header of the first packet, if there is one.
    #[inline]
    pub fn peek(&self) -> Option<Header> {
        self.port.slots.holds(self.head).map(|control| Header((control >> 32) as u32))
    }

    /// Copies the payload of the first packet, which [`Receiver::peek`] has returned.
    #[inline]
    pub fn payload(&self, out: &mut [u8; PAYLOAD]) {
        charge(Cost::ReceivePacket, 1);
        self.port.slots.payload(self.head, out);
    }

    /// Skips to the next packet.
    #[inline]
    pub fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        if self.head.wrapping_sub(self.published) >= self.port.batch {
            self.publish();
        }
    }

    /// Frees the slots of the packets passed so far.
    #[inline]
    pub fn publish(&mut self) {
        if self.head != self.published {
            self.port.free(self.published, self.head, self.doorbell);
            self.published = self.head;
        }
    }

    /// Takes packets without the irq bit, and copies their payloads one after the other into `out`.
    /// It stops when `out` is full or no such packet is first. A last packet that is longer than
    /// the rest of `out` is cut.
    #[inline]
    pub fn take_data(&mut self, out: &mut [u8]) -> Taken {
        let (full, rest) = out.as_chunks_mut::<PAYLOAD>();
        let (port, mut packets) = (self.port, 0);
        // Local copies, which the compiler can keep in registers.
        let (mut head, mut published) = (self.head, self.published);

        while packets < full.len() {
            // A run ends where slots are freed.
            let available = (port.batch - head.wrapping_sub(published)) as usize;
            let end = full.len().min(packets + burst(available));
            let Some(run) = full.get_mut(packets..end) else { break };
            let count = port.slots.take_run(head, IRQ, run);
            charge(Cost::ReceivePacket, count);

            head = head.wrapping_add(count as u32);
            packets += count;
            self.head = head;

            if head.wrapping_sub(published) >= port.batch {
                port.free(published, head, self.doorbell);
                published = head;
                self.published = head;
            }

            if count == 0 {
                return Taken { packets, control: self.peek().is_some_and(Header::irq) };
            }
        }

        if !rest.is_empty() {
            match self.peek() {
                Some(header) if !header.irq() => {
                    self.port.slots.payload_start(self.head, rest);
                    charge(Cost::ReceivePacket, 1);
                }
                found => return Taken { packets, control: found.is_some() },
            }
            self.advance();
            packets += 1;
        }
        Taken { packets, control: false }
    }
}

impl<G> Drop for Receiver<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.publish();
    }
}
