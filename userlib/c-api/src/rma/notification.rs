//! Notifications: which processes a command notifies, and what they receive.
//!
//! UNSAFETY: as in the module above.

use nicforge_rma::{Kind, Notification, Notify, Role, Status};

use crate::support::{Failure, non_null};

/// Notifies no process, unless the command fails.
pub const RMA_NOTIFY_NONE: u32 = 0;
/// Notifies the process that posts the command, when the command has ended.
pub const RMA_NOTIFY_REQUESTER: u32 = 1;
/// Notifies the target of a get, when its memory has been read.
pub const RMA_NOTIFY_RESPONDER: u32 = 2;
/// Notifies the process that receives the data: the target of a put, the requester of a get.
pub const RMA_NOTIFY_COMPLETER: u32 = 4;

/// Kind of a command: put.
pub const RMA_PUT: u8 = 1;
/// Kind of a command: get.
pub const RMA_GET: u8 = 2;
/// Kind of a command: immediate put.
pub const RMA_IMMEDIATE_PUT: u8 = 3;

/// Status of a command: carried out.
pub const RMA_DONE: u8 = 0;
/// Status of a command: the requester's own address is not registered, or the region ends before
/// the end of the command.
pub const RMA_LOCAL_ADDRESS: u8 = 1;
/// Status of a command: the target's address is not registered, belongs to another VPID, or is not
/// registered for this access. Nothing was moved.
pub const RMA_REMOTE_ADDRESS: u8 = 2;
/// Status of a command: no process has opened the target VPID.
pub const RMA_NO_RECEIVER: u8 = 3;
/// Status of a command: memory of one side was deregistered or unmapped before the command ended.
/// Some of the data may have been moved.
pub const RMA_WITHDRAWN: u8 = 4;
/// Status of a command: the card rejected it as invalid.
pub const RMA_COMMAND: u8 = 5;
/// Status of a command: its target sent nothing for longer than the card's watchdog allows. The
/// command may still be carried out, or not.
pub const RMA_TIMED_OUT: u8 = 6;

/// An entry of the notification queue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rma_notification {
    /// This port's address in the command. For the requester of an immediate put, the data instead.
    pub address: u64,
    /// Length of the command in bytes.
    pub length: u32,
    /// The other side's node: the target's for the requester, the requester's for the other roles.
    pub node: u32,
    /// The other side's VPID.
    pub vpid: u16,
    /// This port's part in the command: RMA_NOTIFY_REQUESTER, RMA_NOTIFY_RESPONDER or
    /// RMA_NOTIFY_COMPLETER.
    pub role: u8,
    /// Kind of the command: RMA_PUT, RMA_GET or RMA_IMMEDIATE_PUT.
    pub kind: u8,
    /// Result of the command: RMA_DONE, or one of the other statuses.
    pub status: u8,
}

/// Returns the set of notified processes for a mask of C.
pub(crate) fn notify_set(notify: u32) -> Result<Notify, Failure> {
    let unknown = notify & !(RMA_NOTIFY_REQUESTER | RMA_NOTIFY_RESPONDER | RMA_NOTIFY_COMPLETER);
    if unknown != 0 {
        return Err(Failure::new(
            libc::EINVAL,
            format!("notify {notify:#x} has unknown bits {unknown:#x}: use RMA_NOTIFY_..."),
        ));
    }

    let known = [
        (RMA_NOTIFY_REQUESTER, Notify::REQUESTER),
        (RMA_NOTIFY_RESPONDER, Notify::RESPONDER),
        (RMA_NOTIFY_COMPLETER, Notify::COMPLETER),
    ];

    Ok(known.into_iter().filter(|(bit, _)| notify & bit != 0).fold(Notify::NONE, |all, (_, one)| all | one))
}

/// Stores a notification for C.
///
/// # Safety
/// `out` is NULL or valid.
pub(crate) unsafe fn store_notification(notification: &Notification, out: *mut rma_notification) {
    if let Ok(out) = non_null(out, "notification") {
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(notification.into()) };
    }
}

impl From<&Notification> for rma_notification {
    fn from(notification: &Notification) -> Self {
        let role = match notification.role {
            Role::Requester => RMA_NOTIFY_REQUESTER,
            Role::Responder => RMA_NOTIFY_RESPONDER,
            Role::Completer => RMA_NOTIFY_COMPLETER,
        };

        Self {
            address: notification.address,
            length: notification.length,
            node: notification.node,
            vpid: notification.vpid,
            // The value is 1, 2 or 4.
            role: role as u8,

            kind: match notification.kind {
                Kind::Put => RMA_PUT,
                Kind::Get => RMA_GET,
                Kind::ImmediatePut => RMA_IMMEDIATE_PUT,
                Kind::Unknown(kind) => kind,
            },

            status: match notification.status {
                Status::Done => RMA_DONE,
                Status::LocalAddress => RMA_LOCAL_ADDRESS,
                Status::RemoteAddress => RMA_REMOTE_ADDRESS,
                Status::NoReceiver => RMA_NO_RECEIVER,
                Status::Withdrawn => RMA_WITHDRAWN,
                Status::Command => RMA_COMMAND,
                Status::TimedOut => RMA_TIMED_OUT,
                Status::Unknown(status) => status,
            },
        }
    }
}
