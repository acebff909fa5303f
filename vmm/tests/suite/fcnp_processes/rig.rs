//! A served machine and the processes on its nodes.

use std::{
    collections::VecDeque,
    io::Write,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use nicforge_fcnp::{ComputeCore, Config, IoNode, Mode};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::program::{LIMIT, device};
use crate::{child_process, server};

/// A process on a node.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Reports that came while the test waited for another one.
    early: VecDeque<String>,
}

impl Process {
    /// Starts a process in a role: `compute`, `io` or `io-interrupt`.
    pub(crate) fn spawn(server: &Server, role: &str, node: &str, core: u32) -> Self {
        let mut child = child_process::command("fcnp_processes")
            .env("FCNP_ROLE", role)
            .env("FCNP_SOCKET", server.socket(node, core))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();

        let lines = child_process::reports(&mut child);
        let input = child.stdin.take().unwrap();
        Self { child, input, lines, early: VecDeque::new() }
    }

    /// Starts a process, and waits until it has opened its device.
    pub(crate) fn start(server: &Server, role: &str, node: &str, core: u32) -> Self {
        let mut process = Self::spawn(server, role, node, core);
        process.expect("ready");
        process
    }

    pub(crate) fn send_command(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Waits for the next line that begins with `start`, for at most `limit`. Returns the rest of
    /// the line.
    pub(crate) fn expect_within(&mut self, start: &str, limit: Duration) -> String {
        let begun = Instant::now();
        if let Some(at) = self.early.iter().position(|line| line.starts_with(start)) {
            return self.early.remove(at).unwrap()[start.len()..].trim().to_owned();
        }

        loop {
            let remaining = limit.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(remaining) {
                Ok(line) if line.starts_with(start) => return line[start.len()..].trim().to_owned(),
                Ok(line) => self.early.push_back(line),
                Err(_) => panic!("no {start:?} within {limit:?}, but {:?}", self.early),
            }
        }
    }

    /// Waits for the next line that begins with `start`, and returns its rest.
    pub(crate) fn expect(&mut self, start: &str) -> String {
        self.expect_within(start, LIMIT)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Stops the process, and returns when it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        wait_until("the process stops", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            tasks.flatten().all(|task| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
            })
        });
    }

    pub(crate) fn kill(mut self) {
        self.end();
    }

    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// `nicforge serve` with a pset.
pub(crate) struct Server(server::Server);

impl Server {
    pub(crate) fn start(compute_nodes: u32) -> Self {
        Self::start_with(compute_nodes, "auto")
    }

    /// Starts a server with the given event loop.
    pub(crate) fn start_with(compute_nodes: u32, event_loop: &str) -> Self {
        let text = format!("name = \"pset\"\n[[pset]]\ncompute_nodes = {compute_nodes}\n");
        Self(server::Server::of_text(&text, event_loop))
    }

    pub(crate) fn socket(&self, node: &str, core: u32) -> PathBuf {
        self.0.socket(&format!("{node}.core{core}"))
    }

    /// Returns the socket of a node's admin attachment, which has the system channel.
    pub(crate) fn admin_socket(&self, node: &str) -> PathBuf {
        self.0.socket(&format!("admin/{node}.admin"))
    }

    pub(crate) fn io_node(&self, mode: Mode) -> IoNode {
        let config = Config { mode, timeout: Some(LIMIT), open_timeout: LIMIT, ..Config::default() };
        IoNode::open(device(self.socket("io0", 0)), config).unwrap()
    }

    pub(crate) fn compute_core(&self, node: &str, core: u32) -> ComputeCore {
        let config = Config { timeout: Some(LIMIT), open_timeout: LIMIT, ..Config::default() };
        ComputeCore::open(device(self.socket(node, core)), config).unwrap()
    }

    /// Resets a node as an operator.
    pub(crate) fn reset(&self, node: &str) {
        let directory = self.0.directory();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicforge"));
        let status = command.arg("reset").arg(directory).arg(node).stdout(Stdio::null()).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill();
        self.0.child.wait().unwrap();
    }

    /// Returns the kernel objects that the server holds.
    pub(crate) fn held_resources(&self) -> ProcessResources {
        let process = PathBuf::from(format!("/proc/{}", self.0.pid()));
        let targets: Vec<_> = std::fs::read_dir(process.join("fd"))
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .collect();

        let files =
            |start: &str| targets.iter().filter(|target| target.to_string_lossy().starts_with(start)).count();
        let maps = std::fs::read_to_string(process.join("maps")).unwrap();

        ProcessResources {
            descriptors: targets.len(),
            sockets: files("socket:"),
            memory_files: files("/memfd:"),
            mapped_files: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        }
    }

    /// Returns the resident memory in KiB, without shared memory.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// Numbers of descriptors and mappings of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessResources {
    pub(crate) descriptors: usize,
    pub(crate) sockets: usize,
    pub(crate) memory_files: usize,
    pub(crate) mapped_files: usize,
}

/// Polls `condition` until it holds, for at most [`LIMIT`].
pub(crate) fn wait_until(description: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "not within {LIMIT:?}: {description}");
        crate::pause();
    }
}
