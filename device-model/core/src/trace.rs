//! The trace of a machine: what crosses the boundary of a function.
//!
//! A sink ([`crate::machine::Machine::set_trace`]) receives every register access, DMA, interrupt
//! and change of a client, with the values that were moved. Packets on links are events of the
//! links that are tapped ([`crate::fabric::Fabric::set_tap`]), and devices add events of their own
//! ([`crate::context::Context::trace`]).
//!
//! Without a sink and without taps, an event costs the test of one pointer. Accesses that bypass
//! the machine are no events: stores to mapped memory, and a device's accesses by a lease
//! ([`crate::dma::DmaLease`]).

pub use crate::fabric::Crossing;
use crate::{
    dma::{DmaError, WordUpdate},
    ids::{Address, AttachmentId, FunctionId},
    interrupt::Raised,
    time::Nanos,
    warning::Warning,
};

/// One event. The data are borrowed, so that a sink copies only what it keeps.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A client took the attachment.
    Attached,
    /// The client left the attachment.
    Detached,
    /// The attachment was reset.
    Reset,
    /// A trapped read, with the value that it has returned.
    Read {
        /// Address in the function's BARs.
        at: Address,
        /// The bytes that were read.
        data: &'a [u8],
    },
    /// A trapped write, before it is carried out. What the device does because of it follows.
    Write {
        /// Address in the function's BARs.
        at: Address,
        /// The bytes that were written.
        data: &'a [u8],
    },
    /// A record of a posted-write ring, before the device carries it out.
    Posted {
        /// Address in the function's BARs.
        at: Address,
        /// The bytes that were written.
        data: &'a [u8],
    },
    /// The device refused the write for now, for example because it has no credit. A repeated
    /// refusal of the same write is no event.
    Stalled {
        /// Address in the function's BARs.
        at: Address,
    },
    /// The device carried out a write that it had refused before.
    Resumed {
        /// Address in the function's BARs.
        at: Address,
    },
    /// The device raised an MSI-X vector.
    Interrupt {
        /// Number of the vector.
        vector: u16,
        /// The outcome. A client that keeps its own MSI-X table masks vectors there.
        raised: Raised,
    },
    /// The INTx line changed.
    Intx {
        /// The new level.
        asserted: bool,
    },
    /// The device started a read of client memory.
    DmaRead {
        /// Start address.
        iova: u64,
        /// Length in bytes.
        length: usize,
        /// The data, or the reason of a failure. The data are empty if the client's reply brings
        /// them later.
        outcome: Result<&'a [u8], DmaError>,
    },
    /// The device wrote to client memory.
    DmaWrite {
        /// Start address.
        iova: u64,
        /// The data.
        data: &'a [u8],
        /// The reason of a failure. A write by message counts as carried out.
        outcome: Result<(), DmaError>,
    },
    /// The device changed a 64-bit word of client memory by one atomic operation.
    DmaUpdate {
        /// Address of the word.
        iova: u64,
        /// The change.
        update: WordUpdate,
        /// The word before it, or the reason of a failure.
        outcome: Result<u64, DmaError>,
    },
    /// A packet was put on a link that is tapped. The event's function is its sender.
    Packet(Crossing<'a>),
    /// The device set an error bit, dropped a packet, or refused an access. The log has it too,
    /// within its limits.
    Warning(Warning<'a>),
    /// An event of the device's own, such as a descriptor that it has fetched.
    Device {
        /// Its name: lower-case words joined by spaces.
        name: &'static str,
        /// Named values.
        values: &'a [(&'static str, u64)],
    },
}

/// A receiver of trace events.
pub trait TraceSink: Send + std::any::Any {
    /// Handles one event. `attachment` is `None` for events of the whole function. The machine
    /// calls it on the data path: it must not block.
    fn event(
        &mut self,
        now: Nanos,
        function: FunctionId,
        attachment: Option<AttachmentId>,
        event: &Event<'_>,
    );
}
