//! What a port is told.

use std::ops::BitOr;

use nicforge_hwi::extoll_rma::{self as hw, command, notify, status};

/// Who is to be notified of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify(pub(crate) u8);

impl Notify {
    /// Nobody, unless it fails.
    pub const NONE: Self = Self(0);
    /// Who posts it, when its memory is not needed any more: the command has ended.
    pub const REQUESTER: Self = Self(notify::REQUESTER);
    /// The target of a get, when its memory has been read.
    pub const RESPONDER: Self = Self(notify::RESPONDER);
    /// Who has the data then: the target of a put, the requester of a get.
    pub const COMPLETER: Self = Self(notify::COMPLETER);
}

impl BitOr for Notify {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// As whom a port is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It posted the command.
    Requester,
    /// Its memory was read by a get.
    Responder,
    /// The data are in its memory.
    Completer,
}

/// What a command was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A put.
    Put,
    /// A get.
    Get,
    /// An immediate put.
    ImmediatePut,
    /// None that the card knows.
    Unknown(u8),
}

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Done,
    /// The requester's own address is not registered, or not for this.
    LocalAddress,
    /// The target's address is not registered, not the target's, or not for this. Nothing was moved.
    RemoteAddress,
    /// Nobody has the target VPID, or there is none such.
    NoReceiver,
    /// Memory of one side was deregistered, unmapped or its owner ended meanwhile. Some of it may have been moved.
    Withdrawn,
    /// The command made no sense.
    Command,
    /// Nothing came from the target for longer than the card's watchdog allows. Whether the command was carried out, or still will be, is not known.
    TimedOut,
    /// A status that this library does not know.
    Unknown(u8),
}

/// An entry of the notification queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// As whom this port is told.
    pub role: Role,
    /// What became of it.
    pub status: Status,
    /// What it was.
    pub kind: Kind,
    /// The other side: the target, for the requester; the requester, for the others.
    pub node: u32,
    /// The other side's VPID.
    pub vpid: u16,
    /// Bytes of the command.
    pub length: u32,
    /// This port's address in it. As the requester of an immediate put: the data.
    pub address: u64,
}

impl Notification {
    /// Whether the command was carried out.
    pub fn is_done(&self) -> bool {
        self.status == Status::Done
    }
}

impl From<hw::Notification> for Notification {
    fn from(entry: hw::Notification) -> Self {
        Self {
            role: match entry.role() {
                notify::RESPONDER => Role::Responder,
                notify::COMPLETER => Role::Completer,
                _ => Role::Requester,
            },
            status: match entry.status() {
                status::DONE => Status::Done,
                status::LOCAL_ADDRESS => Status::LocalAddress,
                status::REMOTE_ADDRESS => Status::RemoteAddress,
                status::NO_RECEIVER => Status::NoReceiver,
                status::WITHDRAWN => Status::Withdrawn,
                status::COMMAND => Status::Command,
                status::TIMED_OUT => Status::TimedOut,
                other => Status::Unknown(other),
            },
            kind: match entry.command() {
                command::PUT => Kind::Put,
                command::GET => Kind::Get,
                command::IMMEDIATE_PUT => Kind::ImmediatePut,
                other => Kind::Unknown(other),
            },
            node: entry.node(),
            vpid: entry.vpid(),
            length: entry.length(),
            address: entry.address,
        }
    }
}
