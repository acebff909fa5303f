//! Control packets between cards: credit returns, ring announcements, and requests for them.

use nicforge_core::ids::AttachmentId;

use super::{
    Client, Velo,
    ring::{CreditDue, Ring},
};
use crate::{
    directory::Entry,
    packet::{Endpoint, PacketHeader, PacketKind},
    unit::{Origin, UnitContext, send_packet},
};

/// Maximum number of announcements that a VPID sends in one step.
const ANNOUNCEMENTS_PER_STEP: u32 = 16;

/// A change of the receive ring that has yet to be announced to some nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Announcement {
    /// Number of nodes that have the announcement already.
    announced_nodes: u32,
}

/// The receive ring that a control packet is about.
#[derive(Clone, Copy, Debug)]
struct RingOfVpid {
    owner: AttachmentId,
    generation: u8,
}

impl RingOfVpid {
    /// Stands in the packets that are about no ring.
    const NONE: Self = Self { owner: AttachmentId(0), generation: 0 };
}

/// Sends a control packet about a ring to the node `target`. Its content is the number of credits
/// that the node gets, 0 in a request for announcements. Returns false if it could not be sent now.
fn send_control(
    unit: &mut UnitContext<'_, '_>,
    kind: PacketKind,
    target: u32,
    ring: RingOfVpid,
    credit: u32,
) -> bool {
    let header = PacketHeader {
        target: Endpoint { node: target, vpid: 0 },
        source: Endpoint { node: unit.parts.config.node, vpid: ring.owner.0 },
        tag: 0,
        quadwords: 1,
        kind,
        generation: ring.generation,
    };

    let credit = credit.to_le_bytes();
    let sent =
        send_packet(unit.context, &mut unit.parts.switch, Origin::Card, header, credit.len(), |packet| {
            packet.bytes_mut().copy_from_slice(&credit);
        });
    sent.is_ok()
}

impl Velo {
    /// Handles a control packet of another card, or of this one.
    pub(crate) fn handle_control(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        header: PacketHeader,
        content: &[u8],
    ) {
        // The content of a control packet is a 32-bit number of credits.
        let credit = content.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let PacketHeader { source: Endpoint { node, vpid }, generation, .. } = header;

        match header.kind {
            PacketKind::CreditReturn => unit.parts.directory.add_credit(node, vpid, generation, credit),
            PacketKind::RingAnnouncement => {
                unit.parts.directory.update(node, vpid, Entry { generation, credit })
            }
            PacketKind::AnnouncementRequest => {
                // The sender was reset. Announce each enabled ring again, with the credit that the
                // sender has left.
                for (attachment, client) in self.clients.iter_mut() {
                    if client.ring.is_some() {
                        client.announcement = Some(Announcement::default());
                        self.with_pending_control.add(attachment);
                    }
                }
            }
            PacketKind::Velo
            | PacketKind::Put
            | PacketKind::Get
            | PacketKind::Answer
            | PacketKind::GetEnd => {}
        }
    }

    /// Sends credit returns and announcements of all VPIDs, as far as there is room. Returns the
    /// number of packets sent and of announcements that are now complete.
    #[inline]
    pub(crate) fn send_pending_control(&mut self, unit: &mut UnitContext<'_, '_>) -> u32 {
        if self.with_pending_control.is_empty() {
            return 0;
        }

        let mut done = 0;
        let mut next = self.with_pending_control.first();
        while let Some(attachment) = next {
            done += self.send_control_of(unit, attachment);
            next = self.with_pending_control.next_after(attachment);
        }
        done
    }

    /// Sends a VPID's credit returns, then its announcements, as far as there is room. Returns the
    /// number of packets sent, and one more for a complete announcement.
    fn send_control_of(&mut self, unit: &mut UnitContext<'_, '_>, attachment: AttachmentId) -> u32 {
        let (node, nodes) = (unit.parts.config.node, unit.parts.config.nodes);
        let Some(client) = self.clients.get_mut(attachment) else { return 0 };
        let Client { ring, generation, announcement, .. } = client;
        let subject = RingOfVpid { owner: attachment, generation: *generation };
        let mut done = 0;

        while let Some(CreditDue { node: target, credit }) = ring.as_ref().and_then(Ring::credit_due) {
            if !send_control(unit, PacketKind::CreditReturn, target, subject, credit) {
                return done;
            }
            done += 1;
            if let Some(ring) = ring {
                ring.mark_credit_returned();
            }
        }

        for _ in 0..ANNOUNCEMENTS_PER_STEP {
            let Some(Announcement { announced_nodes }) = *announcement else { break };
            if announced_nodes == nodes {
                *announcement = None;
                done += 1;
                break;
            }

            // This node comes last: a local client that sends because of the announcement then
            // sends after it.
            let target = (node + 1 + announced_nodes) % nodes;
            let credit = ring.as_ref().map_or(0, |ring| ring.credit_of(target));
            if !send_control(unit, PacketKind::RingAnnouncement, target, subject, credit) {
                return done;
            }
            done += 1;
            *announcement = Some(Announcement { announced_nodes: announced_nodes + 1 });
        }

        if announcement.is_none() {
            self.with_pending_control.remove(attachment);
        }
        done
    }

    /// After a reset, asks the nodes that were not asked yet for their enabled rings.
    #[inline]
    pub(crate) fn request_announcements(&mut self, unit: &mut UnitContext<'_, '_>) {
        if self.next_request.is_some() {
            self.request_all_announcements(unit);
        }
    }

    /// As [`Velo::request_announcements`], where nodes are left.
    #[cold]
    fn request_all_announcements(&mut self, unit: &mut UnitContext<'_, '_>) {
        while let Some(next) = self.next_request {
            if next == unit.parts.config.nodes {
                self.next_request = None;
            } else if send_control(unit, PacketKind::AnnouncementRequest, next, RingOfVpid::NONE, 0) {
                self.next_request = Some(next + 1);
            } else {
                break;
            }
        }
    }
}
