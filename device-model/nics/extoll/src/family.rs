//! The family of the machine file's tables `[[extoll]]`.
//!
//! ```toml
//! [[extoll]]                # EXTOLL cards on one network
//! torus = [2, 2, 2]         # or hypercube = 3, or mesh = 4
//! vpids = 16                # processes of each card, 1 to 256
//! watchdog_ms = 500         # how long a send may wait for credit; 0: for ever
//! rma_watchdog_ms = 2000    # how long nothing may come from the target of a transfer; 0: for ever
//!
//! [extoll.link]
//! delay_ns = 300
//! gbit_s = 5.0
//! credits = 64              # packets of buffer at the receiving end of a virtual channel
//! ```
//!
//! The cards are `ex0`, `ex1`, ..., counted through all networks.

use nicforge_family::{
    Column, DeviceSource, Family, LinkSection, LinkSpec, Plan, Role, Section, SectionError, Spanned,
    check_range,
};
use nicforge_hwi::{
    extoll::{DEFAULT_VPIDS, MAX_NODES, MAX_VPIDS},
    extoll_velo::MAX_MESSAGE,
};
use serde::Deserialize;

use crate::{Card, Topology, TopologyError, wire};

/// Packets of buffer at the receiving end of each virtual channel of a link, unless the file says
/// otherwise.
const CREDITS: u32 = 64;
/// The longest watchdog in milliseconds.
const MAX_WATCHDOG: u64 = 60_000;
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
    link: LinkSpec,
}

impl Network {
    /// Returns the network's topology, if exactly one shape is given.
    fn topology(&self) -> Option<Result<Topology, TopologyError>> {
        match (&self.torus, &self.hypercube, &self.mesh) {
            (Some(torus), None, None) => Some(Topology::torus(torus.get_ref())),
            (None, Some(dimensions), None) => Some(Topology::hypercube(*dimensions.get_ref())),
            (None, None, Some(nodes)) => Some(Topology::full_mesh(*nodes.get_ref())),
            _ => None,
        }
    }

    /// Checks the network of a section.
    fn check(&self, section: &Section<'_>) -> Result<NetworkValues, SectionError> {
        let vpids = match &self.vpids {
            Some(vpids) => check_range("vpids", vpids, 1, MAX_VPIDS)?,
            None => DEFAULT_VPIDS,
        };
        let watchdog = watchdog("watchdog_ms", self.watchdog_ms.as_ref())?;
        let rma_watchdog = self::watchdog("rma_watchdog_ms", self.rma_watchdog_ms.as_ref())?;
        let link = self.link.over(LinkSpec::new(wire::CHANNELS, CREDITS, MAX_MESSAGE))?;

        let refuse = |what, found, expected| SectionError::value(section.span(), what, found, expected);
        let topology = match self.topology() {
            Some(Ok(topology)) => topology,
            Some(Err(error)) => return Err(refuse("the network", "impossible", error.to_string())),
            None => {
                let expected = "one of torus = [2, 2, 2], hypercube = 3, mesh = 4".to_owned();
                return Err(refuse("the network's shape", "none or several", expected));
            }
        };

        Ok(NetworkValues { topology, vpids, watchdog, rma_watchdog, link })
    }
}

/// Returns a watchdog in nanoseconds, if the file has it.
fn watchdog(what: &str, milliseconds: Option<&Spanned<u64>>) -> Result<Option<u64>, SectionError> {
    milliseconds
        .map(|milliseconds| Ok(check_range(what, milliseconds, 0, MAX_WATCHDOG)? * MILLISECOND))
        .transpose()
}

impl Family for Networks {
    fn table(&self) -> &'static str {
        "extoll"
    }

    fn roles(&self) -> &'static [Role] {
        &[NODE]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            Column::packets("sent", &["velo_sent"]),
            Column::packets("received", &["velo_received"]),
            Column::new("forwarded", &["forwarded"]),
            Column::new("stalls", &["velo_stalls"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        let mut cards = 0;
        for section in &sections {
            let network: Network = section.parse()?;
            let network = network.check(section)?;

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
