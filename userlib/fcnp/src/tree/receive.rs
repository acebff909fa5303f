//! The receive FIFO.

use std::sync::atomic::Ordering;

use nicforge_driver::Doorbell;
use nicforge_hwi::tree::{Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window};
use nicforge_shm::{SharedU32, Window};

use crate::Error;

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
        let mut packets = 0;
        let (full, rest) = out.as_chunks_mut::<PAYLOAD>();
        for target in full {
            match self.peek()? {
                Some(header) if !header.irq() => self.payload(target)?,
                found => return Ok(Taken { packets, control: found.is_some() }),
            }
            self.advance();
            packets += 1;
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
}

impl<G> Drop for Receiver<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.publish();
    }
}
