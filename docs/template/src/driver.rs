//! The driver of the card.

use std::sync::atomic::Ordering;

use nicforge_driver::{Bar, Cancel, Deadline, Device, DmaBuffer, Error, HugePages, Interrupt, Poster};

use crate::registers::{
    DEVICE, Descriptor, MAX_FRAME, REG_RECEIVE, REG_RECEIVED, REG_SEND, REG_SENT, VECTOR_RECEIVED,
    VECTOR_SENT, VENDOR, status,
};

/// Size of the driver's memory in bytes, and the offsets of the descriptors and frames in it.
const MEMORY: usize = 4096;
const SEND_DESCRIPTOR: u64 = 0x000;
const RECEIVE_DESCRIPTOR: u64 = 0x010;
const SEND_FRAME: u64 = 0x100;
const RECEIVE_FRAME: u64 = 0x800;

/// Numbers of frames that the card has sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
}

/// The card, opened by one client.
#[derive(Debug)]
pub struct Courier {
    registers: Bar,
    poster: Poster,
    memory: DmaBuffer,
    sent: Interrupt,
    received: Interrupt,
    /// Whether the card holds a descriptor for the next frame.
    is_receiving: bool,
}

impl Courier {
    /// Takes a device to drive it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it is another device, or the error of mapping its memory.
    pub fn open(device: &Device) -> Result<Self, Error> {
        let identity = device.identity();
        if (identity.vendor, identity.device) != (VENDOR, DEVICE) {
            return Err(Error::Unsupported { what: "driving another device as a courier" });
        }

        Ok(Self {
            registers: device.bar(0)?,
            poster: device.poster(0)?,
            memory: device.dma_buffer(MEMORY, HugePages::Never)?,
            sent: device.interrupt(VECTOR_SENT.into())?,
            received: device.interrupt(VECTOR_RECEIVED.into())?,
            is_receiving: false,
        })
    }

    // ANCHOR: send
    /// Sends a frame of 1 to [`MAX_FRAME`] bytes, and waits until the card has sent it.
    ///
    /// # Errors
    /// [`Error::BadLength`] for another length, and the errors of a wait. After an error of the
    /// wait, the card may still own the frame, and the device should be reset.
    pub fn send(&mut self, frame: &[u8], deadline: Deadline, cancel: Option<&Cancel>) -> Result<(), Error> {
        if !(1..=MAX_FRAME).contains(&frame.len()) {
            return Err(Error::BadLength { len: frame.len(), most: MAX_FRAME });
        }

        self.memory.write(SEND_FRAME, frame)?;
        self.ring(REG_SEND, SEND_DESCRIPTOR, SEND_FRAME, frame.len() as u32)?;
        self.wait(&self.sent, SEND_DESCRIPTOR, deadline, cancel).map(drop)
    }

    /// Waits for a frame, and returns it. After [`Error::Timeout`] or [`Error::Cancelled`], the
    /// next call continues to wait for the same frame.
    ///
    /// # Errors
    /// The errors of a wait.
    pub fn receive(&mut self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Vec<u8>, Error> {
        if !self.is_receiving {
            self.ring(REG_RECEIVE, RECEIVE_DESCRIPTOR, RECEIVE_FRAME, MAX_FRAME as u32)?;
            self.is_receiving = true;
        }

        let length = self.wait(&self.received, RECEIVE_DESCRIPTOR, deadline, cancel)?;
        self.is_receiving = false;

        let mut frame = vec![0; (length as usize).min(MAX_FRAME)];
        self.memory.read(RECEIVE_FRAME, &mut frame)?;
        Ok(frame)
    }
    // ANCHOR_END: send

    /// Returns the numbers of frames that the card has sent and received.
    ///
    /// # Errors
    /// The errors of a trapped read.
    pub fn counts(&self) -> Result<FrameCounts, Error> {
        Ok(FrameCounts {
            sent: self.registers.read64(REG_SENT)?,
            received: self.registers.read64(REG_RECEIVED)?,
        })
    }

    // ANCHOR: ring
    /// Fills in a descriptor, and rings the doorbell of its direction by a posted write.
    /// `descriptor` and `frame` are offsets in the driver's memory.
    fn ring(&mut self, doorbell: u64, descriptor: u64, frame: u64, length: u32) -> Result<(), Error> {
        let filled = Descriptor { address: self.memory.iova() + frame, length, status: status::PENDING };
        self.memory.write(descriptor, &filled.to_bytes())?;

        let address = self.memory.iova() + descriptor;
        self.poster.post(0, doorbell, &address.to_le_bytes())
    }

    /// Waits until a descriptor has its result. Returns the length in it.
    fn wait(
        &self,
        interrupt: &Interrupt,
        descriptor: u64,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<u32, Error> {
        let result = self.memory.u64(descriptor + Descriptor::RESULT)?;
        loop {
            // Acquire ordering: once the result is seen, the frame is too.
            let word = result.load(Ordering::Acquire);
            match (word >> 32) as u32 {
                status::PENDING => interrupt.wait(deadline, cancel).map(drop)?,
                status::DONE => return Ok(word as u32),
                status::BAD_LENGTH => return Err(Error::Unsupported { what: "a frame of this length" }),
                _ => return Err(Error::Unsupported { what: "memory that the card can't reach" }),
            }
        }
    }
    // ANCHOR_END: ring
}
