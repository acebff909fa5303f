//! A posted-write ring in shared memory without an engine. One thread writes records, and another
//! one adds up their data.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Patience, Relax};
use nicforge_hwi::{extoll::RING_CELLS, posted::CELL};
use nicforge_shm::{Consumer, Peek, Producer, PushError, SharedCells, SharedMemory, SharedU32};

use super::{BYTES, Effort, Turn};
use crate::{
    bench::{placement::pin, samples::Samples},
    failure::{Doing, Failure},
};

/// Number of records that the consumer takes before it publishes its count, as the engine does.
const BUDGET: u32 = 64;
/// The longest wait for the consumer.
const LIMIT: Duration = Duration::from_secs(10);

pub(super) fn rate(processor: Option<usize>, effort: &Effort) -> Result<Turn, Failure> {
    let what = || "the memory of a bare ring".into();
    let bytes = RING_CELLS as usize * CELL;
    // One more page holds the consumer's count.
    let memory = SharedMemory::create("bench-ring", bytes + 4096).doing(what)?;
    let cells = SharedCells::new(memory.window(0, bytes as u64).doing(what)?).doing(what)?;
    let consumed = memory.u32(bytes as u64).doing(what)?;

    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn({
            let (cells, consumed, stop) = (cells.clone(), consumed.clone(), stop.clone());
            move || {
                processor.map_or(Ok(()), pin)?;
                Ok::<_, Failure>(consume(cells, &consumed, &stop))
            }
        });
        let written = write(&mut Producer::new(cells), &consumed, effort);
        stop.store(true, Ordering::Release);
        let sum = reader.join().unwrap_or_else(|_| Err(Failure::result("the consumer panicked")))?;

        let (count, rate) = written?;
        let expected = (0..count).fold(0_u64, u64::wrapping_add);

        if sum != expected {
            return Err(Failure::result(format!(
                "a bare ring delivered a sum of {sum} instead of {expected}"
            )));
        }
        Ok(Turn { rate, samples: Samples::default() })
    })
}

fn consume(cells: SharedCells, consumed: &SharedU32, stop: &AtomicBool) -> u64 {
    let mut ring = Consumer::new(cells);
    let mut sum = 0_u64;
    // The consumer yields and never sleeps, like the engine.
    let mut relax = Relax::with_patience(Patience { yields: u32::MAX, ..Patience::default() });

    loop {
        let mut taken = 0;
        while taken < BUDGET
            && let Peek::Record(record) = ring.peek()
        {
            if let Ok(data) = <[u8; BYTES]>::try_from(record.data) {
                sum = sum.wrapping_add(u64::from_le_bytes(data));
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

/// Writes records for the sustained time, and waits until the ring is empty. Returns the number of
/// records, and the records per second.
fn write(
    ring: &mut Producer<SharedCells>,
    consumed: &SharedU32,
    effort: &Effort,
) -> Result<(u64, f64), Failure> {
    let (start, mut count) = (Instant::now(), 0_u64);
    let deadline = Deadline::after(LIMIT + effort.sustained);
    let mut idle = Relax::with_patience(Patience { yields: u32::MAX, ..Patience::default() });
    let emptied = |ring: &Producer<SharedCells>| ring.is_drained(consumed.load(Ordering::Acquire));

    while start.elapsed() < effort.sustained || !emptied(ring) {
        if deadline.has_passed() {
            return Err(Failure::result("nobody empties a bare ring"));
        }

        if start.elapsed() >= effort.sustained {
            idle.turn().take();
            continue;
        }

        for _ in 0..1024 {
            match ring.try_push(|| consumed.load(Ordering::Acquire), 0, 0, &count.to_le_bytes()) {
                Ok(()) => count += 1,
                Err(PushError::Full) => {
                    idle.turn().take();
                    break;
                }
                Err(error) => return Err(Failure::result(format!("a bare ring: {error}"))),
            }
        }
    }

    Ok((count, count as f64 / start.elapsed().as_secs_f64()))
}
