//! One mapping of client memory, and views of mappings.

use nicforge_shm::{DmaPermission, Window};

use super::{DmaError, DmaLease, lease::LeaseTerms};

/// Memory behind a range of IOVAs.
#[derive(Clone, Debug)]
pub enum DmaBacking {
    /// Memory mapped into this process. It has exactly the length of the range; offset 0 is the
    /// first IOVA.
    Memory(Window),
    /// Memory that only messages to the client reach.
    Remote,
}

/// The access of a device to client memory that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaAccess {
    /// The device reads the memory.
    Read,
    /// The device writes the memory.
    Write,
}

impl DmaAccess {
    /// Returns whether the device writes the memory.
    #[inline]
    pub fn is_write(self) -> bool {
        self == Self::Write
    }

    /// Returns whether a mapping with this permission allows the access.
    #[inline]
    pub(super) fn is_allowed_by(self, permission: DmaPermission) -> bool {
        permission.allows(self.is_write())
    }

    /// Returns the error of the access to `length` bytes at `iova` that a mapping does not allow.
    pub(super) fn refused(self, iova: u64, length: usize) -> DmaError {
        DmaError::Permission { iova, length, write: self.is_write() }
    }
}

/// One mapping. Dropping it ends its leases.
pub(super) struct Mapping {
    /// The first IOVA.
    pub(super) iova: u64,
    /// The last IOVA. The first one behind the mapping may not exist, at the end of the address
    /// space.
    pub(super) last: u64,
    pub(super) permission: DmaPermission,
    pub(super) backing: DmaBacking,
    /// The terms that end with this mapping.
    pub(super) lease_terms: LeaseTerms,
}

impl Mapping {
    /// Returns the length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.last - self.iova + 1
    }

    /// Returns the memory of the part of the mapping that lies in the addresses from `first` to
    /// `last`. Returns `None` if it is not memory of this process, or there is no such part.
    pub(super) fn part(&self, first: u64, last: u64) -> Option<Window> {
        let DmaBacking::Memory(window) = &self.backing else { return None };
        let (first, last) = (first.max(self.iova), last.min(self.last));
        window.window(first - self.iova, last.checked_sub(first)?.checked_add(1)?).ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.lease_terms.end();
    }
}

/// A mapping, as [`super::DmaMap::ranges`] returns it.
#[derive(Clone, Copy, Debug)]
pub struct DmaRange<'a> {
    /// First IOVA.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access that a device has to it.
    pub permission: DmaPermission,
    /// Memory behind it.
    pub backing: &'a DmaBacking,
}

/// The longest prefix of a range that is of one kind: see [`super::DmaMap::piece`].
#[derive(Clone, Debug)]
pub struct DmaPiece {
    /// Length in bytes, at least 1.
    pub length: u64,
    /// Access that a device has to it. The lease permits no more, even if its memory would.
    pub permission: DmaPermission,
    /// Number of mappings that it lies in, 1 to [`super::MAX_LEASE`].
    pub mappings: usize,
    /// Its memory, or `None` if only messages reach it.
    pub lease: Option<DmaLease>,
}

/// The part of an access that lies in one mapping.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// First IOVA of the part.
    pub iova: u64,
    /// Length in bytes, at least 1.
    pub length: usize,
    /// Memory behind the mapping.
    pub backing: &'a DmaBacking,
    /// Offset of the part in the mapping in bytes.
    pub offset: u64,
}

/// The parts of an access in ascending order. Together they are the whole access.
#[derive(Clone)]
pub struct Segments<'a> {
    /// The mappings of the parts that remain.
    pub(super) mappings: std::slice::Iter<'a, Mapping>,
    /// First IOVA that remains.
    pub(super) iova: u64,
    /// Number of bytes that remain.
    pub(super) remaining: usize,
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    #[inline]
    fn next(&mut self) -> Option<Segment<'a>> {
        if self.remaining == 0 {
            return None;
        }

        let mapping = self.mappings.next()?;
        let iova = self.iova;
        let in_mapping = usize::try_from(mapping.last - iova).unwrap_or(usize::MAX).saturating_add(1);
        let length = self.remaining.min(in_mapping);
        self.remaining -= length;
        self.iova = iova.wrapping_add(length as u64);

        Some(Segment { iova, length, backing: &mapping.backing, offset: iova - mapping.iova })
    }
}
