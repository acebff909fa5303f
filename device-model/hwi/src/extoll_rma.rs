//! RMA, the Remote Memory Access unit: put, get and immediate put by descriptors, and
//! notifications.
//!
//! A command is one write of three quadwords ([`Command`]) to [`crate::extoll::reg::RMA_COMMAND`].
//! Addresses are network logical addresses ([`crate::extoll_atu`]). The card that has the memory
//! translates and checks them. They may have any size and alignment. A command names the parties
//! that get a [`Notification`] in their queue:
//!
//! | party | time of the notification | commands |
//! | --- | --- | --- |
//! | requester | the command is taken; a put's source is read | put, get, immediate put |
//! | responder | a get's source is read | get |
//! | completer | all data is written | put, get, immediate put |
//!
//! The completer of a get is the requester; the completer of a put or immediate put is the target.
//!
//! A failed command notifies its requester of the error, whether the command asked for it or not.
//! If part of it may have been done, a put's completer and a get's responder are notified too. A
//! get's completer, which is also the requester, is notified of success only.
//!
//! Commands of one VPID to one target are carried out in order, and so are their notifications to
//! the requester. A put after a get waits for the get.
//!
//! A source or destination lies in one region of the address translation. If the two overlap, the
//! result there is unspecified. A VPID whose memory only messages reach can also take part. Each 64
//! KiB then costs one message.
//!
//! Software must enable a queue with [`crate::extoll::window::RMA_READ_POINTER`] 0 and zeroed
//! memory. A notification for a full queue is lost and counted.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a descriptor in bytes.
pub const COMMAND_BYTES: usize = 24;
/// Largest number of bytes that a command moves.
pub const MAX_LENGTH: u32 = 8 << 20;
/// Largest number of bytes that an immediate put moves.
pub const MAX_IMMEDIATE: u32 = 8;
/// Largest number of commands of a VPID in flight. A write of another one waits, with all later
/// writes of its client.
pub const MAX_COMMANDS: usize = 64;
/// Smallest number of entries of a notification queue.
pub const MIN_ENTRIES: u64 = 64;
/// Largest number of entries of a notification queue.
pub const MAX_ENTRIES: u64 = 1 << 16;

/// A descriptor of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Command {
    /// Bits 63..48 target node, 47..40 target VPID, 39..36 the command ([`command`]), 35..33 the
    /// notified parties ([`notify`]), 32 zero, 31..0 length in bytes, 1 to [`MAX_LENGTH`].
    pub head: u64,
    /// Address to read: the requester's memory for a put, the target's for a get. For an immediate
    /// put it holds the data.
    pub source: u64,
    /// Address to write: the target's memory for a put or immediate put, the requester's for a get.
    pub destination: u64,
}

/// Codes of commands.
pub mod command {
    /// Lowest bit in the head.
    pub const SHIFT: u32 = 36;
    /// Copies from the requester's memory to the target's.
    pub const PUT: u8 = 1;
    /// Copies from the target's memory to the requester's.
    pub const GET: u8 = 2;
    /// Writes the first bytes of [`super::Command::source`] to the target's memory.
    pub const IMMEDIATE_PUT: u8 = 3;
}

/// Parties that a command notifies.
pub mod notify {
    /// Lowest bit in the head.
    pub const SHIFT: u32 = 33;
    /// The requester.
    pub const REQUESTER: u8 = 1;
    /// The responder.
    pub const RESPONDER: u8 = 2;
    /// The completer.
    pub const COMPLETER: u8 = 4;
}

// Lowest bits of the fields of `Command::head` that have no module of their own.
const TARGET_NODE_SHIFT: u32 = 48;
const TARGET_VPID_SHIFT: u32 = 40;

// Lowest bits of the fields of `Notification::head`.
const ROLE_SHIFT: u32 = 60;
const STATUS_SHIFT: u32 = 56;
const COMMAND_SHIFT: u32 = 52;
const OTHER_NODE_SHIFT: u32 = 32;
const OTHER_VPID_SHIFT: u32 = 24;
/// Bits of the length in [`Notification::head`].
const LENGTH_MASK: u64 = 0xff_ffff;

impl Command {
    /// Bits of [`Command::head`] that must be zero.
    pub const RESERVED: u64 = 1 << 32;

    /// Returns the descriptor of a command for VPID `vpid` of node `node`, which notifies the
    /// parties `notify` and moves `length` bytes. Excess bits are cut off.
    #[inline]
    pub const fn new(
        node: u32,
        vpid: u16,
        command: u8,
        notify: u8,
        length: u32,
        source: u64,
        destination: u64,
    ) -> Self {
        let head = ((node as u64 & 0xffff) << TARGET_NODE_SHIFT)
            | ((vpid as u64 & 0xff) << TARGET_VPID_SHIFT)
            | ((command as u64 & 0xf) << command::SHIFT)
            | ((notify as u64 & 7) << notify::SHIFT)
            | length as u64;
        Self { head, source, destination }
    }

    /// Returns the target node.
    #[inline]
    pub const fn node(&self) -> u32 {
        (self.head >> TARGET_NODE_SHIFT) as u32
    }

    /// Returns the target VPID.
    #[inline]
    pub const fn vpid(&self) -> u16 {
        ((self.head >> TARGET_VPID_SHIFT) & 0xff) as u16
    }

    /// Returns the command: one of [`command`].
    #[inline]
    pub const fn command(&self) -> u8 {
        ((self.head >> command::SHIFT) & 0xf) as u8
    }

    /// Returns the parties that the command notifies: bits of [`notify`].
    #[inline]
    pub const fn notify(&self) -> u8 {
        ((self.head >> notify::SHIFT) & 7) as u8
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.head as u32
    }
}

/// An entry of a notification queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notification {
    /// Bit 63 is 1, so that a filled entry is never 0. Software zeroes the word when it has taken
    /// the entry. The card writes it last, with release order.
    ///
    /// | bits | field |
    /// | --- | --- |
    /// | 62..60 | role of the notified party ([`notify`]) |
    /// | 59..56 | result ([`status`]) |
    /// | 55..52 | command |
    /// | 51..48 | zero |
    /// | 47..32 | other node |
    /// | 31..24 | other VPID |
    /// | 23..0 | length in bytes |
    pub head: u64,
    /// Address of the transfer. For the requester: the command's source (put, immediate put) or
    /// destination (get). For the responder: the address read. For the completer: the address
    /// written.
    pub address: u64,
}

/// Results of commands.
pub mod status {
    /// The command was carried out.
    pub const DONE: u8 = 0;
    /// The requester's own address is not registered, or not for this access.
    pub const LOCAL_ADDRESS: u8 = 1;
    /// The target's address is not registered, not owned by the target VPID, or not registered for
    /// this access. No data was moved.
    pub const REMOTE_ADDRESS: u8 = 2;
    /// The target node or VPID does not exist or is absent.
    pub const NO_RECEIVER: u8 = 3;
    /// The memory was deregistered or unmapped, or its owner ended, while the command ran. Some of
    /// the data may have been moved.
    pub const WITHDRAWN: u8 = 4;
    /// The command is invalid.
    pub const COMMAND: u8 = 5;
    /// The target was silent for longer than the watchdog ([`crate::extoll::reg::RMA_WATCHDOG`])
    /// permits. Parts that were sent may still be carried out.
    pub const TIMED_OUT: u8 = 6;
}

impl Notification {
    /// Bit of [`Notification::head`] that is set in every filled entry.
    pub const VALID: u64 = 1 << 63;

    /// Returns a filled entry: for a party of a role, of a command with this result, whose other
    /// party is VPID `vpid` of node `node`. Excess bits are cut off.
    #[inline]
    pub const fn new(
        role: u8,
        status: u8,
        command: u8,
        node: u32,
        vpid: u16,
        length: u32,
        address: u64,
    ) -> Self {
        let head = Self::VALID
            | ((role as u64 & 7) << ROLE_SHIFT)
            | ((status as u64 & 0xf) << STATUS_SHIFT)
            | ((command as u64 & 0xf) << COMMAND_SHIFT)
            | ((node as u64 & 0xffff) << OTHER_NODE_SHIFT)
            | ((vpid as u64 & 0xff) << OTHER_VPID_SHIFT)
            | (length as u64 & LENGTH_MASK);

        Self { head, address }
    }

    /// Returns whether the entry is filled.
    #[inline]
    pub const fn is_valid(&self) -> bool {
        self.head & Self::VALID != 0
    }

    /// Returns the role of the notified party: one of [`notify`].
    #[inline]
    pub const fn role(&self) -> u8 {
        ((self.head >> ROLE_SHIFT) & 7) as u8
    }

    /// Returns the result: one of [`status`].
    #[inline]
    pub const fn status(&self) -> u8 {
        ((self.head >> STATUS_SHIFT) & 0xf) as u8
    }

    /// Returns the command: one of [`command`].
    #[inline]
    pub const fn command(&self) -> u8 {
        ((self.head >> COMMAND_SHIFT) & 0xf) as u8
    }

    /// Returns the other node. For the requester it is the target. For the responder and for a
    /// put's completer it is the requester.
    #[inline]
    pub const fn node(&self) -> u32 {
        ((self.head >> OTHER_NODE_SHIFT) & 0xffff) as u32
    }

    /// Returns the other VPID.
    #[inline]
    pub const fn vpid(&self) -> u16 {
        ((self.head >> OTHER_VPID_SHIFT) & 0xff) as u16
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        (self.head & LENGTH_MASK) as u32
    }
}

const _: () = assert!(size_of::<Command>() == COMMAND_BYTES && size_of::<Notification>() == 16);
