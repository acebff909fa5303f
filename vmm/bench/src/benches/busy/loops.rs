//! The processes that only compute.

use std::{
    os::unix::process::CommandExt,
    process::{Child, Stdio},
};

use nicforge::failure::{ErrorContext, Failure};

use super::{BENCH, group::child_command, task::Task};

/// Running processes that compute. Dropping this ends them. They also end when this process is
/// killed.
pub(super) struct Loops(Vec<Child>);

impl Loops {
    /// Starts `count` processes.
    pub(super) fn start(count: u32) -> Result<Self, Failure> {
        let mut loops = Self(Vec::new());
        for _ in 0..count {
            let mut command = child_command(&Task::Loop)?;
            // Only the parent acts on Ctrl-C.
            command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
            let child = command.spawn().context(|| format!("a busy process of `bench {}`", BENCH.name))?;
            loops.0.push(child);
        }
        Ok(loops)
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        // All are killed before the first is awaited: the others would keep the processors.
        for child in &mut self.0 {
            // The kill of a process that has ended fails.
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
