//! The posted-write ring without an engine. One thread writes records, and another one adds up
//! their data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Instant,
};

use nicforge_driver::{Deadline, Patience, Relax};
use nicforge_hwi::{posted::CELL, proof::dma_engine::REG_COUNT};
use nicforge_shm::{Consumer, Peek, Producer, PushError, SharedCells, SharedMemory, SharedU32};

use super::{BATCH, Contestant, Effort, PATIENCE, RING_CELLS, Turn};
use crate::{
    bench::{placement::pin, samples::Samples},
    failure::{Doing, Failure},
};

/// Number of records that the consumer takes before it publishes its count, as the engine does.
const BUDGET: u32 = 64;
/// The BAR in the records.
const BAR: u8 = 0;

/// The ring as a contestant. The consumer runs on the server's processor.
pub(super) struct BareRing {
    processor: Option<usize>,
}

impl BareRing {
    pub(super) fn new(processor: Option<usize>) -> Self {
        Self { processor }
    }
}

/// The consumer's thread.
struct Reader {
    stop: Arc<AtomicBool>,
    /// The thread returns the sum of the data that it read.
    thread: JoinHandle<Result<u64, Failure>>,
}

impl Reader {
    fn start(cells: SharedCells, consumed: SharedU32, processor: Option<usize>) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::Builder::new()
            .name("consumer".into())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    processor.map_or(Ok(()), pin)?;
                    Ok(consume(cells, &consumed, &stop))
                }
            })
            .doing(|| "the thread of a bare ring".into())?;

        Ok(Self { stop, thread })
    }

    /// Ends the thread when the ring is empty, and returns its sum.
    fn end(self) -> Result<u64, Failure> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|_| Err(Failure::result("the consumer of a bare ring panicked")))
    }
}

fn consume(cells: SharedCells, consumed: &SharedU32, stop: &AtomicBool) -> u64 {
    let mut ring = Consumer::new(cells);
    let mut sum = 0u64;
    // The consumer yields and never sleeps, like the engine.
    let mut relax = Relax::with_patience(Patience { yields: u32::MAX, ..Patience::default() });

    loop {
        let mut taken = 0;
        while taken < BUDGET
            && let Peek::Record(record) = ring.peek()
        {
            if let Ok(data) = <[u8; 4]>::try_from(record.data) {
                sum = sum.wrapping_add(u32::from_le_bytes(data).into());
            }
            ring.pop();
            taken += 1;
        }

        if taken > 0 {
            consumed.store(ring.consumed(), Ordering::Release);
            relax.reset();
        } else if stop.load(Ordering::Acquire) {
            return sum;
        } else {
            relax.turn().take();
        }
    }
}

/// The writing end.
struct Writer {
    ring: Producer<SharedCells>,
    consumed: SharedU32,
    count: u32,
    sum: u64,
}

impl Writer {
    fn batch(&mut self) -> Result<(), Failure> {
        for _ in 0..BATCH {
            self.count = self.count.wrapping_add(1);
            self.sum = self.sum.wrapping_add(self.count.into());
            let data = self.count.to_le_bytes();

            self.wait_for(|writer| {
                let consumed = || writer.consumed.load(Ordering::Acquire);
                match writer.ring.try_push(consumed, BAR, REG_COUNT as u32, &data) {
                    Ok(()) => Ok(true),
                    Err(PushError::Full) => Ok(false),
                    Err(error) => Err(Failure::result(format!("a bare ring: {error}"))),
                }
            })?;
        }

        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.wait_for(|writer| Ok(writer.ring.is_drained(writer.consumed.load(Ordering::Acquire))))
    }

    #[inline]
    fn wait_for(&mut self, mut look: impl FnMut(&mut Self) -> Result<bool, Failure>) -> Result<(), Failure> {
        if look(self)? {
            return Ok(());
        }

        let (deadline, mut relax) = (Deadline::after(PATIENCE), Relax::new());
        while !look(self)? {
            if deadline.has_passed() {
                return Err(Failure::result("nobody empties a bare ring"));
            }
            relax.turn().take();
        }

        Ok(())
    }
}

impl Contestant for BareRing {
    fn path(&self) -> &'static str {
        "bare-ring"
    }

    fn is_posted(&self) -> bool {
        true
    }

    fn turn(&mut self, effort: &Effort) -> Result<Turn, Failure> {
        let what = || "the memory of a bare ring".into();
        let bytes = RING_CELLS as usize * CELL;
        // One more page holds the consumer's count.
        let memory = SharedMemory::create("bench-ring", bytes + 4096).doing(what)?;
        let cells = SharedCells::new(memory.window(0, bytes as u64).doing(what)?).doing(what)?;
        let consumed = memory.u32(bytes as u64).doing(what)?;
        let reader = Reader::start(cells.clone(), consumed.clone(), self.processor)?;
        let mut writer = Writer { ring: Producer::new(cells), consumed, count: 0, sum: 0 };
        let turn = write(&mut writer, effort);
        let sum = reader.end()?;
        let turn = turn?;

        if sum == writer.sum {
            Ok(turn)
        } else {
            Err(Failure::result(format!("a bare ring delivered a sum of {sum} instead of {}", writer.sum)))
        }
    }
}

fn write(writer: &mut Writer, effort: &Effort) -> Result<Turn, Failure> {
    // Every page of the ring is touched once before the measurement.
    for _ in 0..RING_CELLS.div_ceil(BATCH) {
        writer.batch()?;
    }

    let mut samples = Samples::with_capacity(effort.batches);
    for _ in 0..effort.batches {
        writer.drain()?;
        let start = Instant::now();
        writer.batch()?;
        samples.add_mean(start.elapsed(), BATCH);
    }

    writer.drain()?;
    let (start, mut written) = (Instant::now(), 0);
    while start.elapsed() < effort.sustained {
        writer.batch()?;
        written += BATCH;
    }

    writer.drain()?;
    Ok(Turn { samples, rate_per_s: Some(f64::from(written) / start.elapsed().as_secs_f64()) })
}
