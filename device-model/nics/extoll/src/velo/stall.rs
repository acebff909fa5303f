//! Sends that have to wait, and the watchdog that ends them.

use nicforge_core::{device::Write, ids::AttachmentId, time::Nanos};
use nicforge_hwi::extoll::error;

use super::{Client, Velo, address::SendAddress};
use crate::{unit::UnitContext, wire::Class};

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
    pub(super) last: Nanos,
    /// Packets that had left on the send's way by then.
    departed: u64,
    /// Whether the send was counted as one that waits for credit.
    for_credit: bool,
}

impl Velo {
    /// Queues the first send. When it has waited long enough, the watchdog ends it with an
    /// error.
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

        let before = *stall;
        let departed = if reason == Reason::OutputChannel {
            let node = SendAddress::decode(offset).receiver.node;
            unit.parts.switch.note_waiting_send(node, Class::Request);
            unit.parts.switch.departed(&unit.context.ports(), node, Class::Request)
        } else {
            before.map_or(0, |before| before.departed)
        };

        // Time does not count while packets leave on the same output channel, because then the
        // network moves and this send will be served.
        let waited = match before {
            Some(before) if before.departed == departed => before.waited + watchdog.counted(before.last, now),
            _ => 0,
        };

        let counted = before.is_some_and(|before| before.for_credit);
        let for_credit = counted || reason == Reason::Credit;
        *stall = Some(Stall { waited, last: now, departed, for_credit });

        if for_credit && !counted {
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
        unit.fail(attachment, error::WATCHDOG, offset);
        Write::Accepted
    }
}
