//! Mapped memory of clients that a device writes to often, and therefore leases: memory of events,
//! and of the data of header packets.

use nicforge_core::{
    context::Context,
    dma::{DmaLease, Term},
    ids::AttachmentId,
};

use crate::{memory::HAND_OVER, reference::is_over};

/// Maximum number of bytes of memory for events that are leased at once.
const EVENT_LEASE: u64 = 64 << 10;
/// Maximum number of bytes of memory for the data of header packets that are leased at once.
const DEPOSIT_LEASE: u64 = 1 << 20;

/// The memory of a client that events are written to. Events are frequent and lie beside each
/// other, so their memory is leased where it is mapped.
#[derive(Debug, Default)]
pub(crate) enum EventMemory {
    /// No lease was tried, or the last one is over.
    #[default]
    Unknown,
    /// Part of it is leased.
    Leased(WriteLease),
    /// It cannot be leased: it is reached by messages, or not at all.
    NotMapped,
}

impl EventMemory {
    /// Writes an event through the lease, its last [`HAND_OVER`] bytes last. Returns false if no
    /// lease covers the address, or if a write by message is in flight, which the event would
    /// overtake. The caller must then write by copies or messages, which keep the order.
    #[inline]
    pub(crate) fn write(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        address: u64,
        event: &[u8],
    ) -> bool {
        if context.has_writes_in_flight(attachment_id) {
            return false;
        }
        let at = self.find(address, event.len());
        let Some(at) = at.or_else(|| self.lease(context, attachment_id, address, event.len())) else {
            return false;
        };

        let Self::Leased(lease) = self else { return false };
        let Some((event, last)) = event.split_last_chunk::<HAND_OVER>() else { return false };
        let is_complete = lease.memory.write(at, event).is_ok()
            && lease.memory.write(at + event.len() as u64, last).is_ok();
        if !is_complete {
            *self = Self::Unknown;
        }
        is_complete
    }

    /// Drops a lease that is over, and with it the memory's file.
    pub(crate) fn release_if_over(&mut self) {
        if matches!(self, Self::Leased(lease) if lease.is_over()) {
            *self = Self::Unknown;
        }
    }

    /// Returns the offset of a range, if it is in the lease.
    #[inline]
    fn find(&self, address: u64, bytes: usize) -> Option<u64> {
        match self {
            Self::Leased(lease) => lease.find(address, bytes),
            Self::Unknown | Self::NotMapped => None,
        }
    }

    /// Leases memory from an address on, unless that is known to be impossible. Returns the offset
    /// of the range there.
    #[cold]
    fn lease(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        address: u64,
        bytes: usize,
    ) -> Option<u64> {
        if matches!(self, Self::NotMapped) {
            return None;
        }
        let leased = WriteLease::new(context, attachment_id, address, EVENT_LEASE);
        *self = leased.map_or(Self::NotMapped, Self::Leased);

        let at = self.find(address, bytes);
        if at.is_none() && matches!(self, Self::Leased(_)) {
            *self = Self::Unknown;
        }
        at
    }
}

/// Leased memory of a client that the data of header packets are written to. Successive messages
/// often go to the same buffer, whose memory is leased where it is mapped.
#[derive(Debug, Default)]
pub(crate) struct DepositMemory {
    lease: Option<WriteLease>,
    /// Number of deposits outside of the lease since another one was last tried.
    misses: u32,
}

/// Number of deposits outside of a lease after which another one is taken. A lease costs more than
/// a copy, so that deposits to scattered addresses must not take one each.
const MISSES_BEFORE_LEASE: u32 = 8;

impl DepositMemory {
    /// Writes data that need one access, an aligned word at most, through the lease. Returns false
    /// for other data, if no lease covers the address, or if a write by message is in flight, which
    /// the data would overtake. The caller must then write by copies or messages, which keep the
    /// order.
    #[inline]
    pub(crate) fn write(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        address: u64,
        data: &[u8],
    ) -> bool {
        let is_word = data.len() == size_of::<u64>() && address.is_multiple_of(size_of::<u64>() as u64);
        if !is_word && data.len() > HAND_OVER || context.has_writes_in_flight(attachment_id) {
            return false;
        }

        let find = |lease: &WriteLease| lease.find(address, data.len());
        if let Some(lease) = &self.lease
            && let Some(at) = find(lease)
            && lease.memory.write(at, data).is_ok()
        {
            return true;
        }
        self.note_miss(context, attachment_id, address);
        false
    }

    /// Drops a lease that is over, and with it the memory's file.
    pub(crate) fn release_if_over(&mut self) {
        self.lease.take_if(|lease| lease.is_over());
    }

    /// Counts a deposit outside of the lease, and takes another one after several.
    #[cold]
    fn note_miss(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId, address: u64) {
        self.misses += 1;
        if self.misses >= MISSES_BEFORE_LEASE {
            self.misses = 0;
            self.lease = WriteLease::new(context, attachment_id, address, DEPOSIT_LEASE);
        }
    }
}

/// Leased memory of a client that a device writes to.
#[derive(Debug)]
pub(crate) struct WriteLease {
    /// Address of its first byte.
    start: u64,
    pub(crate) memory: DmaLease,
}

impl WriteLease {
    /// Leases up to `length` bytes of mapped memory from an address on.
    #[cold]
    pub(crate) fn new(
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        address: u64,
        length: u64,
    ) -> Option<Self> {
        let piece = context.dma_piece(attachment_id, address, length, &Term::default()).ok()?;
        let memory = piece.lease.filter(|_| piece.permission.write)?;
        Some(Self { start: address, memory })
    }

    /// Returns whether the client has unmapped the memory, or has left.
    pub(crate) fn is_over(&self) -> bool {
        is_over(&self.memory)
    }

    /// Returns the offset of a range, if it is in the lease.
    #[inline]
    pub(crate) fn find(&self, address: u64, bytes: usize) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        let end = offset.checked_add(bytes as u64)?;
        (end <= self.memory.len()).then_some(offset)
    }
}
