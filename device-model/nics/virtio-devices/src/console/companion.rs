//! The companions of a console: one for each direction of its line.

use std::sync::Arc;

use nicforge_core::{
    companion::{Companion, CompanionEnd, CompanionMode, CompanionSpec, SendError},
    device::Progress,
};

use super::line::{Chunk, Line};

/// Maximum number of chunks that wait for the driver, or for the host's end.
const CHUNKS: usize = 32;

/// The reader: [`CheckInput`] needs one command.
pub(super) const READER: CompanionSpec =
    CompanionSpec { name: "console-in", commands: 1, events: CHUNKS, mode: CompanionMode::Threads };
/// The writer: [`SpaceAvailable`] needs one event.
pub(super) const WRITER: CompanionSpec =
    CompanionSpec { name: "console-out", commands: CHUNKS, events: 1, mode: CompanionMode::Threads };

/// Command to the reader: check the line for input. A stepped companion must not wait for input.
pub(super) struct CheckInput;

/// Event of the writer: its FIFO has space again.
pub(super) struct SpaceAvailable;

/// The companion that reads the line.
pub(super) struct Reader {
    pub(super) line: Arc<Line>,
    /// A chunk that waits for room in the FIFO of events.
    pub(super) unsent: Option<Chunk>,
}

impl Companion for Reader {
    type Command = CheckInput;
    type Event = Chunk;

    fn poll(&mut self, end: &mut CompanionEnd<CheckInput, Chunk>, _: u32) -> Progress {
        // Commands only cause this poll.
        while end.receive().is_some() {}

        let may_wait = end.may_wait();
        if self.unsent.is_none() {
            self.unsent = self.line.read(may_wait);
        }

        let Some(chunk) = self.unsent.take() else {
            // On a thread of its own, the reader goes on to wait for input.
            let goes_on = may_wait && self.line.has_input();
            return if goes_on { Progress::Busy } else { Progress::Idle };
        };
        if let Err(SendError::Full(chunk)) = end.send(chunk) {
            // The companion is polled again when the device has received an event.
            self.unsent = Some(chunk);
            return Progress::Idle;
        }
        Progress::Busy
    }
}

/// The companion that writes to the line.
pub(super) struct Writer {
    pub(super) line: Arc<Line>,
    /// The chunk in progress, and the number of its bytes that were written or lost.
    pub(super) current: Option<(Chunk, usize)>,
}

impl Companion for Writer {
    type Command = Chunk;
    type Event = SpaceAvailable;

    fn poll(&mut self, end: &mut CompanionEnd<Chunk, SpaceAvailable>, _: u32) -> Progress {
        if self.current.is_none() {
            let Some(chunk) = end.receive() else { return Progress::Idle };
            self.current = Some((chunk, 0));
            // If the FIFO is full, the last event will cause the device's step.
            let _ = end.send(SpaceAvailable);
        }

        if let Some((chunk, done)) = &mut self.current {
            *done += self.line.write(&chunk.bytes()[*done..], end.may_wait());
            if *done >= chunk.bytes().len() {
                self.current = None;
            }
        }
        Progress::Busy
    }
}
