//! Hot and cold clients of a function.
//!
//! Each turn of a function polls the rings of its hot clients. If there are many of them, a client
//! without records goes cold while its function stays hot, in the same steps as a function (see
//! `schedule.rs`):
//!
//! 1. The machine sets the sleeping word in the client's mirror.
//! 2. The barrier at the end of the step makes the word visible to every running thread.
//! 3. The machine looks once more at the client's rings, and keeps it hot if it finds a record.
//!
//! From then on no turn polls its rings. The client's next store finds the word set, and its
//! write of [`nicforge_hwi::attachment::control::WAKE`] makes the client hot. Every other trapped
//! access does the same.
//!
//! The word also stands for stores to other mapped memory, which devices poll in any case and which
//! the machine does not see. So each early wake-up doubles the time after which the client goes
//! cold again. A client that only stores to such memory thus rarely pays for a wake-up.

use super::{FunctionSlot, active::ActiveFunction, schedule::Cooling};
use crate::{
    attachment::{Attachment, RingWatch, Tenant, WatchState},
    ids::AttachmentId,
    time::Nanos,
};

/// Number of rings that each turn polls in any case. That costs less than waking a client.
const FEW_RINGS: usize = 8;
/// Largest number of checks without a new record after which a client goes cold.
const MAX_IDLE_LIMIT: u32 = 1 << 11;
/// A sleep was worth its wake-up if it was this many times as long as the idle time before it.
const LONG_SLEEP: u64 = 16;

impl ActiveFunction<'_> {
    /// Makes the client of a trapped access hot, if it is cold.
    #[inline]
    pub(super) fn wake_client(&mut self, attachment_id: AttachmentId) {
        let (now, cool_after) = (self.shared.now, self.schedule.cool_client_after());
        if let Ok(attachment) = self.attachment(attachment_id)
            && attachment.tenant.as_ref().is_some_and(Tenant::is_cold)
        {
            attachment.wake(now, cool_after);
            self.slot.state.refresh_rings();
        }
    }

    /// Checks for idle clients, if turns poll many rings and a check is due.
    #[inline(always)]
    pub(super) fn cool_idle_clients(&mut self) {
        if self.slot.state.rings.len() > FEW_RINGS && self.shared.now >= self.slot.client_check {
            self.begin_cooling_of_clients();
        }
    }

    /// Sets the sleeping words of the clients that have posted nothing for long, and schedules the
    /// rest of their cooling for the end of the step. The time between two calls is at least
    /// [`Schedule::cool_client_after`](super::schedule::Schedule::cool_client_after).
    #[cold]
    fn begin_cooling_of_clients(&mut self) {
        self.slot.client_check = self.shared.now.after(self.schedule.cool_client_after());

        let mut has_idle = false;
        for attachment in self.slot.state.attachments.iter_mut() {
            if attachment.note_idle_check() {
                attachment.set_sleeping(true);
                has_idle = true;
            }
        }

        if has_idle {
            self.schedule.cool(Cooling::Clients(self.id()));
        }
    }

    /// Makes the cooling clients cold whose rings are still empty after the barrier. Returns
    /// whether a client has posted a record meanwhile.
    #[cold]
    pub(super) fn end_cooling_of_clients(&mut self) -> bool {
        let mut has_records = false;
        for attachment in self.slot.state.attachments.iter_mut() {
            let Some(tenant) = &mut attachment.tenant else { continue };
            if tenant.watch.state != WatchState::Cooling {
                continue;
            }

            if tenant.has_records() {
                has_records = true;
                tenant.watch.state = WatchState::Hot;
                attachment.set_sleeping(false);
            } else {
                tenant.watch.state = WatchState::Cold { since: self.shared.now };
            }
        }

        self.slot.state.refresh_rings();
        has_records
    }
}

impl FunctionSlot {
    /// Sets the sleeping words of the function's clients, or clears those of the clients that are
    /// not cold themselves.
    #[cold]
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        for (_, attachment) in self.state.attachments.iter() {
            if sleeping || !attachment.tenant.as_ref().is_some_and(Tenant::is_cold) {
                attachment.set_sleeping(sleeping);
            }
        }
    }

    /// Makes the cold clients hot that have records in their rings. A client whose threads the
    /// barrier does not reach may have posted some.
    pub(super) fn wake_clients_with_records(&mut self, now: Nanos, cool_after: u64) {
        let mut has_woken = false;
        for attachment in self.state.attachments.iter_mut() {
            if attachment.tenant.as_ref().is_some_and(|tenant| tenant.is_cold() && tenant.has_records()) {
                attachment.wake(now, cool_after);
                has_woken = true;
            }
        }

        if has_woken {
            self.state.refresh_rings();
        }
    }
}

impl Tenant {
    /// Returns whether no turn polls the client's rings.
    pub(super) fn is_cold(&self) -> bool {
        matches!(self.watch.state, WatchState::Cold { .. })
    }

    /// Returns whether a ring of the client has a record.
    fn has_records(&self) -> bool {
        self.rings.iter().any(|ring| !ring.consumer.is_empty())
    }
}

impl Attachment {
    /// Makes a cold client hot. The caller must rebuild the function's list of rings.
    pub(super) fn wake(&mut self, now: Nanos, cool_after: u64) {
        let Some(tenant) = &mut self.tenant else { return };
        let watch = &mut tenant.watch;
        let WatchState::Cold { since } = watch.state else { return };

        // A client that slept for a short time goes cold later the next time, and one that slept
        // for long goes cold earlier.
        let idle_time = cool_after.saturating_mul(watch.idle_limit.into());
        let worthwhile_sleep = idle_time.saturating_mul(LONG_SLEEP);
        watch.idle_limit = if now < since.after(worthwhile_sleep) {
            (watch.idle_limit * 2).min(MAX_IDLE_LIMIT)
        } else {
            (watch.idle_limit / 2).max(1)
        };

        watch.state = WatchState::Hot;
        (watch.records, watch.idle_checks) = (RingWatch::UNCHECKED, 0);
        self.set_sleeping(false);
    }

    /// Notes a check for idle clients. Returns true if the client begins to cool: it was hot and
    /// has posted nothing for long.
    fn note_idle_check(&mut self) -> bool {
        let records = self.counters.posted_writes.wrapping_add(self.counters.malformed_records);
        let Some(tenant) = &mut self.tenant else { return false };
        if tenant.watch.state != WatchState::Hot || tenant.rings.is_empty() {
            return false;
        }

        let watch = &mut tenant.watch;
        if watch.records != records {
            (watch.records, watch.idle_checks) = (records, 0);
            return false;
        }

        watch.idle_checks += 1;
        if watch.idle_checks < watch.idle_limit || tenant.has_records() {
            return false;
        }

        tenant.watch.idle_checks = 0;
        tenant.watch.state = WatchState::Cooling;
        true
    }
}
