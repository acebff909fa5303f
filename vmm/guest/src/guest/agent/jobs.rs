//! The jobs of a guest, as its lines report them.

use std::{collections::BTreeMap, time::Duration};

use super::job::{LineSink, Output, Stream};

/// The part of a job's output that is kept, and of one line of it, in bytes.
pub(super) const MAX_OUTPUT: usize = 16 << 20;
/// Number of notes on problems of a guest's start that are kept.
const MAX_NOTES: usize = 64;

/// Number of calls of barriers that are kept until the caller takes them.
const MAX_CALLS: usize = 64;
/// The longest wait at a barrier, in seconds, and the longest name of a barrier, in bytes.
const MAX_BARRIER_WAIT: u64 = 86_400;
const MAX_BARRIER_NAME: usize = 64;

/// A call of `nicforge-barrier` in a guest, which waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarrierCall {
    /// The call's number in its guest.
    pub number: u64,
    /// The barrier's name: at most 64 letters, digits, `.`, `_` and `-`.
    pub name: String,
    /// How long the call waits, at most a day.
    pub limit: Duration,
}

impl BarrierCall {
    /// Parses `CALL NAME SECONDS`. Returns `None` when that is impossible, which the program in the
    /// guest never sends.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (number, name, seconds) =
            (words.next()?.parse().ok()?, words.next()?, words.next()?.parse().ok()?);

        let is_name = (1..=MAX_BARRIER_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        let is_possible = is_name && (1..=MAX_BARRIER_WAIT).contains(&seconds);

        is_possible.then(|| Self { number, name: name.to_owned(), limit: Duration::from_secs(seconds) })
    }
}

/// The reports of the guest on itself and on its jobs.
#[derive(Default)]
pub(super) struct State {
    /// Number of times the guest has reported that it is ready.
    pub(super) starts: u64,
    /// Notes on problems of its starts.
    pub(super) notes: Vec<String>,
    /// Calls of barriers that the caller has not taken yet.
    pub(super) calls: Vec<BarrierCall>,
    /// The jobs that are not forgotten yet, by number.
    pub(super) jobs: BTreeMap<u64, JobState>,
    /// The number of the job that was started last.
    pub(super) last_number: u64,
    /// The guest has closed the channel.
    pub(super) gone: bool,
    /// The thread that reads the channel is in a sink, which may block indefinitely.
    pub(super) is_in_sink: bool,
    /// The channel is dropped; further lines are discarded.
    pub(super) closed: bool,
}

/// A line to pass to a sink.
pub(super) struct SinkLine {
    pub(super) sink: LineSink,
    pub(super) stream: Stream,
    pub(super) line: String,
}

/// A job that was started.
pub(super) struct JobState {
    /// The number of the guest's start in which the job runs.
    pub(super) start: u64,
    pub(super) output: Output,
    /// The beginning of a line whose end has not arrived, of each [`Stream`].
    pub(super) partial: [String; 2],
    /// The guest has reported something of the job.
    pub(super) begun: bool,
    pub(super) ended: bool,
    /// The caller's callback for each line.
    pub(super) sink: Option<LineSink>,
}

/// Whether a report has the end of a line, or a part that others follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    End,
    Part,
}

impl State {
    /// Applies a line of the guest, `NUMBER KIND TEXT`, to the job of that number, or to the guest
    /// itself when the number is 0. `inside/agent.sh` lists the kinds. Returns a job's line of
    /// output for its sink.
    pub(super) fn handle_line(&mut self, line: &str) -> Option<SinkLine> {
        let mut words = line.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        let kind = words.next()?;
        let text = words.next().unwrap_or_default();

        match (number, kind) {
            // A note on a problem of the start.
            (0, "n") => {
                if self.notes.len() < MAX_NOTES {
                    self.notes.push(text.to_owned());
                }
            }
            (0, "ready") => {
                self.starts += 1;
                self.calls.clear();
            }
            // A call of a barrier.
            (0, "b") => {
                // A call without room here gets no answer, and ends after its own time limit.
                if self.calls.len() < MAX_CALLS {
                    self.calls.extend(BarrierCall::parse(text));
                }
            }
            (number, kind) => {
                let starts = self.starts;
                let job = self.jobs.get_mut(&number)?;
                // A job of an earlier start ended with that start.
                if job.start == starts && !job.ended {
                    return job.handle_report(kind, text);
                }
            }
        }

        None
    }
}

impl JobState {
    /// Handles a report of the job: the end of a line or an earlier part of one, on standard output
    /// (`o`, `o+`) or standard error (`e`, `e+`), the job's status (`x`), or its beginning (`s`).
    fn handle_report(&mut self, kind: &str, text: &str) -> Option<SinkLine> {
        self.begun = true;
        match kind {
            "o" => self.add_text(Stream::Output, text, Piece::End),
            "o+" => self.add_text(Stream::Output, text, Piece::Part),
            "e" => self.add_text(Stream::Error, text, Piece::End),
            "e+" => self.add_text(Stream::Error, text, Piece::Part),
            "x" => {
                // A shell's statuses fit into a byte.
                self.output.status = text.parse().unwrap_or(u8::MAX);
                self.ended = true;
                None
            }
            _ => None,
        }
    }

    /// Adds text to the job's output. At a line's end, it returns the whole line for the sink.
    fn add_text(&mut self, stream: Stream, text: &str, piece: Piece) -> Option<SinkLine> {
        let Output { stdout, stderr, truncated, .. } = &mut self.output;
        let line = &mut self.partial[stream as usize];
        if line.len() + text.len() <= MAX_OUTPUT {
            line.push_str(text);
        } else {
            *truncated = true;
        }

        if piece == Piece::Part {
            return None;
        }

        let line = std::mem::take(line);
        // Only the beginning of the output is kept, but every line is passed to the sink.
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
        Some(SinkLine { sink, stream, line })
    }
}
