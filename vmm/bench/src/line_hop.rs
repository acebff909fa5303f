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
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// The count that ends the other thread.
const END: u64 = u64::MAX;
/// Number of loads between two looks at the clock.
const LOADS: u32 = 10_000;

/// A count in a cache line of its own, and of the line that some processors fetch beside it.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// Waits for a count, or for [`END`], and returns it. Returns `None` when neither comes in
    /// time.
    fn wait_for(&self, count: u64) -> Option<u64> {
        let mut deadline = None;
        loop {
            // A pause between the loads would take as long as a line of a near processor.
            for _ in 0..LOADS {
                let found = self.0.load(Ordering::Acquire);
                if found == count || found == END {
                    return Some(found);
                }
            }

            if deadline.get_or_insert_with(|| Deadline::after(STEP_TIMEOUT)).has_passed() {
                return None;
            }
            thread::yield_now();
        }
    }
}

/// Measures up to `samples` times the mean of one way of a cache line, between this thread and one
/// on `processor`. No sample begins after `longest`: on a busy machine a line may wait for its
/// thread. Measures nothing without a processor, because the threads might then share one.
///
/// # Errors
/// Returns an error when there is no thread to be had, or it does not answer.
pub fn measure(processor: Option<usize>, samples: u32, longest: Duration) -> Result<Measurement, Failure> {
    let Some(processor) = processor else { return Ok(Measurement::default()) };
    let line = Arc::new(Line::default());
    let partner = thread::Builder::new().name("partner".into()).spawn({
        let line = Arc::clone(&line);
        move || {
            pin(processor)?;
            let mut expected = 1;
            loop {
                match line.wait_for(expected) {
                    Some(END) => return Ok(true),
                    Some(count) => line.0.store(count + 1, Ordering::Release),
                    None => return Ok(false),
                }
                expected += 2;
            }
        }
    });
    let partner = partner.context(|| "a thread for cache lines".into())?;

    let mut times = Samples::default();
    let (begun, mut has_answered) = (Instant::now(), true);
    for sample in 0..u64::from(samples) {
        let start = Instant::now();
        for trip in 0..u64::from(ROUND_TRIPS) {
            let count = 2 * (sample * u64::from(ROUND_TRIPS) + trip);
            line.0.store(count + 1, Ordering::Release);
            has_answered = has_answered && line.wait_for(count + 2).is_some();
        }
        times.add_mean(start.elapsed(), 2 * ROUND_TRIPS);

        if !has_answered || begun.elapsed() >= longest {
            break;
        }
    }
    line.0.store(END, Ordering::Release);

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
        let measurement = measure(Some(processors().unwrap()[0]), 3, Duration::from_secs(3600)).unwrap();

        assert_eq!(measurement.samples.len(), 3);
        assert!(measurement.samples.percentile(50.0) > 0.0);
    }

    #[test]
    fn no_sample_begins_after_the_time() {
        let measurement = measure(Some(processors().unwrap()[0]), u32::MAX, Duration::ZERO).unwrap();
        assert_eq!(measurement.samples.len(), 1);
    }
}
