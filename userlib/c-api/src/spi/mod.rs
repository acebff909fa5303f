//! The C API of the Blue Gene/Q SPI.
//!
//! The names, types and values are those of the public headers of `bgq-driver` (`spi/include/mu`,
//! `spi/include/kernel`, `hwi/include/bqc`). Input: pointers and numbers. Output: 0, or a negative
//! number of errno.h; [`nicforge_spi_last_error`] returns the text of a failure. No panic crosses
//! the boundary. The header is `nicforge/spi.h`, which includes the hand-written
//! `nicforge/muhwi.h`: that has the descriptors' bit fields, which cbindgen does not write.
//!
//! | module | content |
//! | --- | --- |
//! | `types.rs` | the public types and constants |
//! | `calls` | the functions. All unsafe code is there |
//! | `library.rs` | the node's subgroups and kernel in this process |
//! | `subgroup.rs` | a subgroup: its memory, and what is allocated of it |
//! | `descriptors.rs` | descriptors from the public information |
//! | `failure.rs` | errors as numbers |
#![allow(non_camel_case_types, non_snake_case, reason = "names of the public headers")]

mod calls;
mod descriptors;
mod failure;
mod library;
mod subgroup;
mod types;

pub use self::calls::*;
pub use self::subgroup::nicforge_spi_subgroup;
pub use self::types::*;

#[cfg(test)]
mod tests;
