//! `REGION_READ` and `REGION_WRITE`.

use zerocopy::IntoBytes;

use super::deferred::{ReplyKind, Request};
use super::dispatcher::Dispatcher;
use super::handler::{Handler, Outcome};
use super::reply::{Refusal, reply};
use crate::Errno;
use crate::socket::SendHalf;
use crate::wire::{RegionAccess, parse_prefix};

impl Dispatcher {
    /// Carries out `REGION_READ`, and replies unless the handler defers it.
    pub(super) fn region_read(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (access, _) = parse_prefix::<RegionAccess>(payload)?;
        let count = self.check_access(&access)?;

        self.read_data.clear();
        self.read_data.resize(count, 0);

        let outcome = if count == 0 {
            Outcome::Done
        } else {
            handler.region_read(access.region.get(), access.offset.get(), &mut self.read_data)
        };

        match outcome {
            Outcome::Done => Ok(reply(out, request, access.as_bytes(), &self.read_data, &[])?),
            other => self.finish_or_defer(out, request, other, ReplyKind::Read(access)),
        }
    }

    /// Carries out `REGION_WRITE`, and replies unless the handler defers it.
    pub(super) fn region_write(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (access, data) = parse_prefix::<RegionAccess>(payload)?;
        let count = self.check_access(&access)?;
        if data.len() != count {
            return Err(Errno::EINVAL.into());
        }
        let outcome = if count == 0 {
            Outcome::Done
        } else {
            handler.region_write(access.region.get(), access.offset.get(), data)
        };
        self.finish_or_defer(out, request, outcome, ReplyKind::Write(access))
    }

    /// Returns the number of bytes of an access, or an error if they are too many for one message
    /// or end beyond the address space.
    fn check_access(&self, access: &RegionAccess) -> Result<usize, Errno> {
        let count = access.count.get() as usize;
        if count > self.max_access || access.offset.get().checked_add(count as u64).is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(count)
    }
}
