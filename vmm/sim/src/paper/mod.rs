//! The papers' experiments in virtual time, and the tables of their results.
//!
//! A table has a line for each figure of the paper: the paper's value, the simulated value, the
//! difference and the tolerance. Each row says whether the model's costs were chosen by it, and
//! the value of a model without the mechanism. The program fails when a row that has a tolerance
//! lies outside it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`row`] | a row, and the rule that its tolerance must be able to fail |
//! | [`judgement`] | tolerances, bounds and null models |
//! | [`figure`] | the points of a figure |
//! | [`experiment`] | an experiment, and one run of it |
//! | [`table`] | the result of a run, as text, Markdown and JSON |
//! | [`plot`] | figures as SVG |
//! | [`command`] | the command line |
//!
//! A paper is a file beside these: a constant [`Experiment`], and a line in [`ALL`]. The same seed
//! gives the same bytes on standard output and in the SVG files. Neither contains a time of day.

pub mod bgq;
pub mod command;
pub mod experiment;
pub mod extoll;
pub mod fcnp;
pub mod figure;
pub mod judgement;
mod number;
pub mod plot;
pub mod row;
pub mod seastar;
pub mod table;

use self::experiment::Experiment;

/// The papers, in the order in which `all` runs their experiments.
pub const ALL: &[&Experiment] = &[&fcnp::FCNP, &extoll::EXTOLL, &seastar::SEASTAR, &bgq::BGQ];
