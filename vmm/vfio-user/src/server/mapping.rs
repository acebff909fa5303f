//! `DMA_MAP` and `DMA_UNMAP`.

use vfio_bindings::bindings::vfio;

use super::deferred::{Deferred, ReplyKind, Request};
use super::dispatcher::Dispatcher;
use super::handler::{Handler, Outcome};
use super::reply::{Refusal, acknowledge};
use crate::Errno;
use crate::socket::{Message, SendHalf};
use crate::types::{DMA_FLAG_READ, DMA_FLAG_WRITE, DmaMap, DmaUnmap};
use crate::wire::{DEFAULT_MAX_DATA_XFER_SIZE, DmaMapPayload, DmaUnmapPayload, parse_prefix};

impl Dispatcher {
    /// Checks a `DMA_MAP`, lets the handler map the range, and replies unless the handler defers
    /// it.
    pub(super) fn dma_map(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        message: Message<'_>,
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (raw, _) = parse_prefix::<DmaMapPayload>(message.payload)?;
        if message.fds_lost {
            return Err(Errno::EMFILE.into());
        }

        let map = DmaMap {
            flags: raw.flags.get(),
            offset: raw.offset.get(),
            address: raw.address.get(),
            size: raw.size.get(),
        };

        // A range consists of whole pages of the smallest size, as with VFIO's type 1 IOMMU. If
        // ranges could have a few bytes, one DMA operation would have to search thousands. (The
        // limit of 63 keeps the shift from overflowing if no page size is configured.)
        let smallest_page = 1 << self.config.pgsizes.trailing_zeros().min(63);
        let is_valid = map.flags & !(DMA_FLAG_READ | DMA_FLAG_WRITE) == 0
            && range_is_valid(map.address, map.size)
            && map.address.is_multiple_of(smallest_page)
            && map.size.is_multiple_of(smallest_page)
            && map.offset.checked_add(map.size).is_some()
            && message.fds.len() <= 1;
        if !is_valid {
            return Err(Errno::EINVAL.into());
        }

        let outcome = handler.dma_map(map, message.fds.into_iter().next());
        self.finish_or_defer(out, request, outcome, ReplyKind::Empty)
    }

    /// Checks a `DMA_UNMAP`, lets the handler unmap the ranges, and replies unless the handler
    /// defers it.
    pub(super) fn dma_unmap(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (raw, _) = parse_prefix::<DmaUnmapPayload>(payload)?;
        self.check_unmap_argsz(raw.argsz.get())?;
        let unmap = unmapped_by(&raw)?;

        match handler.dma_unmap(unmap) {
            Outcome::Done => self.finish_unmap(out, request, raw, unmap, handler),
            outcome => self.finish_or_defer(out, request, outcome, ReplyKind::Unmap(raw)),
        }
    }

    /// Answers an unmap that the handler has done. A DMA request on the second socket could
    /// overtake the answer, so the answer waits there for the replies to the requests that touch
    /// the range.
    pub(super) fn finish_unmap(
        &mut self,
        out: &mut SendHalf<'_>,
        request: Request,
        entry: DmaUnmapPayload,
        unmap: DmaUnmap,
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let must_wait = if self.second_socket.is_some() {
            self.dma.end_unmapped_after_reply(&unmap)
        } else {
            self.dma.end_unmapped(&unmap, handler);
            false
        };
        if !must_wait {
            return Ok(acknowledge(out, request, &ReplyKind::Unmap(entry))?);
        }

        let (kind, data) = (ReplyKind::UnmapAfterDma { entry, unmap }, Vec::new());
        // The handler is done, so it is not asked to give the request up, and needs no token.
        self.deferred = Some(Deferred { token: 0, request, kind, result: None, data, was_asked: true });
        Ok(())
    }

    /// Checks `argsz`, the room that the client has for the reply to its `DMA_UNMAP`. The reply
    /// must fit, and, as in libvfio-user, the room must not exceed a data transfer.
    fn check_unmap_argsz(&self, argsz: u32) -> Result<(), Errno> {
        let maximum = self.max_access.max(DEFAULT_MAX_DATA_XFER_SIZE as usize);
        let sizes = size_of::<DmaUnmapPayload>()..=maximum;
        if sizes.contains(&(argsz as usize)) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Returns the ranges that a `DMA_UNMAP` names, or an error if the request is invalid.
pub(super) fn unmapped_by(entry: &DmaUnmapPayload) -> Result<DmaUnmap, Errno> {
    let (address, size) = (entry.address.get(), entry.size.get());
    match entry.flags.get() {
        0 if range_is_valid(address, size) => Ok(DmaUnmap::Range { address, size }),
        vfio::VFIO_DMA_UNMAP_FLAG_ALL if address == 0 && size == 0 => Ok(DmaUnmap::All),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether the range is not empty and its last byte has an address.
fn range_is_valid(address: u64, size: u64) -> bool {
    size != 0 && address.checked_add(size - 1).is_some()
}
