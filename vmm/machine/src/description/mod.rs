//! The contents of a machine file, and their checks.
//!
//! ```toml
//! name = "pset"
//!
//! [[pset]]                  # a Blue Gene pset: one I/O node and its compute nodes on a tree
//! compute_nodes = 4
//! fifo_depth = 8            # packets in each send and receive FIFO; 8 on the machine
//!
//! [pset.link]               # of each tree link, per direction; all zero is "as fast as it goes"
//! delay_ns = 0
//! gbit_s = 0.0
//! credits = 4               # packets of buffer at the receiving end of a virtual channel
//!
//! [[extoll]]                # EXTOLL cards on one network
//! torus = [2, 2, 2]         # or hypercube = 3, or mesh = 4
//! vpids = 16                # processes of each card, 1 to 256
//! watchdog_ms = 500         # how long a send may wait for credit; 0: for ever
//! rma_watchdog_ms = 2000    # how long nothing may come from the target of a transfer; 0: for ever
//!
//! [extoll.link]             # as above; credits are 64 unless it says otherwise
//! delay_ns = 300
//! gbit_s = 5.0
//!
//! [[function]]              # a single device
//! kind = "dma-engine"
//! name = "dma0"
//! ```
//!
//! Each number has its limits beside it below. A number outside them is refused with its line and
//! the expected range.

mod check;
mod error;
#[cfg(test)]
mod tests;

use std::{fs::File, io::Read, path::Path};

use nicforge_extoll::{Topology, TopologyError};
use serde::Deserialize;
use toml::Spanned;

use self::check::{Checker, line_of};
pub use self::error::{DescriptionError, FilePosition};

/// The greatest number of compute nodes in a pset.
pub const MAX_COMPUTE_NODES: u32 = 256;
/// The largest machine file that is read, in bytes.
pub const MAX_FILE: u64 = 1 << 20;

/// The description of a machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name: 1 to 32 letters, digits or `-`.
    pub name: Spanned<String>,
    /// The psets. Each is on one tree.
    #[serde(default)]
    pub pset: Vec<Spanned<Pset>>,
    /// EXTOLL networks.
    #[serde(default)]
    pub extoll: Vec<Spanned<Extoll>>,
    /// Single functions.
    #[serde(default)]
    pub function: Vec<Spanned<Function>>,
}

/// One I/O node and its compute nodes on a tree network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pset {
    /// Number of compute nodes, 1 to [`MAX_COMPUTE_NODES`].
    pub compute_nodes: Spanned<u32>,
    /// Number of packets in each FIFO: a power of two, at most 256.
    #[serde(default)]
    pub fifo_depth: Option<Spanned<u32>>,
    /// The tree's links.
    #[serde(default)]
    pub link: Link,
}

/// EXTOLL cards on one network. Exactly one shape must be given.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extoll {
    /// A torus: the number of nodes in each of up to three dimensions.
    #[serde(default)]
    pub torus: Option<Spanned<Vec<u32>>>,
    /// A hypercube: its number of dimensions, 0 to 6.
    #[serde(default)]
    pub hypercube: Option<Spanned<u32>>,
    /// A full mesh: its number of nodes, 1 to 7.
    #[serde(default)]
    pub mesh: Option<Spanned<u32>>,
    /// Number of processes of each card, 1 to 256.
    #[serde(default)]
    pub vpids: Option<Spanned<u16>>,
    /// How long a send may wait for credit, in milliseconds: 1 to 60,000, or 0 for ever.
    #[serde(default)]
    pub watchdog_ms: Option<Spanned<u64>>,
    /// How long the target of RMA commands may be silent, in milliseconds: 1 to 60,000, or 0 for
    /// ever.
    #[serde(default)]
    pub rma_watchdog_ms: Option<Spanned<u64>>,
    /// The network's links.
    #[serde(default)]
    pub link: Link,
}

impl Extoll {
    /// Returns the network's topology, if exactly one shape is given.
    ///
    /// # Errors
    /// Returns the reason why such a network is impossible.
    pub fn topology(&self) -> Option<Result<Topology, TopologyError>> {
        match (&self.torus, &self.hypercube, &self.mesh) {
            (Some(torus), None, None) => Some(Topology::torus(torus.as_ref())),
            (None, Some(dimensions), None) => Some(Topology::hypercube(*dimensions.as_ref())),
            (None, None, Some(nodes)) => Some(Topology::full_mesh(*nodes.as_ref())),
            _ => None,
        }
    }
}

/// A link with the same properties in both directions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Propagation delay in nanoseconds, 0 to one second.
    #[serde(default)]
    pub delay_ns: Option<Spanned<u64>>,
    /// Bandwidth in Gb/s: 1e-9 to 10,000, or 0 for no limit.
    #[serde(default)]
    pub gbit_s: Option<Spanned<f64>>,
    /// Packets of buffer at the receiving end of each virtual channel, 1 to 1024.
    #[serde(default)]
    pub credits: Option<Spanned<u32>>,
}

/// A single device.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Name: 1 to 32 letters, digits or `-`.
    pub name: Spanned<String>,
    /// The kind of device.
    pub kind: FunctionKind,
}

/// The kinds of single devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FunctionKind {
    /// The proof device with slot FIFOs.
    SlotFifo,
    /// The proof device that copies by DMA.
    DmaEngine,
    /// The proof device whose sends are encoded in their address.
    AddressedSend,
    /// A PCI-IDIO-16 with a loop-back plug, which Linux drives with a driver of its own.
    #[serde(rename = "idio-16")]
    Idio16,
}

impl Description {
    /// Reads and checks a machine file.
    pub fn read(path: &Path) -> Result<Self, DescriptionError> {
        let shown = path.display().to_string();
        let read = |source| DescriptionError::Read { path: shown.clone(), source };
        let metadata = std::fs::metadata(path).map_err(read)?;

        if !metadata.is_file() {
            return Err(DescriptionError::NoFile { path: shown });
        }

        let mut text = String::new();
        File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text)).map_err(read)?;
        if text.len() as u64 > MAX_FILE {
            return Err(DescriptionError::TooLarge { path: shown, bytes: metadata.len() });
        }
        Self::parse(&text, &shown)
    }

    /// Checks the text of a machine file. `path` is its name in messages.
    pub fn parse(text: &str, path: &str) -> Result<Self, DescriptionError> {
        let description: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| line_of(text, span));
            let message = Some(error.message().to_owned());
            DescriptionError::Syntax(FilePosition { path: path.to_owned(), line, message }, Box::new(error))
        })?;

        Checker { text, path }.check(&description)?;
        Ok(description)
    }
}
