//! Starting programs, one a node or core, with their output passed on; ending all of them when one fails.
//!
//! A program is a process group: what it starts belongs to it, and is ended with it. A program has ended when the process that was
//! started for it has; neither a descendant nor a pipe that somebody keeps open delays that.

use std::{
    io::{PipeReader, PipeWriter},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use crate::{
    descriptors,
    failure::{Doing, EXIT_INTERRUPTED, Failure, tell},
    lines::{LineSink, Printer, Stream, pass_on},
    signals::Signals,
};

/// How long programs get between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long output that is left may take when nobody wants to wait for it any more.
const LAST_LINES: Duration = Duration::from_secs(1);
/// How often signals and groups are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A program to start.
pub struct Program {
    /// What its output is prefixed with.
    pub name: String,
    /// Program and arguments; must not be empty.
    pub command: Vec<String>,
    /// Added to its environment.
    pub environment: Vec<(String, String)>,
}

/// A program that was started.
struct Started {
    name: String,
    child: Child,
    /// Its process group, of its own number; `None` when nothing is left in it.
    group: Option<Pid>,
    /// Whether its process was reaped. Until then nobody else can get its number.
    ended: bool,
}

/// Running programs. They are ended when this is dropped.
pub struct Processes {
    programs: Vec<Started>,
    /// Which program has ended; closed when all have, and all their output has been passed on.
    ended: Receiver<usize>,
    /// Closed when nothing more is expected in the pipes than what is in them.
    over: Option<PipeWriter>,
    /// Set when output that nobody reads is not to be waited for.
    give_up: Arc<AtomicBool>,
}

/// What the threads of a program need.
struct Ends {
    report: Sender<usize>,
    over: Arc<PipeReader>,
    sink: LineSink,
}

impl Processes {
    /// Start all programs, each in a process group of its own, with their lines written behind their names.
    pub fn start_prefixed(programs: Vec<Program>) -> Result<Self, Failure> {
        let width = programs.iter().map(|program| program.name.len()).max().unwrap_or(0);
        let (printer, give_up) = (Printer::new(width), Arc::new(AtomicBool::new(false)));
        let may_give_up = give_up.clone();
        let sink: LineSink = Arc::new(move |name, stream, line| {
            printer.line(name, stream, line, &|| may_give_up.load(Ordering::Relaxed));
        });
        Self::start_with(programs, sink, give_up)
    }

    /// Start all programs, each in a process group of its own, with their lines given to `sink`.
    pub fn start(programs: Vec<Program>, sink: LineSink) -> Result<Self, Failure> {
        Self::start_with(programs, sink, Arc::default())
    }

    fn start_with(programs: Vec<Program>, sink: LineSink, give_up: Arc<AtomicBool>) -> Result<Self, Failure> {
        let (report, ended) = channel();
        let (is_over, over) = std::io::pipe().doing(|| "a pipe".into())?;
        let ends = Ends { report, over: Arc::new(is_over), sink };
        let mut processes = Self { programs: Vec::new(), ended, over: Some(over), give_up };
        for program in programs {
            processes.start_one(program, &ends)?;
        }
        Ok(processes)
    }

    fn start_one(&mut self, program: Program, ends: &Ends) -> Result<(), Failure> {
        let Some((executable, arguments)) = program.command.split_first() else {
            return Err(Failure::usage(format!("no program was given for {}", program.name)));
        };
        let mut command = Command::new(executable);
        command
            .args(arguments)
            .envs(program.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        descriptors::restore_in(&mut command);
        let mut child = command.spawn().doing(|| format!("can't start {executable} for {}", program.name))?;

        let pid = Pid::from_raw(child.id() as i32);
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (index, report) = (self.programs.len(), ends.report.clone());
        self.programs.push(Started { name: program.name.clone(), child, group: Some(pid), ended: false });
        if let Some(pipe) = out {
            ends.read(pipe.into(), &program.name, Stream::Output)?;
        }
        if let Some(pipe) = err {
            ends.read(pipe.into(), &program.name, Stream::Error)?;
        }
        let waiter = std::thread::Builder::new().spawn(move || {
            // It is reaped by who sends signals, so that none goes to somebody else with its number.
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            // Nobody waits any more when the whole was given up.
            let _ = report.send(index);
        });
        waiter.doing(|| format!("a thread for {}", program.name))?;
        Ok(())
    }

    /// Wait until all programs have ended. When one fails or a signal comes, the others are ended too; what programs that have
    /// ended left behind is ended when all have. Gives the exit code of the first that failed (128 and the signal's number for
    /// one that was killed), or 0.
    pub fn wait(&mut self, signals: &Signals) -> Result<u8, Failure> {
        let mut code = 0;
        let mut kill_at: Option<Instant> = None;
        let mut killed = false;
        let mut leave_at: Option<Instant> = None;
        loop {
            let mut all_read = false;
            match self.ended.recv_timeout(LOOK) {
                Ok(index) => {
                    let ended = self.programs[index].reap()?;
                    let this = exit_code(ended);
                    if this != 0 && kill_at.is_none() {
                        code = this;
                        self.signal_all(Signal::SIGTERM);
                        kill_at = Some(Instant::now() + GRACE);
                        tell(format_args!(
                            "nicforge: {} ended with {ended}; ending the others",
                            self.programs[index].name
                        ));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => all_read = true,
            }
            if signals.take().is_some() && code != EXIT_INTERRUPTED {
                code = EXIT_INTERRUPTED;
                self.signal_all(Signal::SIGTERM);
                kill_at = Some(Instant::now() + GRACE);
            }
            if kill_at.is_some_and(|at| Instant::now() >= at) {
                self.signal_all(Signal::SIGKILL);
                killed = true;
                kill_at = Some(Instant::now() + GRACE);
            }
            if self.programs.iter().any(|program| !program.ended) {
                continue;
            }
            self.programs.iter_mut().for_each(Started::look_for_rest);
            // What was killed is not waited for: who is to reap it may not do so.
            if !killed && self.programs.iter().any(|program| program.group.is_some()) {
                if kill_at.is_none() {
                    self.signal_all(Signal::SIGTERM);
                    kill_at = Some(Instant::now() + GRACE);
                }
                if all_read {
                    std::thread::sleep(LOOK);
                }
                continue;
            }
            self.over = None;
            if code == EXIT_INTERRUPTED {
                self.give_up.store(true, Ordering::Relaxed);
                leave_at.get_or_insert_with(|| Instant::now() + LAST_LINES);
            }
            if all_read || leave_at.is_some_and(|at| Instant::now() >= at) {
                return Ok(code);
            }
        }
    }

    fn signal_all(&self, signal: Signal) {
        for group in self.programs.iter().filter_map(|program| program.group) {
            // It may have ended in this moment.
            let _ = killpg(group, signal);
        }
    }
}

impl Started {
    /// Takes the status of a process that has ended.
    fn reap(&mut self) -> Result<ExitStatus, Failure> {
        let status = self.child.wait().doing(|| format!("can't wait for {}", self.name))?;
        self.ended = true;
        self.look_for_rest();
        Ok(status)
    }

    /// Forgets the group of a program that has ended once there is nobody in it: its number may become somebody else's then.
    fn look_for_rest(&mut self) {
        if let Some(group) = self.group
            && self.ended
            && killpg(group, None) == Err(Errno::ESRCH)
        {
            self.group = None;
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.programs.iter_mut().for_each(Started::look_for_rest);
        self.signal_all(Signal::SIGKILL);
        for program in &mut self.programs {
            // One that can't be waited for is gone.
            let _ = program.child.wait();
        }
        self.over = None;
        self.give_up.store(true, Ordering::Relaxed);
        // The threads end soon; one that still waits for a reader of its output is left to do so.
        let until = Instant::now() + LAST_LINES;
        while self.ended.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

impl Ends {
    /// Passes on what comes out of a pipe, on a thread of its own.
    fn read(&self, pipe: OwnedFd, program: &str, stream: Stream) -> Result<(), Failure> {
        let (name, sink, over, report) =
            (program.to_owned(), self.sink.clone(), self.over.clone(), self.report.clone());
        let reader = std::thread::Builder::new().spawn(move || {
            pass_on(pipe, &over, |line| sink(&name, stream, line));
            // Its end of the channel is what tells that all has been passed on.
            drop(report);
        });
        reader.doing(|| format!("a thread for {program}"))?;
        Ok(())
    }
}

/// A status as a shell would give it.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}
