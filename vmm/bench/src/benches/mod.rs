//! All benchmarks.
//!
//! A new one is a file or folder here with a constant `BENCH`, and a line in [`ALL`]. The command
//! line, `all`, `list` and the files of results come from that list.

pub mod bgl;
pub mod busy;
pub mod extoll;
pub mod fabric;
pub mod fcnp;
pub mod guest;
pub mod matching;
pub mod mmio;
pub mod mu;
pub mod packet;
pub mod rest;
pub mod seastar;
pub mod vm;

use crate::bench::Bench;

/// All benchmarks, in the order of `all`. The machine at rest comes first, because the others leave
/// memory allocated in this process.
pub const ALL: &[&Bench] = &[
    &rest::BENCH,
    &mmio::BENCH,
    &fcnp::BENCH,
    &packet::BENCH,
    &fabric::BENCH,
    &extoll::velo::BENCH,
    &extoll::rma::BENCH,
    &matching::BENCH,
    &extoll::mpi::BENCH,
    &seastar::BENCH,
    &mu::BENCH,
    &bgl::BENCH,
    &vm::BENCH,
    &guest::BENCH,
    &busy::BENCH,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_occurs_once_and_is_no_word_of_the_command_line() {
        let names: BTreeSet<_> = ALL.iter().map(|bench| bench.name).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(!names.contains("all") && !names.contains("list"));
    }
}
