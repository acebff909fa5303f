//! Control packets between cards: credit returns, ring announcements, and requests for them.

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::extoll::error;

use crate::{
    card::{Card, STARVED_RETRY},
    directory::Entry,
    switch::Refused,
    velo::ring::Ring,
    vpid::Announcement,
    wire::{FRAMING, Kind, Wire},
};

/// Announcements that a VPID sends in one step at most.
const ANNOUNCEMENTS: u32 = 16;

impl Card {
    /// Handles a control packet of another card, or of this one.
    pub(crate) fn handle_control(&mut self, wire: Wire, content: &[u8]) {
        let number = content.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));

        match wire.kind {
            Kind::Credit => self.directory.add_credit(wire.source, wire.source_vpid, wire.generation, number),
            Kind::Directory => {
                let entry = Entry { generation: wire.generation, credit: number };
                self.directory.update(wire.source, wire.source_vpid, entry);
            }
            Kind::Hello => {
                // The sender was reset. Announce each enabled ring again, with the credit that the
                // sender has left.
                for (vpid, number) in self.vpids.iter_mut().zip(0..) {
                    if vpid.ring.is_some() {
                        vpid.announcement = Some(Announcement { next: 0 });
                        self.with_pending_control.add(number);
                    }
                }
            }
            Kind::Velo | Kind::Put | Kind::Get | Kind::Answer | Kind::Ended => {}
        }
    }

    /// Sends a control packet, which carries a number. Returns false if it could not be sent now.
    fn send_control(
        &mut self,
        context: &mut Context<'_>,
        kind: Kind,
        target: u32,
        vpid: u16,
        generation: u8,
        number: u32,
    ) -> bool {
        let wire = Wire {
            target,
            source: self.config.node,
            target_vpid: 0,
            source_vpid: vpid,
            tag: 0,
            quadwords: 1,
            kind,
            generation,
        };

        let now = context.now();
        let mut ports = context.ports();
        let Some(mut packet) = ports.new_packet(4) else {
            context.wake_at(now.after(STARVED_RETRY));
            return false;
        };

        packet.header = wire.encode();
        packet.framing = FRAMING;
        packet.bytes_mut().copy_from_slice(&number.to_le_bytes());

        match self.switch.send(&mut ports, packet) {
            Ok(()) => true,
            Err(Refused::Full(packet) | Refused::NoRoute(packet)) => {
                ports.recycle(packet);
                false
            }
        }
    }

    /// Sends a VPID's credit returns, then its announcements. Returns true if more are to be sent.
    pub(crate) fn send_pending_control(&mut self, context: &mut Context<'_>, who: u16) -> bool {
        let index = usize::from(who);
        while let Some((node, credit)) = self.vpids[index].ring.as_ref().and_then(Ring::credit_due) {
            let generation = self.vpids[index].generation;
            if !self.send_control(context, Kind::Credit, node, who, generation, credit) {
                return true;
            }
            if let Some(ring) = &mut self.vpids[index].ring {
                ring.mark_returned();
            }
        }

        for _ in 0..ANNOUNCEMENTS {
            let Some(Announcement { next }) = self.vpids[index].announcement else { break };
            if next == self.config.nodes {
                self.vpids[index].announcement = None;
                break;
            }

            // This node comes last: a local client that sends because of the announcement then
            // sends behind it.
            let node = (self.config.node + 1 + next) % self.config.nodes;
            let vpid = &self.vpids[index];
            let credit = vpid.ring.as_ref().map_or(0, |ring| ring.credit_of(node));
            if !self.send_control(context, Kind::Directory, node, who, vpid.generation, credit) {
                return true;
            }
            self.vpids[index].announcement = Some(Announcement { next: next + 1 });
        }

        if self.vpids[index].announcement.is_none() {
            self.with_pending_control.remove(who);
        }
        self.vpids[index].announcement.is_some()
    }

    /// Reads a VPID's read pointer of its receive ring. Returns true if a credit return is due for
    /// it.
    pub(crate) fn look_at_read_pointer(&mut self, context: &mut Context<'_>, who: u16) -> bool {
        let Some(vpid) = self.vpids.get_mut(usize::from(who)) else { return false };
        let (Some(pointer), Some(ring)) = (vpid.read_pointer(), vpid.ring.as_mut()) else { return false };

        let good = ring.taken(pointer);
        if !ring.has_unread() {
            self.unread.remove(who);
        }

        let due = ring.credit_due().is_some();
        if due {
            self.with_pending_control.add(who);
        }

        if !good {
            self.fail(context, AttachmentId(who), error::READ_POINTER, pointer);
            // The pointer is read again when the next message arrives, so a wrong value counts
            // once.
            self.unread.remove(who);
        }

        due
    }

    /// Asks all nodes for their enabled rings.
    pub(crate) fn request_announcements(&mut self, context: &mut Context<'_>) {
        while let Some(next) = self.next_request {
            if next == self.config.nodes {
                self.next_request = None;
            } else if self.send_control(context, Kind::Hello, next, 0, 0, 0) {
                self.next_request = Some(next + 1);
            } else {
                break;
            }
        }
    }
}
