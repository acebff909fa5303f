//! The configuration of the guests of a machine's nodes.

use std::path::PathBuf;

use nicforge_core::spec::Identity;
use nicforge_guest::{Accelerator, Driver, Function, GuestConfig, PciIdentity, Progress, Toolkit, Vmm};
use nicforge_machine::build::{Built, Node, NodeAttachment};

use super::options::{DriverChoice, ModuleWord, Options, Task};
use crate::failure::{Failure, print_note};

/// Most nodes that a message lists.
const MAX_LISTED_NODES: usize = 20;

/// A machine, as far as its guests depend on it.
#[derive(Clone, Copy)]
pub(super) struct Machine<'a> {
    pub(super) built: &'a Built,
    /// The PCI identity of each function, by its number.
    pub(super) identities: &'a [Identity],
    /// Returns the socket of an attachment.
    pub(super) socket: &'a dyn Fn(&Node, &NodeAttachment) -> Result<PathBuf, Failure>,
}

/// How the machines of the guests are made.
#[derive(Clone, Copy)]
pub(super) struct Hardware {
    pub(super) vmm: Vmm,
    /// How QEMU executes the processors.
    pub(super) accelerator: Accelerator,
    /// The driver of the functions.
    pub(super) driver: Driver,
}

/// Returns the nodes that get a guest: those that the options name, or all that have attachments. A
/// shell is in one guest only.
pub(super) fn choose_nodes<'a>(options: &Options, built: &'a Built) -> Result<Vec<&'a Node>, Failure> {
    let all = &built.nodes;
    let names =
        || all.iter().take(MAX_LISTED_NODES).map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut nodes = Vec::new();

    for name in &options.nodes {
        match built.node(name) {
            Some(node) if node.attachments.is_empty() => {
                return Err(Failure::usage(format!("{name} has no attachments to plug into a guest")));
            }
            Some(node) => nodes.push(node),
            None => return Err(Failure::usage(format!("there is no node {name}; there are {}", names()))),
        }
    }

    if nodes.is_empty() {
        // A switch has no attachments, and nothing of it can be plugged into a guest.
        nodes.extend(all.iter().filter(|node| !node.attachments.is_empty()));
        if nodes.is_empty() {
            return Err(Failure::usage("no node of the machine has attachments to plug into a guest"));
        }
        if options.task == Task::Shell && nodes.len() > 1 {
            nodes.truncate(1);
            print_note(format_args!("a shell in {} (others: --node, of {})", nodes[0].name, names()));
        }
    }

    if options.task == Task::Shell && nodes.len() > 1 {
        return Err(Failure::usage("--shell is for one node"));
    }

    Ok(nodes)
}

/// Returns the driver that the guests load for the functions of clients. A kernel module for it is
/// built here.
pub(super) fn choose_driver(
    options: &Options,
    toolkit: &Toolkit,
    progress: &Progress,
) -> Result<Driver, Failure> {
    let driver = match options.guest.driver {
        DriverChoice::Shim => Driver::Shim,
        DriverChoice::Vfio => Driver::Vfio,
        DriverChoice::None | DriverChoice::Stock => Driver::None,
        DriverChoice::Auto if toolkit.has_shim() => Driver::Shim,
        DriverChoice::Auto => {
            let version = &toolkit.kernel.version;
            print_note(format_args!(
                "no kernel module of nicforge can be built here for Linux {version}: \
                 the functions have Linux's own drivers, or none"
            ));
            Driver::None
        }
    };

    if driver == Driver::Shim {
        // The threads that boot the guests find the built module in the cache.
        toolkit.shim(progress)?;
    }

    Ok(driver)
}

/// Finds Linux's own drivers of the nodes' functions, and shows them.
///
/// The first look-up fills the cache with the index of the modules' aliases. The guests' threads
/// look the same drivers up when they boot, and must find the index there instead of making it.
pub(super) fn find_and_show_stock_drivers(
    options: &Options,
    machine: &Machine<'_>,
    nodes: &[&Node],
    toolkit: &Toolkit,
    guest_driver: Driver,
    progress: &Progress,
) -> Result<(), Failure> {
    let cards = nodes.iter().flat_map(|node| {
        let identities = stock_identities(options, machine, node);
        identities.into_iter().map(|identity| (identity, node.name.as_str()))
    });

    for (identity, names) in nodes_by_identity(cards) {
        let modules = toolkit.stock_drivers(guest_driver, identity, progress)?;
        if !modules.is_empty() {
            let (names, modules) = (names.join(", "), modules.join(", "));
            print_note(format_args!("Linux has a driver for {names}: {modules}"));
        }
    }

    Ok(())
}

/// Returns the identities of cards, each with the names of the nodes that have such a card, in
/// their order.
fn nodes_by_identity<'a>(
    cards: impl IntoIterator<Item = (PciIdentity, &'a str)>,
) -> Vec<(PciIdentity, Vec<&'a str>)> {
    let mut found: Vec<(PciIdentity, Vec<&str>)> = Vec::new();
    for (identity, node) in cards {
        match found.iter_mut().find(|(known, _)| *known == identity) {
            // A node can have several cards of one kind.
            Some((_, nodes)) if nodes.last() == Some(&node) => {}
            Some((_, nodes)) => nodes.push(node),
            None => found.push((identity, vec![node])),
        }
    }
    found
}

/// Returns the identities of the node's functions, if Linux's own drivers are to be found for them.
fn stock_identities(options: &Options, machine: &Machine<'_>, node: &Node) -> Vec<PciIdentity> {
    if !options.guest.driver.allows_stock() {
        return Vec::new();
    }
    let functions = node.functions.iter();
    let identity = |number: u32| machine.identities.get(number as usize);
    functions.filter_map(|function| identity(function.id.0)).map(pci_identity).collect()
}

/// Returns the identity by which the guest's kernel looks for a driver.
fn pci_identity(identity: &Identity) -> PciIdentity {
    let &Identity { vendor, device, subsystem_vendor, subsystem, class, revision: _ } = identity;
    PciIdentity { vendor, device, subsystem_vendor, subsystem, class }
}

/// Returns the configuration of the guest of a node.
pub(super) fn guest_config(
    options: &Options,
    machine: &Machine<'_>,
    node: &Node,
    hardware: Hardware,
) -> Result<GuestConfig, Failure> {
    let Hardware { vmm, accelerator, driver } = hardware;
    let built = machine.built;
    let nodes_of_role = built.nodes.iter().filter(|other| other.role == node.role).count();
    let mut config = GuestConfig::new(&node.name)
        .boot_deadline(options.boot_timeout)
        .vmm(vmm)
        .accelerator(accelerator)
        .driver(driver)
        .iommu(options.guest.iommu || driver == Driver::Vfio)
        .memory(options.guest.memory)
        .processors(options.guest.cpus)
        .terminal(options.task == Task::Shell)
        .barriers(options.task != Task::Shell)
        .env("NICFORGE_ROLE", node.role.name())
        .env("NICFORGE_RANK", node.rank.to_string())
        .env("NICFORGE_SIZE", nodes_of_role.to_string())
        .env("NICFORGE_MACHINE", &built.name);

    for (name, value) in &node.environment {
        config = config.env(name, value);
    }

    for word in &options.guest.qemu_arguments {
        config = config.qemu_argument(word);
    }

    for ModuleWord { name, parameter } in &options.guest.kernel_modules {
        config = match parameter {
            Some(parameter) => config.module_parameter(name, parameter),
            None => config.module(name),
        };
    }

    for identity in stock_identities(options, machine, node) {
        config = config.driver_for(identity);
    }

    for attachment in node.attachments.iter().filter(|attachment| options.guest.admin || !attachment.admin) {
        config = config.function(Function {
            name: format!("{}.{}", node.name, attachment.name),
            socket: (machine.socket)(node, attachment)?,
            hotplug: options.guest.root_ports,
            user: !attachment.admin,
        });
    }

    for program in &options.contents.programs {
        config = config.program(program);
    }

    if let Some(share) = &options.contents.share {
        config = config.share(share.clone());
    }
    if let Some(logs) = &options.logs {
        config = config.logs(logs);
    }

    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_card_are_named_together() {
        let card = |device| PciIdentity { vendor: 1, device, subsystem_vendor: 0, subsystem: 0, class: 0 };
        let cards = [(card(1), "en0"), (card(1), "en0"), (card(2), "en0"), (card(1), "en1")];

        let found = nodes_by_identity(cards);

        assert_eq!(found, [(card(1), vec!["en0", "en1"]), (card(2), vec!["en0"])]);
    }
}
