//! The sorted table of mappings.

use std::{
    cell::Cell,
    ops::{Range, RangeInclusive},
    sync::atomic::{Ordering, fence},
};

use nicforge_shm::Window;

use super::{
    DmaAccess, DmaBacking, DmaError, DmaLease, DmaMapError, DmaPermission, DmaPiece, DmaRange, MAX_DMA,
    MAX_LEASE, Segment, Segments, Term, WordUpdate, lease::LeaseTerms, mapping::Mapping, word,
};

/// The mappings of one attachment: disjoint, sorted, and limited by a quota.
pub struct DmaMap {
    /// Largest number of mappings.
    quota: usize,
    mappings: Vec<Mapping>,
    /// Sum of the mappings' lengths. The whole address space has 2^64 bytes.
    bytes: u128,
    /// Index of the mapping in which the last access ended. A lookup checks it before use.
    hint: Cell<usize>,
}

impl DmaMap {
    /// Returns an empty map for at most `quota` mappings.
    pub fn new(quota: usize) -> Self {
        Self { quota, mappings: Vec::new(), bytes: 0, hint: Cell::new(0) }
    }

    /// Maps `length` bytes at `iova`.
    ///
    /// # Errors
    /// [`DmaMapError::Zero`], [`DmaMapError::Wraps`], [`DmaMapError::BadBacking`] if the window has
    /// another length, [`DmaMapError::NotWritable`], [`DmaMapError::Overlap`],
    /// [`DmaMapError::Quota`].
    pub fn map(
        &mut self,
        iova: u64,
        length: u64,
        permission: DmaPermission,
        backing: DmaBacking,
    ) -> Result<(), DmaMapError> {
        let last = last_iova_of_mapping(iova, length)?;
        if let DmaBacking::Memory(window) = &backing {
            if window.len() != length {
                return Err(DmaMapError::BadBacking { iova, length, window: window.len() });
            }
            if permission.write && !window.is_writable() {
                return Err(DmaMapError::NotWritable { iova });
            }
        }

        let index = self.mappings.partition_point(|mapping| mapping.last < iova);
        if let Some(next) = self.mappings.get(index).filter(|next| next.iova <= last) {
            return Err(DmaMapError::Overlap { iova: next.iova, length: next.length() });
        }

        if self.mappings.len() >= self.quota {
            return Err(DmaMapError::Quota { quota: self.quota });
        }

        self.mappings
            .insert(index, Mapping { iova, last, permission, backing, lease_terms: LeaseTerms::default() });
        self.bytes += u128::from(length);

        Ok(())
    }

    /// Removes every mapping within `length` bytes at `iova`, and ends their leases. Returns
    /// whether a lease of them was still in use.
    ///
    /// # Errors
    /// [`DmaMapError::Zero`], [`DmaMapError::Wraps`], [`DmaMapError::NotFound`] if no mapping is
    /// there, [`DmaMapError::Partial`] if a mapping lies there in part only.
    pub fn unmap(&mut self, iova: u64, length: u64) -> Result<bool, DmaMapError> {
        let last_iova = last_iova_of_mapping(iova, length)?;
        let first_index = self.mappings.partition_point(|mapping| mapping.last < iova);
        let end_index = self.mappings.partition_point(|mapping| mapping.iova <= last_iova);
        let overlapped = self.mappings.get(first_index..end_index).unwrap_or_default();
        let (Some(lowest), Some(highest)) = (overlapped.first(), overlapped.last()) else {
            return Err(DmaMapError::NotFound { iova, length });
        };

        if let Some(cut) =
            [lowest, highest].into_iter().find(|mapping| mapping.iova < iova || mapping.last > last_iova)
        {
            return Err(DmaMapError::Partial { iova: cut.iova, length: cut.length() });
        }

        let had_leases = overlapped.iter().any(|mapping| mapping.lease_terms.in_use());
        self.bytes -= overlapped.iter().map(|mapping| u128::from(mapping.length())).sum::<u128>();
        self.mappings.drain(first_index..end_index);

        Ok(had_leases)
    }

    /// Removes every mapping, and ends all leases. Returns whether a lease was still in use.
    pub fn unmap_all(&mut self) -> bool {
        let had_leases = self.mappings.iter().any(|mapping| mapping.lease_terms.in_use());
        self.mappings.clear();
        self.bytes = 0;

        had_leases
    }

    /// Leases `length` bytes (at least 1) at `iova`. All of them must be memory of this process, in
    /// at most [`MAX_LEASE`] adjacent mappings. The lease becomes invalid as soon as any of these
    /// mappings is removed.
    ///
    /// # Errors
    /// [`DmaError::Unmapped`], [`DmaError::Permission`], [`DmaError::Remote`],
    /// [`DmaError::Scattered`].
    pub fn lease(&mut self, iova: u64, length: u64, access: DmaAccess) -> Result<DmaLease, DmaError> {
        let unmapped = DmaError::Unmapped { iova, length: clamp_to_usize(length) };
        let last_iova = last_iova_of(iova, length).ok_or(unmapped)?;
        let first_index = self.index_of(iova).ok_or(unmapped)?;

        let (mut end_index, mut next_iova) = (first_index, iova);
        loop {
            let rest = clamp_to_usize((last_iova - next_iova).saturating_add(1));
            let mapping = self.mappings.get(end_index).filter(|mapping| mapping.iova <= next_iova);
            let mapping = mapping.ok_or(DmaError::Unmapped { iova: next_iova, length: rest })?;
            if !access.is_allowed_by(mapping.permission) {
                return Err(access.refused(next_iova, rest));
            }
            if matches!(mapping.backing, DmaBacking::Remote) {
                return Err(DmaError::Remote { iova: next_iova });
            }

            end_index += 1;

            if mapping.last >= last_iova {
                break;
            }
            if end_index - first_index == MAX_LEASE {
                return Err(DmaError::Scattered { iova, length, limit: MAX_LEASE });
            }
            next_iova = mapping.last + 1;
        }

        self.create_lease(first_index..end_index, iova..=last_iova, &Term::default()).ok_or(unmapped)
    }

    /// Returns the longest prefix of `length` bytes (at least 1) at `iova` that is of one kind.
    ///
    /// It is either one mapping without a mapped file, which only DMA messages to the client reach.
    /// Or it is up to [`MAX_LEASE`] adjacent mappings of this process's memory with equal
    /// permissions. `term` ends as soon as any of these mappings is removed.
    ///
    /// # Errors
    /// [`DmaError::Unmapped`].
    pub fn piece(&mut self, iova: u64, length: u64, term: &Term) -> Result<DmaPiece, DmaError> {
        let unmapped = DmaError::Unmapped { iova, length: clamp_to_usize(length) };
        let last_iova = iova.saturating_add(length.checked_sub(1).ok_or(unmapped)?);
        let first_index = self.index_of(iova).ok_or(unmapped)?;
        let mapping = self.mappings.get_mut(first_index).ok_or(unmapped)?;

        let permission = mapping.permission;
        if matches!(mapping.backing, DmaBacking::Remote) {
            mapping.lease_terms.add(term);
            let length = (mapping.last.min(last_iova) - iova).saturating_add(1);
            return Ok(DmaPiece { length, permission, mappings: 1, lease: None });
        }

        let (mut end_index, mut piece_last) = (first_index + 1, mapping.last);
        while piece_last < last_iova
            && end_index - first_index < MAX_LEASE
            && let Some(next) = self.mappings.get(end_index)
            && next.iova == piece_last + 1
            && next.permission == permission
            && matches!(next.backing, DmaBacking::Memory(_))
        {
            piece_last = next.last;
            end_index += 1;
        }

        let mappings = end_index - first_index;
        let addresses = iova..=piece_last.min(last_iova);
        let lease = self.create_lease(first_index..end_index, addresses, term).ok_or(unmapped)?;

        Ok(DmaPiece { length: lease.len(), permission, mappings, lease: Some(lease) })
    }

    /// Returns the number of mappings from the one at `iova` to the one that holds the last of
    /// `length` bytes (at least 1). Taking a lease or the pieces of the range visits as many.
    ///
    /// The call does not visit the mappings, and accepts gaps between them.
    ///
    /// # Errors
    /// [`DmaError::Unmapped`] if the first or the last byte is not mapped.
    pub fn count_mappings(&self, iova: u64, length: u64) -> Result<usize, DmaError> {
        let unmapped = DmaError::Unmapped { iova, length: clamp_to_usize(length) };

        let last_iova = last_iova_of(iova, length).ok_or(unmapped)?;
        let first_index = self.index_of(iova).ok_or(unmapped)?;
        let end_index = self.mappings.partition_point(|mapping| mapping.iova <= last_iova);
        match self.mappings.get(first_index..end_index) {
            Some(mappings) if mappings.last().is_some_and(|mapping| mapping.last >= last_iova) => {
                Ok(mappings.len())
            }
            _ => Err(unmapped),
        }
    }

    /// Leases a range of addresses. It lies in the mappings with the indices `mapping_range`, all
    /// of which are memory of this process.
    fn create_lease(
        &mut self,
        mapping_range: Range<usize>,
        addresses: RangeInclusive<u64>,
        term: &Term,
    ) -> Option<DmaLease> {
        let mappings = self.mappings.get_mut(mapping_range)?;
        let (first, last) = addresses.into_inner();
        let lease = if let [only] = mappings {
            DmaLease::new(only.part(first, last)?, term.clone())
        } else {
            DmaLease::of_many(mappings.iter().map(|mapping| mapping.part(first, last)), term.clone())?
        };

        for mapping in mappings {
            mapping.lease_terms.add(term);
        }

        Some(lease)
    }

    /// Ends all leases. The mappings stay.
    pub fn revoke_leases(&mut self) {
        for mapping in &mut self.mappings {
            mapping.lease_terms.end();
        }
    }

    /// Returns the number of mappings.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Returns whether there are no mappings.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Returns the number of mapped bytes, at most `u64::MAX`.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Returns the mappings in ascending order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = DmaRange<'_>> {
        self.mappings.iter().map(|mapping| DmaRange {
            iova: mapping.iova,
            length: mapping.length(),
            permission: mapping.permission,
            backing: &mapping.backing,
        })
    }

    /// Checks that `length` bytes at `iova` are mapped and permitted throughout, and returns their
    /// parts. An access of no bytes has none.
    ///
    /// # Errors
    /// [`DmaError::TooLong`], [`DmaError::Unmapped`], [`DmaError::Permission`].
    #[inline]
    pub fn segments(&self, iova: u64, length: usize, access: DmaAccess) -> Result<Segments<'_>, DmaError> {
        if length > MAX_DMA {
            return Err(DmaError::TooLong { length });
        }

        if length == 0 {
            return Ok(Segments { mappings: [].iter(), iova, remaining: 0 });
        }

        let last_iova = iova.checked_add(length as u64 - 1).ok_or(DmaError::Unmapped { iova, length })?;
        let first_index = self.index_of(iova).ok_or(DmaError::Unmapped { iova, length })?;

        let mut index = first_index;
        let mut next_iova = iova;
        while let Some(mapping) = self.mappings.get(index).filter(|mapping| mapping.iova <= next_iova) {
            if !access.is_allowed_by(mapping.permission) {
                let length = (last_iova - next_iova) as usize + 1;
                return Err(access.refused(next_iova, length));
            }
            if mapping.last >= last_iova {
                self.hint.set(index);
                let mappings = self.mappings.get(first_index..=index).unwrap_or_default().iter();
                return Ok(Segments { mappings, iova, remaining: length });
            }
            next_iova = mapping.last + 1;
            index += 1;
        }

        Err(DmaError::Unmapped { iova: next_iova, length: (last_iova - next_iova) as usize + 1 })
    }

    /// Returns whether all of the memory of an access is mapped into this process. Otherwise the
    /// access needs messages.
    ///
    /// # Errors
    /// Those of [`DmaMap::segments`].
    #[inline]
    pub fn is_local(&self, iova: u64, length: usize, access: DmaAccess) -> Result<bool, DmaError> {
        Ok(self
            .segments(iova, length, access)?
            .all(|segment| matches!(segment.backing, DmaBacking::Memory(_))))
    }

    /// Reads client memory into `out`, after all earlier reads. The module documentation states the
    /// order.
    ///
    /// # Errors
    /// Those of [`DmaMap::segments`], and [`DmaError::Remote`], before anything is read.
    /// [`DmaError::Faulted`], with zeros in place of the missing memory.
    pub fn read_local(&self, iova: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let segments = self.local_segments(iova, out.len(), DmaAccess::Read)?;
        let mut rest = out;

        for segment in segments {
            let (piece, remaining) = rest.split_at_mut(segment.length.min(rest.len()));
            let window = window_of(&segment)?;
            word::load(window, segment.offset, piece).map_err(|_| unmapped(&segment))?;
            check_not_truncated(window, &segment)?;
            rest = remaining;
        }

        // Later reads find what the client stored before the bytes that this one has found.
        fence(Ordering::Acquire);

        Ok(())
    }

    /// Writes `data` to client memory, after all earlier writes. The module documentation states
    /// the order.
    ///
    /// # Errors
    /// Those of [`DmaMap::segments`], and [`DmaError::Remote`], before anything is written.
    /// [`DmaError::Faulted`].
    pub fn write_local(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let segments = self.local_segments(iova, data.len(), DmaAccess::Write)?;
        let mut rest = data;

        // A reader that sees a byte of this write sees all earlier ones.
        fence(Ordering::Release);

        for segment in segments {
            let (piece, remaining) = rest.split_at(segment.length.min(rest.len()));
            let window = window_of(&segment)?;
            word::store(window, segment.offset, piece).map_err(|_| unmapped(&segment))?;
            check_not_truncated(window, &segment)?;
            rest = remaining;
        }

        Ok(())
    }

    /// Changes the 64-bit word at `iova`, a multiple of 8, by one atomic operation with acquire and
    /// release order. Returns its previous value.
    ///
    /// # Errors
    /// Those of [`DmaMap::segments`] for a read and for a write, [`DmaError::NoWord`] if it is not
    /// aligned or lies in two mappings, and [`DmaError::Remote`]; in all of these cases the word is
    /// unchanged. [`DmaError::Faulted`].
    pub fn update_local(&self, iova: u64, update: WordUpdate) -> Result<u64, DmaError> {
        const WORD: usize = size_of::<u64>();

        let no_word = DmaError::NoWord { iova };
        if !iova.is_multiple_of(WORD as u64) {
            return Err(no_word);
        }

        // The mapping must permit both. `segments` checks one access at a time.
        self.segments(iova, WORD, DmaAccess::Read)?;
        let mut segments = self.local_segments(iova, WORD, DmaAccess::Write)?;
        let segment = segments.next().filter(|segment| segment.length == WORD).ok_or(no_word)?;
        let window = window_of(&segment)?;
        let word = window.u64(segment.offset).map_err(|_| no_word)?;

        let previous = update.apply(&word);
        check_not_truncated(window, &segment)?;

        Ok(previous)
    }

    /// Returns the parts of an access, all of which must be memory of this process.
    fn local_segments(&self, iova: u64, length: usize, access: DmaAccess) -> Result<Segments<'_>, DmaError> {
        let segments = self.segments(iova, length, access)?;
        match segments.clone().find(|segment| matches!(segment.backing, DmaBacking::Remote)) {
            Some(segment) => Err(DmaError::Remote { iova: segment.iova }),
            None => Ok(segments),
        }
    }

    /// Returns the index of the mapping that holds `iova`.
    #[inline]
    fn index_of(&self, iova: u64) -> Option<usize> {
        let holds = |index: usize| {
            self.mappings.get(index).is_some_and(|mapping| mapping.iova <= iova && iova <= mapping.last)
        };

        let hint = self.hint.get();
        if holds(hint) {
            return Some(hint);
        }

        let index = self.mappings.partition_point(|mapping| mapping.last < iova);

        holds(index).then_some(index)
    }
}

/// Returns the last IOVA of a range; `None` if the range is empty or wraps.
fn last_iova_of(iova: u64, length: u64) -> Option<u64> {
    length.checked_sub(1).and_then(|distance| iova.checked_add(distance))
}

/// Returns the last IOVA of a mapping.
///
/// # Errors
/// [`DmaMapError::Zero`], [`DmaMapError::Wraps`].
fn last_iova_of_mapping(iova: u64, length: u64) -> Result<u64, DmaMapError> {
    if length == 0 {
        return Err(DmaMapError::Zero { iova });
    }
    last_iova_of(iova, length).ok_or(DmaMapError::Wraps { iova, length })
}

/// Returns `length`, or the largest `usize` if it does not fit.
fn clamp_to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// Returns the mapped memory of a part of an access.
pub(super) fn window_of<'a>(segment: &Segment<'a>) -> Result<&'a Window, DmaError> {
    match segment.backing {
        DmaBacking::Memory(window) => Ok(window),
        DmaBacking::Remote => Err(DmaError::Remote { iova: segment.iova }),
    }
}

/// Returns the error for a part of an access that its mapping does not hold.
pub(super) fn unmapped(segment: &Segment<'_>) -> DmaError {
    DmaError::Unmapped { iova: segment.iova, length: segment.length }
}

/// Checks that the client has not truncated the file behind `window`.
pub(super) fn check_not_truncated(window: &Window, segment: &Segment<'_>) -> Result<(), DmaError> {
    if window.faulted() { Err(DmaError::Faulted { iova: segment.iova }) } else { Ok(()) }
}
