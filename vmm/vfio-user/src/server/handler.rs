//! What a device offers to its connection.

use crate::Errno;
use crate::socket::PeerFd;
use crate::types::{DeviceInfo, DmaMap, DmaUnmap, IrqInfo, RegionInfo, SetIrqs};

/// Names an operation between a [`Handler`] and its connection; chosen by the handler's side.
pub type Token = u64;

/// How a request ended, or that it has not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done; the reply says so.
    Done,
    /// It failed; the reply carries the number.
    Failed(Errno),
    /// It goes on; [`ServerConnection::complete`](super::ServerConnection::complete) with this
    /// token ends it.
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

/// The device behind a connection. Every call comes from within
/// [`ServerConnection::on_readable`](super::ServerConnection::on_readable), in the order of the
/// messages, and must not wait.
///
/// The connection has checked what it can know: structure sizes, `max_data_xfer_size`, overflow of
/// ranges, interrupt numbers and flags, the number of descriptors. Whether a region exists and an
/// offset is inside of it is the handler's to check.
pub trait Handler {
    /// `DEVICE_GET_INFO`.
    fn device_info(&mut self) -> DeviceInfo;

    /// `DEVICE_GET_REGION_INFO`; the descriptor of the answer is sent and closed.
    ///
    /// # Errors
    /// The number that the client gets, `EINVAL` for an index that does not exist.
    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno>;

    /// `DEVICE_GET_IRQ_INFO`, and asked before each `DEVICE_SET_IRQS`.
    ///
    /// # Errors
    /// The number that the client gets, `EINVAL` for an index that does not exist.
    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno>;

    /// `REGION_READ` of `data.len()` bytes, at least one. `offset + data.len()` does not overflow.
    /// A deferred read ends with
    /// [`ServerConnection::complete_read`](super::ServerConnection::complete_read).
    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome;

    /// `REGION_WRITE`, or one write of a `REGION_WRITE_MULTI`; at least one byte, and `offset +
    /// data.len()` does not overflow. A handler that defers keeps what it needs of `data`.
    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome;

    /// `DMA_MAP`. Without a descriptor the memory is reached by
    /// [`ServerConnection::dma_read`](super::ServerConnection::dma_read) and `dma_write`. A map
    /// over an existing one fails with `EEXIST`.
    fn dma_map(&mut self, map: DmaMap, fd: Option<PeerFd>) -> Outcome;

    /// `DMA_UNMAP`; all references must be gone when it is done, and no operation that touches it
    /// may be started from then on. What is not mapped fails with `ENOENT`.
    ///
    /// An operation that has further messages to send ends with an error right behind this call, so
    /// that none follows the answer. With a second socket it ends with the reply to its last
    /// message, and the answer waits for that.
    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome;

    /// `DEVICE_SET_IRQS`, checked.
    ///
    /// # Errors
    /// The number that the client gets.
    fn set_irqs(&mut self, irqs: SetIrqs) -> Result<(), Errno>;

    /// `DEVICE_RESET`.
    fn reset(&mut self) -> Outcome;

    /// A `DEVICE_RESET` has arrived behind the request that was deferred with this token. `Some`
    /// gives the request up: it fails with that number, the handler forgets it, and what is in
    /// front of the reset is served. `None` lets it go on until it is completed. Asked at most once
    /// for a deferred request.
    fn reset_pending(&mut self, _token: Token) -> Option<Errno> {
        None
    }

    /// A [`ServerConnection::dma_read`](super::ServerConnection::dma_read) has ended, with all
    /// bytes or with an error.
    fn dma_read_done(&mut self, _token: Token, _result: Result<&[u8], Errno>) {}

    /// A [`ServerConnection::dma_write`](super::ServerConnection::dma_write) has ended.
    fn dma_write_done(&mut self, _token: Token, _result: Result<(), Errno>) {}
}
