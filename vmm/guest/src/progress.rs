//! Progress of long work, and its cancellation.

use std::{
    io::{IsTerminal, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::error::GuestError;

/// Interval at which work that waits for a process checks for cancellation.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of progress lines where standard error is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress display and cancellation. Clones share both.
#[derive(Clone)]
pub struct Progress {
    /// Returns whether the work is cancelled.
    cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    show: Arc<Mutex<Show>>,
}

/// How progress is shown.
enum Show {
    Nothing,
    /// One changing line of a terminal, once a step has begun.
    Bar(Option<ProgressBar>),
    /// Plain lines: the time of the last one, and the present step.
    Lines {
        last: Instant,
        step: String,
    },
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

impl Progress {
    /// Returns a display that shows nothing and never cancels.
    pub fn silent() -> Self {
        Self { cancelled: Arc::new(|| false), show: Arc::new(Mutex::new(Show::Nothing)) }
    }

    /// Returns a display that shows progress on standard error and never cancels. A terminal gets
    /// one changing line, else plain lines appear.
    pub fn on_stderr() -> Self {
        let show = if std::io::stderr().is_terminal() {
            Show::Bar(None)
        } else {
            Show::Lines { last: Instant::now(), step: String::new() }
        };
        Self { cancelled: Arc::new(|| false), show: Arc::new(Mutex::new(show)) }
    }

    /// Returns this display with a cancellation: once `cancelled` has returned true, the work ends
    /// soon.
    pub fn cancelled_by(self, cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        // A cancellation lasts, even if `cancelled` returns false afterwards.
        let was_cancelled = AtomicBool::new(false);
        let cancelled = move || {
            was_cancelled.load(Ordering::Relaxed) || {
                let is_cancelled = cancelled();
                was_cancelled.fetch_or(is_cancelled, Ordering::Relaxed);
                is_cancelled
            }
        };

        Self { cancelled: Arc::new(cancelled), ..self }
    }

    /// Returns whether the work is to end.
    pub fn is_cancelled(&self) -> bool {
        (self.cancelled)()
    }

    /// Returns [`GuestError::Cancelled`] when the work is to end.
    pub(crate) fn check(&self) -> Result<(), GuestError> {
        if self.is_cancelled() { Err(GuestError::Cancelled) } else { Ok(()) }
    }

    /// Begins a new step, as in "downloading QEMU".
    pub(crate) fn step(&self, what: &str) {
        let Ok(mut show) = self.show.lock() else { return };
        match &mut *show {
            Show::Nothing => {}
            Show::Bar(bar) => {
                let bar = bar.get_or_insert_with(|| {
                    let bar = ProgressBar::new(100);
                    bar.enable_steady_tick(Duration::from_millis(200));
                    bar
                });

                // A wrong template would only cost the styling.
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                    bar.set_style(style);
                }

                bar.set_position(0);
                bar.set_message(what.to_owned());
            }
            Show::Lines { last, step } => {
                *last = Instant::now();
                what.clone_into(step);
                // Standard error may be closed; the work still continues.
                let _ = writeln!(std::io::stderr(), "nicforge: {what}");
            }
        }
    }

    /// Sets the step's progress, in percent.
    pub(crate) fn percent(&self, percent: f32) {
        let Ok(mut show) = self.show.lock() else { return };
        match &mut *show {
            Show::Nothing | Show::Bar(None) => {}
            Show::Bar(Some(bar)) => {
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{bar:30}] {percent}%") {
                    bar.set_style(style);
                }
                bar.set_position(percent.clamp(0.0, 100.0) as u64);
            }
            Show::Lines { last, step } => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    let _ = writeln!(std::io::stderr(), "nicforge: {step}: {percent:.0}%");
                }
            }
        }
    }

    /// Ends the display and removes the progress line.
    pub(crate) fn done(&self) {
        if let Ok(mut show) = self.show.lock()
            && let Show::Bar(bar) = &mut *show
            && let Some(bar) = bar.take()
        {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_is_remembered() {
        let once = AtomicBool::new(true);
        let progress = Progress::silent().cancelled_by(move || once.swap(false, Ordering::Relaxed));
        assert!(progress.is_cancelled());
        assert!(progress.is_cancelled());
    }
}
