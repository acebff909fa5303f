//! The receive FIFO.

use std::sync::atomic::Ordering;

use nicforge_driver::Doorbell;
use nicforge_hwi::tree::{Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window};
use nicforge_shm::{SharedU32, Window};

use crate::Error;

/// Of a slot's control word: the packet's number, and the irq bit, which is clear in data packets.
const DATA_MASK: u64 = 0xffff_ffff | (IRQ as u64) << 32;
/// The irq bit of a header.
const IRQ: u32 = Header::point_to_point(0, 0, true).0 ^ Header::point_to_point(0, 0, false).0;

/// The words and slots of a receive FIFO.
#[derive(Debug)]
pub(super) struct ReceivePort {
    slots: Window,
    head: SharedU32,
    tail: SharedU32,
    depth: u32,
    /// Packets after which the head is published: half of the FIFO, so that the NIC fills one half while the other is read.
    batch: u32,
}

impl ReceivePort {
    pub(super) fn new(windows: &Window, mirrors: &Window, depth: u32) -> Result<Self, Error> {
        Ok(Self {
            slots: mirrors.window(mirror::RECV, u64::from(depth) * SLOT)?,
            head: windows.u32(window::RECV_HEAD)?,
            tail: mirrors.u32(mirror::RECV_TAIL)?,
            depth,
            batch: (depth / 2).clamp(1, 8),
        })
    }

    #[inline]
    pub(super) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire)
    }
}

/// What [`Receiver::take_data`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Packets taken.
    pub packets: usize,
    /// Whether it stopped in front of an irq-marked packet.
    pub control: bool,
}

/// Packets being received under the receive lock. Slots are freed every few packets, and when this is dropped.
#[derive(Debug)]
pub struct Receiver<'a, G> {
    port: &'a ReceivePort,
    doorbell: &'a Doorbell,
    /// Number of the first packet in the FIFO.
    head: u32,
    /// Its slot.
    index: u32,
    published: u32,
    /// Last, so that the lock is given back after all.
    held: G,
}

impl<'a, G> Receiver<'a, G> {
    pub(super) fn begin(port: &'a ReceivePort, doorbell: &'a Doorbell, held: G) -> Self {
        let head = port.head.load(Ordering::Acquire);
        Self { port, doorbell, head, index: head % port.depth, published: head, held }
    }

    /// What holds the lock.
    #[inline]
    pub fn held(&mut self) -> &mut G {
        &mut self.held
    }

    /// Number of the first packet in the FIFO, or of the next to come, modulo 2^32.
    #[inline]
    pub fn position(&self) -> u32 {
        self.head
    }

    /// Header of the first packet, if there is one.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline]
    pub fn peek(&self) -> Result<Option<Header>, Error> {
        let control = self.port.slots.load_u64_acquire(u64::from(self.index) * SLOT + SLOT_CONTROL)?;
        if control as u32 == self.head.wrapping_add(1) {
            Ok(Some(Header((control >> 32) as u32)))
        } else {
            Ok(None)
        }
    }

    /// Copies the payload of the first packet, which [`Receiver::peek`] has shown.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline]
    pub fn payload(&self, out: &mut [u8; PAYLOAD]) -> Result<(), Error> {
        Ok(self.port.slots.read_array(u64::from(self.index) * SLOT + SLOT_PAYLOAD, out)?)
    }

    /// Goes on to the next packet.
    #[inline]
    pub fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.index += 1;
        if self.index == self.port.depth || self.head == 0 {
            self.index = self.head % self.port.depth;
        }
        if self.head.wrapping_sub(self.published) >= self.port.batch {
            self.publish();
        }
    }

    /// Frees the slots of the packets passed so far.
    #[inline]
    pub fn publish(&mut self) {
        if self.head != self.published {
            self.published = self.head;
            self.port.head.store(self.head, Ordering::Release);
            // A lost device shows at the next turn of a waiting loop.
            let _ = self.doorbell.after_store();
        }
    }

    /// Takes packets without the irq bit as long as there are any, at most as many as `out` has room for (the last may fill
    /// it partly), and copies their payloads one after the other straight to `out`.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline]
    pub fn take_data(&mut self, out: &mut [u8]) -> Result<Taken, Error> {
        let (full, rest) = out.as_chunks_mut::<PAYLOAD>();
        let mut packets = 0;
        while packets < full.len() {
            let unpublished = self.head.wrapping_sub(self.published);
            // As far as slots and packet numbers run on without a break, and no farther than to where slots are freed.
            let run =
                (self.port.depth - self.index).min(self.port.batch - unpublished).min(u32::MAX - self.head);
            // At least one: at the break of the numbers a packet is taken alone.
            let end = full.len().min(packets + run.max(1) as usize);
            packets += if run == 0 {
                self.take_one(&mut full[packets])?
            } else {
                self.take_run(&mut full[packets..end])?
            };
            if packets < end {
                return Ok(Taken { packets, control: self.peek()?.is_some_and(Header::irq) });
            }
        }
        if !rest.is_empty() {
            match self.peek()? {
                Some(header) if !header.irq() => {
                    self.port.slots.read(u64::from(self.index) * SLOT + SLOT_PAYLOAD, rest)?;
                }
                found => return Ok(Taken { packets, control: found.is_some() }),
            }
            self.advance();
            packets += 1;
        }
        Ok(Taken { packets, control: false })
    }

    /// Takes one data packet, if it is the first.
    fn take_one(&mut self, target: &mut [u8; PAYLOAD]) -> Result<usize, Error> {
        if self.peek()?.is_none_or(Header::irq) {
            return Ok(0);
        }
        self.payload(target)?;
        self.advance();
        Ok(1)
    }

    /// Takes data packets from slots that lie one after the other until one is empty or has the irq bit. The loop is what a
    /// data packet costs: one comparison says that the packet is there and is data.
    #[inline]
    fn take_run(&mut self, targets: &mut [[u8; PAYLOAD]]) -> Result<usize, Error> {
        let slots = &self.port.slots;
        let mut slot = u64::from(self.index) * SLOT;
        let mut expected = u64::from(self.head);
        let mut taken = 0;
        for target in targets {
            expected += 1;
            if slots.load_u64_acquire(slot + SLOT_CONTROL)? & DATA_MASK != expected {
                break;
            }
            slots.read_array(slot + SLOT_PAYLOAD, target)?;
            slot += SLOT;
            taken += 1;
        }
        self.head = self.head.wrapping_add(taken);
        self.index = self.head % self.port.depth;
        if self.head.wrapping_sub(self.published) >= self.port.batch {
            self.publish();
        }
        Ok(taken as usize)
    }
}

impl<G> Drop for Receiver<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.publish();
    }
}
