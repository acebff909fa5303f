//! The watchdog ends commands whose target never answers.
//!
//! Progress is a part that the network took, or an answer. After a time without progress between a
//! VPID and a target, all of the VPID's commands for that target end with [`status::TIMED_OUT`].
//! The register [`nicforge_hwi::extoll::reg::RMA_WATCHDOG`] sets that time. The commands after the
//! first one end as well, because they can't overtake it.
//!
//! Later answers to these commands are dropped. Parts of a put that are in the network are written
//! when they arrive, unless their memory is withdrawn before.
//!
//! Time counts by checks, as [`WatchdogLimit`] describes.

use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_hwi::extoll_rma::status;
use nicforge_kit::WatchdogLimit;

use super::Rma;
use crate::{attachment::Set, unit::UnitContext};

/// The watchdog's limit, its next check, and the VPIDs that it checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watchdog {
    /// Time without progress that is allowed.
    limit: WatchdogLimit,
    /// Time of the last check.
    last_check: Nanos,
    /// Time of the next check; [`Nanos::NEVER`] while there are no commands to check.
    next_check: Nanos,
    /// VPIDs with commands.
    with_commands: Set,
    /// Number of commands that the watchdog has ended.
    pub(super) ended: u64,
}

impl Watchdog {
    /// Returns a watchdog with this limit in nanoseconds, 0 to disable it, and no commands.
    pub(super) fn new(limit: u64) -> Self {
        let limit = WatchdogLimit::new(limit);
        Self {
            limit,
            last_check: Nanos::ZERO,
            next_check: Nanos::NEVER,
            with_commands: Set::default(),
            ended: 0,
        }
    }

    /// Returns the limit in nanoseconds, 0 if the watchdog is disabled.
    pub(super) fn limit(&self) -> u64 {
        self.limit.nanoseconds()
    }

    /// Sets the limit in nanoseconds, which counts from now; 0 disables the watchdog.
    pub(super) fn set_limit(&mut self, context: &mut Context<'_>, limit: u64) {
        self.limit = WatchdogLimit::new(limit);
        self.schedule_check(context);
    }

    /// Records that a VPID has a command.
    #[inline]
    pub(super) fn add(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        self.with_commands.add(attachment);
        if self.next_check == Nanos::NEVER {
            self.schedule_check(context);
        }
    }

    /// Schedules the next check, counted from now.
    fn schedule_check(&mut self, context: &mut Context<'_>) {
        self.last_check = context.now();
        let is_idle = self.with_commands.is_empty() || self.limit.is_disabled();
        self.next_check = if is_idle { Nanos::NEVER } else { self.last_check.after(self.limit.slice()) };
        context.wake_at(self.next_check);
    }
}

impl Rma {
    /// Returns whether a check is scheduled.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.watchdog.next_check != Nanos::NEVER
    }

    /// Ends commands without progress if a check is due, and schedules the next check.
    #[inline]
    pub(super) fn run_watchdog(&mut self, unit: &mut UnitContext<'_, '_>) {
        if !self.is_watched() {
            return;
        }

        if unit.context.now() >= self.watchdog.next_check {
            self.check_progress(unit);
        }
        // A wake-up request holds for one step of the card, so it is repeated.
        unit.context.wake_at(self.watchdog.next_check);
    }

    /// Checks the commands of all VPIDs. Ends those whose target has made no progress for the
    /// watchdog's limit.
    #[cold]
    fn check_progress(&mut self, unit: &mut UnitContext<'_, '_>) {
        let watchdog = &self.watchdog;
        let elapsed = watchdog.limit.counted(watchdog.last_check, unit.context.now());
        let (with_commands, limit) = (watchdog.with_commands, watchdog.limit());

        for attachment in with_commands.iter() {
            let Some(client) = self.client(attachment) else { continue };
            client.commands.check_progress(elapsed, limit);

            while let Some(id) = self.client(attachment).and_then(|client| client.commands.first_expired()) {
                self.end_command(unit, attachment, id, status::TIMED_OUT);
                self.watchdog.ended += 1;
            }

            if self.client(attachment).is_none_or(|client| client.commands.is_empty()) {
                self.watchdog.with_commands.remove(attachment);
            }
        }

        self.watchdog.schedule_check(unit.context);
    }
}
