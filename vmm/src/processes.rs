//! Starts one program for each node or core, passes on their output, and ends all of them when one
//! fails.
//!
//! Each program has a process group of its own. Its descendants belong to the group and are ended
//! with it. A program has ended when its own process has. Neither a descendant nor a pipe that
//! another process keeps open delays that.

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
    failure::{EXIT_INTERRUPTED, ErrorContext, Failure, print_note},
    lines::{LineSink, Printer, Stream, forward_lines},
    signals::Signals,
};

/// The time between SIGTERM and SIGKILL, and between two of SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How long the remaining output may take after an interrupt or when the programs are dropped.
const LAST_LINES: Duration = Duration::from_secs(1);
/// The interval between two checks of signals and process groups.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A program to start.
pub struct Program {
    /// The prefix of its output lines.
    pub name: String,
    /// Program and arguments; must not be empty.
    pub command: Vec<String>,
    /// Variables that are added to its environment.
    pub environment: Vec<(String, String)>,
}

/// A program that was started.
struct RunningProgram {
    name: String,
    child: Child,
    /// Its process group, which has the number of its process. `None` when the group is empty.
    group: Option<Pid>,
    /// Whether its process was reaped. Until then the kernel does not reuse its number.
    ended: bool,
}

/// Running programs. Dropping this ends them.
pub struct Processes {
    programs: Vec<RunningProgram>,
    /// Receives the index of each program that has ended. It is closed when all programs have ended
    /// and all output has been passed on.
    ended: Receiver<usize>,
    /// Dropped when only the output that the pipes already contain is still read.
    shutdown: Option<PipeWriter>,
    /// Set when output that is not read must be dropped.
    give_up: Arc<AtomicBool>,
}

/// The handles that the threads of a program's output need.
struct OutputHandles {
    /// Sends the index of a program that has ended. Each output reader holds a clone of it until
    /// all output has been passed on.
    done_sender: Sender<usize>,
    /// Becomes readable when no further output is awaited.
    shutdown: Arc<PipeReader>,
    sink: LineSink,
}

impl Processes {
    /// Starts all programs, each in a process group of its own. Their lines are printed after
    /// their names.
    pub fn start_prefixed(programs: Vec<Program>) -> Result<Self, Failure> {
        let width = programs.iter().map(|program| program.name.len()).max().unwrap_or(0);
        let (printer, give_up) = (Printer::new(width), Arc::new(AtomicBool::new(false)));
        let may_give_up = give_up.clone();
        let sink: LineSink = Arc::new(move |name, stream, line| {
            printer.line(name, stream, line, &|| may_give_up.load(Ordering::Relaxed));
        });
        Self::start_with(programs, sink, give_up)
    }

    /// Starts all programs, each in a process group of its own. Their lines are passed to `sink`.
    pub fn start(programs: Vec<Program>, sink: LineSink) -> Result<Self, Failure> {
        Self::start_with(programs, sink, Arc::default())
    }

    /// Starts all programs. If one can't be started, those before it are ended. `give_up` is set
    /// when `sink` should drop output that is not read.
    fn start_with(programs: Vec<Program>, sink: LineSink, give_up: Arc<AtomicBool>) -> Result<Self, Failure> {
        let (done_sender, ended) = channel();
        // Nothing is ever written to this pipe: its closed end is the signal.
        let (shutdown_reader, shutdown_writer) = std::io::pipe().context(|| "a pipe".into())?;
        let handles = OutputHandles { done_sender, shutdown: Arc::new(shutdown_reader), sink };
        let mut processes = Self { programs: Vec::new(), ended, shutdown: Some(shutdown_writer), give_up };

        for program in programs {
            processes.start_one(program, &handles)?;
        }

        Ok(processes)
    }

    /// Starts a program in a process group of its own, with threads for its outputs and its end.
    fn start_one(&mut self, program: Program, handles: &OutputHandles) -> Result<(), Failure> {
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
        let mut child =
            command.spawn().context(|| format!("can't start {executable} for {}", program.name))?;

        let pid = Pid::from_raw(child.id() as i32);
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (index, done_sender) = (self.programs.len(), handles.done_sender.clone());
        self.programs.push(RunningProgram {
            name: program.name.clone(),
            child,
            group: Some(pid),
            ended: false,
        });
        if let Some(pipe) = out {
            handles.spawn_output_reader(pipe.into(), &program.name, Stream::Output)?;
        }
        if let Some(pipe) = err {
            handles.spawn_output_reader(pipe.into(), &program.name, Stream::Error)?;
        }

        let waiter = std::thread::Builder::new().spawn(move || {
            // This thread does not reap the process. The thread that sends signals reaps it, so
            // that no signal goes to a new process with the same number.
            while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            // The receiver is gone when the programs were dropped.
            let _ = done_sender.send(index);
        });
        waiter.context(|| format!("a thread for {}", program.name))?;
        Ok(())
    }

    /// Waits until all programs have ended.
    ///
    /// When one fails or a signal comes, the others are ended, too. When all have ended, their
    /// remaining descendants are ended. Returns the exit code of the first program that failed, or
    /// 0. A killed program's code is 128 plus the signal's number.
    pub fn wait(&mut self, signals: &Signals) -> Result<u8, Failure> {
        let mut code = 0;
        let mut phase = Phase::Running;
        let mut stop_reading_at: Option<Instant> = None;

        loop {
            let event = self.ended.recv_timeout(CHECK_INTERVAL);
            if let Ok(index) = event
                && let Some(failed) = self.reap(index, &phase)?
            {
                code = failed;
                phase = self.terminate();
            }

            if signals.take().is_some() && code != EXIT_INTERRUPTED {
                code = EXIT_INTERRUPTED;
                phase = self.terminate();
            }
            phase = self.kill_when_due(phase);

            if self.programs.iter().any(|program| !program.ended) {
                continue;
            }

            // All programs have ended. Their remaining descendants are ended next.
            self.programs.iter_mut().for_each(RunningProgram::forget_empty_group);
            // The threads that read outputs and wait for ends have all ended then.
            let all_output_read = matches!(event, Err(RecvTimeoutError::Disconnected));

            // After SIGKILL the groups are not awaited, because a descendant's parent may never
            // reap it.
            let has_descendants = self.programs.iter().any(|program| program.group.is_some());
            if has_descendants && !matches!(phase, Phase::Killing { .. }) {
                if matches!(phase, Phase::Running) {
                    phase = self.terminate();
                }
                // A channel without senders no longer blocks in `recv_timeout`.
                if all_output_read {
                    std::thread::sleep(CHECK_INTERVAL);
                }
                continue;
            }

            // The readers now end when their pipes are empty.
            self.shutdown = None;
            if code == EXIT_INTERRUPTED {
                self.give_up.store(true, Ordering::Relaxed);
                stop_reading_at.get_or_insert_with(|| Instant::now() + LAST_LINES);
            }

            if all_output_read || stop_reading_at.is_some_and(|at| Instant::now() >= at) {
                return Ok(code);
            }
        }
    }

    /// Reaps a program that has ended. Returns its exit code if it is the first one that failed.
    fn reap(&mut self, index: usize, phase: &Phase) -> Result<Option<u8>, Failure> {
        let status = self.programs[index].reap()?;
        let code = exit_code(status);
        if code == 0 || !matches!(phase, Phase::Running) {
            return Ok(None);
        }

        let name = &self.programs[index].name;
        print_note(format_args!("{name} ended with {status}; ending the others"));
        Ok(Some(code))
    }

    /// Sends SIGTERM to all programs and their descendants.
    fn terminate(&self) -> Phase {
        self.signal_all(Signal::SIGTERM);
        Phase::Terminating { kill_at: Instant::now() + GRACE }
    }

    /// Sends SIGKILL to the programs that ignore SIGTERM, when the grace period is over.
    fn kill_when_due(&self, phase: Phase) -> Phase {
        match phase {
            Phase::Terminating { kill_at: at } | Phase::Killing { repeat_at: at } if Instant::now() >= at => {
                self.signal_all(Signal::SIGKILL);
                Phase::Killing { repeat_at: Instant::now() + GRACE }
            }
            other => other,
        }
    }

    /// Sends a signal to the groups of all programs.
    fn signal_all(&self, signal: Signal) {
        for group in self.programs.iter().filter_map(|program| program.group) {
            // The group may have ended in this moment.
            let _ = killpg(group, signal);
        }
    }
}

/// How far the end of the programs has come.
enum Phase {
    /// No program has failed, and no signal has come.
    Running,
    /// SIGTERM was sent, and SIGKILL follows.
    Terminating { kill_at: Instant },
    /// SIGKILL was sent, and is repeated for processes that were started meanwhile.
    Killing { repeat_at: Instant },
}

impl RunningProgram {
    /// Reaps a process that has ended, and returns its status.
    fn reap(&mut self) -> Result<ExitStatus, Failure> {
        let status = self.child.wait().context(|| format!("can't wait for {}", self.name))?;
        self.ended = true;
        self.forget_empty_group();
        Ok(status)
    }

    /// Forgets the group of an ended program once it is empty. The kernel may then reuse the
    /// group's number.
    fn forget_empty_group(&mut self) {
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
        self.programs.iter_mut().for_each(RunningProgram::forget_empty_group);
        self.signal_all(Signal::SIGKILL);
        for program in &mut self.programs {
            // The wait fails only when the process no longer exists.
            let _ = program.child.wait();
        }

        self.shutdown = None;
        self.give_up.store(true, Ordering::Relaxed);
        // The threads end soon. A thread that is still blocked on its output is not awaited any
        // longer.
        let until = Instant::now() + LAST_LINES;

        while self.ended.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

impl OutputHandles {
    /// Starts a thread that passes on the output of a pipe until the pipe is closed, or until
    /// `shutdown` is closed and the pipe is empty.
    ///
    /// The thread is detached: a process may keep the pipe open, so a join could wait forever. Its
    /// end shows when it drops its `done_sender`.
    fn spawn_output_reader(&self, pipe: OwnedFd, program: &str, stream: Stream) -> Result<(), Failure> {
        let (name, sink) = (program.to_owned(), self.sink.clone());
        let (shutdown, done_sender) = (self.shutdown.clone(), self.done_sender.clone());
        let reader = std::thread::Builder::new().spawn(move || {
            forward_lines(pipe, &shutdown, |line| sink(&name, stream, line));
            // The drop of the last sender closes the channel: all output has been passed on.
            drop(done_sender);
        });
        reader.context(|| format!("a thread for {program}"))?;
        Ok(())
    }
}

/// Returns the exit code of a status, as shells compute it.
pub fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
        (None, None) => 1,
    }
}
