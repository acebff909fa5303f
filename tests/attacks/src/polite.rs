//! The polite tenant: a client of a card of its own that follows all rules, and measures each of
//! its rounds.
//!
//! A round writes a register and reads it back, starts a copy by posted writes, waits for the
//! interrupt, and compares the data. A second thread only sleeps: if it wakes up late, the delay is
//! the host's and not the server's.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_driver::{Deadline, Device, DeviceAddress, HugePages, OpenOptions};
use nicforge_hwi::proof::dma_engine::REG_LIST;
use nicforge_proof_driver::dma_engine::{DmaEngine, piece};
use serde::{Deserialize, Serialize};

use crate::arena::Failed;

/// Longest pause that the tenant outlasts: it reports pauses, and does not fail because of them.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes copied in a round.
const BYTES: usize = 4096;
/// Duration of a sleep of the second thread.
const NAP: Duration = Duration::from_millis(1);
/// Delay beyond which a sleep counts as the host's delay.
const LATE: Duration = Duration::from_millis(5);
/// Maximum number of late sleeps that are recorded.
const MAX_LATE: usize = 1 << 16;
/// Buckets of durations: powers of two of microseconds, each in eight steps.
const BUCKETS: usize = 33 * 8;

/// The polite tenant's observations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantObservations {
    /// Number of rounds.
    pub rounds: u64,
    /// The longest round, in milliseconds.
    pub worst_ms: f64,
    /// The longest round without the host's delays, in milliseconds.
    pub worst_of_server_ms: f64,
    /// The duration that 99 of 100 rounds do not exceed, in milliseconds.
    pub p99_ms: f64,
    /// The host's longest delay of the sleeping thread, in milliseconds.
    pub host_ms: f64,
    /// Rounds whose data were wrong.
    pub wrong: u64,
    /// Why the tenant lost its card, if it did.
    pub lost: Option<String>,
}

/// A polite tenant on a thread of its own.
#[derive(Debug)]
pub struct Tenant {
    stop: Arc<AtomicBool>,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<TenantObservations>>,
}

/// The progress of the tenant's thread.
#[derive(Debug, Default)]
struct Progress {
    rounds: std::sync::atomic::AtomicU64,
}

impl Tenant {
    /// Opens the card behind `socket` and starts the thread.
    ///
    /// # Errors
    /// When the card cannot be opened.
    pub fn start(socket: &Path) -> Result<Self, Failed> {
        let work = Work::open(&DeviceAddress::VfioUser(socket.to_owned()))?;
        let (is_stopped, progress) = (Arc::new(AtomicBool::new(false)), Arc::new(Progress::default()));
        let thread = std::thread::spawn({
            let (is_stopped, progress) = (is_stopped.clone(), progress.clone());
            move || work.run(|| is_stopped.load(Ordering::Relaxed), &progress)
        });

        Ok(Self { stop: is_stopped, progress, thread: Some(thread) })
    }

    /// Returns the tenant's rounds so far.
    pub fn rounds(&self) -> u64 {
        self.progress.rounds.load(Ordering::Relaxed)
    }

    /// Asks the thread to end, and waits for it up to `limit`. Returns whether it has ended.
    pub fn ask_to_stop(&self, limit: Duration) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + limit;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(NAP);
        }
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the tenant's work. Returns the observations.
    pub fn stop(mut self) -> TenantObservations {
        self.end()
    }

    /// Ends the thread, and returns its observations.
    fn end(&mut self) -> TenantObservations {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = || TenantObservations {
            lost: Some("its thread panicked".to_owned()),
            ..TenantObservations::default()
        };
        let observed = self.thread.take().and_then(|thread| thread.join().ok());
        observed.unwrap_or_else(panicked)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
    }
}

/// Runs rounds on the device at `address` for `limit`, in this thread.
///
/// # Errors
/// When the device cannot be opened.
pub fn work(address: &DeviceAddress, limit: Duration) -> Result<TenantObservations, Failed> {
    let end = Instant::now() + limit;
    Ok(Work::open(address)?.run(|| Instant::now() >= end, &Progress::default()))
}

/// The card and the memory that the rounds use.
struct Work {
    device: Device,
    engine: DmaEngine,
    source: nicforge_driver::DmaBuffer,
    target: nicforge_driver::DmaBuffer,
}

impl Work {
    /// Opens the card.
    fn open(address: &DeviceAddress) -> Result<Self, Failed> {
        let options = OpenOptions { timeout: TIMEOUT, heartbeat: None, ..OpenOptions::default() };
        let device = Device::open_at(address, options)?;
        let engine = DmaEngine::open(&device)?;
        let source = device.dma_buffer(BYTES, HugePages::Never)?;
        let target = device.dma_buffer(BYTES, HugePages::Never)?;
        Ok(Self { device, engine, source, target })
    }

    /// Runs rounds until `is_stopped`, or until the card is lost.
    fn run(mut self, is_stopped: impl Fn() -> bool, progress: &Progress) -> TenantObservations {
        let naps = SleepDelays::start();
        let (mut observed, mut durations) = (TenantObservations::default(), Durations::default());
        let mut late_rounds = Vec::new();

        while !is_stopped() && observed.lost.is_none() {
            let start = Instant::now();
            let is_correct = self.round(observed.rounds);
            let duration = start.elapsed();

            observed.rounds += 1;
            observed.wrong += u64::from(matches!(is_correct, Ok(false)));
            observed.lost = is_correct.err().map(|error| error.to_string());
            progress.rounds.store(observed.rounds, Ordering::Relaxed);
            durations.add(duration);
            if duration > LATE && late_rounds.len() < MAX_LATE {
                late_rounds.push((start, duration));
            }

            observed.worst_ms = observed.worst_ms.max(milliseconds(duration));
        }

        observed.p99_ms = milliseconds(durations.percentile(99));
        let sleep_delays = naps.stop();
        let longest = sleep_delays.iter().map(|(_, delay)| *delay).max().unwrap_or_default();
        observed.host_ms = milliseconds(longest);

        let without_delays = late_rounds.iter().map(|pause| without(pause, &sleep_delays)).max();
        observed.worst_of_server_ms = without_delays.map_or(observed.worst_ms, milliseconds);
        observed
    }

    /// Runs one round. Returns whether registers and data came back as they were written.
    fn round(&mut self, number: u64) -> Result<bool, Failed> {
        let registers = self.device.bar(0)?;
        let list = registers.read64(REG_LIST)?;
        registers.write64(REG_LIST, list)?;

        let are_registers_unchanged = registers.read64(REG_LIST)? == list;
        let pattern: Vec<_> = number.to_le_bytes().repeat(BYTES / 8);
        self.source.write(0, &pattern)?;
        let piece = piece(self.source.iova(), self.target.iova(), BYTES as u32);
        let outcome = self.engine.copy(&[piece], Deadline::after(TIMEOUT))?;

        let mut copied = vec![0; BYTES];
        self.target.read(0, &mut copied)?;
        Ok(are_registers_unchanged && outcome.errors == 0 && copied == pattern)
    }
}

/// Returns the duration of a round without the delays that the host caused in it. Both parameters
/// have starts and durations.
fn without((start, took): &(Instant, Duration), late: &[(Instant, Duration)]) -> Duration {
    let end = *start + *took;
    let host = late.iter().map(|(from, late)| {
        let (from, to) = ((*from).max(*start), (*from + *late).min(end));
        to.saturating_duration_since(from)
    });
    took.saturating_sub(host.sum())
}

/// Returns a duration in milliseconds.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A thread that sleeps repeatedly, and its delays.
struct SleepDelays {
    stop: Arc<AtomicBool>,
    late: Arc<Mutex<Vec<(Instant, Duration)>>>,
    thread: JoinHandle<()>,
}

impl SleepDelays {
    /// Starts the thread.
    fn start() -> Self {
        let (stop, late) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let thread = std::thread::spawn({
            let (stop, late) = (stop.clone(), late.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    std::thread::sleep(NAP);
                    let over = start.elapsed().saturating_sub(NAP);
                    let mut late = late.lock().unwrap_or_else(PoisonError::into_inner);
                    if over > LATE && late.len() < MAX_LATE {
                        late.push((start + NAP, over));
                    }
                }
            }
        });

        Self { stop, late, thread }
    }

    /// Ends the thread. Returns when each delay began, and how long it took.
    fn stop(self) -> Vec<(Instant, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Durations, counted by size.
struct Durations {
    counts: [u64; BUCKETS],
    total: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl Durations {
    /// Counts a duration.
    fn add(&mut self, duration: Duration) {
        let steps = (duration.as_secs_f64() * 1e6).max(1.0).log2() * 8.0;
        self.counts[(steps as usize).min(BUCKETS - 1)] += 1;
        self.total += 1;
    }

    /// Returns the upper end of the bucket that `percent` of all durations do not exceed.
    fn percentile(&self, percent: u64) -> Duration {
        let expected = (self.total * percent).div_ceil(100);
        let mut so_far = 0;

        for (index, count) in self.counts.iter().enumerate() {
            so_far += count;
            if so_far >= expected {
                return Duration::from_secs_f64(((index + 1) as f64 / 8.0).exp2() * 1e-6);
            }
        }

        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_end_of_its_bucket() {
        let mut durations = Durations::default();
        for _ in 0..99 {
            durations.add(Duration::from_micros(100));
        }

        durations.add(Duration::from_secs(1));
        let (p99, p100) = (durations.percentile(99), durations.percentile(100));

        assert!(p99 >= Duration::from_micros(100) && p99 < Duration::from_micros(120), "{p99:?}");
        assert!(p100 >= Duration::from_secs(1) && p100 < Duration::from_millis(1200), "{p100:?}");
    }

    #[test]
    fn late_sleeps_within_a_round_are_subtracted_from_it() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let late = [(start, ms(10)), (start + ms(95), ms(100)), (start + ms(300), ms(10))];

        assert_eq!(without(&(start, ms(100)), &late), ms(85));
    }
}
