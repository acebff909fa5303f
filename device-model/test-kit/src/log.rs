//! The lines that a test's code logs.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex, PoisonError},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// The lines of the current thread's log, at the levels that a user sees by default: warnings and
/// errors.
#[derive(Clone, Debug, Default)]
pub struct LogLines(Arc<Mutex<Vec<String>>>);

impl LogLines {
    /// Calls `f`, and returns the lines that it logs on this thread. A line is the message, and
    /// then each field as `name=value`.
    pub fn of(f: impl FnOnce()) -> Vec<String> {
        let lines = Self::default();
        tracing::subscriber::with_default(lines.clone(), f);
        std::mem::take(&mut *lines.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Subscriber for LogLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = line.message + &line.fields;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A line while its fields are visited.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("a string takes all");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
