//! The address of a send, which is the message's header.

use nicforge_hwi::extoll_velo::{MessageFields, address};

use crate::wire::{Endpoint, Kind, Wire};

/// The receiver, tag and length of a message, as the offset of its send says.
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
        self.quadwords * 8
    }

    /// Returns the header of a message from `source`. `generation` is that of the receiver's ring.
    #[inline(always)]
    pub(crate) const fn message(self, source: Endpoint, generation: u8) -> Wire {
        let Self { receiver, tag, quadwords } = self;
        Wire { target: receiver, source, tag, quadwords, kind: Kind::Velo, generation }
    }
}
