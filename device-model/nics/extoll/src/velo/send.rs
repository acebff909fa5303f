//! Packets from stores.

use nicforge_core::{device::Write, fabric::PortChannel, ids::AttachmentId, posted::Posted};
use nicforge_hwi::{
    extoll::{BAR_VELO, error},
    extoll_velo::MAX_MESSAGE,
};
use nicforge_kit::retry;

use super::{
    Velo,
    address::SendAddress,
    assembly::{Added, Burst},
    cycles,
    row::PackedSender,
    stall::Reason,
};
use crate::{
    failure::Failure,
    packet::{Endpoint, TrafficClass},
    unit::{Origin, UnitContext, Unsent, send_packet},
};

/// Time after which an incomplete split message is torn, in nanoseconds.
const SPLIT_TIMEOUT: u64 = 100_000_000;

/// The outcome of an attempt to send the first messages of a posted-write ring together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowOutcome {
    /// At least one message was sent.
    Sent,
    /// The first record must be handled singly.
    NotInRow,
    /// The output channel has no credit, or its credits are reserved for transit packets.
    Blocked,
}

impl Velo {
    /// Sends the first messages of a posted-write ring together where that is possible, or else the
    /// first one alone, and removes their records. `first` is the offset of the first message.
    /// Returns `Stalled` if that message has to wait.
    #[inline(always)]
    pub(crate) fn send_front(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        first: u64,
        posted: &mut Posted<'_>,
    ) -> Write {
        let written = match self.send_row(unit, attachment, first, posted) {
            RowOutcome::Sent => return Write::Accepted,
            RowOutcome::Blocked => self.stall(unit, attachment, first, Reason::OutputChannel),
            RowOutcome::NotInRow => {
                let Some((at, data)) = posted.next(unit.context) else { return Write::Accepted };
                self.send(unit, attachment, at.offset, data)
            }
        };

        if written == Write::Accepted {
            posted.done(unit.context);
        }
        written
    }

    /// Sends the first messages of a posted-write ring that go to the same node as the first one.
    /// The row ends at the first message that can't be sent at once; the caller must send that one
    /// singly.
    ///
    /// Messages with one header leave in one packet, as many as it can carry. Rows exist only where
    /// packets take no time, and sharing a packet spares most of the work for a message. The
    /// allowance of clients for the output channel counts packets.
    fn send_row(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        first: u64,
        posted: &mut Posted<'_>,
    ) -> RowOutcome {
        let Endpoint { node, vpid } = SendAddress::decode(first).receiver;
        let source = Endpoint { node: unit.parts.config.node, vpid: attachment.0 };
        // A unit that takes time takes one message after another.
        let allows_rows = !unit.is_admin(attachment) && unit.parts.config.clock.is_instant();
        let output = unit.parts.switch.output_channel(node, TrafficClass::Request).filter(|_| allows_rows);
        let Some(output) = output else { return RowOutcome::NotInRow };

        let client = self.client(attachment).filter(|client| client.assembly.is_empty());
        let Some(client) = client else { return RowOutcome::NotInRow };

        let (switch, directory) = (&mut unit.parts.switch, &mut unit.parts.directory);
        let mut ports = unit.context.ports();
        let maximum = switch.allowance(&ports, output);
        let PortChannel { port, channel } = output;
        if maximum == 0 || ports.is_up(port) && !ports.ready(port, channel) {
            // A message without credit waits for the receiver and not for the output channel.
            let has_credit =
                directory.entry(node, vpid).is_some_and(|entry| entry.is_up() && entry.credit > 0);
            return if has_credit { RowOutcome::Blocked } else { RowOutcome::NotInRow };
        }

        // The last packet is sent after the records of its messages have left the ring, so it must
        // not fail. This packet keeps a buffer of the pool free for it.
        let Some(entries) = directory.entries_of_node(node) else { return RowOutcome::NotInRow };
        let Ok(spare) = ports.new_packet(MAX_MESSAGE) else { return RowOutcome::NotInRow };
        let takes_full_packets = ports.max_packet(port) >= MAX_MESSAGE;
        let Some(run) = ports.run(port, channel).filter(|_| takes_full_packets) else {
            ports.recycle(spare);
            return RowOutcome::NotInRow;
        };

        // A record without an address (`None`) has that of the record before it.
        let mut sender = PackedSender::new(run.at_most(maximum), entries, source, node);
        let sent = posted.take_while(|at, data| match at {
            None => sender.repeat(data) || sender.add(None, data),
            Some(at) => at.bar == BAR_VELO && sender.add(Some(at.offset), data),
        });

        let packets = sender.finish();
        ports.recycle(spare);
        if let Some(messages) = packets.unsent {
            messages.send_last(&mut ports, output);
        }

        if sent == 0 {
            return RowOutcome::NotInRow;
        }

        client.counts.sent += u64::from(sent);
        client.stall = None;
        unit.parts.attachments.mark_changed(attachment);
        switch.spend(output, packets.count);
        RowOutcome::Sent
    }

    /// Handles a write to the send aperture: sends the message if it is complete, and keeps a piece
    /// of a split one. Returns `Stalled` if the message has to wait.
    pub(crate) fn send(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        offset: u64,
        data: &[u8],
    ) -> Write {
        let now = unit.context.now();
        let Some(client) = self.client(attachment).filter(|_| !unit.is_admin(attachment)) else {
            unit.fail(attachment, Failure::of_send(error::NOT_PERMITTED, offset));
            return Write::Accepted;
        };

        let Added { burst, has_torn } = client.assembly.add(offset, data, now);
        if has_torn {
            self.count_torn(unit, attachment, offset);
        }

        match burst {
            Burst::Whole => self.inject(unit, attachment, offset, data),
            Burst::Last => self.inject_assembled(unit, attachment, offset),
            Burst::Kept => {
                self.splits.add(attachment);
                unit.context.wake_at(now.after(SPLIT_TIMEOUT));
                Write::Accepted
            }
            Burst::Bad => {
                unit.fail(attachment, Failure::of_send(error::SEND_ADDRESS, offset));
                Write::Accepted
            }
        }
    }

    /// Sends the split message whose last piece has arrived, as [`Velo::inject`] does.
    fn inject_assembled(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        offset: u64,
    ) -> Write {
        let Some(client) = self.client(attachment) else { return Write::Accepted };
        let bytes = SendAddress::decode(offset).bytes();
        let message = client.assembly.message(bytes);

        let written = self.inject(unit, attachment, offset, &message[..bytes]);
        if written == Write::Accepted
            && let Some(client) = self.client(attachment)
        {
            client.assembly.clear();
        }
        written
    }

    /// Sends a message if there is credit for its receiver. Otherwise the writer stalls.
    #[inline]
    fn inject(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        offset: u64,
        message: &[u8],
    ) -> Write {
        let address = SendAddress::decode(offset);
        let Endpoint { node, vpid } = address.receiver;
        let Some(entry) = unit.parts.directory.entry(node, vpid).filter(|entry| entry.is_up()) else {
            return self.drop_undeliverable(unit, attachment, offset);
        };

        if entry.credit == 0 {
            return self.stall(unit, attachment, offset, Reason::Credit);
        }

        if !retry::is_due(unit.context, self.send_engine.idle_at()) {
            return self.stall(unit, attachment, offset, Reason::Unit);
        }

        let source = Endpoint { node: unit.parts.config.node, vpid: attachment.0 };
        let header = address.packet_header(source, entry.generation);
        let sent = send_packet(
            unit.context,
            &mut unit.parts.switch,
            Origin::Client,
            header,
            message.len(),
            |packet| {
                packet.bytes_mut().copy_from_slice(message);
            },
        );

        match sent {
            Ok(()) => {
                entry.credit -= 1;
                if let Some(client) = self.client(attachment) {
                    client.counts.sent += 1;
                    client.stall = None;
                }
                unit.begin_work(&mut self.send_engine, cycles(message.len()));
                unit.parts.attachments.mark_changed(attachment);
                Write::Accepted
            }
            Err(Unsent::Starved) => self.stall(unit, attachment, offset, Reason::Packets),
            Err(Unsent::Full) => self.stall(unit, attachment, offset, Reason::OutputChannel),
            Err(Unsent::Unreachable) => self.drop_undeliverable(unit, attachment, offset),
        }
    }

    /// Drops a message without a receiver and counts an error.
    #[cold]
    fn drop_undeliverable(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        offset: u64,
    ) -> Write {
        if let Some(client) = self.client(attachment) {
            client.stall = None;
            client.counts.undelivered += 1;
        }

        self.totals.undelivered += 1;
        unit.fail(attachment, Failure::of_send(error::NO_RECEIVER, offset));
        Write::Accepted
    }

    /// Ends the split messages that were not complete within [`SPLIT_TIMEOUT`]. They count as torn.
    #[inline]
    pub(crate) fn end_overdue_splits(&mut self, unit: &mut UnitContext<'_, '_>) {
        if !self.splits.is_empty() {
            self.end_overdue_splits_of_clients(unit);
        }
    }

    /// Second part of [`Velo::end_overdue_splits`], for a card with split messages. It requests a
    /// call for the end of each time-out that has not passed.
    #[cold]
    fn end_overdue_splits_of_clients(&mut self, unit: &mut UnitContext<'_, '_>) {
        for attachment in self.splits.iter() {
            let client = self.clients.get(attachment);
            let since = client.and_then(|client| client.assembly.waiting_since());
            let (Some(client), Some(since)) = (client, since) else {
                self.splits.remove(attachment);
                continue;
            };

            // A message whose last piece waits for credit is complete. The watchdog limits its
            // wait, so the time-out counts from its last attempt.
            let deadline = client.stall.map_or(since, |stall| stall.last_attempt).after(SPLIT_TIMEOUT);
            if retry::is_due(unit.context, deadline) {
                self.give_up_split(unit, attachment);
            }
        }
    }

    /// Ends a VPID's incomplete split message, if there is one, as torn.
    pub(crate) fn give_up_split(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId) {
        let client = self.client(attachment).filter(|client| client.assembly.waiting_since().is_some());
        let Some(client) = client else { return };

        client.assembly.clear();
        self.count_torn(unit, attachment, 0);
    }

    /// Counts a split message that was not completed.
    #[cold]
    fn count_torn(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId, offset: u64) {
        self.totals.torn += 1;
        unit.fail(attachment, Failure::of_send(error::SEND_TORN, offset));
    }
}
