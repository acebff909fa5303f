//! The test program as a process on a node: it runs one function `child_process_body`, and reports
//! by lines on standard error.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// The longest wait for a line.
const LIMIT: Duration = Duration::from_secs(30);
/// Start of the lines that are reports. Other lines are passed on to standard error.
const REPORT_PREFIX: &str = "> ";

/// A process that runs a function `child_process_body`. It is killed when this is dropped.
pub(crate) struct ChildProcess {
    child: Child,
    lines: Receiver<String>,
}

/// Reports a line to the test. It is written by one system call, so that a process that is killed
/// leaves no part of a line.
pub(crate) fn report(line: impl std::fmt::Display) {
    let line = format!("{REPORT_PREFIX}{line}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Returns the command that runs the function `child_process_body` of a module of this test
/// program. Its input is empty.
pub(crate) fn command(module: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("{module}::child_process_body"), "--nocapture", "--test-threads=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Returns the reports of a process that [`command`] has started.
pub(crate) fn reports(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    let output = BufReader::new(child.stderr.take().unwrap());
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            match line.strip_prefix(REPORT_PREFIX) {
                Some(line) => drop(sender.send(line.to_owned())),
                None => eprintln!("{line}"),
            }
        }
    });
    lines
}

impl ChildProcess {
    /// Starts the function `child_process_body` of a module of this test program, with environment
    /// variables.
    pub(crate) fn start(module: &str, variables: &[(&str, &OsStr)]) -> Self {
        let mut child = command(module).envs(variables.iter().copied()).spawn().unwrap();
        let lines = reports(&mut child);
        Self { child, lines }
    }

    /// Waits for the next report.
    pub(crate) fn expect(&self, expected: &str) {
        assert_eq!(self.lines.recv_timeout(LIMIT).as_deref(), Ok(expected));
    }

    /// Returns the next report, if it has arrived.
    pub(crate) fn next(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Kills the process by SIGKILL, and returns the reports that nothing has read.
    pub(crate) fn kill(&mut self) -> Vec<String> {
        self.end();
        // The thread that reads the process's output has ended with the pipe, so the iteration
        // ends.
        self.lines.iter().collect()
    }

    /// Waits for the end of the process, and returns the reports that nothing has read.
    pub(crate) fn finish(self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(LIMIT) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => return lines,
                Err(RecvTimeoutError::Timeout) => panic!("the process does not end"),
            }
        }
    }

    /// Kills the process, and waits for its end.
    fn end(&mut self) {
        // This is SIGKILL. The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}
