//! The C API of Portals 3.3 on the SeaStar.
//!
//! The names, types and values are the standard's. Input: handles, which are numbers, and pointers.
//! Output: the standard's codes; [`nicforge_portals_last_error`] returns the text of a failure. No
//! panic crosses the boundary. The header is `nicforge/portals3.h`.
//!
//! Threads may make calls at the same time. A handle of an object that is gone gives the code of
//! its kind, for example `PTL_MD_INVALID`.
//!
//! | module | content |
//! | --- | --- |
//! | `types.rs` | the standard's types and constants |
//! | `calls` | the functions. All unsafe code is there |
//! | `library.rs` | what PtlInit begins and PtlFini ends: the kernel and the objects |
//! | `objects.rs`, `table.rs` | objects and their handles |
//! | `interface.rs` | memory of an interface |
//! | `failure.rs` | errors as codes |
#![allow(non_camel_case_types, non_snake_case, reason = "names of the standard")]

mod calls;
mod failure;
mod interface;
mod library;
mod objects;
mod table;
mod types;

pub use self::calls::*;
pub use self::types::*;

#[cfg(test)]
mod tests;
