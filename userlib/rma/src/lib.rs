//! RMA: cards of the EXTOLL move data between the memories of processes.
//!
//! A process opens a [`Port`] on its VPID, registers memory ([`Region`]), and passes the network
//! addresses to its partners by any channel. It posts puts, gets and immediate puts to a
//! [`Target`]. The cards move the data without either side's processor. Each process that a command
//! notifies ([`Notify`]) finds a [`Notification`] in its queue.
//!
//! ```no_run
//! use std::time::Duration;
//! use nicforge_driver::{Deadline, Device, HugePages, OpenOptions, environment};
//! use nicforge_rma::{Access, Error, Notify, Options, Port};
//!
//! # fn main() -> Result<(), Error> {
//! let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
//! let mut port = Port::open(&device, Options::default())?;
//! let buffer = device.dma_buffer(1 << 20, HugePages::Try)?;
//! let region = port.register(&buffer, Access::NONE)?;
//! let partner = port.connect(1, 0)?;
//! # let remote_address = 0;
//! // `remote_address` is an address that the partner has registered and passed on.
//! let notify = Notify::REQUESTER | Notify::COMPLETER;
//! port.put(partner, region.at(0, 1 << 20)?, remote_address, 1 << 20, notify)?;
//! let notification = port.next(Deadline::after(Duration::from_secs(1)), None)?;
//! assert!(notification.is_done());
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//! - The card carries out the commands to one target in order, and its requester notifications
//!   arrive in order. There is no order between targets.
//! - A command moves at most [`MAX_LENGTH`] bytes. A longer transfer is posted as several commands,
//!   each with its own notifications. The posting call returns their number.
//! - Until the requester notification, the source of a put must not change, and the destination of
//!   a get is undefined.
//! - A failed command notifies its requester even without [`Notify::REQUESTER`].
//! - When a region is dropped, no card accesses its memory any more. Commands that used it end with
//!   [`Status::Withdrawn`].
//! - A command whose target does not answer ends with [`Status::TimedOut`] when the card's watchdog
//!   expires. It may or may not have been carried out.
//! - A port and its regions do not outlive [`nicforge_driver::Device::reset`]: their calls return
//!   [`Error::Reset`]. The process must drop them, open the port again, register the memory again,
//!   and pass on its new addresses.
//! - A full queue loses notifications, and [`Error::Overflow`] reports so once. The process must
//!   free notifications in time, or use a longer queue.
//!
//! # Dependencies
//! Input: a [`nicforge_driver::Device`]. Output: moved data, notifications, errors. The crate may
//! use `driver`, `hwi` for the layouts, and `shm` for memory.
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
