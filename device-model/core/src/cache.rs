//! Hints to the processor's caches, for crates that keep large tables of their own.

pub use nicforge_shm::{prefetch, prefetch_entry, prefetch_lines};
