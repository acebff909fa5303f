//! Requests for descriptions: of the device, of its regions, and of its interrupts.

use std::os::fd::AsFd;

use zerocopy::IntoBytes;

use super::deferred::Request;
use super::dispatcher::Dispatcher;
use super::handler::Handler;
use super::reply::{Refusal, reply, reply_fixed};
use crate::Errno;
use crate::socket::SendHalf;
use crate::types::REGION_FLAG_MMAP;
use crate::wire::{
    DeviceInfoPayload, IrqInfoPayload, RegionInfoPayload, build_region_info, parse_prefix, region_info_size,
};

impl Dispatcher {
    /// Replies to `DEVICE_GET_REGION_INFO`, with the region's descriptor if the client can map it.
    pub(super) fn region_info(
        &mut self,
        out: &mut SendHalf<'_>,
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
        let takes_fds = self.client_capabilities.max_msg_fds.is_none_or(|fds| fds > 0);
        if info.fd.is_none() || info.flags & REGION_FLAG_MMAP == 0 || !takes_fds {
            // A region without its descriptor cannot be mapped.
            info.flags &= !REGION_FLAG_MMAP;
            info.areas.clear();
            info.fd = None;
        } else if info.areas.is_empty() {
            // One area that covers the region, because the client of libvfio-user takes a
            // descriptor only together with capabilities.
            info.areas = info.mappable();
        }

        let body = build_region_info(raw.index.get(), &info, argsz);

        // The descriptor goes out with the complete answer only. libvfio-user's client has no room
        // for a descriptor in an incomplete first answer, and takes one there for an error.
        let is_complete = region_info_size(&info) <= argsz as usize;
        let fd = info.fd.as_ref().filter(|_| is_complete).map(AsFd::as_fd);
        Ok(reply(out, request, &body, &[], fd.as_slice())?)
    }
}

/// Replies to `DEVICE_GET_INFO`.
pub(super) fn device_info(
    out: &mut SendHalf<'_>,
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
    Ok(reply_fixed(out, request, body.as_bytes())?)
}

/// Replies to `DEVICE_GET_IRQ_INFO`.
pub(super) fn irq_info(
    out: &mut SendHalf<'_>,
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
    Ok(reply_fixed(out, request, body.as_bytes())?)
}
