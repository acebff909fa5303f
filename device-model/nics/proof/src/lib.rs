//! The proof devices: small devices for demonstration and tests, which exercise the device contract
//! and show how to write a device, in this order:
//!
//! 1. [`slot_fifo`]: registers, mapped slots with sequence words, a port on the same queue,
//!    back-pressure, error bits;
//! 2. [`dma_engine`]: a descriptor list, split-phase DMA in bounded pieces, a posted doorbell,
//!    MSI-X;
//! 3. [`addressed_send`]: posted writes whose address names the receiver of a message, credits,
//!    stalls, several clients;
//! 4. [`checksum`]: work outside the device's methods, by a companion that can halt.
//!
//! In: accesses and completions, as [`nicforge_core::device::Device`] describes them. Out: through
//! its `Context`, DMA, interrupts, and words in mapped memory. May touch: core, family, hwi
//! (register maps, in [`nicforge_hwi::proof`]), kit, shm. No threads, clocks or I/O: a device
//! never waits.
//!
//! The drivers for them are in the crate `nicforge-proof-driver`.
#![forbid(unsafe_code)]

pub mod addressed_send;
pub mod checksum;
pub mod dma_engine;
pub mod slot_fifo;

pub use addressed_send::AddressedSend;
pub use checksum::Checksum;
pub use dma_engine::DmaEngine;
pub use slot_fifo::SlotFifo;

use nicforge_core::spec::{AttachmentSpec, Identity};
use nicforge_family::DeviceKind;
use nicforge_hwi::pci;

/// Returns the kinds of the devices, for the tables `[[function]]` of machine files.
pub fn kinds() -> [DeviceKind; 4] {
    [
        DeviceKind::plain("slot-fifo", SlotFifo::new),
        DeviceKind::plain("dma-engine", DmaEngine::new),
        DeviceKind::plain("addressed-send", AddressedSend::new),
        DeviceKind::plain("checksum", Checksum::new),
    ]
}

/// Returns the PCI identity of a proof device. Its class is "unassigned", so that no operating
/// system binds a driver to it.
fn identity(device: u16) -> Identity {
    Identity {
        vendor: pci::VENDOR_ID,
        device,
        subsystem_vendor: pci::VENDOR_ID,
        subsystem: device,
        class: 0xff_00_00,
        revision: 1,
    }
}

/// Returns `count` attachments called `user0`, `user1`, ..., without memory in common.
fn users(count: u16) -> Vec<AttachmentSpec> {
    (0..count).map(|user| AttachmentSpec { name: format!("user{user}"), group: user as u8 }).collect()
}
