//! A benchmark, and what it gets for a run.

use std::os::fd::BorrowedFd;

use indicatif::{ProgressBar, ProgressStyle};
use nicforge::{cli::EventLoop, failure::Failure, signals::Signals};

use crate::row::Outcome;

/// A benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// The bench's name on the command line, and in the names of files.
    pub name: &'static str,
    /// One line about what it measures.
    pub about: &'static str,
    /// Whether `all` runs it.
    pub is_in_all: bool,
    /// Measures, and returns the figures.
    pub run: fn(&Run<'_>) -> Result<Outcome, Failure>,
    /// The function of the bench's child processes, if it has any.
    pub child: Option<RunChild>,
}

/// Runs a child process of a benchmark, whose task the argument describes, and returns its exit
/// code.
pub type RunChild = fn(&str) -> Result<u8, Failure>;

impl Bench {
    /// Returns a benchmark without child processes that `all` runs.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&Run<'_>) -> Result<Outcome, Failure>,
    ) -> Self {
        Self { name, about, is_in_all: true, run, child: None }
    }

    /// Adds the function of the bench's child processes.
    #[must_use]
    pub const fn with_child(self, child: RunChild) -> Self {
        Self { child: Some(child), ..self }
    }

    /// Leaves the bench out of `all`.
    #[must_use]
    pub const fn not_in_all(self) -> Self {
        Self { is_in_all: false, ..self }
    }
}

/// The parameters of one benchmark's run.
pub struct Run<'a> {
    /// Make fewer repetitions.
    pub quick: bool,
    /// The way in which engines wait for sockets.
    pub event_loop: EventLoop,
    /// Set for `all`. Figures that cannot be measured on this host are then left out with a note,
    /// which is no error.
    pub all: bool,
    /// Ctrl-C. It must be checked between measurements, which [`Run::step`] does.
    signals: &'a Signals,
    progress: ProgressBar,
}

impl<'a> Run<'a> {
    /// Returns a full run. Its progress is shown on a terminal, unless `is_silent`.
    pub fn new(bench: &Bench, event_loop: EventLoop, signals: &'a Signals, is_silent: bool) -> Self {
        let progress = if is_silent { ProgressBar::hidden() } else { ProgressBar::new(0) };
        if let Ok(style) = ProgressStyle::with_template("{prefix:8} {bar:30} {pos}/{len} {msg}") {
            progress.set_style(style);
        }
        progress.set_prefix(bench.name);

        Self { quick: false, event_loop, all: false, signals, progress }
    }

    /// Announces the number of calls to [`Run::step`], for the progress bar.
    pub fn steps(&self, steps: u64) {
        self.progress.set_length(steps);
    }

    /// Begins the next measurement.
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub fn step(&self, description: impl Into<String>) -> Result<(), Failure> {
        self.check()?;
        self.progress.set_message(description.into());
        self.progress.inc(1);
        Ok(())
    }

    /// Checks that the user has not interrupted the run.
    ///
    /// # Errors
    /// Returns an error when the user has interrupted the run.
    pub fn check(&self) -> Result<(), Failure> {
        match self.signals.take() {
            Some(_) => Err(Failure::interrupted()),
            None => Ok(()),
        }
    }

    /// Returns a descriptor that is readable when the user has ended the run, for waits.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.signals.fd()
    }

    /// Returns whether no progress is shown.
    pub fn is_silent(&self) -> bool {
        self.progress.is_hidden()
    }

    /// Removes the progress from the terminal.
    pub fn finish(&self) {
        self.progress.finish_and_clear();
    }
}
