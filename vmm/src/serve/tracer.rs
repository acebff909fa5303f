//! The trace of a served machine: a recorder in the engine, from which requests at the control
//! socket and the option `--trace` read.
//!
//! The recorder of `--trace` and `--trace-ring` stays for the server's life. Otherwise a client of
//! the control socket starts one, and it ends with the client: when the client says so, or when it
//! has not asked for [`LEASE`].

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_core::machine::Machine;
use nicforge_engine::{Control, EngineHandle};
use nicforge_trace::{Batch, Capture, Filter, Format, Names, Observer, Recorder, Selection, Writer};

use crate::{
    cli::CaptureOption,
    control::{Response, TraceRequest},
    failure::{ErrorContext, Failure},
};

/// How long the engine may take to answer. It answers between two steps.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Most records that one call copies on the engine's thread.
const MAX_BATCH: usize = 4096;
/// Largest number of records that a client may ask to be kept.
const MAX_RECORDS: usize = 1 << 20;
/// How long a client may be silent before its trace ends.
const LEASE: Duration = Duration::from_secs(5);
/// How often the option `--trace` reads. The recorder has room for what comes meanwhile.
const FILE_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of packets that wait to be written. Further packets are lost, and counted.
const CAPTURE_BYTES: usize = 16 << 20;

/// Lets the machine record its events for the server's life, and taps its links.
pub(super) fn keep_records(machine: &mut Machine, records: usize) {
    Observer::change(machine, |observer| observer.recorder = Some(Recorder::new(Filter::all(), records)));
}

/// Returns copies of records, from number `from` on; `None` if nothing is recorded.
fn read(handle: &EngineHandle, from: u64) -> Result<Option<Batch>, String> {
    let batch = handle.call(TIMEOUT, move |control| {
        let observer = control.machine().trace_sink::<Observer>()?;
        Some(observer.recorder.as_ref()?.read(from, MAX_BATCH))
    });
    batch.map_err(|error| error.to_string())
}

/// Returns the names of the engine's machine.
fn names(handle: &EngineHandle) -> Result<Names, String> {
    handle.call(TIMEOUT, |control| Names::of(control.machine())).map_err(|error| error.to_string())
}

/// Lets a machine capture the ports of an option. The captures have the order of the options.
///
/// # Errors
/// Returns a [`Failure`] of usage for a port that does not exist.
pub(super) fn capture(machine: &mut Machine, option: &CaptureOption) -> Result<(), Failure> {
    let capture = Capture::new(machine, &option.ports, CAPTURE_BYTES);
    let capture = capture.map_err(|error| Failure::usage(error.to_string()))?;
    Observer::change(machine, |observer| observer.captures.push(capture));
    Ok(())
}

/// Answers requests about the trace.
pub(super) struct Tracer {
    handle: EngineHandle,
    /// Whether the machine records for the server's life.
    is_kept: bool,
    state: Mutex<State>,
}

/// The trace of one client at a time.
#[derive(Default)]
struct State {
    /// The machine's names, once they were asked for.
    names: Option<Arc<Names>>,
    /// Number of the last trace.
    last_number: u64,
    live: Option<Live>,
}

/// A client's trace.
struct Live {
    number: u64,
    /// The events that the client wants. A recorder that is not kept has no others.
    filter: Filter,
    asked_at: Instant,
}

impl Tracer {
    /// Returns the tracer of an engine, whose machine records already if `is_kept`.
    pub(super) fn new(handle: EngineHandle, is_kept: bool) -> Arc<Self> {
        Arc::new(Self { handle, is_kept, state: Mutex::default() })
    }

    /// Answers a request.
    pub(super) fn answer(self: &Arc<Self>, request: &TraceRequest) -> Response {
        let answer = match request {
            TraceRequest::Start { selection, records, last } => self.start(selection, *records, *last),
            TraceRequest::Read { trace, from } => self.read(*trace, *from),
            TraceRequest::Stop { trace } => Ok(self.stop(*trace)),
        };
        answer.unwrap_or_else(|message| Response::Refused { message, is_usage_error: false })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a client's trace. With `last`, it begins that many records before the present.
    fn start(
        self: &Arc<Self>,
        selection: &Selection,
        records: usize,
        last: Option<usize>,
    ) -> Result<Response, String> {
        let mut state = self.lock();
        if state.live.as_ref().is_some_and(|live| live.asked_at.elapsed() < LEASE) {
            return Err(
                "another program traces this machine; end it, or wait five seconds after its end".into()
            );
        }
        if last.is_some() && !self.is_kept {
            let hint = "the server keeps no records; serve the machine with --trace-ring RECORDS";
            return Ok(Response::Refused { message: hint.into(), is_usage_error: true });
        }

        let names = match &state.names {
            Some(names) => Arc::clone(names),
            None => Arc::new(names(&self.handle)?),
        };
        state.names = Some(Arc::clone(&names));
        let filter = match Filter::new(selection, &names) {
            Ok(filter) => filter,
            Err(error) => {
                return Ok(Response::Refused { message: error.to_string(), is_usage_error: true });
            }
        };

        // The memory is allocated here, and not on the engine's thread.
        let is_kept = self.is_kept;
        let new = (!is_kept).then(|| Recorder::new(filter.clone(), records.clamp(1, MAX_RECORDS)));
        let end = self.handle.call(TIMEOUT, move |control| {
            Observer::change(control.machine(), |observer| {
                if new.is_some() {
                    observer.recorder = new;
                }
                observer.recorder.as_ref().map_or(0, Recorder::next)
            })
        });
        let end = end.map_err(|error| error.to_string())?;

        state.last_number += 1;
        let number = state.last_number;
        state.live = Some(Live { number, filter, asked_at: Instant::now() });
        drop(state);
        if !is_kept {
            self.end_when_silent(number)?;
        }
        let from = end - (last.unwrap_or(0) as u64).min(end);
        Ok(Response::TraceStarted { trace: number, from, end })
    }

    /// Starts the thread that ends a trace whose client is silent.
    fn end_when_silent(self: &Arc<Self>, number: u64) -> Result<(), String> {
        let tracer = Arc::downgrade(self);
        let is_over = move |tracer: &Weak<Self>| {
            let Some(tracer) = tracer.upgrade() else { return true };
            let state = tracer.lock();
            let Some(live) = state.live.as_ref().filter(|live| live.number == number) else { return true };
            let is_silent = live.asked_at.elapsed() >= LEASE;
            drop(state);
            if is_silent {
                tracer.stop(number);
            }
            is_silent
        };
        let watch = move || {
            while !is_over(&tracer) {
                std::thread::sleep(LEASE / 5);
            }
        };
        let started = std::thread::Builder::new().name("nicforge-trace".into()).spawn(watch);
        started.map(drop).map_err(|error| format!("a thread for the trace: {error}"))
    }

    /// Returns the next records of a client's trace.
    fn read(&self, number: u64, from: u64) -> Result<Response, String> {
        let mut state = self.lock();
        let names = state.names.clone();
        let over = || "the trace is over, because its client was silent; start it again".to_owned();
        let live = state.live.as_mut().filter(|live| live.number == number).ok_or_else(over)?;
        live.asked_at = Instant::now();
        let filter = live.filter.clone();
        drop(state);

        let batch = read(&self.handle, from)?.ok_or_else(over)?;
        let Some(names) = names else { return Err(over()) };
        let selected = batch.records.iter().filter(|record| filter.accepts(record));
        Ok(Response::Trace {
            entries: selected.map(|record| names.entry(record)).collect(),
            lost: batch.lost,
            next: batch.next,
            end: batch.end,
        })
    }

    /// Ends a client's trace, unless it is over already.
    fn stop(&self, number: u64) -> Response {
        let mut state = self.lock();
        if state.live.as_ref().is_some_and(|live| live.number == number) {
            state.live = None;
            if !self.is_kept {
                // If the queue of commands is full, the engine is about to end.
                let _ = self.handle.send(|control| {
                    Observer::change(control.machine(), |observer| observer.recorder = None);
                });
            }
        }
        Response::Done
    }
}

/// A thread that writes to a file what the engine collects for it. Dropping it writes the rest, and
/// waits for that.
pub(super) struct FileThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileThread {
    /// Ends all threads. Each waits for the engine's last answer, at the same time as the others.
    pub(super) fn end_all(mut files: Vec<Self>) {
        files.iter_mut().for_each(|file| file.stop = None);
    }

    /// Starts a thread that calls `write_new` every [`FILE_INTERVAL`], and a last time at the end,
    /// before `finish`. The first error ends it, and is logged.
    fn start<W: Send + 'static>(
        path: &Path,
        mut writer: W,
        mut write_new: impl FnMut(&mut W) -> io::Result<()> + Send + 'static,
        finish: impl FnOnce(W) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (stop, stopped) = mpsc::channel::<()>();
        let path = path.to_owned();
        let body = move || {
            let mut result = Ok(());
            while result.is_ok() && stopped.recv_timeout(FILE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                result = write_new(&mut writer);
            }
            let result = result.and_then(|()| write_new(&mut writer)).and_then(|()| finish(writer));
            if let Err(error) = result {
                tracing::error!(?path, %error, "a trace or capture could not be written");
            }
        };
        let thread = std::thread::Builder::new().name("nicforge-trace".into()).spawn(body);
        Ok(Self { stop: Some(stop), thread: Some(thread.context(|| "the trace's thread".into())?) })
    }

    /// Writes the records of a machine that keeps them to a new file. Its name says in which form.
    pub(super) fn of_trace(path: &Path, names: Names, handle: EngineHandle) -> Result<Self, Failure> {
        let file = create(path)?;
        let writer = Writer::new(Format::of_file(path), BufWriter::new(file));
        let mut next = 0;
        let write_new = move |writer: &mut Writer<_>| write_records(writer, &names, &handle, &mut next);
        Self::start(path, writer, write_new, |writer| writer.finish().map(drop))
    }

    /// Writes the packets of the capture with this number to a new file.
    pub(super) fn of_capture(number: usize, path: &Path, handle: EngineHandle) -> Result<Self, Failure> {
        let file = create(path)?;
        let logged_path = path.to_owned();
        // An answer of the engine that comes too late is read with the next one.
        let (sender, taken) = mpsc::channel();
        let (mut buffer, mut known_lost) = (Vec::with_capacity(CAPTURE_BYTES), 0);

        let write_new = move |file: &mut File| {
            let (empty, sender) = (std::mem::take(&mut buffer), sender.clone());
            let command = move |control: &mut Control<'_>| {
                let observer = control.machine().trace_sink::<Observer>();
                if let Some(capture) = observer.and_then(|observer| observer.captures.get_mut(number)) {
                    // Without a receiver, the server has ended.
                    let _ = sender.send((capture.take(empty), capture.lost()));
                }
            };
            if handle.send(command).is_err() {
                return Ok(());
            }

            for (bytes, lost) in taken.recv_timeout(TIMEOUT).into_iter().chain(taken.try_iter()) {
                file.write_all(&bytes)?;
                buffer = bytes;
                if lost > known_lost {
                    tracing::warn!(path = ?logged_path, lost, "packets came too fast for the capture");
                    known_lost = lost;
                }
            }
            Ok(())
        };
        Self::start(path, file, write_new, |_| Ok(()))
    }
}

impl Drop for FileThread {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Each call to the engine, and so the rest of the thread, has a time limit.
            let _ = thread.join();
        }
    }
}

/// Creates the file of a trace or capture.
fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).context(|| path.display().to_string())
}

/// Writes the records from number `next` on that there are now. Those that come meanwhile wait for
/// the next call, so that a busy machine can't prevent the end. An engine that does not answer has
/// none.
fn write_records<W: Write>(
    writer: &mut Writer<W>,
    names: &Names,
    handle: &EngineHandle,
    next: &mut u64,
) -> io::Result<()> {
    let mut end = None;
    while let Ok(Some(batch)) = read(handle, *next) {
        if batch.lost > 0 {
            writer.note_lost(batch.lost)?;
        }
        for record in &batch.records {
            writer.write(&names.entry(record))?;
        }

        *next = batch.next;
        if *next >= *end.get_or_insert(batch.end) {
            break;
        }
    }
    Ok(())
}
