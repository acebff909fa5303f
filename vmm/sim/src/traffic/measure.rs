//! Measurements that the nodes of a network make together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nicforge_core::time::Nanos;

use super::Latency;

/// Number of buckets for the times between two successive powers of two.
const SUB_BUCKETS: u64 = 64;
/// Bits of the number of such a bucket.
const SUB_BITS: u32 = SUB_BUCKETS.trailing_zeros();
/// Number of buckets for all times: two rows of [`SUB_BUCKETS`] for the times of one nanosecond
/// each, and a row for each greater power of two.
const BUCKETS: usize = ((64 - SUB_BITS + 1) as usize) << SUB_BITS;

/// Counts of times by their length. The times of a bucket differ by at most 1/64 of them: below
/// 2 * [`SUB_BUCKETS`], each nanosecond has a bucket, and above, each power of two has
/// [`SUB_BUCKETS`] of equal width.
#[derive(Debug)]
struct Histogram {
    /// Number of times in each bucket.
    buckets: Box<[AtomicU64]>,
    /// Number of all times, their sum, and the longest one.
    count: AtomicU64,
    sum: AtomicU64,
    longest: AtomicU64,
}

impl Histogram {
    /// Returns a histogram without values.
    fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            longest: AtomicU64::new(0),
        }
    }

    /// Returns the bucket of a time. Buckets have a width of `1 << width_bits`, which leaves the
    /// upper `SUB_BITS + 1` bits of a long time.
    fn bucket(time: u64) -> usize {
        let width_bits = (u64::BITS - time.leading_zeros()).saturating_sub(SUB_BITS + 1);
        ((u64::from(width_bits) << SUB_BITS) + (time >> width_bits)) as usize
    }

    /// Returns the longest time of a bucket.
    fn longest_of(bucket: usize) -> u64 {
        let width_bits = (bucket as u64 >> SUB_BITS).saturating_sub(1);
        let upper_bits = bucket as u64 - (width_bits << SUB_BITS);
        (upper_bits << width_bits) + (1 << width_bits) - 1
    }

    /// Adds a packet's time.
    fn add(&self, time: u64) {
        self.buckets[Self::bucket(time)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(time, Relaxed);
        self.longest.fetch_max(time, Relaxed);
    }

    /// Returns the time that `percent` percent of all times do not exceed, to 1/64.
    fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count.load(Relaxed) * percent).div_ceil(100);
        let mut counted = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            counted += count.load(Relaxed);
            if counted >= rank.max(1) {
                return Self::longest_of(bucket).min(self.longest.load(Relaxed));
            }
        }
        0
    }

    /// Returns the mean, the percentiles and the maximum of all times.
    fn summary(&self) -> Latency {
        let count = self.count.load(Relaxed);
        Latency {
            packets: count,
            mean: if count == 0 { 0.0 } else { self.sum.load(Relaxed) as f64 / count as f64 },
            p50: self.percentile(50),
            p90: self.percentile(90),
            p99: self.percentile(99),
            max: self.longest.load(Relaxed),
        }
    }
}

/// The times of a measurement in nanoseconds: a warm-up, and windows of equal length after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    pub(super) warm_up: u64,
    /// Length of a window.
    pub(super) window: u64,
    /// Number of windows.
    pub(super) windows: u32,
}

impl Spans {
    /// Returns the end of the last window.
    pub(super) fn end(&self) -> Nanos {
        Nanos(self.warm_up.saturating_add(self.window.saturating_mul(self.windows.into())))
    }

    /// Returns the number of the window that a time is in, if it is in one.
    fn window_of(&self, time: Nanos) -> Option<usize> {
        let since = time.0.checked_sub(self.warm_up)?;
        let window = since / self.window.max(1);
        (window < u64::from(self.windows)).then_some(window as usize)
    }
}

/// Counts of all nodes of a network together.
#[derive(Debug)]
pub(super) struct Collector {
    spans: Spans,
    /// Latencies of the received packets that were created in a window.
    latency: Histogram,
    /// Bytes received in each window, with framing.
    received_bytes: Box<[AtomicU64]>,
    /// Number of injected packets that were created in a window.
    injected: AtomicU64,
    /// Number of packets received at any time.
    all_received: AtomicU64,
    /// Time at which the last packet was received.
    last_received: AtomicU64,
}

impl Collector {
    /// Returns a collector that has counted nothing, for the windows of `spans`.
    pub(super) fn new(spans: Spans) -> Self {
        Self {
            spans,
            latency: Histogram::new(),
            received_bytes: (0..spans.windows).map(|_| AtomicU64::new(0)).collect(),
            injected: AtomicU64::new(0),
            all_received: AtomicU64::new(0),
            last_received: AtomicU64::new(0),
        }
    }

    /// Counts a packet that a node has put into an injection FIFO, by the time of its creation. It
    /// may have waited for room since then.
    pub(super) fn count_injected(&self, created: Nanos) {
        if self.spans.window_of(created).is_some() {
            self.injected.fetch_add(1, Relaxed);
        }
    }

    /// Counts a packet that a node has received at `now`.
    pub(super) fn count_received(&self, created: Nanos, now: Nanos, bytes: u64) {
        if let Some(window) = self.spans.window_of(now) {
            self.received_bytes[window].fetch_add(bytes, Relaxed);
        }
        if self.spans.window_of(created).is_some() {
            self.latency.add(now.0 - created.0);
        }
        self.all_received.fetch_add(1, Relaxed);
        self.last_received.fetch_max(now.0, Relaxed);
    }

    /// Returns the latencies of the received packets that were created in a window.
    pub(super) fn latency(&self) -> Latency {
        self.latency.summary()
    }

    /// Returns the bytes received in each window.
    pub(super) fn bytes(&self) -> Vec<u64> {
        self.received_bytes.iter().map(|bytes| bytes.load(Relaxed)).collect()
    }

    /// Returns the number of packets that were created in a window, were injected, and have not
    /// arrived.
    pub(super) fn unfinished(&self) -> u64 {
        self.injected.load(Relaxed) - self.latency.count.load(Relaxed)
    }

    /// Returns the number of packets received, and the time at which the last one was.
    pub(super) fn total(&self) -> (u64, Nanos) {
        (self.all_received.load(Relaxed), Nanos(self.last_received.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut next = 0;
        for bucket in 0..2000 {
            let upper = Histogram::longest_of(bucket);
            assert_eq!((Histogram::bucket(next), Histogram::bucket(upper)), (bucket, bucket));
            assert!(upper - next <= next / 64);
            next = upper + 1;
        }
        assert!(Histogram::bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let histogram = Histogram::new();
        (1..=1000).for_each(|time| histogram.add(time));

        let summary = histogram.summary();

        assert_eq!((summary.packets, summary.mean, summary.max), (1000, 500.5, 1000));
        assert!((500..=508).contains(&summary.p50), "{summary:?}");
        assert!((990..=1000).contains(&summary.p99), "{summary:?}");
    }
}
