//! The measured machines: a pset of one compute node, served or in this process.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc::channel},
    time::{Duration, Instant},
};

use nicforge::{
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nicforge_driver::{Cancel, Device};
use nicforge_family::Plan;
use nicforge_machine::in_process::LocalMachine;

use super::{
    BENCH,
    flow::{self, Endpoint},
    task::{FlowTimes, Side, Task},
    tree,
};
use crate::{
    bench::Run,
    machine::{build, describe, open_in_process, serve},
    placement::{self, Placement},
};

/// How long a measurement in this process may take.
const MEASUREMENT_TIMEOUT: Duration = Duration::from_secs(120);
/// The interval between two checks for Ctrl-C.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the description of a pset with one compute node.
fn plan(fifo_depth: u32) -> Result<Plan, Failure> {
    let name = format!("{}-{fifo_depth}", BENCH.name);
    describe(&name, &format!("[[pset]]\ncompute_nodes = 1\nfifo_depth = {fifo_depth}\n"))
}

/// A served machine.
pub(super) struct Machine {
    served: Served,
    pub(super) fifo_depth: u32,
}

impl Machine {
    /// Serves a machine, with the engine on the processor of the placement.
    pub(super) fn serve(run: &Run<'_>, fifo_depth: u32, placement: &Placement) -> Result<Self, Failure> {
        Ok(Self { served: serve(run, &plan(fifo_depth)?, placement)?, fifo_depth })
    }

    /// Returns the sockets of the cores that `side` uses.
    pub(super) fn sockets(&self, side: Side) -> Result<Vec<PathBuf>, Failure> {
        let role = if side == Side::Io { "io" } else { "compute" };
        let Some(node) = self.served.built().nodes.iter().find(|node| node.role.name() == role) else {
            return Ok(Vec::new());
        };
        let cores = if side == Side::Io { 1 } else { 2 };
        node.users().take(cores).map(|attachment| self.served.socket(node, attachment)).collect()
    }

    /// Ends the engine, and returns its error if it has failed.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.served.stop()
    }
}

/// A machine in this process.
pub(super) struct InProcessMachine {
    machine: Arc<LocalMachine>,
    pub(super) fifo_depth: u32,
}

impl InProcessMachine {
    /// Builds a machine.
    pub(super) fn new(fifo_depth: u32) -> Result<Self, Failure> {
        let (machine, _) = build(&plan(fifo_depth)?)?;
        Ok(Self { machine: LocalMachine::new(machine), fifo_depth })
    }

    /// Opens the devices that `side` uses: the I/O node's core, or the first `compute_cores` cores
    /// of the compute node.
    fn open_devices(&self, side: Side, compute_cores: u32) -> Result<Vec<Device>, Failure> {
        let (node, cores) = if side == Side::Io { ("io0", 1) } else { ("cn0", compute_cores) };
        (0..cores).map(|core| open_in_process(&self.machine, node, &format!("core{core}"))).collect()
    }

    /// Pins the calling thread to the processor of a side, and opens the side's end of a task's
    /// path.
    fn open_endpoint(
        &self,
        side: Side,
        task: &Task,
        placement: &Placement,
        cancel: &Cancel,
    ) -> Result<Box<dyn Endpoint + Send>, Failure> {
        placement.processor_of(side.name()).map_or(Ok(()), placement::pin)?;
        tree::open(side, task, self.open_devices(side, task.compute_cores)?, cancel)
    }

    /// Makes one measurement, with a thread for each side.
    pub(super) fn measure(
        &self,
        run: &Run<'_>,
        task: &Task,
        placement: &Placement,
    ) -> Result<FlowTimes, Failure> {
        let cancel = Cancel::new().context(|| "starting".into())?;
        let both_sides = std::sync::Barrier::new(2);
        let (result_sender, results) = channel();

        std::thread::scope(|scope| {
            for side in [Side::Io, Side::Compute] {
                let (result_sender, cancel, both_sides) = (result_sender.clone(), &cancel, &both_sides);
                scope.spawn(move || {
                    let endpoint = self.open_endpoint(side, task, placement, cancel);

                    // No side sends before both are open.
                    both_sides.wait();
                    let measured = match &endpoint {
                        Ok(endpoint) => flow::run(endpoint.as_ref(), side, task),
                        Err(failure) => Err(failure.clone()),
                    };

                    let failed = measured.is_err();
                    // The receiving end exists until this scope ends.
                    let _ = result_sender.send(measured);
                    if failed {
                        cancel.cancel();
                    }

                    // No side closes before both have finished.
                    both_sides.wait();
                });
            }

            let start = Instant::now();
            let mut all = Ok(FlowTimes::default());
            let mut missing = 2;

            // Both results come also after Ctrl-C or the time-out, because those end the waits.
            while missing > 0 {
                if let Ok(measured) = results.recv_timeout(CHECK_INTERVAL) {
                    missing -= 1;
                    all = all.and_then(|all: FlowTimes| Ok(all.and(measured?)));
                }

                let stopped = run.check().and_then(|()| {
                    if start.elapsed() < MEASUREMENT_TIMEOUT { Ok(()) } else { Err(timed_out(task)) }
                });
                if let Err(failure) = stopped {
                    cancel.cancel();
                    all = all.and(Err(failure));
                }
            }
            all
        })
    }
}

/// Returns the failure of a measurement that took too long.
fn timed_out(task: &Task) -> Failure {
    Failure::environment(format!(
        "{} in process was not done within {MEASUREMENT_TIMEOUT:?}",
        task.path.name()
    ))
}
