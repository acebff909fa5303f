//! Child processes of benches: this program again, with a task of a bench, or a program that counts
//! instructions.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::Duration,
};

use nicforge::failure::{ErrorContext, Failure, print_line};
use serde::{Serialize, de::DeserializeOwned};

use crate::bench::Run;

/// The interval between two checks whether a program has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the command that starts this program as a child process of `bench`, with the task
/// `task`.
///
/// # Errors
/// Returns an error when this program's own file is unknown.
pub fn child_command(bench: &str, task: &str) -> Result<Command, Failure> {
    let program = env::current_exe().context(|| "this program's own file".into())?;
    let mut command = Command::new(program);
    command.args([bench, "--task", task]);
    Ok(command)
}

/// Returns the error for a task that a bench's child process does not know.
pub fn unknown_task(task: &str) -> Failure {
    Failure::usage(format!("there is no task {task}"))
}

/// Runs a program until it ends. When the user ends the run, the program is killed.
///
/// # Errors
/// Returns an error when the program cannot be started, and when the user has ended the run.
pub fn status(run: &Run<'_>, command: &mut Command) -> Result<ExitStatus, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    // A process group of its own keeps Ctrl-C from the program. Its end would otherwise look like a
    // failure.
    let mut child = command.process_group(0).spawn().context(|| format!("can't start {name}"))?;

    loop {
        let ended = child.try_wait().context(|| format!("waiting for {name}")).transpose();
        if let Some(status) = ended {
            return status;
        }

        if let Err(ended) = run.check() {
            // The program may have ended in this moment.
            let _ = child.kill();
            let _ = child.wait();
            return Err(ended);
        }

        thread::sleep(CHECK_INTERVAL);
    }
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
