//! Memory shared with another process, and the posted-write ring in it.
//!
//! Both sides of a BAR use this crate: the server that owns the memory, and the driver library that
//! maps it. The input is a file descriptor. The results are [`SharedMemory`], [`Window`]s of it,
//! atomic words ([`SharedU32`], [`SharedU64`]) and the two ends of a ring ([`Producer`],
//! [`Consumer`]).
//!
//! Rules for all code that touches memory that a peer can write:
//! - **No references.** There is no reference or slice to the memory anywhere. Volatile copies and
//!   atomics read and write it.
//! - **One read.** Data that a peer can write is read *once* into owned values, then checked, then
//!   used.
//! - **Checked bounds.** Bounds and alignment are checked by comparison. A failure is a
//!   [`MemoryError`], never a panic.
//! - **Lifetime.** A mapping lives as long as its last handle. Words, windows and rings each keep
//!   it alive.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `memory` | creating and mapping files |
//! | `window` | sub-ranges, with the accessors of the hot path |
//! | `word` | atomic words |
//! | `slots` | rings of packet slots |
//! | `records` | rings of a header word and data, emptied by their owner |
//! | `copy` | the volatile copies |
//! | [`pace`] | how waiting threads share the processors |
//! | [`posted`] | the ring of posted writes |
//! | `permission` | the accesses that a device may make |
//! | `prefetch` | hints that memory is needed soon |
//! | [`wake`] | sleeping without a fence in the writer |
//! | `sigbus` | surviving files that their owner truncates |
//! | `fork` | keeping a device from children of this process |
//! | `table` | what the handlers of the last two find without a lock |
//!
//! # vm-memory
//!
//! Crates that work on vm-memory reach client memory by the traits of vm-memory (0.18): the core
//! implements its `GuestMemory` over these windows, for `virtio-queue`. The windows themselves are
//! not vm-memory's regions. Four guarantees that devices and drivers need are missing there:
//! - **One read.** `VolatileSlice` copies more than 8 bytes by an ordinary memory copy
//!   (`copy_slice`), which the compiler may repeat or split. Checked bytes need not be the bytes
//!   used. Copies of 8 bytes to 4 KiB cost 0.9 to 1.9 times as much here as there, with both in
//!   `cargo bench -p nicforge-shm`.
//! - **Truncation.** An access to a file that its owner has truncated ends the process. Here it
//!   finds zeros, and the mapping reports it.
//! - **Descriptors.** `MmapRegion` keeps the file open (`FileOffset` holds an `Arc<File>`). A
//!   client may have thousands of mappings, and the server keeps none of their descriptors.
//! - **Bounded unmapping.** `MmapRegion` unmaps in one call, which locks the address space for
//!   hundreds of milliseconds a gibibyte. Here the pages leave in pieces.

mod copy;
mod error;
mod fork;
mod memory;
pub mod pace;
mod permission;
pub mod posted;
mod prefetch;
mod records;
mod sigbus;
mod slots;
mod table;
pub mod wake;
mod window;
mod word;

pub use error::{GuardError, MemoryError};
pub use fork::{OwnerCell, OwnerProcess, Uninherited};
pub use memory::{Access, SharedMemory};
pub use permission::DmaPermission;
pub use posted::{Cells, Consumer, Peek, Producer, PushError, RecordRef, RingError, RingHead, SharedCells};
pub use prefetch::{prefetch, prefetch_entry, prefetch_lines};
pub use records::Records;
pub use sigbus::{guard_faults, install_sigbus_guard};
pub use slots::Slots;
pub use table::MAX_GUARDED_RANGES;
pub use wake::{SAFETY_TIMEOUT, register_membarrier};
pub use window::Window;
pub use word::{SharedU32, SharedU64};
