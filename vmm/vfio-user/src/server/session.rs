//! Serving of one message: check the request, call the handler, send the reply.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use vfio_bindings::bindings::vfio;
use zerocopy::IntoBytes;

use super::dma::{DmaTable, Limits};
use super::handler::{Handler, Outcome, Token};
use super::twin::Twin;
use super::{ConnectionError, Counters, ServerConfig, irqs};
use crate::Errno;
use crate::socket::{Closer, FrameError, Message, Outlet};
use crate::types::{DMA_FLAG_READ, DMA_FLAG_WRITE, DmaMap, DmaUnmap, REGION_FLAG_MMAP};
use crate::wire::*;

/// The parts of a request that its reply needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) id: u16,
    pub(super) command: Command,
    pub(super) no_reply: bool,
}

/// State that a deferred request needs when it ends.
#[derive(Debug)]
pub(super) enum Kind {
    /// The reply is empty: map, reset.
    Empty,
    /// The reply repeats the request's entry.
    Unmap(DmaUnmapPayload),
    /// As [`Self::Unmap`]; the handler is done, and the reply waits for DMA requests on the second
    /// socket.
    Drain { entry: DmaUnmapPayload, unmap: DmaUnmap },
    /// The reply repeats the request's start, and brings data.
    Read(RegionAccess),
    /// The reply repeats the request's start.
    Write(RegionAccess),
    /// The writes from number `next` on are still to be done.
    Multi { records: Vec<u8>, next: usize },
}

#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) token: Token,
    pub(super) kind: Kind,
    /// Result, once the handler's side has completed it.
    pub(super) result: Option<Result<(), Errno>>,
    /// Data of a completed read.
    pub(super) data: Vec<u8>,
    /// Whether the handler was asked to give it up for a reset behind it.
    pub(super) asked: bool,
    pub(super) request: Request,
}

impl Deferred {
    /// Whether it waits for the handler's side to complete it.
    pub(super) fn is_the_handlers(&self) -> bool {
        self.result.is_none() && !matches!(self.kind, Kind::Drain { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    AwaitVersion,
    Running,
    Ended,
}

#[derive(Debug)]
pub(super) struct Session {
    /// The second socket, if the client proposed one.
    pub(super) twin: Option<Twin>,
    /// Closes descriptors of the client.
    pub(super) closer: Option<Arc<dyn Closer>>,
    pub(super) config: ServerConfig,
    pub(super) state: State,
    pub(super) peer: Capabilities,
    pub(super) deferred: Option<Deferred>,
    pub(super) dma: DmaTable,
    pub(super) limits: Limits,
    pub(super) counters: Counters,
    /// Size of a new largest message, set on the stream once no message is borrowed from it.
    pub(super) new_limit: Option<usize>,
    /// Stream position up to which messages were searched for resets.
    pub(super) scanned: u64,
    /// Resets found there that were not served yet.
    pub(super) resets_ahead: u32,
    /// Most bytes of data in one access.
    pub(super) transfer: usize,
    scratch: Vec<u8>,
}

impl Session {
    pub(super) fn new(config: ServerConfig) -> Self {
        Self {
            twin: None,
            closer: None,
            state: State::AwaitVersion,
            peer: Capabilities::default(),
            deferred: None,
            dma: DmaTable::new(config.max_dma_outstanding),
            limits: Limits { transfer: DEFAULT_MAX_DATA_XFER_SIZE as usize, queue: config.max_queued },
            counters: Counters::default(),
            new_limit: None,
            scanned: 0,
            resets_ahead: 0,
            transfer: config.max_data_xfer_size as usize,
            scratch: Vec::new(),
            config,
        }
    }

    pub(super) fn dispatch(
        &mut self,
        out: &mut Outlet<'_>,
        message: Message<'_>,
        handler: &mut dyn Handler,
    ) -> Result<(), ConnectionError> {
        self.counters.messages += 1;
        let header = message.header;
        if header.message_type() == MessageType::Reply {
            // A reply gets no answer. One that no operation waits for is dropped, as QEMU does.
            let is_expected = self.expects(&header);
            if !is_expected || !self.dma.on_reply(out, self.limits, &header, message.payload, handler)? {
                self.counters.unmatched_replies += 1;
            }
            return Ok(());
        }

        let request = Request { id: header.id, command: header.command, no_reply: header.no_reply() };
        if header.command == Command::DeviceReset && message.end <= self.scanned {
            self.resets_ahead = self.resets_ahead.saturating_sub(1);
        }

        if self.state == State::AwaitVersion {
            return self.version(out, request, message.payload);
        }

        let result = match header.command {
            Command::DmaMap => self.dma_map(out, request, message, handler),
            Command::DmaUnmap => self.dma_unmap(out, request, message.payload, handler),
            Command::DeviceGetInfo => device_info(out, request, message.payload, handler),
            Command::DeviceGetRegionInfo => self.region_info(out, request, message.payload, handler),
            Command::DeviceGetIrqInfo => irq_info(out, request, message.payload, handler),
            Command::DeviceSetIrqs => match irqs::check(message, handler) {
                Ok(irqs) => match handler.set_irqs(irqs) {
                    Ok(()) => Ok(reply(out, request, &[], &[], &[])?),
                    Err(errno) => Err(errno.into()),
                },
                Err(errno) => Err(errno.into()),
            },
            Command::RegionRead => self.region_read(out, request, message.payload, handler),
            Command::RegionWrite => self.region_write(out, request, message.payload, handler),
            Command::RegionWriteMulti => self.write_multi(out, request, message.payload, handler),
            Command::DeviceReset => self.outcome(out, request, handler.reset(), Kind::Empty),
            // A version comes once; requests of the other direction make no sense in this one.
            Command::Version | Command::DmaRead | Command::DmaWrite => Err(Errno::EINVAL.into()),
            // Every feature in the specification belongs to migration, which is not offered here. A
            // probe of such a feature fails, and the reference answers EINVAL then.
            Command::DeviceFeature | Command::MigDataRead | Command::MigDataWrite => {
                Err(Errno::EINVAL.into())
            }
            // For the dirty page command of older drafts, ENOTSUP means a device without migration.
            Command::DirtyPages | Command::DeviceGetRegionIoFds => Err(Errno::ENOTSUP.into()),
            Command::Unknown(_) => Err(Errno::ENOSYS.into()),
        };

        match result {
            Ok(()) => Ok(()),
            Err(Refusal::Errno(errno)) => Ok(self.fail(out, request, errno)?),
            Err(Refusal::Frame(error)) => Err(error.into()),
        }
    }

    /// Whether an operation waits for this reply on the first socket.
    pub(super) fn expects(&self, header: &Header) -> bool {
        self.twin.is_none() && self.dma.expects(header)
    }

    /// Ends the deferred request if it was completed; returns false otherwise.
    pub(super) fn finish_deferred(
        &mut self,
        out: &mut Outlet<'_>,
        handler: &mut dyn Handler,
    ) -> Result<bool, ConnectionError> {
        let Some(deferred) = self.deferred.take_if(|deferred| deferred.result.is_some()) else {
            return Ok(false);
        };

        let request = deferred.request;
        let result = match (deferred.result.unwrap_or(Ok(())), deferred.kind) {
            (Err(errno), _) => Err(errno.into()),
            (Ok(()), Kind::Read(access)) => {
                reply(out, request, access.as_bytes(), &deferred.data, &[]).map_err(Refusal::from)
            }
            (Ok(()), Kind::Multi { records, next }) => {
                self.run_multi(out, request, records.into(), next, handler)
            }
            (Ok(()), Kind::Unmap(entry)) => match what_is_unmapped(&entry) {
                Ok(unmap) => self.finish_unmap(out, request, entry, unmap, handler),
                Err(errno) => Err(errno.into()),
            },
            (Ok(()), kind) => acknowledge(out, request, &kind).map_err(Refusal::from),
        };

        match result {
            Ok(()) => Ok(true),
            Err(Refusal::Errno(errno)) => {
                self.fail(out, request, errno)?;
                Ok(true)
            }
            Err(Refusal::Frame(error)) => Err(error.into()),
        }
    }

    pub(super) fn fail(
        &mut self,
        out: &mut Outlet<'_>,
        request: Request,
        errno: Errno,
    ) -> Result<(), FrameError> {
        self.counters.failed += 1;
        if request.no_reply {
            return Ok(());
        }
        out.send(&Header::error_reply(request.id, request.command, errno).to_bytes(), &[], &[])
    }

    pub(super) fn outcome(
        &mut self,
        out: &mut Outlet<'_>,
        request: Request,
        outcome: Outcome,
        kind: Kind,
    ) -> Result<(), Refusal> {
        match outcome {
            Outcome::Done => Ok(acknowledge(out, request, &kind)?),
            Outcome::Failed(errno) => Err(errno.into()),
            Outcome::Deferred(token) => {
                let data = Vec::new();
                self.deferred = Some(Deferred { token, request, kind, result: None, data, asked: false });
                Ok(())
            }
        }
    }

    fn dma_map(
        &mut self,
        out: &mut Outlet<'_>,
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

        // As VFIO's type 1 IOMMU: whole pages of the smallest size. With ranges of a few bytes one
        // DMA operation would have to look at thousands.
        let page = 1 << self.config.pgsizes.trailing_zeros().min(63);
        let valid = map.flags & !(DMA_FLAG_READ | DMA_FLAG_WRITE) == 0
            && range_is_valid(map.address, map.size)
            && map.address.is_multiple_of(page)
            && map.size.is_multiple_of(page)
            && map.offset.checked_add(map.size).is_some()
            && message.fds.len() <= 1;
        if !valid {
            return Err(Errno::EINVAL.into());
        }

        let outcome = handler.dma_map(map, message.fds.into_iter().next());
        self.outcome(out, request, outcome, Kind::Empty)
    }

    fn dma_unmap(
        &mut self,
        out: &mut Outlet<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (raw, _) = parse_prefix::<DmaUnmapPayload>(payload)?;
        self.check_unmap_argsz(raw.argsz.get())?;
        let unmap = what_is_unmapped(&raw)?;

        match handler.dma_unmap(unmap) {
            Outcome::Done => self.finish_unmap(out, request, raw, unmap, handler),
            outcome => self.outcome(out, request, outcome, Kind::Unmap(raw)),
        }
    }

    /// Answers an unmap that the handler has done. A DMA request on the second socket could
    /// overtake the answer, so the answer waits there for the replies to the requests that touch
    /// the range.
    fn finish_unmap(
        &mut self,
        out: &mut Outlet<'_>,
        request: Request,
        entry: DmaUnmapPayload,
        unmap: DmaUnmap,
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let must_wait = if self.twin.is_some() {
            self.dma.unmapped_on_twin(&unmap)
        } else {
            self.dma.unmapped(&unmap, handler);
            false
        };
        if !must_wait {
            return Ok(acknowledge(out, request, &Kind::Unmap(entry))?);
        }

        let (kind, data) = (Kind::Drain { entry, unmap }, Vec::new());
        // The handler is done, so it is not asked to give the request up.
        self.deferred = Some(Deferred { token: 0, request, kind, result: None, data, asked: true });
        Ok(())
    }

    /// Checks the room that the client has for the reply to its `DMA_UNMAP`. The entry must fit,
    /// and, as in the reference, the room must not exceed a data transfer.
    fn check_unmap_argsz(&self, argsz: u32) -> Result<(), Errno> {
        let most = self.transfer.max(DEFAULT_MAX_DATA_XFER_SIZE as usize);
        let sizes = size_of::<DmaUnmapPayload>()..=most;
        if sizes.contains(&(argsz as usize)) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn region_info(
        &mut self,
        out: &mut Outlet<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (raw, _) = parse_prefix::<RegionInfoPayload>(payload)?;
        let argsz = raw.argsz.get();
        if (argsz as usize) < size_of::<RegionInfoPayload>() {
            return Err(Errno::EINVAL.into());
        }

        let mut info = handler.region_info(raw.index.get())?;
        let takes_fds = self.peer.max_msg_fds.is_none_or(|fds| fds > 0);
        if info.fd.is_none() || info.flags & REGION_FLAG_MMAP == 0 || !takes_fds {
            // A region without its descriptor cannot be mapped.
            info.flags &= !REGION_FLAG_MMAP;
            info.areas.clear();
            info.fd = None;
        } else if info.areas.is_empty() {
            // One area that covers the region: the reference's client takes a descriptor only
            // together with capabilities.
            info.areas = info.mappable();
        }

        let body = build_region_info(raw.index.get(), &info, argsz);

        // The descriptor goes out with the complete answer only. The reference's client has no room
        // for one in the first answer, and takes it for an error.
        let is_complete = region_info_size(&info) <= argsz as usize;
        let fd = info.fd.as_ref().filter(|_| is_complete).map(AsFd::as_fd);
        Ok(reply(out, request, &body, &[], fd.as_slice())?)
    }

    fn region_read(
        &mut self,
        out: &mut Outlet<'_>,
        request: Request,
        payload: &[u8],
        handler: &mut dyn Handler,
    ) -> Result<(), Refusal> {
        let (access, _) = parse_prefix::<RegionAccess>(payload)?;
        let count = self.check_access(&access)?;

        self.scratch.clear();
        self.scratch.resize(count, 0);

        let outcome = if count == 0 {
            Outcome::Done
        } else {
            handler.region_read(access.region.get(), access.offset.get(), &mut self.scratch)
        };

        match outcome {
            Outcome::Done => Ok(reply(out, request, access.as_bytes(), &self.scratch, &[])?),
            other => self.outcome(out, request, other, Kind::Read(access)),
        }
    }

    fn region_write(
        &mut self,
        out: &mut Outlet<'_>,
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
        self.outcome(out, request, outcome, Kind::Write(access))
    }

    fn check_access(&self, access: &RegionAccess) -> Result<usize, Errno> {
        let count = access.count.get() as usize;
        if count > self.transfer || access.offset.get().checked_add(count as u64).is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(count)
    }
}

/// Why a request failed: a check or the handler refused it, or the stream is lost.
pub(super) enum Refusal {
    Errno(Errno),
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

fn device_info(
    out: &mut Outlet<'_>,
    request: Request,
    payload: &[u8],
    handler: &mut dyn Handler,
) -> Result<(), Refusal> {
    let (raw, _) = parse_prefix::<DeviceInfoPayload>(payload)?;
    if (raw.argsz.get() as usize) < size_of::<DeviceInfoPayload>() {
        return Err(Errno::EINVAL.into());
    }
    let info = handler.device_info();
    let body = DeviceInfoPayload {
        argsz: (size_of::<DeviceInfoPayload>() as u32).into(),
        flags: info.flags.into(),
        num_regions: info.num_regions.into(),
        num_irqs: info.num_irqs.into(),
    };
    Ok(reply(out, request, body.as_bytes(), &[], &[])?)
}

fn irq_info(
    out: &mut Outlet<'_>,
    request: Request,
    payload: &[u8],
    handler: &mut dyn Handler,
) -> Result<(), Refusal> {
    let (raw, _) = parse_prefix::<IrqInfoPayload>(payload)?;
    if (raw.argsz.get() as usize) < size_of::<IrqInfoPayload>() {
        return Err(Errno::EINVAL.into());
    }
    let info = handler.irq_info(raw.index.get())?;
    let body = IrqInfoPayload {
        argsz: (size_of::<IrqInfoPayload>() as u32).into(),
        flags: info.flags.into(),
        index: raw.index,
        count: info.count.into(),
    };
    Ok(reply(out, request, body.as_bytes(), &[], &[])?)
}

/// Sends the reply to a request that is done and returns no data.
fn acknowledge(out: &mut Outlet<'_>, request: Request, kind: &Kind) -> Result<(), FrameError> {
    match kind {
        Kind::Empty => reply(out, request, &[], &[], &[]),
        Kind::Unmap(entry) | Kind::Drain { entry, .. } => reply(out, request, entry.as_bytes(), &[], &[]),
        Kind::Read(access) | Kind::Write(access) => reply(out, request, access.as_bytes(), &[], &[]),
        Kind::Multi { next, .. } => {
            let done = WriteMultiPayload { wr_cnt: (*next as u64).into() };
            reply(out, request, done.as_bytes(), &[], &[])
        }
    }
}

/// Sends header, `fixed` and `data` in one piece, unless the client wants no reply.
pub(super) fn reply(
    out: &mut Outlet<'_>,
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
    // Data always follow a region access.
    let mut head = [0; HEADER_SIZE + size_of::<RegionAccess>()];
    let length = (HEADER_SIZE + fixed.len()).min(head.len());
    head[..HEADER_SIZE].copy_from_slice(&header);
    head[HEADER_SIZE..length].copy_from_slice(&fixed[..length - HEADER_SIZE]);
    out.send(&head[..length], data, fds)
}

/// Returns the range that a `DMA_UNMAP` names.
fn what_is_unmapped(entry: &DmaUnmapPayload) -> Result<DmaUnmap, Errno> {
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
