//! The communication software of Blue Gene/L (Almási et al., "MPI on BlueGene/L: Designing an
//! Efficient General Purpose Messaging Solution for a Large Cellular System", 2003).
//!
//! [`packet`] is the packet layer: initialization, packet send and packet receive on the torus. It
//! has no policy, repeats nothing and never waits.

pub mod packet;

mod error;

pub use error::Error;
