//! Portals 3.3 for one process: portals, match entries, memory descriptors, event queues.
//!
//! In: commands of the process, and headers of messages for it. Out: results; where data go to or
//! come from; events and the addresses where they belong. It moves no data and writes no memory.
//!
//! The same code runs on the embedded processor (NIC-based mode) and in the kernel (host-based
//! mode). It allocates in [`Process::new`] only. Section numbers are those of *The Portals 3.3
//! Message Passing Interface*, SAND2006-0420.
//!
//! # Operations
//! An operation is a put or get that the process has started, or that has come to it. It begins
//! with [`Process::put`], [`Process::get`] or [`Process::incoming`], and ends with
//! [`Process::end`]. Each of these returns the events to write.
//!
//! | operation | begins | ends |
//! | --- | --- | --- |
//! | outgoing put | [`Process::put`] | the message was sent and accepted, or has failed |
//! | outgoing get | [`Process::get`] | the reply is in memory, or the request has failed |
//! | incoming put | [`Process::incoming`] | the data are in memory |
//! | incoming get | [`Process::incoming`] | the reply was sent and accepted, or has failed |
//!
//! [`Process::reply`] marks the arrival of a reply. [`Process::acknowledgement`] handles Portals'
//! acknowledgement of a put, which needs no operation.
//!
//! # Thresholds
//! A put, a get, and a received acknowledgement each count as an operation of their descriptor
//! (section 3.10.1). A get counts when it begins; its reply is the same operation.
//!
//! # A get without a reply
//! The target drops a get that nothing matches, and its initiator receives no event. Such a get
//! keeps one of [`Limits::outgoing`] until its descriptor is unlinked. Therefore a get counts as an
//! operation in progress only while a reply is being received.
//!
//! # An empty queue
//! The process alone knows how many events it has taken from a queue. An update names that number.
//! The queue is empty if as many events were written, and no operation in progress has one to
//! write.
//!
//! # Bounds
//! Each call is bounded by the limits: a search walks each entry of a portal at most once, and
//! reports the number. A handle carries a generation, so that a handle of a removed object is
//! refused.

mod access;
mod command;
mod events;
mod incoming;
mod limits;
mod list;
mod objects;
mod outgoing;
mod process;
mod table;
#[cfg(test)]
mod tests;

pub use access::AccessEntry;
pub use command::{CommandMemory, memory_of};
pub use events::{Event, Events};
pub use incoming::{Accepted, Answer, DropReason, Dropped, Incoming};
pub use limits::{Identity, Limits};
pub use objects::{
    Criteria, DescriptorHandle, EntryHandle, MemoryDescriptor, OperationHandle, Position, QueueHandle,
    QueueTest,
};
pub use outgoing::{Outgoing, Request, Source};
pub use process::{Posted, Process, Refusal};
