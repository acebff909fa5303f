//! Programs that a bench starts to count something, valgrind for example, and waits for.

use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use super::Run;
use crate::failure::{Doing, Failure};

/// How often to look whether it has ended.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a program until it ends; ends it when the user ends the run.
///
/// # Errors
/// When it can't be started; when the user has ended the run.
pub fn status(run: &Run<'_>, command: &mut Command) -> Result<ExitStatus, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Ctrl-C is this process's to act on: else its end would come first, and look like a failure.
    let mut child = command.process_group(0).spawn().doing(|| format!("can't start {name}"))?;
    loop {
        let ended = child.try_wait().doing(|| format!("waiting for {name}")).transpose();
        if let Some(status) = ended {
            return status;
        }
        if let Err(ended) = run.check() {
            // It may have ended in this moment.
            let _ = child.kill();
            let _ = child.wait();
            return Err(ended);
        }
        thread::sleep(LOOK);
    }
}
