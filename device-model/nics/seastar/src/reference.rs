//! Packets that refer to client memory instead of carrying its bytes.
//!
//! Over links that take no time, the data of a long message are copied once, from the sender's
//! memory to the receiver's. A packet then refers to the bytes of up to [`PACKETS`] packets in the
//! sender's leased memory, and the receive engine copies them. A message with an end-to-end check,
//! or over links that take time, is copied into its packets and out of them.
//!
//! The sender's memory is in use until its packets are gone. The transmit engine reports the end of
//! a transmission only then, so that a client that has seen it may write to the memory again. If
//! the transmission has to end earlier, its packets lose access to the memory.

use std::sync::Arc;

use nicforge_core::{
    context::Context,
    dma::{DmaLease, Term},
    fabric::Packet,
    ids::{AttachmentId, FunctionId},
};
use nicforge_hwi::seastar::Piece;

use crate::config::Options;

/// Maximum number of packets whose bytes one reference replaces. A step of the receive engine
/// copies all bytes of a reference: 256 KB with packets of the default size.
const PACKETS: usize = 32;
/// Size of a packet for the bound of [`PACKETS`], where links have longer ones.
const COUNTED_PACKET: usize = 8 << 10;
/// Packets of fewer bytes than these always carry their data.
const MIN_PACKET: usize = 256;
/// Minimum number of bytes that a packet refers to. Copying fewer twice costs less than a lease.
pub(crate) const MIN_REFERENCE: u32 = 2048;
/// Maximum number of bytes of a lease, which bounds the number of mappings that taking it searches.
pub(crate) const MAX_LEASE: u32 = 4 << 20;
/// Bytes of the packet that carries a reference: the offset in its lease, and the length.
pub(crate) const REFERENCE_BYTES: usize = 12;

/// Returns the maximum number of bytes that a packet of a network refers to, 0 if packets carry
/// their data.
pub(crate) fn max_reference(options: &Options) -> u32 {
    let link = &options.link;
    let takes_time = link.bits_per_second > 0 || link.delay > 0 || options.host_rate > 0;
    let may_refer = !takes_time && options.end_to_end_crc != Some(true) && link.max_packet >= MIN_PACKET;
    if may_refer { (PACKETS * link.max_packet.min(COUNTED_PACKET)) as u32 } else { 0 }
}

/// The memory that a packet refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Offset of the memory in the packet's lease.
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

    /// Writes the reference into a packet of [`REFERENCE_BYTES`] bytes, with the lease that it is
    /// to.
    fn write_to(self, packet: &mut Packet, lease: &Arc<DmaLease>) {
        let bytes = packet.bytes_mut();
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        packet.memory = Some(Arc::clone(lease));
    }
}

/// Client memory that packets of a message refer to. When this is dropped, the packets lose access
/// to it.
#[derive(Debug)]
pub(crate) struct ReferencedMemory {
    /// Term of all leases, which ends with this object.
    term: Term,
    /// The lease of the memory that packets were last made from.
    current: Option<Current>,
    /// Leases of earlier memory of the message, to which packets may still refer.
    earlier: Vec<Arc<DmaLease>>,
}

/// A lease with the memory that it is of.
#[derive(Debug)]
struct Current {
    lease: Arc<DmaLease>,
    attachment: u16,
    /// Address of its first byte.
    start: u64,
}

impl Current {
    /// Returns the offset of the first `length` bytes of a piece, if all of them are in the lease.
    fn find(&self, piece: &Piece, length: u32) -> Option<u64> {
        let offset = piece.address.checked_sub(self.start)?;
        let is_inside = offset.checked_add(length.into()).is_some_and(|end| end <= self.lease.len());
        (is_inside && piece.attachment == self.attachment).then_some(offset)
    }
}

impl ReferencedMemory {
    /// Returns an object without memory. `function` is woken when no packet refers to a lease any
    /// more.
    pub(crate) fn new(function: FunctionId) -> Self {
        Self { term: Term::waking(function), current: None, earlier: Vec::new() }
    }

    /// Makes a packet of [`REFERENCE_BYTES`] bytes refer to the first `length` bytes of a piece.
    /// Returns false if the memory cannot be leased.
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

        Reference { offset, length }.write_to(packet, &current.lease);
        true
    }

    /// Leases the beginning of a piece in place of the current lease. Returns whether that is
    /// possible.
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

    /// Returns whether the client has withdrawn the memory while packets could refer to it.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.leases().any(|lease| is_over(lease))
    }

    /// Returns all leases of the message.
    fn leases(&self) -> impl Iterator<Item = &Arc<DmaLease>> {
        self.current.iter().map(|current| &current.lease).chain(&self.earlier)
    }
}

impl Drop for ReferencedMemory {
    fn drop(&mut self) {
        self.term.end();
    }
}

/// Returns whether packets refer to a lease: each has a reference-counted handle of it.
fn is_in_use(lease: &Arc<DmaLease>) -> bool {
    Arc::strong_count(lease) > 1
}

/// Returns whether a lease has ended, so that its memory cannot be read any more.
pub(crate) fn is_over(lease: &DmaLease) -> bool {
    lease.read(0, &mut [0]).is_err()
}
