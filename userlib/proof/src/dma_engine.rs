//! Driver of the *DMA engine*, which copies a list of pieces within DMA memory.

use std::sync::atomic::Ordering;

use nicforge_driver::{Bar, Cancel, Deadline, Device, DmaBuffer, Error, HugePages, Interrupt};
use nicforge_hwi::{pci, proof::dma_engine::*};
use nicforge_shm::{SharedU32, SharedU64};
use zerocopy::IntoBytes;

/// The result of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of descriptors copied.
    pub done: u32,
    /// Error bits such as `STATUS_DMA_ERROR` of [`nicforge_hwi::proof::dma_engine`]; 0 after a
    /// success.
    pub errors: u32,
}

/// The engine. It processes one list at a time.
#[derive(Debug)]
pub struct DmaEngine {
    device: Device,
    registers: Bar,
    /// Memory for the descriptors of a list.
    list: DmaBuffer,
    /// Mirror of the number of starts that have ended.
    ended: SharedU64,
    /// Mirror of the status of the last start.
    status: SharedU32,
    /// Mirror of the number of descriptors that were copied.
    done: SharedU32,
    /// Number of starts.
    started: u64,
    /// The interrupts of a list's end: after a success, and after an error.
    interrupts: [Interrupt; 2],
}

impl DmaEngine {
    /// Drives `device`, which the caller has just opened or reset.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] when `device` has another type, and the errors of allocating
    /// and mapping memory.
    pub fn open(device: &Device) -> Result<Self, Error> {
        crate::check_identity(device, pci::DEVICE_DMA_ENGINE, "driving another device as a DMA engine")?;

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

    /// Starts to copy the pieces of `list`, at most [`MAX_DESCRIPTORS`].
    ///
    /// # Errors
    /// Returns [`Error::BadLength`] when the list is too long, and the errors of trapped and posted
    /// writes.
    pub fn start(&mut self, list: &[Descriptor]) -> Result<(), Error> {
        if list.len() > MAX_DESCRIPTORS as usize {
            return Err(Error::BadLength { len: list.len(), most: MAX_DESCRIPTORS as usize });
        }

        self.list.write(0, list.as_bytes())?;
        // Both registers are written through the ring, which keeps their order. The list is in
        // memory before the device sees the records.
        self.registers.posted_write(REG_COUNT, &(list.len() as u32).to_le_bytes())?;
        self.registers.posted_write(REG_START, &1u32.to_le_bytes())?;

        self.started += 1;
        Ok(())
    }

    /// Returns the result of the last start, or `None` while it is running. It reads a mirror,
    /// which is not trapped.
    pub fn outcome(&self) -> Option<Outcome> {
        // Acquire: once the count is seen, the status is valid.
        if self.ended.load(Ordering::Acquire) < self.started {
            return None;
        }

        let status = self.status.load(Ordering::Relaxed);
        Some(Outcome { done: self.done.load(Ordering::Relaxed), errors: status & !STATUS_BUSY })
    }

    /// Waits for the end of the last start by polling the mirror. The data must be in memory that
    /// the device can map. Data for a private buffer are complete only after [`DmaEngine::wait`].
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    pub fn poll(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Outcome, Error> {
        self.device.wait_for(deadline, cancel, "the end of a DMA list", || Ok(self.outcome()))
    }

    /// Waits for the end of the last start by interrupt.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    pub fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<Outcome, Error> {
        let [done, error] = &self.interrupts;
        loop {
            self.device.wait_any(&[done, error], deadline, cancel)?;
            // The interrupt may belong to an earlier list, whose end was polled for.
            if let Some(outcome) = self.outcome() {
                return Ok(outcome);
            }
        }
    }

    /// Starts to copy the pieces of `list`, and waits for the end.
    ///
    /// # Errors
    /// Returns the errors of [`DmaEngine::start`] and [`DmaEngine::wait`].
    pub fn copy(&mut self, list: &[Descriptor], deadline: Deadline) -> Result<Outcome, Error> {
        self.start(list)?;
        self.wait(deadline, None)
    }
}

/// Returns the descriptor of a piece: `length` bytes from `source` to `destination`, both IOVAs.
pub fn piece(source: u64, destination: u64, length: u32) -> Descriptor {
    Descriptor { source, destination, length, reserved: 0 }
}
