//! Describes the host that the figures were measured on.

use std::fs;

use serde::Serialize;

/// The host that a benchmark runs on.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// The processor's name.
    pub processor: String,
    /// Number of processors that this process may use.
    pub processors: usize,
    /// Linux's version.
    pub kernel: String,
    /// Load average of the last minute when the benchmarks began.
    pub load: f64,
    /// Version of this program.
    pub version: &'static str,
}

impl Host {
    /// Reads the description of this host.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor = cpuinfo
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| line.split_once(':'))
            .map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned());

        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();

        Self {
            processor,
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            kernel,
            load: load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}
