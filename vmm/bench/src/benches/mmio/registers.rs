//! Measures reads and writes of registers through the driver library.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Bar, Device, OpenOptions, Poster};
use nicforge_hwi::{attachment::mirror, proof::dma_engine::REG_COUNT};
use nicforge_shm::SharedU32;

use super::{BATCH, Contestant, Effort, Measurement, TIMEOUT, in_a_row, paced};
use crate::{row::Backing, samples::Samples};

/// The BAR of the registers.
const REGISTERS: u8 = 0;
/// The BAR of the mirror.
const MIRROR: u8 = 2;

/// Returns options for a device whose waits block at once.
pub(in crate::benches) fn blocking() -> OpenOptions {
    OpenOptions { spin: Duration::ZERO, socket_spin: Duration::ZERO, ..OpenOptions::default() }
}

/// Converts the error of an access to the device into a failure of the bench.
pub(in crate::benches) fn accessing<T>(result: Result<T, nicforge_driver::Error>) -> Result<T, Failure> {
    result.context(|| "accessing the device".into())
}

/// Returns all contestants with registers. They use two attachments of the device: one whose waits
/// poll, and one whose waits block.
pub(in crate::benches) fn contestants(
    polling: &Device,
    blocking: &Device,
) -> Result<Vec<Box<dyn Contestant>>, Failure> {
    Ok(vec![
        Box::new(Trapped {
            path: "trapped-read-hot",
            is_write: false,
            bar: accessing(polling.bar(REGISTERS))?,
        }),
        Box::new(SleepingEngineReads::new(blocking)?),
        Box::new(Trapped { path: "trapped-write", is_write: true, bar: accessing(polling.bar(REGISTERS))? }),
        Box::new(Posted::new(polling)?),
        Box::new(PostedWriteTime {
            path: "posted-write-done",
            engine_sleeps: false,
            ..PostedWriteTime::new(blocking)?
        }),
        Box::new(PostedWriteTime::new(blocking)?),
    ])
}

/// Trapped accesses one after the other. The engine finds the next access before it goes to sleep.
struct Trapped {
    path: &'static str,
    /// Whether the accesses are writes, and not reads.
    is_write: bool,
    bar: Bar,
}

impl Contestant for Trapped {
    fn path(&self) -> &'static str {
        self.path
    }

    fn backing(&self) -> Option<Backing> {
        Some(Backing::VfioUser)
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let mut value = 0;
        in_a_row(effort, || {
            if self.is_write {
                value += 1;
                accessing(self.bar.write32(REG_COUNT, value))
            } else {
                accessing(self.bar.read32(REG_COUNT)).map(drop)
            }
        })
    }
}

/// Returns a word of an attachment's mirror.
fn mirror_word(device: &Device, offset: u64) -> Result<SharedU32, Failure> {
    let mirror = accessing(device.bar(MIRROR).and_then(|bar| bar.window(0, mirror::SIZE)))?;
    mirror.u32(offset).context(|| "the mirror".into())
}

/// Waits until the engine sleeps.
fn wait_until_asleep(sleeping: &SharedU32) -> Result<(), Failure> {
    let start = Instant::now();
    while sleeping.load(Ordering::Relaxed) == 0 {
        if start.elapsed() > TIMEOUT {
            return Err(Failure::environment("the engine does not go to sleep"));
        }
        std::thread::sleep(super::PAUSE);
    }

    Ok(())
}

/// Trapped reads that wake the engine, from a client that blocks.
struct SleepingEngineReads {
    bar: Bar,
    /// The word of the mirror that is not zero while the engine sleeps.
    sleeping: SharedU32,
}

impl SleepingEngineReads {
    /// Returns the contestant on a device whose waits block.
    fn new(device: &Device) -> Result<Self, Failure> {
        let sleeping = mirror_word(device, mirror::SLEEPING)?;
        Ok(Self { bar: accessing(device.bar(REGISTERS))?, sleeping })
    }
}

impl Contestant for SleepingEngineReads {
    fn path(&self) -> &'static str {
        "trapped-read"
    }

    fn backing(&self) -> Option<Backing> {
        Some(Backing::VfioUser)
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        paced(
            effort,
            || wait_until_asleep(&self.sleeping),
            || accessing(self.bar.read32(REG_COUNT)).map(drop),
        )
    }
}

/// Single posted writes, each measured until the engine has carried it out. The engine is awake, or
/// the write wakes it.
struct PostedWriteTime {
    path: &'static str,
    /// Whether the engine sleeps before each write.
    engine_sleeps: bool,
    device: Device,
    /// The word of the mirror that is not zero while the engine sleeps.
    sleeping: SharedU32,
    /// The word of the mirror with the count of posted writes that were carried out.
    head: SharedU32,
}

impl PostedWriteTime {
    /// Returns the contestant whose engine sleeps before each write.
    fn new(device: &Device) -> Result<Self, Failure> {
        Ok(Self {
            path: "posted-write-done-asleep",
            engine_sleeps: true,
            device: device.clone(),
            sleeping: mirror_word(device, mirror::SLEEPING)?,
            head: mirror_word(device, mirror::RING_HEAD)?,
        })
    }
}

impl Contestant for PostedWriteTime {
    fn path(&self) -> &'static str {
        self.path
    }

    fn backing(&self) -> Option<Backing> {
        Some(Backing::VfioUser)
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let Self { sleeping, head, .. } = self;
        // A ring has one producer at a time, so the poster is opened for this measurement only.
        let mut poster = accessing(self.device.poster(0))?;
        let write = || {
            let head_before = head.load(Ordering::Acquire);
            accessing(poster.post(REGISTERS, REG_COUNT, &[0; 4]))?;
            let start = Instant::now();
            while head.load(Ordering::Acquire) == head_before {
                if start.elapsed() > TIMEOUT {
                    return Err(Failure::environment("the engine does not carry out a posted write"));
                }
                std::thread::yield_now();
            }
            Ok(())
        };

        if self.engine_sleeps {
            paced(effort, || wait_until_asleep(sleeping), write)
        } else {
            in_a_row(effort, write)
        }
    }
}

/// Posted writes of a register: in batches into an empty ring, and without a pause.
pub(in crate::benches) struct Posted {
    device: Device,
    poster: Poster,
    /// Number of writes so far, which is also the value of the last one.
    count: u32,
}

impl Posted {
    /// Opens the device's posted-write ring.
    pub(in crate::benches) fn new(device: &Device) -> Result<Self, Failure> {
        Ok(Self { poster: accessing(device.poster(0))?, device: device.clone(), count: 0 })
    }

    /// Writes a batch.
    fn write_batch(&mut self) -> Result<(), Failure> {
        self.write(BATCH)
    }

    /// Writes `times` times. Each value is the number of writes so far.
    pub(in crate::benches) fn write(&mut self, times: u32) -> Result<(), Failure> {
        for _ in 0..times {
            self.count = self.count.wrapping_add(1);
            // A call of `accessing` for each write would slow the loop down.
            if let Err(error) = self.poster.post(REGISTERS, REG_COUNT, &self.count.to_le_bytes()) {
                return accessing(Err(error));
            }
        }

        Ok(())
    }

    /// Checks that the register holds the last written value.
    pub(in crate::benches) fn check_register(&self) -> Result<(), Failure> {
        let found = accessing(self.device.bar(REGISTERS).and_then(|bar| bar.read32(REG_COUNT)))?;
        if found == self.count {
            Ok(())
        } else {
            Err(Failure::result(format!("the register holds {found} after {} was posted", self.count)))
        }
    }
}

impl Contestant for Posted {
    fn path(&self) -> &'static str {
        "posted-write"
    }

    fn is_posted(&self) -> bool {
        true
    }

    fn backing(&self) -> Option<Backing> {
        Some(Backing::VfioUser)
    }

    fn measure(&mut self, effort: &Effort) -> Result<Measurement, Failure> {
        let mut samples = Samples::with_capacity(effort.batches);
        for _ in 0..effort.batches {
            // This empties the ring, and leaves the engine awake.
            accessing(self.device.flush())?;
            let start = Instant::now();
            self.write_batch()?;
            samples.add_mean(start.elapsed(), BATCH);
        }

        self.check_register()?;
        let (start, mut written) = (Instant::now(), 0);
        while start.elapsed() < effort.sustained {
            self.write_batch()?;
            written += BATCH;
        }

        accessing(self.device.flush())?;
        let rate = f64::from(written) / start.elapsed().as_secs_f64();
        self.check_register()?;

        Ok(Measurement { rate: Some(rate), samples })
    }
}
