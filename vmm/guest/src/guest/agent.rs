//! The host's end of the agent's channel: it sends jobs and receives lines and exit statuses.
//! `inside/agent.sh` documents the protocol.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::config::quoted;

/// The longest script, in bytes. A longer one must be put into a file.
const MAX_SCRIPT: usize = 32 << 10;
/// The longest line of the protocol, in bytes; the agent's are shorter.
const MAX_LINE: usize = 8 << 10;
/// The part of a job's output that is kept, and of one line of it, in bytes.
const MAX_OUTPUT: usize = 16 << 20;
/// Number of problems of a guest's start that are kept.
const MAX_NOTES: usize = 64;
/// Time in which a working guest takes a request from its channel.
const TAKE: Duration = Duration::from_secs(20);

/// One of a job's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Callback for each line of a job as it arrives.
///
/// It runs on the channel's thread. While it blocks, no other line of the guest is read. A job can
/// still be waited for with a limit and killed, and the guest can be ended. The last call may still
/// run when the guest is gone.
pub type LineSink = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// A script or program to run in a guest.
#[derive(Clone)]
pub struct Job {
    script: String,
    sink: Option<LineSink>,
}

impl Job {
    /// Returns a job for a script of busybox's shell.
    pub fn shell(script: impl Into<String>) -> Self {
        Self { script: script.into(), sink: None }
    }

    /// Returns a job for a program with its arguments.
    pub fn program<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let words: Vec<String> = words.into_iter().map(|word| quoted(word.as_ref())).collect();
        Self::shell(format!("exec {}", words.join(" ")))
    }

    /// Adds a variable to the job's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.script = format!("export {name}={}\n{}", quoted(value), self.script);
        self
    }

    /// Passes the job's lines to `sink` as they arrive.
    pub fn on_line(mut self, sink: LineSink) -> Self {
        self.sink = Some(sink);
        self
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("script", &self.script).finish_non_exhaustive()
    }
}

impl From<&str> for Job {
    fn from(script: &str) -> Self {
        Self::shell(script)
    }
}

/// The result of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its exit status in the shell's convention: 128 plus the signal's number for a killed job.
    pub status: u8,
    /// Its standard output. Lines end with `\n`.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Whether output beyond 16 MiB was discarded.
    pub truncated: bool,
}

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
    Late,
}

/// The channel to the agent.
pub(crate) struct Agent {
    line: Mutex<UnixStream>,
    shared: Arc<Shared>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of times the guest has reported that it is ready.
    starts: u64,
    notes: Vec<String>,
    jobs: BTreeMap<u64, Entry>,
    next: u64,
    gone: bool,
    /// The reader is in a sink, which may block indefinitely.
    showing: bool,
    /// The agent is dropped; further lines are discarded.
    closed: bool,
}

/// A line to pass to a sink.
struct Shown {
    sink: LineSink,
    stream: Stream,
    line: String,
}

struct Entry {
    /// The number of the guest's start in which the job runs.
    start: u64,
    output: Output,
    partial: [String; 2],
    ended: bool,
    sink: Option<LineSink>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Agent {
    /// Creates the agent on a connected channel.
    pub(crate) fn new(line: UnixStream) -> io::Result<Self> {
        line.set_write_timeout(Some(TAKE))?;
        let shared = Arc::new(Shared::default());
        let reader = std::thread::Builder::new().name("guest-agent".into()).spawn({
            let (line, shared) = (line.try_clone()?, shared.clone());
            move || read(line, &shared)
        })?;

        Ok(Self { line: Mutex::new(line), shared, reader: Mutex::new(Some(reader)) })
    }

    /// Returns how often the guest has started.
    pub(crate) fn starts(&self) -> u64 {
        self.shared.state().starts
    }

    /// Returns the problems of its start.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.shared.state().notes.clone()
    }

    /// Waits until the guest has started `starts` times. Returns `Ok(true)`, or `Ok(false)` at the
    /// deadline, or `Err` when the guest is gone.
    pub(crate) fn wait_started(&self, starts: u64, until: Instant) -> Result<bool, ()> {
        let mut state = self.shared.state();
        loop {
            if state.starts >= starts {
                return Ok(true);
            }

            if state.gone {
                return Err(());
            }

            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
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
            state.next += 1;
            let (number, start) = (state.next, state.starts);
            let entry = Entry {
                start,
                output: Output::default(),
                partial: Default::default(),
                ended: false,
                sink: job.sink.clone(),
            };
            state.jobs.insert(number, entry);
            number
        };

        self.say(&format!("{number} run {}", base64(job.script.as_bytes())))
            .inspect_err(|_| self.forget(number))?;
        Ok(number)
    }

    /// Kills a job's processes.
    pub(crate) fn kill(&self, number: u64) -> io::Result<()> {
        self.say(&format!("{number} kill"))
    }

    /// Powers the guest off.
    pub(crate) fn quit(&self) -> io::Result<()> {
        self.say("0 quit")
    }

    fn say(&self, text: &str) -> io::Result<()> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.write_all(format!("{text}\n").as_bytes())
    }

    /// Waits for a job's end. The result stays available until the job is forgotten.
    pub(crate) fn wait(&self, number: u64, until: Instant) -> Outcome {
        let mut state = self.shared.state();
        loop {
            let starts = state.starts;
            let Some(entry) = state.jobs.get(&number) else { return Outcome::Gone };
            if entry.ended {
                return Outcome::Done(entry.output.clone());
            }

            if entry.start != starts {
                return Outcome::Restarted;
            }

            if state.gone {
                return Outcome::Gone;
            }

            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Outcome::Late;
            }

            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Discards a job that no caller waits for any more.
    pub(crate) fn forget(&self, number: u64) {
        self.shared.state().jobs.remove(&number);
    }

    /// Returns a job's output so far.
    pub(crate) fn said(&self, number: u64) -> Output {
        self.shared.state().jobs.get(&number).map(|entry| entry.output.clone()).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // The shutdown ends the reader; the channel may be closed already.
        let _ = line.shutdown(std::net::Shutdown::Both);
        drop(line);

        let showing = {
            let mut state = self.shared.state();
            state.closed = true;
            state.showing
        };

        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A sink may block for ever, so a reader that is in one is not joined. It ends when the
        // sink returns.
        if let Some(reader) = reader.filter(|_| !showing) {
            let _ = reader.join();
        }
    }
}

/// Splits the channel's bytes into lines until the channel ends.
fn read(mut line: UnixStream, shared: &Shared) {
    let mut buffer = vec![0; 16 << 10];
    let mut rest: Vec<u8> = Vec::new();

    loop {
        let length = match line.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };

        for piece in buffer[..length].split_inclusive(|&byte| byte == b'\n') {
            // A line that is too long is not the agent's; its end is dropped.
            let room = MAX_LINE.saturating_sub(rest.len());
            rest.extend_from_slice(&piece[..piece.len().min(room)]);

            if piece.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&rest);
                if !shared.take(text.trim_end_matches(['\n', '\r'])) {
                    return;
                }
                rest.clear();
            }
        }
    }

    shared.state().gone = true;
    shared.changed.notify_all();
}

impl Shared {
    /// Handles a line of the guest. Returns `false` when the agent is dropped. The sink runs
    /// without the lock, so that callers who wait for a job can continue.
    fn take(&self, line: &str) -> bool {
        let shown = {
            let mut state = self.state();
            if state.closed {
                return false;
            }
            let shown = state.take(line);
            state.showing = shown.is_some();
            shown
        };

        self.changed.notify_all();
        if let Some(Shown { sink, stream, line }) = shown {
            sink(stream, &line);
            self.state().showing = false;
        }

        true
    }
}

impl State {
    /// Handles a line of the guest and returns the part to pass to a sink.
    fn take(&mut self, line: &str) -> Option<Shown> {
        let mut words = line.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        let kind = words.next()?;
        let text = words.next().unwrap_or_default();

        match (number, kind) {
            (0, "n") => {
                if self.notes.len() < MAX_NOTES {
                    self.notes.push(text.to_owned());
                }
            }
            (0, "ready") => self.starts += 1,
            (number, kind) => {
                let starts = self.starts;
                let entry = self.jobs.get_mut(&number)?;
                if entry.start == starts && !entry.ended {
                    return entry.take(kind, text);
                }
            }
        }

        None
    }
}

impl Entry {
    fn take(&mut self, kind: &str, text: &str) -> Option<Shown> {
        match kind {
            "o" => self.line(Stream::Output, text, true),
            "o+" => self.line(Stream::Output, text, false),
            "e" => self.line(Stream::Error, text, true),
            "e+" => self.line(Stream::Error, text, false),
            "x" => {
                // A shell's statuses fit into a byte.
                self.output.status = text.parse().unwrap_or(u8::MAX);
                self.ended = true;
                None
            }
            _ => None,
        }
    }

    fn line(&mut self, stream: Stream, text: &str, whole: bool) -> Option<Shown> {
        let Output { stdout, stderr, truncated, .. } = &mut self.output;
        let line = &mut self.partial[stream as usize];
        if line.len() + text.len() <= MAX_OUTPUT {
            line.push_str(text);
        } else {
            *truncated = true;
        }

        if !whole {
            return None;
        }

        let line = std::mem::take(line);
        // The beginning is kept, but every line is passed to the sink.
        *truncated |= stdout.len() + stderr.len() + line.len() >= MAX_OUTPUT;

        if !*truncated {
            let all = match stream {
                Stream::Output => stdout,
                Stream::Error => stderr,
            };
            all.push_str(&line);
            all.push('\n');
        }

        let sink = self.sink.clone()?;
        Some(Shown { sink, stream, line })
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes base64 (RFC 4648) with padding, in one line.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, &byte| (word << 8) | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = (word >> (18 - 6 * place)) & 63;
            text.push(if place <= chunk.len() { char::from(ALPHABET[digit as usize]) } else { '=' });
        }
    }

    text
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn agent() -> (Agent, UnixStream) {
        let (host, guest) = UnixStream::pair().unwrap();
        (Agent::new(host).unwrap(), guest)
    }

    fn started() -> (Agent, UnixStream) {
        let (agent, mut guest) = agent();
        guest.write_all(b"0 n something\n0 ready\n").unwrap();
        assert_eq!(agent.wait_started(1, Instant::now() + LONG), Ok(true));
        (agent, guest)
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn a_job_has_its_lines_and_its_status() {
        let (agent, mut guest) = started();
        let job = agent.start(&"x".into()).unwrap();
        guest.write_all(b"1 o one\n1 e+ bad \n1 o two\n1 e thing\n1 x 3\n").unwrap();

        let output =
            Output { status: 3, stdout: "one\ntwo\n".into(), stderr: "bad thing\n".into(), truncated: false };

        assert_eq!(agent.wait(job, Instant::now() + LONG), Outcome::Done(output));
        assert_eq!(agent.notes(), ["something"]);
    }

    #[test]
    fn a_guest_that_starts_anew_or_goes_ends_the_wait() {
        let (agent, mut guest) = started();
        let job = agent.start(&"x".into()).unwrap();
        guest.write_all(b"0 ready\n").unwrap();

        assert_eq!(agent.wait(job, Instant::now() + LONG), Outcome::Restarted);

        let job = agent.start(&"x".into()).unwrap();
        drop(guest);

        assert_eq!(agent.wait(job, Instant::now() + LONG), Outcome::Gone);
    }

    #[test]
    fn nonsense_and_endless_lines_do_no_harm() {
        let (agent, mut guest) = started();
        let job = agent.start(&"x".into()).unwrap();
        guest.write_all(&vec![b'a'; 100_000]).unwrap();
        guest.write_all(b"\n\n9 o nobody\n1\n1 q\n\xff\xfe\n1 x\n").unwrap();

        let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else {
            panic!("it has not ended")
        };

        assert_eq!(output, Output { status: 255, ..Output::default() });
    }

    #[test]
    fn output_without_end_is_cut() {
        let (agent, mut guest) = started();
        let job = agent.start(&"x".into()).unwrap();
        let line = format!("1 o {}\n", "y".repeat(4000));

        for _ in 0..5000 {
            guest.write_all(line.as_bytes()).unwrap();
        }

        guest.write_all(b"1 x 0\n").unwrap();
        let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else {
            panic!("it has not ended")
        };

        assert!(output.truncated && output.stdout.len() <= MAX_OUTPUT);
    }

    #[test]
    fn a_sink_that_blocks_holds_up_neither_a_wait_nor_the_end() {
        let (agent, mut guest) = started();
        let (entered, has_entered) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let sink: LineSink = Arc::new(move |_, _| {
            entered.send(()).unwrap();
            // The sink returns after the test has ended.
            let _ = released.lock().unwrap().recv();
        });

        let job = agent.start(&Job::shell("x").on_line(sink)).unwrap();
        guest.write_all(b"1 o one\n1 o two\n1 x 0\n").unwrap();
        has_entered.recv_timeout(LONG).unwrap();

        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            tell.send(agent.wait(job, Instant::now())).unwrap();
            drop(agent);
            tell.send(Outcome::Gone).unwrap();
        });

        assert_eq!(told.recv_timeout(LONG), Ok(Outcome::Late));
        assert_eq!(told.recv_timeout(LONG), Ok(Outcome::Gone), "the end waits for the sink");
        drop(release);
    }

    #[test]
    fn a_sink_sees_every_line_although_not_all_is_kept() {
        let (agent, mut guest) = started();
        let (tell, told) = mpsc::channel();
        let sink: LineSink = Arc::new(move |_, line| tell.send(line.to_owned()).unwrap());
        let job = agent.start(&Job::shell("x").on_line(sink)).unwrap();
        let line = format!("1 o {}\n", "y".repeat(4000));

        for _ in 0..5000 {
            guest.write_all(line.as_bytes()).unwrap();
        }

        guest.write_all(b"1 o+ the la\n1 o st\n1 e words\n1 x 0\n").unwrap();
        let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else {
            panic!("it has not ended")
        };

        assert!(output.truncated && output.stderr.is_empty());

        let lines: Vec<String> = told.try_iter().collect();
        assert_eq!(lines.len(), 5002);
        assert_eq!(lines[5000..], ["the last", "words"]);
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_begins_anew() {
        let (agent, mut guest) = started();
        let (tell, told) = mpsc::channel();
        let sink: LineSink = Arc::new(move |_, line| tell.send(line.to_owned()).unwrap());
        let job = agent.start(&Job::shell("x").on_line(sink)).unwrap();
        let part = format!("1 o+ {}\n", "y".repeat(4000));

        for _ in 0..5000 {
            guest.write_all(part.as_bytes()).unwrap();
        }

        guest.write_all(b"1 o \n1 o next\n1 x 0\n").unwrap();
        let Outcome::Done(output) = agent.wait(job, Instant::now() + LONG) else {
            panic!("it has not ended")
        };

        assert!(output.truncated);

        let lines: Vec<String> = told.try_iter().collect();
        assert!(lines[0].len() <= MAX_OUTPUT);
        assert_eq!(lines[1..], ["next"]);
    }

    #[test]
    fn a_second_wait_gives_the_same() {
        let (agent, mut guest) = started();
        let ended = agent.start(&"x".into()).unwrap();
        guest.write_all(b"1 o one\n1 x 3\n1 o late\n").unwrap();

        let first = agent.wait(ended, Instant::now() + LONG);
        assert!(matches!(first, Outcome::Done(_)));

        let cut = agent.start(&"x".into()).unwrap();
        guest.write_all(b"0 ready\n").unwrap();

        assert_eq!(agent.wait(cut, Instant::now() + LONG), Outcome::Restarted);
        assert_eq!(agent.wait(cut, Instant::now()), Outcome::Restarted);
        assert_eq!(agent.wait(ended, Instant::now()), first);
    }

    #[test]
    fn a_script_that_is_too_long_is_refused() {
        let (agent, _guest) = started();
        assert!(agent.start(&Job::shell("x".repeat(MAX_SCRIPT + 1))).is_err());
    }
}
