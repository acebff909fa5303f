//! The rows of EXTOLL's paper.

use super::model::{CLOCK_MHZ, HOP_NS};
use crate::paper::{judgement::Tolerance, number::rounded, row::Expected};

/// The other frequencies in MHz, and the paper's message rate, bandwidth and latency in percent of
/// those at [`CLOCK_MHZ`] (Table III).
pub(super) const FREQUENCIES: [(u32, [f64; 3]); 3] =
    [(140, [88.62, 92.64, 93.16]), (125, [79.21, 85.23, 87.18]), (117, [74.61, 80.89, 83.79])];

/// A delay after each send, which lowers the message rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Delay {
    /// The message rate of four pairs in percent of that without a delay. The messages are as long
    /// as those of RandomAccess.
    rate_percent: f64,
    /// The delay in nanoseconds, which was calibrated to give that rate.
    pub(super) ns: f64,
}

/// The delays of the paper's experiment with RandomAccess.
pub(super) const DELAYS: [Delay; 2] =
    [Delay { rate_percent: 95.0, ns: 1_800.0 }, Delay { rate_percent: 70.0, ns: 3_130.0 }];

/// Exponent of the paper's fit to the time in MPI by the message rate, relative to the full one.
///
/// It follows from Table IV, as [`FREQUENCY_EXPONENT`] does. A time of 0.89 exp(k (1 - r)) in MPI
/// and of 0.11 outside of it gives 1.452 GUPS at a relative rate r of 4, and 1.538 GUPS at a
/// relative frequency of 3.84.
const RATE_EXPONENT: f64 = 1.092;
/// Exponent of the paper's fit to the time in MPI by the frequency, relative to [`CLOCK_MHZ`].
const FREQUENCY_EXPONENT: f64 = 1.250;
/// Shares of the time of RandomAccess that are spent in MPI, and outside of it.
const SHARE_IN_MPI: f64 = 0.89;
const SHARE_OUTSIDE: f64 = 0.11;

/// Returns all rows, in the order of the table.
pub(super) fn all() -> Vec<Expected> {
    let mut rows = vec![peak(), rate_of_three_pairs(), rate_of_four_pairs(), bandwidth(), hop()];
    rows.extend(FREQUENCIES.map(|(mhz, [rate, _, _])| rate_at(mhz, rate)));
    rows.extend(
        FREQUENCIES.into_iter().flat_map(|(mhz, [_, bandwidth, latency])| {
            [bandwidth_at(mhz, bandwidth), latency_at(mhz, latency)]
        }),
    );

    rows.extend([time_in_mpi(), updates()]);
    rows.extend(DELAYS.into_iter().flat_map(|delay| [rate_with_delay(delay), updates_with_delay(delay)]));
    rows.extend(FREQUENCIES.map(|(mhz, _)| updates_at(mhz)));
    rows
}

/// Returns the row of the highest rate of short messages.
pub(super) fn peak() -> Expected {
    Expected::predicted("message rate at 8 bytes", "M/s", 9.73)
        .null_model("the network's protocol bytes", 26.0)
        .within(Tolerance::Percent(1.0))
        .quick()
}

/// Returns the row of the rate of three pairs, which do not saturate the link.
pub(super) fn rate_of_three_pairs() -> Expected {
    Expected::calibrates("message rate of 3 pairs, of the peak", "%", 98.0)
        .null_model("the cost of software", 100.0)
        .at_most()
        .quick()
}

/// Returns the row of the rate of four pairs, which saturate the link.
pub(super) fn rate_of_four_pairs() -> Expected {
    Expected::calibrates("message rate of 4 pairs, of the peak", "%", 98.0).at_least().quick()
}

/// Returns the row of the bandwidth of the longest messages.
pub(super) fn bandwidth() -> Expected {
    Expected::calibrates("peak bandwidth", "MB/s", 480.0)
        .null_model("the network's protocol bytes", 624.0)
        .within(Tolerance::Percent(2.0))
        .quick()
}

/// Returns the row of the time by which a further hop lengthens the latency.
pub(super) fn hop() -> Expected {
    Expected::calibrates("time of a hop more", "us", HOP_NS / 1e3)
        .null_model("cut-through", 0.377)
        .within(Tolerance::Microseconds(0.015))
        .quick()
}

/// Returns the row of the message rate at a frequency, with the paper's percent of that at
/// [`CLOCK_MHZ`].
pub(super) fn rate_at(mhz: u32, paper: f64) -> Expected {
    Expected::predicted(format!("message rate at {mhz} MHz, of that at {CLOCK_MHZ}"), "%", paper)
        .null_model("the clock", 100.0)
        .within(Tolerance::Percent(2.0))
        .quick()
}

pub(super) fn bandwidth_at(mhz: u32, paper: f64) -> Expected {
    of_frequency(format!("bandwidth at {mhz} MHz, of that at {CLOCK_MHZ}"), mhz, paper)
}

pub(super) fn latency_at(mhz: u32, paper: f64) -> Expected {
    of_frequency(format!("latency at {CLOCK_MHZ} MHz, of that at {mhz}"), mhz, paper)
}

/// Returns the row of a mean over all sizes of messages. Its null model is a machine in which all
/// times scale with the clock. One in which no time does so would be farther away.
fn of_frequency(description: String, mhz: u32, paper: f64) -> Expected {
    // The lowest frequency calibrates the model.
    let expected = match mhz {
        117 => Expected::calibrates(description, "%", paper),
        _ => Expected::predicted(description, "%", paper),
    };

    // The null model is near at the highest of the lower frequencies, which needs a tolerance of
    // its own.
    let scaled = 100.0 * f64::from(mhz) / f64::from(CLOCK_MHZ);
    let percent = if mhz == 140 { 1.5 } else { 2.0 };
    expected
        .null_model("times that do not depend on the clock", rounded(scaled, 2))
        .within(Tolerance::Percent(percent))
}

/// Returns the row of the share of the time of RandomAccess that is spent in MPI.
pub(super) fn time_in_mpi() -> Expected {
    Expected::calibrates("RandomAccess, time in MPI", "%", 89.0)
        .null_model("the cost of software", 75.0)
        .within(Tolerance::Points(1.0))
        .quick()
}

/// Returns the row of the billions of updates per second of RandomAccess.
pub(super) fn updates() -> Expected {
    Expected::predicted("RandomAccess, 8 nodes, 64 processes", "GUPS", 0.208_53)
        .null_model("the cost of software", 0.47)
        .within(Tolerance::Percent(10.0))
        .quick()
}

/// Returns the row of RandomAccess at a frequency, in percent of that at [`CLOCK_MHZ`].
pub(super) fn updates_at(mhz: u32) -> Expected {
    let paper = fitted(FREQUENCY_EXPONENT, f64::from(mhz) / f64::from(CLOCK_MHZ));
    Expected::predicted(format!("RandomAccess at {mhz} MHz"), "%", paper)
}

/// Returns the row of the message rate with a delay, in percent of that without.
pub(super) fn rate_with_delay(Delay { rate_percent, ns }: Delay) -> Expected {
    let description = format!("message rate of 4 pairs with delays of {} us", ns / 1e3);
    Expected::calibrates(description, "%", rate_percent)
        .null_model("delays", 100.0)
        .within(Tolerance::Points(2.0))
}

/// Returns the row of RandomAccess with a delay, in percent of that without.
pub(super) fn updates_with_delay(delay: Delay) -> Expected {
    let description = format!("RandomAccess with delays of {} us", delay.ns / 1e3);
    if delay == DELAYS[0] {
        // "The sharp performance drop from 100% to 95%": the updates fall at least as the rate.
        return Expected::predicted(description, "%", delay.rate_percent)
            .null_model("time that delays take from the program", 100.0)
            .at_most();
    }

    Expected::predicted(description, "%", fitted(RATE_EXPONENT, delay.rate_percent / 100.0))
}

/// Returns the performance of RandomAccess in percent that the paper's fit gives at a relative
/// message rate or frequency.
fn fitted(exponent: f64, relative: f64) -> f64 {
    let time = SHARE_OUTSIDE + SHARE_IN_MPI * (exponent * (1.0 - relative)).exp();
    rounded(100.0 / time, 1)
}
