//! Driver of *addressed send*: messages to the other clients of a card.

use std::sync::atomic::{Ordering, fence};

use nicforge_driver::{Bar, Cancel, Deadline, Device, Doorbell, Error, Interrupt, Poster};
use nicforge_hwi::{pci, proof::addressed_send::*};
use nicforge_shm::{SharedU64, Window};

/// A message that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The attachment that sent it, as the card knows it.
    pub source: u16,
    /// The tag it was sent with.
    pub tag: u16,
    length: usize,
    data: [u8; MAX_MESSAGE],
}

impl Message {
    /// What was sent.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.length]
    }
}

/// Where a store has to go to reach `tag` of `target`.
///
/// # Errors
/// [`Error::NoSuch`] for a target or a tag that does not exist.
pub fn address(target: u16, tag: u16) -> Result<u64, Error> {
    if target >= ATTACHMENTS {
        return Err(Error::NoSuch { what: "attachment", index: target.into(), count: ATTACHMENTS.into() });
    }
    if u64::from(tag) >= TAGS {
        return Err(Error::NoSuch { what: "tag", index: tag.into(), count: TAGS as u32 });
    }
    Ok((u64::from(target) << SEND_TARGET_SHIFT) | (u64::from(tag) << SEND_TAG_SHIFT))
}

/// One client's end of the card.
#[derive(Debug)]
pub struct AddressedSend {
    device: Device,
    registers: Bar,
    poster: Poster,
    doorbell: Doorbell,
    mailbox: Window,
    head: SharedU64,
    received: u64,
}

impl AddressedSend {
    /// Drives `device`, which was opened, or reset, just before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it is another device; [`Error::RingTaken`]; what mapping its memory says.
    pub fn open(device: &Device) -> Result<Self, Error> {
        crate::check(device, pci::DEVICE_ADDRESSED_SEND, "driving another device as addressed send")?;
        Ok(Self {
            registers: device.bar(0)?,
            poster: device.poster(0)?,
            doorbell: device.doorbell(),
            mailbox: device.bar(2)?.window(MIRROR_MAILBOX, SLOTS * SLOT)?,
            head: device.bar(1)?.window(WIN_HEAD, 8)?.u64(0)?,
            received: 0,
            device: device.clone(),
        })
    }

    /// Sends 1 to [`MAX_MESSAGE`] bytes. Returns when the message is posted; it arrives when `target` has a credit for it,
    /// and everything that is sent later arrives later.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::BadLength`]; those of [`Poster::post`] when so much waits for credits that the ring is
    /// full.
    pub fn send(&mut self, target: u16, tag: u16, data: &[u8]) -> Result<(), Error> {
        let address = address(target, tag)?;
        if data.is_empty() || data.len() > MAX_MESSAGE {
            return Err(Error::BadLength { len: data.len(), most: MAX_MESSAGE });
        }
        self.poster.post(SEND_BAR, address, data)
    }

    /// As [`AddressedSend::send`], without waiting for room in the ring.
    ///
    /// # Errors
    /// [`Error::RingFull`]; otherwise as [`AddressedSend::send`].
    pub fn try_send(&mut self, target: u16, tag: u16, data: &[u8]) -> Result<(), Error> {
        self.poster.try_post(SEND_BAR, address(target, tag)?, data)
    }

    /// The next message, if there is one. After a `None` the next message raises the interrupt.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    pub fn try_receive(&mut self) -> Result<Option<Message>, Error> {
        let slot = self.mailbox.window(self.received % SLOTS * SLOT, SLOT)?;
        if slot.load_u64_acquire(0)? != self.received + 1 {
            // The card has to see that the slots before were given back, or the second look what it has put into this one.
            fence(Ordering::SeqCst);
            if slot.load_u64_acquire(0)? != self.received + 1 {
                return Ok(None);
            }
        }
        let mut message = Message {
            source: slot.load_u16_relaxed(SLOT_SOURCE)?,
            tag: slot.load_u16_relaxed(SLOT_TAG)?,
            length: (slot.load_u32_relaxed(SLOT_LENGTH)? as usize).min(MAX_MESSAGE),
            data: [0; MAX_MESSAGE],
        };
        slot.read_array(SLOT_DATA, &mut message.data)?;
        self.received += 1;
        // This is the credit for the next sender. Release: the slot may be overwritten from here on.
        self.head.store(self.received, Ordering::Release);
        self.doorbell.after_store()?;
        Ok(Some(message))
    }

    /// As [`AddressedSend::try_receive`], and waits for a message.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    pub fn receive(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Message, Error> {
        let device = self.device.clone();
        device.wait_for(deadline, cancel, "a message", || self.try_receive())
    }

    /// The interrupt for messages that arrive when all before were taken. Wait for it after [`AddressedSend::try_receive`] has found nothing; it
    /// may also come for a message that was taken already.
    ///
    /// # Errors
    /// As [`Device::interrupt`].
    pub fn receive_interrupt(&self) -> Result<Interrupt, Error> {
        self.device.interrupt(VECTOR_RECEIVE.into())
    }

    /// {sends of ours that had to wait for credits, sends of ours that were refused}.
    ///
    /// # Errors
    /// Those of trapped reads: while a send waits, they wait behind it.
    pub fn stalls_and_refusals(&self) -> Result<(u64, u64), Error> {
        Ok((self.registers.read64(REG_STALLS)?, self.registers.read64(REG_BAD)?))
    }

    /// Whether somebody has attachment `target`.
    ///
    /// # Errors
    /// Those of a trapped read.
    pub fn is_present(&self, target: u16) -> Result<bool, Error> {
        Ok(target < ATTACHMENTS && self.registers.read32(REG_PRESENT)? >> target & 1 != 0)
    }
}
