//! The heartbeat in the mirrors of clients, by which they see that the machine is stepped.
//!
//! With it comes the end of an interval in which a function had more warnings than lines of the
//! log.

use std::sync::atomic::Ordering;

use super::Machine;
use crate::time::Nanos;

/// Interval of the heartbeat in every client's mirror, in nanoseconds.
const HEARTBEAT: u64 = 50_000_000;

impl Machine {
    /// Advances the heartbeat in every client's mirror when it is due.
    #[inline]
    pub(super) fn update_heartbeats(&mut self, now: Nanos) {
        if now < self.heartbeat_due {
            return;
        }

        self.heartbeat_due = now.after(HEARTBEAT);
        self.heartbeat += 1;
        for slot in &mut self.slots {
            // Also a function that is quiet by now says how many of its warnings were suppressed.
            let state = &mut slot.state;
            if state.warnings.is_over(now) {
                state.warnings.log_suppressed(&state.name);
            }

            for (_, attachment) in state.attachments.iter() {
                if let Some(words) = attachment.tenant.as_ref().and_then(|tenant| tenant.mirror.as_ref()) {
                    words.heartbeat.store(self.heartbeat, Ordering::Relaxed);
                }
            }
        }
    }
}
