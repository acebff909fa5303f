//! Views of client memory: the part that a FIFO reached last, without a search for its mapping.
//!
//! In: addresses. Out: copies from and to that part. May touch: client memory.
//!
//! A search of an address for each packet costs more than the packet. A view holds a lease, whose
//! validity each access checks. Memory outside of a view is reached by [`super::memory::Memory`],
//! which also finds out why it can't be.

use std::sync::atomic::{Ordering, fence};

use nicforge_core::{
    context::Context,
    dma::{DmaAccess, DmaLease},
    ids::AttachmentId,
};
use nicforge_hwi::{
    mu::ADDRESS_BITS,
    mu_packet::{CHUNK, HEADER},
};
use nicforge_shm::Window;

use super::ranges::Access;

/// Views begin at a multiple of this, where that is mapped, too.
const PAGE: u64 = 4096;

/// Bytes of the shortest access by a view. Shorter ones may be words, which
/// [`super::memory::Memory`] reads and writes in one access each.
const MIN_ACCESS: usize = 8;

/// Bytes of a packet with one chunk of payload, which most short messages are.
const SHORT_PACKET: usize = HEADER + CHUNK;

/// A leased part of client memory, which accesses of one kind have reached before. A view is for
/// reads alone, for writes alone, or for changes of words, because the mapping need not permit
/// both.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Address of the lease's first byte.
    start: u64,
    lease: Option<DmaLease>,
    /// Accesses outside of the view since the lease was taken.
    misses: u32,
    /// Number of such accesses that the view permits before it moves. It doubles each time, so that
    /// a client can't cause a lease for each packet.
    permitted_misses: u32,
}

/// The memory that a view holds, for the accesses of one call of the device: a lease that is valid
/// when the call begins stays valid until its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldMemory<'a> {
    memory: &'a Window,
    /// Address of the window's first byte.
    start: u64,
}

impl HeldMemory<'_> {
    /// Reads memory, if the view holds it. A word of 8 bytes is read in one access.
    #[inline(always)]
    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> bool {
        let offset = address.wrapping_sub(self.start);
        let is_read = match <&mut [u8; 8]>::try_from(&mut *out) {
            Ok(word) if offset.is_multiple_of(8) => {
                self.memory.load_u64_relaxed(offset).map(|value| *word = value.to_ne_bytes()).is_ok()
            }
            _ => out.len() >= MIN_ACCESS && self.memory.read(offset, out).is_ok(),
        };

        // A read after this one sees all that the client stored before the bytes that this one saw.
        fence(Ordering::Acquire);
        is_read && !self.memory.faulted()
    }

    /// Reads as many bytes as the array has, more than a word, if the view holds them.
    #[inline(always)]
    pub(crate) fn read_array<const N: usize>(&self, address: u64, out: &mut [u8; N]) -> bool {
        let offset = address.wrapping_sub(self.start);
        let is_read = N > MIN_ACCESS && self.memory.read_array(offset, out).is_ok();
        // As in [`HeldMemory::read`].
        fence(Ordering::Acquire);
        is_read && !self.memory.faulted()
    }

    /// Writes memory, if the view holds it. A word of 8 bytes is written in one access.
    #[inline(always)]
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> bool {
        let offset = address.wrapping_sub(self.start);
        // A reader that sees a byte of this write sees all earlier ones.
        fence(Ordering::Release);
        let is_written = if let Ok(packet) = <&[u8; SHORT_PACKET]>::try_from(data) {
            self.memory.write_array(offset, packet).is_ok()
        } else if let Ok(word) = <[u8; 8]>::try_from(data) {
            self.memory.store_u64_relaxed(offset, u64::from_ne_bytes(word)).is_ok()
        } else {
            data.len() > MIN_ACCESS && self.memory.write(offset, data).is_ok()
        };
        is_written && !self.memory.faulted()
    }

    /// Adds to an aligned word in one access, if the view holds it.
    #[inline]
    fn add(&self, address: u64, value: u64) -> bool {
        let word = self.memory.u64(address.wrapping_sub(self.start));
        let is_added = word.map(|word| word.fetch_add(value, Ordering::AcqRel)).is_ok();
        // The caller then tries to reach the memory by a look-up, which reports it as unmapped.
        is_added && !self.memory.faulted()
    }
}

impl View {
    /// Returns the memory, unless its lease is over.
    #[inline]
    pub(crate) fn held(&self) -> Option<HeldMemory<'_>> {
        let memory = self.lease.as_ref()?.whole()?;
        Some(HeldMemory { memory, start: self.start })
    }

    /// Reads memory as [`HeldMemory::read`] does.
    pub(crate) fn read(&self, address: u64, out: &mut [u8]) -> bool {
        self.held().is_some_and(|held| held.read(address, out))
    }

    /// Writes memory as [`HeldMemory::write`] does.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> bool {
        self.held().is_some_and(|held| held.write(address, data))
    }

    /// Adds to a word as [`HeldMemory::add`] does. The view must be for reads, too.
    pub(crate) fn add(&self, address: u64, value: u64) -> bool {
        self.held().is_some_and(|held| held.add(address, value))
    }

    /// Drops a lease that is over, and with it the reference to the memory's file. A lease ends
    /// with a call of the client, which bounds how often a new one is taken.
    pub(crate) fn release_if_over(&mut self) {
        if self.lease.as_ref().is_some_and(|lease| lease.whole().is_none()) {
            *self = Self::default();
        }
    }

    /// Counts an access outside of the view, which was carried out. After several of them, the view
    /// moves to the memory from that address on, if the memory permits all of `accesses`.
    #[cold]
    pub(crate) fn note_miss(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        address: u64,
        length: usize,
        accesses: &[Access],
    ) {
        // Views do not serve accesses as short as these.
        if length < MIN_ACCESS {
            return;
        }
        self.release_if_over();
        self.misses += 1;
        if self.misses <= self.permitted_misses {
            return;
        }

        self.misses = 0;
        // The bound keeps the next doubling from overflowing.
        self.permitted_misses = (2 * self.permitted_misses + 1).min(u32::MAX / 4);
        let page_start = address - address % PAGE;
        self.lease = [page_start, address].into_iter().find_map(|start| {
            let lease = lease_from(context, attachment_id, start, accesses)?;
            self.start = start;
            Some(lease)
        });
    }
}

/// Leases the rest of the mapping from an address on. Returns `None` if it is not mapped into this
/// process, or does not permit all of `accesses`.
fn lease_from(
    context: &mut Context<'_>,
    attachment_id: AttachmentId,
    start: u64,
    accesses: &[Access],
) -> Option<DmaLease> {
    // The longest length that lies in one mapping, bit by bit from the highest.
    let is_in_one_mapping =
        |length| context.count_dma_mappings(attachment_id, start, length).is_ok_and(|count| count == 1);
    let length = (0..=ADDRESS_BITS).rev().map(|bit| 1 << bit).fold(0, |length, more| {
        let longer = length + more;
        if is_in_one_mapping(longer) { longer } else { length }
    });

    // A lease for each access checks the permission; one of them is enough to reach the memory.
    let mut lease = None;
    for &access in accesses {
        let access = if access == Access::Write { DmaAccess::Write } else { DmaAccess::Read };
        lease = Some(context.dma_lease(attachment_id, start, length, access).ok()?);
    }
    lease.filter(|lease| lease.whole().is_some())
}
