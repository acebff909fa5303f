//! The host's end of the channel to a guest's agent: it sends jobs and receives lines and exit
//! statuses. `inside/agent.sh` documents the protocol.

mod base64;
mod job;
mod jobs;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use self::{
    base64::base64,
    jobs::{JobState, SinkLine, State},
};
pub use self::{
    job::{Job, LineSink, Output, Stream},
    jobs::BarrierCall,
};

/// The longest script, in bytes. A longer one must be put into a file.
const MAX_SCRIPT: usize = 32 << 10;
/// The longest line of the protocol, in bytes; the agent's are shorter.
const MAX_LINE: usize = 8 << 10;
/// Bytes that are read from the channel at once.
const BUFFER_SIZE: usize = 16 << 10;
/// The longest time that a working guest takes to read a request from its channel.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of waiting for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The job has ended.
    Done(Output),
    /// The guest rebooted.
    Restarted,
    /// The guest is gone.
    Gone,
    /// The deadline passed first.
    TimedOut,
}

/// The result of waiting for a guest's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartOutcome {
    /// The guest has started so many times.
    Started,
    /// The guest is gone.
    Gone,
    /// The deadline passed first.
    TimedOut,
}

/// The host's end of the channel to the agent in a guest.
pub(crate) struct AgentChannel {
    channel: Mutex<UnixStream>,
    shared: Arc<Shared>,
    /// The thread that reads the channel, until it is joined.
    reader: Mutex<Option<JoinHandle<()>>>,
}

/// The guest's reports, which the thread that reads the channel shares with callers.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentChannel {
    /// Starts the thread that reads a connected channel. A request that the guest does not read in
    /// time fails.
    pub(crate) fn new(channel: UnixStream) -> io::Result<Self> {
        channel.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let shared = Arc::new(Shared::default());
        let reader = std::thread::Builder::new().name("guest-agent".into()).spawn({
            let (channel, shared) = (channel.try_clone()?, shared.clone());
            move || read_lines(channel, &shared)
        })?;

        Ok(Self { channel: Mutex::new(channel), shared, reader: Mutex::new(Some(reader)) })
    }

    /// Returns how often the guest has started.
    pub(crate) fn starts(&self) -> u64 {
        self.shared.state().starts
    }

    /// Returns the notes on problems of the guest's starts.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.shared.state().notes.clone()
    }

    /// Waits until the guest has started `starts` times in all.
    pub(crate) fn wait_started(&self, starts: u64, until: Instant) -> StartOutcome {
        let mut state = self.shared.state();
        loop {
            if state.starts >= starts {
                return StartOutcome::Started;
            }

            if state.gone {
                return StartOutcome::Gone;
            }

            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return StartOutcome::TimedOut;
            }

            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Starts a job and returns its number.
    pub(crate) fn start(&self, job: &Job) -> io::Result<u64> {
        if job.script.len() > MAX_SCRIPT {
            let text = format!(
                "the script has {} bytes, at most {MAX_SCRIPT} are possible; put it into a file of the guest",
                job.script.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }

        let number = {
            let mut state = self.shared.state();
            state.last_number += 1;
            let (number, start) = (state.last_number, state.starts);
            let entry = JobState {
                start,
                output: Output::default(),
                partial: Default::default(),
                begun: false,
                ended: false,
                sink: job.sink.clone(),
            };
            state.jobs.insert(number, entry);
            number
        };

        self.send_line(&format!("{number} run {}", base64(job.script.as_bytes())))
            .inspect_err(|_| self.forget(number))?;
        Ok(number)
    }

    /// Kills a job's processes.
    pub(crate) fn kill(&self, number: u64) -> io::Result<()> {
        self.send_line(&format!("{number} kill"))
    }

    /// Returns the calls of barriers since the last time.
    pub(crate) fn take_calls(&self) -> Vec<BarrierCall> {
        std::mem::take(&mut self.shared.state().calls)
    }

    /// Ends the call of a barrier with a status. The text has one line.
    pub(crate) fn answer(&self, call: u64, status: u8, text: &str) -> io::Result<()> {
        let text = text.replace(['\n', '\r'], " ");
        self.send_line(&format!("{call} answer {status} {text}"))
    }

    /// Powers the guest off.
    pub(crate) fn quit(&self) -> io::Result<()> {
        self.send_line("0 quit")
    }

    /// Sends a line to the agent in the guest.
    fn send_line(&self, text: &str) -> io::Result<()> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel.write_all(format!("{text}\n").as_bytes())
    }

    /// Waits for a job's end. The result stays available until the job is forgotten.
    pub(crate) fn wait(&self, number: u64, until: Instant) -> Outcome {
        let mut state = self.shared.state();
        loop {
            let starts = state.starts;
            let Some(job) = state.jobs.get(&number) else { return Outcome::Gone };
            if job.ended {
                return Outcome::Done(job.output.clone());
            }

            if job.start != starts {
                return Outcome::Restarted;
            }

            if state.gone {
                return Outcome::Gone;
            }

            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Outcome::TimedOut;
            }

            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether the guest has begun a job.
    pub(crate) fn has_begun(&self, number: u64) -> bool {
        self.shared.state().jobs.get(&number).is_some_and(|job| job.begun)
    }

    /// Discards a job that no caller waits for any more.
    pub(crate) fn forget(&self, number: u64) {
        self.shared.state().jobs.remove(&number);
    }

    /// Returns a job's output so far.
    pub(crate) fn output_so_far(&self, number: u64) -> Output {
        self.shared.state().jobs.get(&number).map(|entry| entry.output.clone()).unwrap_or_default()
    }
}

impl Drop for AgentChannel {
    fn drop(&mut self) {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        // The shutdown ends the reader; the channel may be closed already.
        let _ = channel.shutdown(std::net::Shutdown::Both);
        drop(channel);

        let is_in_sink = {
            let mut state = self.shared.state();
            state.closed = true;
            state.is_in_sink
        };

        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A sink may block for ever, so a reader that is in one is not joined. It ends when the
        // sink returns.
        if let Some(reader) = reader.filter(|_| !is_in_sink) {
            let _ = reader.join();
        }
    }
}

/// Reads the channel until it ends, and passes each line to `shared`.
fn read_lines(mut channel: UnixStream, shared: &Shared) {
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut line: Vec<u8> = Vec::new();

    loop {
        let length = match channel.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };

        for piece in buffer[..length].split_inclusive(|&byte| byte == b'\n') {
            // The agent sends no line that is too long, so the rest of one is dropped.
            let room = MAX_LINE.saturating_sub(line.len());
            line.extend_from_slice(&piece[..piece.len().min(room)]);

            if piece.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&line);
                if !shared.handle_line(text.trim_end_matches(['\n', '\r'])) {
                    return;
                }
                line.clear();
            }
        }
    }

    shared.state().gone = true;
    shared.changed.notify_all();
}

impl Shared {
    /// Handles a line of the guest. Returns `false` when the channel is dropped. The sink runs
    /// without the lock, so that callers that wait for a job can continue.
    fn handle_line(&self, line: &str) -> bool {
        let sink_line = {
            let mut state = self.state();
            if state.closed {
                return false;
            }
            let sink_line = state.handle_line(line);
            state.is_in_sink = sink_line.is_some();
            sink_line
        };

        self.changed.notify_all();
        if let Some(SinkLine { sink, stream, line }) = sink_line {
            sink(stream, &line);
            self.state().is_in_sink = false;
        }

        true
    }
}
