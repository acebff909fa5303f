//! `nicforge trace`: shows what crosses the boundary of a served machine's devices.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nicforge_trace::{Entry, Format, Selection, Writer};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    control::{Request, Response, TraceRequest, ask},
    directory::Directory,
    failure::{ErrorContext, Failure},
    signals::Signals,
    stat::{find_directory, unexpected_answer},
};

/// Time between two requests while nothing is new.
const INTERVAL: Duration = Duration::from_millis(20);

/// The events that `nicforge trace` shows, and where.
#[derive(Debug, Default)]
pub struct Options {
    /// The events to show.
    pub selection: Selection,
    /// Write for Perfetto's UI to this file, instead of text to standard output.
    pub perfetto: Option<PathBuf>,
    /// Print a JSON object for each event.
    pub json: bool,
    /// Show the last events that the server has kept, and end.
    pub last: Option<usize>,
    /// Show nothing before the first event that is an error, but this many events before it.
    pub before_error: Option<usize>,
    /// End after this time.
    pub duration: Option<Duration>,
    /// Number of records that the server keeps for this trace.
    pub records: usize,
}

/// Runs `nicforge trace` until its end or a signal. Returns the exit code.
pub fn main(directory: &Path, options: &Options) -> Result<u8, Failure> {
    let signals = Signals::block().context(|| "signals".into())?;
    let directory = find_directory(directory)?;
    let mut output = Output::new(options)?;
    let mut trace = Trace::start(directory, options)?;
    let until = options.duration.and_then(|duration| Instant::now().checked_add(duration));

    let kept_until = trace.end;
    loop {
        trace.read(&mut output)?;
        output.flush()?;

        let is_behind = trace.next < trace.end;
        let is_over = match options.last {
            Some(_) => trace.next >= kept_until,
            None => until.is_some_and(|until| Instant::now() >= until),
        };
        if is_over || has_signal(&signals, if is_behind { Duration::ZERO } else { INTERVAL }) {
            break;
        }
    }

    // The events until now count, too. The machine may go on to make more.
    if options.last.is_none() {
        trace.read(&mut output)?;
        let end = trace.end;
        while trace.next < end {
            trace.read(&mut output)?;
        }
    }
    output.finish()
}

/// Waits for a signal, for at most `limit`. Returns whether one has come.
fn has_signal(signals: &Signals, limit: Duration) -> bool {
    let mut fds = [PollFd::new(signals.fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    poll(&mut fds, timeout).is_ok_and(|ready| ready > 0) && signals.take().is_some()
}

/// A trace of a served machine. Dropping it ends the trace.
struct Trace {
    directory: Directory,
    number: u64,
    /// Number of the next record.
    next: u64,
    /// Number of the record that the machine makes next, as of the last answer.
    end: u64,
}

impl Trace {
    fn start(directory: Directory, options: &Options) -> Result<Self, Failure> {
        let request = TraceRequest::Start {
            selection: options.selection.clone(),
            records: options.records,
            last: options.last,
        };
        match ask(&directory, &Request::Trace(request))? {
            Response::TraceStarted { trace: number, from: next, end } => {
                Ok(Self { directory, number, next, end })
            }
            Response::Refused { message, is_usage_error: true } => Err(Failure::usage(message)),
            other => Err(unexpected_answer(&other)),
        }
    }

    /// Writes new events, as many as one answer has.
    fn read(&mut self, output: &mut Output) -> Result<(), Failure> {
        let request = TraceRequest::Read { trace: self.number, from: self.next };
        match ask(&self.directory, &Request::Trace(request))? {
            Response::Trace { entries, lost, next, end } => {
                if lost > 0 {
                    output.note_lost(lost)?;
                }
                for entry in entries {
                    output.show(entry)?;
                }
                (self.next, self.end) = (next, end);
                Ok(())
            }
            other => Err(unexpected_answer(&other)),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A server that is gone has no trace.
        let _ = ask(&self.directory, &Request::Trace(TraceRequest::Stop { trace: self.number }));
    }
}

/// Where the events go.
struct Output {
    writer: Writer<Box<dyn Write>>,
    /// Number of events that are shown before the first error, until it comes.
    before_error: Option<usize>,
    /// The last events before the first error.
    waiting: VecDeque<Entry>,
    lost: u64,
}

impl Output {
    fn new(options: &Options) -> Result<Self, Failure> {
        let (format, out): (_, Box<dyn Write>) = match &options.perfetto {
            Some(path) => {
                let file = File::create(path).context(|| path.display().to_string())?;
                (Format::Perfetto, Box::new(BufWriter::new(file)))
            }
            None => {
                let format = if options.json { Format::Json } else { Format::Text };
                (format, Box::new(BufWriter::new(std::io::stdout())))
            }
        };
        Ok(Self {
            writer: Writer::new(format, out),
            before_error: options.before_error,
            waiting: VecDeque::new(),
            lost: 0,
        })
    }

    /// Writes an event, or keeps it until the first error.
    fn show(&mut self, entry: Entry) -> Result<(), Failure> {
        if let Some(count) = self.before_error
            && !entry.is_error
        {
            self.waiting.push_back(entry);
            while self.waiting.len() > count {
                self.waiting.pop_front();
            }
            return Ok(());
        }

        self.before_error = None;
        for entry in self.waiting.drain(..).chain([entry]) {
            self.writer.write(&entry).context(|| "the trace".into())?;
        }
        Ok(())
    }

    fn note_lost(&mut self, count: u64) -> Result<(), Failure> {
        self.lost += count;
        self.writer.note_lost(count).context(|| "the trace".into())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.writer.flush().context(|| "the trace".into())
    }

    /// Completes the output. Lost events are said on standard error, too.
    fn finish(self) -> Result<u8, Failure> {
        self.writer.finish().context(|| "the trace".into())?;
        if self.lost > 0 {
            eprintln!(
                "{} events were lost; --records N keeps more of them, filters let fewer through",
                self.lost
            );
        }
        Ok(0)
    }
}
