//! A running `nicforge serve` in a folder of its own. It is killed on drop.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

/// The description of the served machine.
const MACHINE: &str = include_str!("../machine.toml");
/// The server's soft limit on open files: a usual one.
const DESCRIPTORS: u32 = 1024;
/// Polling interval of a server that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a server that the kernel keeps is given to end after its sockets are removed.
const KEPT_LIMIT: Duration = Duration::from_secs(1);

/// A served machine.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: TempDir,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Time until its sockets were removed; `None` when that exceeded the limit.
    pub sockets: Option<Duration>,
    /// Time until its process ended; `None` when that exceeded the limit.
    pub process: Option<Duration>,
    /// Whether it exited with success.
    pub succeeded: bool,
}

impl Server {
    /// Starts `program` with an event loop, `epoll` or `io_uring`, and with more arguments and
    /// environment variables. Its log goes to `log`, or to a pipe without a reader.
    ///
    /// # Errors
    /// When it cannot be started, or does not report that it serves.
    pub fn start(
        program: &Path,
        event_loop: &str,
        (arguments, environment): (&[&str], &[(&str, &str)]),
        log: Option<File>,
    ) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("nicforge-attack-").tempdir()?;
        let machine = folder.path().join("machine.toml");
        std::fs::write(&machine, MACHINE)?;

        // The shell lowers the limit and replaces itself with the server.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -S -n {DESCRIPTORS}; exec \"$@\""))
            .arg("sh")
            .arg(program)
            .arg("serve")
            .arg(&machine)
            .arg("--dir")
            .arg(folder.path().join("m"))
            .args(["--event-loop", &event_loop.replace('_', "-")])
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.map_or_else(Stdio::piped, Stdio::from))
            .spawn()?;

        let mut line = String::new();
        if let Some(output) = &mut child.stdout {
            BufReader::new(output).read_line(&mut line)?;
        }

        let server = Self { child, folder };
        if line.starts_with("serving ") {
            Ok(server)
        } else {
            Err(io::Error::other(format!("{} does not serve: {line:?}", program.display())))
        }
    }

    /// Returns the directory of the server's sockets.
    pub fn directory(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    /// Returns the path of one of the server's sockets by its name, as in `polite.user0`.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Checks whether the server's process still runs.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn check_alive(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Asks the server to end, as an operator does. Waits up to `limit` until its process has
    /// ended. If the kernel keeps the process, it waits only a second after the sockets are
    /// removed.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn terminate(&mut self, kernel_keeps_process: bool, limit: Duration) -> io::Result<End> {
        let start = Instant::now();
        kill(self.pid(), Signal::SIGTERM)?;
        let mut end = End { sockets: None, process: None, succeeded: false };
        let is_kept = |end: &End| {
            kernel_keeps_process && end.sockets.is_some_and(|removed| start.elapsed() > removed + KEPT_LIMIT)
        };

        while start.elapsed() < limit && end.process.is_none() && !is_kept(&end) {
            if end.sockets.is_none() && !self.directory().exists() {
                end.sockets = Some(start.elapsed());
            }
            if let Some(status) = self.child.try_wait()? {
                end.process = Some(start.elapsed());
                end.succeeded = status.success();
            }
            std::thread::sleep(POLL_INTERVAL);
        }

        if end.sockets.is_none() && !self.directory().exists() {
            end.sockets = end.process;
        }

        Ok(end)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
