//! The benches of the EXTOLL card. Each serves two cards with a link between them.

mod cards;
pub mod mpi;
pub mod rma;
pub mod velo;
