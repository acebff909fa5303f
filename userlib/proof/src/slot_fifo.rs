//! Driver of the *slot FIFO*, a device that returns every message to its sender.

use std::sync::atomic::{Ordering, fence};

use nicforge_driver::{Bar, Cancel, Deadline, Device, Doorbell, Error, Interrupt};
use nicforge_hwi::{pci, proof::slot_fifo::*};
use nicforge_shm::{SharedU64, Window};

/// A message.
pub type Message = [u8; DATA];

/// The FIFO. Sending and receiving need `&mut`, because each side has one count that one thread
/// keeps.
#[derive(Debug)]
pub struct SlotFifo {
    device: Device,
    registers: Bar,
    doorbell: Doorbell,
    send: Window,
    receive: Window,
    /// The device's count of messages taken out of the send slots.
    taken: SharedU64,
    /// The word in which the device reads `received`.
    head_word: SharedU64,
    /// Number of messages sent through the slots.
    sent: u64,
    /// Number of messages taken out of the receive slots.
    received: u64,
}

impl SlotFifo {
    /// Drives `device`, which the caller has just opened or reset.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] when `device` has another type, and the errors of mapping its
    /// memory.
    pub fn open(device: &Device) -> Result<Self, Error> {
        crate::check_identity(device, pci::DEVICE_SLOT_FIFO, "driving another device as a slot FIFO")?;

        let (windows, mirror) = (device.bar(1)?, device.bar(2)?);

        Ok(Self {
            registers: device.bar(0)?,
            doorbell: device.doorbell(),
            send: windows.window(WIN_SEND, SLOTS * SLOT)?,
            receive: mirror.window(MIRROR_RECEIVE, SLOTS * SLOT)?,
            taken: mirror.window(MIRROR_TAKEN, 8)?.u64(0)?,
            head_word: windows.window(WIN_HEAD, 8)?.u64(0)?,
            sent: 0,
            received: 0,
            device: device.clone(),
        })
    }

    /// Sends a message if there is a free slot, and returns whether there was. It makes no trapped
    /// access and no system call, unless the device sleeps.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    pub fn try_send(&mut self, message: &Message) -> Result<bool, Error> {
        // Acquire: once the count that frees the slot is seen, the slot is free.
        if self.sent - self.taken.load(Ordering::Acquire).min(self.sent) >= SLOTS {
            return Ok(false);
        }

        let slot = self.sent % SLOTS * SLOT;
        self.send.write_array(slot + 8, message)?;

        // The sequence word makes the slot valid. Release: a reader of the word sees the data.
        self.send.store_u64_release(slot, self.sent + 1)?;

        self.sent += 1;
        self.doorbell.after_store()?;
        Ok(true)
    }

    /// Sends a message as [`SlotFifo::try_send`] does, and waits for a free slot.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`]. The message was
    /// not sent.
    pub fn send(
        &mut self,
        message: &Message,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let device = self.device.clone();
        device.wait_for(deadline, cancel, "a free send slot", || Ok(self.try_send(message)?.then_some(())))
    }

    /// Returns the next message, if there is one, and leaves it in its slot.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] only for a device whose memory is too small.
    pub fn peek(&self) -> Result<Option<Message>, Error> {
        // A slot is full when its sequence word has the number of its next message, from 1 on.
        let slot = self.received % SLOTS * SLOT;
        if self.receive.load_u64_acquire(slot)? != self.received + 1 {
            return Ok(None);
        }

        let mut message = [0; DATA];
        self.receive.read_array(slot + 8, &mut message)?;
        Ok(Some(message))
    }

    /// Takes the next message, if there is one, and returns its slot. After a `None`, the next
    /// message raises the interrupt.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    pub fn try_receive(&mut self) -> Result<Option<Message>, Error> {
        let mut message = self.peek()?;
        if message.is_none() {
            // The device raises no interrupt for a message while earlier slots are not returned.
            // After the fence either the device sees that they were returned, or this second check
            // sees the message.
            fence(Ordering::SeqCst);
            message = self.peek()?;
        }
        let Some(message) = message else { return Ok(None) };

        self.received += 1;
        // Release: the device may overwrite the slot from here on.
        self.head_word.store(self.received, Ordering::Release);
        self.doorbell.after_store()?;
        Ok(Some(message))
    }

    /// Takes a message as [`SlotFifo::try_receive`] does, and waits for one.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    pub fn receive(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Message, Error> {
        let device = self.device.clone();
        device.wait_for(deadline, cancel, "a message", || self.try_receive())
    }

    /// Binds the interrupt for messages that arrive when all earlier ones were taken. Wait for it
    /// after [`SlotFifo::try_receive`] has returned `None`. It may also come for a message that was
    /// taken already.
    ///
    /// # Errors
    /// Returns the errors of [`Device::interrupt`].
    pub fn receive_interrupt(&self) -> Result<Interrupt, Error> {
        self.device.interrupt(VECTOR_RECEIVE.into())
    }

    /// Keeps messages in the device's queue while `on`, and releases them otherwise.
    ///
    /// # Errors
    /// Returns the errors of a trapped write.
    pub fn hold(&self, on: bool) -> Result<(), Error> {
        self.registers.write32(REG_HOLD, on.into())
    }

    /// Returns the number of messages in the device's queue.
    ///
    /// # Errors
    /// Returns the errors of a trapped read.
    pub fn fill(&self) -> Result<u32, Error> {
        self.registers.read32(REG_FILL)
    }

    /// Pushes 8 bytes through the port. Seven pushes make a message.
    ///
    /// # Errors
    /// Returns the errors of a trapped write. [`SlotFifo::errors`] reports a full queue.
    pub fn push_word(&self, word: u64) -> Result<(), Error> {
        self.registers.write64(REG_PORT, word)
    }

    /// Pops 8 bytes of the first message in the queue, which must be held for that.
    ///
    /// # Errors
    /// Returns the errors of a trapped read. [`SlotFifo::errors`] reports an empty queue.
    pub fn pop_word(&self) -> Result<u64, Error> {
        self.registers.read64(REG_PORT)
    }

    /// Returns the error bits and clears them.
    ///
    /// # Errors
    /// Returns the errors of trapped accesses.
    pub fn errors(&self) -> Result<u32, Error> {
        let errors = self.registers.read32(REG_ERROR)?;
        self.registers.write32(REG_ERROR, errors)?;
        Ok(errors)
    }
}
