//! The plan of a machine: its nodes, their functions, and the links between them.
//!
//! A plan is data. Families write into it what a machine file describes, and a program can write
//! one by hand. Each call checks what it adds, so that a plan contains nothing twice and no link
//! between ports that do not exist.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use nicforge_core::fabric::{LinkSpec, MAX_FUNCTIONS, MAX_PORTS};

use crate::{CounterColumn, DeviceSource, PlanError, Role};

/// Longest name of a machine, node or function in bytes.
pub const MAX_NAME: usize = 32;
/// Maximum number of packets of buffer that all links of a machine have together. Each takes a few
/// bytes from the start.
pub(crate) const MAX_BUFFERS: u64 = 1 << 23;
/// Start of the names of the environment variables that nicforge itself sets.
const OWN_VARIABLES: &str = "NICFORGE_";
/// Maximum number of functions that an error names.
const MAX_NAMED: usize = 20;

/// A node of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeKey(usize);

/// A function of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FunctionKey(usize);

impl FunctionKey {
    /// Returns the function's index in [`Plan::functions`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A port of a function: the function, and the number of the port.
pub type PortKey = (FunctionKey, u8);

/// A node of a plan.
#[derive(Clone, Debug)]
pub struct PlannedNode {
    /// Name in sockets and tables.
    pub name: String,
    /// Role in the machine.
    pub role: Role,
    /// Its number among the nodes of its role.
    pub rank: u32,
    /// Environment variables of the programs on this node: names and values.
    pub environment: Vec<(String, String)>,
}

/// A function of a plan.
#[derive(Clone, Debug)]
pub struct PlannedFunction {
    /// Index of its node in [`Plan::nodes`].
    pub node: usize,
    /// Name within its node. It is `None` for a function that has its node's name.
    pub name: Option<String>,
    /// Makes its device.
    pub source: DeviceSource,
}

/// A link of a plan.
#[derive(Clone, Debug)]
pub struct PlannedLink {
    /// One end.
    pub a: PortKey,
    /// The other end.
    pub b: PortKey,
    /// Its properties.
    pub link: LinkSpec,
}

/// The plan of a machine. The module documentation states what it is.
///
/// A node usually has one function, which has the node's name: [`Plan::single`]. A node with
/// several functions is made by [`Plan::node`] and [`Plan::function`]. Function `torus` of node
/// `n0` is called `n0.torus`, and the socket of its attachment `core1` is `n0.torus.core1`.
#[derive(Clone, Debug)]
pub struct Plan {
    name: String,
    nodes: Vec<PlannedNode>,
    functions: Vec<PlannedFunction>,
    links: Vec<PlannedLink>,
    columns: Vec<CounterColumn>,
    /// Nodes by name.
    node_names: BTreeMap<String, NodeKey>,
    /// Functions by full name.
    function_names: BTreeMap<String, FunctionKey>,
    /// Number of nodes of each role.
    ranks: BTreeMap<&'static str, u32>,
    /// Ports that have a link.
    linked_ports: BTreeSet<PortKey>,
    /// Packets of buffer of all links, in both directions.
    buffers: u64,
}

impl Plan {
    /// Returns the plan of a machine without nodes.
    ///
    /// # Errors
    /// [`PlanError::Name`].
    pub fn new(name: &str) -> Result<Self, PlanError> {
        check_name(name)?;
        Ok(Self {
            name: name.to_owned(),
            nodes: Vec::new(),
            functions: Vec::new(),
            links: Vec::new(),
            columns: Vec::new(),
            node_names: BTreeMap::new(),
            function_names: BTreeMap::new(),
            ranks: BTreeMap::new(),
            linked_ports: BTreeSet::new(),
            buffers: 0,
        })
    }

    /// Adds a node without functions. Its rank is the next of its role.
    ///
    /// # Errors
    /// [`PlanError::Name`] and [`PlanError::NameTaken`].
    pub fn node(&mut self, name: &str, role: Role) -> Result<NodeKey, PlanError> {
        check_name(name)?;
        let key = NodeKey(self.nodes.len());
        match self.node_names.entry(name.to_owned()) {
            Entry::Vacant(entry) => entry.insert(key),
            Entry::Occupied(_) => return Err(PlanError::NameTaken { name: name.to_owned() }),
        };

        let next_rank = self.ranks.entry(role.name()).or_default();
        let rank = *next_rank;
        *next_rank += 1;

        self.nodes.push(PlannedNode { name: name.to_owned(), role, rank, environment: Vec::new() });
        Ok(key)
    }

    /// Adds a function with a name of its own to a node.
    ///
    /// # Errors
    /// [`PlanError::Name`], [`PlanError::FunctionTaken`], [`PlanError::Functions`] and
    /// [`PlanError::NoNode`].
    pub fn function(
        &mut self,
        node: NodeKey,
        name: &str,
        source: DeviceSource,
    ) -> Result<FunctionKey, PlanError> {
        check_name(name)?;
        let Some(owner) = self.nodes.get(node.0) else { return Err(PlanError::NoNode) };
        let full_name = format!("{}.{name}", owner.name);
        if self.function_names.contains_key(&full_name) {
            return Err(PlanError::FunctionTaken { name: name.to_owned(), node: owner.name.clone() });
        }

        self.push_function(node, full_name, Some(name.to_owned()), source)
    }

    /// Adds a node and a function that has the node's name.
    ///
    /// # Errors
    /// The errors of [`Plan::node`], and [`PlanError::Functions`].
    pub fn single(&mut self, name: &str, role: Role, source: DeviceSource) -> Result<FunctionKey, PlanError> {
        let node = self.node(name, role)?;
        self.push_function(node, name.to_owned(), None, source)
    }

    /// Adds a function to a node, if the machine has room for it. The caller has checked that no
    /// other function has its name.
    fn push_function(
        &mut self,
        node: NodeKey,
        full_name: String,
        name: Option<String>,
        source: DeviceSource,
    ) -> Result<FunctionKey, PlanError> {
        if self.functions.len() >= MAX_FUNCTIONS as usize {
            return Err(PlanError::Functions);
        }

        let key = FunctionKey(self.functions.len());
        self.function_names.insert(full_name, key);
        self.functions.push(PlannedFunction { node: node.0, name, source });
        Ok(key)
    }

    /// Connects two ports.
    ///
    /// # Errors
    /// The errors of [`Plan::check_port`] for both ends, [`PlanError::SamePort`], and
    /// [`PlanError::Channels`], [`PlanError::Credits`], [`PlanError::Packet`] and
    /// [`PlanError::LinkUnits`] for the link's own values. [`PlanError::Buffers`] if the machine's
    /// links have too many buffers together.
    pub fn link(&mut self, a: PortKey, b: PortKey, link: LinkSpec) -> Result<(), PlanError> {
        self.check_port(a)?;
        self.check_port(b)?;
        if a == b {
            return Err(PlanError::SamePort { port: self.port_name(a) });
        }

        link.check()?;

        // A link has the buffers of its virtual channels twice, one set for each direction.
        let of_direction: u64 = link.credits.iter().map(|&credits| u64::from(credits)).sum();
        let buffers = self.buffers + 2 * of_direction;
        if buffers > MAX_BUFFERS {
            return Err(PlanError::Buffers { buffers });
        }

        self.buffers = buffers;
        self.linked_ports.extend([a, b]);
        self.links.push(PlannedLink { a, b, link });
        Ok(())
    }

    /// Checks that a port exists and has no link yet.
    ///
    /// # Errors
    /// [`PlanError::NoFunction`], [`PlanError::NoPort`] and [`PlanError::PortTaken`].
    pub fn check_port(&self, port: PortKey) -> Result<(), PlanError> {
        let (function, number) = port;
        if function.0 >= self.functions.len() {
            return Err(PlanError::NoFunction {
                name: "of another plan".into(),
                some: self.some_functions(),
            });
        }
        if number >= MAX_PORTS {
            return Err(PlanError::NoPort { port: self.port_name(port) });
        }
        if self.linked_ports.contains(&port) {
            return Err(PlanError::PortTaken { port: self.port_name(port) });
        }

        Ok(())
    }

    /// Sets an environment variable of the programs that `run` and `boot` start on a node.
    ///
    /// # Errors
    /// [`PlanError::Variable`] and [`PlanError::NoNode`].
    pub fn environment(&mut self, node: NodeKey, name: &str, value: &str) -> Result<(), PlanError> {
        let is_valid_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && name.bytes().next().is_some_and(|first| !first.is_ascii_digit());
        if !is_valid_name || name.starts_with(OWN_VARIABLES) || value.contains('\0') {
            return Err(PlanError::Variable { name: name.to_owned() });
        }

        let node = self.nodes.get_mut(node.0).ok_or(PlanError::NoNode)?;
        node.environment.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Adds columns for `stat`.
    pub fn add_columns(&mut self, columns: &[CounterColumn]) {
        for column in columns {
            if !self.columns.contains(column) {
                self.columns.push(*column);
            }
        }
    }

    /// Returns the node of a name.
    pub fn find_node(&self, name: &str) -> Option<NodeKey> {
        self.node_names.get(name).copied()
    }

    /// Returns the function of a name: `NODE`, or `NODE.FUNCTION` for one with a name of its own.
    ///
    /// # Errors
    /// [`PlanError::NoFunction`].
    pub fn find_function(&self, name: &str) -> Result<FunctionKey, PlanError> {
        self.function_names
            .get(name)
            .copied()
            .ok_or_else(|| PlanError::NoFunction { name: name.to_owned(), some: self.some_functions() })
    }

    /// Returns the machine's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the nodes in the order in which they were added.
    pub fn nodes(&self) -> &[PlannedNode] {
        &self.nodes
    }

    /// Returns the functions in the order in which they were added.
    pub fn functions(&self) -> &[PlannedFunction] {
        &self.functions
    }

    /// Returns the links in the order in which they were added.
    pub fn links(&self) -> &[PlannedLink] {
        &self.links
    }

    /// Returns the columns for `stat`.
    pub fn columns(&self) -> &[CounterColumn] {
        &self.columns
    }

    /// Returns the full name of a function: that of its node, or `NODE.FUNCTION`.
    pub fn full_name(&self, function: &PlannedFunction) -> String {
        let node = self.nodes.get(function.node).map_or("", |node| node.name.as_str());
        match &function.name {
            Some(name) => format!("{node}.{name}"),
            None => node.to_owned(),
        }
    }

    /// Returns a port as errors name it: `FUNCTION:PORT`.
    fn port_name(&self, (function, port): PortKey) -> String {
        let name = self.functions.get(function.0).map(|function| self.full_name(function));
        format!("{}:{port}", name.unwrap_or_default())
    }

    /// Returns the names of the first functions, for an error.
    fn some_functions(&self) -> String {
        let mut names: Vec<_> =
            self.functions.iter().take(MAX_NAMED).map(|function| self.full_name(function)).collect();
        if self.functions.len() > MAX_NAMED {
            names.push("...".to_owned());
        }
        names.join(", ")
    }
}

/// Checks the name of a machine, node or function: its length and its characters.
fn check_name(name: &str) -> Result<(), PlanError> {
    let is_valid = (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_valid { Ok(()) } else { Err(PlanError::Name { name: name.to_owned() }) }
}
