//! Starts and controls the child processes from the parent.

use std::time::Duration;

use nicforge::failure::{ErrorContext, Failure};
use tempfile::TempDir;

use super::{
    BENCH,
    machine::Machine,
    task::{Addresses, Answer, FlowTimes, Middle, Order, Side, Task},
};
use crate::{
    bench::Run,
    placement::Placement,
    process::{self, Workers},
};

/// How long a child may take to carry out an order.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The processes of a measurement.
const SIDES: [Side; 3] = [Side::Io, Side::Compute, Side::Relay];

/// The child processes. Dropping this value ends them.
pub(super) struct Children {
    /// The processes of [`SIDES`], in that order.
    workers: Workers<Answer>,
    /// The addresses at which they listen.
    addresses: [Option<Addresses>; SIDES.len()],
    /// The folder of the children's sockets. It is removed after the children have ended.
    folder: TempDir,
}

impl Children {
    /// Starts all child processes.
    pub(super) fn start(run: &Run<'_>) -> Result<Self, Failure> {
        // The folder is accessible to this user only.
        let folder = tempfile::Builder::new().prefix("nicforge-bench-").tempdir();
        let folder = folder.context(|| "a directory for the bench's sockets".into())?;
        let mut all = Self { workers: Workers::default(), addresses: Default::default(), folder };

        for side in SIDES {
            let task = format!("{}:{}", side.name(), all.folder.path().display());
            all.workers.start(process::child_command(BENCH.name, &task)?, side.name())?;
        }
        for (side, answer) in all.collect(run, &SIDES, "its start")? {
            if let Answer::Listening(addresses) = answer {
                all.addresses[side as usize] = Some(addresses);
            }
        }

        Ok(all)
    }

    /// Returns the addresses at which the process of a side listens.
    fn addresses(&self, side: Side) -> Option<Addresses> {
        self.addresses[side as usize].clone()
    }

    /// Makes one measurement: the processes of the task's path open their ends, measure, and close.
    /// `machine` is the served machine of a path with a device.
    pub(super) fn measure(
        &mut self,
        run: &Run<'_>,
        task: &Task,
        machine: Option<&Machine>,
        placement: &Placement,
    ) -> Result<FlowTimes, Failure> {
        let description = format!("{}, {} bytes, {}", task.path.name(), task.bytes, task.direction.name());
        let sides: &[Side] = match task.path.middle() {
            Middle::None => &[Side::Io, Side::Compute],
            _ => &[Side::Io, Side::Relay, Side::Compute],
        };

        // A process connects to the one before it on the path. The I/O process is the first one.
        for &side in sides {
            let peer = match side {
                Side::Io => None,
                Side::Compute if task.path.middle() != Middle::None => self.addresses(Side::Relay),
                _ => self.addresses(Side::Io),
            };
            let device = machine.map_or(Ok(Vec::new()), |machine| machine.sockets(side))?;
            let order =
                Order::Open { task: *task, processor: placement.processor_of(side.name()), device, peer };
            self.send(side, &order)?;
        }

        self.collect(run, sides, &description)?;
        let mut measured = FlowTimes::default();
        for (_, answer) in self.order(run, sides, &Order::Measure, &description)? {
            if let Answer::Done(one) = answer {
                measured = measured.and(one);
            }
        }

        self.order(run, sides, &Order::Close, &description)?;
        Ok(measured)
    }

    /// Sends an order to all of `sides`, and waits for their answers.
    fn order(
        &mut self,
        run: &Run<'_>,
        sides: &[Side],
        order: &Order,
        description: &str,
    ) -> Result<Vec<(Side, Answer)>, Failure> {
        for &side in sides {
            self.send(side, order)?;
        }
        self.collect(run, sides, description)
    }

    /// Sends an order to the process of a side.
    fn send(&mut self, side: Side, order: &Order) -> Result<(), Failure> {
        self.workers.send(side as usize, order)
    }

    /// Waits for one answer from each of `sides`, for at most [`ANSWER_TIMEOUT`]. `description`
    /// names the work in errors.
    fn collect(
        &self,
        run: &Run<'_>,
        sides: &[Side],
        description: &str,
    ) -> Result<Vec<(Side, Answer)>, Failure> {
        let from: Vec<_> = sides.iter().map(|&side| side as usize).collect();
        let answers = self.workers.collect(run, &from, ANSWER_TIMEOUT, description)?;
        let answers: Vec<_> = answers.into_iter().map(|(index, answer)| (SIDES[index], answer)).collect();

        if answers.len() < sides.len() {
            let is_missing = |side: &&Side| answers.iter().all(|(other, _)| other != *side);
            let missing: Vec<_> = sides.iter().filter(is_missing).map(|side| side.name()).collect();
            return Err(Failure::environment(format!(
                "{description}: no answer of {} within {ANSWER_TIMEOUT:?}",
                missing.join(" and ")
            )));
        }
        Ok(answers)
    }
}
