//! Delivery of arrived packets to receive rings.
//!
//! Messages are delivered in rows: the messages of a packet, and the packets after each other. A
//! packet of this card itself is a row of one.

use nicforge_core::{
    fabric::{Arrivals, Packet},
    ids::AttachmentId,
    warning::Warning,
};
use nicforge_hwi::{
    extoll::{error, vector},
    extoll_velo,
};

use super::{Client, QUADWORD, Velo, cycles, ring::Delivered};
use crate::{
    attachment::Attachments,
    failure::Failure,
    packet::{Endpoint, PacketHeader, PacketKind},
    switch::Arrival,
    unit::UnitContext,
};

/// Packets in a row, of which the first can be read and removed.
pub(super) trait PacketRow {
    /// Returns the first packet.
    fn front(&self) -> Option<&Packet>;

    /// Removes the first packet.
    fn remove_front(&mut self);
}

impl PacketRow for Arrivals<'_> {
    #[inline(always)]
    fn front(&self) -> Option<&Packet> {
        self.front()
    }

    #[inline(always)]
    fn remove_front(&mut self) {
        self.recycle_front();
    }
}

/// A row of one packet, which was taken out of its queue.
struct Single<'a>(Option<&'a Packet>);

impl PacketRow for Single<'_> {
    fn front(&self) -> Option<&Packet> {
        self.0
    }

    fn remove_front(&mut self) {
        self.0 = None;
    }
}

/// The outcome of the delivery of a row of packets.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    delivered: u32,
    undelivered: u32,
    /// The header of the last packet that was handled. The two flags are about its VPID.
    last_header: u64,
    /// Whether the VPID's interrupt is due: its ring was empty, and the interrupt is enabled.
    interrupt: bool,
    /// Whether the memory of the VPID's ring is gone.
    gone: bool,
}

/// The outcome of the delivery of the first packets of a row, which have the same header.
#[derive(Clone, Copy, Debug)]
struct DeliveredToOne {
    messages: Delivered,
    /// Whether the VPID's interrupt is due.
    interrupt: bool,
}

impl Velo {
    /// Takes an arrival that is a message, and the messages that follow it directly in the same
    /// queue, out of at most `limit` packets. Returns the number of messages, which is 0 while the
    /// unit is busy.
    #[inline(always)]
    pub(crate) fn receive(&mut self, unit: &mut UnitContext<'_, '_>, arrival: Arrival, limit: u32) -> u32 {
        if unit.parts.config.clock.is_instant() {
            return self.receive_row(unit, arrival, limit);
        }

        // A unit that takes time delivers one message after another.
        if !unit.request_idle(&self.receive_engine) {
            return 0;
        }
        unit.begin_work(&mut self.receive_engine, cycles(arrival.header.quadwords * QUADWORD));
        self.receive_row(unit, arrival, 1)
    }

    /// As [`Velo::receive`], for a unit that is idle.
    #[inline(always)]
    fn receive_row(&mut self, unit: &mut UnitContext<'_, '_>, arrival: Arrival, limit: u32) -> u32 {
        let node = unit.parts.config.node;
        let mut ports = unit.context.ports();

        let (outcome, taken) = if let Some(mut row) = unit.parts.switch.take_run(&mut ports, arrival, limit) {
            let outcome = self.deliver_row(&mut unit.parts.attachments, node, &mut row);
            (outcome, row.taken())
        } else if let Some(packet) = unit.parts.switch.take_packet(&mut ports, arrival) {
            // The packet is one of this card itself.
            let outcome = self.deliver_row(&mut unit.parts.attachments, node, &mut Single(Some(&packet)));
            ports.recycle(packet);
            (outcome, 1)
        } else {
            return 0;
        };

        self.totals.delivered += u64::from(outcome.delivered);
        self.totals.undelivered += u64::from(outcome.undelivered);

        let attachment = AttachmentId(PacketHeader::decode(outcome.last_header).target.vpid);
        if outcome.undelivered > 0 {
            let rule = &"a message arrives while its receiver has the ring for which it was sent";
            unit.context.warn(attachment, Warning::dropped(rule).value(outcome.undelivered.into()));
        }
        if outcome.interrupt {
            unit.raise(attachment, vector::VELO_RECEIVE);
        }

        if outcome.gone {
            self.disable_ring(attachment);
            unit.fail(attachment, Failure::new(error::RING_MEMORY));
        }
        (outcome.delivered + outcome.undelivered).max(taken)
    }

    /// Delivers the messages of a row, up to one that causes an interrupt or ends a ring. These
    /// events are handled before later packets.
    #[inline(always)]
    fn deliver_row(&mut self, attachments: &mut Attachments, node: u32, row: &mut impl PacketRow) -> Outcome {
        let mut outcome = Outcome::default();

        while !outcome.interrupt
            && !outcome.gone
            && let Some(packet) = row.front()
            && PacketHeader::is_for(packet.header, node, PacketKind::Velo)
        {
            outcome.last_header = packet.header;
            let DeliveredToOne { messages, interrupt } = self.deliver(attachments, outcome.last_header, row);
            outcome.delivered += messages.delivered;
            outcome.undelivered += messages.undelivered;
            (outcome.interrupt, outcome.gone) = (interrupt, messages.gone);
        }

        outcome
    }

    /// Writes the messages of the first packets of a row into the ring of their VPID, as long as
    /// the packets have the header `packet_header`. The function is not inlined, because its loop
    /// needs all registers.
    #[inline(never)]
    fn deliver(
        &mut self,
        attachments: &mut Attachments,
        packet_header: u64,
        row: &mut impl PacketRow,
    ) -> DeliveredToOne {
        let header = PacketHeader::decode(packet_header);
        let attachment = AttachmentId(header.target.vpid);

        let client = self.clients.get_mut(attachment).filter(|client| client.generation == header.generation);
        let Some(Client { ring: Some(ring), counts, .. }) = client else {
            // The messages were sent before their sender knew that the ring was disabled.
            // The row's next packet may have another target, so only one is dropped here.
            let bytes = row.front().map_or(0, |packet| packet.len());
            row.remove_front();
            let undelivered = (bytes / (header.quadwords * QUADWORD)) as u32;
            let messages = Delivered { undelivered, ..Delivered::default() };
            return DeliveredToOne { messages, interrupt: false };
        };

        let was_empty = !ring.has_unread();
        let Endpoint { node: sender, vpid: sender_vpid } = header.source;
        let slot_header = extoll_velo::header::encode(sender, sender_vpid, header.tag, header.quadwords);
        let messages = ring.put_row(sender, slot_header, packet_header, row);
        if messages.delivered == 0 {
            return DeliveredToOne { messages, interrupt: false };
        }

        counts.received += u64::from(messages.delivered);
        self.unread.add(attachment);
        attachments.mark_changed(attachment);

        let interrupt = was_empty && attachments.is_interrupt_enabled(attachment, vector::VELO_RECEIVE);
        DeliveredToOne { messages, interrupt }
    }
}
