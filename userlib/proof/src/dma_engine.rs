//! Driver of the *DMA engine*: copies a list of pieces within DMA memory.

use std::sync::atomic::Ordering;

use nicforge_driver::{Bar, Cancel, Deadline, Device, DmaBuffer, Error, HugePages, Interrupt};
use nicforge_hwi::{pci, proof::dma_engine::*};
use nicforge_shm::{SharedU32, SharedU64};
use zerocopy::IntoBytes;

/// How a list ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Descriptors copied.
    pub done: u32,
    /// `STATUS_DMA_ERROR` and its like of [`nicforge_hwi::proof::dma_engine`]; 0 when all went well.
    pub errors: u32,
}

/// The engine. One list at a time.
#[derive(Debug)]
pub struct DmaEngine {
    device: Device,
    registers: Bar,
    list: DmaBuffer,
    ended: SharedU64,
    status: SharedU32,
    done: SharedU32,
    started: u64,
    interrupts: [Interrupt; 2],
}

impl DmaEngine {
    /// Drives `device`, which was opened, or reset, just before.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when it is another device; what allocating and mapping memory says.
    pub fn open(device: &Device) -> Result<Self, Error> {
        crate::check(device, pci::DEVICE_DMA_ENGINE, "driving another device as a DMA engine")?;
        let mirror = device.bar(2)?.window(MIRROR_ENDED, 16)?;
        let registers = device.bar(0)?;
        let list = device.dma_buffer(MAX_DESCRIPTORS as usize * size_of::<Descriptor>(), HugePages::Never)?;
        registers.write64(REG_LIST, list.iova())?;
        Ok(Self {
            registers,
            list,
            ended: mirror.u64(0)?,
            status: mirror.u32(MIRROR_STATUS - MIRROR_ENDED)?,
            done: mirror.u32(MIRROR_DONE - MIRROR_ENDED)?,
            started: 0,
            interrupts: [device.interrupt(VECTOR_DONE.into())?, device.interrupt(VECTOR_ERROR.into())?],
            device: device.clone(),
        })
    }

    /// Starts copying `list`, at most [`MAX_DESCRIPTORS`] pieces.
    ///
    /// # Errors
    /// [`Error::BadLength`] for too long a list; those of trapped and posted writes.
    pub fn start(&mut self, list: &[Descriptor]) -> Result<(), Error> {
        if list.len() > MAX_DESCRIPTORS as usize {
            return Err(Error::BadLength { len: list.len(), most: MAX_DESCRIPTORS as usize });
        }
        self.list.write(0, list.as_bytes())?;
        // Two registers whose writes have an order: both go through the ring. What was stored before is in memory when
        // the record is.
        self.registers.posted_write(REG_COUNT, &(list.len() as u32).to_le_bytes())?;
        self.registers.posted_write(REG_START, &1u32.to_le_bytes())?;
        self.started += 1;
        Ok(())
    }

    /// How the last start ended; `None` as long as it has not. Reads a mirror, and does not trap.
    pub fn outcome(&self) -> Option<Outcome> {
        // Acquire: the status is there when the count is.
        if self.ended.load(Ordering::Acquire) < self.started {
            return None;
        }
        let status = self.status.load(Ordering::Relaxed);
        Some(Outcome { done: self.done.load(Ordering::Relaxed), errors: status & !STATUS_BUSY })
    }

    /// Waits for the end of the last start by looking at the mirror. For memory that the device can map: what goes to a
    /// private buffer is only known to be there after [`DmaEngine::wait`].
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    pub fn poll(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Outcome, Error> {
        self.device.wait_for(deadline, cancel, "the end of a DMA list", || Ok(self.outcome()))
    }

    /// Waits for the end of the last start by interrupt.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    pub fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Outcome, Error> {
        let [done, error] = &self.interrupts;
        loop {
            self.device.wait_any(&[done, error], deadline, cancel)?;
            // An interrupt may be left over from an earlier list that was polled for.
            if let Some(outcome) = self.outcome() {
                return Ok(outcome);
            }
        }
    }

    /// Starts copying `list` and waits for its end.
    ///
    /// # Errors
    /// As [`DmaEngine::start`] and [`DmaEngine::wait`].
    pub fn copy(&mut self, list: &[Descriptor], deadline: Deadline) -> Result<Outcome, Error> {
        self.start(list)?;
        self.wait(deadline, None)
    }
}

/// A piece of a list: `length` bytes from `source` to `destination`, both IOVAs.
pub fn piece(source: u64, destination: u64, length: u32) -> Descriptor {
    Descriptor { source, destination, length, reserved: 0 }
}
