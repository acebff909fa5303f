//! Trace hooks: what happens at the boundary of a function, as it happens.

use crate::{
    device::{Address, AttachmentId, FunctionId},
    time::Nanos,
};

/// One event. Data is not part of it: a trace must not become a second data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A client took the attachment.
    Attached,
    /// The client is gone.
    Detached,
    /// The attachment was reset.
    Reset,
    /// A trapped read of `length` bytes.
    Read {
        /// Where.
        at: Address,
        /// Bytes.
        length: usize,
    },
    /// A trapped write of `length` bytes.
    Write {
        /// Where.
        at: Address,
        /// Bytes.
        length: usize,
    },
    /// A record out of a posted-write ring.
    Posted {
        /// Where.
        at: Address,
        /// Bytes.
        length: usize,
    },
    /// The device could not take a write yet.
    Stalled {
        /// Where.
        at: Address,
    },
    /// An MSI-X vector was raised.
    Interrupt {
        /// Which.
        vector: u16,
    },
    /// The INTx line changed.
    Intx {
        /// To what.
        asserted: bool,
    },
    /// The device started a DMA read.
    DmaRead {
        /// From where.
        iova: u64,
        /// Bytes.
        length: usize,
    },
    /// The device wrote to memory.
    DmaWrite {
        /// To where.
        iova: u64,
        /// Bytes.
        length: usize,
    },
}

/// Who wants to know.
pub trait TraceSink: Send {
    /// An event of an attachment at a time. Called on the data path: it must not wait.
    fn event(&mut self, now: Nanos, function: FunctionId, attachment: AttachmentId, event: Event);
}
