//! The firmware of the SeaStar's embedded processor.
//!
//! It is a program of its own: it sees the [`chip::Chip`], and nothing else of the device or of the
//! machine. The same source runs stepped, or on an operating-system thread of its own.
//!
//! In: [`chip::Event`]s. Out: calls of the chip. May touch: `hwi`. No unsafe, no threads, no
//! clocks, no standard library.
//!
//! | module | contents |
//! | --- | --- |
//! | [`chip`] | what the firmware sees of its hardware |
//! | [`firmware`] | the program: its polling loop, mailboxes, messages |
//! | [`protocol`] | flow control between a pair of nodes |
//! | [`matching`] | Portals 3.3 for one process, also used by the kernel's part of the library |
//! | [`scratch`] | the budget of the scratch memory |
//! | [`costs`] | what the firmware's steps take |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod chip;
pub mod costs;
pub mod firmware;
pub mod matching;
pub mod protocol;
pub mod scratch;
