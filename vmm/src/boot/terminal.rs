//! A guest's shell on this process's terminal. Bytes pass unchanged, so that the guest handles
//! Ctrl-C and line editing.

use std::{
    io::{self, IsTerminal, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, mpsc::channel},
    time::{Duration, Instant},
};

use nicforge_guest::{Guest, Job, Progress};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{self, SetArg, Termios},
};

use crate::{
    failure::{ErrorContext, Failure},
    lines::{Stream, is_writable},
};

/// The serial line's name in the guest.
const LINE: &str = "/dev/ttyS2";
/// Ctrl-D (4) twice. When the last line has no end, the first Ctrl-D only ends that line.
const END_OF_INPUT: [u8; 2] = [4; 2];
/// The interval between two checks in a wait, in milliseconds.
const CHECK_INTERVAL: u16 = 50;
/// The line that the job prints when the shell is about to read.
const READY: &str = "ready";

/// The terminal in raw mode. Its settings are restored when this is dropped.
struct RawMode<'a> {
    fd: BorrowedFd<'a>,
    /// The settings to restore.
    before: Termios,
}

impl<'a> RawMode<'a> {
    /// Sets the terminal's raw mode.
    fn new(fd: BorrowedFd<'a>) -> nix::Result<Self> {
        let before = termios::tcgetattr(fd)?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(fd, SetArg::TCSADRAIN, &raw)?;
        Ok(Self { fd, before })
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // A terminal that has been closed has no settings to restore.
        let _ = termios::tcsetattr(self.fd, SetArg::TCSADRAIN, &self.before);
    }
}

/// Runs a shell until it ends, for at most `limit`. Returns its exit status. For `takes_input` see
/// [`run_program`].
pub(super) fn run(
    guest: &Guest,
    limit: Duration,
    progress: &Progress,
    takes_input: impl FnMut(bool) -> Result<bool, Failure>,
) -> Result<u8, Failure> {
    run_script(guest, shell_script, limit, progress, takes_input)
}

/// Runs a program that sets the terminal's mode itself until it ends, for at most `limit`. Returns
/// its exit status.
///
/// `takes_input` is called again and again, with whether the script reads the line. The user's
/// input is left alone until both are so. A failure of `takes_input` ends the program.
pub(super) fn run_program(
    guest: &Guest,
    words: &[String],
    limit: Duration,
    progress: &Progress,
    takes_input: impl FnMut(bool) -> Result<bool, Failure>,
) -> Result<u8, Failure> {
    let words: Vec<_> = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let command = words.join(" ");
    let script = |_: bool| {
        format!(
            "exec 4>&1 0<>{LINE} 1>&0 2>&0\nstty 115200 raw -echo -hupcl\necho {READY} >&4\nexec {command} 4>&-"
        )
    };
    run_script(guest, script, limit, progress, takes_input)
}

/// Runs a script that reads and writes the serial line. `script` gets whether this process has a
/// terminal. For `takes_input` see [`run_program`].
fn run_script(
    guest: &Guest,
    script: impl FnOnce(bool) -> String,
    limit: Duration,
    progress: &Progress,
    mut takes_input: impl FnMut(bool) -> Result<bool, Failure>,
) -> Result<u8, Failure> {
    let Some(line) = guest.terminal() else {
        return Err(Failure::environment("the guest has no line for a shell"));
    };
    let stdin = io::stdin();
    let user = stdin.as_fd();
    let raw = user.is_terminal().then(|| RawMode::new(user)).transpose().context(|| "the terminal".into())?;
    let (report, reported) = channel();
    let shell = guest.start(Job::shell(script(raw.is_some())).on_line(Arc::new(move |_, line: &str| {
        // The guest's line loses bytes that arrive before the shell reads, so the user's input is
        // not read before this report.
        let _ = report.send(line == READY);
    })))?;

    let mut relay = Relay::new(line, user);
    let mut shell_reads = false;
    let until = Instant::now() + limit;

    let status = loop {
        shell_reads |= reported.try_iter().any(|is_ready| is_ready);
        let takes_input = takes_input(shell_reads)?;
        let from_guest = relay.pass(shell_reads && takes_input)?;

        // The guest's last output is shown before the end.
        if !from_guest && let Some(output) = shell.wait_for(Duration::ZERO)? {
            break output.status;
        }
        if progress.is_cancelled() {
            return Err(Failure::interrupted());
        }
        if Instant::now() >= until {
            return Err(Failure::environment(format!("the shell was ended after {limit:?} (--timeout)")));
        }
    };

    drop(raw);
    Ok(status)
}

/// Passes bytes between a guest's serial line and the user.
struct Relay<'a> {
    line: &'a UnixStream,
    user: BorrowedFd<'a>,
    /// Whether more bytes may come from the guest. The line ends with the guest.
    line_is_open: bool,
    user_has_input: bool,
}

impl<'a> Relay<'a> {
    fn new(line: &'a UnixStream, user: BorrowedFd<'a>) -> Self {
        Self { line, user, line_is_open: true, user_has_input: true }
    }

    /// Waits for bytes, for at most [`CHECK_INTERVAL`], and passes them. The user's input is left
    /// alone unless `shell_reads`. Returns whether the guest had output, so that there may be more.
    fn pass(&mut self, shell_reads: bool) -> Result<bool, Failure> {
        let wants_input = self.user_has_input && self.line_is_open && shell_reads;
        // A descriptor that has ended would end each wait at once, so it is left out.
        let mut fds = Vec::new();
        if self.line_is_open {
            fds.push(PollFd::new(self.line.as_fd(), PollFlags::POLLIN));
        }
        if wants_input {
            fds.push(PollFd::new(self.user, PollFlags::POLLIN));
        }

        // An interrupted poll is repeated by the next call.
        let _ = poll(&mut fds, PollTimeout::from(CHECK_INTERVAL));

        let is_ready = |index: usize| fds.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
        let (mut from_guest, from_user) = (is_ready(0), is_ready(1));

        // A blocked output must not keep the time limit from ending the shell.
        if from_guest && is_writable(Stream::Output, Duration::from_millis(CHECK_INTERVAL.into())) {
            from_guest = self.show_output()?;
        }
        if from_user {
            self.send_input()?;
        }
        Ok(from_guest)
    }

    /// Shows output of the guest. Returns false when the line has ended.
    fn show_output(&mut self) -> Result<bool, Failure> {
        let mut buffer = [0; 4096];
        let length = match self.line.read(&mut buffer) {
            // The guest has ended without reading all input.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            result => result.context(|| "the guest's line".into())?,
        };
        self.line_is_open = length > 0;
        show(&buffer[..length])?;
        Ok(self.line_is_open)
    }

    /// Sends input of the user to the guest, or the end of the input.
    fn send_input(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; 4096];
        // The read bypasses the standard library's buffer, because `poll` does not see bytes in
        // that buffer.
        let length = nix::unistd::read(self.user, &mut buffer).context(|| "standard input".into())?;
        self.user_has_input = length > 0;

        let bytes = if length == 0 { &END_OF_INPUT[..] } else { &buffer[..length] };
        self.line.write_all(bytes).context(|| "the guest's line".into())
    }
}

/// Returns the script that opens the serial line as the shell's controlling terminal and replaces
/// itself with the shell. The guest's job runner has started it as the leader of a new session.
///
/// An interactive shell has line editing and this terminal's size. Otherwise the shell reads
/// commands from the line, without echo, prompt or translation of line ends.
fn shell_script(interactive: bool) -> String {
    let size = std::env::var("LINES").ok().zip(std::env::var("COLUMNS").ok());
    let size = match size {
        Some((lines, columns)) if lines.parse::<u16>().is_ok() && columns.parse::<u16>().is_ok() => {
            format!("rows {lines} cols {columns}")
        }
        _ => String::new(),
    };

    let (mode, shell) = if interactive { ("", "sh -i") } else { ("-echo -onlcr", "sh -s") };
    format!(
        "exec 4>&1 0<>{LINE} 1>&0 2>&0\nstty 115200 sane -hupcl {mode} {size}\ncd /root\n\
         export PS1='\\h:\\w\\$ '\nhostname \"$NICFORGE_NODE\"\necho {READY} >&4\nexec {shell} 4>&-"
    )
}

/// Writes bytes of the guest to standard output.
fn show(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context(|| "standard output".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_has_ended_is_not_waited_for() {
        let (line, guest) = UnixStream::pair().unwrap();
        let (user, _input) = io::pipe().unwrap();
        let mut relay = Relay::new(&line, user.as_fd());
        drop(guest);

        // The first call finds the end.
        relay.pass(true).unwrap();
        let start = Instant::now();
        let has_output = relay.pass(true).unwrap();

        assert!(!has_output);
        assert!(start.elapsed() >= Duration::from_millis(CHECK_INTERVAL.into()) / 2);
    }

    #[test]
    fn bytes_pass_to_the_guest_when_the_shell_reads() {
        let (line, mut guest) = UnixStream::pair().unwrap();
        let (user, mut input) = io::pipe().unwrap();
        let mut relay = Relay::new(&line, user.as_fd());
        input.write_all(b"uptime\n").unwrap();
        guest.set_nonblocking(true).unwrap();

        relay.pass(false).unwrap();
        assert_eq!(guest.read(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        relay.pass(true).unwrap();
        let mut received = [0; 16];
        let length = guest.read(&mut received).unwrap();

        assert_eq!(&received[..length], b"uptime\n");
    }
}
