//! The family of the machine file's tables `[[bgq]]`.
//!
//! ```toml
//! [[bgq]]                       # Blue Gene/Q nodes on one network
//! torus = [2, 2, 2, 2, 2]       # nodes in the dimensions A to E; E has one or two
//! wrap = [true, true, true, true, true] # whether each dimension is closed to rings
//! machine = [16, 16, 16, 12, 2] # instead of wrap: the torus is a partition of this machine
//! subgroups = 4                 # application subgroups of a node, 1 to 64
//! mu_mhz = 800                  # clock of the Message Unit; 0: its work takes no time
//! network_mhz = 500             # clock of the collective logic; 0: its work takes no time
//! latency_ns = 500              # from a descriptor to its first packet; 0: none
//! memory_mbytes_s = 0           # bandwidth of memory for the unit; 0: no limit; needs mu_mhz
//! protocol_bytes = 24           # of the link protocol with each packet, on links with a bandwidth
//! collective_cycles = 6         # of the collective logic between two packets; 0: none
//! order = "ABCDE"               # order of the dimensions of deterministic packets
//! zones = ["AB CD E"]           # up to four zones of dynamic packets; others: any order
//! io_nodes = [[0], [4, 6]]      # I/O nodes, and the compute nodes to which each is attached
//!
//! [bgq.link]
//! delay_ns = 24
//! gbit_s = 16.0
//! cut_through_bytes = 32
//! credits = 7                   # packets of buffer at the receiving end of a channel
//! ```
//!
//! The nodes are `bgq0`, `bgq1`, ..., counted through all networks: the compute nodes of a network
//! with A fastest, and then its I/O nodes.

use nicforge_core::ids::AttachmentId;
use nicforge_family::{
    CounterColumn, DeviceSource, Family, LinkSection, Plan, Role, Section, SectionError, Spanned, list_of,
    range_or,
};
use nicforge_hwi::{
    mu::{KERNEL, USER_SUBGROUPS},
    mu_packet::DIMENSIONS,
};
use nicforge_kit::Clock;
use nicforge_network::shape::{Dimension, Partition, PartitionRule, Torus};
use serde::Deserialize;

use crate::{MessageUnit, Network, NetworkError, Options, Times, config::DEFAULT_SUBGROUPS};

/// Maximum number of nodes of all networks of a machine file together.
const MAX_ALL_NODES: u32 = crate::config::MAX_NODES;
/// The highest frequency of a clock in MHz.
const MAX_CLOCK: u32 = 10_000;
/// The longest latency of a message in nanoseconds.
const MAX_LATENCY: u32 = 1_000_000;
/// The highest bandwidth of memory in MB/s.
const MAX_MEMORY_RATE: u32 = 1_000_000;
/// Maximum number of bytes of the link protocol with a packet.
const MAX_PROTOCOL_BYTES: u32 = 1024;
/// Maximum number of cycles of the collective logic between two packets.
const MAX_RECOVERY: u32 = 10_000;
/// Names of the dimensions.
const NAMES: &str = "ABCDE";
/// The zone in which packets go along the dimensions in any order: its first set has all of them.
const ANY_ORDER: [u8; DIMENSIONS] = [(1 << DIMENSIONS) - 1, 0, 0, 0, 0];

/// The role of a node with a Message Unit.
pub const NODE: Role = Role::new("bgq", "a Blue Gene/Q node");

/// The family of Blue Gene/Q networks. The module documentation describes their tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Networks;

/// Blue Gene/Q nodes on one network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkSection {
    /// The number of nodes in each of up to five dimensions.
    torus: Spanned<Vec<u32>>,
    /// Whether each dimension is closed to rings.
    #[serde(default)]
    wrap: Option<Spanned<Vec<bool>>>,
    /// Lengths of the machine of which the torus is a partition.
    #[serde(default)]
    machine: Option<Spanned<Vec<u32>>>,
    /// Application subgroups of a node.
    #[serde(default)]
    subgroups: Option<Spanned<u16>>,
    /// Clock of the Message Unit in MHz.
    #[serde(default)]
    mu_mhz: Option<Spanned<u32>>,
    /// Clock of the collective logic in MHz.
    #[serde(default)]
    network_mhz: Option<Spanned<u32>>,
    /// Nanoseconds from a descriptor to its first packet.
    #[serde(default)]
    latency_ns: Option<Spanned<u32>>,
    /// Bandwidth of memory for the Message Unit, in MB/s.
    #[serde(default)]
    memory_mbytes_s: Option<Spanned<u32>>,
    /// Bytes of the link protocol with each packet.
    #[serde(default)]
    protocol_bytes: Option<Spanned<u32>>,
    /// Cycles of the collective logic between two packets.
    #[serde(default)]
    collective_cycles: Option<Spanned<u32>>,
    /// Order of the dimensions of deterministic packets.
    #[serde(default)]
    order: Option<Spanned<String>>,
    /// Zones of dynamic packets.
    #[serde(default)]
    zones: Option<Spanned<Vec<String>>>,
    /// The compute nodes of each I/O node.
    #[serde(default)]
    io_nodes: Vec<Vec<u32>>,
    /// The network's links.
    #[serde(default)]
    link: LinkSection,
}

/// Returns the number of a dimension from its letter.
fn dimension(letter: char) -> Option<u8> {
    NAMES.find(letter).map(|index| index as u8)
}

/// Returns an order of dimensions from its letters, such as "ABCDE".
fn order(text: &Spanned<String>) -> Result<[u8; DIMENSIONS], SectionError> {
    let numbers: Option<Vec<u8>> = text.get_ref().chars().map(dimension).collect();
    let order: Option<[u8; DIMENSIONS]> = numbers.and_then(|numbers| numbers.try_into().ok());
    order
        .filter(|order| order.iter().fold(0, |set, dimension| set | 1 << dimension) == ANY_ORDER[0])
        .ok_or_else(|| nicforge_family::refuse_value("order", text, "each letter of ABCDE once"))
}

/// Returns a zone from its text, such as "AB CD E": sets of dimensions, one after the other.
/// Returns `None` if a letter is no dimension, or there are too many sets.
fn zone(text: &str) -> Option<[u8; DIMENSIONS]> {
    let mut zone = [0; DIMENSIONS];
    let mut sets = zone.iter_mut();
    for letters in text.split_whitespace() {
        let set = sets.next()?;
        for letter in letters.chars() {
            *set |= 1 << dimension(letter)?;
        }
    }
    Some(zone)
}

/// Returns the zones of a machine file. Those that it leaves out have any order.
fn zones(list: &Spanned<Vec<String>>) -> Result<[[u8; DIMENSIONS]; 4], SectionError> {
    let refused = || {
        let found = format!("{:?}", list.get_ref());
        SectionError::value(list.span(), "zones", found, "up to four zones of letters ABCDE, as \"AB CD E\"")
    };

    let mut zones = [ANY_ORDER; 4];
    if list.get_ref().len() > zones.len() {
        return Err(refused());
    }
    for (parsed, text) in zones.iter_mut().zip(list.get_ref()) {
        *parsed = zone(text).ok_or_else(refused)?;
    }
    Ok(zones)
}

impl NetworkSection {
    /// Returns the options that the file gives.
    fn options(&self) -> Result<Options, SectionError> {
        let default = Options::default();
        let clock = |key, mhz: Option<&Spanned<u32>>| -> Result<Clock, SectionError> {
            Ok(Clock::of_mhz(range_or(key, mhz, (0, MAX_CLOCK), 0)?))
        };
        let subgroups = self.subgroups.as_ref();
        let subgroups = range_or("subgroups", subgroups, (1, USER_SUBGROUPS), DEFAULT_SUBGROUPS)?;

        Ok(Options {
            subgroups,
            clock: clock("mu_mhz", self.mu_mhz.as_ref())?,
            network_clock: clock("network_mhz", self.network_mhz.as_ref())?,
            times: self.times()?,
            order: self.order.as_ref().map_or(Ok(default.order), order)?,
            zones: self.zones.as_ref().map_or(Ok(default.zones), zones)?,
            io_nodes: self.io_nodes.clone(),
            link: self.link.with_defaults(default.link)?,
        })
    }

    /// Returns the times of messages.
    fn times(&self) -> Result<Times, SectionError> {
        let default = Times::default();
        let memory = range_or("memory_mbytes_s", self.memory_mbytes_s.as_ref(), (0, MAX_MEMORY_RATE), 0)?;
        let has_clock = self.mu_mhz.as_ref().is_some_and(|mhz| *mhz.get_ref() > 0);
        if let Some(rate) = self.memory_mbytes_s.as_ref().filter(|_| memory > 0 && !has_clock) {
            let expected = "0, or a clock as well, such as mu_mhz = 800: without one, memory takes no time";
            return Err(nicforge_family::refuse_value("memory_mbytes_s", rate, expected));
        }
        let (bytes, cycles) = (self.protocol_bytes.as_ref(), self.collective_cycles.as_ref());
        let byte_range = (0, MAX_PROTOCOL_BYTES);

        Ok(Times {
            latency: range_or("latency_ns", self.latency_ns.as_ref(), (0, MAX_LATENCY), 0)?.into(),
            // A byte in each cycle of `n` MHz is `n` MB/s.
            memory: Clock::of_mhz(memory),
            protocol_bytes: range_or("protocol_bytes", bytes, byte_range, default.protocol_bytes)?,
            collective_recovery: range_or("collective_cycles", cycles, (0, MAX_RECOVERY), 0)?,
        })
    }

    /// Returns the network that the section describes.
    fn network(&self, section: &Section<'_>) -> Result<Network, SectionError> {
        let (lengths, options) = (self.torus.get_ref(), self.options()?);
        if let (Some(wrap), Some(_)) = (&self.wrap, &self.machine) {
            let expected = "no wrap: the rings of a partition follow from the machine";
            return Err(SectionError::value(wrap.span(), "wrap", "a list", expected));
        }
        let wraps = list_of("wrap", self.wrap.as_ref(), lengths.len())?;

        let network = match &self.machine {
            Some(machine) => partition(lengths, machine.get_ref(), options),
            None => Network::torus(lengths, wraps, options),
        };
        network.map_err(|error| {
            SectionError::value(section.span(), "the network", "impossible", error.to_string())
        })
    }
}

/// Returns a partition of these lengths at the origin of a machine that is a torus. Partitions of
/// one size are alike, wherever they lie.
fn partition(lengths: &[u32], machine: &[u32], options: Options) -> Result<Network, NetworkError> {
    if lengths.is_empty() {
        return Network::torus(lengths, &[], options);
    }
    let dimensions: Vec<_> = machine.iter().map(|&length| Dimension::torus(length)).collect();
    let machine = Torus::new(&dimensions)?;
    let origin = vec![0; lengths.len()];
    let partition = Partition::new(machine, &origin, lengths, PartitionRule::BLUE_GENE_Q)?;
    Network::partition(&partition, options)
}

impl Family for Networks {
    fn table(&self) -> &'static str {
        "bgq"
    }

    fn roles(&self) -> &'static [Role] {
        &[NODE]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        const COLUMNS: &[CounterColumn] = &[
            CounterColumn::packets("sent", &["packets_sent"]),
            CounterColumn::packets("received", &["fifo_packets", "put_packets", "get_packets"]),
            CounterColumn::new("forwarded", &["forwarded"]),
            CounterColumn::new("combined", &["combined"]),
            CounterColumn::new("dropped", &["dropped"]),
            CounterColumn::new("faults", &["faults"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        let mut nodes = 0;
        for section in &sections {
            let parsed: NetworkSection = section.parse()?;
            let network = parsed.network(section)?;
            if network.nodes() > MAX_ALL_NODES - nodes {
                let expected = format!("at most {MAX_ALL_NODES} nodes in all networks together");
                let found = format!("{:?}", parsed.torus.get_ref());
                return Err(SectionError::value(parsed.torus.span(), "torus", found, expected));
            }

            add_network(plan, section, &network, nodes)?;
            nodes += network.nodes();
        }
        Ok(())
    }
}

/// Adds the nodes of one network. Their numbers begin at `first`.
fn add_network(
    plan: &mut Plan,
    section: &Section<'_>,
    network: &Network,
    first: u32,
) -> Result<(), SectionError> {
    let mut functions = Vec::with_capacity(network.nodes() as usize);
    for node in 0..network.nodes() {
        let network = network.clone();
        let max_packet = network.options().link.max_packet;
        let source = DeviceSource::fallible(move || MessageUnit::new(&network, node))
            .with_admin(AttachmentId(KERNEL))
            .with_max_packet(max_packet);
        let name = format!("bgq{}", first + node);
        functions.push(plan.single(&name, NODE, source).map_err(|error| section.refuse(error))?);
    }

    for cable in network.cables() {
        let ends = [cable.a, cable.b].map(|end| (functions[end.node as usize], end.port));
        let link = network.options().link.clone();
        plan.link(ends[0], ends[1], link).map_err(|error| section.refuse(error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    /// Returns the plan of a machine with this section, or the error's message.
    fn plan(lines: &str) -> Result<Plan, String> {
        let section = Section::new(DeTable::parse(lines).unwrap());
        let mut plan = Plan::new("test").unwrap();
        Networks.plan(vec![section], &mut plan).map_err(|error| error.to_string())?;
        Ok(plan)
    }

    #[test]
    fn torus_has_nodes_and_links() {
        let plan = plan("torus = [4, 3, 1, 1, 2]\n").unwrap();

        assert_eq!((plan.nodes().len(), plan.links().len()), (24, 3 * 24));
        assert!(plan.find_node("bgq23").is_some() && plan.find_node("bgq24").is_none());
        assert!(plan.functions().iter().all(|function| function.source.make().is_ok()));
    }

    #[test]
    fn partitions_and_io_nodes_have_their_links() {
        let part = plan("torus = [4, 2, 1, 1, 2]\nmachine = [8, 4, 4, 4, 2]\n").unwrap();
        // A ring of four, an open line of two, and two cables along E.
        assert_eq!((part.nodes().len(), part.links().len()), (16, 16 + 8 + 16));

        let with_io = plan("torus = [4]\nio_nodes = [[0, 3], [2]]\n").unwrap();
        assert_eq!((with_io.nodes().len(), with_io.links().len()), (6, 4 + 3));
    }

    #[test]
    fn orders_and_zones_are_read() {
        let parse = |lines: &str| -> Options {
            let section = Section::new(DeTable::parse(lines).unwrap());
            section.parse::<NetworkSection>().unwrap().options().unwrap()
        };
        let options = parse("torus = [2]\norder = \"EDABC\"\nzones = [\"AB CD E\", \"\"]\n");

        assert_eq!(options.order, [4, 3, 0, 1, 2]);
        assert_eq!(options.zones, [[0b11, 0b1100, 0b10000, 0, 0], [0; 5], ANY_ORDER, ANY_ORDER]);
    }

    #[test]
    fn machine_files_that_come_with_nicforge_have_32_nodes() {
        for text in [
            include_str!("../../../../machines/bgq.toml"),
            include_str!("../../../../machines/bgq-timed.toml"),
        ] {
            let mut file = Section::new(DeTable::parse(text).unwrap());
            let sections = file.take_sections("bgq").unwrap();
            let mut plan = Plan::new("test").unwrap();
            Networks.plan(sections, &mut plan).unwrap();

            assert_eq!((plan.nodes().len(), plan.links().len()), (32, 160));
            assert!(plan.functions().iter().all(|function| function.source.make().is_ok()));
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let refused = [
            ("torus = []", "0 dimensions"),
            ("torus = []\nmachine = []", "0 dimensions"),
            ("torus = [2, 2, 2, 2, 2, 2]", "6 dimensions"),
            ("torus = [2, 2, 2, 2, 3]", "at most 2"),
            ("torus = [65]", "at most 64"),
            ("torus = [16, 16, 16]", "1 to 2048"),
            ("torus = [2]\nwrap = [true, true]", "1 values"),
            ("torus = [2]\nwrap = [true]\nmachine = [4]", "no wrap"),
            ("torus = [5]\nmachine = [4]", "stay within 4"),
            ("torus = [2, 2]\nmachine = [4]", "2 dimensions"),
            ("torus = [2]\nmachine = [0]", "0 nodes"),
            ("torus = [2]\nsubgroups = 0", "1 to 64"),
            ("torus = [2]\nsubgroups = 65", "1 to 64"),
            ("torus = [2]\nmu_mhz = 20000", "0 to 10000"),
            ("torus = [2]\nmemory_mbytes_s = 25000", "mu_mhz"),
            ("torus = [2]\nmu_mhz = 0\nmemory_mbytes_s = 25000", "mu_mhz"),
            ("torus = [2]\norder = \"ABCD\"", "each letter"),
            ("torus = [2]\norder = \"ABCDD\"", "each letter"),
            ("torus = [2]\norder = \"ABCDF\"", "each letter"),
            ("torus = [2]\nzones = [\"AX\"]", "up to four"),
            ("torus = [2]\nzones = [\"A B C D E A\"]", "up to four"),
            ("torus = [2]\nzones = [\"\", \"\", \"\", \"\", \"\"]", "up to four"),
            ("torus = [2]\nio_nodes = [[2]]", "does not exist"),
            ("torus = [2]\nspeed = 1", "unknown field"),
        ];

        for (lines, expected) in refused {
            let Err(message) = plan(lines) else { panic!("{lines} is taken") };
            assert!(message.contains(expected), "{lines}: {message}");
        }
    }
}
