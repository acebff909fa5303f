//! The device behind a connection, as the connection calls it.

use crate::Errno;
use crate::socket::PeerFd;
use crate::types::{DeviceInfo, DmaMap, DmaUnmap, IrqInfo, RegionInfo, SetIrqs};

/// Identifies an operation between a [`Handler`] and its connection. The handler's side chooses it.
pub type Token = u64;

/// State of a request after the handler was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done; the reply reports success.
    Done,
    /// It failed; the reply carries the number.
    Failed(Errno),
    /// It is still in progress; [`ServerConnection::complete`](super::ServerConnection::complete)
    /// with this token ends it.
    Deferred(Token),
}

impl From<Result<(), Errno>> for Outcome {
    fn from(result: Result<(), Errno>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(errno) => Self::Failed(errno),
        }
    }
}

/// The device behind a connection. Calls come from within
/// [`ServerConnection::on_readable`](super::ServerConnection::on_readable), in the order of the
/// messages, and must not wait. [`ServerConnection::fail_dma`](super::ServerConnection::fail_dma)
/// also calls the `_done` functions.
///
/// The connection has checked structure sizes, `max_data_xfer_size`, overflow of ranges, interrupt
/// numbers and flags, and the number of descriptors. The handler must check that a region exists
/// and that an offset lies inside it.
pub trait Handler {
    /// Serves `DEVICE_GET_INFO`.
    fn device_info(&mut self) -> DeviceInfo;

    /// Serves `DEVICE_GET_REGION_INFO`. The descriptor of the answer is sent and closed.
    ///
    /// # Errors
    /// The error number for the client, `EINVAL` for an index that does not exist.
    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno>;

    /// Serves `DEVICE_GET_IRQ_INFO`; also called before each `DEVICE_SET_IRQS`.
    ///
    /// # Errors
    /// The error number for the client, `EINVAL` for an index that does not exist.
    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno>;

    /// Serves a `REGION_READ` of `data.len()` bytes, at least one. `offset + data.len()` does not
    /// overflow. [`ServerConnection::complete_read`](super::ServerConnection::complete_read) ends a
    /// deferred read.
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome;

    /// Serves a `REGION_WRITE`, or one write of a `REGION_WRITE_MULTI`, of at least one byte.
    /// `offset + data.len()` does not overflow. A handler that defers must copy the bytes it needs
    /// from `data`.
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome;

    /// Serves `DMA_MAP`. Without a descriptor the device reaches the memory through
    /// [`ServerConnection::dma_read`](super::ServerConnection::dma_read) and `dma_write`. A map
    /// over an existing one fails with `EEXIST`.
    fn dma_map(&mut self, map: DmaMap, fd: Option<PeerFd>) -> Outcome;

    /// Serves `DMA_UNMAP`. When it is done all references must be gone, and no operation that
    /// touches the range may be started. A range that is not mapped fails with `ENOENT`.
    ///
    /// An operation that has further messages to send ends with an error right after this call, so
    /// that none follows the answer. With a second socket it ends with the reply to its last
    /// message, and the answer waits for that reply.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome;

    /// Serves a checked `DEVICE_SET_IRQS`.
    ///
    /// # Errors
    /// The error number for the client.
    fn set_irqs(&mut self, irqs: SetIrqs) -> Result<(), Errno>;

    /// Serves `DEVICE_RESET`.
    fn reset(&mut self) -> Outcome;

    /// Reports that a `DEVICE_RESET` has arrived after the request that was deferred with this
    /// token. With `Some` the request fails with that number, the handler must forget it, and the
    /// requests in front of the reset are served. With `None` the request stays deferred until it
    /// is completed. It is called at most once for a deferred request.
    fn reset_pending(&mut self, _token: Token) -> Option<Errno> {
        None
    }

    /// Reports that a [`ServerConnection::dma_read`](super::ServerConnection::dma_read) has ended,
    /// with all bytes or with an error.
    fn dma_read_done(&mut self, _token: Token, _result: Result<&[u8], Errno>) {}

    /// Reports that a [`ServerConnection::dma_write`](super::ServerConnection::dma_write) has
    /// ended.
    fn dma_write_done(&mut self, _token: Token, _result: Result<(), Errno>) {}
}
