//! The parent's handle of a worker: a program in a guest or on the host that carries out orders.
//!
//! In a guest the program reads orders from the guest's serial line. On the host it reads them from
//! a pipe. It writes answers to its standard output, one in each line.

use std::{
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::environment;
use nicforge_guest::{Guest, Job, Running, Stream};

use super::{
    BENCH, END,
    order::{Answer, Order},
};
use crate::{
    bench::Run,
    process::{self, send_order},
};

/// How long an order may take. Emulated guests are slow, and slower still on a busy host.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// The interval between two checks whether a wait must end.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The serial line by which a guest gets orders.
const ORDER_LINE: &str = "/dev/ttyS2";
/// The name of this program in a guest.
pub(super) const PROGRAM: &str = "nicforge-bench";

/// A program of the bench. Dropping it ends a program on the host. A program in a guest ends with
/// its guest.
pub(super) struct Worker<'a> {
    name: &'static str,
    process: WorkerProcess<'a>,
    answers: Receiver<String>,
}

/// Where a worker runs, and its line for orders.
enum WorkerProcess<'a> {
    Guest { line: &'a UnixStream, program: Running },
    Host(process::Worker),
}

impl<'a> Worker<'a> {
    /// Starts a worker in a guest.
    pub(super) fn in_guest(run: &Run<'_>, name: &'static str, guest: &'a Guest) -> Result<Self, Failure> {
        let line = guest.terminal();
        let line = line.ok_or_else(|| Failure::environment(format!("{name} has no line for orders")))?;
        let (line_sender, answers) = channel();
        let command = format!(
            "stty -F {ORDER_LINE} raw -echo && exec {PROGRAM} {} --task {END} <{ORDER_LINE}",
            BENCH.name
        );
        let job = Job::shell(command).on_line(line_forwarder(line_sender));
        let program = guest.start(job).context(|| format!("{name}: starting the bench"))?;
        let worker = Self { name, process: WorkerProcess::Guest { line, program }, answers };
        worker.collect(run, "its start").map(|_| worker)
    }

    /// Starts a worker on the host, with `devices`.
    pub(super) fn on_host(run: &Run<'_>, name: &'static str, devices: &[PathBuf]) -> Result<Self, Failure> {
        let devices: Vec<_> = devices.iter().map(|device| device.display().to_string()).collect();
        let mut command = process::child_command(BENCH.name, END)?;
        command.env(environment::SOCKET, devices.join(":"));

        let (line_sender, answers) = channel();
        let child = process::Worker::start(command, "host", move |line| {
            line.is_some_and(|line| line_sender.send(line).is_ok())
        })?;

        let worker = Self { name, process: WorkerProcess::Host(child), answers };
        worker.collect(run, "its start").map(|_| worker)
    }

    /// Sends an order, and waits for its answer.
    pub(super) fn execute(&mut self, run: &Run<'_>, order: &Order) -> Result<Answer, Failure> {
        self.send(order)?;
        self.collect(run, &format!("{order:?}"))
    }

    /// Sends an order.
    pub(super) fn send(&mut self, order: &Order) -> Result<(), Failure> {
        match &mut self.process {
            WorkerProcess::Guest { line, .. } => {
                send_order(*line, order).context(|| format!("{} takes no orders any more", self.name))
            }
            WorkerProcess::Host(child) => child.send(order),
        }
    }

    /// Waits for the answer to the last order.
    pub(super) fn collect(&self, run: &Run<'_>, description: &str) -> Result<Answer, Failure> {
        let answer = collect(run, &[self], description)?.pop();
        answer.ok_or_else(|| Failure::environment(format!("{}: {description}: no answer", self.name)))
    }

    /// Returns the answer to the last order, if it comes within [`CHECK_INTERVAL`].
    fn poll_answer(&self, description: &str) -> Result<Option<Answer>, Failure> {
        let name = self.name;
        match self.answers.recv_timeout(CHECK_INTERVAL) {
            Ok(line) => match serde_json::from_str(&line).context(|| format!("{name}: {line}"))? {
                Answer::Failed { message } => {
                    Err(Failure::environment(format!("{name}: {description}: {message}")))
                }
                answer => Ok(Some(answer)),
            },
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::environment(format!("{name}: {description}: the process has ended")))
            }
            Err(RecvTimeoutError::Timeout) => self.check_program_runs(description).map(|()| None),
        }
    }

    /// Returns an error when the program in a guest has ended, because no answer will come.
    fn check_program_runs(&self, description: &str) -> Result<(), Failure> {
        let WorkerProcess::Guest { program, .. } = &self.process else { return Ok(()) };
        match program.wait_for(Duration::ZERO).context(|| format!("{}: {description}", self.name))? {
            None => Ok(()),
            Some(output) => {
                let (name, stderr) = (self.name, output.stderr);
                Err(Failure::environment(format!("{name}: {description}: the program has ended: {stderr}")))
            }
        }
    }
}

/// Waits for the answers of all workers to their last orders. Returns them in the order of
/// `workers`, or the first failure.
pub(super) fn collect(
    run: &Run<'_>,
    workers: &[&Worker<'_>],
    description: &str,
) -> Result<Vec<Answer>, Failure> {
    let start = Instant::now();
    let mut answers: Vec<Option<Answer>> = workers.iter().map(|_| None).collect();

    while answers.iter().any(Option::is_none) {
        run.check()?;
        for (worker, answer) in workers.iter().zip(&mut answers) {
            if answer.is_none() {
                *answer = worker.poll_answer(description)?;
            }
        }
        if start.elapsed() > TIMEOUT {
            return Err(Failure::environment(format!("{description}: no answer within {TIMEOUT:?}")));
        }
    }

    Ok(answers.into_iter().flatten().collect())
}

/// Returns a sink that forwards a program's lines on standard output, and drops the others.
fn line_forwarder(line_sender: Sender<String>) -> nicforge_guest::LineSink {
    Arc::new(move |stream, line| {
        if stream == Stream::Output {
            // The receiver is gone when the benchmark has ended.
            let _ = line_sender.send(line.to_owned());
        }
    })
}
