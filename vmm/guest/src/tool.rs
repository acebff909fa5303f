//! Runs the host's tools. Cancelled work stops them, they end with this process, and their
//! output is kept for the error.
//!
//! UNSAFETY: code between fork and exec is unsafe by its interface; here it makes two system calls.
#![allow(unsafe_code, reason = "a child asks the kernel to be ended with its parent")]

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, killpg},
    },
    unistd::{Pid, getpid, getppid},
};

use crate::{
    error::{ErrorContext, GuestError},
    progress::{CHECK_INTERVAL, Progress},
};

/// The part of a tool's output that its error keeps, in bytes.
const MAX_KEPT_OUTPUT: usize = 4096;
/// The longest line that is passed on in one piece, in bytes.
const MAX_LINE: u64 = 64 * 1024;

/// Puts the command's process into a process group of its own, and has the kernel kill it when the
/// calling thread ends.
///
/// The end of the *thread* counts, not of the process. The thread must therefore wait for the
/// child.
pub(crate) fn end_with_this_thread(command: &mut Command) -> &mut Command {
    command.process_group(0);
    let parent = getpid();
    let before_exec = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // If the parent has ended already, the signal never comes.
        if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };

    // SAFETY: the closure makes two system calls, which are async-signal-safe, and allocates no
    // memory.
    unsafe { command.pre_exec(before_exec) }
}

/// Runs a tool to its end and returns the lines of its standard output. `on_line` gets each as it
/// arrives. `what` is the operation, for errors.
pub(crate) fn run(
    what: &str,
    command: &mut Command,
    progress: &Progress,
    on_line: impl Fn(&str) + Send + 'static,
) -> Result<Vec<String>, GuestError> {
    progress.check()?;
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = end_with_this_thread(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| GuestError::Start { what: what.to_owned(), program, source })?;

    let output = child.stdout.take().map(|pipe| collect(pipe, on_line));
    let errors = child.stderr.take().map(|pipe| collect(pipe, |_| ()));
    let status = wait(what, &mut child, progress);
    let output = output.map(join_reader).unwrap_or_default();
    let errors = errors.map(join_reader).unwrap_or_default();
    let status = status?;
    if status.success() {
        return Ok(output);
    }

    // Some tools report their errors on standard output.
    let reported = if errors.iter().all(|line| line.trim().is_empty()) { &output } else { &errors };
    Err(GuestError::Tool { what: what.to_owned(), status, output: last_lines(reported) })
}

/// Runs a tool to its end and returns the lines of its standard output, as [`run`] does.
pub(crate) fn run_quietly(
    what: &str,
    command: &mut Command,
    progress: &Progress,
) -> Result<Vec<String>, GuestError> {
    run(what, command, progress, |_| ())
}

/// Waits for the end of a tool. A cancellation ends the tool and its children.
fn wait(what: &str, child: &mut Child, progress: &Progress) -> Result<std::process::ExitStatus, GuestError> {
    loop {
        if let Some(status) = child.try_wait().context(|| what.to_owned())? {
            return Ok(status);
        }

        if progress.is_cancelled() {
            // The tool's own children hold the pipes open too, so the whole group is killed.
            let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            let _ = child.wait();
            return Err(GuestError::Cancelled);
        }

        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Starts a thread that reads lines until the pipe ends, passes each to `on_line`, and returns all
/// of them.
fn collect(
    pipe: impl Read + Send + 'static,
    on_line: impl Fn(&str) + Send + 'static,
) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut lines = Vec::new();
        let mut bytes = Vec::new();

        loop {
            bytes.clear();
            match pipe.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return lines,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                    on_line(&text);
                    lines.push(text);
                }
            }
        }
    })
}

/// Waits for the end of a thread that collects lines, and returns them.
fn join_reader(reader: JoinHandle<Vec<String>>) -> Vec<String> {
    reader.join().unwrap_or_default()
}

/// Returns the last whole lines that fit into [`MAX_KEPT_OUTPUT`].
fn last_lines(lines: &[String]) -> String {
    let mut bytes = 0;
    let fits = |line: &&String| {
        bytes += line.len() + 1;
        bytes <= MAX_KEPT_OUTPUT
    };
    let mut end: Vec<&str> = lines.iter().rev().take_while(fits).map(String::as_str).collect();

    end.reverse();
    end.join("\n")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_error_of_a_failed_tool_has_its_output() {
        let error = run_quietly("try", &mut shell("echo well; echo badly >&2; exit 3"), &Progress::silent())
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("try failed") && text.contains("badly") && !text.contains("well"), "{text}");
    }

    #[test]
    fn the_error_names_a_missing_tool() {
        let error = run_quietly("try", &mut Command::new("/no/such/tool"), &Progress::silent()).unwrap_err();
        assert!(error.to_string().contains("can't start /no/such/tool"), "{error}");
    }

    #[test]
    fn a_cancelled_tool_is_ended_with_its_children() {
        let start = Instant::now();
        let progress = Progress::silent().cancelled_by(move || start.elapsed() > Duration::from_millis(100));
        let error = run_quietly("try", &mut shell("sleep 600 & sleep 600"), &progress).unwrap_err();
        assert!(matches!(error, GuestError::Cancelled), "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
