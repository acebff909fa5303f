//! This binary as a process that runs one stream.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

use crate::{
    allocations,
    workload::{self, Door, Stream},
};

/// The variable that selects what a process counts.
const COUNTED: &str = "NICFORGE_TEST_COUNTED";

/// The kind of events that a process counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Allocations,
    SystemCalls,
}

/// A process that waits for a line on its standard input before it begins.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) output: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a process that runs only the test of this name.
    pub(crate) fn start(test: &str, counted: Counted) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(COUNTED, if counted == Counted::Allocations { "allocations" } else { "system calls" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();

        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(output.any(|line| line.unwrap() == "ready"));

        Self { child, output }
    }

    /// Lets the process begin with its stream.
    pub(crate) fn begin(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"begin\n").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the stream, if this process was started for it.
pub(crate) fn run(door: Door, stream: Stream) {
    // A traced yield is always late.
    nicforge_shm::pace::poll_for_good();
    let Ok(counted) = std::env::var(COUNTED) else { return };
    println!("\nready");
    std::io::stdin().lines().next();

    if counted == "allocations" {
        workload::run(door, stream, &allocations::mark);
        println!("\nallocations {}", allocations::counted().expect("all callers were between their marks"));
    } else {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        workload::run(door, stream, &crate::tracer::mark);
    }
}
