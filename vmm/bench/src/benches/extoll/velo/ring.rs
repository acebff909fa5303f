//! A posted-write ring without an engine, written without a pause.

use std::time::{Duration, Instant};

use nicforge::failure::Failure;
use nicforge_driver::Deadline;
use nicforge_hwi::extoll::RING_CELLS;

use super::{BYTES, Effort, Measurement};
use crate::{bare_ring::BareRing, machine::never_sleeping_wait};

/// The longest wait for the consumer.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of records between two readings of the clock.
const RECORDS_PER_CHECK: u32 = 1024;
/// BAR and offset of the register in each record. No device carries the records out.
const BAR: u8 = 0;
const OFFSET: u32 = 0;

/// Measures the rate of records, with the consumer on `processor` or anywhere.
pub(super) fn measure_rate(processor: Option<usize>, effort: &Effort) -> Result<Measurement, Failure> {
    let mut ring = BareRing::start(RING_CELLS, processor)?;
    let rate = write(&mut ring, effort);
    ring.finish()?;
    rate.map(Measurement::of_rate)
}

/// Writes records for the sustained time, and waits until the ring is empty. Returns the records
/// per second.
fn write(ring: &mut BareRing<BYTES>, effort: &Effort) -> Result<f64, Failure> {
    let (start, mut count) = (Instant::now(), 0_u64);
    let deadline = Deadline::after(STEP_TIMEOUT + effort.sustained);
    let mut idle = never_sleeping_wait();

    while start.elapsed() < effort.sustained || !ring.is_drained() {
        if deadline.has_passed() {
            return Err(Failure::result("the consumer of a bare ring reads nothing"));
        }

        if start.elapsed() >= effort.sustained {
            idle.pause();
            continue;
        }

        for _ in 0..RECORDS_PER_CHECK {
            if !ring.push(BAR, OFFSET, count.to_le_bytes())? {
                idle.pause();
                break;
            }
            count += 1;
        }
    }

    Ok(count as f64 / start.elapsed().as_secs_f64())
}
