//! The time in which a cache line goes from one processor to another.
//!
//! Each hand-over between a program and the engine takes at least this long. A virtual machine's
//! host moves its processors, and the time changes with that, here from 40 to 240 ns within
//! seconds. Latencies of different runs can be compared only beside it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::Deadline;

use crate::{contest::Measurement, placement::pin, samples::Samples};

/// The name of the row.
pub const PATH: &str = "line-hop";
/// The note about the row.
pub const NOTE: &str =
    "line-hop: a cache line from one of the two processors to the other, a part of each latency";
/// Number of round trips whose mean is a sample.
const ROUND_TRIPS: u32 = 20;
/// The longest wait for the other thread.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of loads between two looks at the clock.
const LOADS: u32 = 10_000;

/// A count in a cache line of its own, and of the line that some processors fetch beside it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// Waits for a count. Returns `false` when it does not come in time.
    fn wait_for(&self, count: u64) -> bool {
        let mut deadline = None;
        loop {
            // A pause between the loads would take as long as a line of a near processor.
            for _ in 0..LOADS {
                if self.0.load(Ordering::Acquire) == count {
                    return true;
                }
            }

            if deadline.get_or_insert_with(|| Deadline::after(STEP_TIMEOUT)).has_passed() {
                return false;
            }
            thread::yield_now();
        }
    }
}

/// Measures `samples` times the mean of one way of a cache line, between this thread and one on
/// `processor`. Measures nothing without one, because the threads might then share a processor.
///
/// # Errors
/// Returns an error when there is no thread to be had, or it does not answer.
pub fn measure(processor: Option<usize>, samples: u32) -> Result<Measurement, Failure> {
    let Some(processor) = processor else { return Ok(Measurement::default()) };
    let line = Arc::new(Line::default());
    let round_trips = u64::from(samples) * u64::from(ROUND_TRIPS);
    let partner = thread::Builder::new().name("partner".into()).spawn({
        let line = Arc::clone(&line);
        move || {
            pin(processor)?;
            Ok((0..round_trips).all(|trip| {
                let has_come = line.wait_for(2 * trip + 1);
                line.0.store(2 * trip + 2, Ordering::Release);
                has_come
            }))
        }
    });
    let partner = partner.context(|| "a thread for cache lines".into())?;

    let mut times = Samples::with_capacity(samples as usize);
    let mut has_answered = true;
    for sample in 0..u64::from(samples) {
        let start = Instant::now();
        for trip in 0..u64::from(ROUND_TRIPS) {
            let count = 2 * (sample * u64::from(ROUND_TRIPS) + trip);
            line.0.store(count + 1, Ordering::Release);
            has_answered = has_answered && line.wait_for(count + 2);
        }
        times.add_mean(start.elapsed(), 2 * ROUND_TRIPS);
    }

    let partner: Result<bool, Failure> = partner.join().unwrap_or(Ok(false));
    if partner? && has_answered {
        Ok(Measurement::of_samples(times))
    } else {
        Err(Failure::result("a cache line does not come back from another thread"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::processors;

    #[test]
    fn a_line_goes_there_and_back() {
        let measurement = measure(Some(processors().unwrap()[0]), 3).unwrap();

        assert_eq!(measurement.samples.len(), 3);
        assert!(measurement.samples.percentile(50.0) > 0.0);
    }
}
