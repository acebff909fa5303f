//! The watchdog: a command whose target never answers ends.
//!
//! What counts is that something moves: a part that the network took, or an answer. When nothing has moved between a VPID and a target for as long as the
//! register says, all of the VPID's commands for that target end with [`status::TIMED_OUT`], those behind the first too: they can't pass it. What comes of
//! them later is nobody's. What the network has of a put is written when it gets there, unless its memory is withdrawn before.
//!
//! Time is counted by looks, at most a sixteenth of the limit at a time: when nobody drove this card for long, its neighbours had no time to answer
//! either.

use nicforge_core::{context::Context, device::AttachmentId, time::Nanos};
use nicforge_hwi::extoll_rma::status;

use crate::{card::Card, set::Set};

/// Looks in which a command ends that nothing moves, at least.
const LOOKS: u64 = 16;

/// When is looked, and at whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Nanoseconds without anything that moves; 0: for ever.
    limit: u64,
    last: Nanos,
    /// [`Nanos::NEVER`] while there is nothing to look at.
    next: Nanos,
    /// VPIDs with commands.
    busy: Set,
    /// Commands that it has ended.
    pub(crate) ended: u64,
}

impl Watch {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, last: Nanos::ZERO, next: Nanos::NEVER, busy: Set::default(), ended: 0 }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Another limit, from now on.
    pub(crate) fn set_limit(&mut self, context: &mut Context<'_>, limit: u64) {
        self.limit = limit;
        self.begin(context);
    }

    fn slice(&self) -> u64 {
        (self.limit / LOOKS).max(1)
    }

    /// A VPID has a command.
    #[inline]
    pub(crate) fn add(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.busy.add(who.0);
        if self.next == Nanos::NEVER {
            self.begin(context);
        }
    }

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
    /// Ends what its targets have not answered for too long.
    #[inline]
    pub(crate) fn rma_watch(&mut self, context: &mut Context<'_>) {
        let next = self.rma.watch.next;
        if next == Nanos::NEVER {
            return;
        }
        if context.now() >= next {
            self.rma_look(context);
        }
        // A wish holds until the card is driven the next time.
        context.wake_at(self.rma.watch.next);
    }

    #[cold]
    fn rma_look(&mut self, context: &mut Context<'_>) {
        let watch = &self.rma.watch;
        let elapsed = context.now().0.saturating_sub(watch.last.0).min(watch.slice());
        let (busy, limit) = (watch.busy, watch.limit);
        for number in busy.iter() {
            let who = AttachmentId(number);
            let Some(client) = self.rma.client(who) else { continue };
            client.commands.look(elapsed, limit);
            while let Some(id) = self.rma.client(who).and_then(|client| client.commands.expired()) {
                self.end_command(context, who, id, status::TIMED_OUT);
                self.rma.watch.ended += 1;
            }
            if self.rma.client(who).is_none_or(|client| client.commands.is_empty()) {
                self.rma.watch.busy.remove(number);
            }
        }
        self.rma.watch.begin(context);
    }
}
