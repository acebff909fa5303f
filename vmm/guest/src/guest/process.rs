//! The process of a guest's machine, which a thread of its own starts and waits for. The reason: a
//! child that ends with its parent ends with the *thread* that started it.

use std::{
    io,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};

use crate::tool;

/// A running process. It is killed on drop.
pub(crate) struct Process {
    shared: Arc<Shared>,
    /// The thread that started the process and waits for it, until it is joined.
    parent: Option<JoinHandle<()>>,
    pid: Pid,
}

/// The end of the process, which the thread shares with callers.
#[derive(Default)]
struct Shared {
    /// `Some` once it has ended. Its process id may then be reused.
    status: Mutex<Option<ExitStatus>>,
    ended: Condvar,
}

impl Shared {
    /// Locks the status.
    fn status(&self) -> MutexGuard<'_, Option<ExitStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Starts the command. The thread calls `ended` once, after the end of the process.
    pub(crate) fn start(mut command: Command, ended: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (report, reported) = mpsc::channel();
        let parent = std::thread::Builder::new().name("guest".into()).spawn({
            let shared = shared.clone();
            move || match tool::end_with_this_thread(&mut command).spawn() {
                Ok(child) => {
                    // The caller waits for this message, so it can't fail.
                    let _ = report.send(Ok(child.id()));
                    wait_and_reap(child, &shared);
                    ended();
                }
                Err(error) => {
                    let _ = report.send(Err(error));
                }
            }
        })?;

        let pid = reported.recv().map_err(io::Error::other)??;
        Ok(Self { shared, parent: Some(parent), pid: Pid::from_raw(pid as i32) })
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        *self.shared.status()
    }

    /// Waits at most `limit` for its end.
    pub(crate) fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        let mut status = self.shared.status();

        while status.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            status = self.shared.ended.wait_timeout(status, left).unwrap_or_else(PoisonError::into_inner).0;
        }

        *status
    }

    /// Sends it a signal, if it still runs.
    pub(crate) fn signal(&self, signal: Signal) {
        let status = self.shared.status();
        // While the lock is held the process is not reaped, so its id belongs to no other one.
        if status.is_none() {
            let _ = kill(self.pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(parent) = self.parent.take() {
            let _ = parent.join();
        }
    }
}

/// Waits for the child without reaping it, then reaps it under the lock: [`Process::signal`] holds
/// the lock too, so it never signals a process id that was reused.
fn wait_and_reap(mut child: Child, shared: &Shared) {
    let pid = Pid::from_raw(child.id() as i32);
    while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
    let mut status = shared.status();
    *status = child.wait().ok();
    shared.ended.notify_all();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_process_that_ends_reports_its_status() {
        let has_reported = Arc::new(AtomicBool::new(false));
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7"]);

        let process = Process::start(command, {
            let has_reported = has_reported.clone();
            move || has_reported.store(true, Ordering::SeqCst)
        })
        .unwrap();

        assert_eq!(process.wait(LONG).unwrap().code(), Some(7));

        drop(process);
        assert!(has_reported.load(Ordering::SeqCst));
    }

    #[test]
    fn a_dropped_process_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let process = Process::start(command, || ()).unwrap();
        let pid = process.pid();
        drop(process);
        assert_eq!(kill(pid, None), Err(Errno::ESRCH));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        assert!(Process::start(Command::new("/no/such/program"), || ()).is_err());
    }
}
