//! The benchmarks: the cost of the machine, the libraries and their counterparts, compared within
//! one run.
//!
//! `nicforge bench` starts the program of this crate with its own arguments. The results are rows
//! of figures, and the project's goals with their measured values. They are shown as tables, or as
//! JSON for scripts, and written into files for the book.
//!
//! A bench is a file or folder in [`benches`]: a constant [`Bench`](bench::Bench), and a line in
//! [`benches::ALL`]. All other modules are what benches share, and name no device:
//!
//! | module | contents |
//! | --- | --- |
//! | [`bench`](mod@bench) | a bench, and what it gets for a run |
//! | [`contest`] | contestants that are measured in turns, with the same [`placement`] |
//! | [`callgrind`] | counts of instructions |
//! | [`copies`] | copies of memory, to compare transfers with |
//! | [`heap`] | counts of allocated bytes |
//! | [`machine`] | the machines of benches, and opening their devices |
//! | [`process`] | child processes |
//! | [`row`], [`samples`], [`host`] | the outcome of a bench, percentiles, the host |
//! | [`report`], [`results`] | the outcome as text, and as files |
//! | [`bare_ring`] | a posted-write ring without an engine, to compare with |
//! | [`line_hop`] | the time of a cache line between processors, to compare with |
//!
//! On a machine with few processors, only contestants of one run can be compared.

pub mod bare_ring;
pub mod bench;
pub mod benches;
pub mod callgrind;
pub mod cli;
pub mod contest;
pub mod copies;
pub mod heap;
pub mod host;
pub mod line_hop;
pub mod machine;
pub mod placement;
pub mod process;
pub mod ranks;
pub mod report;
pub mod results;
pub mod row;
pub mod samples;
