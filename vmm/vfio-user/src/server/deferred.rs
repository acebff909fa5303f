//! Requests that are answered later.

use super::handler::Token;
use crate::Errno;
use crate::types::DmaUnmap;
use crate::wire::{Command, DmaUnmapPayload, RegionAccess};

/// The parts of a request that its reply needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) id: u16,
    pub(super) command: Command,
    pub(super) no_reply: bool,
}

/// The kind of a request, with what its reply repeats and what is still to be done.
#[derive(Debug)]
pub(super) enum ReplyKind {
    /// A map or a reset. The reply is empty.
    Empty,
    /// An unmap that the handler carries out. The reply repeats the request.
    Unmap(DmaUnmapPayload),
    /// As [`Self::Unmap`]. The handler has unmapped the range, and the reply waits for the replies
    /// to the DMA requests on the second socket that touch the range.
    UnmapAfterDma { entry: DmaUnmapPayload, unmap: DmaUnmap },
    /// A read. The reply repeats the request's fixed part, and brings data.
    Read(RegionAccess),
    /// A write. The reply repeats the request's fixed part.
    Write(RegionAccess),
    /// A `REGION_WRITE_MULTI`, of whose writes those from number `next` on are still to be done.
    Multi { records: Vec<u8>, next: usize },
}

/// A request that is answered later.
#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) token: Token,
    pub(super) kind: ReplyKind,
    /// Result, once the request is completed.
    pub(super) result: Option<Result<(), Errno>>,
    /// Data of a completed read.
    pub(super) data: Vec<u8>,
    /// Whether the handler was asked to give the request up ([`Handler::reset_pending`]), or need
    /// not be asked.
    ///
    /// [`Handler::reset_pending`]: super::Handler::reset_pending
    pub(super) was_asked: bool,
    pub(super) request: Request,
}

impl Deferred {
    /// Returns whether the handler's side must complete the request before it can be answered.
    pub(super) fn awaits_handler(&self) -> bool {
        self.result.is_none() && !matches!(self.kind, ReplyKind::UnmapAfterDma { .. })
    }
}
