//! Starts and controls the child processes from the parent.

use std::{
    path::Path as FilePath,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

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
    process::{self, Worker},
};

/// How long a child may take to carry out an order.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two checks for Ctrl-C.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The processes of a measurement.
const SIDES: [Side; 3] = [Side::Io, Side::Compute, Side::Relay];

/// A child process, and the addresses at which it listens.
struct Child {
    side: Side,
    worker: Worker,
    addresses: Option<Addresses>,
}

/// The child processes. Dropping this value ends them.
pub(super) struct Children {
    children: Vec<Child>,
    /// The answers of all children. `None` comes when a child has ended.
    answers: Receiver<(Side, Option<Answer>)>,
    /// The folder of the children's sockets. It is removed after the children have ended.
    folder: TempDir,
}

impl Children {
    /// Starts all child processes.
    pub(super) fn start(run: &Run<'_>) -> Result<Self, Failure> {
        // The folder is accessible to this user only.
        let folder = tempfile::Builder::new().prefix("nicforge-bench-").tempdir();
        let folder = folder.context(|| "a directory for the bench's sockets".into())?;
        let (answer_sender, answers) = channel();
        let mut all = Self { children: Vec::new(), answers, folder };

        for side in SIDES {
            let child = start(side, all.folder.path(), &answer_sender)?;
            all.children.push(child);
        }

        // From here on the channel closes when all children have ended.
        drop(answer_sender);
        for (side, answer) in all.collect(run, &SIDES, "its start")? {
            if let (Answer::Listening(addresses), Some(child)) = (answer, all.child(side)) {
                child.addresses = Some(addresses);
            }
        }

        Ok(all)
    }

    /// Returns the process of a side.
    fn child(&mut self, side: Side) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.side == side)
    }

    /// Returns the addresses at which the process of a side listens.
    fn addresses(&self, side: Side) -> Option<Addresses> {
        self.children.iter().find(|child| child.side == side).and_then(|child| child.addresses.clone())
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
        self.child(side).map_or(Ok(()), |child| child.worker.send(order))
    }

    /// Waits for one answer from each of `sides`, for at most [`ANSWER_TIMEOUT`]. `description`
    /// names the work in errors.
    fn collect(
        &self,
        run: &Run<'_>,
        sides: &[Side],
        description: &str,
    ) -> Result<Vec<(Side, Answer)>, Failure> {
        let start = Instant::now();
        let mut answers: Vec<(Side, Answer)> = Vec::with_capacity(sides.len());

        while answers.len() < sides.len() {
            match self.answers.recv_timeout(CHECK_INTERVAL) {
                Ok((side, Some(Answer::Failed { message }))) => {
                    return Err(Failure::environment(format!(
                        "{description}: the {} process: {message}",
                        side.name()
                    )));
                }
                Ok((side, Some(answer))) => answers.push((side, answer)),
                Ok((side, None)) => {
                    let message = format!("{description}: the {} process has ended", side.name());
                    return Err(Failure::environment(message));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::environment(format!("{description}: the processes have ended")));
                }
            }

            run.check()?;
            if start.elapsed() > ANSWER_TIMEOUT {
                let missing: Vec<_> = sides
                    .iter()
                    .filter(|side| answers.iter().all(|(other, _)| other != *side))
                    .map(|side| side.name())
                    .collect();
                return Err(Failure::environment(format!(
                    "{description}: no answer of {} within {ANSWER_TIMEOUT:?}",
                    missing.join(" and ")
                )));
            }
        }

        Ok(answers)
    }
}

/// Starts a child process. Its answers go to `answer_sender`, followed by `None` when it has ended.
fn start(
    side: Side,
    folder: &FilePath,
    answer_sender: &Sender<(Side, Option<Answer>)>,
) -> Result<Child, Failure> {
    let command = process::child_command(BENCH.name, &format!("{}:{}", side.name(), folder.display()))?;
    let answer_sender = answer_sender.clone();
    let worker = Worker::start(command, side.name(), move |line| {
        let answer = line.and_then(|line| serde_json::from_str(&line).ok());
        let has_ended = answer.is_none();
        // The receiver is gone when the benchmark has ended.
        answer_sender.send((side, answer)).is_ok() && !has_ended
    })?;

    Ok(Child { side, worker, addresses: None })
}
