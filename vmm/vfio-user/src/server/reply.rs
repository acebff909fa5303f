//! Replies to requests.

use std::os::fd::BorrowedFd;

use zerocopy::IntoBytes;

use super::deferred::{ReplyKind, Request};
use crate::Errno;
use crate::socket::{FrameError, SendHalf};
use crate::wire::{HEADER_SIZE, Header, RegionAccess, ShortPayload, WriteMultiPayload};

/// Why a request failed.
pub(super) enum Refusal {
    /// A check or the handler refused it, with this error for the client.
    Errno(Errno),
    /// The stream is lost, which ends the connection.
    Frame(FrameError),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<ShortPayload> for Refusal {
    fn from(_: ShortPayload) -> Self {
        Self::Errno(Errno::EINVAL)
    }
}

impl From<FrameError> for Refusal {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

/// Sends the reply to a request that is done and returns no data.
pub(super) fn acknowledge(
    out: &mut SendHalf<'_>,
    request: Request,
    kind: &ReplyKind,
) -> Result<(), FrameError> {
    match kind {
        ReplyKind::Empty => reply_fixed(out, request, &[]),
        ReplyKind::Unmap(entry) | ReplyKind::UnmapAfterDma { entry, .. } => {
            reply_fixed(out, request, entry.as_bytes())
        }
        ReplyKind::Read(access) | ReplyKind::Write(access) => reply_fixed(out, request, access.as_bytes()),
        ReplyKind::Multi { next, .. } => {
            let done = WriteMultiPayload { wr_cnt: (*next as u64).into() };
            reply_fixed(out, request, done.as_bytes())
        }
    }
}

/// Sends a reply that consists of a fixed structure, which may be empty, without data and
/// descriptors.
pub(super) fn reply_fixed(out: &mut SendHalf<'_>, request: Request, fixed: &[u8]) -> Result<(), FrameError> {
    reply(out, request, fixed, &[], &[])
}

/// Sends a reply of a header, the structure `fixed` and `data` in one piece, with descriptors. It
/// sends nothing if the client wants no reply.
pub(super) fn reply(
    out: &mut SendHalf<'_>,
    request: Request,
    fixed: &[u8],
    data: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), FrameError> {
    if request.no_reply {
        return Ok(());
    }
    let header = Header::reply(request.id, request.command, fixed.len() + data.len()).to_bytes();
    if data.is_empty() {
        return out.send(&header, fixed, fds);
    }
    // Data follow only a region access, so `head` has room for the fixed structure.
    let mut head = [0; HEADER_SIZE + size_of::<RegionAccess>()];
    let length = (HEADER_SIZE + fixed.len()).min(head.len());
    head[..HEADER_SIZE].copy_from_slice(&header);
    head[HEADER_SIZE..length].copy_from_slice(&fixed[..length - HEADER_SIZE]);
    out.send(&head[..length], data, fds)
}
