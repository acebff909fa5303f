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

use std::{fmt, fs::File, io::Read, ops::Range, path::Path};

use nicforge_extoll::{Topology, TopologyError};
use nicforge_hwi::{extoll, tree};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

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

/// The reason why a machine file was refused.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path is a directory, a device, or something else that cannot be a machine file.
    #[error("{path} is not a regular file; name a machine file such as machines/pset.toml")]
    NoFile {
        /// The path.
        path: String,
    },
    /// The file is too large to be a machine file.
    #[error("{path} has {bytes} bytes; a machine file has at most {MAX_FILE}")]
    TooLarge {
        /// The path of the file.
        path: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The text is not TOML, or has a field that does not belong there.
    #[error("{0}")]
    Syntax(FilePosition, #[source] Box<toml::de::Error>),
    /// A value is out of its limits.
    #[error("{position}: {what} is {found}; expected {expected}")]
    Value {
        /// The position of the value.
        position: FilePosition,
        /// The value's name.
        what: &'static str,
        /// The value in the file.
        found: String,
        /// The expected values.
        expected: String,
    },
}

/// A position in a machine file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// The path of the file.
    pub path: String,
    /// Line number from 1, or 0 when the error has no position.
    pub line: usize,
    /// The parser's message for a syntax error.
    pub message: Option<String>,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if self.line > 0 {
            write!(f, ", line {}", self.line)?;
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
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

struct Checker<'a> {
    text: &'a str,
    path: &'a str,
}

impl Checker<'_> {
    fn check(&self, description: &Description) -> Result<(), DescriptionError> {
        self.check_name(&description.name)?;
        if description.pset.is_empty() && description.extoll.is_empty() && description.function.is_empty() {
            let expected = "at least one [[pset]], [[extoll]] or [[function]]";
            return Err(self.value_error(0..0, "the machine", "empty", expected));
        }

        let mut nodes = 0;
        for pset in &description.pset {
            let compute = &pset.as_ref().compute_nodes;
            self.check_range("compute_nodes", compute, 1, MAX_COMPUTE_NODES)?;
            nodes += compute.as_ref() + 1;
            if nodes > tree::MAX_NODES {
                let expected = format!("at most {} nodes in all psets together", tree::MAX_NODES);
                return Err(self.value_error(compute.span(), "compute_nodes", compute.as_ref(), expected));
            }

            if let Some(depth) = &pset.as_ref().fifo_depth
                && (!depth.as_ref().is_power_of_two() || *depth.as_ref() > tree::MAX_FIFO_DEPTH)
            {
                let expected = format!("a power of two, at most {}", tree::MAX_FIFO_DEPTH);
                return Err(self.value_error(depth.span(), "fifo_depth", depth.as_ref(), expected));
            }

            self.check_link(&pset.as_ref().link)?;
        }

        let mut cards = 0;
        for network in &description.extoll {
            cards += self.check_extoll(network)?;
            if cards > u64::from(extoll::MAX_NODES) {
                let expected = format!("at most {} cards in all networks together", extoll::MAX_NODES);
                return Err(self.value_error(network.span(), "the networks' cards", cards, expected));
            }
        }

        // A file of the largest size has tens of thousands of functions, so each name is looked up
        // once.
        let mut names: std::collections::BTreeSet<_> =
            crate::build::network_node_names(description).collect();
        for function in &description.function {
            let name = &function.as_ref().name;
            self.check_name(name)?;

            if !names.insert(name.as_ref().clone()) {
                return Err(self.value_error(
                    name.span(),
                    "name",
                    name.as_ref(),
                    "a name that no other node has",
                ));
            }
        }
        Ok(())
    }

    /// Checks a network, and returns its number of cards.
    fn check_extoll(&self, network: &Spanned<Extoll>) -> Result<u64, DescriptionError> {
        let extoll = network.as_ref();

        if let Some(vpids) = &extoll.vpids {
            self.check_range("vpids", vpids, 1, extoll::MAX_VPIDS)?;
        }
        if let Some(watchdog) = &extoll.watchdog_ms {
            self.check_range("watchdog_ms", watchdog, 0, 60_000)?;
        }
        if let Some(watchdog) = &extoll.rma_watchdog_ms {
            self.check_range("rma_watchdog_ms", watchdog, 0, 60_000)?;
        }

        self.check_link(&extoll.link)?;

        match extoll.topology() {
            Some(Ok(topology)) => Ok(topology.nodes().into()),
            Some(Err(error)) => {
                Err(self.value_error(network.span(), "the network", "impossible", error.to_string()))
            }
            None => {
                let expected = "one of torus = [2, 2, 2], hypercube = 3, mesh = 4";
                Err(self.value_error(network.span(), "the network's shape", "none or several", expected))
            }
        }
    }

    fn check_link(&self, link: &Link) -> Result<(), DescriptionError> {
        if let Some(delay) = &link.delay_ns {
            self.check_range("delay_ns", delay, 0, 1_000_000_000)?;
        }
        if let Some(credits) = &link.credits {
            self.check_range("credits", credits, 1, 1024)?;
        }

        if let Some(rate) = &link.gbit_s
            // The smallest rate is one bit a second. The value 0 means no limit.
            && !(*rate.as_ref() == 0.0 || (1e-9..=10_000.0).contains(rate.as_ref()))
        {
            return Err(self.value_error(
                rate.span(),
                "gbit_s",
                rate.as_ref(),
                "0 (no limit), or 1e-9 to 10000",
            ));
        }
        Ok(())
    }

    fn check_name(&self, name: &Spanned<String>) -> Result<(), DescriptionError> {
        let good = (1..=32).contains(&name.as_ref().len())
            && name.as_ref().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');

        if good {
            return Ok(());
        }

        Err(self.value_error(name.span(), "name", name.as_ref(), "1 to 32 letters, digits and '-'"))
    }

    fn check_range<T: PartialOrd + fmt::Display>(
        &self,
        what: &'static str,
        value: &Spanned<T>,
        least: T,
        most: T,
    ) -> Result<(), DescriptionError> {
        if *value.as_ref() >= least && *value.as_ref() <= most {
            return Ok(());
        }
        Err(self.value_error(value.span(), what, value.as_ref(), format!("{least} to {most}")))
    }

    fn value_error(
        &self,
        span: Range<usize>,
        what: &'static str,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> DescriptionError {
        DescriptionError::Value {
            position: FilePosition {
                path: self.path.to_owned(),
                line: line_of(self.text, span),
                message: None,
            },
            what,
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

fn line_of(text: &str, span: Range<usize>) -> usize {
    let end = span.start.min(text.len());
    text.as_bytes()[..end].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Description::parse(text, "m.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_pset_with_defaults_is_accepted() {
        let description =
            Description::parse("name = \"p\"\n[[pset]]\ncompute_nodes = 4\n", "m.toml").unwrap();
        assert_eq!(*description.pset[0].as_ref().compute_nodes.as_ref(), 4);
    }

    #[test]
    fn a_value_out_of_range_names_line_and_expectation() {
        let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 4\nfifo_depth = 0\n");
        assert_eq!(message, "m.toml, line 4: fifo_depth is 0; expected a power of two, at most 256");
    }

    #[test]
    fn an_unknown_field_names_its_line() {
        let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 4\ncores = 4\n");
        assert!(message.starts_with("m.toml, line 4: unknown field `cores`"), "{message}");
    }

    #[test]
    fn text_that_is_no_toml_names_its_line() {
        let message = error("name = \"p\"\n[[pset\n");
        assert!(message.starts_with("m.toml, line 2: "), "{message}");
    }

    #[test]
    fn a_path_that_is_no_regular_file_is_refused_unread() {
        for path in ["/dev/zero", "/"] {
            let error = Description::read(Path::new(path)).unwrap_err();
            assert!(matches!(error, DescriptionError::NoFile { .. }), "{error}");
        }
    }

    #[test]
    fn a_machine_without_devices_is_refused() {
        assert!(
            error("name = \"p\"\n").contains("expected at least one [[pset]], [[extoll]] or [[function]]")
        );
    }

    #[test]
    fn a_network_needs_exactly_one_possible_shape() {
        let network = |shape: &str| error(&format!("name = \"p\"\n[[extoll]]\n{shape}\n"));
        let message = network("vpids = 4");
        assert!(message.contains("shape is none or several; expected one of torus"), "{message}");
        let message = network("mesh = 2\nhypercube = 1");
        assert!(message.contains("shape is none or several"), "{message}");
        let message = network("mesh = 8");
        assert!(message.contains("a full mesh needs 7 links a node, and a card has 6"), "{message}");
        let message = network("torus = [4000000000, 4000000000]");
        assert!(message.contains("16000000000000000000 nodes"), "{message}");
        let message = network("mesh = 2\nvpids = 257");
        assert_eq!(message, "m.toml, line 4: vpids is 257; expected 1 to 256");
    }

    #[test]
    fn two_functions_of_one_name_are_refused() {
        let one = "[[function]]\nname = \"a\"\nkind = \"slot-fifo\"\n";
        let message = error(&format!("name = \"p\"\n{one}{one}"));
        assert_eq!(message, "m.toml, line 6: name is a; expected a name that no other node has");
    }

    #[test]
    fn a_function_with_the_name_of_a_psets_node_is_refused() {
        let message = error(
            "name = \"p\"\n[[pset]]\ncompute_nodes = 2\n[[function]]\nname = \"cn1\"\nkind = \"slot-fifo\"\n",
        );
        assert_eq!(message, "m.toml, line 5: name is cn1; expected a name that no other node has");
    }

    #[test]
    fn an_infinite_bandwidth_is_refused() {
        let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[pset.link]\ngbit_s = nan\n");
        assert!(message.starts_with("m.toml, line 5: gbit_s is NaN"), "{message}");
    }

    #[test]
    fn a_bandwidth_of_less_than_a_bit_a_second_is_refused_and_not_taken_for_no_limit() {
        let message = error("name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[pset.link]\ngbit_s = 1e-10\n");
        assert!(message.ends_with("expected 0 (no limit), or 1e-9 to 10000"), "{message}");
    }
}
