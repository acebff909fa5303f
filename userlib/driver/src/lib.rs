//! Access to a PCI device from user space: BARs, DMA buffers and interrupts over interchangeable
//! backings.
//!
//! A [`Device`] is opened over a [`Backing`]: a machine in this process, a vfio-user server, or a
//! PCI function behind Linux VFIO or the kernel shim. Code on top of this library is the same for
//! all of them.
//!
//! - [`Bar`] accesses registers, and [`Bar::window`] maps memory of the device. A register access
//!   is trapped, or a plain load or store where the BAR is mapped.
//! - [`Poster`], [`SharedPoster`] and [`Bar::posted_write`] write registers through a ring in
//!   shared memory, without a system call.
//! - [`Doorbell`] wakes the device after stores into windows that it polls.
//! - [`DmaBuffer`] is memory with an address for the device.
//! - [`Interrupt`] polls first, and then blocks in the kernel.
//! - [`Device::wait_until`] waits for any other condition. [`Waiter`] is the part of such a wait
//!   that a loop of the caller's own needs.
//!
//! Every wait takes a [`Deadline`] and can be ended by a [`Cancel`]. It returns
//! [`Error::DeviceGone`] when the device is lost.
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
//! The crate depends on `hwi` for layouts, on `shm` for shared memory and on `vfio-user` for the
//! socket. It knows no device and no machine. The rules of memory order are in this crate's README.

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
pub mod runtime;
mod wait;
mod waiter;

pub use address::{DeviceAddress, PciAddress};
pub use backing::{
    Backing, ClientWake, DmaAddresses, DmaAllocation, DmaMemory, IRQ_INTX, IRQ_MSI, IRQ_MSIX,
    InterruptSource, IrqInfo, MappableArea, PrivateMemory, REGION_CONFIG, REGION_ROM, RegionInfo, Shim, Vfio,
    VfioUser, WriteMode,
};
pub use bar::Bar;
pub use device::{Device, Identity, OpenOptions};
pub use dma::{DmaBuffer, HugePages};
pub use error::{Error, GoneCause, OpenProblem};
pub use interrupt::{Interrupt, wait_source};
pub use nicforge_shm::DmaPermission;
pub use posted::{Doorbell, Poster, QuickPost, RingPosition, SharedPoster};
pub use wait::{Backoff, Cancel, Deadline, Pause, Relax};
pub use waiter::{WaitEnd, Waiter};
