//! The content of an RMA packet, which follows the header that all packets have.

use std::sync::Arc;

use nicforge_core::dma::DmaLease;

use crate::{
    config::MAX_RMA_MTU,
    packet::{Endpoint, PacketHeader, PacketKind},
    unit::{Origin, UnitContext, Unsent, send_packet},
};

/// Bytes of a packet's content. The data are not in it: the packet refers to them, or they are one
/// of its words.
pub(super) const BYTES: usize = 40;
/// Maximum number of answers that one request of a get asks for.
const MAX_ANSWERS: u32 = 16;

/// Returns the maximum number of bytes that a request for a part of a get asks for. Each of its
/// answers carries at most `mtu` bytes of data.
#[inline]
pub(super) fn max_request_bytes(mtu: u32) -> u32 {
    mtu.saturating_mul(MAX_ANSWERS).min(MAX_RMA_MTU)
}

/// A part of a command, or the answer to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The requester's number for the command.
    pub(super) id: u32,
    /// The command, the recipients of notifications, and the outcome, as the hardware interface
    /// numbers them.
    pub(super) command: u8,
    pub(super) notify: u8,
    pub(super) status: u8,
    /// In a put: this is the last part. In the answer to a get: this is the last answer to its
    /// request.
    pub(super) is_last: bool,
    /// Whether the packet refers to a staging buffer of its sender, which is in use until the
    /// packet is handled or copied.
    pub(super) staged: bool,
    /// Bytes in this part; 0 in a part that only ends its command.
    pub(super) length: u32,
    /// Bytes of the command from the first byte of this part on.
    pub(super) rest: u32,
    /// Bytes of the command.
    pub(super) total: u32,
    /// In the answer to a get, and in its end: the generation of the responder's notification
    /// queue.
    pub(super) queue_generation: u32,
    /// The address of the command's first byte at its target. In an answer to a get: the serial
    /// number of the region that was read.
    pub(super) address: u64,
    /// Offset of the data in the memory that the packet refers to, or the data of an immediate put.
    pub(super) data: u64,
}

impl Part {
    /// Returns the offset of this part in the command's data.
    #[inline]
    pub(super) const fn offset(&self) -> u32 {
        self.total.wrapping_sub(self.rest)
    }

    /// Sends the part as a packet of VPID `source` of this card. A packet that refers to memory
    /// occupies a link as long as if it carried the data.
    ///
    /// # Errors
    /// [`Unsent`].
    pub(super) fn send(
        &self,
        unit: &mut UnitContext<'_, '_>,
        kind: PacketKind,
        target: Endpoint,
        source: u16,
        memory: Option<Arc<DmaLease>>,
    ) -> Result<(), Unsent> {
        let source = Endpoint { node: unit.parts.config.node, vpid: source };
        let header = PacketHeader { target, source, tag: 0, quadwords: 1, kind, generation: 0 };

        send_packet(unit.context, &mut unit.parts.switch, Origin::Card, header, BYTES, |packet| {
            // The link carries the data, although this machine does not move them with the packet.
            packet.framing += if memory.is_some() { self.length } else { 0 };
            packet.memory = memory;
            self.encode(packet.bytes_mut());
        })
    }

    /// Writes the part to `out`, which has [`BYTES`] bytes.
    #[inline]
    pub(super) fn encode(&self, out: &mut [u8]) {
        let words = [
            u64::from(self.id)
                | u64::from(self.command) << 32
                | u64::from(self.notify) << 40
                | u64::from(self.status) << 48
                | u64::from(self.is_last) << 56
                | u64::from(self.staged) << 57,
            u64::from(self.length) | u64::from(self.rest) << 32,
            u64::from(self.total) | u64::from(self.queue_generation) << 32,
            self.address,
            self.data,
        ];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns the part that these bytes encode; `None` if they are not a part.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let [head, lengths, total, address, data] =
            [0, 1, 2, 3, 4].map(|index: usize| u64::from_le_bytes(words[index]));

        Some(Self {
            id: head as u32,
            command: (head >> 32) as u8,
            notify: (head >> 40) as u8,
            status: (head >> 48) as u8,
            is_last: head >> 56 & 1 != 0,
            staged: head >> 57 & 1 != 0,
            length: lengths as u32,
            rest: (lengths >> 32) as u32,
            total: total as u32,
            queue_generation: (total >> 32) as u32,
            address,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn part_round_trips(id: u32, command: u8, notify: u8, status: u8, ends: (bool, bool), lengths: (u32, u32, u32), queue_generation: u32, address: u64, data: u64) {
            let ((is_last, staged), (length, rest, total)) = (ends, lengths);
            let part = Part {
                id, command, notify, status, is_last, staged, length, rest, total, queue_generation, address, data,
            };
            let mut bytes = [0; BYTES];
            part.encode(&mut bytes);
            prop_assert_eq!(Part::decode(&bytes), Some(part));
            prop_assert_eq!(Part::decode(&bytes[1..]), None);
        }
    }
}
