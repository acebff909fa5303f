//! Packets that refer to client memory instead of carrying its bytes.
//!
//! Over links that take no time, the data of a long message are copied once, from the sender's
//! memory to the receiver's. A packet then names up to [`PACKETS`] packets' bytes of the sender's
//! leased memory, and the receive engine copies them. A message with an end-to-end check, or over
//! links that take time, is copied into its packets and out of them.
//!
//! The sender's memory is in use until its packets are gone. The transmit engine shows the end of a
//! transmission only then, so that a client that has seen it may write to the memory again. Where
//! the end comes earlier, the packets lose their memory.

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    dma::{DmaLease, Term},
    fabric::Packet,
    ids::AttachmentId,
};
use nicforge_hwi::seastar::Piece;

use crate::config::Options;

/// Packets that a reference takes the place of, at most. A step of the receive engine copies all
/// bytes of a reference, 256 KB with packets of the default size.
const PACKETS: usize = 32;
/// Largest size of packets that counts for [`PACKETS`].
const COUNTED_PACKET: usize = 8 << 10;
/// Size of packets below which they carry their data.
const MIN_PACKET: usize = 256;
/// Fewest bytes that a packet refers to. To copy fewer twice costs less than a lease.
pub(crate) const MIN_REFERENCE: u32 = 2048;
/// Maximum number of bytes of a lease. It bounds the mappings that are looked at at once.
pub(crate) const MAX_LEASE: u32 = 4 << 20;
/// Bytes of a packet that refers to memory: the offset in its lease, and the length.
pub(crate) const REFERENCE: usize = 12;

/// Returns the most bytes that a packet of a network refers to, 0 if packets carry their data.
pub(crate) fn max_reference(options: &Options) -> u32 {
    let link = &options.link;
    let takes_time = link.bits_per_second > 0 || link.delay > 0 || options.host_rate > 0;
    let may_refer = !takes_time && options.end_to_end_crc != Some(true) && link.max_packet >= MIN_PACKET;
    if may_refer { (PACKETS * link.max_packet.min(COUNTED_PACKET)) as u32 } else { 0 }
}

/// The memory that a packet refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Offset in the packet's lease.
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Reference {
    /// Returns the reference of a packet, or `None` if the packet carries its data.
    #[inline]
    pub(crate) fn of(packet: &Packet) -> Option<(Self, &DmaLease)> {
        let lease = packet.memory.as_deref()?;
        let (offset, rest) = packet.bytes().split_first_chunk()?;
        let length = rest.first_chunk()?;
        Some((Self { offset: u64::from_le_bytes(*offset), length: u32::from_le_bytes(*length) }, lease))
    }

    /// Has a packet of [`REFERENCE`] bytes refer to memory.
    fn put(self, packet: &mut Packet, lease: &Arc<DmaLease>) {
        let bytes = packet.bytes_mut();
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        packet.memory = Some(Arc::clone(lease));
    }
}

/// Client memory that packets of a message refer to. When this is dropped, the packets lose access
/// to it.
#[derive(Debug, Default)]
pub(crate) struct ReferencedMemory {
    /// Term of all leases.
    term: Term,
    current: Option<Current>,
    /// Leases of earlier memory of the message, to which packets still refer.
    earlier: Vec<Arc<DmaLease>>,
}

#[derive(Debug)]
struct Current {
    lease: Arc<DmaLease>,
    attachment: u16,
    /// Address of its first byte.
    start: u64,
}

impl Current {
    /// Returns the offset of a piece of memory, if all of it is in the lease.
    fn find(&self, piece: &Piece, length: u32) -> Option<u64> {
        let offset = piece.address.checked_sub(self.start)?;
        let is_inside = offset.checked_add(length.into()).is_some_and(|end| end <= self.lease.len());
        (is_inside && piece.attachment == self.attachment).then_some(offset)
    }
}

impl ReferencedMemory {
    /// Has a packet of [`REFERENCE`] bytes refer to the first `length` bytes of a piece. Returns
    /// false if the memory cannot be leased.
    pub(crate) fn refer(
        &mut self,
        context: &mut Context<'_>,
        piece: &Piece,
        length: u32,
        packet: &mut Packet,
    ) -> bool {
        let mut offset = self.current.as_ref().and_then(|current| current.find(piece, length));
        if offset.is_none() && self.lease(context, piece) {
            offset = self.current.as_ref().and_then(|current| current.find(piece, length));
        }
        let (Some(offset), Some(current)) = (offset, &self.current) else { return false };

        Reference { offset, length }.put(packet, &current.lease);
        true
    }

    /// Leases the beginning of a piece. Returns whether that is possible.
    #[cold]
    fn lease(&mut self, context: &mut Context<'_>, piece: &Piece) -> bool {
        self.earlier.retain(is_in_use);
        self.earlier.extend(self.current.take().map(|current| current.lease));

        let attachment_id = AttachmentId(piece.attachment);
        let length = piece.length.min(MAX_LEASE);
        let Ok(leased) = context.dma_piece(attachment_id, piece.address, length.into(), &self.term) else {
            return false;
        };
        let Some(lease) = leased.lease.filter(|_| leased.permission.read) else { return false };
        let (attachment, start) = (piece.attachment, piece.address);
        self.current = Some(Current { lease: Arc::new(lease), attachment, start });
        true
    }

    /// Returns whether packets refer to the memory.
    pub(crate) fn is_in_use(&self) -> bool {
        self.leases().any(is_in_use)
    }

    /// Returns whether the memory was withdrawn while packets could refer to it.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.leases().any(|lease| is_over(lease))
    }

    fn leases(&self) -> impl Iterator<Item = &Arc<DmaLease>> {
        self.current.iter().map(|current| &current.lease).chain(&self.earlier)
    }
}

impl Drop for ReferencedMemory {
    fn drop(&mut self) {
        self.term.end();
    }
}

/// Returns whether packets refer to a lease.
fn is_in_use(lease: &Arc<DmaLease>) -> bool {
    Arc::strong_count(lease) > 1
}

/// Returns whether a lease is over.
pub(crate) fn is_over(lease: &DmaLease) -> bool {
    lease.read(0, &mut [0]).is_err()
}
