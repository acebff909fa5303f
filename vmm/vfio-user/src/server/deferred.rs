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

/// State that a deferred request needs when it ends.
#[derive(Debug)]
pub(super) enum ReplyKind {
    /// The reply is empty: map, reset.
    Empty,
    /// The reply repeats the request's entry.
    Unmap(DmaUnmapPayload),
    /// As [`Self::Unmap`]. The handler has unmapped the range, and the reply waits for the DMA
    /// requests on the second socket that touch the range.
    Drain { entry: DmaUnmapPayload, unmap: DmaUnmap },
    /// The reply repeats the request's start, and brings data.
    Read(RegionAccess),
    /// The reply repeats the request's start.
    Write(RegionAccess),
    /// The writes from number `next` on are still to be done.
    Multi { records: Vec<u8>, next: usize },
}

/// A request that is answered later.
#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) token: Token,
    pub(super) kind: ReplyKind,
    /// Result, once the handler's side has completed it.
    pub(super) result: Option<Result<(), Errno>>,
    /// Data of a completed read.
    pub(super) data: Vec<u8>,
    /// Whether the handler was asked to give the request up, because a reset has arrived after it.
    pub(super) asked: bool,
    pub(super) request: Request,
}

impl Deferred {
    /// Returns whether the handler's side must complete the request before it can be answered.
    pub(super) fn awaits_handler(&self) -> bool {
        self.result.is_none() && !matches!(self.kind, ReplyKind::Drain { .. })
    }
}
