//! A sink that writes each event at once.

use std::{
    any::Any,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::Machine,
    time::Nanos,
    trace::{Event, TraceSink},
};

use crate::{
    filter::Filter,
    names::Names,
    record::{KEPT, Record, What},
    writer::{Format, Writer},
};

/// A sink that writes each event at once, for tests and virtual time. The machine waits for the
/// writer, so it does not suit a machine that serves other processes: see [`crate::Recorder`].
///
/// After an error of the writer nothing more is written, and [`Stream::finish`] returns it.
pub struct Stream<W: Write + Send + 'static> {
    names: Names,
    filter: Filter,
    writer: Writer<W>,
    next: u64,
    failed: Option<io::Error>,
}

impl<W: Write + Send + 'static> Stream<W> {
    /// Returns a stream of the events that `filter` lets pass. `names` are those of the machine
    /// with all its functions and links.
    pub fn new(names: Names, filter: Filter, format: Format, out: W) -> Self {
        Self { names, filter, writer: Writer::new(format, out), next: 0, failed: None }
    }

    /// Takes the stream of a machine, whose trace ends with that.
    pub fn take_from(machine: &mut Machine) -> Option<Self> {
        machine.trace_sink::<Self>()?;
        let sink: Box<dyn Any> = machine.set_trace(None)?;
        sink.downcast().ok().map(|stream| *stream)
    }

    /// Completes the output, and returns its writer.
    ///
    /// # Errors
    /// The first error of the writer.
    pub fn finish(self) -> io::Result<W> {
        match self.failed {
            Some(error) => Err(error),
            None => self.writer.finish(),
        }
    }
}

impl Stream<BufWriter<File>> {
    /// Traces a machine into a new file, in the form that [`Format::of_file`] gives for its name,
    /// and taps all links. The machine must have all its functions and links.
    /// [`Stream::take_from`] and [`Stream::finish`] end it.
    ///
    /// # Errors
    /// Those of creating the file.
    pub fn begin(machine: &mut Machine, path: &Path) -> io::Result<()> {
        let file = BufWriter::new(File::create(path)?);
        let stream = Self::new(Names::of(machine), Filter::all(), Format::of_file(path), file);
        machine.set_trace(Some(Box::new(stream)));
        machine.fabric().set_taps(Some(KEPT));
        Ok(())
    }
}

impl<W: Write + Send + 'static> TraceSink for Stream<W> {
    fn event(
        &mut self,
        now: Nanos,
        function: FunctionId,
        attachment: Option<AttachmentId>,
        event: &Event<'_>,
    ) {
        let record = Record { sequence: self.next, time: now, function, attachment, what: What::of(event) };
        if self.failed.is_some() || !self.filter.accepts(&record) {
            return;
        }
        self.next += 1;
        self.failed = self.writer.write(&self.names.entry(&record)).err();
    }
}
