//! Contests: contestants that are measured in turns, within one run.
//!
//! Every second round has the opposite order. A disturbance on the host therefore affects all
//! contestants alike. The result of a contestant is the median over its rounds.

use std::time::{Duration, Instant};

use nicforge::failure::Failure;
use serde::{Deserialize, Serialize};

use crate::{
    bench::Run,
    row::Row,
    samples::{Samples, median},
};

/// One measurement of a contestant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measurement {
    /// Operations per second, if one was measured.
    pub rate: Option<f64>,
    /// Times of single operations; empty when only the rate counts.
    pub samples: Samples,
}

impl Measurement {
    /// Returns a measurement of a rate alone, in operations per second.
    pub fn of_rate(rate: f64) -> Self {
        Self { rate: Some(rate), samples: Samples::default() }
    }

    /// Returns a measurement of times alone.
    pub fn of_samples(samples: Samples) -> Self {
        Self { rate: None, samples }
    }
}

/// Calls `measure` up to `maximum` times, and returns the times that it returns. No call begins
/// after `longest`: on a busy machine an operation may take as long as another process computes.
///
/// # Errors
/// Returns the first error of `measure`.
pub fn samples_within(
    maximum: u32,
    longest: Duration,
    mut measure: impl FnMut() -> Result<Duration, Failure>,
) -> Result<Measurement, Failure> {
    let (begun, mut samples) = (Instant::now(), Samples::with_capacity(maximum as usize));
    for _ in 0..maximum {
        samples.add(measure()?);
        if begun.elapsed() >= longest {
            break;
        }
    }
    Ok(Measurement::of_samples(samples))
}

/// Measures contestants in turns, `rounds` times each. `measure` gets the contestant and the number
/// of the round.
///
/// # Errors
/// Returns the first error of a measurement, and an error when the user has ended the run.
pub fn run<C, T>(
    run: &Run<'_>,
    rounds: usize,
    mut contestants: Vec<C>,
    mut measure: impl FnMut(&mut C, usize) -> Result<T, Failure>,
) -> Result<Results<C, T>, Failure> {
    let measurements = measure_alternately(rounds, contestants.len(), |index, round| {
        run.check()?;
        measure(&mut contestants[index], round)
    })?;

    Ok(Results { entries: contestants.into_iter().zip(measurements).collect() })
}

/// The contestants of a contest, and the measurements of each.
#[derive(Clone, Debug)]
pub struct Results<C, T = Measurement> {
    entries: Vec<(C, Vec<T>)>,
}

impl<C, T> Results<C, T> {
    /// Iterates over the contestants with their measurements, in the contestants' order.
    pub fn iter(&self) -> impl Iterator<Item = (&C, &[T])> {
        self.entries.iter().map(|(contestant, measurements)| (contestant, measurements.as_slice()))
    }

    /// Returns the contestants with their measurements.
    pub fn into_entries(self) -> Vec<(C, Vec<T>)> {
        self.entries
    }

    /// Returns the measurements of a contestant, or none if it did not take part.
    pub fn of(&self, expected: &C) -> &[T]
    where
        C: PartialEq,
    {
        self.iter()
            .find(|(contestant, _)| *contestant == expected)
            .map_or(&[], |(_, measurements)| measurements)
    }
}

/// Returns the median rate of the measurements that have one.
pub fn median_rate(measurements: &[Measurement]) -> Option<f64> {
    let rates: Vec<_> = measurements.iter().filter_map(|measurement| measurement.rate).collect();
    (!rates.is_empty()).then(|| median(&rates))
}

/// Returns the samples of all measurements.
pub fn all_samples(measurements: &[Measurement]) -> Samples {
    let mut all = Samples::default();
    for measurement in measurements {
        all.append(measurement.samples.clone());
    }
    all
}

/// Returns the quotient of the median rates of two contestants. A denominator without a rate counts
/// as one operation per second.
pub fn ratio(numerator: &[Measurement], denominator: &[Measurement]) -> f64 {
    median_rate(numerator).unwrap_or(0.0) / median_rate(denominator).unwrap_or(0.0).max(1.0)
}

/// Returns the ratio of two rates in the same round, as the median over all rounds.
pub fn ratio_in_rounds(numerator: &[Measurement], denominator: &[Measurement]) -> f64 {
    let rate = |measurement: &Measurement| measurement.rate.unwrap_or(0.0);
    let ratios: Vec<_> = numerator
        .iter()
        .zip(denominator)
        .map(|(numerator, denominator)| rate(numerator) / rate(denominator))
        .collect();
    median(&ratios)
}

impl Row {
    /// Fills in the median rate of a contestant's measurements, and the percentiles of all its
    /// samples.
    #[must_use]
    pub fn with_measurements(mut self, measurements: &[Measurement]) -> Self {
        self.rate_per_s = median_rate(measurements).filter(|&rate| rate > 0.0);
        let samples = all_samples(measurements);
        if !samples.is_empty() {
            self.p50_us = Some(samples.p50_us());
            self.p99_us = Some(samples.p99_us());
        }
        self
    }

    /// Fills in the size of a message, and the bandwidth that it has at the row's rate.
    #[must_use]
    pub fn with_bandwidth(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes as u64);
        self.gbit_s = self.rate_per_s.map(|rate| rate * bytes as f64 * 8.0 / 1e9);
        self
    }
}

/// Calls `measure` with each contestant's index and the round, every second round backwards.
/// Returns the results of each contestant.
fn measure_alternately<T, E>(
    rounds: usize,
    contestants: usize,
    mut measure: impl FnMut(usize, usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut results: Vec<Vec<T>> = (0..contestants).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for position in 0..contestants {
            let contestant = if round % 2 == 0 { position } else { contestants - 1 - position };
            results[contestant].push(measure(contestant, round)?);
        }
    }

    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_runs_backwards() {
        let mut order = Vec::new();
        let results = measure_alternately(2, 3, |contestant, round| {
            order.push(contestant);
            Ok::<_, ()>(round)
        });
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
        assert_eq!(results, Ok(vec![vec![0, 1]; 3]));
    }

    #[test]
    fn samples_are_taken_until_their_number_or_their_time_is_reached() {
        let count =
            |maximum, longest| samples_within(maximum, longest, || Ok(Duration::ZERO)).unwrap().samples.len();
        assert_eq!(count(3, Duration::from_secs(3600)), 3);
        assert_eq!(count(3, Duration::ZERO), 1);
    }

    #[test]
    fn ratio_divides_medians_and_ratio_in_rounds_is_the_median_of_ratios() {
        let measurements = |rates: [f64; 3]| rates.map(Measurement::of_rate);
        let (numerator, denominator) = (measurements([2.0, 8.0, 30.0]), measurements([1.0, 16.0, 10.0]));
        assert_eq!(ratio(&numerator, &denominator), 0.8);
        assert_eq!(ratio_in_rounds(&numerator, &denominator), 2.0);
    }

    #[test]
    fn a_row_has_only_the_figures_that_were_measured() {
        let rated = Row::new("rate").with_measurements(&[Measurement::of_rate(1e6)]).with_bandwidth(1000);
        assert_eq!((rated.rate_per_s, rated.gbit_s, rated.p50_us), (Some(1e6), Some(8.0), None));

        let mut samples = Samples::default();
        samples.add(Duration::from_micros(3));
        let timed =
            Row::new("time").with_measurements(&[Measurement::of_samples(samples), Measurement::default()]);
        assert_eq!((timed.rate_per_s, timed.p50_us, timed.p99_us), (None, Some(3.0), Some(3.0)));
    }
}
