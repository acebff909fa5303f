//! `nicforge serve`, as an attack has it: started in a folder of its own, and killed when it is dropped.

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

/// The machine that is served.
const MACHINE: &str = include_str!("../machine.toml");
/// The soft limit on open files that the server is started with: a usual one.
const DESCRIPTORS: u32 = 1024;
/// How often a server that is ending is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// A served machine.
#[derive(Debug)]
pub struct Server {
    child: Child,
    folder: TempDir,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Until its sockets were gone; `None` when they were not in time.
    pub sockets: Option<Duration>,
    /// Until its process was gone; `None` when it was not in time.
    pub process: Option<Duration>,
    /// It ended with success.
    pub well: bool,
}

impl Server {
    /// Starts `program` with an event loop, `epoll` or `io_uring`. Its log goes to `log`, or to a pipe that is never read.
    ///
    /// # Errors
    /// When it cannot be started, or does not say that it serves.
    pub fn start(
        program: &Path,
        event_loop: &str,
        environment: &[(&str, &str)],
        log: Option<File>,
    ) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("nicforge-attack-").tempdir()?;
        let machine = folder.path().join("machine.toml");
        std::fs::write(&machine, MACHINE)?;

        // The shell lowers the limit and becomes the server.
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

    /// Where its sockets are.
    pub fn directory(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    /// A socket by its name, as in `polite.user0`.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Whether its process is still there.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_alive(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Asks it to end, as an operator does, and waits for that up to `limit`.
    ///
    /// # Errors
    /// What the system says.
    pub fn terminate(&mut self, limit: Duration) -> io::Result<End> {
        let start = Instant::now();
        kill(self.pid(), Signal::SIGTERM)?;
        let mut end = End { sockets: None, process: None, well: false };

        while start.elapsed() < limit && end.process.is_none() {
            if end.sockets.is_none() && !self.directory().exists() {
                end.sockets = Some(start.elapsed());
            }
            if let Some(status) = self.child.try_wait()? {
                end.process = Some(start.elapsed());
                end.well = status.success();
            }
            std::thread::sleep(LOOK);
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
        // One that has ended is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
