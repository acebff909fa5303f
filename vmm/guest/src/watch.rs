//! Who watches long work: progress for a person, and a way to stop it.

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

/// How often work that waits for a process looks whether it is to stop.
pub(crate) const LOOK: Duration = Duration::from_millis(20);
/// Where standard error is no terminal, a step that lasts says so this often.
const REPEAT: Duration = Duration::from_secs(10);

/// Progress and cancellation. Clones are the same watch.
#[derive(Clone)]
pub struct Watch {
    cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    show: Arc<Mutex<Show>>,
}

enum Show {
    Nothing,
    Bar(Option<ProgressBar>),
    Lines { last: Instant, step: String },
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// Shows nothing and never stops the work.
    pub fn silent() -> Self {
        Self { cancelled: Arc::new(|| false), show: Arc::new(Mutex::new(Show::Nothing)) }
    }

    /// Progress on standard error: a line that changes on a terminal, else plain lines. Never stops the work.
    pub fn on_stderr() -> Self {
        let show = if std::io::stderr().is_terminal() {
            Show::Bar(None)
        } else {
            Show::Lines { last: Instant::now(), step: String::new() }
        };
        Self { cancelled: Arc::new(|| false), show: Arc::new(Mutex::new(show)) }
    }

    /// The same, and the work is given up soon after `cancelled` has said so once.
    pub fn cancelled_by(self, cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let seen = AtomicBool::new(false);
        let cancelled = move || {
            seen.load(Ordering::Relaxed) || {
                let now = cancelled();
                seen.fetch_or(now, Ordering::Relaxed);
                now
            }
        };

        Self { cancelled: Arc::new(cancelled), ..self }
    }

    /// Whether the work is to end.
    pub fn is_cancelled(&self) -> bool {
        (self.cancelled)()
    }

    pub(crate) fn check(&self) -> Result<(), GuestError> {
        if self.is_cancelled() { Err(GuestError::Cancelled) } else { Ok(()) }
    }

    /// A new step, as in "downloading QEMU".
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

                // A template that is wrong would only cost the looks.
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                    bar.set_style(style);
                }

                bar.set_position(0);
                bar.set_message(what.to_owned());
            }
            Show::Lines { last, step } => {
                *last = Instant::now();
                what.clone_into(step);
                // Nobody may be left to read; the work still goes on.
                let _ = writeln!(std::io::stderr(), "nicforge: {what}");
            }
        }
    }

    /// How far the step is, in percent.
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
                if last.elapsed() >= REPEAT {
                    *last = Instant::now();
                    let _ = writeln!(std::io::stderr(), "nicforge: {step}: {percent:.0}%");
                }
            }
        }
    }

    /// All is done; the line goes.
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
        let watch = Watch::silent().cancelled_by(move || once.swap(false, Ordering::Relaxed));
        assert!(watch.is_cancelled());
        assert!(watch.is_cancelled());
    }
}
