//! Starting programs, one a node or core, with their output prefixed; ending all of them when one fails.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    failure::{Doing, EXIT_INTERRUPTED, Failure},
    signals::Signals,
};

/// How long programs get between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// The longest line that is passed on in one piece, in bytes.
const MAX_LINE: u64 = 64 * 1024;

/// A program to start.
pub struct Program {
    /// What its output is prefixed with.
    pub name: String,
    /// Program and arguments; must not be empty.
    pub command: Vec<String>,
    /// Added to its environment.
    pub environment: Vec<(String, String)>,
}

/// Where the lines of the programs go.
pub type LineSink = Arc<dyn Fn(&str, Stream, &str) + Send + Sync>;

/// Which of a program's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// A sink that writes `name | line` to the stream it came from.
pub fn prefixing(width: usize) -> LineSink {
    let lock = Mutex::new(());
    Arc::new(move |name, stream, line| {
        let _one_at_a_time = lock.lock();
        // Nobody may be left to read; the programs still run to their end.
        let _ = match stream {
            Stream::Output => writeln!(std::io::stdout(), "{name:width$} | {line}"),
            Stream::Error => writeln!(std::io::stderr(), "{name:width$} | {line}"),
        };
    })
}

/// Running programs. They are ended when this is dropped.
pub struct Processes {
    groups: BTreeMap<usize, Pid>,
    names: Vec<String>,
    ended: Receiver<(usize, std::io::Result<ExitStatus>)>,
    threads: Vec<JoinHandle<()>>,
}

impl Processes {
    /// Start all programs, each in a process group of its own.
    pub fn start(programs: Vec<Program>, sink: &LineSink) -> Result<Self, Failure> {
        let (report, ended) = channel();
        let mut processes = Self { groups: BTreeMap::new(), names: Vec::new(), ended, threads: Vec::new() };
        for (index, program) in programs.into_iter().enumerate() {
            processes.start_one(index, program, sink, &report)?;
        }
        Ok(processes)
    }

    fn start_one(
        &mut self,
        index: usize,
        program: Program,
        sink: &LineSink,
        report: &Sender<(usize, std::io::Result<ExitStatus>)>,
    ) -> Result<(), Failure> {
        let Some((executable, arguments)) = program.command.split_first() else {
            return Err(Failure::usage(format!("no program was given for {}", program.name)));
        };
        let mut child = Command::new(executable)
            .args(arguments)
            .envs(program.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .doing(|| format!("can't start {executable} for {}", program.name))?;
        self.groups.insert(index, Pid::from_raw(child.id() as i32));
        let readers: Vec<_> = [
            child.stdout.take().map(|pipe| reader(Box::new(pipe), &program.name, Stream::Output, sink)),
            child.stderr.take().map(|pipe| reader(Box::new(pipe), &program.name, Stream::Error, sink)),
        ]
        .into_iter()
        .flatten()
        .collect();
        self.names.push(program.name);
        let report = report.clone();
        self.threads.push(std::thread::spawn(move || wait(index, child, readers, &report)));
        Ok(())
    }

    /// Wait until all programs have ended. When one fails or a signal comes, the others are ended too. Gives the exit code of
    /// the first that failed (128 and the signal's number for one that was killed), or 0.
    pub fn wait(&mut self, signals: &Signals) -> Result<u8, Failure> {
        let mut code = 0;
        let mut kill_at: Option<Instant> = None;
        while !self.groups.is_empty() {
            match self.ended.recv_timeout(Duration::from_millis(50)) {
                Ok((index, status)) => {
                    self.groups.remove(&index);
                    let ended = status.doing(|| format!("can't wait for {}", self.names[index]))?;
                    let this = exit_code(ended);
                    if this != 0 && kill_at.is_none() {
                        code = this;
                        eprintln!("nicforge: {} ended with {ended}; ending the others", self.names[index]);
                        self.signal_all(Signal::SIGTERM);
                        kill_at = Some(Instant::now() + GRACE);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if signals.take().is_some() && code != EXIT_INTERRUPTED {
                code = EXIT_INTERRUPTED;
                self.signal_all(Signal::SIGTERM);
                kill_at = Some(Instant::now() + GRACE);
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) {
                self.signal_all(Signal::SIGKILL);
                kill_at = Some(Instant::now() + GRACE);
            }
        }
        Ok(code)
    }

    fn signal_all(&self, signal: Signal) {
        for &group in self.groups.values() {
            // It may have ended in this moment.
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.signal_all(Signal::SIGKILL);
        for thread in self.threads.drain(..) {
            // A reader that panicked has nothing left to clean up.
            let _ = thread.join();
        }
    }
}

fn wait(
    index: usize,
    mut child: Child,
    readers: Vec<JoinHandle<()>>,
    report: &Sender<(usize, std::io::Result<ExitStatus>)>,
) {
    let status = child.wait();
    for reader in readers {
        let _ = reader.join();
    }
    // Nobody waits any more when the whole was given up.
    let _ = report.send((index, status));
}

fn reader(pipe: Box<dyn Read + Send>, name: &str, stream: Stream, sink: &LineSink) -> JoinHandle<()> {
    let (name, sink) = (name.to_owned(), sink.clone());
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match pipe.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line);
                    sink(&name, stream, text.trim_end_matches(['\n', '\r']));
                }
            }
        }
    })
}

/// A status as a shell would give it.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}
