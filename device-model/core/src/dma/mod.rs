//! An attachment's view of client memory: which addresses (*IOVAs*) a device may read and write,
//! and what lies behind them.
//!
//! In: mappings that a client makes ([`DmaMap::map`]; what overlaps and what unmapping cuts is
//! refused as in VFIO's type 1 version 2 container, but they may be of any size: who takes them
//! from a client has it map pages), as memory of this process or as memory that only messages
//! reach. Out: checked pieces of it, and copies. May touch: shared memory through `nicforge-shm`.
//! It sends no message: [`DmaMap::is_local`] says when one is needed.
//!
//! An access is checked as a whole before its first byte moves. Lookups allocate nothing.

mod error;
mod lease;
#[cfg(test)]
mod lease_tests;
mod map;
#[cfg(test)]
mod tests;

pub use error::{DmaError, DmaMapError};
pub use lease::{DmaLease, LeaseError, MAX_LEASE, Term};
pub use map::{DmaBacking, DmaMap, DmaPermission, DmaPiece, DmaRange, Segment, Segments};

/// The most bytes that one DMA read or write moves.
pub const MAX_DMA: usize = 65536;
