//! The guests of one boot as a group: their barriers, and how long each stays.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nicforge_guest::{Guest, GuestConfig, GuestError, Progress};

use super::{CHECK_INTERVAL, COMMAND_TIMEOUT, barrier::Barriers, options::Options};

/// The operation in errors of a guest that stays for the others.
const HOLDING: &str = "staying for the other guests' commands (--hold)";

/// The guests of one boot.
pub(super) struct GuestGroup {
    barriers: Mutex<Barriers>,
    /// Whether guests stay until the commands of all have ended.
    hold: bool,
    /// How long a command may take.
    limit: Duration,
    /// How long a guest's boot may take.
    boot_limit: Duration,
}

/// One of the guests, for the thread that runs its command.
pub(super) struct Member<'a> {
    group: &'a GuestGroup,
    /// The guest's number in the group.
    number: usize,
}

impl GuestGroup {
    /// Returns the group of these guests.
    pub(super) fn new(guests: &[GuestConfig], options: &Options) -> Self {
        let names = guests.iter().map(|config| config.node().to_owned());
        Self {
            barriers: Mutex::new(Barriers::new(names)),
            hold: options.hold,
            limit: options.timeout.unwrap_or(COMMAND_TIMEOUT),
            boot_limit: options.boot_timeout,
        }
    }

    /// Returns the guest with a number.
    pub(super) fn member(&self, number: usize) -> Member<'_> {
        Member { group: self, number }
    }

    /// Locks the barriers.
    fn barriers(&self) -> MutexGuard<'_, Barriers> {
        self.barriers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member<'_> {
    /// Returns how long its command may take.
    pub(super) fn limit(&self) -> Duration {
        self.group.limit
    }

    /// Returns how long the guest's boot may take, and then the start of its command.
    pub(super) fn boot_limit(&self) -> Duration {
        self.group.boot_limit
    }

    /// Passes the guest's new calls on to the barriers, and answers the calls that have ended. It
    /// stops when `give_up` returns true, so that a guest that reads its answers slowly delays no
    /// end.
    ///
    /// # Errors
    /// [`GuestError::Ended`] when the guest has ended.
    pub(super) fn serve(&self, guest: &Guest, give_up: &impl Fn() -> bool) -> Result<(), GuestError> {
        let now = Instant::now();
        let ends = {
            let mut barriers = self.group.barriers();
            for call in guest.barrier_calls() {
                barriers.add_call(self.number, call, now);
            }
            barriers.take_ends(self.number, now)
        };

        for (call, end) in ends {
            if give_up() {
                break;
            }
            guest.answer_barrier(call, end.status(), &end.to_string())?;
        }
        Ok(())
    }

    /// Records that the guest's command has ended.
    pub(super) fn end_command(&self) {
        self.group.barriers().end_command(self.number);
    }

    /// With `--hold`, waits until the commands of all guests have ended. Otherwise it returns at
    /// once.
    ///
    /// # Errors
    /// - [`GuestError::Ended`]: the guest has ended by itself.
    /// - [`GuestError::Timeout`]: the others took longer than a boot and a command may take.
    /// - [`GuestError::Cancelled`].
    pub(super) fn hold(&self, guest: &Guest, progress: &Progress) -> Result<(), GuestError> {
        let limit = self.group.boot_limit + self.group.limit;
        let until = Instant::now() + limit;

        while self.group.hold && !self.group.barriers().have_all_ended() {
            // Processes that the command has left behind may still call barriers.
            self.serve(guest, &|| progress.is_cancelled() || Instant::now() >= until)?;
            guest.watch(HOLDING, CHECK_INTERVAL)?;

            if progress.is_cancelled() {
                return Err(GuestError::Cancelled);
            }
            if Instant::now() >= until {
                let (node, what) = (guest.node().to_owned(), HOLDING.to_owned());
                return Err(GuestError::Timeout { node, what, limit, end: guest.log_ends() });
            }
        }

        Ok(())
    }
}
