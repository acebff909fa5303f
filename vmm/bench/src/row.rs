//! The outcome of a benchmark.

use std::collections::BTreeMap;

use serde::Serialize;

/// How the software of a row reached its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// A machine in the same process, stepped by the waiting threads.
    InProcess,
    /// A served machine, over a socket and mapped memory.
    VfioUser,
    /// A served machine, in a guest and through its kernel's VFIO.
    Vfio,
    /// A served machine, in a guest and through the kernel module `kmod-shim`.
    Shim,
}

impl Backing {
    /// Returns the name, which is also the one in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::VfioUser => "vfio-user",
            Self::Vfio => "vfio",
            Self::Shim => "shim",
        }
    }
}

/// One row of a result. A field that does not apply is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The measured path, in the benchmark's own terms.
    pub path: String,
    /// How the device was reached; absent for contestants without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// How the guests' processors ran, where guests took part: `kvm` or `tcg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<&'static str>,
    /// The placement of threads, such as `engine@0 application@1` or `free`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Packets in each FIFO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fifo_depth: Option<u32>,
    /// The sending node: `io-to-compute`, `compute-to-io` or `both`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<&'static str>,
    /// Bytes of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bandwidth of the payload, in Gb/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Mean time of one operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_us: Option<f64>,
    /// Median time of one operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99th percentile of the time of one operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Operations per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Why figures are absent that the row should have, such as `not done in 30 s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_measured: Option<String>,
    /// Figures that only this benchmark has. Their names carry the unit, such as `instructions` or
    /// `resident_mb`.
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, f64>,
}

impl Row {
    /// Returns a row without figures.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Adds a figure of the benchmark's own.
    #[must_use]
    pub fn figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.insert(name, value);
        self
    }
}

/// The side of the limit on which a goal wants the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// Not above the limit.
    AtMost,
    /// Not below the limit.
    AtLeast,
}

/// A goal of the project, and the value that this run measured.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// The measured quantity, with its unit or "times".
    pub what: String,
    /// The wanted side of the limit.
    pub wanted: Wanted,
    /// The limit.
    pub limit: f64,
    /// The measured value.
    pub measured: f64,
    /// Whether the goal was met.
    pub met: bool,
}

impl Goal {
    /// Returns the goal that `measured` is at most `limit`.
    pub fn at_most(description: impl Into<String>, limit: f64, measured: f64) -> Self {
        Self { what: description.into(), wanted: Wanted::AtMost, limit, measured, met: measured <= limit }
    }

    /// Returns the goal that `measured` is at least `limit`.
    pub fn at_least(description: impl Into<String>, limit: f64, measured: f64) -> Self {
        Self { what: description.into(), wanted: Wanted::AtLeast, limit, measured, met: measured >= limit }
    }
}

/// The whole result of a benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// The figures.
    pub rows: Vec<Row>,
    /// The goals, and their measured values.
    pub goals: Vec<Goal>,
    /// Facts that a reader must know: omissions with their reasons, and the meaning of a placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
