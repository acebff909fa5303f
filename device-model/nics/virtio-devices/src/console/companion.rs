//! The companions of a console: one for each direction of its line.

use std::sync::Arc;

use nicforge_core::{
    companion::{Companion, CompanionEnd, CompanionMode, CompanionSpec, SendError},
    device::Progress,
};

use super::line::{Chunk, Line};

/// Chunks that wait for the driver, or for the host's end.
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
    /// A chunk that waits for room in the FIFO.
    pub(super) held: Option<Chunk>,
}

impl Companion for Reader {
    type Command = CheckInput;
    type Event = Chunk;

    fn poll(&mut self, end: &mut CompanionEnd<CheckInput, Chunk>, _: u32) -> Progress {
        while end.receive().is_some() {}

        let may_wait = end.may_wait();
        if self.held.is_none() {
            self.held = self.line.read(may_wait);
        }

        let Some(chunk) = self.held.take() else {
            let waits_again = may_wait && self.line.has_input();
            return if waits_again { Progress::Busy } else { Progress::Idle };
        };
        if let Err(SendError::Full(chunk)) = end.send(chunk) {
            // The device's next `receive` has this polled again.
            self.held = Some(chunk);
            return Progress::Idle;
        }
        Progress::Busy
    }
}

/// The companion that writes to the line.
pub(super) struct Writer {
    pub(super) line: Arc<Line>,
    /// The chunk in progress, and the bytes of it that have gone.
    pub(super) current: Option<(Chunk, usize)>,
}

impl Companion for Writer {
    type Command = Chunk;
    type Event = SpaceAvailable;

    fn poll(&mut self, end: &mut CompanionEnd<Chunk, SpaceAvailable>, _: u32) -> Progress {
        if self.current.is_none() {
            let Some(chunk) = end.receive() else { return Progress::Idle };
            self.current = Some((chunk, 0));
            // If the FIFO is full, the device has yet to receive the last event, which is enough.
            let _ = end.send(SpaceAvailable);
        }

        if let Some((chunk, gone)) = &mut self.current {
            *gone += self.line.write(&chunk.bytes()[*gone..], end.may_wait());
            if *gone >= chunk.bytes().len() {
                self.current = None;
            }
        }
        Progress::Busy
    }
}
