//! Child processes of benches: this program again, with a task of a bench, or a program that counts
//! instructions.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure, print_line};
use nix::{
    sys::{
        prctl,
        signal::{Signal, killpg},
    },
    unistd::{Pid, getppid},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::bench::Run;

/// The interval between two checks whether a program has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The interval between two checks for Ctrl-C while answers are awaited.
const ANSWER_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The time between SIGTERM and SIGKILL for a program that is ended early.
const GRACE: Duration = Duration::from_secs(10);

/// The variable with the process that has started a child process of a bench.
const PARENT: &str = "NICFORGE_BENCH_PARENT";

/// Returns the command that starts this program as a child process of `bench`, with the task
/// `task`.
///
/// # Errors
/// Returns an error when this program's own file is unknown.
pub fn child_command(bench: &str, task: &str) -> Result<Command, Failure> {
    let program = env::current_exe().context(|| "this program's own file".into())?;
    let mut command = Command::new(program);
    command.args([bench, "--task", task]).env(PARENT, std::process::id().to_string());
    Ok(command)
}

/// Returns the error for a task that a bench's child process does not know.
pub fn unknown_task(task: &str) -> Failure {
    Failure::usage(format!("there is no task {task}"))
}

/// Makes this process get a signal when the process that started it ends, also when that is killed.
/// A program that this process becomes gets it, too.
///
/// # Errors
/// Returns an error when the kernel call fails, and when that process has ended already.
pub fn follow_parent(signal: Signal) -> Result<(), Failure> {
    prctl::set_pdeathsig(signal).context(|| "following the parent".into())?;

    // The signal comes only for an end after the call.
    let parent = env::var(PARENT).ok().and_then(|number| number.parse().ok());
    if parent.is_some_and(|number| Pid::from_raw(number) != getppid()) {
        return Err(Failure::environment("the bench that has started this process is over"));
    }
    Ok(())
}

/// Runs a program until it ends. When the user ends the run, the program is ended, too.
///
/// # Errors
/// Returns an error when the program cannot be started, and when the user has ended the run.
pub fn status(run: &Run<'_>, command: &mut Command) -> Result<ExitStatus, Failure> {
    let status = status_within(run, command, Duration::MAX)?;
    // No run is as long as the limit.
    status.ok_or_else(|| Failure::environment("a program does not end"))
}

/// Runs a program until it ends, for at most `limit`. Returns `None` when it was not done by then.
///
/// A program that is not done, or that runs when the user ends the run, gets SIGTERM with its
/// process group. If it does not end within 10 s, the group is killed.
///
/// # Errors
/// Returns an error when the program cannot be started, and when the user has ended the run.
pub fn status_within(
    run: &Run<'_>,
    command: &mut Command,
    limit: Duration,
) -> Result<Option<ExitStatus>, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    // A process group of its own keeps Ctrl-C from the program. Its end would otherwise look like a
    // failure.
    let mut child = command.process_group(0).spawn().context(|| format!("can't start {name}"))?;
    let start = Instant::now();

    loop {
        let ended = child.try_wait().context(|| format!("waiting for {name}")).transpose();
        if let Some(status) = ended {
            return status.map(Some);
        }

        let checked = run.check();
        if checked.is_err() || start.elapsed() >= limit {
            end_group(&mut child);
            return checked.map(|()| None);
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Ends a child process and its process group, and reaps the child.
fn end_group(child: &mut Child) {
    let group = Pid::from_raw(child.id() as i32);
    let start = Instant::now();
    // The calls fail when the processes have ended in this moment. The child is not reaped before,
    // so that its number is not another group's.
    let _ = killpg(group, Signal::SIGTERM);
    while matches!(child.try_wait(), Ok(None)) && start.elapsed() < GRACE {
        thread::sleep(CHECK_INTERVAL);
    }

    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
}

/// The parent's handle of a child process that carries out orders. Dropping it kills the process.
pub struct Worker {
    name: String,
    process: Child,
    orders: ChildStdin,
    reader: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a child process. `name` is for messages.
    ///
    /// `on_line` gets each line of the process's output, and `None` after the last one, on a thread
    /// of its own. It returns whether it takes more lines.
    ///
    /// # Errors
    /// Returns an error when the process cannot be started.
    pub fn start(
        mut command: Command,
        name: impl Into<String>,
        mut on_line: impl FnMut(Option<String>) -> bool + Send + 'static,
    ) -> Result<Self, Failure> {
        let name = name.into();
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Only the parent acts on Ctrl-C. It ends the children.
            .process_group(0)
            .spawn()
            .context(|| format!("starting the {name} process"))?;

        let (Some(orders), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Failure::environment("a child process without pipes"));
        };
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if !on_line(Some(line)) {
                    return;
                }
            }
            on_line(None);
        });

        Ok(Self { name, process, orders, reader: Some(reader) })
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends an order.
    ///
    /// # Errors
    /// Returns an error when the process has ended.
    pub fn send(&mut self, order: &impl Serialize) -> Result<(), Failure> {
        send_order(&mut self.orders, order).context(|| format!("the {} process takes no orders", self.name))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The kill of a process that has ended fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(reader) = self.reader.take() {
            // A reader that panicked left nothing to clean up.
            let _ = reader.join();
        }
    }
}

/// An answer of a child process to an order.
pub trait Answer: DeserializeOwned + Send + 'static {
    /// Returns the reason why the order failed, if it did.
    fn failure(&self) -> Option<&str>;
}

/// Child processes whose answers come into one queue. Dropping this kills them.
pub struct Workers<A> {
    workers: Vec<Worker>,
    /// For further processes.
    answer_sender: Sender<(usize, Option<A>)>,
    /// The answers of all processes, by index. `None` comes when a process has ended.
    answers: Receiver<(usize, Option<A>)>,
}

impl<A: Answer> Default for Workers<A> {
    fn default() -> Self {
        let (answer_sender, answers) = channel();
        Self { workers: Vec::new(), answer_sender, answers }
    }
}

impl<A: Answer> Workers<A> {
    /// Starts a child process. Returns its index.
    ///
    /// # Errors
    /// Returns an error when the process cannot be started.
    pub fn start(&mut self, command: Command, name: impl Into<String>) -> Result<usize, Failure> {
        let (index, answer_sender) = (self.workers.len(), self.answer_sender.clone());
        self.workers.push(Worker::start(command, name, move |line| {
            let answer = line.and_then(|line| serde_json::from_str(&line).ok());
            let has_ended = answer.is_none();
            // The receiver is gone when the benchmark has ended.
            answer_sender.send((index, answer)).is_ok() && !has_ended
        })?);
        Ok(index)
    }

    /// Returns the number of the process with this index, if there is one.
    pub fn id(&self, index: usize) -> Option<u32> {
        self.workers.get(index).map(Worker::id)
    }

    /// Returns the name of the process with this index, for messages.
    pub fn name(&self, index: usize) -> &str {
        self.workers.get(index).map_or("", |worker| &worker.name)
    }

    /// Sends an order to the process with this index.
    ///
    /// # Errors
    /// Returns an error when the process has ended.
    pub fn send(&mut self, index: usize, order: &impl Serialize) -> Result<(), Failure> {
        self.workers.get_mut(index).map_or(Ok(()), |worker| worker.send(order))
    }

    /// Waits for one answer from each process of `from`, for at most `limit`. Returns the answers
    /// that have come, which are fewer after the time limit. `description` names the work in
    /// errors.
    ///
    /// # Errors
    /// Returns an error when an order has failed or a process has ended, and when the user has
    /// ended the run.
    pub fn collect(
        &self,
        run: &Run<'_>,
        from: &[usize],
        limit: Duration,
        description: &str,
    ) -> Result<Vec<(usize, A)>, Failure> {
        let start = Instant::now();
        let mut answers = Vec::with_capacity(from.len());

        while answers.len() < from.len() {
            run.check()?;
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() {
                break;
            }

            let (index, answer) = match self.answers.recv_timeout(left.min(ANSWER_CHECK_INTERVAL)) {
                Ok(received) => received,
                // This value holds a sender, so that the channel is never disconnected.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => continue,
            };
            let failed = |problem: &str| {
                let message = format!("{description}: the {} process{problem}", self.name(index));
                Err(Failure::environment(message))
            };

            match answer {
                None => return failed(" has ended"),
                Some(answer) => match answer.failure() {
                    Some(message) => return failed(&format!(": {message}")),
                    None => answers.push((index, answer)),
                },
            }
        }

        Ok(answers)
    }
}

/// Writes an order as a line.
///
/// # Errors
/// Returns an error when the line cannot be written.
pub fn send_order(mut to: impl Write, order: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_string(order)?;
    text.push('\n');
    to.write_all(text.as_bytes())
}

/// Carries out the orders of the parent, one in each line of standard input, until that is closed.
/// Each order has an answer, one in each line of standard output.
///
/// `ready` is the first answer. `execute` carries an order out, and returns its answer. `failed`
/// makes an answer from the message of an order that failed. Returns the exit code of the process.
///
/// # Errors
/// Returns an error when an order cannot be read, or an answer not be written.
pub fn carry_out_orders<O: DeserializeOwned, A: Serialize>(
    ready: &A,
    failed: fn(String) -> A,
    mut execute: impl FnMut(O) -> Result<A, Failure>,
) -> Result<u8, Failure> {
    print_answer(ready)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context(|| "the bench's orders".into())?;
        let order = serde_json::from_str(&line).context(|| "the bench's orders".into())?;
        print_answer(&execute(order).unwrap_or_else(|failure| failed(failure.message)))?;
    }

    Ok(0)
}

/// Prints an answer as a line.
fn print_answer(answer: &impl Serialize) -> Result<(), Failure> {
    print_line(serde_json::to_string(answer).context(|| "an answer".into())?)
}
