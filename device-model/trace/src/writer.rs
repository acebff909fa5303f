//! The forms in which entries are written.

use std::{
    io::{self, Write},
    path::Path,
};

use crate::{entry::Entry, perfetto::Perfetto};

/// The form in which entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A line an event, for people.
    Text,
    /// A line an event, with one JSON object.
    Json,
    /// One JSON document that Perfetto's UI opens.
    Perfetto,
}

impl Format {
    /// Returns the form for a file of this name: for Perfetto if the name ends with `.json`, else
    /// text.
    pub fn of_file(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension == "json") {
            Self::Perfetto
        } else {
            Self::Text
        }
    }
}

/// Writes entries in a [`Format`].
pub struct Writer<W: Write> {
    out: W,
    form: Form,
}

/// A [`Format`] with the state of its output.
enum Form {
    Text,
    Json,
    Perfetto(Perfetto),
}

impl<W: Write> Writer<W> {
    /// Returns a writer to `out`, which should be buffered.
    pub fn new(format: Format, out: W) -> Self {
        let form = match format {
            Format::Text => Form::Text,
            Format::Json => Form::Json,
            Format::Perfetto => Form::Perfetto(Perfetto::default()),
        };
        Self { out, form }
    }

    /// Writes an entry.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&mut self, entry: &Entry) -> io::Result<()> {
        match &mut self.form {
            Form::Text => {
                let (seconds, nanoseconds) = (entry.time_ns / 1_000_000_000, entry.time_ns % 1_000_000_000);
                let mark = if entry.is_error { "!" } else { " " };
                let (source, kind) = (entry.source(), entry.kind.name());
                writeln!(
                    self.out,
                    "{seconds:>5}.{nanoseconds:09}{mark} {source:<14} {kind:<9} {}",
                    entry.text
                )
            }
            Form::Json => {
                serde_json::to_writer(&mut self.out, entry)?;
                self.out.write_all(b"\n")
            }
            Form::Perfetto(perfetto) => perfetto.write(&mut self.out, entry),
        }
    }

    /// Notes that events were lost between the entries before and after this call.
    ///
    /// # Errors
    /// Those of the output.
    pub fn note_lost(&mut self, count: u64) -> io::Result<()> {
        match &mut self.form {
            Form::Text => writeln!(self.out, "... {count} events were lost ..."),
            Form::Json => writeln!(self.out, "{{\"lost\":{count}}}"),
            Form::Perfetto(perfetto) => perfetto.note_lost(&mut self.out, count),
        }
    }

    /// Flushes what has been written.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Completes the document, and returns the output.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        if let Form::Perfetto(perfetto) = &mut self.form {
            perfetto.finish(&mut self.out)?;
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
