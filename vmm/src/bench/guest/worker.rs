//! The parent's handle of a worker: a program in a guest or on the host that carries out orders.
//!
//! In a guest the program reads orders from the guest's serial line. On the host it reads them from
//! a pipe. It writes answers to its standard output, one in each line.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::{net::UnixStream, process::CommandExt},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_driver::environment;
use nicforge_guest::{Guest, Job, Running, Stream};

use super::order::{Answer, Order};
use crate::{
    bench::Run,
    failure::{ErrorContext, Failure},
};

/// How long an order may take. Emulated guests are slow, and slower still on a busy host.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// The interval between two checks whether a wait must end.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The shell command that runs in a guest.
const PROGRAM: &str = "stty -F /dev/ttyS2 raw -echo && exec nicforge bench guest --part end </dev/ttyS2";

/// A program of the bench.
pub(super) struct Worker<'a> {
    name: &'static str,
    process: WorkerProcess<'a>,
    answers: Receiver<String>,
}

/// Where a worker runs, and its line for orders.
enum WorkerProcess<'a> {
    Guest { line: &'a UnixStream, program: Running },
    Host { child: Child, orders: ChildStdin, reader: Option<JoinHandle<()>> },
}

impl<'a> Worker<'a> {
    /// Starts a worker in a guest.
    pub(super) fn in_guest(run: &Run<'_>, name: &'static str, guest: &'a Guest) -> Result<Self, Failure> {
        let line = guest.terminal();
        let line = line.ok_or_else(|| Failure::environment(format!("{name} has no line for orders")))?;
        let (line_sender, answers) = channel();
        let job = Job::shell(PROGRAM).on_line(lines(line_sender));
        let program = guest.start(job).context(|| format!("{name}: starting the bench"))?;
        let worker = Self { name, process: WorkerProcess::Guest { line, program }, answers };
        worker.collect(run, "its start").map(|_| worker)
    }

    /// Starts a worker on the host, with `devices`.
    pub(super) fn on_host(run: &Run<'_>, name: &'static str, devices: &[PathBuf]) -> Result<Self, Failure> {
        let this = std::env::current_exe().context(|| "this program's own file".into())?;
        let devices: Vec<_> = devices.iter().map(|device| device.display().to_string()).collect();
        let mut child = Command::new(this)
            .args(["bench", "guest", "--part", "end"])
            .env(environment::SOCKET, devices.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Only the parent acts on Ctrl-C. It ends the other process.
            .process_group(0)
            .spawn()
            .context(|| format!("starting the process on the {name}"))?;

        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::environment("a child process without pipes"));
        };
        let (line_sender, answers) = channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line_sender.send(line).is_err() {
                    return;
                }
            }
        });

        let worker =
            Self { name, process: WorkerProcess::Host { child, orders, reader: Some(reader) }, answers };
        worker.collect(run, "its start").map(|_| worker)
    }

    /// Sends an order, and waits for its answer.
    pub(super) fn execute(&mut self, run: &Run<'_>, order: &Order) -> Result<Answer, Failure> {
        self.send(order)?;
        self.collect(run, &format!("{order:?}"))
    }

    /// Sends an order.
    pub(super) fn send(&mut self, order: &Order) -> Result<(), Failure> {
        let text = serde_json::to_string(order).context(|| "an order".into())?;
        match &mut self.process {
            WorkerProcess::Guest { line, .. } => writeln!(line, "{text}"),
            WorkerProcess::Host { orders, .. } => writeln!(orders, "{text}"),
        }
        .context(|| format!("{} takes no orders any more", self.name))
    }

    /// Waits for the answer to the last order.
    pub(super) fn collect(&self, run: &Run<'_>, what: &str) -> Result<Answer, Failure> {
        let answer = collect(run, &[self], what)?.pop();
        answer.ok_or_else(|| Failure::environment(format!("{}: {what}: no answer", self.name)))
    }

    /// Returns the answer to the last order, if it comes within [`CHECK_INTERVAL`].
    fn poll_answer(&self, what: &str) -> Result<Option<Answer>, Failure> {
        let name = self.name;
        match self.answers.recv_timeout(CHECK_INTERVAL) {
            Ok(line) => match serde_json::from_str(&line).context(|| format!("{name}: {line}"))? {
                Answer::Failed { message } => Err(Failure::environment(format!("{name}: {what}: {message}"))),
                answer => Ok(Some(answer)),
            },
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::environment(format!("{name}: {what}: the process has ended")))
            }
            Err(RecvTimeoutError::Timeout) => self.check_lives(what).map(|()| None),
        }
    }

    /// Returns an error when the program in a guest has ended, because no answer will come.
    fn check_lives(&self, what: &str) -> Result<(), Failure> {
        let WorkerProcess::Guest { program, .. } = &self.process else { return Ok(()) };
        match program.wait_for(Duration::ZERO).context(|| format!("{}: {what}", self.name))? {
            None => Ok(()),
            Some(output) => {
                let (name, said) = (self.name, output.stderr);
                Err(Failure::environment(format!("{name}: {what}: the program has ended: {said}")))
            }
        }
    }
}

/// Waits for the answers of all workers to their last orders. Returns them in the order of
/// `workers`, or the first failure.
pub(super) fn collect(run: &Run<'_>, workers: &[&Worker<'_>], what: &str) -> Result<Vec<Answer>, Failure> {
    let start = Instant::now();
    let mut answers: Vec<Option<Answer>> = workers.iter().map(|_| None).collect();

    while answers.iter().any(Option::is_none) {
        run.check()?;
        for (worker, answer) in workers.iter().zip(&mut answers) {
            if answer.is_none() {
                *answer = worker.poll_answer(what)?;
            }
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::environment(format!("{what}: no answer within {PATIENCE:?}")));
        }
    }

    Ok(answers.into_iter().flatten().collect())
}

/// Forwards the output lines of a program in a guest.
fn lines(line_sender: Sender<String>) -> nicforge_guest::LineSink {
    Arc::new(move |stream, line| {
        if stream == Stream::Output {
            // The receiver is gone when the benchmark has ended.
            let _ = line_sender.send(line.to_owned());
        }
    })
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        // A program in a guest ends with its guest.
        if let WorkerProcess::Host { child, reader, .. } = &mut self.process {
            let _ = child.kill();
            let _ = child.wait();
            if let Some(reader) = reader.take() {
                // A reader that panicked left nothing to clean up.
                let _ = reader.join();
            }
        }
    }
}
