//! Sends that have to wait, and the watchdog that ends them.

use nicforge_core::{device::Write, ids::AttachmentId, time::Nanos};
use nicforge_hwi::extoll::error;

use super::{Client, Velo, address::SendAddress};
use crate::{failure::Failure, packet::TrafficClass, unit::UnitContext};

/// Reasons why a send has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The receiver's ring is full, as far as this node's share is concerned.
    Credit,
    /// The pool has no packet left. The wait ends by itself.
    Packets,
    /// The unit is busy with another message. The wait ends by itself.
    Unit,
    /// The output channel has no room. The wait ends by itself, unless the network makes no
    /// progress.
    OutputChannel,
}

/// A send that has to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Nanoseconds that count for the watchdog.
    waited: u64,
    /// Time of the last attempt.
    pub(super) last_attempt: Nanos,
    /// Number of packets that had left by the send's output channel when the send last waited for
    /// that channel.
    departed: u64,
    /// Whether the send was counted as one that waits for credit.
    is_counted: bool,
}

impl Velo {
    /// Records that a client's next send, to the address `offset`, has to wait, and returns
    /// `Stalled`. If it has waited as long as the watchdog allows, drops it instead: counts an
    /// error and returns `Accepted`.
    #[cold]
    pub(super) fn stall(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        offset: u64,
        reason: Reason,
    ) -> Write {
        let (now, watchdog) = (unit.context.now(), self.watchdog);
        let Self { clients, totals, .. } = self;
        let Some(Client { stall, counts, .. }) = clients.get_mut(attachment) else {
            return Write::Accepted;
        };

        // The state after the last attempt of the same send.
        let before = *stall;
        let departed = if reason == Reason::OutputChannel {
            let node = SendAddress::decode(offset).receiver.node;
            unit.parts.switch.note_waiting_send(node, TrafficClass::Request);
            unit.parts.switch.departed(&unit.context.ports(), node, TrafficClass::Request)
        } else {
            before.map_or(0, |before| before.departed)
        };

        // Time does not count while packets leave on the same output channel, because then the
        // network moves and this send will be served.
        let waited = match before {
            Some(before) if before.departed == departed => {
                before.waited + watchdog.counted(before.last_attempt, now)
            }
            _ => 0,
        };

        let was_counted = before.is_some_and(|before| before.is_counted);
        let is_counted = was_counted || reason == Reason::Credit;
        *stall = Some(Stall { waited, last_attempt: now, departed, is_counted });

        if is_counted && !was_counted {
            counts.stalls += 1;
            totals.stalls += 1;
            unit.parts.attachments.mark_changed(attachment);
        }

        if watchdog.is_disabled() {
            return Write::Stalled;
        }
        if waited < watchdog.nanoseconds() {
            let remaining = watchdog.nanoseconds() - waited;
            unit.context.wake_at(now.after(watchdog.slice().min(remaining)));
            return Write::Stalled;
        }

        *stall = None;
        counts.given_up += 1;
        totals.given_up += 1;
        unit.fail(attachment, Failure::of_send(error::WATCHDOG, offset));
        Write::Accepted
    }
}
