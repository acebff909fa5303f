//! *Courier*: a NIC of one port that carries frames, and its driver.
//!
//! Software hands the card a descriptor in memory by a doorbell. The card fetches the descriptor,
//! carries out the work, writes the result into the descriptor, and raises an interrupt.
//!
//! - [`registers`]: what both sides of the card read: identity, registers, descriptors
//! - [`device`]: the model of the card
//! - [`driver`]: the driver, the same for the model in process, on a socket, and in a guest

pub mod device;
pub mod driver;
pub mod registers;
