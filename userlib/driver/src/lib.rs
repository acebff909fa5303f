//! How software reaches a device: BARs, DMA buffers and interrupts over interchangeable backings.
//!
//! A [`Device`] is opened over a [`Backing`]: a machine in this process, a vfio-user server, or a PCI function through Linux VFIO
//! or the kernel shim. What a library does with it is the same through every door.
//!
//! - [`Bar`]: registers (trapped, or plain loads and stores where the BAR is mapped memory) and [`Bar::window`]s of memory;
//! - [`Poster`], [`SharedPoster`], [`Bar::posted_write`]: registers with effects without a system call;
//! - [`Doorbell`]: after stores into windows that the device polls;
//! - [`DmaBuffer`]: memory with an address for the device;
//! - [`Interrupt`]: polled first, then waited for by a dummy read;
//! - [`Device::wait_until`]: every other wait. Each wait has a [`Deadline`], can be ended by a [`Cancel`], and ends by itself
//!   with [`Error::DeviceGone`] when the device is lost.
//!
//! ```no_run
//! use std::time::Duration;
//! use nicforge_driver::{Deadline, Device, Error, HugePages, OpenOptions, environment};
//!
//! # fn main() -> Result<(), Error> {
//! let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
//! let registers = device.bar(0)?;
//! let done = device.interrupt(0)?;
//! let buffer = device.dma_buffer(1 << 20, HugePages::Try)?;
//! buffer.write(0, b"payload")?;
//! registers.posted_write(0x10, &buffer.iova().to_le_bytes())?;
//! done.wait(Deadline::after(Duration::from_secs(1)), None)?;
//! # Ok(())
//! # }
//! ```
//!
//! In: a backing or a socket's path. Out: values, memory, errors. May touch: `hwi` for layouts, `shm` for memory,
//! `vfio-user` for the socket. The rules of memory order are in the room's README.

mod address;
mod backing;
mod bar;
mod device;
mod dma;
pub mod environment;
mod error;
mod heartbeat;
mod interrupt;
mod posted;
mod wait;

pub use address::{DeviceAddress, PciAddress};
pub use backing::{
    Backing, DmaAddresses, DmaAllocation, DmaMemory, DmaPermission, IRQ_INTX, IRQ_MSI, IRQ_MSIX,
    InterruptSource, IrqInfo, MappableArea, PrivateMemory, REGION_CONFIG, REGION_ROM, RegionInfo, Shim, Vfio,
    VfioUser, WriteMode,
};
pub use bar::Bar;
pub use device::{Device, Identity, OpenOptions};
pub use dma::{DmaBuffer, HugePages};
pub use error::{Error, GoneCause, OpenProblem};
pub use interrupt::{Interrupt, wait_source};
pub use posted::{Doorbell, Mark, Poster, SharedPoster};
pub use wait::{Cancel, Deadline, Patience, Relax, Turn};
