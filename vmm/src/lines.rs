//! Reads the lines of programs from their pipes, and prints them after the program's name.
//!
//! A program may leave its pipe open in a process that outlives it, and this process's own output
//! may be blocked. Both waits are bounded by the caller: [`forward_lines`] ends when `shutdown` is
//! closed, and [`Printer`] gives up when `give_up` returns true.

use std::{
    fs::File,
    io::{PipeReader, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use crate::escape;

/// The longest line that is passed on as one line, in bytes.
const MAX_LINE: usize = 64 * 1024;
/// The number of bytes that are read from a pipe at once.
const BUFFER_SIZE: usize = 16 * 1024;
/// The number of bytes that a writable pipe takes without blocking.
pub(crate) const PIPE_WRITE: usize = 4096;
/// The interval between two checks whether a blocked writer may give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Receives the lines of programs: the program's name, the output stream, and the line.
pub type LineSink = Arc<dyn Fn(&str, Stream, &str) + Send + Sync>;

/// An output stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Writes `name | line` to the stream that the line came from, one line at a time. The line is a
/// program's own output, and stays as it is.
pub struct Printer {
    /// Columns of the names.
    width: usize,
    /// Held while a line is written.
    one_at_a_time: Mutex<()>,
    /// Whether lines are dropped because the output stays blocked.
    given_up: AtomicBool,
}

impl Printer {
    /// Returns a printer whose names have `width` columns.
    pub fn new(width: usize) -> Self {
        Self { width, one_at_a_time: Mutex::new(()), given_up: AtomicBool::new(false) }
    }

    /// Writes a line. While the output is blocked, it calls `give_up` repeatedly. Once that returns
    /// true, this line and all later ones are dropped.
    pub fn line(&self, name: &str, stream: Stream, line: &str, give_up: &dyn Fn() -> bool) {
        let name = escape::one_line(name);
        self.print(stream, &format!("{name:width$} | {line}\n", width = self.width), give_up);
    }

    /// Writes a line without a name, as [`Self::line`] does.
    pub fn unnamed(&self, stream: Stream, line: &str, give_up: &dyn Fn() -> bool) {
        self.print(stream, &format!("{line}\n"), give_up);
    }

    /// Writes a text to a stream, unless the printer has given up.
    fn print(&self, stream: Stream, text: &str, give_up: &dyn Fn() -> bool) {
        let _one_at_a_time = self.one_at_a_time.lock();

        for piece in text.as_bytes().chunks(PIPE_WRITE) {
            while !self.given_up.load(Ordering::Relaxed) && !is_writable(stream, CHECK_INTERVAL) {
                self.given_up.fetch_or(give_up(), Ordering::Relaxed);
            }
            // A write fails when the reader has closed the output. That does not end the programs.
            if self.given_up.load(Ordering::Relaxed) || write(stream, piece).is_err() {
                return;
            }
        }
    }
}

/// Returns whether an output of this process is writable, or becomes so within the given time.
pub fn is_writable(stream: Stream, within: Duration) -> bool {
    let (out, err) = (std::io::stdout(), std::io::stderr());
    let fd = match stream {
        Stream::Output => out.as_fd(),
        Stream::Error => err.as_fd(),
    };

    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    // When the poll fails, the write is attempted.
    poll(&mut fds, PollTimeout::try_from(within).unwrap_or(PollTimeout::ZERO)).map_or(true, |ready| ready > 0)
}

/// Writes to a stream at once.
fn write(stream: Stream, piece: &[u8]) -> std::io::Result<()> {
    match stream {
        Stream::Output => {
            let mut out = std::io::stdout().lock();
            out.write_all(piece)?;
            out.flush()
        }
        Stream::Error => std::io::stderr().write_all(piece),
    }
}

/// Passes each line from `pipe` to `on_line` until the pipe is closed. Once the other end of
/// `shutdown` is closed, it ends when the pipe is empty.
pub fn forward_lines(pipe: OwnedFd, shutdown: &PipeReader, mut on_line: impl FnMut(&str)) {
    let mut pipe = File::from(pipe);
    let mut buffer = vec![0; BUFFER_SIZE];
    // The beginning of a line whose end has not been read.
    let mut pending = Vec::new();

    // The bytes that may still be read: at most the pipe's capacity after `shutdown` is closed. A
    // process that still writes to the pipe cannot prolong the loop.
    let mut remaining = usize::MAX;
    while remaining > 0 {
        let Ready { pipe: is_readable, shutdown: is_shut_down } = match wait(pipe.as_fd(), shutdown.as_fd()) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => continue,
            Err(_) => break,
        };

        if is_shut_down && remaining == usize::MAX {
            remaining = fcntl(&pipe, FcntlArg::F_GETPIPE_SZ).map_or(MAX_LINE, |size| size as usize);
        }

        if !is_readable {
            break;
        }

        let most = buffer.len().min(remaining);
        let received = match pipe.read(&mut buffer[..most]) {
            Ok(0) => break,
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };

        if is_shut_down {
            remaining -= received;
        }

        for piece in buffer[..received].split_inclusive(|&byte| byte == b'\n') {
            if pending.len() + piece.len() > MAX_LINE {
                on_line(&to_line(&pending));
                pending.clear();
            }
            pending.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                on_line(&to_line(&pending));
                pending.clear();
            }
        }
    }

    if !pending.is_empty() {
        on_line(&to_line(&pending));
    }
}

/// The result of [`wait`].
struct Ready {
    /// The pipe is readable or closed.
    pipe: bool,
    /// `shutdown` is closed.
    shutdown: bool,
}

/// Waits until the pipe is readable or closed, or `shutdown` is closed.
fn wait(pipe: BorrowedFd<'_>, shutdown: BorrowedFd<'_>) -> Result<Ready, Errno> {
    let mut fds = [PollFd::new(pipe, PollFlags::POLLIN), PollFd::new(shutdown, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::NONE)?;
    Ok(Ready { pipe: fds[0].any().unwrap_or(true), shutdown: fds[1].any().unwrap_or(true) })
}

/// Returns the text of a line, without its end.
fn to_line(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that are forwarded from a pipe with these bytes, which is closed or stays
    /// open while `shutdown` is closed.
    fn forwarded_lines(bytes: &[u8], close: bool) -> Vec<String> {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (shutdown, shutdown_writer) = std::io::pipe().unwrap();
        writer.write_all(bytes).unwrap();
        let writer = (!close).then_some(writer);
        drop(shutdown_writer);
        let mut lines = Vec::new();
        forward_lines(reader.into(), &shutdown, |line| lines.push(line.to_owned()));
        drop(writer);

        lines
    }

    #[test]
    fn bytes_in_a_pipe_are_passed_on_although_it_stays_open() {
        for close in [true, false] {
            assert_eq!(forwarded_lines(b"one\ntwo\r\n\nthree", close), ["one", "two", "", "three"]);
            assert!(forwarded_lines(b"", close).is_empty());
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_on_in_pieces() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (shutdown, _shutdown_writer) = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || writer.write_all(&[b'x'; 3 * MAX_LINE]).unwrap());
        let mut lines = Vec::new();
        forward_lines(reader.into(), &shutdown, |line| lines.push(line.len()));
        thread.join().unwrap();

        assert!(lines.iter().all(|&length| length <= MAX_LINE), "{lines:?}");
        assert_eq!(lines.iter().sum::<usize>(), 3 * MAX_LINE);
    }

    #[test]
    fn a_writer_that_continues_after_the_shutdown_is_not_waited_for() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (shutdown, shutdown_writer) = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || while writer.write_all(b"y\n").is_ok() {});
        drop(shutdown_writer);
        forward_lines(reader.into(), &shutdown, |_| ());
        thread.join().unwrap();
    }
}
