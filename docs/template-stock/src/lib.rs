//! *Ferry*: a card of one port, for a driver that Linux has.
//!
//! - [`registers`]: identity and registers
//! - [`device`]: the model of the card

pub mod device;
pub mod registers;
