//! The lines that a test's code logs.

use std::{
    cell::RefCell,
    fmt::{Debug, Write},
    sync::Once,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::Interest,
};

thread_local! {
    /// The lines of this thread, while a test collects them.
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The lines of the current thread's log, at the levels that a user sees by default: warnings and
/// errors.
#[derive(Clone, Copy, Debug)]
pub struct LogLines(());

impl LogLines {
    /// Calls `f`, and returns the lines that it logs on this thread. A line is the message, and
    /// then each field as `name=value`.
    ///
    /// # Panics
    /// If the process has another subscriber already.
    pub fn of(f: impl FnOnce()) -> Vec<String> {
        // One subscriber serves all tests of a process. With one for each of them, a test that
        // ended at the wrong time could switch off a line of another.
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            tracing::subscriber::set_global_default(Self(())).expect("tests have no other subscriber");
        });

        LINES.set(Some(Vec::new()));
        f();
        LINES.take().unwrap_or_default()
    }
}

impl Subscriber for LogLines {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The answer differs from thread to thread.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && LINES.with_borrow(Option::is_some)
    }

    fn event(&self, event: &Event<'_>) {
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                let mut line = Line::default();
                event.record(&mut line);
                lines.push(line.message + &line.fields);
            }
        });
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
