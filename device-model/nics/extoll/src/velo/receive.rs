//! Delivery of arrived packets to receive rings.

use nicforge_core::{
    context::Context,
    fabric::{Arrivals, Packet},
    ids::AttachmentId,
};
use nicforge_hwi::{
    extoll::{error, vector},
    extoll_velo::header,
};

use super::ring::Put;
use crate::{
    card::Card,
    set::Set,
    switch::Arrival,
    vpid::Vpid,
    wire::{Kind, Wire},
};

/// Packets in a row, of which the first can be read and passed.
trait Row {
    fn front(&self) -> Option<&Packet>;
    fn pass(&mut self);
}

impl Row for Arrivals<'_> {
    #[inline(always)]
    fn front(&self) -> Option<&Packet> {
        self.front()
    }

    #[inline(always)]
    fn pass(&mut self) {
        self.pass();
    }
}

/// A row of one packet, which was taken out of its queue.
struct Single<'a>(Option<&'a Packet>);

impl Row for Single<'_> {
    fn front(&self) -> Option<&Packet> {
        self.0
    }

    fn pass(&mut self) {
        self.0 = None;
    }
}

/// The outcome of the delivery of messages to a VPID.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    delivered: u32,
    undelivered: u32,
    /// Whether the ring was empty before and its interrupt is enabled.
    interrupt: bool,
    /// Whether the ring's memory is gone.
    gone: bool,
}

/// The parts of the card that a delivery changes while packets are taken.
struct Delivery<'a> {
    vpids: &'a mut [Vpid],
    unread: &'a mut Set,
    with_changed_counters: &'a mut Set,
}

impl Delivery<'_> {
    /// Puts the first packets of a row, as long as they have the header `alike`, into the ring of
    /// their VPID. The function is not inlined, because its loop needs all registers.
    #[inline(never)]
    fn deliver(&mut self, alike: u64, row: &mut impl Row) -> Outcome {
        let wire = Wire::decode(alike);
        let who = wire.target_vpid;
        let mut outcome = Outcome::default();

        let vpid = self.vpids.get_mut(usize::from(who)).filter(|vpid| vpid.generation == wire.generation);
        let Some(Vpid { ring: Some(ring), counts, interrupts_enabled, .. }) = vpid else {
            // The message was sent before its sender knew that the ring was disabled.
            row.pass();
            return Outcome { undelivered: 1, ..outcome };
        };

        let first = !ring.has_unread();
        let header = header::encode(wire.source, wire.source_vpid, wire.tag, wire.quadwords);

        if let Some(mut filling) = ring.fill(wire.source) {
            while let Some(packet) = row.front()
                && packet.header == alike
            {
                let put = filling.put(header, packet.bytes());
                row.pass();
                if put == Put::Done {
                    continue;
                }
                outcome.undelivered += 1;
                if put == Put::MemoryGone {
                    outcome.gone = true;
                    break;
                }
            }
            outcome.delivered = filling.put_in();
        } else if let Some(packet) = row.front() {
            let put = ring.put_one(wire.source, header, packet.bytes());
            row.pass();
            outcome.delivered = u32::from(put == Put::Done);
            outcome.undelivered = u32::from(put != Put::Done);
            outcome.gone = put == Put::MemoryGone;
        }

        if outcome.delivered > 0 {
            counts.received += u64::from(outcome.delivered);
            outcome.interrupt = first && *interrupts_enabled & (1 << vector::VELO_RECEIVE) != 0;
            self.unread.add(who);
            self.with_changed_counters.add(who);
        }

        outcome
    }
}

impl Card {
    /// Takes an arrival that is a message and the messages behind it in a row, at most `limit`.
    /// Returns the number taken.
    pub(crate) fn receive(&mut self, context: &mut Context<'_>, arrival: Arrival, limit: u32) -> u32 {
        let node = self.config.node;
        let Self { switch, vpids, unread, with_changed_counters, .. } = self;
        let mut delivery = Delivery { vpids, unread, with_changed_counters };

        let mut ports = context.ports();
        let mut taken = 0;
        let (mut last, mut outcome) = (0, Outcome::default());
        let (mut delivered, mut undelivered) = (0, 0);

        if let Some(mut row) = switch.take_run(&mut ports, arrival, limit) {
            // An interrupt, or the end of a ring, is handled before later packets.
            while !outcome.interrupt
                && !outcome.gone
                && let Some(packet) = row.front()
                && Wire::is_for(packet.header, node, Kind::Velo)
            {
                last = packet.header;
                outcome = delivery.deliver(last, &mut row);
                delivered += outcome.delivered;
                undelivered += outcome.undelivered;
            }
            taken = row.taken();
        } else if let Some(packet) = switch.take(&mut ports, arrival) {
            // The packet is one of this card itself.
            last = packet.header;
            outcome = delivery.deliver(last, &mut Single(Some(&packet)));
            (delivered, undelivered, taken) = (outcome.delivered, outcome.undelivered, 1);
            ports.recycle(packet);
        }

        self.delivered += u64::from(delivered);
        self.undelivered += u64::from(undelivered);

        let who = AttachmentId(Wire::decode(last).target_vpid);
        if outcome.interrupt {
            self.raise(context, who, vector::VELO_RECEIVE);
        }

        if outcome.gone {
            self.disable_ring(who);
            self.fail(context, who, error::RING_MEMORY, 0);
        }
        taken
    }
}
