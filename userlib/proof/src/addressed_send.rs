//! Driver of *addressed send*, which carries messages to the other clients of a card.

use std::sync::atomic::{Ordering, fence};

use nicforge_driver::{Bar, Cancel, Deadline, Device, Doorbell, Error, Interrupt, Poster};
use nicforge_hwi::{pci, proof::addressed_send::*};
use nicforge_shm::{SharedU64, Window};

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The attachment that sent the message, as identified by the card.
    pub source: u16,
    /// The tag that the sender gave.
    pub tag: u16,
    length: usize,
    data: [u8; MAX_MESSAGE],
}

impl Message {
    /// Returns the message's data.
    pub fn data(&self) -> &[u8] {
        &self.data[..self.length]
    }
}

/// Returns the offset in BAR 5 at which a store sends its data to attachment `target`, with `tag`.
///
/// # Errors
/// Returns [`Error::NoSuch`] for a target or a tag that does not exist.
pub fn address(target: u16, tag: u16) -> Result<u64, Error> {
    if target >= ATTACHMENTS {
        return Err(Error::NoSuch { what: "attachment", index: target.into(), count: ATTACHMENTS.into() });
    }

    if u64::from(tag) >= TAGS {
        return Err(Error::NoSuch { what: "tag", index: tag.into(), count: TAGS as u32 });
    }

    Ok((u64::from(target) << SEND_TARGET_SHIFT) | (u64::from(tag) << SEND_TAG_SHIFT))
}

/// Checks that a message has 1 to [`MAX_MESSAGE`] bytes.
fn check_length(data: &[u8]) -> Result<(), Error> {
    match data.len() {
        1..=MAX_MESSAGE => Ok(()),
        len => Err(Error::BadLength { len, most: MAX_MESSAGE }),
    }
}

/// One client's side of the card.
#[derive(Debug)]
pub struct AddressedSend {
    device: Device,
    registers: Bar,
    poster: Poster,
    doorbell: Doorbell,
    mailbox: Window,
    /// The word in which the card reads the number of messages taken.
    head_word: SharedU64,
    /// Number of messages taken.
    received: u64,
}

impl AddressedSend {
    /// Drives `device`, which the caller has just opened or reset.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] when `device` has another type, [`Error::RingTaken`], and the
    /// errors of mapping its memory.
    pub fn open(device: &Device) -> Result<Self, Error> {
        crate::check_identity(
            device,
            pci::DEVICE_ADDRESSED_SEND,
            "driving another device as addressed send",
        )?;

        Ok(Self {
            registers: device.bar(0)?,
            poster: device.poster(0)?,
            doorbell: device.doorbell(),
            mailbox: device.bar(2)?.window(MIRROR_MAILBOX, SLOTS * SLOT)?,
            head_word: device.bar(1)?.window(WIN_HEAD, 8)?.u64(0)?,
            received: 0,
            device: device.clone(),
        })
    }

    /// Sends 1 to [`MAX_MESSAGE`] bytes. The call returns when the message is posted. The message
    /// arrives when `target` has a credit for it. Messages that are sent later arrive later.
    ///
    /// # Errors
    /// Returns [`Error::NoSuch`] or [`Error::BadLength`]. It returns the errors of [`Poster::post`]
    /// when the ring is full of messages that wait for credits.
    pub fn send(&mut self, target: u16, tag: u16, data: &[u8]) -> Result<(), Error> {
        let address = address(target, tag)?;
        check_length(data)?;
        self.poster.post(SEND_BAR, address, data)
    }

    /// Sends a message as [`AddressedSend::send`] does, but does not wait for room in the ring.
    ///
    /// # Errors
    /// Returns [`Error::RingFull`] when the ring has no room, and otherwise the errors of
    /// [`AddressedSend::send`].
    pub fn try_send(&mut self, target: u16, tag: u16, data: &[u8]) -> Result<(), Error> {
        let address = address(target, tag)?;
        check_length(data)?;
        self.poster.try_post(SEND_BAR, address, data)
    }

    /// Takes the next message, if there is one. After a `None`, the next message raises the
    /// interrupt.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    pub fn try_receive(&mut self) -> Result<Option<Message>, Error> {
        // A slot is full when its sequence word has the number of its next message, from 1 on.
        let slot = self.mailbox.window(self.received % SLOTS * SLOT, SLOT)?;
        if slot.load_u64_acquire(0)? != self.received + 1 {
            // The card raises no interrupt for a message while earlier slots are not returned.
            // After the fence either the card sees that they were returned, or the second check
            // sees the message.
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
        // The new head is the credit for the next sender. Release: the slot may be overwritten from
        // here on.
        self.head_word.store(self.received, Ordering::Release);
        self.doorbell.after_store()?;

        Ok(Some(message))
    }

    /// Takes a message as [`AddressedSend::try_receive`] does, and waits for one.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    pub fn receive(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Message, Error> {
        let device = self.device.clone();
        device.wait_for(deadline, cancel, "a message", || self.try_receive())
    }

    /// Binds the interrupt for messages that arrive when all earlier ones were taken. Wait for it
    /// after [`AddressedSend::try_receive`] has returned `None`. It may also come for a message
    /// that was taken already.
    ///
    /// # Errors
    /// Returns the errors of [`Device::interrupt`].
    pub fn receive_interrupt(&self) -> Result<Interrupt, Error> {
        self.device.interrupt(VECTOR_RECEIVE.into())
    }

    /// Returns how many of this client's sends had to wait for credits, and how many were refused.
    ///
    /// # Errors
    /// Returns the errors of trapped reads, which wait for a blocked send.
    pub fn stalls_and_refusals(&self) -> Result<(u64, u64), Error> {
        Ok((self.registers.read64(REG_STALLS)?, self.registers.read64(REG_BAD)?))
    }

    /// Returns whether a client holds attachment `target`.
    ///
    /// # Errors
    /// Returns the errors of a trapped read.
    pub fn is_present(&self, target: u16) -> Result<bool, Error> {
        Ok(target < ATTACHMENTS && self.registers.read32(REG_PRESENT)? >> target & 1 != 0)
    }
}
