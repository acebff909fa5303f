//! The family of the machine file's tables `[[extoll]]`.
//!
//! ```toml
//! [[extoll]]                # EXTOLL cards on one network
//! torus = [2, 2, 2]         # or hypercube = 3, or mesh = 4
//! vpids = 16                # processes of each card, 1 to 256
//! watchdog_ms = 500         # how long a send may wait for credit; 0: for ever
//! rma_watchdog_ms = 2000    # how long nothing may come from the target of a transfer; 0: for ever
//! core_mhz = 156            # the clock of the cores; without it, cards and links take no time
//! hop_cycles = 0            # cycles that a packet takes to the next card, besides delay_ns
//! rma_mtu = 256             # data bytes of an RMA packet, 64 to 65536
//!
//! [extoll.link]
//! delay_ns = 274
//! gbit_s = 4.992            # 32 bits in each cycle of the clock, if the file does not say it
//! cut_through_bytes = 16
//! credits = 64              # packets of buffer at the receiving end of a virtual channel
//! ```
//!
//! Packets of RMA carry up to 64 KiB over links without a bandwidth, and 256 bytes over others,
//! unless the file says otherwise.
//!
//! The cards are `ex0`, `ex1`, ..., counted through all networks.

use nicforge_family::{
    CounterColumn, DeviceSource, Family, LinkSection, LinkSpec, Plan, Role, Section, SectionError, Spanned,
    check_range, range_or, refuse_value,
};
use nicforge_hwi::{
    extoll::{DEFAULT_VPIDS, MAX_NODES, MAX_VPIDS},
    extoll_velo::MAX_MESSAGE,
};
use nicforge_kit::Clock;
use serde::Deserialize;

use crate::{Card, MAX_RMA_MTU, R1_RMA_MTU, Topology, TopologyError, config::MIN_RMA_MTU, packet};

/// Packets of buffer at the receiving end of each virtual channel of a link, unless the file says
/// otherwise.
const CREDITS: u32 = 64;
/// The longest time of a watchdog in milliseconds.
const MAX_WATCHDOG: u64 = 60_000;
/// The highest frequency of a core in MHz.
const MAX_CLOCK: u32 = 10_000;
/// Bits that a link carries in a cycle of the core's clock (the EXTOLL paper's section V).
const BITS_A_CYCLE: u64 = 32;
/// Maximum number of cycles that a packet takes to the next card.
const MAX_HOP_CYCLES: u32 = 1 << 20;
/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// The role of a node with an EXTOLL card.
pub const NODE: Role = Role::new("node", "an EXTOLL card");

/// The family of EXTOLL networks. The module documentation describes their tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Networks;

/// EXTOLL cards on one network. Exactly one shape must be given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    /// A torus: the number of nodes in each of up to three dimensions.
    #[serde(default)]
    torus: Option<Spanned<Vec<u32>>>,
    /// A hypercube: its number of dimensions, 0 to 6.
    #[serde(default)]
    hypercube: Option<Spanned<u32>>,
    /// A full mesh: its number of nodes, 1 to 7.
    #[serde(default)]
    mesh: Option<Spanned<u32>>,
    /// Number of processes of each card, 1 to 256.
    #[serde(default)]
    vpids: Option<Spanned<u16>>,
    /// How long a send may wait for credit, in milliseconds: 1 to 60,000, or 0 for ever.
    #[serde(default)]
    watchdog_ms: Option<Spanned<u64>>,
    /// How long the target of RMA commands may be silent, in milliseconds: 1 to 60,000, or 0 for
    /// ever.
    #[serde(default)]
    rma_watchdog_ms: Option<Spanned<u64>>,
    /// The clock of the cores in MHz, 1 to 10,000. Without it, the cards' work takes no time.
    #[serde(default)]
    core_mhz: Option<Spanned<u32>>,
    /// Cycles of that clock that a packet takes to the next card, besides the delay of the link.
    #[serde(default)]
    hop_cycles: Option<Spanned<u32>>,
    /// Maximum number of bytes of data of an RMA packet: a multiple of 8, 64 to 65,536.
    #[serde(default)]
    rma_mtu: Option<Spanned<u32>>,
    /// The network's links.
    #[serde(default)]
    link: LinkSection,
}

/// The values of a network after the checks. Watchdogs are in nanoseconds.
struct NetworkValues {
    topology: Topology,
    vpids: u16,
    watchdog: Option<u64>,
    rma_watchdog: Option<u64>,
    rma_mtu: u32,
    clock: Clock,
    link: LinkSpec,
}

impl Network {
    /// Returns the topology of the network's shape, or the error of an impossible one. Returns
    /// `None` unless exactly one shape is given.
    fn topology(&self) -> Option<Result<Topology, TopologyError>> {
        match (&self.torus, &self.hypercube, &self.mesh) {
            (Some(torus), None, None) => Some(Topology::torus(torus.get_ref())),
            (None, Some(dimensions), None) => Some(Topology::hypercube(*dimensions.get_ref())),
            (None, None, Some(nodes)) => Some(Topology::full_mesh(*nodes.get_ref())),
            _ => None,
        }
    }

    /// Returns the checked values of a section.
    fn network_values(&self, section: &Section<'_>) -> Result<NetworkValues, SectionError> {
        let vpids = range_or("vpids", self.vpids.as_ref(), (1, MAX_VPIDS), DEFAULT_VPIDS)?;
        let watchdog = watchdog_nanoseconds("watchdog_ms", self.watchdog_ms.as_ref())?;
        let rma_watchdog = watchdog_nanoseconds("rma_watchdog_ms", self.rma_watchdog_ms.as_ref())?;
        let (clock, link) = self.clock_and_link()?;
        let rma_mtu = match &self.rma_mtu {
            Some(bytes) if !bytes.get_ref().is_multiple_of(8) => {
                return Err(refuse_value("rma_mtu", bytes, "a multiple of 8, 64 to 65536"));
            }
            Some(bytes) => check_range("rma_mtu", bytes, MIN_RMA_MTU, MAX_RMA_MTU)?,
            None if link.bits_per_second == 0 => MAX_RMA_MTU,
            None => R1_RMA_MTU,
        };

        let refuse = |what, found, expected| SectionError::value(section.span(), what, found, expected);
        let topology = match self.topology() {
            Some(Ok(topology)) => topology,
            Some(Err(error)) => return Err(refuse("the network", "impossible", error.to_string())),
            None => {
                let expected = "one of torus = [2, 2, 2], hypercube = 3, mesh = 4".to_owned();
                return Err(refuse("the network's shape", "none or several", expected));
            }
        };

        Ok(NetworkValues { topology, vpids, watchdog, rma_watchdog, rma_mtu, clock, link })
    }

    /// Checks the clock and the links, and returns them. Unless the file says otherwise, the links'
    /// bandwidth follows from the clock. The hop's cycles are added to their delay.
    fn clock_and_link(&self) -> Result<(Clock, LinkSpec), SectionError> {
        let mhz = range_or("core_mhz", self.core_mhz.as_ref(), (1, MAX_CLOCK), 0)?;
        let hop_cycles = range_or("hop_cycles", self.hop_cycles.as_ref(), (0, MAX_HOP_CYCLES), 0)?;

        let clock = Clock::of_mhz(mhz);
        let mut link = LinkSpec::new(packet::CHANNELS, CREDITS, MAX_MESSAGE);
        link.bits_per_second = u64::from(mhz) * 1_000_000 * BITS_A_CYCLE;
        let mut link = self.link.with_defaults(link)?;
        link.delay += clock.nanoseconds(hop_cycles);
        Ok((clock, link))
    }
}

/// Returns the time of a watchdog in nanoseconds, if the file gives it. `key` is its name there.
fn watchdog_nanoseconds(key: &str, milliseconds: Option<&Spanned<u64>>) -> Result<Option<u64>, SectionError> {
    milliseconds
        .map(|milliseconds| Ok(check_range(key, milliseconds, 0, MAX_WATCHDOG)? * MILLISECOND))
        .transpose()
}

impl Family for Networks {
    fn table(&self) -> &'static str {
        "extoll"
    }

    fn roles(&self) -> &'static [Role] {
        &[NODE]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        const COLUMNS: &[CounterColumn] = &[
            CounterColumn::packets("sent", &["velo_sent"]),
            CounterColumn::packets("received", &["velo_received"]),
            CounterColumn::new("forwarded", &["forwarded"]),
            CounterColumn::new("stalls", &["velo_stalls"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        // The number of cards in the networks so far.
        let mut cards = 0;
        for section in &sections {
            let network: Network = section.parse()?;
            let network = network.network_values(section)?;

            let first = cards;
            cards += network.topology.nodes();
            if cards > MAX_NODES {
                let expected = format!("at most {MAX_NODES} cards in all networks together");
                return Err(SectionError::value(section.span(), "the networks' cards", cards, expected));
            }

            add_network(plan, section, &network, first)?;
        }
        Ok(())
    }
}

/// Adds the cards of one network. Their numbers begin at `first`.
fn add_network(
    plan: &mut Plan,
    section: &Section<'_>,
    network: &NetworkValues,
    first: u32,
) -> Result<(), SectionError> {
    let mut functions = Vec::with_capacity(network.topology.nodes() as usize);

    for node in 0..network.topology.nodes() {
        let mut config = network.topology.config(node, network.vpids);
        config.watchdog = network.watchdog.unwrap_or(config.watchdog);
        config.rma_watchdog = network.rma_watchdog.unwrap_or(config.rma_watchdog);
        (config.rma_mtu, config.clock) = (network.rma_mtu, network.clock);

        let admin = config.admin();
        let card = DeviceSource::fallible(move || Card::new(config.clone()))
            .with_admin(admin)
            .with_max_packet(MAX_MESSAGE);
        let name = format!("ex{}", first + node);
        functions.push(plan.single(&name, NODE, card).map_err(|error| section.refuse(error))?);
    }

    for link in network.topology.links() {
        let end = |(node, port): (u32, u8)| (functions[node as usize], port);
        plan.link(end(link.a), end(link.b), network.link.clone()).map_err(|error| section.refuse(error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    /// Returns the values of a network of two cards with these lines, or the error's message.
    fn network(lines: &str) -> Result<NetworkValues, String> {
        let text = format!("mesh = 2\n{lines}");
        let section = Section::new(DeTable::parse(&text).unwrap());
        let network: Network = section.parse().map_err(|error| error.to_string())?;
        network.network_values(&section).map_err(|error| error.to_string())
    }

    #[test]
    fn the_clock_determines_the_links_bandwidth_and_the_delay_of_a_hop() {
        // Ten cycles of the clock take `hop` nanoseconds, rounded up.
        for (mhz, bits, hop) in [(156, 4_992_000_000, 65), (117, 3_744_000_000, 86)] {
            let lines = format!("core_mhz = {mhz}\nhop_cycles = 10\n[link]\ndelay_ns = 200\n");
            let values = network(&lines).unwrap();

            assert_eq!((values.link.bits_per_second, values.link.delay), (bits, 200 + hop));
            assert_eq!((values.clock, values.rma_mtu), (Clock::of_mhz(mhz), R1_RMA_MTU));
        }
    }

    #[test]
    fn links_without_a_bandwidth_carry_large_rma_packets() {
        let values = network("").unwrap();
        assert_eq!((values.link.bits_per_second, values.rma_mtu), (0, MAX_RMA_MTU));
        assert!(values.clock.is_instant());

        let values = network("[link]\ngbit_s = 4.992\n").unwrap();
        assert_eq!((values.link.bits_per_second, values.rma_mtu), (4_992_000_000, R1_RMA_MTU));
        assert!(values.clock.is_instant());

        let values = network("core_mhz = 156\nrma_mtu = 4096\n[link]\ngbit_s = 0.0\n").unwrap();
        assert_eq!((values.link.bits_per_second, values.rma_mtu), (0, 4096));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (line, expected) in [
            ("rma_mtu = 100", "a multiple of 8"),
            ("rma_mtu = 56", "64 to 65536"),
            ("rma_mtu = 65544", "64 to 65536"),
            ("core_mhz = 0", "1 to 10000"),
            ("hop_cycles = 2000000", "0 to 1048576"),
        ] {
            let Err(message) = network(line) else { panic!("{line} is accepted") };
            assert!(message.contains(expected), "{message}");
        }
    }
}
