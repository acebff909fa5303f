//! Limits of a connection.

use std::time::Duration;

use crate::wire::{DEFAULT_MAX_DATA_XFER_SIZE, DEFAULT_MAX_DMA_MAPS, DEFAULT_PGSIZES, HEADER_SIZE};

/// Room for a message's fixed structure and for the interrupts of a `DATA_BOOL`, beside its data.
const MESSAGE_OVERHEAD: usize = HEADER_SIZE + 4096;

/// Limits of a connection.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Maximum number of descriptors in one message; QEMU refuses a server that names more than 16.
    pub max_msg_fds: u32,
    /// Maximum number of bytes of data in one message, at least 1; QEMU refuses more than 64 MiB.
    pub max_data_xfer_size: u32,
    /// Page sizes for DMA maps, or'ed together.
    pub pgsizes: u64,
    /// Maximum number of DMA maps at a time. The client learns this limit, and the handler enforces
    /// it.
    pub max_dma_maps: u32,
    /// Whether `REGION_WRITE_MULTI` is served.
    pub write_multiple: bool,
    /// Steps in one call of [`on_readable`](super::ServerConnection::on_readable), at least 1. A
    /// step is a message, a read from the socket, or 64 writes of a `REGION_WRITE_MULTI`.
    pub budget: u32,
    /// Time after which such a call starts no further step.
    pub turn: Duration,
    /// Bytes of replies that may wait for the socket before no more requests are taken.
    pub max_queued: usize,
    /// Maximum number of operations of [`dma_read`](super::ServerConnection::dma_read) and
    /// `dma_write` at a time, below 65536.
    pub max_dma_outstanding: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_msg_fds: 16,
            max_data_xfer_size: DEFAULT_MAX_DATA_XFER_SIZE,
            pgsizes: DEFAULT_PGSIZES,
            max_dma_maps: DEFAULT_MAX_DMA_MAPS,
            write_multiple: true,
            budget: 64,
            turn: Duration::from_millis(1),
            max_queued: 4 << 20,
            max_dma_outstanding: 64,
        }
    }
}

impl ServerConfig {
    /// Returns the most bytes of a message with `transfer` bytes of data.
    pub(super) fn message_limit(&self, transfer: usize) -> usize {
        transfer.saturating_add(MESSAGE_OVERHEAD)
    }
}
