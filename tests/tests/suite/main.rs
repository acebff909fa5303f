//! Tests of whole systems without a guest, in one program: the book's programs, and other
//! implementations of the protocol. Each file has its own topic. The program `bodies` runs the test
//! bodies.

mod bodies;
mod book;
mod conformance;
mod extoll_starved;
mod interop;
mod registry;
mod tree;
