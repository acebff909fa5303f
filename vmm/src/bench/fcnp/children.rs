//! Starts and controls the child processes from the parent.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::Path as FilePath,
    process::{Child as Process, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{
    machine::Machine,
    task::{Addresses, Answer, Measured, Middle, Order, Side, Task},
};
use crate::{
    bench::{Run, placement::Placement},
    failure::{ErrorContext, Failure},
};

/// How long a child may take to carry out an order.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval between two checks for Ctrl-C.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A child process.
struct Child {
    side: Side,
    process: Process,
    orders: ChildStdin,
    reader: Option<JoinHandle<()>>,
    addresses: Option<Addresses>,
}

/// The child processes. Dropping this value ends them.
pub(super) struct Children {
    children: Vec<Child>,
    answers: Receiver<(Side, Option<Answer>)>,
    /// The folder contains only the children's sockets. It is removed after the children have
    /// ended.
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

        for side in [Side::Io, Side::Compute, Side::Relay] {
            let child = start(side, all.folder.path(), &answer_sender)?;
            all.children.push(child);
        }

        // From here on the channel closes when all children have ended.
        drop(answer_sender);
        let sides = [Side::Io, Side::Compute, Side::Relay];
        for (side, answer) in all.collect(run, &sides, "its start")? {
            if let (Answer::Listening(addresses), Some(child)) = (answer, all.child(side)) {
                child.addresses = Some(addresses);
            }
        }

        Ok(all)
    }

    fn child(&mut self, side: Side) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.side == side)
    }

    fn addresses(&self, side: Side) -> Option<Addresses> {
        self.children.iter().find(|child| child.side == side).and_then(|child| child.addresses.clone())
    }

    /// Makes one measurement.
    pub(super) fn measure(
        &mut self,
        run: &Run<'_>,
        task: &Task,
        machine: Option<&Machine>,
        placement: &Placement,
    ) -> Result<Measured, Failure> {
        let what = format!("{}, {} bytes, {}", task.path.name(), task.bytes, task.direction.name());
        let sides: &[Side] = match task.path.middle() {
            Middle::None => &[Side::Io, Side::Compute],
            _ => &[Side::Io, Side::Relay, Side::Compute],
        };

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

        self.collect(run, sides, &what)?;
        let mut measured = Measured::default();
        for (_, answer) in self.order(run, sides, &Order::Measure, &what)? {
            if let Answer::Done(one) = answer {
                measured = measured.and(one);
            }
        }

        self.order(run, sides, &Order::Close, &what)?;
        Ok(measured)
    }

    /// Sends an order to all of `sides`, and waits for their answers.
    fn order(
        &mut self,
        run: &Run<'_>,
        sides: &[Side],
        order: &Order,
        what: &str,
    ) -> Result<Vec<(Side, Answer)>, Failure> {
        for &side in sides {
            self.send(side, order)?;
        }
        self.collect(run, sides, what)
    }

    fn send(&mut self, side: Side, order: &Order) -> Result<(), Failure> {
        let text = serde_json::to_string(order).context(|| "an order".into())?;
        let Some(child) = self.child(side) else { return Ok(()) };
        writeln!(child.orders, "{text}").context(|| format!("the {} process has ended", side.name()))
    }

    /// Waits for one answer from each of `sides`, for at most [`PATIENCE`].
    fn collect(&self, run: &Run<'_>, sides: &[Side], what: &str) -> Result<Vec<(Side, Answer)>, Failure> {
        let start = Instant::now();
        let mut answers: Vec<(Side, Answer)> = Vec::with_capacity(sides.len());

        while answers.len() < sides.len() {
            match self.answers.recv_timeout(CHECK_INTERVAL) {
                Ok((side, Some(Answer::Failed { message }))) => {
                    return Err(Failure::environment(format!(
                        "{what}: the {} process: {message}",
                        side.name()
                    )));
                }
                Ok((side, Some(answer))) => answers.push((side, answer)),
                Ok((side, None)) => {
                    let message = format!("{what}: the {} process has ended", side.name());
                    return Err(Failure::environment(message));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::environment(format!("{what}: the processes have ended")));
                }
            }

            run.check()?;
            if start.elapsed() > PATIENCE {
                let missing: Vec<_> = sides
                    .iter()
                    .filter(|side| answers.iter().all(|(other, _)| other != *side))
                    .map(|side| side.name())
                    .collect();
                return Err(Failure::environment(format!(
                    "{what}: no answer of {} within {PATIENCE:?}",
                    missing.join(" and ")
                )));
            }
        }

        Ok(answers)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The kill of a child that has ended fails.
            let _ = child.process.kill();
            let _ = child.process.wait();
            if let Some(reader) = child.reader.take() {
                // A reader that panicked left nothing to clean up.
                let _ = reader.join();
            }
        }
    }
}

fn start(
    side: Side,
    folder: &FilePath,
    answer_sender: &Sender<(Side, Option<Answer>)>,
) -> Result<Child, Failure> {
    let this = std::env::current_exe().context(|| "this program's own file".into())?;
    let part = format!("{}:{}", side.name(), folder.display());
    let mut process = Command::new(this)
        .args(["bench", "fcnp", "--part", &part])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Only the parent acts on Ctrl-C. It ends the children.
        .process_group(0)
        .spawn()
        .context(|| format!("starting the {} process", side.name()))?;

    let (Some(orders), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(Failure::environment("a child process without pipes"));
    };
    let answer_sender = answer_sender.clone();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let answer = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let ended = answer.is_none();
            if answer_sender.send((side, answer)).is_err() || ended {
                return;
            }
        }
        // The receiver is gone when the benchmark has ended.
        let _ = answer_sender.send((side, None));
    });

    Ok(Child { side, process, orders, reader: Some(reader), addresses: None })
}
