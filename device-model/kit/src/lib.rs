//! Parts that several NICs have.
//!
//! A NIC puts its own registers and rules around them. Each part keeps one invariant, and knows no
//! NIC.
//!
//! In: what a device gets from the machine, such as a [`Context`](nicforge_core::context::Context)
//! and words in mapped memory. Out: the same calls and stores that the NIC would make itself. May
//! touch: `core`, `shm`. No unsafe, no threads, no clocks.
//!
//! | module | contents |
//! | --- | --- |
//! | [`agenda`] | several timers of a device |
//! | [`attachment_set`] | sets of a function's attachments |
//! | [`budget`] | the time for which slow clients may hold what all clients share |
//! | [`mod@in_turn`] | round-robin over the members of a mask |
//! | [`interrupt`] | the interrupts that a client has enabled |
//! | [`mirror`] | mirror words that are written when their value changes |
//! | [`register`] | the widths of register accesses |
//! | [`retry`] | delays before a retry, and times that have to come |
//! | [`server`] | parts that take cycles of a clock, one piece of work after another |
//! | [`warnings`] | warnings of parts that have no context, until the device logs them |
//! | [`watchdog`] | time limits that do not count time in which the NIC was not driven |
#![forbid(unsafe_code)]

pub mod agenda;
pub mod attachment_set;
pub mod budget;
pub mod in_turn;
pub mod interrupt;
pub mod mirror;
pub mod register;
pub mod retry;
pub mod server;
pub mod warnings;
pub mod watchdog;

pub use self::{
    agenda::Agenda, attachment_set::AttachmentSet, budget::Budget, in_turn::in_turn,
    interrupt::InterruptEnables, mirror::MirrorWord, register::RegisterValue, server::Clock, server::Server,
    warnings::CountWatch, warnings::PendingWarnings, watchdog::WatchdogLimit,
};
