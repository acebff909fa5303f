//! `REGION_WRITE_MULTI`: thousands of writes in one message, carried out in pieces.

use std::borrow::Cow;

use zerocopy::{FromBytes, IntoBytes};

use super::deferred::{Deferred, ReplyKind, Request};
use super::dispatcher::Dispatcher;
use super::handler::{Handler, Outcome};
use super::reply::{Refusal, reply_fixed};
use crate::Errno;
use crate::socket::SendHalf;
use crate::wire::*;

/// Number of writes of a `REGION_WRITE_MULTI` that are carried out in one step of a turn.
const WRITES_PER_STEP: usize = 64;

impl Dispatcher {
    /// Carries out `REGION_WRITE_MULTI`, after all of its writes were checked.
    pub(super) fn write_multi(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        if !self.config.write_multiple {
            return Err(Errno::ENOTSUP.into());
        }

        let (head, records) = parse_prefix::<WriteMultiPayload>(payload)?;
        let (writes, rest) = records.as_chunks::<{ size_of::<MultiWrite>() }>();
        // All writes are checked before the first has an effect.
        let has_valid_count = rest.is_empty() && writes.len() as u64 == head.wr_cnt.get();
        if !has_valid_count || !writes.iter().all(|record| write_is_valid(record)) {
            return Err(Errno::EINVAL.into());
        }
        self.run_multi(out, request, records.into(), 0, handler)
    }

    /// Carries out [`WRITES_PER_STEP`] of the writes in `records`, from number `first` on. The rest
    /// becomes a deferred request that continues in the next step.
    pub(super) fn run_multi(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        records: Cow<'_, [u8]>,
        first: usize,
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (writes, _) = records.as_chunks::<{ size_of::<MultiWrite>() }>();
        let total = writes.len();

        for (index, record) in writes.iter().enumerate().skip(first).take(WRITES_PER_STEP) {
            let (write, _) = parse_prefix::<MultiWrite>(record)?;
            let data = &write.data[..(write.count.get() as usize).min(write.data.len())];
            match handler.region_write(write.region.get(), write.offset.get(), data) {
                Outcome::Done => {}
                Outcome::Failed(errno) => return Err(errno.into()),
                deferred @ Outcome::Deferred(_) => {
                    let kind = ReplyKind::Multi { records: records.into_owned(), next: index + 1 };
                    return self.finish_or_defer(out, request, deferred, kind);
                }
            }
        }

        let next = first.saturating_add(WRITES_PER_STEP);
        if next < total {
            let kind = ReplyKind::Multi { records: records.into_owned(), next };
            // The result is there already, so the next step continues without the handler. No token
            // is needed.
            let (result, data) = (Some(Ok(())), Vec::new());
            self.deferred = Some(Deferred { token: 0, request, kind, result, data, was_asked: false });
            return Ok(());
        }

        let done = WriteMultiPayload { wr_cnt: (total as u64).into() };
        Ok(reply_fixed(out, request, done.as_bytes())?)
    }
}

/// Returns whether a write has 1 to 8 bytes that end within the address space.
fn write_is_valid(record: &[u8]) -> bool {
    MultiWrite::read_from_bytes(record).is_ok_and(|write| {
        let count = write.count.get();
        count >= 1
            && count as usize <= write.data.len()
            && write.offset.get().checked_add(count.into()).is_some()
    })
}
