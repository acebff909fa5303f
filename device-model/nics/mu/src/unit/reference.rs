//! Packets that refer to client memory instead of carrying it.
//!
//! A long put between mapped memories, over links without a bandwidth, is copied once: its packets
//! hold a lease of the payload, and the receiver copies from there. A packet stands for up to 256
//! KB of payload, that is for as many packets of 512 bytes as Blue Gene/Q sends.
//!
//! The payload is read when a packet arrives. The descriptor is done when all packets have been
//! received, so that its count means the same as without references.
//!
//! In: messages. Out: packets that hold a lease, and the place of their payload in it. May touch:
//! its own state.

use std::sync::Arc;

use nicforge_core::dma::DmaLease;
use nicforge_hwi::mu_packet::{CHUNK, MAX_PAYLOAD};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Shortest message that is sent by references.
pub(crate) const SHORTEST: u64 = 1 << 10;
/// Maximum number of mappings in which the payload may lie.
pub(crate) const MAX_MAPPINGS: usize = 256;
/// Bytes of payload that count as one packet in the budget of a step.
const BUDGET_UNIT: u32 = 8 << 10;
/// Delay in nanoseconds after which a sender checks again whether its packets have been received.
/// The receiver of the last packet wakes it earlier, unless a reset has discarded that packet.
pub(crate) const CHECK_DELAY: u64 = 100_000_000;

/// The payload of a message that is sent by references.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) lease: Arc<DmaLease>,
    /// Address of the lease's first byte.
    pub(crate) start: u64,
}

impl Reference {
    /// Returns the reference to a lease at an address.
    pub(crate) fn new(lease: DmaLease, start: u64) -> Self {
        Self { lease: Arc::new(lease), start }
    }

    /// Returns whether no packet refers to the payload any more.
    pub(crate) fn is_received(&self) -> bool {
        // The packets in flight hold clones.
        Arc::strong_count(&self.lease) == 1
    }

    /// Returns whether the payload could be read until now.
    pub(crate) fn is_valid(&self) -> bool {
        self.lease.read(0, &mut [0]).is_ok()
    }
}

/// The content of a packet after its header: the place of the payload in the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct PayloadPlace {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    unused: [u64; 2],
}

const _: () = assert!(size_of::<PayloadPlace>() == CHUNK);

impl PayloadPlace {
    /// Returns the place at an offset from the start of the lease.
    pub(crate) fn new(offset: u64, length: u64) -> Self {
        Self { offset, length, unused: [0; 2] }
    }
}

/// Returns how much of a step's budget a packet with this many bytes of payload takes.
pub(crate) fn budget_cost(bytes: u64) -> u32 {
    1 + (bytes / u64::from(BUDGET_UNIT)) as u32
}

/// Returns the number of packets that Blue Gene/Q sends for this many bytes of payload.
pub(crate) fn packet_count(bytes: u64) -> u64 {
    bytes.div_ceil(MAX_PAYLOAD as u64)
}
