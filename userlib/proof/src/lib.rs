//! Drivers of three proof devices: demonstration devices that prove the mechanisms of the device
//! model. The drivers are examples of how to write one. Read them in this order:
//!
//! 1. [`slot_fifo`]: registers, mapped slots, the return of a read pointer, the wake of a sleeping
//!    device;
//! 2. [`dma_engine`]: DMA memory, a posted doorbell, waits by interrupt and by polling of a mirror;
//! 3. [`addressed_send`]: posted writes whose address carries meaning, a mailbox, credits.
//!
//! Each driver takes an open [`Device`] and offers one call for each operation. The crate depends
//! on the driver library, on hwi (the register maps, in [`nicforge_hwi::proof`]) and on shm. It
//! does not know where the device runs.
#![forbid(unsafe_code)]

pub mod addressed_send;
pub mod dma_engine;
pub mod slot_fifo;

use nicforge_driver::{Device, Error};
use nicforge_hwi::pci;

/// Refuses a device of another type than `expected`, so that its registers are not misinterpreted.
/// `description` is what the caller would do with it, for the error.
fn check_identity(device: &Device, expected: u16, description: &'static str) -> Result<(), Error> {
    let identity = device.identity();

    if (identity.vendor, identity.device) == (pci::VENDOR_ID, expected) {
        Ok(())
    } else {
        Err(Error::Unsupported { what: description })
    }
}
