//! RMA, the Remote Memory Access unit: put, get and immediate put by descriptors, and
//! notifications.
//!
//! A command is one write of three quadwords ([`Command`]) to [`crate::extoll::reg::RMA_COMMAND`].
//! Addresses are network logical addresses ([`crate::extoll_atu`]), translated and checked on the
//! card whose memory they mean: sizes and alignments are any. Whoever asked for it is told by a
//! [`Notification`] in its queue:
//!
//! | who | when | of |
//! | --- | --- | --- |
//! | requester | the card has taken all of the command and needs the descriptor's memory no more (put: has read the source) | put, get, immediate put |
//! | responder | the memory read by a get has been read | get |
//! | completer | the data have been written, all of them | put (on the target), get (on the requester), immediate put (on the target) |
//!
//! A command that fails notifies its requester with the error whether it asked for it or not; a
//! put's completer and a get's responder when some of it may have been done. A get's completer,
//! which is the requester too, is told of success alone. Commands of one VPID to one target are
//! carried out in order, and so are their notifications as the requester; where a put follows a get
//! it waits for it.
//!
//! A source or destination lies in one region of the address translation. What is left in memory
//! that is both is not specified. A VPID whose memory is not mapped into the card's process, but
//! reached by messages, can be served too, at the cost of a message for each 64 KiB.
//!
//! A queue is enabled with [`crate::extoll::window::RMA_READ_POINTER`] 0 and zeroed memory. A
//! notification for a full queue is lost and counted.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a descriptor.
pub const COMMAND_BYTES: usize = 24;
/// Bytes that a command moves at most.
pub const MAX_LENGTH: u32 = 8 << 20;
/// Bytes that an immediate put moves at most.
pub const MAX_IMMEDIATE: u32 = 8;
/// Commands of a VPID that are under way at most. A write that makes them more waits, with all that
/// its client writes behind it.
pub const MAX_COMMANDS: usize = 64;
/// Entries of a notification queue at least.
pub const MIN_ENTRIES: u64 = 64;
/// Entries of a notification queue at most.
pub const MAX_ENTRIES: u64 = 1 << 16;

/// A descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Command {
    /// Bits 63..48 target node, 47..40 target VPID, 39..36 what to do ([`command`]), 35..33 who is
    /// notified ([`notify`]), 32 zero, 31..0 length in bytes, 1 to [`MAX_LENGTH`].
    pub head: u64,
    /// Where to read: the requester's memory for a put, the target's for a get. The data themselves
    /// for an immediate put.
    pub source: u64,
    /// Where to write: the target's memory for a put or immediate put, the requester's for a get.
    pub destination: u64,
}

/// What a command does.
pub mod command {
    /// Lowest bit in the head.
    pub const SHIFT: u32 = 36;
    /// From the requester's memory to the target's.
    pub const PUT: u8 = 1;
    /// From the target's memory to the requester's.
    pub const GET: u8 = 2;
    /// The first bytes of [`super::Command::source`] to the target's memory.
    pub const IMMEDIATE_PUT: u8 = 3;
}

/// Who is notified.
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

impl Command {
    /// Bits of [`Command::head`] that must be zero.
    pub const RESERVED: u64 = 1 << 32;

    /// A descriptor.
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
        let head = ((node as u64 & 0xffff) << 48)
            | ((vpid as u64 & 0xff) << 40)
            | ((command as u64 & 0xf) << command::SHIFT)
            | ((notify as u64 & 7) << notify::SHIFT)
            | length as u64;
        Self { head, source, destination }
    }

    /// Target node.
    #[inline]
    pub const fn node(&self) -> u32 {
        (self.head >> 48) as u32
    }

    /// Target VPID.
    #[inline]
    pub const fn vpid(&self) -> u16 {
        ((self.head >> 40) & 0xff) as u16
    }

    /// What to do.
    #[inline]
    pub const fn command(&self) -> u8 {
        ((self.head >> command::SHIFT) & 0xf) as u8
    }

    /// Who is notified.
    #[inline]
    pub const fn notify(&self) -> u8 {
        ((self.head >> notify::SHIFT) & 7) as u8
    }

    /// Length in bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.head as u32
    }
}

/// An entry of a notification queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Notification {
    /// Bit 63: 1, so that a filled entry is never 0; software zeroes it when it has taken the
    /// entry. Bits 62..60 who this is told as ([`notify`]), 59..56 what became of it ([`status`]),
    /// 55..52 the command, 51..48 zero, 47..32 the other node, 31..24 the other VPID, 23..0 length
    /// in bytes. The card writes it last, with release order.
    pub head: u64,
    /// As the requester: the command's source (put, immediate put) or destination (get). As the
    /// responder: the address read. As the completer: the address written.
    pub address: u64,
}

/// What became of a command.
pub mod status {
    /// Done.
    pub const DONE: u8 = 0;
    /// The requester's own address is not registered, or not for this.
    pub const LOCAL_ADDRESS: u8 = 1;
    /// The target's address is not registered, not the target VPID's, or not for this. Nothing was
    /// moved.
    pub const REMOTE_ADDRESS: u8 = 2;
    /// The target node or VPID does not exist or is not there.
    pub const NO_RECEIVER: u8 = 3;
    /// The memory was deregistered, unmapped, or its owner ended while the command ran: some of it
    /// may have been moved.
    pub const WITHDRAWN: u8 = 4;
    /// The command makes no sense.
    pub const COMMAND: u8 = 5;
    /// Nothing came from the target for longer than the watchdog
    /// ([`crate::extoll::reg::RMA_WATCHDOG`]) allows. What was sent may be carried out yet.
    pub const TIMED_OUT: u8 = 6;
}

impl Notification {
    /// In [`Notification::head`] of every entry that is filled.
    pub const VALID: u64 = 1 << 63;

    /// A filled entry.
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
            | ((role as u64 & 7) << 60)
            | ((status as u64 & 0xf) << 56)
            | ((command as u64 & 0xf) << 52)
            | ((node as u64 & 0xffff) << 32)
            | ((vpid as u64 & 0xff) << 24)
            | (length as u64 & 0xff_ffff);

        Self { head, address }
    }

    /// Whether it is filled.
    #[inline]
    pub const fn is_valid(&self) -> bool {
        self.head & Self::VALID != 0
    }

    /// Who this is told as: one of [`notify`].
    #[inline]
    pub const fn role(&self) -> u8 {
        ((self.head >> 60) & 7) as u8
    }

    /// What became of it: one of [`status`].
    #[inline]
    pub const fn status(&self) -> u8 {
        ((self.head >> 56) & 0xf) as u8
    }

    /// The command: one of [`command`].
    #[inline]
    pub const fn command(&self) -> u8 {
        ((self.head >> 52) & 0xf) as u8
    }

    /// The other node: the target, as the requester; the requester, as the responder and as a put's
    /// completer.
    #[inline]
    pub const fn node(&self) -> u32 {
        ((self.head >> 32) & 0xffff) as u32
    }

    /// The other VPID.
    #[inline]
    pub const fn vpid(&self) -> u16 {
        ((self.head >> 24) & 0xff) as u16
    }

    /// Length in bytes.
    #[inline]
    pub const fn length(&self) -> u32 {
        (self.head & 0xff_ffff) as u32
    }
}

const _: () = assert!(size_of::<Command>() == COMMAND_BYTES && size_of::<Notification>() == 16);
