//! The sorted table of mappings.

use std::{cell::Cell, ops::Range};

use nicforge_shm::Window;

use super::{DmaError, DmaLease, DmaMapError, MAX_DMA, MAX_LEASE, Term, lease::Lessor};

/// What lies behind a range of IOVAs.
#[derive(Clone, Debug)]
pub enum DmaBacking {
    /// Memory mapped into this process: exactly the range, so that offset 0 is its first IOVA.
    Memory(Window),
    /// Memory that is reached by messages to the client only.
    Remote,
}

/// What a device may do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaPermission {
    /// Read it.
    pub read: bool,
    /// Write it.
    pub write: bool,
}

impl DmaPermission {
    /// Both.
    pub const READ_WRITE: Self = Self { read: true, write: true };
    /// Read only.
    pub const READ: Self = Self { read: true, write: false };
    /// Write only.
    pub const WRITE: Self = Self { read: false, write: true };

    const fn allows(self, write: bool) -> bool {
        if write { self.write } else { self.read }
    }
}

struct Mapping {
    iova: u64,
    /// The last IOVA in it: the end of the address space has no address after it.
    last: u64,
    permission: DmaPermission,
    backing: DmaBacking,
    /// Ends its leases with it.
    lessor: Lessor,
}

impl Mapping {
    fn length(&self) -> u64 {
        self.last - self.iova + 1
    }

    /// Its part of the addresses from `first` to `last`, when it is memory of this process.
    fn part(&self, first: u64, last: u64) -> Option<Window> {
        let DmaBacking::Memory(window) = &self.backing else { return None };
        let (first, last) = (first.max(self.iova), last.min(self.last));
        window.window(first - self.iova, last.checked_sub(first)?.checked_add(1)?).ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.lessor.end();
    }
}

/// A mapping, as [`DmaMap::ranges`] shows it.
#[derive(Clone, Copy, Debug)]
pub struct DmaRange<'a> {
    /// First IOVA.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
    /// What a device may do with it.
    pub permission: DmaPermission,
    /// What lies behind it.
    pub backing: &'a DmaBacking,
}

/// The front of a range, as much of it as is of one kind, to be held on to. See [`DmaMap::piece`].
#[derive(Clone, Debug)]
pub struct DmaPiece {
    /// Bytes in it, at least 1.
    pub length: u64,
    /// What a device may do with it. A lease allows no more, even when its memory would.
    pub permission: DmaPermission,
    /// Mappings that it lies in, 1 to [`MAX_LEASE`].
    pub mappings: usize,
    /// Its memory; `None` when it is reached by messages.
    pub lease: Option<DmaLease>,
}

/// A piece of an access that lies in one mapping.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// First IOVA of the piece.
    pub iova: u64,
    /// Bytes in it, at least 1.
    pub length: usize,
    /// What lies behind the mapping.
    pub backing: &'a DmaBacking,
    /// Offset of the piece in the mapping in bytes.
    pub offset: u64,
}

/// The pieces of an access in ascending order; together they are all of it.
#[derive(Clone)]
pub struct Segments<'a> {
    mappings: std::slice::Iter<'a, Mapping>,
    iova: u64,
    remaining: usize,
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
        let left = usize::try_from(mapping.last - iova).unwrap_or(usize::MAX).saturating_add(1);
        let length = self.remaining.min(left);
        self.remaining -= length;
        self.iova = iova.wrapping_add(length as u64);

        Some(Segment { iova, length, backing: &mapping.backing, offset: iova - mapping.iova })
    }
}

/// The mappings of one attachment: disjoint, sorted, at most a quota of them.
pub struct DmaMap {
    quota: usize,
    mappings: Vec<Mapping>,
    bytes: u128,
    /// Where the last access ended. Only a hint: what it points to is checked.
    hint: Cell<usize>,
}

impl DmaMap {
    /// A map of at most `quota` ranges.
    pub fn new(quota: usize) -> Self {
        Self { quota, mappings: Vec::new(), bytes: 0, hint: Cell::new(0) }
    }

    /// Map `length` bytes from `iova` on.
    ///
    /// # Errors
    /// [`DmaMapError::Zero`], [`DmaMapError::Wraps`], [`DmaMapError::BadBacking`] when the window
    /// is not exactly as long, [`DmaMapError::NotWritable`], [`DmaMapError::Overlap`],
    /// [`DmaMapError::Quota`].
    pub fn map(
        &mut self,
        iova: u64,
        length: u64,
        permission: DmaPermission,
        backing: DmaBacking,
    ) -> Result<(), DmaMapError> {
        let last = last_of(iova, length)?;
        if let DmaBacking::Memory(window) = &backing {
            if window.len() != length {
                return Err(DmaMapError::BadBacking { iova, length, window: window.len() });
            }
            if permission.write && !window.is_writable() {
                return Err(DmaMapError::NotWritable { iova });
            }
        }

        let place = self.mappings.partition_point(|mapping| mapping.last < iova);
        if let Some(next) = self.mappings.get(place).filter(|next| next.iova <= last) {
            return Err(DmaMapError::Overlap { iova: next.iova, length: next.length() });
        }

        if self.mappings.len() >= self.quota {
            return Err(DmaMapError::Quota { quota: self.quota });
        }

        self.mappings.insert(place, Mapping { iova, last, permission, backing, lessor: Lessor::default() });
        self.bytes += u128::from(length);

        Ok(())
    }

    /// Remove every mapping within `length` bytes from `iova` on.
    ///
    /// # Errors
    /// [`DmaMapError::Zero`], [`DmaMapError::Wraps`], [`DmaMapError::NotFound`] when nothing is
    /// mapped there, [`DmaMapError::Partial`] when a mapping lies there in part only.
    pub fn unmap(&mut self, iova: u64, length: u64) -> Result<(), DmaMapError> {
        let last = last_of(iova, length)?;
        let start = self.mappings.partition_point(|mapping| mapping.last < iova);
        let end = self.mappings.partition_point(|mapping| mapping.iova <= last);
        let hit = self.mappings.get(start..end).unwrap_or_default();
        let (Some(head), Some(tail)) = (hit.first(), hit.last()) else {
            return Err(DmaMapError::NotFound { iova, length });
        };

        if let Some(cut) = [head, tail].into_iter().find(|mapping| mapping.iova < iova || mapping.last > last)
        {
            return Err(DmaMapError::Partial { iova: cut.iova, length: cut.length() });
        }

        self.bytes -= hit.iter().map(|mapping| u128::from(mapping.length())).sum::<u128>();
        self.mappings.drain(start..end);

        Ok(())
    }

    /// Remove every mapping.
    pub fn unmap_all(&mut self) {
        self.mappings.clear();
        self.bytes = 0;
    }

    /// A lease of `length` bytes (at least 1) at `iova`, all of them memory of this process, in at
    /// most [`MAX_LEASE`] mappings side by side. It ends with the first of them that does.
    ///
    /// # Errors
    /// [`DmaError::Unmapped`], [`DmaError::Permission`], [`DmaError::Remote`],
    /// [`DmaError::Scattered`].
    pub fn lease(&mut self, iova: u64, length: u64, write: bool) -> Result<DmaLease, DmaError> {
        let short = |length| usize::try_from(length).unwrap_or(usize::MAX);
        let unmapped = DmaError::Unmapped { iova, length: short(length) };
        let last = length.checked_sub(1).and_then(|more| iova.checked_add(more)).ok_or(unmapped)?;
        let first = self.find(iova).ok_or(unmapped)?;
        let (mut end, mut at) = (first, iova);
        loop {
            let rest = short((last - at).saturating_add(1));
            let mapping = self.mappings.get(end).filter(|mapping| mapping.iova <= at);
            let mapping = mapping.ok_or(DmaError::Unmapped { iova: at, length: rest })?;
            if !mapping.permission.allows(write) {
                return Err(DmaError::Permission { iova: at, length: rest, write });
            }
            if matches!(mapping.backing, DmaBacking::Remote) {
                return Err(DmaError::Remote { iova: at });
            }
            end += 1;
            if mapping.last >= last {
                break;
            }
            if end - first == MAX_LEASE {
                return Err(DmaError::Scattered { iova, length, limit: MAX_LEASE });
            }
            at = mapping.last + 1;
        }

        self.hold(first..end, (iova, last), &Term::default()).ok_or(unmapped)
    }

    /// The front of `length` bytes (at least 1) at `iova`: one mapping that is reached by messages,
    /// or as many side by side as are memory of this process, allow the same, and are no more than
    /// [`MAX_LEASE`]. The term ends with each of them.
    ///
    /// # Errors
    /// [`DmaError::Unmapped`].
    pub fn piece(&mut self, iova: u64, length: u64, term: &Term) -> Result<DmaPiece, DmaError> {
        let unmapped = DmaError::Unmapped { iova, length: usize::try_from(length).unwrap_or(usize::MAX) };
        let last = iova.saturating_add(length.checked_sub(1).ok_or(unmapped)?);
        let first = self.find(iova).ok_or(unmapped)?;
        let mapping = self.mappings.get_mut(first).ok_or(unmapped)?;
        let permission = mapping.permission;
        if matches!(mapping.backing, DmaBacking::Remote) {
            mapping.lessor.add(term);
            let length = (mapping.last.min(last) - iova).saturating_add(1);
            return Ok(DmaPiece { length, permission, mappings: 1, lease: None });
        }

        let (mut end, mut until) = (first + 1, mapping.last);
        while until < last
            && end - first < MAX_LEASE
            && let Some(next) = self.mappings.get(end)
            && next.iova == until + 1
            && next.permission == permission
            && matches!(next.backing, DmaBacking::Memory(_))
        {
            until = next.last;
            end += 1;
        }

        let lease = self.hold(first..end, (iova, until.min(last)), term).ok_or(unmapped)?;

        Ok(DmaPiece { length: lease.len(), permission, mappings: end - first, lease: Some(lease) })
    }

    /// How many mappings lie between the one at `iova` and the one `length` bytes (at least 1)
    /// later, with both: what a lease or a piece of the range would look at. It is found without
    /// looking at them; there may be gaps between them.
    ///
    /// # Errors
    /// [`DmaError::Unmapped`]: one of the two is not there.
    pub fn count(&self, iova: u64, length: u64) -> Result<usize, DmaError> {
        let unmapped = DmaError::Unmapped { iova, length: usize::try_from(length).unwrap_or(usize::MAX) };
        let last = length.checked_sub(1).and_then(|more| iova.checked_add(more)).ok_or(unmapped)?;
        let first = self.find(iova).ok_or(unmapped)?;
        let end = self.mappings.partition_point(|mapping| mapping.iova <= last);
        match self.mappings.get(first..end) {
            Some(between) if between.last().is_some_and(|mapping| mapping.last >= last) => Ok(between.len()),
            _ => Err(unmapped),
        }
    }

    /// A lease of the addresses from `first` to `last`, which lie in these mappings, all of them
    /// memory of this process.
    fn hold(&mut self, place: Range<usize>, (first, last): (u64, u64), term: &Term) -> Option<DmaLease> {
        let mappings = self.mappings.get_mut(place)?;
        let lease = if let [only] = mappings {
            DmaLease::new(only.part(first, last)?, term.clone())
        } else {
            DmaLease::of_many(mappings.iter().map(|mapping| mapping.part(first, last)), term.clone())?
        };

        for mapping in mappings {
            mapping.lessor.add(term);
        }

        Some(lease)
    }

    /// Ends all leases and maps nothing less.
    pub fn take_back_leases(&mut self) {
        for mapping in &mut self.mappings {
            mapping.lessor.end();
        }
    }

    /// Mappings there are.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Bytes that are mapped, at most `u64::MAX`.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// The mappings in ascending order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = DmaRange<'_>> {
        self.mappings.iter().map(|mapping| DmaRange {
            iova: mapping.iova,
            length: mapping.length(),
            permission: mapping.permission,
            backing: &mapping.backing,
        })
    }

    /// The pieces of an access of `length` bytes at `iova`, which was found to be mapped and
    /// permitted throughout. None for an access of no bytes.
    ///
    /// # Errors
    /// [`DmaError::TooLong`], [`DmaError::Unmapped`], [`DmaError::Permission`].
    #[inline]
    pub fn segments(&self, iova: u64, length: usize, write: bool) -> Result<Segments<'_>, DmaError> {
        if length > MAX_DMA {
            return Err(DmaError::TooLong { length });
        }

        if length == 0 {
            return Ok(Segments { mappings: [].iter(), iova, remaining: 0 });
        }

        let last = iova.checked_add(length as u64 - 1).ok_or(DmaError::Unmapped { iova, length })?;
        let first = self.find(iova).ok_or(DmaError::Unmapped { iova, length })?;
        let mut end = first;
        let mut at = iova;
        while let Some(mapping) = self.mappings.get(end).filter(|mapping| mapping.iova <= at) {
            if !mapping.permission.allows(write) {
                return Err(DmaError::Permission { iova: at, length: (last - at) as usize + 1, write });
            }
            if mapping.last >= last {
                self.hint.set(end);
                let mappings = self.mappings.get(first..=end).unwrap_or_default().iter();
                return Ok(Segments { mappings, iova, remaining: length });
            }
            at = mapping.last + 1;
            end += 1;
        }

        Err(DmaError::Unmapped { iova: at, length: (last - at) as usize + 1 })
    }

    /// Whether all of an access is memory of this process. When it is not, it is read or written by
    /// messages.
    ///
    /// # Errors
    /// As [`DmaMap::segments`].
    #[inline]
    pub fn is_local(&self, iova: u64, length: usize, write: bool) -> Result<bool, DmaError> {
        Ok(self
            .segments(iova, length, write)?
            .all(|segment| matches!(segment.backing, DmaBacking::Memory(_))))
    }

    /// Read client memory into `out`.
    ///
    /// # Errors
    /// As [`DmaMap::segments`], and [`DmaError::Remote`], before anything is read;
    /// [`DmaError::Faulted`], with zeros for what is not there.
    pub fn read_local(&self, iova: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let segments = self.local(iova, out.len(), false)?;
        let mut rest = out;
        for segment in segments {
            let (piece, behind) = rest.split_at_mut(segment.length.min(rest.len()));
            let window = memory(&segment)?;
            window.read(segment.offset, piece).map_err(|_| unmapped(&segment))?;
            intact(window, &segment)?;
            rest = behind;
        }

        Ok(())
    }

    /// Write `data` to client memory.
    ///
    /// # Errors
    /// As [`DmaMap::segments`], and [`DmaError::Remote`], before anything is written;
    /// [`DmaError::Faulted`].
    pub fn write_local(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let segments = self.local(iova, data.len(), true)?;
        let mut rest = data;
        for segment in segments {
            let (piece, behind) = rest.split_at(segment.length.min(rest.len()));
            let window = memory(&segment)?;
            window.write(segment.offset, piece).map_err(|_| unmapped(&segment))?;
            intact(window, &segment)?;
            rest = behind;
        }

        Ok(())
    }

    /// Copy `length` bytes of client memory in one go. What a copy onto part of itself leaves there
    /// is not specified.
    ///
    /// # Errors
    /// As [`DmaMap::read_local`] for the source and [`DmaMap::write_local`] for the destination.
    pub fn copy_local(&self, from: u64, to: u64, length: usize) -> Result<(), DmaError> {
        let mut sources = self.local(from, length, false)?;
        let mut destinations = self.local(to, length, true)?;
        let (mut source, mut destination) = (sources.next(), destinations.next());
        while let (Some(read), Some(write)) = (&mut source, &mut destination) {
            let piece = read.length.min(write.length);
            let (input, output) = (memory(read)?, memory(write)?);
            input.copy_to(read.offset, output, write.offset, piece as u64).map_err(|_| unmapped(read))?;
            intact(input, read)?;
            intact(output, write)?;
            if !advance(read, piece) {
                source = sources.next();
            }
            if !advance(write, piece) {
                destination = destinations.next();
            }
        }

        Ok(())
    }

    fn local(&self, iova: u64, length: usize, write: bool) -> Result<Segments<'_>, DmaError> {
        let segments = self.segments(iova, length, write)?;
        match segments.clone().find(|segment| matches!(segment.backing, DmaBacking::Remote)) {
            Some(segment) => Err(DmaError::Remote { iova: segment.iova }),
            None => Ok(segments),
        }
    }

    #[inline]
    fn find(&self, iova: u64) -> Option<usize> {
        let holds = |index: usize| {
            self.mappings.get(index).is_some_and(|mapping| mapping.iova <= iova && iova <= mapping.last)
        };

        let hint = self.hint.get();
        if holds(hint) {
            return Some(hint);
        }

        let place = self.mappings.partition_point(|mapping| mapping.last < iova);

        holds(place).then_some(place)
    }
}

fn last_of(iova: u64, length: u64) -> Result<u64, DmaMapError> {
    let more = length.checked_sub(1).ok_or(DmaMapError::Zero { iova })?;
    iova.checked_add(more).ok_or(DmaMapError::Wraps { iova, length })
}

fn memory<'a>(segment: &Segment<'a>) -> Result<&'a Window, DmaError> {
    match segment.backing {
        DmaBacking::Memory(window) => Ok(window),
        DmaBacking::Remote => Err(DmaError::Remote { iova: segment.iova }),
    }
}

fn unmapped(segment: &Segment<'_>) -> DmaError {
    DmaError::Unmapped { iova: segment.iova, length: segment.length }
}

fn intact(window: &Window, segment: &Segment<'_>) -> Result<(), DmaError> {
    if window.faulted() { Err(DmaError::Faulted { iova: segment.iova }) } else { Ok(()) }
}

/// Go on in a segment; whether anything of it is left.
fn advance(segment: &mut Segment<'_>, piece: usize) -> bool {
    segment.iova = segment.iova.wrapping_add(piece as u64);
    segment.offset += piece as u64;
    segment.length -= piece;
    segment.length > 0
}
