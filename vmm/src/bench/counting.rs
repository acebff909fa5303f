//! Runs counting programs, such as valgrind, for a benchmark, and waits for their end.

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use super::Run;
use crate::failure::{ErrorContext, Failure};

/// The interval between two checks whether the program has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Runs a program until it ends. When the user ends the run, the program is killed.
///
/// # Errors
/// Returns an error when the program cannot be started, and when the user has ended the run.
pub fn status(run: &Run<'_>, command: &mut Command) -> Result<ExitStatus, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    // A process group of its own keeps Ctrl-C from the program. Its end would otherwise look like a
    // failure.
    let mut child = command.process_group(0).spawn().context(|| format!("can't start {name}"))?;

    loop {
        let ended = child.try_wait().context(|| format!("waiting for {name}")).transpose();
        if let Some(status) = ended {
            return status;
        }

        if let Err(ended) = run.check() {
            // The program may have ended in this moment.
            let _ = child.kill();
            let _ = child.wait();
            return Err(ended);
        }

        thread::sleep(CHECK_INTERVAL);
    }
}
