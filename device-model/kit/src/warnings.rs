//! Warnings of the parts of a device that have no [`Context`], until the device logs them.
//!
//! A part that has the context calls [`Context::warn`] itself. Any other part keeps its warnings in
//! a [`PendingWarnings`], or only counts events, which a [`CountWatch`] then finds. The device logs
//! both at the end of a step. Without an event that costs one comparison.

use nicforge_core::{
    context::Context,
    ids::AttachmentId,
    warning::{MAX_LINES, Warning},
};

/// Number of warnings that are kept. The log takes no more lines of a function at a time.
const MAX_PENDING: usize = MAX_LINES as usize;

/// A warning, and the attachment that it is about.
type Entry = (Option<AttachmentId>, Warning<'static>);

/// Warnings of a part that has no context.
///
/// *Invariant:* the first `count` entries are there, or all of them if `count` is larger. Warnings
/// beyond are only counted.
#[derive(Debug)]
pub struct PendingWarnings {
    entries: [Option<Entry>; MAX_PENDING],
    /// Warnings since the last call of [`PendingWarnings::log`].
    count: u64,
}

impl Default for PendingWarnings {
    fn default() -> Self {
        Self { entries: [const { None }; MAX_PENDING], count: 0 }
    }
}

impl PendingWarnings {
    /// Keeps a warning, as [`Context::warn`] takes it.
    #[cold]
    pub fn push(&mut self, from: impl Into<Option<AttachmentId>>, warning: Warning<'static>) {
        if let Some(entry) = self.entries.get_mut(self.count as usize) {
            *entry = Some((from.into(), warning));
        }
        self.count += 1;
    }

    /// Logs the warnings that were kept.
    #[inline]
    pub fn log(&mut self, context: &mut Context<'_>) {
        if self.count > 0 {
            self.log_all(context);
        }
    }

    #[cold]
    fn log_all(&mut self, context: &mut Context<'_>) {
        for (from, warning) in self.entries.iter_mut().filter_map(Option::take) {
            context.warn(from, warning);
        }
        context.suppress_warnings(self.count.saturating_sub(MAX_PENDING as u64));
        self.count = 0;
    }
}

/// The value of a count of events when it was last examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountWatch {
    seen: u64,
}

impl CountWatch {
    /// Logs `warning` if the count has risen since the last call, with the number of the new events
    /// as its value.
    #[inline]
    pub fn check(
        &mut self,
        context: &mut Context<'_>,
        from: Option<AttachmentId>,
        count: u64,
        warning: impl FnOnce() -> Warning<'static>,
    ) {
        if count != self.seen {
            let new = count.saturating_sub(self.seen);
            self.seen = count;
            if new > 0 {
                context.warn(from, warning().value(new));
            }
        }
    }
}
