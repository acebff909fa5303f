//! Driver of the *slot FIFO*: what is sent comes back.

use std::sync::atomic::{Ordering, fence};

use nicforge_driver::{Bar, Cancel, Deadline, Device, Doorbell, Error, Interrupt};
use nicforge_hwi::{pci, proof::slot_fifo::*};
use nicforge_shm::{SharedU64, Window};

/// A message.
pub type Message = [u8; DATA];

/// The FIFO. Sending and receiving need `&mut`: each side has one count, and one thread that keeps it.
#[derive(Debug)]
pub struct SlotFifo {
    device: Device,
    registers: Bar,
    doorbell: Doorbell,
    send: Window,
    receive: Window,
    /// What the device says it has taken out of the send slots.
    taken: SharedU64,
    /// What we say we have taken out of the receive slots.
    head: SharedU64,
    sent: u64,
    received: u64,
}

impl SlotFifo {
    /// Drives `device`, which was opened, or reset, just before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it is another device; what mapping its memory says.
    pub fn open(device: &Device) -> Result<Self, Error> {
        crate::check(device, pci::DEVICE_SLOT_FIFO, "driving another device as a slot FIFO")?;
        let (windows, mirror) = (device.bar(1)?, device.bar(2)?);
        Ok(Self {
            registers: device.bar(0)?,
            doorbell: device.doorbell(),
            send: windows.window(WIN_SEND, SLOTS * SLOT)?,
            receive: mirror.window(MIRROR_RECEIVE, SLOTS * SLOT)?,
            taken: mirror.window(MIRROR_TAKEN, 8)?.u64(0)?,
            head: windows.window(WIN_HEAD, 8)?.u64(0)?,
            sent: 0,
            received: 0,
            device: device.clone(),
        })
    }

    /// Sends a message if there is a free slot. No trap, no system call, unless the device sleeps.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    pub fn try_send(&mut self, message: &Message) -> Result<bool, Error> {
        // Acquire: the slot is free when the count that frees it is seen.
        if self.sent - self.taken.load(Ordering::Acquire).min(self.sent) >= SLOTS {
            return Ok(false);
        }
        let slot = self.sent % SLOTS * SLOT;
        self.send.write_array(slot + 8, message)?;
        // The sequence word makes the slot valid. Release: whoever sees it sees the data.
        self.send.store_u64_release(slot, self.sent + 1)?;
        self.sent += 1;
        self.doorbell.after_store()?;
        Ok(true)
    }

    /// As [`SlotFifo::try_send`], and waits for a free slot.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`]; the message was not sent.
    pub fn send(
        &mut self,
        message: &Message,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        let device = self.device.clone();
        device.wait_for(deadline, cancel, "a free send slot", || Ok(self.try_send(message)?.then_some(())))
    }

    /// The next message, if there is one, left in its slot.
    ///
    /// # Errors
    /// [`Error::Memory`] never, for a device of the right shape.
    pub fn peek(&self) -> Result<Option<Message>, Error> {
        let slot = self.received % SLOTS * SLOT;
        if self.receive.load_u64_acquire(slot)? != self.received + 1 {
            return Ok(None);
        }
        let mut message = [0; DATA];
        self.receive.read_array(slot + 8, &mut message)?;
        Ok(Some(message))
    }

    /// Takes the next message, if there is one, and gives its slot back. After a `None` the next message raises the interrupt.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    pub fn try_receive(&mut self) -> Result<Option<Message>, Error> {
        let mut message = self.peek()?;
        if message.is_none() {
            // The device has to see that the slots before were given back, or this look what it has put into the next one.
            fence(Ordering::SeqCst);
            message = self.peek()?;
        }
        let Some(message) = message else { return Ok(None) };
        self.received += 1;
        // Release: the device may overwrite the slot from here on.
        self.head.store(self.received, Ordering::Release);
        self.doorbell.after_store()?;
        Ok(Some(message))
    }

    /// As [`SlotFifo::try_receive`], and waits for a message.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    pub fn receive(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Message, Error> {
        let device = self.device.clone();
        device.wait_for(deadline, cancel, "a message", || self.try_receive())
    }

    /// The interrupt for messages that arrive when all before were taken. Wait for it after [`SlotFifo::try_receive`] has found nothing; it may
    /// also come for a message that was taken already.
    ///
    /// # Errors
    /// As [`Device::interrupt`].
    pub fn receive_interrupt(&self) -> Result<Interrupt, Error> {
        self.device.interrupt(VECTOR_RECEIVE.into())
    }

    /// Keeps messages in the device's queue, or lets them go again.
    ///
    /// # Errors
    /// Those of a trapped write.
    pub fn hold(&self, on: bool) -> Result<(), Error> {
        self.registers.write32(REG_HOLD, on.into())
    }

    /// Messages waiting in the device's queue.
    ///
    /// # Errors
    /// Those of a trapped read.
    pub fn fill(&self) -> Result<u32, Error> {
        self.registers.read32(REG_FILL)
    }

    /// Pushes 8 bytes through the port. The seventh push makes a message.
    ///
    /// # Errors
    /// Those of a trapped write. A full queue shows in [`SlotFifo::errors`].
    pub fn push_word(&self, word: u64) -> Result<(), Error> {
        self.registers.write64(REG_PORT, word)
    }

    /// Pops 8 bytes of the message at the head of the queue, which has to be held for that.
    ///
    /// # Errors
    /// Those of a trapped read. An empty queue shows in [`SlotFifo::errors`].
    pub fn pop_word(&self) -> Result<u64, Error> {
        self.registers.read64(REG_PORT)
    }

    /// The error bits, which are cleared by that.
    ///
    /// # Errors
    /// Those of trapped accesses.
    pub fn errors(&self) -> Result<u32, Error> {
        let errors = self.registers.read32(REG_ERROR)?;
        self.registers.write32(REG_ERROR, errors)?;
        Ok(errors)
    }
}
