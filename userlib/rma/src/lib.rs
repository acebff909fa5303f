//! RMA: moving memory of one process to memory of another one, by cards of the EXTOLL.
//!
//! A process opens a [`Port`] on its VPID, registers memory ([`Region`]), tells its partners the network addresses by whatever way it
//! has, and posts puts, gets and immediate puts to a [`Target`]. The cards move the data; neither side's processor does. Who asked for
//! it ([`Notify`]) finds a [`Notification`] in its queue.
//!
//! ```no_run
//! use std::time::Duration;
//! use nicforge_driver::{Deadline, Device, Error as DriverError, HugePages, OpenOptions, environment};
//! use nicforge_rma::{Access, Error, Notify, Options, Port};
//!
//! # fn main() -> Result<(), Error> {
//! let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
//! let mut port = Port::open(&device, Options::default())?;
//! let buffer = device.dma_buffer(1 << 20, HugePages::Try)?;
//! let region = port.register(&buffer, Access::NONE)?;
//! let partner = port.connect(1, 0)?;
//! # let theirs = 0;
//! // `theirs` is an address that the partner has registered and told.
//! port.put(partner, region.at(0, 1 << 20)?, theirs, 1 << 20, Notify::REQUESTER | Notify::COMPLETER)?;
//! let told = port.next(Deadline::after(Duration::from_secs(1)), None)?;
//! assert!(told.is_done());
//! # Ok(())
//! # }
//! ```
//!
//! Rules
//! - Commands to one target are carried out in order, and their notifications as the requester come in order. Between targets there is none.
//! - A command moves at most [`MAX_LENGTH`] bytes. What is longer is posted as several, each with its notifications: posting says how many there are.
//! - The source of a put must stay as it is, and the destination of a get is not valid, until the notification as the requester.
//! - A command that fails notifies its requester, whether it asked for it or not.
//! - When a region is dropped nothing of it is touched any more; commands that used it end with [`Status::Withdrawn`].
//! - A command whose target does not answer ends with [`Status::TimedOut`] when the card's watchdog says so; whether it was carried out is not known.
//! - A port and its regions do not outlive [`nicforge_driver::Device::reset`]: their calls give [`Error::Reset`]. Drop them, open the port anew, register the
//!   memory again, and tell partners its new addresses.
//! - A full queue loses notifications: [`Error::Overflow`] says so once. Free them in time, or make the queue longer.
//!
//! In: a [`nicforge_driver::Device`]. Out: data moved, notifications, errors. May touch: `driver`, `hwi` for the layouts, `shm` for memory.
#![forbid(unsafe_code)]

mod error;
mod notification;
mod port;
mod queue;
mod region;

pub use nicforge_hwi::extoll_rma::{MAX_COMMANDS, MAX_IMMEDIATE, MAX_LENGTH};

pub use self::{
    error::Error,
    notification::{Kind, Notification, Notify, Role, Status},
    port::{Options, Port, Target},
    region::{Access, Region},
};
