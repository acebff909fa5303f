//! The calls of a [`Client`]. Each one is a single request, or the few that its size requires.

use std::os::fd::{BorrowedFd, OwnedFd};

use vfio_bindings::bindings::vfio;
use zerocopy::IntoBytes;

use super::exchange::Reply;
use super::{Client, ClientError, Deadline, malformed};
use crate::types::{DeviceInfo, DmaMap, DmaUnmap, IrqInfo, RegionInfo};
use crate::wire::*;

/// Room for the reply in the first request of a region info, enough for about 250 areas. A server
/// that needs more is asked again, with a size up to [`MAX_INFO_REPLY`].
const FIRST_ARGSZ: u32 = 4096;

/// Longest region info that is read, in bytes.
pub(super) const MAX_INFO_REPLY: usize = 64 * 1024;

/// Maximum number of regions that [`Client::regions`] asks for.
const MAX_REGIONS: u32 = 1024;

impl Client {
    /// Sends `DEVICE_GET_INFO` and returns the reply.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn device_info(&self) -> Result<DeviceInfo, ClientError> {
        let command = Command::DeviceGetInfo;
        let argsz = (size_of::<DeviceInfoPayload>() as u32).into();
        let request = DeviceInfoPayload { argsz, ..Default::default() };
        self.exchange.call(command, request.as_bytes(), &[], &[], self.deadline(), |reply| {
            let (info, _) = parse_reply::<DeviceInfoPayload>(command, reply.payload)?;
            Ok(DeviceInfo {
                flags: info.flags.get(),
                num_regions: info.num_regions.get(),
                num_irqs: info.num_irqs.get(),
            })
        })
    }

    /// Sends `DEVICE_GET_REGION_INFO` and returns the region with its capabilities and descriptor.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn region_info(&self, index: u32) -> Result<RegionInfo, ClientError> {
        let command = Command::DeviceGetRegionInfo;
        let deadline = self.deadline();
        let (info, needed) = self.region_info_once(index, FIRST_ARGSZ, deadline)?;
        if needed <= FIRST_ARGSZ {
            return Ok(info);
        }
        if needed as usize > MAX_INFO_REPLY {
            return Err(malformed(command, format!("it would need {needed} bytes")));
        }

        // The first reply lacks capabilities, for which it had no room.
        let argsz = needed;
        let (info, needed) = self.region_info_once(index, argsz, deadline)?;
        if needed > argsz {
            return Err(malformed(command, format!("it needed {argsz} bytes and now needs {needed}")));
        }
        Ok(info)
    }

    /// Asks for a region with room for `argsz` bytes. Returns its description and the size of the
    /// complete one.
    fn region_info_once(
        &self,
        index: u32,
        argsz: u32,
        deadline: Deadline,
    ) -> Result<(RegionInfo, u32), ClientError> {
        let command = Command::DeviceGetRegionInfo;
        let request = RegionInfoPayload { argsz: argsz.into(), index: index.into(), ..Default::default() };
        self.exchange.call(command, request.as_bytes(), &[], &[], deadline, |reply| {
            let (mut info, needed) =
                parse_region_info(reply.payload).map_err(|error| malformed(command, error))?;
            info.fd = reply.fds.into_iter().next().map(OwnedFd::from);
            Ok((info, needed))
        })
    }

    /// Returns all regions of the device, by index.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn regions(&self) -> Result<Vec<RegionInfo>, ClientError> {
        let count = self.device_info()?.num_regions;
        if count > MAX_REGIONS {
            return Err(malformed(Command::DeviceGetInfo, format!("a device has {count} regions")));
        }
        (0..count).map(|index| self.region_info(index)).collect()
    }

    /// Sends `DEVICE_GET_IRQ_INFO` and returns the reply.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn irq_info(&self, index: u32) -> Result<IrqInfo, ClientError> {
        let command = Command::DeviceGetIrqInfo;
        let argsz = (size_of::<IrqInfoPayload>() as u32).into();
        let request = IrqInfoPayload { argsz, index: index.into(), ..Default::default() };
        self.exchange.call(command, request.as_bytes(), &[], &[], self.deadline(), |reply| {
            let (info, _) = parse_reply::<IrqInfoPayload>(command, reply.payload)?;
            Ok(IrqInfo { flags: info.flags.get(), count: info.count.get() })
        })
    }

    /// Reads `data.len()` bytes of a region, in as many accesses as the server's
    /// `max_data_xfer_size` requires. A read of up to that size is one access.
    ///
    /// # Errors
    /// [`ClientError`]; `data` may be filled in part.
    pub fn region_read(&self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), ClientError> {
        let command = Command::RegionRead;
        let deadline = self.deadline();
        check_end(offset, data.len())?;
        let mut next = offset;
        for part in data.chunks_mut(self.max_access()) {
            let access = region_access(index, next, part.len());
            next += part.len() as u64;
            self.exchange.call(command, access.as_bytes(), &[], &[], deadline, |reply| {
                let bytes = region_reply(command, &reply, part.len())?;
                if bytes.len() < part.len() {
                    let description = format!("{} bytes were asked for and {} came", part.len(), bytes.len());
                    return Err(malformed(command, description));
                }
                part.copy_from_slice(&bytes[..part.len()]);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Writes to a region, in as many accesses as [`Self::region_read`] would take. With `posted`
    /// the server sends no reply: the call returns when the socket has taken the message, and a
    /// refusal is not reported.
    ///
    /// # Errors
    /// [`ClientError`]; part of `data` may have been written.
    pub fn region_write(
        &self,
        index: u32,
        offset: u64,
        data: &[u8],
        posted: bool,
    ) -> Result<(), ClientError> {
        let command = Command::RegionWrite;
        let deadline = self.deadline();
        check_end(offset, data.len())?;
        let mut next = offset;
        for part in data.chunks(self.max_access()) {
            let access = region_access(index, next, part.len());
            next += part.len() as u64;
            if posted {
                self.exchange.post(command, access.as_bytes(), part, deadline)?;
            } else {
                self.exchange.call(command, access.as_bytes(), part, &[], deadline, |reply| {
                    region_reply(command, &reply, part.len()).map(|_| ())
                })?;
            }
        }
        Ok(())
    }

    /// Posts a write to a region without waiting. Nothing is sent while earlier messages still wait
    /// for the socket. What the socket does not take of this message is sent by a later call.
    /// Returns whether the message was sent or queued.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Argument`] if `data` does not fit into one message.
    pub fn try_region_write(&self, index: u32, offset: u64, data: &[u8]) -> Result<bool, ClientError> {
        check_end(offset, data.len())?;
        if data.len() > self.max_access() {
            return Err(ClientError::Argument("a write without a wait is one message"));
        }
        let access = region_access(index, offset, data.len());
        self.exchange.try_post(Command::RegionWrite, access.as_bytes(), data)
    }

    /// Sends `DMA_MAP`. With a descriptor the server maps its file from `map.offset` on. Without
    /// one it accesses the memory by DMA messages, which the [`GuestMemory`](super::GuestMemory)
    /// passed at connect answers.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn dma_map(&self, map: DmaMap, fd: Option<BorrowedFd<'_>>) -> Result<(), ClientError> {
        if fd.is_some() && self.limits.max_msg_fds == 0 {
            return Err(ClientError::Argument("the server takes no descriptors: map without one"));
        }
        let request = DmaMapPayload {
            argsz: (size_of::<DmaMapPayload>() as u32).into(),
            flags: map.flags.into(),
            offset: map.offset.into(),
            address: map.address.into(),
            size: map.size.into(),
        };
        self.call_empty(Command::DmaMap, request.as_bytes(), &[], fd.as_slice(), self.deadline())
    }

    /// Sends `DMA_UNMAP`; when it returns the server has released the range.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn dma_unmap(&self, unmap: DmaUnmap) -> Result<(), ClientError> {
        let (flags, address, size) = match unmap {
            DmaUnmap::Range { address, size } => (0, address, size),
            DmaUnmap::All => (vfio::VFIO_DMA_UNMAP_FLAG_ALL, 0, 0),
        };
        let request = DmaUnmapPayload {
            argsz: (size_of::<DmaUnmapPayload>() as u32).into(),
            flags: flags.into(),
            address: address.into(),
            size: size.into(),
        };
        self.call_empty(Command::DmaUnmap, request.as_bytes(), &[], &[], self.deadline())
    }

    /// Sends `DEVICE_RESET`. It may be called while another thread waits in another call.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn reset(&self) -> Result<(), ClientError> {
        self.call_empty(Command::DeviceReset, &[], &[], &[], self.deadline())
    }

    /// Sends a request made of `fixed` and `data`, and waits for its reply, which has no payload.
    pub(super) fn call_empty(
        &self,
        command: Command,
        fixed: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        self.exchange.call(command, fixed, data, fds, deadline, |_| Ok(()))
    }

    /// Returns the maximum number of bytes in one access of a region: the smaller one of the
    /// server's limit and this side's.
    fn max_access(&self) -> usize {
        let own_limit = self.config.max_data_xfer_size.max(DEFAULT_MAX_DATA_XFER_SIZE);
        self.limits.max_data_xfer_size.min(own_limit) as usize
    }
}

/// Returns the start of a REGION_READ or REGION_WRITE.
fn region_access(index: u32, offset: u64, count: usize) -> RegionAccess {
    RegionAccess { offset: offset.into(), region: index.into(), count: (count as u32).into() }
}

/// Returns an error if an access would end beyond the address space.
fn check_end(offset: u64, len: usize) -> Result<(), ClientError> {
    match offset.checked_add(len as u64) {
        Some(_) => Ok(()),
        None => Err(ClientError::Argument("offset and length overflow")),
    }
}

/// Reads the fixed structure of a reply, and returns it with the bytes after it.
fn parse_reply<T: zerocopy::FromBytes>(command: Command, payload: &[u8]) -> Result<(T, &[u8]), ClientError> {
    parse_prefix(payload).map_err(|error| malformed(command, error))
}

/// Checks that a reply reports an access of `count` bytes, and returns the data in it, which may
/// be fewer.
fn region_reply<'a>(command: Command, reply: &Reply<'a>, count: usize) -> Result<&'a [u8], ClientError> {
    let (access, data) = parse_reply::<RegionAccess>(command, reply.payload)?;
    if access.count.get() as usize != count {
        let description = format!("{count} bytes were asked for and {} are reported", access.count.get());
        return Err(malformed(command, description));
    }
    Ok(data)
}
