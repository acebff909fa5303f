//! Client memory as `vm-memory` sees it, for crates that work on guest memory.
//!
//! In: the DMA map of one attachment. Out: `vm_memory::GuestMemory`, by which `virtio-queue` reads
//! and writes rings and descriptors. Addresses are IOVAs.
//!
//! UNSAFETY: makes volatile slices of mapped client memory. [`Window::volatile_pointer`] checks
//! bounds and permission of each. The slice borrows the DMA map, which keeps the memory mapped.
//!
//! [`Window::volatile_pointer`]: nicforge_shm::Window::volatile_pointer
#![allow(unsafe_code)]

use std::{cell::Cell, io, iter::FusedIterator};

use vm_memory::{
    GuestAddress, GuestMemory, GuestMemoryError, GuestMemoryMmap, Permissions, VolatileSlice,
    guest_memory::GuestMemorySliceIterator,
};

use super::{DmaAccess, DmaError, DmaMap, MAX_DMA, Segment, Segments, map};

/// The memory of one client, for the duration of one call of its device.
///
/// A lookup finds the mapping of each access, and copies no table. An access of more than
/// [`MAX_DMA`] bytes is refused, and so is one that touches memory which only messages reach.
///
/// There are two kinds of access:
///
/// - [`GuestMemory`] is for rings and descriptors. `vm-memory` copies more than 8 bytes by an
///   ordinary memory copy, so that a client can change them during the copy. A user must check its
///   copy, as `virtio-queue` does.
/// - [`GuestMemoryView::copy_from`] and [`GuestMemoryView::copy_to`] are for data. They read or
///   write each byte exactly once.
///
/// The first error is kept, because the users of `vm-memory` often drop theirs. A device must pass
/// it to [`crate::context::Context::count_dma_error`].
pub struct GuestMemoryView<'a> {
    map: &'a DmaMap,
    /// Bytes of client memory that DMA has touched in the machine's step.
    touched: &'a Cell<usize>,
    /// Bytes that the attachment's DMA has read so far.
    read: &'a Cell<u64>,
    /// Bytes that the attachment's DMA has written so far.
    written: &'a Cell<u64>,
    /// A write by message has no reply yet, which no other write may overtake.
    write_in_flight: bool,
    /// The first error of any access.
    error: Cell<Option<DmaError>>,
}

impl<'a> GuestMemoryView<'a> {
    /// Returns the memory of `map`. The cells count the bytes of the machine's step, and the bytes
    /// that the attachment has read and written. `write_in_flight` says that a write by message has
    /// no reply yet.
    pub(crate) fn new(
        map: &'a DmaMap,
        touched: &'a Cell<usize>,
        read: &'a Cell<u64>,
        written: &'a Cell<u64>,
        write_in_flight: bool,
    ) -> Self {
        Self { map, touched, read, written, write_in_flight, error: Cell::new(None) }
    }

    /// Returns the first error of any access.
    pub fn error(&self) -> Option<DmaError> {
        self.error.get()
    }

    /// Copies client memory at `iova` to `out`, at most [`MAX_DMA`] bytes.
    ///
    /// # Errors
    /// Those of [`DmaMap::read_local`].
    #[inline]
    pub fn copy_from(&self, iova: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.map.read_local(iova, out).map_err(|error| self.keep(error))?;
        self.add_bytes(out.len(), self.read);
        Ok(())
    }

    /// Copies `data`, at most [`MAX_DMA`] bytes, to client memory at `iova`.
    ///
    /// # Errors
    /// Those of [`DmaMap::write_local`]. [`DmaError::Busy`] while an earlier write by message has
    /// no reply.
    #[inline]
    pub fn copy_to(&self, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.check_order()?;
        self.map.write_local(iova, data).map_err(|error| self.keep(error))?;
        self.add_bytes(data.len(), self.written);
        Ok(())
    }

    /// Checks that a write overtakes no earlier one.
    #[inline]
    fn check_order(&self) -> Result<(), DmaError> {
        if self.write_in_flight { Err(self.keep(DmaError::Busy)) } else { Ok(()) }
    }

    /// Adds the bytes of an access to those of the machine's step, and to a counter of the
    /// attachment.
    #[inline]
    fn add_bytes(&self, bytes: usize, counter: &Cell<u64>) {
        self.touched.set(self.touched.get().saturating_add(bytes));
        counter.set(counter.get().wrapping_add(bytes as u64));
    }

    /// Keeps the first error, and returns this one.
    #[cold]
    fn keep(&self, error: DmaError) -> DmaError {
        self.error.set(self.error.get().or(Some(error)));
        error
    }
}

impl GuestMemory for GuestMemoryView<'_> {
    /// Not used: [`GuestMemory::physical_memory`] returns `None`.
    type PhysicalMemory = GuestMemoryMmap<()>;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, length: usize, access: Permissions) -> bool {
        // The map checks one access at a time.
        let is_allowed = |access| matches!(self.map.is_local(address.0, length, access), Ok(true));
        [(Permissions::Read, DmaAccess::Read), (Permissions::Write, DmaAccess::Write)]
            .into_iter()
            .all(|(permission, dma_access)| !access.allow(permission) || is_allowed(dma_access))
    }

    fn get_slices<'b>(
        &'b self,
        address: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'b, ()>, GuestMemoryError> {
        let dma_access = if access.has_write() { DmaAccess::Write } else { DmaAccess::Read };
        if dma_access.is_write() {
            self.check_order().map_err(into_guest_memory_error)?;
        }

        // The map checks one access at a time.
        let read_checked = match access {
            Permissions::ReadWrite => self.map.segments(address.0, length, DmaAccess::Read).map(drop),
            _ => Ok(()),
        };
        let segments = read_checked
            .and_then(|()| self.map.segments(address.0, length, dma_access))
            .map_err(|error| into_guest_memory_error(self.keep(error)))?;

        debug_assert!(length <= MAX_DMA, "the map has refused longer accesses");
        self.add_bytes(length, if dma_access.is_write() { self.written } else { self.read });
        Ok(Slices { memory: self, segments, access: dma_access })
    }
}

/// Iterator over the mapped pieces of an access in ascending order. It ends after an error.
struct Slices<'a> {
    memory: &'a GuestMemoryView<'a>,
    segments: Segments<'a>,
    access: DmaAccess,
}

impl<'a> Slices<'a> {
    /// Returns the bytes of a segment for access by `vm-memory`.
    fn slice(&self, segment: &Segment<'a>) -> Result<VolatileSlice<'a>, DmaError> {
        let window = map::window_of(segment)?;
        map::check_not_truncated(window, segment)?;
        let pointer = window
            .volatile_pointer(segment.offset, segment.length as u64, self.access.is_write())
            .map_err(|_| map::unmapped(segment))?;

        // SAFETY: the window has checked the range, and for writing that it is writable. The slice
        // borrows the map for `'a`, and the map keeps the window. No Rust reference to the bytes
        // exists. Copies through the slice race with the client, as the type's documentation says.
        Ok(unsafe { VolatileSlice::new(pointer, segment.length) })
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = Result<VolatileSlice<'a>, GuestMemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let segment = self.segments.next()?;
        let slice = self.slice(&segment).map_err(|error| self.memory.keep(error));
        if slice.is_err() {
            self.segments.remaining = 0;
        }

        Some(slice.map_err(into_guest_memory_error))
    }
}

impl FusedIterator for Slices<'_> {}

impl<'a> GuestMemorySliceIterator<'a, ()> for Slices<'a> {}

/// Returns the error of `vm-memory` for an access that failed.
#[cold]
fn into_guest_memory_error(error: DmaError) -> GuestMemoryError {
    match error {
        DmaError::Unmapped { iova, .. } => GuestMemoryError::InvalidGuestAddress(GuestAddress(iova)),
        error => GuestMemoryError::IOError(io::Error::other(error)),
    }
}
