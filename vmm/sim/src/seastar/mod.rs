//! Nodes with SeaStars and programs on them, in virtual time.
//!
//! Each node has one process, which uses the Portals library as on a host. [`programs`] are those
//! of the paper's benchmarks.

pub mod programs;

use std::{cell::RefCell, fmt::Write, rc::Rc, sync::Arc, time::Duration};

use nicforge_core::ids::FunctionId;
use nicforge_driver::runtime::{self, Instant};
use nicforge_machine::{
    build::{self, BuildError},
    description::{self, DescriptionError},
};
use nicforge_nics::families;
use nicforge_portals::{Error as PortalsError, Interface, Kernel, KernelConfig, Mode};
use thiserror::Error;

use crate::world::{DeviceError, Profile, World, WorldError};

/// Virtual time after which a program counts as stuck.
const LIMIT: Duration = Duration::from_secs(20);
/// Time after which all nodes have booted. Messages to a node that has not booted fail.
const BOOT: Duration = Duration::from_millis(2);
/// Time between two calls for progress of a node that only handles messages of others.
const PROGRESS_INTERVAL: Duration = Duration::from_micros(10);
/// Time for which a node stays after its program, so that the last messages are acknowledged.
const LINGER: Duration = Duration::from_millis(1);

/// The reason why a program has no result.
#[derive(Debug, Error)]
pub enum SeaStarsError {
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

/// The reason why a node's program failed.
#[derive(Debug, Error)]
pub enum NodeError {
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The Portals library failed.
    #[error(transparent)]
    Portals(#[from] PortalsError),
    /// A message failed, or another event came than the program waits for.
    #[error("unexpected event: {0}")]
    Event(String),
}

/// The modelled machine and its software.
#[derive(Clone, Debug)]
pub struct SeaStars {
    /// The nodes of a line, which is a ring if it is closed: Red Storm's torus in the dimension z.
    pub nodes: u32,
    /// Keys and values of the section `[[seastar]]` of a machine file.
    pub card: String,
    /// Keys and values of its section `[seastar.link]`.
    pub link: String,
    /// Where messages are matched.
    pub mode: Mode,
    /// Costs of the processes and kernels.
    pub profile: Profile,
    /// Determines the random numbers of the libraries.
    pub seed: u64,
}

/// A node's end of the network.
pub struct Node {
    /// Its interface.
    pub interface: Interface,
    /// Number of the node.
    pub number: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Time at which its thread has begun: the beginning of the simulation.
    began: Instant,
}

/// The result of a node, with its number.
type NodeResult<R> = (u32, Result<R, NodeError>);

impl SeaStars {
    /// Returns the text of the machine file.
    fn text(&self) -> String {
        let mut text = format!("name = \"seastars\"\n[[seastar]]\ntorus = [1, 1, {}]\n", self.nodes);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}\n[seastar.link]\n{}", self.card, self.link);
        text
    }

    /// Runs a program on each node, after all have booted. Returns the results in the order of the
    /// nodes' numbers.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn run<R: 'static>(
        &self,
        program: impl Fn(&Node) -> Result<R, NodeError> + 'static,
    ) -> Result<Vec<R>, SeaStarsError> {
        let plan = description::parse(&self.text(), "the SeaStars", &families())?;
        let (machine, built) = build::build(&plan)?;
        let mut world = World::new(machine, self.seed);
        let program = Rc::new(program);
        let outcomes: Rc<RefCell<Vec<NodeResult<R>>>> = Rc::default();

        for number in 0..self.nodes {
            let name = format!("ss{number}");
            let functions: Vec<FunctionId> = built
                .node(&name)
                .map(|node| node.functions.iter().map(|function| function.id).collect())
                .unwrap_or_default();
            let process = world.add_process(functions, self.profile.clone());

            let (devices, mode, nodes) = (world.devices(), self.mode, self.nodes);
            let (program, outcomes) = (program.clone(), outcomes.clone());
            world.start(process, &format!("node {number}"), move || {
                let began = Instant::now();
                let open = || -> Result<(Arc<Kernel>, Interface), NodeError> {
                    let kernel = Kernel::boot(devices.open(&name, "kernel")?, KernelConfig::default())?;
                    let interface = Interface::open(&kernel, devices.open(&name, "p0")?, mode)?;
                    Ok((kernel, interface))
                };

                let result = open().and_then(|(_kernel, interface)| {
                    runtime::sleep(BOOT);
                    let node = Node { interface, number, nodes, began };
                    let result = program(&node)?;
                    node.stay_until(began.elapsed() + LINGER)?;
                    Ok(result)
                });
                outcomes.borrow_mut().push((number, result));
            });
        }

        // Nodes would wait in vain for one that has failed, so its failure ends the run, and comes
        // before the run's own error.
        let has_failed = || outcomes.borrow().iter().any(|(_, outcome)| outcome.is_err());
        let run_result = world.run_unless(LIMIT, &has_failed);
        let mut results = Vec::new();
        for (node, outcome) in outcomes.take() {
            results.push((node, outcome.map_err(|error| SeaStarsError::Node { node, error })?));
        }
        run_result?;
        results.sort_by_key(|(node, _)| *node);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }
}

impl Node {
    /// Handles messages until a time since the beginning of the simulation. All nodes continue at
    /// the same time.
    fn stay_until(&self, time: Duration) -> Result<(), NodeError> {
        while let remaining = time.saturating_sub(self.began.elapsed())
            && !remaining.is_zero()
        {
            self.interface.progress()?;
            runtime::sleep(remaining.min(PROGRESS_INTERVAL));
        }
        Ok(())
    }
}
