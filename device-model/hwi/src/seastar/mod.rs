//! The Cray SeaStar (Brightwell et al., "SeaStar Interconnect: Balanced Bandwidth for Scalable
//! Performance", IEEE Micro 2006): mailboxes, commands, results, events, message headers.
//!
//! The public sources of the SeaStar's drivers show no opcodes of its mailboxes, so this layout is
//! nicforge's own. Names are those of the paper and of Portals 3.3.
//!
//! A function is a node's SeaStar. Attachment 0, `kernel`, has the *trusted* mailbox. Each of the
//! others has the *untrusted* mailbox of a process.
//!
//! | BAR | contents | access |
//! | --- | --- | --- |
//! | 0 | registers ([`reg`]; after them the core's pages) | trapped |
//! | 1 | posted-write ring, mailbox ([`window`]), private | mapped, read-write |
//! | 2 | attachment mirror: core's page, then results ([`mirror`]), private | mapped, read-only |
//!
//! # A mailbox
//!
//! The client writes a command into slot *number modulo [`SLOTS`]* of its mailbox, stores the
//! number of commands so far to [`window::COMMAND_TAIL`], and rings the doorbell. The firmware
//! copies the command once, carries it out, and answers with a [`CommandResult`] in the result slot
//! of the same number. The result also frees the command's slot.
//!
//! Completions of messages are [`Event`]s in a queue in the client's memory, which the firmware
//! writes by DMA.
//!
//! # Files
//! | file | contents |
//! | --- | --- |
//! | `layout.rs` | sizes, BARs, registers, mailbox, mirror |
//! | `packet.rs` | headers of messages |
//! | `commands.rs` | commands of processes, and results |
//! | `trusted.rs` | commands of the kernel, and its events |
//! | `events.rs` | events of processes |

// The C header has the items in this order: names come before the structures that use them.
mod layout;

mod packet;

mod commands;
mod events;
#[cfg(test)]
mod tests;
mod trusted;

pub use self::{commands::*, events::*, layout::*, packet::*, trusted::*};
