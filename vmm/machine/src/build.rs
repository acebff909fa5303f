//! Builds a machine from a description.

use nicforge_core::{
    device::Device,
    fabric::LinkSpec,
    ids::{AttachmentId, FunctionId},
    machine::Machine,
};
use nicforge_extoll::{Card, wire};
use nicforge_hwi::{extoll::DEFAULT_VPIDS, extoll_velo, tree};
use nicforge_tree::{Topology, TreeNic};
use thiserror::Error;

use crate::description::{Description, Extoll, FunctionKind, Link};

/// The role of a node in its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The I/O node of a pset.
    Io,
    /// A compute node.
    Compute,
    /// A node with an EXTOLL card.
    Node,
    /// A single device.
    Device,
}

impl Role {
    /// Returns the role's name on command lines and in the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Compute => "compute",
            Self::Node => "node",
            Self::Device => "device",
        }
    }
}

/// An attachment of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAttachment {
    /// Its number in the function.
    pub id: AttachmentId,
    /// Its name, such as `core0`.
    pub name: String,
    /// Whether it has the kernel's role (configuration, the system's channel).
    pub admin: bool,
}

/// A node of a machine: a function with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, such as `io0` or `cn3`.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its number among the nodes of its role.
    pub rank: u32,
    /// Its function.
    pub function: FunctionId,
    /// Its attachments.
    pub attachments: Vec<NodeAttachment>,
}

impl Node {
    /// Returns the attachments that programs use.
    pub fn users(&self) -> impl Iterator<Item = &NodeAttachment> {
        self.attachments.iter().filter(|attachment| !attachment.admin)
    }
}

/// The nodes of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The machine's name.
    pub name: String,
    /// Its nodes, in the order of its functions.
    pub nodes: Vec<Node>,
}

impl Built {
    /// Returns the node called `name`.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

/// The reason why no machine can be built from a description that is correct in itself.
#[derive(Debug, Error)]
pub enum BuildError {
    /// A device's own specification is invalid, which is a defect of the device.
    #[error("device {name}: {source}")]
    Spec {
        /// The node's name.
        name: String,
        /// The defect.
        source: nicforge_core::spec::SpecError,
    },
    /// A NIC's configuration is impossible.
    #[error("node {name}: {source}")]
    Config {
        /// The node's name.
        name: String,
        /// The impossible value.
        source: nicforge_tree::config::ConfigError,
    },
    /// A card's configuration is impossible.
    #[error("node {name}: {source}")]
    Card {
        /// The node's name.
        name: String,
        /// The impossible value.
        source: nicforge_extoll::ConfigError,
    },
    /// The shape of a network is impossible.
    #[error(transparent)]
    Network(#[from] nicforge_extoll::TopologyError),
    /// The tree's topology is impossible.
    #[error(transparent)]
    Topology(#[from] nicforge_tree::TopologyError),
    /// A port has two links, or a link's end does not exist.
    #[error(transparent)]
    Fabric(#[from] nicforge_core::fabric::FabricError),
}

/// Returns the names of the nodes of all networks in a description. They are `io0`, `cn0`, `cn1`,
/// ..., counted through all psets, and `ex0`, `ex1`, ..., counted through all EXTOLL networks.
pub fn network_node_names(description: &Description) -> impl Iterator<Item = String> {
    let psets = description.pset.len();

    let compute: u64 =
        description.pset.iter().map(|pset| u64::from(*pset.as_ref().compute_nodes.as_ref())).sum();
    let cards: u64 = description
        .extoll
        .iter()
        .filter_map(|network| network.as_ref().topology()?.ok())
        .map(|topology| u64::from(topology.nodes()))
        .sum();

    (0..psets)
        .map(|index| format!("io{index}"))
        .chain((0..compute).map(|index| format!("cn{index}")))
        .chain((0..cards).map(|index| format!("ex{index}")))
}

/// Builds a machine. Its name is the description's, unless the caller changes it.
pub fn build(description: &Description) -> Result<(Machine, Built), BuildError> {
    let mut machine = Machine::new();
    let mut nodes = Vec::new();

    if !description.pset.is_empty() {
        add_psets(&mut machine, &mut nodes, description)?;
    }

    for network in &description.extoll {
        add_network(&mut machine, &mut nodes, network.as_ref())?;
    }

    for (function, rank) in description.function.iter().zip(0..) {
        let name = function.as_ref().name.as_ref();
        let device: Box<dyn Device> = match function.as_ref().kind {
            FunctionKind::SlotFifo => Box::new(nicforge_proof::SlotFifo::new()),
            FunctionKind::DmaEngine => Box::new(nicforge_proof::DmaEngine::new()),
            FunctionKind::AddressedSend => Box::new(nicforge_proof::AddressedSend::new()),
            FunctionKind::Idio16 => Box::new(nicforge_idio16::Idio16::default()),
        };
        let node = add_node(&mut machine, name, Role::Device, rank, device, None)?;
        nodes.push(node);
    }

    Ok((machine, Built { name: description.name.as_ref().clone(), nodes }))
}

/// Adds all psets, which share one tree network.
fn add_psets(
    machine: &mut Machine,
    nodes: &mut Vec<Node>,
    description: &Description,
) -> Result<(), BuildError> {
    let sizes: Vec<u32> = description.pset.iter().map(|pset| *pset.as_ref().compute_nodes.as_ref()).collect();
    let topology = Topology::psets(&sizes)?;

    let (mut io_nodes, mut compute_nodes) = (0, 0);
    let mut functions = Vec::with_capacity(topology.nodes.len());

    for (address, node) in topology.nodes.iter().enumerate() {
        let Some(mut config) = topology.config(address as u32) else { continue };
        if let Some(depth) = &description.pset[node.pset as usize].as_ref().fifo_depth {
            config.send_depth = *depth.as_ref();
            config.recv_depth = *depth.as_ref();
        }

        let (role, rank, name) = match node.pset_rank {
            None => (Role::Io, next(&mut io_nodes), format!("io{}", io_nodes - 1)),
            Some(_) => (Role::Compute, next(&mut compute_nodes), format!("cn{}", compute_nodes - 1)),
        };

        let nic = TreeNic::new(config).map_err(|source| BuildError::Config { name: name.clone(), source })?;
        let node =
            add_node(machine, &name, role, rank, Box::new(nic), Some(AttachmentId(tree::ATTACHMENT_ADMIN)))?;
        functions.push(node.function);
        nodes.push(node);
    }

    for link in &topology.links {
        let pset = topology.nodes[link.b.0 as usize].pset as usize;
        let spec = link_spec(&description.pset[pset].as_ref().link, tree::VCS, TREE_CREDITS, tree::PAYLOAD);

        let end = |(node, port): (u32, u8)| (functions[node as usize], port);
        machine.fabric().connect(end(link.a), end(link.b), spec)?;
    }
    Ok(())
}

/// Default packets of buffer at the receiving end of each virtual channel of a tree link.
const TREE_CREDITS: u32 = 4;
/// Default packets of buffer at the receiving end of each virtual channel of an EXTOLL link.
const EXTOLL_CREDITS: u32 = 64;

/// Adds the EXTOLL cards of one network.
fn add_network(machine: &mut Machine, nodes: &mut Vec<Node>, network: &Extoll) -> Result<(), BuildError> {
    let Some(topology) = network.topology().transpose()? else { return Ok(()) };

    let vpids = network.vpids.as_ref().map_or(DEFAULT_VPIDS, |vpids| *vpids.as_ref());
    let first = nodes.iter().filter(|node| node.role == Role::Node).count() as u32;
    let mut functions = Vec::with_capacity(topology.nodes() as usize);

    // A card without links sends packets to itself.
    machine.fabric().add_packet_size(extoll_velo::MAX_MESSAGE)?;

    for number in 0..topology.nodes() {
        let mut config = topology.config(number, vpids);
        if let Some(watchdog) = &network.watchdog_ms {
            config.watchdog = *watchdog.as_ref() * 1_000_000;
        }
        if let Some(watchdog) = &network.rma_watchdog_ms {
            config.rma_watchdog = *watchdog.as_ref() * 1_000_000;
        }

        let rank = first + number;
        let name = format!("ex{rank}");
        let card = Card::new(config).map_err(|source| BuildError::Card { name: name.clone(), source })?;
        let admin = Some(card.admin());
        let node = add_node(machine, &name, Role::Node, rank, Box::new(card), admin)?;
        functions.push(node.function);
        nodes.push(node);
    }

    for link in topology.links() {
        let end = |(node, port): (u32, u8)| (functions[node as usize], port);
        let spec = link_spec(&network.link, wire::CHANNELS, EXTOLL_CREDITS, extoll_velo::MAX_MESSAGE);
        machine.fabric().connect(end(link.a), end(link.b), spec)?;
    }
    Ok(())
}

fn next(count: &mut u32) -> u32 {
    *count += 1;
    *count - 1
}

fn add_node(
    machine: &mut Machine,
    name: &str,
    role: Role,
    rank: u32,
    device: Box<dyn Device>,
    admin: Option<AttachmentId>,
) -> Result<Node, BuildError> {
    let function = machine
        .add_function(name, device)
        .map_err(|source| BuildError::Spec { name: name.to_owned(), source })?;

    let attachments = machine.spec(function).map(|spec| spec.attachments.as_slice()).unwrap_or_default();
    let attachments = attachments
        .iter()
        .zip(0..)
        .map(|(attachment, number)| NodeAttachment {
            id: AttachmentId(number),
            name: attachment.name.clone(),
            admin: admin == Some(AttachmentId(number)),
        })
        .collect();
    Ok(Node { name: name.to_owned(), role, rank, function, attachments })
}

/// Returns the specification of a link for packets of at most `max_packet` bytes. It has `channels`
/// virtual channels, and `credits` credits for each unless the file says otherwise.
fn link_spec(link: &Link, channels: usize, credits: u32, max_packet: usize) -> LinkSpec {
    let mut spec = LinkSpec { credits: vec![credits; channels], max_packet, ..LinkSpec::default() };

    if let Some(delay) = &link.delay_ns {
        spec.delay = *delay.as_ref();
    }
    if let Some(rate) = &link.gbit_s {
        // The description allows 0, and 1 bit to 10,000 Gb a second. A u64 holds this number of
        // bits.
        spec.bits_per_second = (rate.as_ref() * 1e9).round() as u64;
    }
    if let Some(credits) = &link.credits {
        spec.credits = vec![*credits.as_ref(); channels];
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(text: &str) -> Built {
        build(&Description::parse(text, "m.toml").unwrap()).unwrap().1
    }

    #[test]
    fn a_pset_has_an_io_node_and_its_compute_nodes_with_four_cores_and_an_admin() {
        let built = built("name = \"p\"\n[[pset]]\ncompute_nodes = 2\n");
        let names: Vec<_> =
            built.nodes.iter().map(|node| (node.name.as_str(), node.role, node.rank)).collect();
        assert_eq!(names, [("io0", Role::Io, 0), ("cn0", Role::Compute, 0), ("cn1", Role::Compute, 1)]);
        assert_eq!(built.nodes[0].users().count(), 4);
        assert_eq!(built.nodes[0].attachments.len(), 5);
    }

    #[test]
    fn names_count_through_all_psets() {
        let text = "name = \"p\"\n[[pset]]\ncompute_nodes = 1\n[[pset]]\ncompute_nodes = 2\n";
        let built = built(text);
        let description = Description::parse(text, "m.toml").unwrap();
        for name in network_node_names(&description) {
            assert!(built.node(&name).is_some(), "{name}");
        }
        assert_eq!(built.nodes.len(), 5);
    }

    #[test]
    fn a_network_has_cards_with_their_vpids_and_an_admin() {
        let text = "name = \"p\"\n[[extoll]]\ntorus = [2, 2]\nvpids = 3\n[[extoll]]\nmesh = 2\n";
        let built = built(text);
        let names: Vec<_> = built.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["ex0", "ex1", "ex2", "ex3", "ex4", "ex5"]);
        assert_eq!(built.nodes[3].users().count(), 3);
        assert_eq!(built.nodes[3].attachments.len(), 4);
        assert_eq!(built.nodes[5].users().count(), usize::from(DEFAULT_VPIDS));
        let description = Description::parse(text, "m.toml").unwrap();
        assert_eq!(network_node_names(&description).count(), 6);
    }

    #[test]
    fn single_functions_are_devices() {
        let built = built("name = \"p\"\n[[function]]\nname = \"x\"\nkind = \"addressed-send\"\n");
        assert_eq!(built.nodes[0].role, Role::Device);
        assert_eq!(built.nodes[0].users().count(), 4);
    }

    #[test]
    fn the_largest_pset_is_built() {
        let text =
            format!("name = \"p\"\n[[pset]]\ncompute_nodes = {}\n", crate::description::MAX_COMPUTE_NODES);
        assert_eq!(built(&text).nodes.len(), 257);
    }
}
