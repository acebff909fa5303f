//! Percentiles and medians.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Times of single operations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Samples {
    nanoseconds: Vec<f64>,
}

impl Samples {
    /// Returns an empty list with room for `count` samples, so that adding them allocates nothing.
    pub fn with_capacity(count: usize) -> Self {
        Self { nanoseconds: Vec::with_capacity(count) }
    }

    /// Adds the time of one operation.
    pub fn add(&mut self, time: Duration) {
        self.nanoseconds.push(time.as_nanos() as f64);
    }

    /// Adds the mean of `operations` operations that took `time` together.
    pub fn add_mean(&mut self, time: Duration, operations: u32) {
        self.nanoseconds.push(time.as_nanos() as f64 / f64::from(operations.max(1)));
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.nanoseconds.len()
    }

    /// Returns whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.nanoseconds.is_empty()
    }

    /// Adds all samples of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.nanoseconds.append(&mut other.nanoseconds);
    }

    /// Returns the sample that `percent` of all samples do not exceed, in nanoseconds. Returns 0
    /// without samples.
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
    }

    /// Returns the mean in microseconds, or 0 without samples.
    pub fn mean_us(&self) -> f64 {
        self.nanoseconds.iter().sum::<f64>() / self.len().max(1) as f64 / 1e3
    }

    /// Returns the median in microseconds.
    pub fn p50_us(&self) -> f64 {
        self.percentile(50.0) / 1e3
    }

    /// Returns the 99th percentile in microseconds.
    pub fn p99_us(&self) -> f64 {
        self.percentile(99.0) / 1e3
    }
}

/// Returns the median of `figures`, or 0 if there are none.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        for nanoseconds in [40, 10, 30, 20] {
            samples.add(Duration::from_nanos(nanoseconds));
        }

        assert_eq!(samples.percentile(50.0), 20.0);
        assert_eq!(samples.percentile(99.0), 40.0);
        assert_eq!(samples.percentile(0.0), 10.0);
        assert_eq!((samples.mean_us(), Samples::default().mean_us()), (0.025, 0.0));
        assert_eq!(Samples::default().percentile(50.0), 0.0);
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
