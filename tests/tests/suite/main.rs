//! Tests of whole systems without a guest, in one program: bodies through every door, the book's
//! programs, and other implementations of the protocol. Each file has its own topic.

mod book;
mod conformance;
mod extoll_starved;
mod fcnp;
mod idio16;
mod interop;
mod matching;
mod proof;
mod rma;
mod tree;
mod velo;
