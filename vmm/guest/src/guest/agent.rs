//! The host's end of the agent's channel: jobs go in, lines and exit statuses come out. `inside/agent.sh` has the protocol.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::config::quoted;

/// The longest script, in bytes. What is longer goes into a file.
const MAX_SCRIPT: usize = 32 << 10;
/// The longest line of the protocol, in bytes; the agent's are shorter.
const MAX_LINE: usize = 8 << 10;
/// How much of a job's output is kept, in bytes.
const MAX_OUTPUT: usize = 16 << 20;
/// How many problems of a guest's start are kept.
const MAX_NOTES: usize = 64;
/// A guest takes a request from its line within this time, or it is not well.
const TAKE: Duration = Duration::from_secs(20);

/// Which of a job's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Sees each line of a job when it comes. It runs on the channel's thread and must not wait.
pub type LineSink = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// Something to run in a guest.
#[derive(Clone)]
pub struct Job {
    script: String,
    sink: Option<LineSink>,
}

impl Job {
    /// A text for busybox's shell.
    pub fn shell(script: impl Into<String>) -> Self {
        Self { script: script.into(), sink: None }
    }

    /// A program with its arguments.
    pub fn program<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Self {
        let words: Vec<String> = words.into_iter().map(|word| quoted(word.as_ref())).collect();
        Self::shell(format!("exec {}", words.join(" ")))
    }

    /// A variable in its environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.script = format!("export {name}={}\n{}", quoted(value), self.script);
        self
    }

    /// Show its lines to `sink` when they come.
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

/// What a job left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its exit status as a shell counts it: 128 and the signal's number for one that was killed.
    pub status: u8,
    /// Its standard output. Lines end with `\n`.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Whether there was more than is kept (16 MiB).
    pub truncated: bool,
}

/// Where a job has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has ended.
    Done(Output),
    /// The guest started anew.
    Restarted,
    /// The guest is gone.
    Gone,
    /// Not yet.
    Late,
}

/// The channel.
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
    /// How often the guest has said that it is ready.
    starts: u64,
    notes: Vec<String>,
    jobs: BTreeMap<u64, Entry>,
    next: u64,
    gone: bool,
}

struct Entry {
    /// The start of the guest in which it runs.
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
    /// On a connected channel.
    pub(crate) fn new(line: UnixStream) -> io::Result<Self> {
        line.set_write_timeout(Some(TAKE))?;
        let shared = Arc::new(Shared::default());
        let reader = std::thread::Builder::new().name("guest-agent".into()).spawn({
            let (line, shared) = (line.try_clone()?, shared.clone());
            move || read(line, &shared)
        })?;
        Ok(Self { line: Mutex::new(line), shared, reader: Mutex::new(Some(reader)) })
    }

    /// How often the guest has started.
    pub(crate) fn starts(&self) -> u64 {
        self.shared.state().starts
    }

    /// What went wrong while it started.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.shared.state().notes.clone()
    }

    /// Waits until the guest has started so often: `Ok(true)`, or `Ok(false)` when that is late, `Err` when it is gone.
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

    /// Starts a job; its number.
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

    /// Waits for a job's end. When it has ended, its number is forgotten.
    pub(crate) fn wait(&self, number: u64, until: Instant) -> Outcome {
        let mut state = self.shared.state();
        loop {
            let starts = state.starts;
            let Some(entry) = state.jobs.get_mut(&number) else { return Outcome::Gone };
            if entry.ended {
                let output = std::mem::take(&mut entry.output);
                state.jobs.remove(&number);
                return Outcome::Done(output);
            }
            if entry.start != starts {
                state.jobs.remove(&number);
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

    /// Nobody waits for the job any more.
    pub(crate) fn forget(&self, number: u64) {
        self.shared.state().jobs.remove(&number);
    }

    /// What a job has said so far.
    pub(crate) fn said(&self, number: u64) -> Output {
        self.shared.state().jobs.get(&number).map(|entry| entry.output.clone()).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // The reader ends with it; it may be closed already.
        let _ = line.shutdown(std::net::Shutdown::Both);
        drop(line);
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reader) = reader {
            let _ = reader.join();
        }
    }
}

/// Takes lines apart until the channel ends.
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
            // A line that is too long is none of the agent's; its end is dropped.
            let room = MAX_LINE.saturating_sub(rest.len());
            rest.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&rest);
                shared.state().take(text.trim_end_matches(['\n', '\r']));
                shared.changed.notify_all();
                rest.clear();
            }
        }
    }
    shared.state().gone = true;
    shared.changed.notify_all();
}

impl State {
    /// A line of the guest's.
    fn take(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (Some(number), Some(kind)) = (words.next().and_then(|number| number.parse().ok()), words.next())
        else {
            return;
        };
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
                if let Some(entry) = self.jobs.get_mut(&number)
                    && entry.start == starts
                {
                    entry.take(kind, text);
                }
            }
        }
    }
}

impl Entry {
    fn take(&mut self, kind: &str, text: &str) {
        match kind {
            "o" => self.line(Stream::Output, text, true),
            "o+" => self.line(Stream::Output, text, false),
            "e" => self.line(Stream::Error, text, true),
            "e+" => self.line(Stream::Error, text, false),
            "x" => {
                // A shell's statuses fit.
                self.output.status = text.parse().unwrap_or(u8::MAX);
                self.ended = true;
            }
            _ => {}
        }
    }

    fn line(&mut self, stream: Stream, text: &str, whole: bool) {
        let Output { stdout, stderr, truncated, .. } = &mut self.output;
        let kept = stdout.len() + stderr.len() + self.partial.iter().map(String::len).sum::<usize>();
        if kept + text.len() > MAX_OUTPUT {
            *truncated = true;
            return;
        }
        let line = &mut self.partial[stream as usize];
        line.push_str(text);
        if !whole {
            return;
        }
        if let Some(sink) = &self.sink {
            sink(stream, line);
        }
        let all = match stream {
            Stream::Output => stdout,
            Stream::Error => stderr,
        };
        all.push_str(line);
        all.push('\n');
        line.clear();
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648's base64, with padding, in one line.
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
    fn a_script_that_is_too_long_is_refused() {
        let (agent, _guest) = started();
        assert!(agent.start(&Job::shell("x".repeat(MAX_SCRIPT + 1))).is_err());
    }
}
