//! The family of the machine file's tables `[[bgl]]`.
//!
//! ```toml
//! [[bgl]]                     # Blue Gene/L nodes on one torus
//! torus = [4, 4, 2]           # nodes in the dimensions X, Y and Z
//! wrap = [true, true, false]  # whether each dimension is closed to rings
//!
//! [bgl.link]
//! delay_ns = 69
//! gbit_s = 1.4
//! cut_through_bytes = 32
//! credits = 4                 # packets of buffer at the receiving end of a virtual channel
//! ```
//!
//! The nodes are `bgl0`, `bgl1`, ..., with X fastest, counted through all tori. The function of a
//! node is `torus`, so that its first core's socket is `bgl0.torus.core0`.

use nicforge_core::ids::AttachmentId;
use nicforge_family::{
    CounterColumn, DeviceSource, Family, LinkSection, Plan, Role, Section, SectionError, Spanned, list_of,
};
use nicforge_hwi::torus::{DIMENSIONS, KERNEL, MAX_NODES};
use serde::Deserialize;

use crate::{Network, Options, TorusNic, config::MAX_ON_LINK};

/// The name of a node's function.
const FUNCTION: &str = "torus";

/// The role of a node.
pub const NODE: Role = Role::new("bgl", "a Blue Gene/L node");

/// The family of Blue Gene/L tori. The module documentation describes their tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Networks;

/// Blue Gene/L nodes on one torus.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkSection {
    /// The number of nodes in each of up to three dimensions.
    torus: Spanned<Vec<u32>>,
    /// Whether each dimension is closed to rings. Those that are left out are.
    #[serde(default)]
    wrap: Option<Spanned<Vec<bool>>>,
    /// The torus's links.
    #[serde(default)]
    link: LinkSection,
}

impl NetworkSection {
    /// Returns the network that the section describes.
    fn network(&self) -> Result<Network, SectionError> {
        let refused = |found: &dyn std::fmt::Debug, expected: String| {
            SectionError::value(self.torus.span(), "torus", format!("{found:?}"), expected)
        };
        let given = self.torus.get_ref();
        if given.is_empty() || given.len() > DIMENSIONS {
            return Err(refused(given, format!("1 to {DIMENSIONS} lengths")));
        }

        let (mut lengths, mut wraps) = ([1; DIMENSIONS], [true; DIMENSIONS]);
        lengths[..given.len()].copy_from_slice(given);
        let given_wraps = list_of("wrap", self.wrap.as_ref(), given.len())?;
        for (wrap, &given) in wraps.iter_mut().zip(given_wraps) {
            *wrap = given;
        }

        let options = Options { link: self.link.with_defaults(Options::default().link)? };
        Network::new(lengths, wraps, options).map_err(|error| refused(given, error.to_string()))
    }
}

impl Family for Networks {
    fn table(&self) -> &'static str {
        "bgl"
    }

    fn roles(&self) -> &'static [Role] {
        &[NODE]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        const COLUMNS: &[CounterColumn] = &[
            CounterColumn::packets("sent", &["packets_sent"]),
            CounterColumn::packets("received", &["packets_received"]),
            CounterColumn::new("forwarded", &["forwarded"]),
            CounterColumn::new("discarded", &["discarded"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        let mut nodes = 0;
        for section in &sections {
            let parsed: NetworkSection = section.parse()?;
            let network = parsed.network()?;
            if network.nodes() > MAX_NODES - nodes {
                let expected = format!("at most {MAX_NODES} nodes in all tori together");
                let found = format!("{:?}", parsed.torus.get_ref());
                return Err(SectionError::value(parsed.torus.span(), "torus", found, expected));
            }

            add_network(plan, section, &network, nodes)?;
            nodes += network.nodes();
        }
        Ok(())
    }
}

/// Adds the nodes of one torus. Their numbers begin at `first`.
fn add_network(
    plan: &mut Plan,
    section: &Section<'_>,
    network: &Network,
    first: u32,
) -> Result<(), SectionError> {
    let mut functions = Vec::with_capacity(network.nodes() as usize);
    for number in 0..network.nodes() {
        let network = network.clone();
        let source = DeviceSource::fallible(move || TorusNic::new(&network, number))
            .with_admin(AttachmentId(KERNEL))
            .with_max_packet(MAX_ON_LINK);
        let name = format!("bgl{}", first + number);
        let node = plan.node(&name, NODE).map_err(|error| section.refuse(error))?;
        functions.push(plan.function(node, FUNCTION, source).map_err(|error| section.refuse(error))?);
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
    use nicforge_hwi::torus::reg;
    use nicforge_test_kit::{Client, Testbed};
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
    fn a_torus_has_nodes_and_links() {
        let closed = plan("torus = [4, 3, 2]\n").unwrap();
        assert_eq!((closed.nodes().len(), closed.links().len()), (24, 3 * 24));
        // A mesh of 4 x 3 x 2 has 3 x 6, 2 x 8 and 1 x 12 cables.
        let open = plan("torus = [4, 3, 2]\nwrap = [false, false, false]\n").unwrap();
        assert_eq!(open.links().len(), 18 + 16 + 12);
        assert_eq!(plan("torus = [1]\n").unwrap().links().len(), 0);
    }

    #[test]
    fn machines_of_one_plan_have_lives_of_their_own() {
        let plan = plan("torus = [2]\n").unwrap();
        let attached = [(), ()].map(|()| {
            let mut machine = Testbed::new();
            let sources = plan.functions().iter().map(|function| function.source.make().unwrap());
            let functions: Vec<_> =
                sources.map(|device| machine.add_function("node", device).unwrap()).collect();
            Client::attach(&mut machine, functions[0], AttachmentId(0)).read32(&mut machine, 0, reg::PRESENCE)
        });
        assert_eq!(attached, [1, 1]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (lines, part) in [
            ("torus = []\n", "1 to 3 lengths"),
            ("torus = [2, 2, 2, 2]\n", "1 to 3 lengths"),
            ("torus = [0]\n", "0"),
            ("torus = [257]\n", "at most 256"),
            ("torus = [17, 16, 16]\n", "4352 nodes"),
            ("torus = [4294967295, 4294967295, 4294967295]\n", "at most 256"),
            ("torus = [2]\nwrap = [true, true]\n", "wrap"),
            ("torus = [2]\nnodes = 3\n", "nodes"),
        ] {
            let error = plan(lines).unwrap_err();
            assert!(error.contains(part), "{lines}: {error}");
        }
    }
}
