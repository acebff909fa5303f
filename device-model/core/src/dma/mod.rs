//! An attachment's view of client memory: the addresses (*IOVAs*) that its device may read and
//! write, and the memory behind them.
//!
//! A client's mappings come in through [`DmaMap::map`]. A mapping is either memory of this process
//! or memory that only messages reach. The module resolves accesses to checked pieces of that
//! memory, and copies data. It touches shared memory through `nicforge-shm`, and sends no messages:
//! [`DmaMap::is_local`] says when one is needed.
//!
//! Overlapping mappings, and unmapping a part of one, are refused as in VFIO's type 1 version 2
//! container. Mappings may have any size; the server that takes them from a client must demand
//! whole pages.
//!
//! An access is checked as a whole before its first byte moves. Lookups allocate nothing.
//!
//! # Order
//!
//! - **Writes** become visible in the order of the calls: a reader that sees a byte of one write
//!   (with an acquire load) also sees all of the writes before it. The bytes of a single write
//!   become visible in no particular order.
//! - **Reads** are carried out in the order of the calls: a read finds what the client stored
//!   before the stores that an earlier read has found.
//! - An aligned word of 1, 2, 4 or 8 bytes that is one access of its own is read by one atomic load
//!   and written by one atomic store. *Aligned* means that both its IOVA and its memory are.
//!
//! A fence in front of each write, and one behind each read, guarantee this. They cost no
//! instruction on x86-64, which does not reorder stores with stores nor loads with loads. This
//! includes the string instruction of long copies: it reorders its own stores only.

mod error;
mod guest_memory;
mod lease;
#[cfg(test)]
mod lease_tests;
mod map;
mod mapping;
#[cfg(test)]
mod tests;
mod word;

pub use error::{DmaError, DmaMapError};
pub use guest_memory::GuestMemoryView;
pub use lease::{DmaLease, LeaseError, MAX_LEASE, Term};
pub use map::DmaMap;
pub use mapping::{DmaAccess, DmaBacking, DmaPiece, DmaRange, Segment, Segments};
pub use nicforge_shm::DmaPermission;
pub use word::WordUpdate;

/// Largest number of bytes that one DMA read or write moves.
pub const MAX_DMA: usize = 65536;
