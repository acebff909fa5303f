//! Builds a machine from a plan.

use nicforge_core::{
    fabric::{FabricError, PortCount},
    ids::{AttachmentId, FunctionId},
    machine::Machine,
    spec::SpecError,
};
use nicforge_family::{CounterColumn, DeviceError, Plan, PlannedFunction, Role};
use thiserror::Error;

/// An attachment of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAttachment {
    /// The function that it belongs to.
    pub function: FunctionId,
    /// Its number in the function.
    pub id: AttachmentId,
    /// Its name in the node, such as `core0`, or `torus.core0` of a function with a name of its
    /// own.
    pub name: String,
    /// Whether it is the admin attachment of its function, which a node's kernel uses.
    pub admin: bool,
}

/// A function of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFunction {
    /// Its number in the machine.
    pub id: FunctionId,
    /// Its name in the node. It is `None` for a function that has its node's name.
    pub name: Option<String>,
}

/// A node of a machine: one or several functions with a name in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, such as `io0` or `cn3`.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its number among the nodes of its role.
    pub rank: u32,
    /// Its functions.
    pub functions: Vec<NodeFunction>,
    /// The attachments of all its functions. A hub or switch has none.
    pub attachments: Vec<NodeAttachment>,
    /// Environment variables of programs on this node: names and values.
    pub environment: Vec<(String, String)>,
}

impl Node {
    /// Returns the attachments that programs use.
    pub fn users(&self) -> impl Iterator<Item = &NodeAttachment> {
        self.attachments.iter().filter(|attachment| !attachment.admin)
    }

    /// Returns whether a function belongs to this node.
    pub fn has_function(&self, function: FunctionId) -> bool {
        self.functions.iter().any(|own| own.id == function)
    }

    /// Adds a function of `machine`, and its attachments. `name` is the function's name in the
    /// node, and `admin` its admin attachment, if it has either.
    fn add_function(
        &mut self,
        machine: &Machine,
        id: FunctionId,
        name: Option<&str>,
        admin: Option<AttachmentId>,
    ) {
        let attachments = machine.spec(id).map(|spec| spec.attachments.as_slice()).unwrap_or_default();

        self.attachments.extend(attachments.iter().zip(0..).map(|(spec, number)| NodeAttachment {
            function: id,
            id: AttachmentId(number),
            name: name.map_or_else(|| spec.name.clone(), |name| format!("{name}.{}", spec.name)),
            admin: admin == Some(AttachmentId(number)),
        }));
        self.functions.push(NodeFunction { id, name: name.map(str::to_owned) });
    }
}

/// The names and nodes of a machine that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The machine's name.
    pub name: String,
    /// Its nodes, in the order of the plan.
    pub nodes: Vec<Node>,
    /// The columns that `stat` shows beside those of all machines.
    pub columns: Vec<CounterColumn>,
}

impl Built {
    /// Returns the nodes of a machine that was made without a plan: each function is a node with
    /// its name, in the role of a single device, and without an admin attachment.
    pub fn of_machine(name: &str, machine: &Machine) -> Self {
        let node_of = |(id, rank)| {
            let mut node = Node {
                name: machine.name(id).unwrap_or_default().to_owned(),
                role: Role::DEVICE,
                rank,
                functions: Vec::new(),
                attachments: Vec::new(),
                environment: Vec::new(),
            };
            node.add_function(machine, id, None, None);
            node
        };

        let functions = (0..machine.functions()).map(FunctionId).zip(0..);
        Self { name: name.to_owned(), nodes: functions.map(node_of).collect(), columns: Vec::new() }
    }

    /// Returns the node called `name`.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

/// The reason why no machine can be built from a plan.
#[derive(Debug, Error)]
pub enum BuildError {
    /// A device's own specification is invalid, which is a defect of the device.
    #[error("device {name}: {source}")]
    Spec {
        /// The function's name.
        name: String,
        /// The defect.
        source: SpecError,
    },
    /// A device's configuration is impossible.
    #[error("device {name}: {source}")]
    Device {
        /// The function's name.
        name: String,
        /// The reason.
        source: DeviceError,
    },
    /// A link names a port that its device does not have.
    #[error("[[link]]: {name}:{port} is no port of the device: {}", PortCount(*ports))]
    NoPort {
        /// The function's name.
        name: String,
        /// Number of the port.
        port: u8,
        /// Number of ports that the device has.
        ports: u8,
    },
    /// A port has two links, or a link's end does not exist.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// Builds a machine. Its devices are new: a plan can be built several times.
///
/// # Errors
/// [`BuildError`]. Plans of the families and kinds that come with nicforge cause none, except where
/// a device's file or socket is not accessible.
pub fn build(plan: &Plan) -> Result<(Machine, Built), BuildError> {
    let mut machine = Machine::new();
    let mut nodes: Vec<Node> = plan
        .nodes()
        .iter()
        .map(|node| Node {
            name: node.name.clone(),
            role: node.role,
            rank: node.rank,
            functions: Vec::new(),
            attachments: Vec::new(),
            environment: node.environment.clone(),
        })
        .collect();

    // The machine's number of each function, in the order of the plan.
    let mut ids = Vec::with_capacity(plan.functions().len());
    for function in plan.functions() {
        let id = add_device(&mut machine, plan, function)?;
        if let Some(node) = nodes.get_mut(function.node) {
            node.add_function(&machine, id, function.name.as_deref(), function.source.admin());
        }
        ids.push(id);
    }

    for planned in plan.links() {
        let [a, b] = [planned.a, planned.b].map(|(function, port)| (ids[function.index()], port));
        let connected = machine.fabric().connect(a, b, planned.link.clone());
        connected.map_err(|error| match error {
            FabricError::NoPort { function, port, ports } => BuildError::NoPort {
                name: machine.name(function).unwrap_or_default().to_owned(),
                port,
                ports,
            },
            error => BuildError::Fabric(error),
        })?;
    }

    Ok((machine, Built { name: plan.name().to_owned(), nodes, columns: plan.columns().to_vec() }))
}

/// Makes the device of a function, and adds it to the machine. The fabric learns the size of the
/// device's packets first.
fn add_device(
    machine: &mut Machine,
    plan: &Plan,
    function: &PlannedFunction,
) -> Result<FunctionId, BuildError> {
    let name = plan.full_name(function);
    if let Some(bytes) = function.source.max_packet() {
        machine.fabric().add_packet_size(bytes)?;
    }

    let device = match function.source.make() {
        Ok(device) => device,
        Err(source) => return Err(BuildError::Device { name, source }),
    };
    machine.add_function(&name, device).map_err(|source| BuildError::Spec { name, source })
}

#[cfg(test)]
mod tests;
