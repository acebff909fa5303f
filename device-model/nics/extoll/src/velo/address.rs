//! The address of a send, which is the message's header.

use nicforge_hwi::extoll_velo::{MessageFields, address};

use super::QUADWORD;
use crate::packet::{Endpoint, PacketHeader, PacketKind};

/// The receiver, tag and length of a message, decoded from the offset of its send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendAddress {
    pub(crate) receiver: Endpoint,
    tag: u8,
    quadwords: usize,
}

impl SendAddress {
    /// Returns the address that an offset in the send aperture encodes.
    #[inline(always)]
    pub(crate) const fn decode(offset: u64) -> Self {
        let MessageFields { node, vpid, tag, quadwords } = address::decode(offset);
        Self { receiver: Endpoint { node, vpid }, tag, quadwords }
    }

    /// Returns the length of the message in bytes.
    #[inline(always)]
    pub(crate) const fn bytes(self) -> usize {
        self.quadwords * QUADWORD
    }

    /// Returns the packet header of a message from `source` to this address. `generation` is that
    /// of the receiver's ring.
    #[inline(always)]
    pub(crate) const fn packet_header(self, source: Endpoint, generation: u8) -> PacketHeader {
        let Self { receiver, tag, quadwords } = self;
        PacketHeader { target: receiver, source, tag, quadwords, kind: PacketKind::Velo, generation }
    }
}
