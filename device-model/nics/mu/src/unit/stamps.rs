//! Stamps: the tenants that the descriptors of a remote get are for.
//!
//! A descriptor of a get can lie in a FIFO of another node while the client that its packets are
//! for leaves. So the requester's unit writes the mark of the present tenants into each descriptor
//! when it reads the get's payload. The unit that carries the descriptor out gives its packets that
//! mark, in place of that of the tenants at that time.
//!
//! In: descriptors as bytes. Out: descriptors with a stamp in `injection_info`, which software
//! leaves 0; and the mark of a descriptor's packets. May touch: the table of tenants, to read.

use std::mem::offset_of;

use nicforge_hwi::{
    mu::DESCRIPTOR,
    mu_packet::{Descriptor, PacketHeader, collective_type, kind, routing},
};
use zerocopy::FromBytes;

use super::Identity;
use crate::network::Route;

/// Bytes of a descriptor that have its stamp.
const STAMP: std::ops::Range<usize> = {
    let first = offset_of!(Descriptor, packet_header) + offset_of!(PacketHeader, injection_info);
    first..first + 2
};

/// Returns whether the payload of a get reaches its receivers unchanged. That of a collective get
/// can be combined with those of other nodes, which a stamp would change.
pub(super) fn are_possible(header: &PacketHeader) -> bool {
    header.data_packet_type != kind::COLLECTIVE || header.collective_type() == collective_type::BROADCAST
}

impl Identity {
    /// Stamps the descriptors of a get's payload.
    pub(super) fn stamp(&self, payload: &mut [u8]) {
        for bytes in payload.chunks_exact_mut(DESCRIPTOR as usize) {
            let Ok(descriptor) = Descriptor::read_from_bytes(bytes) else { continue };
            let header = &descriptor.packet_header;
            // A mark of 0 stands for any tenant.
            let mark = self.receiver_of(header).map_or(0, |node| self.mark_at(node, header));
            bytes[STAMP].copy_from_slice(&mark.to_le_bytes());
        }
    }

    /// Returns the only compute node that receives packets with this header, if there is one. The
    /// node that sends them checks the rest of the header.
    fn receiver_of(&self, header: &PacketHeader) -> Option<u32> {
        let has_one_receiver = header.data_packet_type == kind::POINT_TO_POINT
            && header.byte2 & (routing::TO_IO | routing::DEPOSIT) == 0;
        let coordinates = header.destination.coordinates().map(u32::from);
        self.shape.node(&coordinates).filter(|_| has_one_receiver)
    }

    /// Returns the mark of a message's packets on a route, or 0 if they are not for one compute
    /// node. `template` is the header of its descriptor. If the FIFO is for gets, the stamp of a
    /// get takes precedence. A descriptor that the FIFO's owner has put there has none.
    #[inline]
    pub(super) fn mark_of(&self, route: Option<Route>, template: &PacketHeader, is_for_gets: bool) -> u16 {
        let Some(target) = route.and_then(Route::target) else { return 0 };
        let stamp = u16::from_le_bytes(template.injection_info);
        if is_for_gets && stamp != 0 { stamp } else { self.mark_at(target, template) }
    }
}
