//! The pset's world, and programs that open its devices.

use std::{
    cell::RefCell,
    error::Error,
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};

use nicforge_core::ids::FunctionId;
use nicforge_driver::runtime;
use nicforge_fcnp::{ComputeCore, Config, IoNode, tree::TreeChannel};
use nicforge_machine::{build, description};
use nicforge_nics::families;

use super::{Pset, PsetError};
use crate::{
    interrupted::Interrupted,
    world::{Devices, Process, World},
};

/// Virtual time after which an experiment counts as stuck.
const LIMIT: Duration = Duration::from_secs(20);
/// Time for which the I/O node serves after its last call, so that the last packets arrive.
const SERVE_AFTER_LAST_CALL: Duration = Duration::from_millis(1);

/// Maximum time by which the start of a core is late. It differs from core to core and by the
/// seed, as on a real machine.
const LATE_START: Duration = Duration::from_nanos(100);

/// The result of a program.
type Outcome = Result<(), Box<dyn Error>>;

/// A pset's world and the first failure of its programs.
pub(super) struct PsetRun<'a> {
    world: World,
    /// The process of the I/O node.
    io: Process,
    /// The process of the compute node.
    compute: Process,
    /// The first failure of a program.
    failure: Rc<RefCell<Option<PsetError>>>,
    interrupted: Interrupted<'a>,
}

impl<'a> PsetRun<'a> {
    /// Builds the machine, with one compute node, and a world without programs.
    pub(super) fn new(pset: &Pset<'a>) -> Result<Self, PsetError> {
        let text = format!(
            "name = \"pset\"\n[[pset]]\ncompute_nodes = 1\nfifo_depth = 8\n[pset.link]\n{}\n",
            pset.link
        );
        let plan = description::parse(&text, "the pset", &families())
            .map_err(|error| PsetError::Machine(error.to_string()))?;
        let (machine, built) = build::build(&plan).map_err(|error| PsetError::Machine(error.to_string()))?;
        let functions = |name: &str| -> Vec<FunctionId> {
            let node = built.node(name);
            node.map(|node| node.functions.iter().map(|own| own.id).collect()).unwrap_or_default()
        };

        let mut world = World::new(machine, pset.seed);
        let io = world.add_process(functions("io0"), pset.io.clone());
        let compute = world.add_process(functions("cn0"), pset.compute.clone());
        Ok(Self { world, io, compute, failure: Rc::default(), interrupted: pset.interrupted })
    }

    /// Starts a program that opens FCNP on the I/O node, runs each of `bodies` in a thread of its
    /// own, and serves for a while after the last one has ended.
    pub(super) fn start_io<F>(&mut self, config: Config, bodies: impl IntoIterator<Item = F>)
    where
        F: FnOnce(&IoNode) -> Result<(), nicforge_fcnp::Error> + Send + 'static,
    {
        let bodies: Vec<F> = bodies.into_iter().collect();
        self.start(self.io, "the I/O node", move |devices| {
            let node = Arc::new(IoNode::open(devices.open("io0", "core0")?, config)?);
            let (mut threads, first_error) = (Vec::new(), Arc::new(Mutex::new(None)));
            for body in bodies {
                let (node, first_error) = (node.clone(), first_error.clone());
                threads.push(runtime::spawn("an I/O thread", move || {
                    if let Err(error) = body(&node) {
                        runtime::lock(&first_error).get_or_insert(error);
                    }
                })?);
            }
            for thread in threads {
                thread.join();
            }

            runtime::sleep(SERVE_AFTER_LAST_CALL);
            let first_error = runtime::lock(&first_error).take();
            first_error.map_or(Ok(()), |error| Err(error.into()))
        });
    }

    /// Starts a program that begins late by a random time ([`LATE_START`]), opens FCNP on a compute
    /// core, and runs `body`.
    pub(super) fn start_core(
        &mut self,
        core: u8,
        config: Config,
        body: impl FnOnce(&ComputeCore) -> Result<(), nicforge_fcnp::Error> + 'static,
    ) {
        self.start(self.compute, "a compute core", move |devices| {
            let device = devices.open("cn0", &format!("core{core}"))?;
            let delay = runtime::random() % (LATE_START.as_nanos() as u64 + 1);
            runtime::sleep(Duration::from_nanos(delay));
            Ok(body(&ComputeCore::open(device, config)?)?)
        });
    }

    /// Starts a program on each side, with bare packets.
    pub(super) fn start_bare(
        &mut self,
        io: impl FnOnce(&TreeChannel) -> Outcome + 'static,
        compute: impl FnOnce(&TreeChannel) -> Outcome + 'static,
    ) {
        self.start(self.io, "the I/O node", move |devices| {
            io(&TreeChannel::open(devices.open("io0", "core0")?)?)
        });
        self.start(self.compute, "a compute core", move |devices| {
            compute(&TreeChannel::open(devices.open("cn0", "core0")?)?)
        });
    }

    /// Starts a program of a process. The first failure of any program is kept for
    /// [`Self::finish`].
    fn start(
        &mut self,
        process: Process,
        name: &'static str,
        body: impl FnOnce(&Devices) -> Outcome + 'static,
    ) {
        let (devices, failure) = (self.world.devices(), self.failure.clone());
        self.world.start(process, name, move || {
            if let Err(error) = body(&devices) {
                let error = PsetError::Program { program: name, error: error.to_string() };
                failure.borrow_mut().get_or_insert(error);
            }
        });
    }

    /// Runs the programs until all have ended. Returns the first failure of a program, or else that
    /// of the run.
    pub(super) fn finish(mut self) -> Result<(), PsetError> {
        let run_result = self.world.run_unless(LIMIT, &|| self.interrupted.is_interrupted());
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(run_result?),
        }
    }
}
