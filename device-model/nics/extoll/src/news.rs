//! What cards tell each other: credit, who there is, and who has forgotten.

use nicforge_core::{context::Context, device::AttachmentId};
use nicforge_hwi::extoll::error;

use crate::{
    card::{Card, STARVED_RETRY},
    directory::Entry,
    switch::Refused,
    velo::ring::Ring,
    vpid::Announcement,
    wire::{FRAMING, Kind, Wire},
};

/// Announcements sent in one step for a VPID.
const ANNOUNCEMENTS: u32 = 16;

impl Card {
    /// News of another card, or of this one.
    pub(crate) fn heard(&mut self, wire: Wire, content: &[u8]) {
        let number = content.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        match wire.kind {
            Kind::Credit => self.directory.credit(wire.source, wire.source_vpid, wire.generation, number),
            Kind::Directory => {
                let entry = Entry { generation: wire.generation, credit: number };
                self.directory.news(wire.source, wire.source_vpid, entry);
            }
            Kind::Hello => {
                // It has forgotten everything; tell it of each ring that is enabled, and what it may still send there.
                for (vpid, number) in self.vpids.iter_mut().zip(0..) {
                    if vpid.ring.is_some() {
                        vpid.announcement = Some(Announcement { next: 0 });
                        self.talking.add(number);
                    }
                }
            }
            Kind::Velo | Kind::Put | Kind::Get | Kind::Answer | Kind::Ended => {}
        }
    }

    /// A packet with a number.
    fn tell(
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

    /// Sends what is to be told: credit, then news. True when there is more.
    pub(crate) fn talk(&mut self, context: &mut Context<'_>, who: u16) -> bool {
        let index = usize::from(who);
        while let Some((node, owed)) = self.vpids[index].ring.as_ref().and_then(Ring::due) {
            let generation = self.vpids[index].generation;
            if !self.tell(context, Kind::Credit, node, who, generation, owed) {
                return true;
            }
            if let Some(ring) = &mut self.vpids[index].ring {
                ring.paid();
            }
        }
        for _ in 0..ANNOUNCEMENTS {
            let Some(Announcement { next }) = self.vpids[index].announcement else { break };
            if next == self.config.nodes {
                self.vpids[index].announcement = None;
                break;
            }
            // This node is the last one, so that whoever sees the news here, and sends because of them, sends behind them.
            let node = (self.config.node + 1 + next) % self.config.nodes;
            let vpid = &self.vpids[index];
            let credit = vpid.ring.as_ref().map_or(0, |ring| ring.left_to(node));
            if !self.tell(context, Kind::Directory, node, who, vpid.generation, credit) {
                return true;
            }
            self.vpids[index].announcement = Some(Announcement { next: next + 1 });
        }
        if self.vpids[index].announcement.is_none() {
            self.talking.remove(who);
        }
        self.vpids[index].announcement.is_some()
    }

    /// Takes what a VPID says that it has taken out of its ring. True when credit is owed for it.
    pub(crate) fn look_at_read_pointer(&mut self, context: &mut Context<'_>, who: u16) -> bool {
        let Some(vpid) = self.vpids.get_mut(usize::from(who)) else { return false };
        let (Some(pointer), Some(ring)) = (vpid.read_pointer(), vpid.ring.as_mut()) else { return false };
        let good = ring.taken(pointer);
        if !ring.has_unread() {
            self.unread.remove(who);
        }
        let due = ring.due().is_some();
        if due {
            self.talking.add(who);
        }
        if !good {
            self.fail(context, AttachmentId(who), error::READ_POINTER, pointer);
            // Looked at again when the next message comes, so that a wrong pointer is one error.
            self.unread.remove(who);
        }
        due
    }

    /// Asks the others what they have.
    pub(crate) fn greet(&mut self, context: &mut Context<'_>) {
        while let Some(next) = self.greeting {
            if next == self.config.nodes {
                self.greeting = None;
            } else if self.tell(context, Kind::Hello, next, 0, 0, 0) {
                self.greeting = Some(next + 1);
            } else {
                break;
            }
        }
    }
}
