//! Durations of the firmware's steps, in cycles of the 500 MHz processor (2 ns each).
//!
//! The paper names two of them: the polling loop (under 130 ns) and a match entry (30 ns). The
//! others are chosen so that the shapes of its Figure 10 hold: host latency dominates, the router
//! is a sliver, and both set-ups take longer in NIC-based mode.

/// A turn of the polling loop that finds an event or other work.
pub const POLL: u32 = 65;
/// Each match entry that a search visits.
pub const MATCH_ENTRY: u32 = 15;
/// Recognizing a header and choosing its process.
pub const HEADER: u32 = 90;
/// Parsing the process's part of a header, in NIC-based mode.
pub const PORTALS_HEADER: u32 = 60;
/// Programming the receive DMA engine.
pub const RECEIVE: u32 = 80;
/// Copying the data of a header packet to a host.
pub const INLINE_DEPOSIT: u32 = 60;
/// The end of a received message.
pub const RECEIVED: u32 = 40;
/// Reading a command of the trusted mailbox.
pub const KERNEL_COMMAND: u32 = 60;
/// Reading and inspecting a command of an untrusted mailbox.
pub const COMMAND: u32 = 90;
/// Allocating a pending message and joining its send queue.
pub const SUBMIT: u32 = 50;
/// Programming the transmit DMA engine for the trusted and the process's part of a header.
pub const TRANSMIT: u32 = 100;
/// The transmit DMA engine's end of a message.
pub const TRANSMITTED: u32 = 30;
/// Sending an acknowledgement of flow control.
pub const SEND_ACKNOWLEDGEMENT: u32 = 25;
/// Finding the message of an acknowledgement.
pub const ACKNOWLEDGEMENT: u32 = 35;
/// Taking an ended message out of its send queue.
pub const COMPLETE: u32 = 30;
/// Writing an event to a host.
pub const EVENT: u32 = 60;
/// Raising an interrupt.
pub const INTERRUPT: u32 = 20;
/// Clearing the tables of one node at boot.
pub const BOOT_NODE: u32 = 2;
/// Looking at one pending message or stream, when a process or a node ends.
pub const SCAN: u32 = 4;
