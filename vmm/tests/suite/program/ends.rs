//! The end of `nicforge run`: when its programs end, whatever they leave behind, and after a
//! signal, whatever hangs.

use std::{
    fs::File,
    io::Read,
    os::fd::AsRawFd,
    path::PathBuf,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{machine, nicforge, wait};

/// The longest wait. It is shorter than the sleeps of the started programs.
const SOON: Duration = Duration::from_secs(60);

/// A `nicforge run` of three nodes in a folder of its own. Processes that wrote their number into a
/// file there are killed at the end.
struct Run {
    folder: tempfile::TempDir,
    child: Child,
    started: Instant,
}

impl Run {
    /// Starts `nicforge run` with programs, which find a folder in the variable `HERE`.
    fn start(programs: &[&str], stdout: Stdio, stderr: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = nicforge(&["run", &machine("proof.toml"), "--dir"])
            .arg(folder.path().join("m"))
            .args(programs)
            .env("HERE", folder.path())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();

        Self { folder, child, started: Instant::now() }
    }

    /// Starts programs whose output is discarded.
    fn without_output(programs: &[&str]) -> Self {
        Self::start(programs, Stdio::null(), Stdio::null())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the process that wrote its number into a file.
    fn pid(&self, name: &str) -> Pid {
        poll_until("a process number", || std::fs::read_to_string(self.file(name)).ok()?.trim().parse().ok())
            .map(Pid::from_raw)
            .unwrap()
    }

    /// Waits for the end and returns the exit code. Asserts that no sockets are left behind.
    fn end(&mut self) -> Option<i32> {
        let code = wait(&mut self.child);
        assert!(self.started.elapsed() < SOON);
        assert!(!self.file("m").exists(), "the directory is left behind");
        code
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for entry in std::fs::read_dir(self.folder.path()).unwrap().flatten() {
            if let Ok(pid) = std::fs::read_to_string(entry.path()).unwrap_or_default().trim().parse() {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

/// Calls `attempt` repeatedly until it returns a value, for at most [`SOON`].
fn poll_until<T>(description: &str, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        assert!(start.elapsed() < SOON, "{description}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process runs. A process that has ended but was not reaped does not.
fn is_running(pid: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit_once(") ").map_or("", |(_, rest)| rest);
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

#[test]
fn run_does_not_wait_for_a_pipe_held_outside_its_process_group() {
    let mut run =
        Run::without_output(&["--", "setsid", "sh", "-c", "echo $$ > $HERE/$NICFORGE_NODE; exec sleep 1000"]);
    assert_eq!(run.end(), Some(0));
}

#[test]
fn run_ends_on_ctrl_c_although_an_unreachable_process_holds_a_pipe() {
    let script = "setsid sh -c 'echo $$ > $HERE/$NICFORGE_NODE; exec sleep 1000' & sleep 1000";
    let mut run = Run::without_output(&["--fifo0", "sh", "-c", script]);
    let out_of_reach = run.pid("fifo0");
    kill(Pid::from_raw(run.child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(run.end(), Some(130));
    assert!(is_running(out_of_reach));
}

#[test]
fn run_sees_a_failure_although_a_descendant_keeps_the_pipe() {
    let fails = "sleep 1000 & echo $! > $HERE/sleeper; exit 7";
    let mut run = Run::without_output(&["--dma0", "sh", "-c", fails, ":", "sleep", "1000"]);
    assert_eq!(run.end(), Some(7));
}

#[test]
fn run_kills_the_children_of_an_ended_program() {
    let stubborn = "trap '' TERM; echo $$ > $HERE/stubborn; while :; do sleep 1; done";
    let leaves = format!("sh -c \"{}\" >/dev/null 2>&1 &", stubborn.replace('$', "\\$"));
    let waits = "until test -s $HERE/stubborn; do sleep .05; done; exit 4";
    let mut run = Run::without_output(&["--fifo0", "sh", "-c", &leaves, ":", "--dma0", "sh", "-c", waits]);
    let stubborn = run.pid("stubborn");
    assert_eq!(run.end(), Some(4));
    poll_until("the end of what was left behind", || (!is_running(stubborn)).then_some(()));
}

#[test]
fn run_prints_all_output_of_a_program_before_its_end() {
    let mut run = Run::start(&["--dma0", "sh", "-c", "seq 1 20000; exit 5"], Stdio::piped(), Stdio::null());
    let mut stdout = String::new();
    run.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(run.end(), Some(5));
    assert_eq!(stdout.lines().count(), 20_000);
    assert_eq!(stdout.lines().last(), Some("dma0 | 20000"));
}

#[test]
fn run_ends_on_ctrl_c_although_its_output_is_not_read() {
    let (reader, writer) = std::io::pipe().unwrap();
    let error = writer.try_clone().unwrap();
    let mut run = Run::start(&["--", "yes"], writer.into(), error.into());
    let size = fcntl(&reader, FcntlArg::F_GETPIPE_SZ).unwrap();

    // A pipe that is not writable is full.
    let full = File::options().write(true).open(format!("/proc/self/fd/{}", reader.as_raw_fd())).unwrap();
    poll_until(&format!("{size} bytes that nobody reads"), || {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        use std::os::fd::AsFd;
        let mut fds = [PollFd::new(full.as_fd(), PollFlags::POLLOUT)];
        (poll(&mut fds, PollTimeout::ZERO) == Ok(0)).then_some(())
    });

    kill(Pid::from_raw(run.child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(run.end(), Some(130));
}

#[test]
fn run_gives_its_programs_code_although_standard_error_is_full() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut run =
        Run::start(&["--dma0", "sh", "-c", "exit 3", ":", "sleep", "1000"], Stdio::null(), full().into());
    assert_eq!(run.end(), Some(3));
}
