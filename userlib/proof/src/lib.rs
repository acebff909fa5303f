//! Drivers of the three proof devices, which show how to write one. Read them in this order:
//!
//! 1. [`slot_fifo`]: registers, mapped slots, returning a read pointer, waking a device that sleeps;
//! 2. [`dma_engine`]: DMA memory, a posted doorbell, waiting for an interrupt or polling a mirror;
//! 3. [`addressed_send`]: posted writes whose address carries meaning, a mailbox, credits.
//!
//! In: an opened [`Device`], whatever is behind it. Out: calls that say what they do to it. May touch: the driver library,
//! hwi (the register maps, in [`nicforge_hwi::proof`]), shm. Nothing here knows where the device runs.
#![forbid(unsafe_code)]

pub mod addressed_send;
pub mod dma_engine;
pub mod slot_fifo;

use nicforge_driver::{Device, Error};
use nicforge_hwi::pci;

/// Refuses a device that is not the one meant, before its registers are taken for others.
fn check(device: &Device, wanted: u16, what: &'static str) -> Result<(), Error> {
    let identity = device.identity();
    if (identity.vendor, identity.device) == (pci::VENDOR_ID, wanted) {
        Ok(())
    } else {
        Err(Error::Unsupported { what })
    }
}
