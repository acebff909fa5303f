//! Notifications of a port.

use std::ops::BitOr;

use nicforge_hwi::extoll_rma::{self as hw, command, notify, status};

/// Selects the processes that a command notifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify(pub(crate) u8);

impl Notify {
    /// No process, unless the command fails.
    pub const NONE: Self = Self(0);
    /// The process that posts the command, when the command has ended and no longer needs its
    /// memory.
    pub const REQUESTER: Self = Self(notify::REQUESTER);
    /// The target of a get, when its memory has been read.
    pub const RESPONDER: Self = Self(notify::RESPONDER);
    /// The process that receives the data: the target of a put, the requester of a get.
    pub const COMPLETER: Self = Self(notify::COMPLETER);
}

impl BitOr for Notify {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The part that the notified port has in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The port posted the command.
    Requester,
    /// A get has read the port's memory.
    Responder,
    /// The data is in the port's memory.
    Completer,
}

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A put.
    Put,
    /// A get.
    Get,
    /// An immediate put.
    ImmediatePut,
    /// A code that this library does not know.
    Unknown(u8),
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The command was carried out.
    Done,
    /// The requester's own address is not registered, or not for this access.
    LocalAddress,
    /// The target's address is not registered, belongs to another VPID, or is not registered for
    /// this access. Nothing was moved.
    RemoteAddress,
    /// No process has the target VPID, or it does not exist.
    NoReceiver,
    /// The memory of one side was deregistered or unmapped, or its owner ended. Some of the data
    /// may have been moved.
    Withdrawn,
    /// The card rejected the command as invalid.
    Command,
    /// The target sent nothing for longer than the card's watchdog allows. The command may have
    /// been carried out, or may still be.
    TimedOut,
    /// A status that this library does not know.
    Unknown(u8),
}

/// An entry of the notification queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// This port's part in the command.
    pub role: Role,
    /// Result of the command.
    pub status: Status,
    /// Kind of the command.
    pub kind: Kind,
    /// The other side's node: the target's for the requester, the requester's for the other roles.
    pub node: u32,
    /// The other side's VPID.
    pub vpid: u16,
    /// Length of the command in bytes.
    pub length: u32,
    /// This port's address in the command. For the requester of an immediate put, the data instead.
    pub address: u64,
}

impl Notification {
    /// Returns whether the command was carried out.
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
