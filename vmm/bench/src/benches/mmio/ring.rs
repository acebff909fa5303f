//! The posted-write ring without an engine, written in batches.

use std::time::Instant;

use nicforge::failure::Failure;
use nicforge_driver::{Deadline, Relax};
use nicforge_hwi::proof::dma_engine::REG_COUNT;

use super::{BATCH, Contestant, Effort, Measurement, RING_CELLS, TIMEOUT};
use crate::{bare_ring, samples::Samples};

/// The BAR in the records.
const BAR: u8 = 0;

/// The ring as a contestant. The consumer runs on the server's processor.
pub(super) struct BareRing {
    processor: Option<usize>,
}

impl BareRing {
    /// Returns the contestant, whose consumer runs on this processor, or anywhere.
    pub(super) fn new(processor: Option<usize>) -> Self {
        Self { processor }
    }
}

/// The writing end.
struct Writer {
    ring: bare_ring::BareRing<4>,
    count: u32,
}

impl Writer {
    /// Writes a batch. Waits while the ring is full.
    fn write_batch(&mut self) -> Result<(), Failure> {
        for _ in 0..BATCH {
            self.count = self.count.wrapping_add(1);
            let data = self.count.to_le_bytes();
            wait_for(|| self.ring.push(BAR, REG_COUNT as u32, data))?;
        }

        Ok(())
    }

    /// Waits until the consumer has read all records.
    fn wait_until_drained(&mut self) -> Result<(), Failure> {
        wait_for(|| Ok(self.ring.is_drained()))
    }
}

/// Repeats `attempt` until it returns `true`.
#[inline]
fn wait_for(mut attempt: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    if attempt()? {
        return Ok(());
    }

    let (deadline, mut relax) = (Deadline::after(TIMEOUT), Relax::new());
    while !attempt()? {
        if deadline.has_passed() {
            return Err(Failure::result("the consumer of a bare ring reads nothing"));
        }
        relax.pause();
    }

    Ok(())
}

impl Contestant for BareRing {
    fn path(&self) -> &'static str {
        "bare-ring"
    }

    fn is_posted(&self) -> bool {
        true
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let ring = bare_ring::BareRing::start(RING_CELLS, self.processor)?;
        let mut writer = Writer { ring, count: 0 };
        let measurement = measure_writes(&mut writer, effort);
        writer.ring.finish()?;
        measurement
    }
}

/// Measures records that are written in timed batches, and then without a pause.
fn measure_writes(writer: &mut Writer, effort: &Effort) -> Result<Measurement, Failure> {
    // Every page of the ring is touched once before the measurement.
    for _ in 0..RING_CELLS.div_ceil(BATCH) {
        writer.write_batch()?;
    }

    let mut samples = Samples::with_capacity(effort.batches);
    for _ in 0..effort.batches {
        writer.wait_until_drained()?;
        let start = Instant::now();
        writer.write_batch()?;
        samples.add_mean(start.elapsed(), BATCH);
    }

    writer.wait_until_drained()?;
    let (start, mut written) = (Instant::now(), 0);
    while start.elapsed() < effort.sustained {
        writer.write_batch()?;
        written += BATCH;
    }

    writer.wait_until_drained()?;
    Ok(Measurement { rate: Some(f64::from(written) / start.elapsed().as_secs_f64()), samples })
}
