//! Trace hooks: events at the boundary of a function.

use crate::{
    ids::{Address, AttachmentId, FunctionId},
    time::Nanos,
};

/// One event. It carries no data: a trace must not become a second data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A client took the attachment.
    Attached,
    /// The client left the attachment.
    Detached,
    /// The attachment was reset.
    Reset,
    /// A trapped read.
    Read {
        /// Address in the function's BARs.
        at: Address,
        /// Length in bytes.
        length: usize,
    },
    /// A trapped write that the device carried out.
    Write {
        /// Address in the function's BARs.
        at: Address,
        /// Length in bytes.
        length: usize,
    },
    /// A record of a posted-write ring that the device carried out.
    Posted {
        /// Address in the function's BARs.
        at: Address,
        /// Length in bytes.
        length: usize,
    },
    /// The device refused a write for now.
    Stalled {
        /// Address in the function's BARs.
        at: Address,
    },
    /// An MSI-X vector was raised.
    Interrupt {
        /// Number of the vector.
        vector: u16,
    },
    /// The INTx line changed.
    Intx {
        /// The new level.
        asserted: bool,
    },
    /// The device started a DMA read.
    DmaRead {
        /// Start address.
        iova: u64,
        /// Length in bytes.
        length: usize,
    },
    /// The device wrote to client memory.
    DmaWrite {
        /// Start address.
        iova: u64,
        /// Length in bytes.
        length: usize,
    },
}

/// A receiver of trace events.
pub trait TraceSink: Send {
    /// Handles one event of an attachment. The machine calls it on the data path: it must not
    /// block.
    fn event(&mut self, now: Nanos, function: FunctionId, attachment: AttachmentId, event: Event);
}
