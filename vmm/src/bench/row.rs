//! What a bench gives back.

use std::collections::BTreeMap;

use serde::Serialize;

/// How the software of a row reached its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// A machine in the same process, stepped by whoever waits.
    InProcess,
    /// A served machine, over a socket and mapped memory.
    VfioUser,
    /// A served machine, in a guest and through its kernel's VFIO.
    Vfio,
    /// A served machine, in a guest and through the kernel module `kmod-shim`.
    Shim,
}

impl Backing {
    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::VfioUser => "vfio-user",
            Self::Vfio => "vfio",
            Self::Shim => "shim",
        }
    }
}

/// One line of a result. What does not apply is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// What was measured, in the bench's own words.
    pub path: String,
    /// How the device was reached; absent for peers without a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// How the guests' processors ran, where guests took part: `kvm` or `tcg`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<&'static str>,
    /// Which thread ran where, for example `engine@0 application@1`, or `free`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Packets in each FIFO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fifo_depth: Option<u32>,
    /// Who sends: `io-to-compute`, `compute-to-io`, `both`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<&'static str>,
    /// Bytes of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bandwidth of the user's data, 10^9 bits a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_s: Option<f64>,
    /// Median time of one operation, microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// Its 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Operations a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Figures that only this bench has, by names that carry their unit, such as `instructions` or `resident_mb`.
    #[serde(flatten)]
    pub figures: BTreeMap<&'static str, f64>,
}

impl Row {
    /// An empty row.
    pub fn new(path: impl Into<String>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// With a figure of its own.
    #[must_use]
    pub fn figure(mut self, name: &'static str, value: f64) -> Self {
        self.figures.insert(name, value);
        self
    }
}

/// Which side of its limit a goal wants the figure on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// Not above the limit.
    AtMost,
    /// Not below it.
    AtLeast,
}

/// Something the project wants of itself, and what this run gave.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What, with its unit or "times".
    pub what: String,
    /// Which side of the limit.
    pub wanted: Wanted,
    /// The limit.
    pub limit: f64,
    /// What was measured.
    pub measured: f64,
    /// Whether it was met.
    pub met: bool,
}

impl Goal {
    /// `measured` is wanted to be at most `limit`.
    pub fn at_most(what: impl Into<String>, limit: f64, measured: f64) -> Self {
        Self { what: what.into(), wanted: Wanted::AtMost, limit, measured, met: measured <= limit }
    }

    /// `measured` is wanted to be at least `limit`.
    pub fn at_least(what: impl Into<String>, limit: f64, measured: f64) -> Self {
        Self { what: what.into(), wanted: Wanted::AtLeast, limit, measured, met: measured >= limit }
    }
}

/// All that a bench gives back.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// The figures.
    pub rows: Vec<Row>,
    /// The goals they are measured against.
    pub goals: Vec<Goal>,
    /// What a reader must know: what was left out and why, what a placement means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}
