//! The log on standard error, written by a thread of its own.
//!
//! The input is lines from `tracing`, on any thread. The output is standard error. A thread that
//! logs only puts its line into a bounded queue. A full pipe that is not read therefore delays
//! neither the engine nor the end of the process. Lines that find the queue full are dropped and
//! counted, and the log reports their number.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    env,
    fmt::{self, Debug},
    io::{self, IsTerminal, Write},
    panic::{self, PanicHookInfo},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::Duration,
};

use nicforge_core::panic::text_of;
use nix::sys::signal::{SigSet, SigmaskHow};
use tracing::{Subscriber, field::Field};
use tracing_subscriber::{
    EnvFilter,
    field::MakeExt,
    fmt::{MakeWriter, format},
    util::SubscriberInitExt,
};

use crate::{
    escape,
    failure::{ErrorContext, Failure, program},
    lines::{Stream, is_writable},
};

/// The greatest number of lines in the queue.
const MAX_QUEUED_LINES: usize = 1024;
/// The longest line in bytes. The rest of a longer line is cut off. A writable pipe takes this many
/// bytes without blocking.
const MAX_LINE: usize = 4096;
/// How long the end of the process waits for the remaining lines.
const LAST_LINES: Duration = Duration::from_millis(200);
/// The longest single wait of the writing thread for a writable output.
const MAX_SINGLE_WAIT: Duration = Duration::from_secs(60);

/// The queue that threads put their lines into. Clones share the queue.
#[derive(Clone, Debug)]
pub struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    /// Number of dropped lines that were not reported yet.
    dropped: Arc<AtomicU64>,
}

impl LogQueue {
    /// Returns a queue and its receiving end.
    fn new(capacity: usize) -> (Self, LogReceiver) {
        let (lines, receiver) = mpsc::sync_channel(capacity);
        let dropped = Arc::new(AtomicU64::new(0));
        (Self { lines, dropped: dropped.clone() }, LogReceiver { lines: receiver, dropped })
    }

    /// Queues a line, or counts it as dropped.
    fn put(&self, line: &[u8]) {
        let mut owned = line[..line.len().min(MAX_LINE)].to_vec();
        if line.len() > MAX_LINE {
            owned[MAX_LINE - 1] = b'\n';
        }
        if self.lines.try_send(owned).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine(self)
    }
}

/// Takes one line. `tracing` writes each line with one call.
#[derive(Debug)]
pub struct LogLine<'a>(&'a LogQueue);

impl Write for LogLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The receiving end of a [`LogQueue`].
struct LogReceiver {
    lines: Receiver<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

impl LogReceiver {
    /// Writes lines until an empty one comes, which marks the end, or until all senders are
    /// dropped.
    fn write_all(&self, mut write: impl FnMut(&[u8])) {
        while let Ok(line) = self.lines.recv() {
            if line.is_empty() {
                break;
            }

            write(&line);
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let notice = format!(
                    "{}: {dropped} lines of the log were dropped: standard error was not read\n",
                    program()
                );
                write(notice.as_bytes());
            }
        }
    }
}

/// The levels without NICFORGE_LOG. The library of virtio queues reports at a high level what a
/// guest has done wrong. The devices count that, and a guest must not fill the log.
const DEFAULT_LEVELS: &str = "warn,virtio_queue=off";

/// The log of this process. Dropping it writes the remaining lines, if the reader takes them within
/// 200 ms.
#[derive(Debug)]
pub struct Log {
    queue: LogQueue,
    /// The other end is dropped when all lines have been written.
    written: Receiver<()>,
}

impl Log {
    /// Starts the log of a program, with the levels that NICFORGE_LOG names. By default it has
    /// warnings and errors. Panics go to the log too, and not to standard error directly.
    ///
    /// # Errors
    /// Returns an error when the writing thread cannot be started.
    pub fn install() -> Result<Self, Failure> {
        let filter =
            EnvFilter::try_from_env("NICFORGE_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LEVELS));
        let log = Self::start().context(|| "the log's thread".into())?;
        subscriber(log.queue(), filter, has_colours()).init();
        panic::set_hook(Box::new(log_panic));
        Ok(log)
    }

    /// Starts the writing thread. It is never joined, because the process may end while the thread
    /// waits for a reader.
    ///
    /// # Errors
    /// Returns the errors of `std::thread::Builder::spawn`.
    fn start() -> io::Result<Self> {
        let (queue, receiver) = LogQueue::new(MAX_QUEUED_LINES);
        let (all_written, written) = mpsc::sync_channel(0);

        // A thread inherits the signal mask of its parent. All signals are blocked here, because
        // another thread will wait for them.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let started = thread::Builder::new().name("log".into()).spawn(move || {
            receiver.write_all(write_when_writable);
            drop(all_written);
        });
        mask.thread_set_mask()?;
        started?;

        Ok(Self { queue, written })
    }

    /// Returns the writer for `tracing`.
    pub fn queue(&self) -> LogQueue {
        self.queue.clone()
    }
}

/// Returns whether the log's lines have colours: on a terminal, unless NO_COLOR is set. Programs
/// and people that read a file or a pipe find no control sequences there.
fn has_colours() -> bool {
    io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns the subscriber that puts lines into a queue.
fn subscriber(queue: LogQueue, filter: EnvFilter, has_colours: bool) -> impl Subscriber + Send + Sync {
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_colours)
        .with_writer(queue)
        .fmt_fields(format::debug_fn(write_field).delimited(" "))
        .finish()
}

/// Writes a field of a line. Values may be of clients and guests, so each is put in one line
/// without control characters. The message itself may have several lines, for a back-trace.
fn write_field(writer: &mut format::Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = format!("{value:?}");
    match field.name() {
        "message" => writer.write_str(&escape::lines(&value)),
        // These describe where a line of the crate `log` comes from.
        name if name.starts_with("log.") => Ok(()),
        name => write!(writer, "{name}={}", escape::one_line(&value)),
    }
}

/// Logs a panic, with a back-trace if RUST_BACKTRACE asks for one.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    let message = text_of(panic.payload());

    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!("the thread {thread} panicked at {location}: {message}\n{trace}");
    } else {
        tracing::error!("the thread {thread} panicked at {location}: {message}");
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // An empty line marks the end. When the queue is full, its reader takes nothing, so the
        // process does not wait for it.
        let is_queued = self.queue.lines.try_send(Vec::new()).is_ok();
        let wait = if is_queued { LAST_LINES } else { Duration::ZERO };
        // The wait ends with the thread or at the time limit. In both cases the log has ended.
        match self.written.recv_timeout(wait) {
            Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

/// Writes a line to standard error once that is writable. The lock of standard error is therefore
/// held only for a moment.
fn write_when_writable(line: &[u8]) {
    while !is_writable(Stream::Error, MAX_SINGLE_WAIT) {}
    // Standard error may be closed, or on a full disk.
    let _ = io::stderr().write_all(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that are written until all senders are dropped.
    fn written(receiver: &LogReceiver) -> Vec<String> {
        let mut lines = Vec::new();
        receiver.write_all(|line| lines.push(String::from_utf8_lossy(line).into_owned()));
        lines
    }

    #[test]
    fn lines_that_find_the_queue_full_are_dropped_and_counted() {
        let (queue, receiver) = LogQueue::new(2);
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            queue.make_writer().write_all(line.as_bytes()).unwrap();
        }

        drop(queue);
        let lines = written(&receiver);

        assert_eq!(lines[0], "one\n");
        assert!(lines[1].contains("2 lines of the log were dropped"), "{lines:?}");
        assert_eq!(lines[2..], ["two\n"]);
    }

    #[test]
    fn values_of_others_neither_forge_lines_nor_send_control_sequences() {
        let (queue, receiver) = LogQueue::new(2);
        let subscriber = subscriber(queue.clone(), EnvFilter::new("warn"), false);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(reason = %"a\x1b[2J\u{9b}1m\nforged", pid = 7, "a client\nlost");
        });
        drop(queue);

        let lines = written(&receiver);
        let line = &lines[0];
        assert!(line.contains("a client\nlost"), "{line}");
        assert!(!line.contains('\x1b'), "{line:?}");
        assert!(line.ends_with("reason=a\\u001b[2J\\u009b1m\\nforged pid=7\n"), "{line:?}");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let (queue, receiver) = LogQueue::new(2);
        queue.make_writer().write_all(&[b'x'; 3 * MAX_LINE]).unwrap();
        drop(queue);
        let lines = written(&receiver);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].len() == MAX_LINE && lines[0].ends_with("x\n"));
    }
}
