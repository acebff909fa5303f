//! The watchdog ends commands whose target never answers.
//!
//! Progress is a part that the network took, or an answer. After a time without progress between a
//! VPID and a target, all of the VPID's commands for that target end with [`status::TIMED_OUT`].
//! The register [`nicforge_hwi::extoll::reg::RMA_WATCHDOG`] sets that time. Commands behind the
//! first end as well, because they can't pass it.
//!
//! Later answers to these commands are dropped. Parts of a put that are in the network are written
//! when they arrive, unless their memory is withdrawn before.
//!
//! Time counts by looks, at most a sixteenth of the limit for each. While this card was not driven,
//! its neighbours had no time to answer either.

use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_hwi::extoll_rma::status;

use crate::{card::Card, set::Set};

/// Looks without progress after which a command ends, at least.
const LOOKS: u64 = 16;

/// The watchdog's limit, its next look, and the VPIDs that it looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watchdog {
    /// Nanoseconds without progress that are allowed; 0 disables the watchdog.
    limit: u64,
    /// Time of the last look.
    last: Nanos,
    /// Time of the next look; [`Nanos::NEVER`] while there are no commands to look at.
    next: Nanos,
    /// VPIDs with commands.
    busy: Set,
    /// Number of commands that the watchdog has ended.
    pub(crate) ended: u64,
}

impl Watchdog {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, last: Nanos::ZERO, next: Nanos::NEVER, busy: Set::default(), ended: 0 }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Sets the limit, which counts from now.
    pub(crate) fn set_limit(&mut self, context: &mut Context<'_>, limit: u64) {
        self.limit = limit;
        self.begin(context);
    }

    /// Returns the most nanoseconds that one look counts.
    fn slice(&self) -> u64 {
        (self.limit / LOOKS).max(1)
    }

    /// Notes that a VPID has a command.
    #[inline]
    pub(crate) fn add(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.busy.add(who.0);
        if self.next == Nanos::NEVER {
            self.begin(context);
        }
    }

    /// Schedules the next look, counted from now.
    fn begin(&mut self, context: &mut Context<'_>) {
        self.last = context.now();
        self.next = match self.limit {
            _ if self.busy.is_empty() => Nanos::NEVER,
            0 => Nanos::NEVER,
            _ => self.last.after(self.slice()),
        };
        context.wake_at(self.next);
    }
}

impl Card {
    /// Ends commands without progress if a look is due, and schedules the next look.
    #[inline]
    pub(crate) fn run_rma_watchdog(&mut self, context: &mut Context<'_>) {
        let next = self.rma.watchdog.next;
        if next == Nanos::NEVER {
            return;
        }
        if context.now() >= next {
            self.check_rma_progress(context);
        }
        // A wake-up request holds for one step of the card, so it is repeated.
        context.wake_at(self.rma.watchdog.next);
    }

    /// Looks at the commands of all VPIDs.
    #[cold]
    fn check_rma_progress(&mut self, context: &mut Context<'_>) {
        let watchdog = &self.rma.watchdog;
        let elapsed = context.now().0.saturating_sub(watchdog.last.0).min(watchdog.slice());
        let (busy, limit) = (watchdog.busy, watchdog.limit);

        for number in busy.iter() {
            let who = AttachmentId(number);
            let Some(client) = self.rma.client(who) else { continue };
            client.commands.check_progress(elapsed, limit);

            while let Some(id) = self.rma.client(who).and_then(|client| client.commands.expired()) {
                self.end_command(context, who, id, status::TIMED_OUT);
                self.rma.watchdog.ended += 1;
            }

            if self.rma.client(who).is_none_or(|client| client.commands.is_empty()) {
                self.rma.watchdog.busy.remove(number);
            }
        }

        self.rma.watchdog.begin(context);
    }
}
