//! A posted-write ring in shared memory without an engine. One thread writes records, and another
//! one adds up their data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_hwi::posted::CELL;
use nicforge_shm::{Consumer, Peek, Producer, PushError, SharedCells, SharedMemory, SharedU32};

use crate::{machine::never_sleeping_wait, placement::pin};

/// Number of records that the consumer takes before it publishes its count, as the engine does.
const RECORDS_PER_PUBLISH: u32 = 64;
/// Bytes of the page behind the ring that holds the consumer's count.
const COUNT_PAGE: usize = 4096;

/// The writing end of a ring whose records have `N` bytes of data, at most 8, and the thread that
/// reads them.
pub struct BareRing<const N: usize> {
    producer: Producer<SharedCells>,
    /// The count of records that the consumer has published.
    consumed: SharedU32,
    /// Sum of the data that were written.
    sum: u64,
    stop: Arc<AtomicBool>,
    /// The thread returns the sum of the data that it read.
    reader: JoinHandle<Result<u64, Failure>>,
}

impl<const N: usize> BareRing<N> {
    /// Makes a ring of `cells` cells, with the consumer on `processor`.
    ///
    /// # Errors
    /// Returns an error when memory or a thread is not available.
    pub fn start(cells: u32, processor: Option<usize>) -> Result<Self, Failure> {
        let description = || "the memory of a bare ring".into();
        let bytes = cells as usize * CELL;
        let memory = SharedMemory::create("bench-ring", bytes + COUNT_PAGE).context(description)?;
        let cells =
            SharedCells::new(memory.window(0, bytes as u64).context(description)?).context(description)?;
        let consumed = memory.u32(bytes as u64).context(description)?;

        let stop = Arc::new(AtomicBool::new(false));
        let reader = std::thread::Builder::new()
            .name("consumer".into())
            .spawn({
                let (cells, consumed, stop) = (cells.clone(), consumed.clone(), Arc::clone(&stop));
                move || {
                    processor.map_or(Ok(()), pin)?;
                    Ok(consume::<N>(cells, &consumed, &stop))
                }
            })
            .context(|| "the thread of a bare ring".into())?;

        Ok(Self { producer: Producer::new(cells), consumed, sum: 0, stop, reader })
    }

    /// Writes a record of a register write at `offset` of BAR `bar`. Returns `false` when the ring
    /// is full.
    ///
    /// # Errors
    /// Returns an error when the ring refuses the record.
    #[inline]
    pub fn push(&mut self, bar: u8, offset: u32, data: [u8; N]) -> Result<bool, Failure> {
        let consumed = || self.consumed.load(Ordering::Acquire);
        match self.producer.try_push(consumed, bar, offset, &data) {
            Ok(()) => {
                self.sum = self.sum.wrapping_add(number(data));
                Ok(true)
            }
            Err(PushError::Full) => Ok(false),
            Err(error) => Err(Failure::result(format!("a bare ring: {error}"))),
        }
    }

    /// Returns whether the consumer has read all records.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.producer.is_drained(self.consumed.load(Ordering::Acquire))
    }

    /// Ends the consumer when the ring is empty.
    ///
    /// # Errors
    /// Returns an error when the consumer has read something else than was written.
    pub fn finish(self) -> Result<(), Failure> {
        self.stop.store(true, Ordering::Release);
        let read = self
            .reader
            .join()
            .unwrap_or_else(|_| Err(Failure::result("the consumer of a bare ring panicked")))?;

        if read == self.sum {
            Ok(())
        } else {
            Err(Failure::result(format!("a bare ring delivered a sum of {read} instead of {}", self.sum)))
        }
    }
}

/// Reads records until `stop` is set and the ring is empty. Returns the sum of their data.
fn consume<const N: usize>(cells: SharedCells, consumed: &SharedU32, stop: &AtomicBool) -> u64 {
    let mut ring = Consumer::new(cells);
    let mut sum = 0_u64;
    // The consumer yields and never sleeps, like the engine.
    let mut idle = never_sleeping_wait();

    loop {
        let mut count = 0;
        while count < RECORDS_PER_PUBLISH
            && let Peek::Record(record) = ring.peek()
        {
            if let Ok(data) = <[u8; N]>::try_from(record.data) {
                sum = sum.wrapping_add(number(data));
            }
            ring.pop();
            count += 1;
        }

        if count > 0 {
            consumed.store(ring.consumed(), Ordering::Release);
            idle.reset();
        } else if stop.load(Ordering::Acquire) {
            return sum;
        } else {
            idle.pause();
        }
    }
}

/// Returns the little-endian number of at most 8 bytes.
#[inline]
fn number<const N: usize>(data: [u8; N]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&data);
    u64::from_le_bytes(bytes)
}
