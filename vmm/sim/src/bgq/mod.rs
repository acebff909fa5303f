//! Blue Gene/Q nodes and programs on them, in virtual time.
//!
//! The programs use the SPI as on a host. [`programs`] and [`all_to_all`] are those of the paper's
//! benchmarks.

pub mod all_to_all;
pub mod programs;

use std::{cell::RefCell, fmt::Write, rc::Rc, time::Duration};

use nicforge::failure::Failure;
use nicforge_core::ids::FunctionId;
use nicforge_driver::runtime::{self, Instant};
use nicforge_hwi::{mu::DEVICE_CONTROL, nd_dcr};
use nicforge_machine::{
    build::{self, BuildError},
    description::{self, DescriptionError},
};
use nicforge_nics::families;
use nicforge_spi::{Error as SpiError, Kernel, Options, Subgroup};
use thiserror::Error;

use crate::{
    interrupted::Interrupted,
    world::{DeviceError, Devices, Picos, Profile, World, WorldError},
};

/// Virtual time after which a program counts as stuck.
const LIMIT: Duration = Duration::from_secs(20);
/// Time at which the programs begin. All nodes have set their registers before.
const BEGIN: Duration = Duration::from_millis(2);

/// The reason why a program has no result.
#[derive(Debug, Error)]
pub enum BlueGeneError {
    /// The simulation did not end.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The machine's description is wrong.
    #[error(transparent)]
    Description(#[from] DescriptionError),
    /// The machine could not be built.
    #[error("the machine cannot be built: {0}")]
    Build(#[from] BuildError),
    /// A node's program failed.
    #[error("node {node}: {error}")]
    Node {
        /// The node.
        node: u32,
        /// Its error.
        error: NodeError,
    },
}

impl From<BlueGeneError> for Failure {
    fn from(error: BlueGeneError) -> Self {
        match error {
            BlueGeneError::World(error) => error.into(),
            _ => Self::result(error.to_string()),
        }
    }
}

/// The reason why a node's program failed.
#[derive(Debug, Error)]
pub enum NodeError {
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The SPI failed.
    #[error(transparent)]
    Spi(#[from] SpiError),
}

impl From<nicforge_spi::DescriptorError> for NodeError {
    fn from(error: nicforge_spi::DescriptorError) -> Self {
        Self::Spi(error.into())
    }
}

impl From<nicforge_driver::Error> for NodeError {
    fn from(error: nicforge_driver::Error) -> Self {
        Self::Spi(error.into())
    }
}

/// The modelled machine and its software.
#[derive(Clone, Debug)]
pub struct BlueGene<'a> {
    /// Nodes in the dimensions A to E.
    pub shape: [u32; 5],
    /// Whether the dimensions are closed to rings.
    pub wraps: [bool; 5],
    /// Application subgroups of a node, at least 1.
    pub subgroups: u16,
    /// Further keys and values of the section `[[bgq]]` of a machine file.
    pub unit: String,
    /// Keys and values of its section `[bgq.link]`.
    pub link: String,
    /// Costs of the processes.
    pub profile: Profile,
    /// Determines the random numbers of the libraries.
    pub seed: u64,
    /// The check of whether the user has ended the run.
    pub interrupted: Interrupted<'a>,
}

/// A node's end of the network.
pub struct Node {
    /// The kernel's attachment.
    pub kernel: Kernel,
    /// The first application subgroup.
    pub subgroup: Subgroup,
    /// The other application subgroups.
    pub others: Vec<Subgroup>,
    /// Time at which its thread has begun: the beginning of the simulation.
    began: Instant,
}

/// The result of a node, with its number.
type NodeResult<R> = (u32, Result<R, NodeError>);

impl BlueGene<'_> {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.shape.iter().product()
    }

    /// Returns the text of the machine file.
    fn text(&self) -> String {
        let mut text = format!(
            "name = \"bgq\"\n[[bgq]]\ntorus = {:?}\nwrap = {:?}\nsubgroups = {}\n",
            self.shape, self.wraps, self.subgroups
        );
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}\n[bgq.link]\n{}", self.unit, self.link);
        text
    }

    /// Runs a program on each of `nodes`. The routers of the other nodes only forward packets.
    /// Returns the results in the order of the nodes' numbers.
    ///
    /// # Errors
    /// [`BlueGeneError`].
    pub fn run<R: 'static>(
        &self,
        nodes: impl IntoIterator<Item = u32>,
        program: impl Fn(&mut Node) -> Result<R, NodeError> + 'static,
    ) -> Result<Vec<R>, BlueGeneError> {
        let plan = description::parse(&self.text(), "the nodes", &families())?;
        let (machine, built) = build::build(&plan)?;
        let mut world = World::new(machine, self.seed);
        let program = Rc::new(program);
        let outcomes: Rc<RefCell<Vec<NodeResult<R>>>> = Rc::default();

        for number in nodes {
            let name = format!("bgq{number}");
            let functions: Vec<FunctionId> = built
                .node(&name)
                .map(|node| node.functions.iter().map(|function| function.id).collect())
                .unwrap_or_default();
            let process = world.add_process(functions, self.profile.clone());

            let (devices, program, outcomes) = (world.devices(), program.clone(), outcomes.clone());
            let subgroups = self.subgroups;
            world.start(process, &format!("node {number}"), move || {
                let result = Node::open(&devices, &name, subgroups).and_then(|mut node| program(&mut node));
                outcomes.borrow_mut().push((number, result));
            });
        }

        // Nodes would wait in vain for one that has failed, so its failure ends the run.
        let has_failed = || outcomes.borrow().iter().any(|(_, outcome)| outcome.is_err());
        let run_result = world.run_unless(LIMIT, &|| has_failed() || self.interrupted.is_interrupted());
        results(outcomes.take(), run_result)
    }
}

/// Returns the results of all nodes in their order, or the first error. The error of a node comes
/// before that of the run, which it has caused.
fn results<R>(
    outcomes: Vec<NodeResult<R>>,
    run_result: Result<(), WorldError>,
) -> Result<Vec<R>, BlueGeneError> {
    let mut results = Vec::new();
    for (node, outcome) in outcomes {
        results.push((node, outcome.map_err(|error| BlueGeneError::Node { node, error })?));
    }

    run_result?;
    results.sort_by_key(|(node, _)| *node);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

impl Node {
    /// Opens the kernel's attachment and the subgroups of the node called `name`.
    fn open(devices: &Devices, name: &str, subgroups: u16) -> Result<Self, NodeError> {
        let began = Instant::now();
        let kernel = Kernel::open(&devices.open(name, "kernel")?)?;
        let open = |number: u16| -> Result<Subgroup, NodeError> {
            Ok(Subgroup::open(&devices.open(name, &format!("s{number}"))?, Options::default())?)
        };

        let subgroup = open(0)?;
        let others = (1..subgroups).map(open).collect::<Result<_, _>>()?;
        Ok(Self { kernel, subgroup, others, began })
    }

    /// Returns all application subgroups, in their order.
    fn all_subgroups(&mut self) -> impl Iterator<Item = &mut Subgroup> {
        std::iter::once(&mut self.subgroup).chain(&mut self.others)
    }

    /// Sets the number of packets from links that an output sends between two injected ones, 1 to
    /// 16.
    fn set_through_ratio(&self, ratio: u8) -> Result<(), NodeError> {
        const FIELD_MASK: u64 = 0xf << nd_dcr::THROUGH_RATIO_SHIFT;
        // The offset of the register among the device control registers.
        const REGISTER: u64 = nd_dcr::BASE - DEVICE_CONTROL + nd_dcr::CTRL_INTERNAL;

        let other_fields = self.kernel.control(REGISTER)? & !FIELD_MASK;
        // The field has the number less one.
        let field = u64::from(ratio.clamp(1, 16) - 1) << nd_dcr::THROUGH_RATIO_SHIFT;
        Ok(self.kernel.set_control(REGISTER, other_fields | field)?)
    }

    /// Waits until [`BEGIN`], when all nodes have set their registers. So all programs begin at the
    /// same time.
    fn wait_for_begin(&self) {
        runtime::sleep(BEGIN.saturating_sub(self.began.elapsed()));
    }
}

/// Returns the mean time of `rounds` rounds that have begun at `began` and end now.
fn mean_since(began: Instant, rounds: u32) -> Picos {
    Picos::from(began.elapsed() / rounds.max(1))
}
