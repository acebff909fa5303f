//! The family of the machine file's tables `[[pset]]`.
//!
//! ```toml
//! [[pset]]                  # a Blue Gene pset: one I/O node and its compute nodes on a tree
//! compute_nodes = 4
//! fifo_depth = 8            # packets in each send and receive FIFO; 8 on the machine
//!
//! [pset.link]               # of each tree link, per direction; all zero is "as fast as it goes"
//! delay_ns = 0
//! gbit_s = 0.0
//! credits = 8               # packets of buffer at the receiving end of a virtual channel
//! cut_through_bytes = 4     # a node forwards a packet after these; without it, after the tail
//! ```
//!
//! The psets of a file share one tree. The nodes are `io0`, `io1`, ... and `cn0`, `cn1`, ...,
//! counted through all psets.

use nicforge_core::ids::AttachmentId;
use nicforge_family::{
    CounterColumn, DeviceSource, Family, LinkSection, LinkSpec, Plan, Role, Section, SectionError, Spanned,
    check_range, refuse_value,
};
use nicforge_hwi::tree::{ATTACHMENT_ADMIN, MAX_FIFO_DEPTH, MAX_NODES, PAYLOAD, VCS};
use serde::Deserialize;

use crate::{Topology, TreeNic};

/// The greatest number of compute nodes in a pset.
pub const MAX_COMPUTE_NODES: u32 = 256;
/// Packets of buffer at the receiving end of each virtual channel of a link, unless the file says
/// otherwise. The papers do not say how many there are. These are as many as a FIFO of the machine
/// holds, and as a router moves in a row.
const CREDITS: u32 = 8;

/// The role of an I/O node.
pub const IO: Role = Role::new("io", "the I/O node of a pset");
/// The role of a compute node.
pub const COMPUTE: Role = Role::new("compute", "a compute node of a pset");

/// The family of Blue Gene psets. The module documentation describes their tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Psets;

/// One I/O node and its compute nodes on a tree network.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pset {
    /// Number of compute nodes, 1 to [`MAX_COMPUTE_NODES`].
    compute_nodes: Spanned<u32>,
    /// Number of packets in each FIFO: a power of two, at most 256.
    #[serde(default)]
    fifo_depth: Option<Spanned<u32>>,
    /// The tree's links.
    #[serde(default)]
    link: LinkSection,
}

/// The values of a pset after the checks.
struct PsetValues {
    compute_nodes: u32,
    fifo_depth: Option<u32>,
    link: LinkSpec,
}

impl Family for Psets {
    fn table(&self) -> &'static str {
        "pset"
    }

    fn roles(&self) -> &'static [Role] {
        &[IO, COMPUTE]
    }

    fn columns(&self) -> &'static [CounterColumn] {
        const COLUMNS: &[CounterColumn] = &[
            CounterColumn::new("send fill", &["send_fill"]),
            CounterColumn::new("recv fill", &["recv_fill"]),
            CounterColumn::packets("sent", &["sent"]),
            CounterColumn::packets("received", &["received"]),
            CounterColumn::new("forwarded", &["forwarded"]),
        ];
        COLUMNS
    }

    fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
        let mut psets = Vec::with_capacity(sections.len());
        let mut nodes = 0;
        for section in &sections {
            psets.push(PsetValues::from_section(&section.parse()?, &mut nodes)?);
        }

        let sizes: Vec<u32> = psets.iter().map(|pset| pset.compute_nodes).collect();
        let topology = Topology::psets(&sizes)
            .map_err(|error| SectionError::syntax(sections[0].span(), error.to_string()))?;
        add_nodes(plan, &sections, &psets, &topology)
    }
}

impl PsetValues {
    /// Returns the checked values of a pset's section. `nodes` counts the nodes of all psets so
    /// far, and those of this one are added.
    fn from_section(pset: &Pset, nodes: &mut u32) -> Result<Self, SectionError> {
        let compute_nodes = check_range("compute_nodes", &pset.compute_nodes, 1, MAX_COMPUTE_NODES)?;
        *nodes += compute_nodes + 1;
        if *nodes > MAX_NODES {
            let expected = format!("at most {MAX_NODES} nodes in all psets together");
            return Err(refuse_value("compute_nodes", &pset.compute_nodes, expected));
        }

        if let Some(depth) = &pset.fifo_depth
            && (!depth.get_ref().is_power_of_two() || *depth.get_ref() > MAX_FIFO_DEPTH)
        {
            let expected = format!("a power of two, at most {MAX_FIFO_DEPTH}");
            return Err(refuse_value("fifo_depth", depth, expected));
        }

        Ok(Self {
            compute_nodes,
            fifo_depth: pset.fifo_depth.as_ref().map(|depth| *depth.get_ref()),
            link: pset.link.with_defaults(LinkSpec::new(VCS, CREDITS, PAYLOAD))?,
        })
    }
}

/// Adds the nodes of all psets, and the links between them.
fn add_nodes(
    plan: &mut Plan,
    sections: &[Section<'_>],
    psets: &[PsetValues],
    topology: &Topology,
) -> Result<(), SectionError> {
    let (mut io_nodes, mut compute_nodes) = (0, 0);
    let mut functions = Vec::with_capacity(topology.nodes.len());

    for (address, node) in (0..).zip(&topology.nodes) {
        let Some(mut config) = topology.config(address) else { continue };
        let pset = node.pset as usize;
        if let Some(depth) = psets[pset].fifo_depth {
            config.send_depth = depth;
            config.recv_depth = depth;
        }

        let (role, name) = match node.pset_rank {
            None => (IO, numbered("io", &mut io_nodes)),
            Some(_) => (COMPUTE, numbered("cn", &mut compute_nodes)),
        };
        let nic = DeviceSource::fallible(move || TreeNic::new(config.clone()))
            .with_admin(AttachmentId(ATTACHMENT_ADMIN));
        let function = plan.single(&name, role, nic).map_err(|error| sections[pset].refuse(error))?;
        functions.push(function);
    }

    for link in &topology.links {
        // A topology's link has its upper end first. The lower end (`b`) determines the pset,
        // because the link between two I/O nodes has the values of the lower one's pset.
        let (lower_node, _) = link.b;
        let pset = topology.nodes[lower_node as usize].pset as usize;
        let end = |(node, port): (u32, u8)| (functions[node as usize], port);
        plan.link(end(link.a), end(link.b), psets[pset].link.clone())
            .map_err(|error| sections[pset].refuse(error))?;
    }
    Ok(())
}

/// Returns the next name of a series.
fn numbered(series: &str, count: &mut u32) -> String {
    let name = format!("{series}{count}");
    *count += 1;
    name
}
