//! Packets from stores, and writers that wait.

use nicforge_core::{context::Context, device::Write, ids::AttachmentId, posted::Posted};
use nicforge_hwi::{
    extoll::{BAR_VELO, error},
    extoll_velo::address,
};

use super::assembly::{Burst, is_start};
use crate::{
    card::{Card, STARVED_RETRY},
    switch::Refused,
    vpid::Stall,
    wire::{Class, FRAMING, Kind, Wire},
};

/// Time after which an incomplete split message is torn, in nanoseconds.
const SPLIT_TIMEOUT: u64 = 100_000_000;
/// Looks at a waiting send before the watchdog ends it, at least.
const WATCHDOG_LOOKS: u64 = 16;

/// The outcome of an attempt to send the first messages of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// At least one message was sent.
    Some,
    /// The first record can't be sent in a row and must be handled singly.
    Nothing,
    /// The way has no credit, or its credits are reserved for transit packets.
    Blocked,
}

/// Reasons why a send has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The receiver's ring is full, as far as this node's share is concerned.
    Credit,
    /// The pool has no packet left. The wait ends by itself.
    Packets,
    /// The way has no room. The wait ends by itself, unless the network stands still.
    Way,
}

impl Card {
    /// Sends the first messages of a ring that go to the same node as the first one. The row ends
    /// at the first message that can't be sent at once; the caller must send that one singly.
    pub(crate) fn send_run(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        first: u64,
        posted: &mut Posted<'_>,
    ) -> Sent {
        let (node, addressee, ..) = address::decode(first);
        let (source, admin) = (self.config.node, self.admin());
        let Some(way) = self.switch.way_out(node, Class::Request).filter(|_| who != admin) else {
            return Sent::Nothing;
        };

        let Self { vpids, directory, with_changed_counters, switch, .. } = self;
        let vpid = vpids.get_mut(usize::from(who.0)).filter(|vpid| vpid.assembly.is_empty());
        let (Some(vpid), mut ports) = (vpid, context.ports()) else { return Sent::Nothing };

        let most = switch.allowance(&ports, way);
        if most == 0 || ports.is_up(way.0) && !ports.ready(way.0, way.1) {
            // A message without credit waits for the receiver and not for the way.
            let goes =
                directory.entry(node, addressee).is_some_and(|entry| entry.is_up() && entry.credit > 0);
            return if goes { Sent::Blocked } else { Sent::Nothing };
        }

        let Some(run) = ports.run(way.0, way.1) else { return Sent::Nothing };
        let mut run = run.at_most(most);
        // The header and the directory entry of the last record, reused for records alike.

        let (mut header, mut index) = (0, usize::MAX);
        let sent = posted.take_while(|at, data, alike| {
            if !alike {
                let (target, target_vpid, tag, quadwords) = address::decode(at.offset);
                let whole = is_start(at.offset) && data.len() == quadwords * 8;
                let sound = at.bar == BAR_VELO && target == node && whole;
                let found = directory.index(node, target_vpid).filter(|_| sound);
                let entry = found.and_then(|found| directory.at(found)).filter(|entry| entry.is_up());
                let (Some(found), Some(entry)) = (found, entry) else {
                    return false;
                };
                let wire = Wire {
                    target: node,
                    source,
                    target_vpid,
                    source_vpid: who.0,
                    tag,
                    quadwords,
                    kind: Kind::Velo,
                    generation: entry.generation,
                };
                (header, index) = (wire.encode(), found);
            }
            let Some(entry) = directory.at(index) else { return false };
            let sends = entry.credit > 0
                && run.send(data, |packet| {
                    packet.header = header;
                    packet.framing = FRAMING;
                });
            entry.credit -= u32::from(sends);
            sends
        });

        if sent == 0 {
            return Sent::Nothing;
        }

        vpid.counts.sent += u64::from(sent);
        vpid.end_stall();
        with_changed_counters.add(who.0);
        switch.spend(way, sent);
        Sent::Some
    }

    /// Handles a write to the send aperture.
    pub(crate) fn send(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        offset: u64,
        data: &[u8],
    ) -> Write {
        let now = context.now();
        let admin = self.admin();
        let Some(vpid) = self.vpid(who).filter(|_| who != admin) else {
            self.fail(context, who, error::NOT_PERMITTED, offset);
            return Write::Accepted;
        };

        let (burst, torn) = vpid.assembly.add(offset, data, now);
        if torn {
            self.torn += 1;
            self.fail(context, who, error::SEND_TORN, offset);
        }

        match burst {
            Burst::Whole => self.inject(context, who, offset, data),
            Burst::Last => {
                let (_, _, _, quadwords) = address::decode(offset);
                let message = self.vpids[usize::from(who.0)].assembly.message(quadwords);
                let written = self.inject(context, who, offset, &message[..quadwords * 8]);
                if written == Write::Accepted
                    && let Some(vpid) = self.vpid(who)
                {
                    vpid.assembly.clear();
                }
                written
            }
            Burst::Kept => {
                self.splits.add(who.0);
                context.wake_at(now.after(SPLIT_TIMEOUT));
                Write::Accepted
            }
            Burst::Bad => {
                self.fail(context, who, error::SEND_ADDRESS, offset);
                Write::Accepted
            }
        }
    }

    /// Sends a message if there is credit for its receiver. Otherwise the writer stalls.
    #[inline]
    fn inject(&mut self, context: &mut Context<'_>, who: AttachmentId, offset: u64, message: &[u8]) -> Write {
        let (node, target, tag, quadwords) = address::decode(offset);
        let Some(entry) = self.directory.entry(node, target).filter(|entry| entry.is_up()) else {
            self.undeliverable(context, who, offset);
            return Write::Accepted;
        };

        if entry.credit == 0 {
            return self.stall(context, who, offset, Reason::Credit);
        }

        let wire = Wire {
            target: node,
            source: self.config.node,
            target_vpid: target,
            source_vpid: who.0,
            tag,
            quadwords,
            kind: Kind::Velo,
            generation: entry.generation,
        };

        let mut ports = context.ports();
        let Some(mut packet) = ports.new_packet(message.len()) else {
            context.wake_at(context.now().after(STARVED_RETRY));
            return self.stall(context, who, offset, Reason::Packets);
        };

        packet.header = wire.encode();
        packet.framing = FRAMING;
        packet.bytes_mut().copy_from_slice(message);

        match self.switch.send_for_client(&mut ports, node, Class::Request, packet) {
            Ok(()) => {
                entry.credit -= 1;
                let vpid = &mut self.vpids[usize::from(who.0)];
                vpid.counts.sent += 1;
                vpid.end_stall();
                self.with_changed_counters.add(who.0);
                Write::Accepted
            }
            Err(Refused::Full(packet)) => {
                ports.recycle(packet);
                self.stall(context, who, offset, Reason::Way)
            }
            Err(Refused::NoRoute(packet)) => {
                ports.recycle(packet);
                self.undeliverable(context, who, offset);
                Write::Accepted
            }
        }
    }

    /// Drops a message without a receiver and counts an error.
    #[cold]
    fn undeliverable(&mut self, context: &mut Context<'_>, who: AttachmentId, offset: u64) {
        if let Some(vpid) = self.vpid(who) {
            vpid.end_stall();
            vpid.counts.undelivered += 1;
        }
        self.undelivered += 1;
        self.fail(context, who, error::NO_RECEIVER, offset);
    }

    /// Lets the first send wait. When it has waited long enough, the watchdog ends it with an
    /// error.
    #[cold]
    pub(crate) fn stall(
        &mut self,
        context: &mut Context<'_>,
        who: AttachmentId,
        offset: u64,
        reason: Reason,
    ) -> Write {
        let (now, watchdog) = (context.now(), self.watchdog);
        let Self { vpids, switch, .. } = self;
        let Some(vpid) = vpids.get_mut(usize::from(who.0)) else { return Write::Accepted };

        let before = vpid.stalled;
        let departed = if reason == Reason::Way {
            let (node, ..) = address::decode(offset);
            switch.want(node, Class::Request);
            switch.departed(&context.ports(), node, Class::Request)
        } else {
            before.map_or(0, |before| before.departed)
        };

        // Time counts by looks: while this card was not driven, its neighbours had no time to make
        // room either. Time does not count while packets leave on the same way, because then the
        // network moves and this send will get its turn.
        let slice = (watchdog / WATCHDOG_LOOKS).max(1);
        let waited = match before {
            Some(before) if before.departed == departed => {
                before.waited + now.0.saturating_sub(before.last.0).min(slice)
            }
            _ => 0,
        };

        vpid.stalled = Some(Stall { waited, last: now, departed });

        if reason == Reason::Credit && !vpid.stalled_for_credit {
            vpid.stalled_for_credit = true;
            vpid.counts.stalls += 1;
            self.stalls += 1;
            self.with_changed_counters.add(who.0);
        }

        if watchdog == 0 {
            return Write::Stalled;
        }
        if waited < watchdog {
            context.wake_at(now.after(slice.min(watchdog - waited)));
            return Write::Stalled;
        }

        if let Some(vpid) = self.vpid(who) {
            vpid.end_stall();
            vpid.counts.given_up += 1;
        }

        self.watchdogs += 1;
        self.fail(context, who, error::WATCHDOG, offset);
        Write::Accepted
    }

    /// Ends split messages that were not completed in time, as torn.
    pub(crate) fn give_up_splits(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        for who in self.splits.iter() {
            let vpid = &self.vpids[usize::from(who)];
            let Some(since) = vpid.assembly.waiting_since() else {
                self.splits.remove(who);
                continue;
            };

            // A message whose last piece waits for credit is complete; the watchdog limits its
            // wait.
            let end = vpid.stalled.map_or(since, |stall| stall.last).after(SPLIT_TIMEOUT);
            if now < end {
                context.wake_at(end);
                continue;
            }
            self.give_up_split(context, AttachmentId(who));
        }
    }

    /// Ends a VPID's incomplete split message, if there is one, as torn.
    pub(crate) fn give_up_split(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        let Some(vpid) = self.vpid(who).filter(|vpid| vpid.assembly.waiting_since().is_some()) else {
            return;
        };

        vpid.assembly.clear();
        self.torn += 1;
        self.fail(context, who, error::SEND_TORN, 0);
    }
}
