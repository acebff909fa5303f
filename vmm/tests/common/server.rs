//! A `nicforge serve` process for tests. It is started in a directory of its own, and killed when
//! it is dropped.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tempfile::TempDir;

/// A served machine.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) folder: TempDir,
}

impl Server {
    /// Serves the machine of a machine file's text, with an event loop: `auto` or `epoll`.
    pub(crate) fn of_text(text: &str, event_loop: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine.toml");
        std::fs::write(&file, text).unwrap();
        Self::start_in(folder, &file, &["--event-loop", event_loop])
    }

    /// Serves one of the project's machines, with further options.
    pub(crate) fn of_machine(name: &str, more: &[&str]) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machines").join(name);
        Self::start_in(tempfile::tempdir().unwrap(), &file, more)
    }

    /// Serves a machine file in directory `m` of a folder. It returns when the sockets exist.
    pub(crate) fn start_in(folder: TempDir, file: &Path, more: &[&str]) -> Self {
        Self::start_command(folder, file, more, Stdio::inherit())
    }

    /// Serves as [`Self::start_in`] does, with the log in a file.
    pub(crate) fn start_with_log(folder: TempDir, file: &Path, more: &[&str], log: &Path) -> Self {
        Self::start_command(folder, file, more, File::create(log).unwrap().into())
    }

    fn start_command(folder: TempDir, file: &Path, more: &[&str], log: Stdio) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nicforge"))
            .arg("serve")
            .arg(file)
            .arg("--dir")
            .arg(folder.path().join("m"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();

        // The server prints a line once its sockets exist.
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();

        assert!(line.starts_with("serving "), "{line}");
        Self { child, folder }
    }

    /// Returns the directory of the sockets.
    pub(crate) fn directory(&self) -> PathBuf {
        self.folder.path().join("m")
    }

    /// Returns a socket by its name, such as `cn0.core1`.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Stops the server, and returns when all its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let status = waitpid(self.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
        assert_eq!(status, WaitStatus::Stopped(self.pid(), Signal::SIGSTOP));
    }

    /// Kills the server, and returns the time of the kill. The process may still be ending when
    /// this returns.
    pub(crate) fn kill(&mut self) -> Instant {
        let at = Instant::now();
        self.child.kill().unwrap();
        at
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
