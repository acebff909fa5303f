//! Sub-ranges of shared memory, and the accessors of the hot path.
//!
//! UNSAFETY: dereferences addresses in a mapping. Each is computed from the window's base after a
//! comparison with its length. The window keeps the mapping alive.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::copy;
use crate::error::MemoryError;
use crate::memory::{Access, Mapping};
use crate::word::{SharedU32, SharedU64};

/// A range of shared memory. Offsets are relative to its start.
///
/// There are two kinds of access:
///
/// - **Copies** ([`Window::read`], [`Window::write`] and related functions) take any alignment. A
///   peer may see a copy half done. The bytes of one copy become visible in no particular order
///   unless the function says otherwise. A release store of a word after the copy publishes it.
/// - **Words** (`load_*`, `store_*`) must be aligned in memory, and are atomic.
#[derive(Clone)]
pub struct Window {
    base: *mut u8,
    len: usize,
    /// `len` if stores are allowed, otherwise 0. One comparison thus checks both.
    writable: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: `base` points into the mapping, which is `Send` and `Sync`. All accesses through it are
// volatile or atomic.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

macro_rules! word_accessors {
    ($($(#[$doc:meta])* $atomic:ty, $value:ty, $size:literal:
        $($load:ident $load_order:ident),+; $($store:ident $store_order:ident),+;)*) => {
        impl Window {
            $(
                $(
                    #[doc = concat!("Loads the ", $size, "-byte word at `offset` with `", stringify!($load_order), "` order.")]
                    ///
                    /// # Errors
                    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`] if it is not
                    /// aligned to its size.
                    #[inline]
                    pub fn $load(&self, offset: u64) -> Result<$value, MemoryError> {
                        let word = self.aligned(offset, $size)?.cast::<$value>();
                        // SAFETY: in bounds and aligned by the check; the mapping lives as long as
                        // `self`.
                        Ok(unsafe { <$atomic>::from_ptr(word) }.load(Ordering::$load_order))
                    }
                )+
                $(
                    #[doc = concat!("Stores the ", $size, "-byte word at `offset` with `", stringify!($store_order), "` order.")]
                    ///
                    /// # Errors
                    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`],
                    /// [`MemoryError::Misaligned`] if it is not aligned to its size.
                    #[inline]
                    pub fn $store(&self, offset: u64, value: $value) -> Result<(), MemoryError> {
                        let word = self.aligned_mut(offset, $size)?.cast::<$value>();
                        // SAFETY: in bounds, aligned and writable by the check; the mapping lives
                        // as long as `self`.
                        unsafe { <$atomic>::from_ptr(word) }.store(value, Ordering::$store_order);
                        Ok(())
                    }
                )+
            )*
        }
    };
}

word_accessors! {
    AtomicU8, u8, 1: load_u8_relaxed Relaxed; store_u8_relaxed Relaxed;
    AtomicU16, u16, 2: load_u16_relaxed Relaxed; store_u16_relaxed Relaxed;
    AtomicU32, u32, 4: load_u32_relaxed Relaxed, load_u32_acquire Acquire;
        store_u32_relaxed Relaxed, store_u32_release Release;
    AtomicU64, u64, 8: load_u64_relaxed Relaxed, load_u64_acquire Acquire;
        store_u64_relaxed Relaxed, store_u64_release Release;
}

impl Window {
    /// Returns the window of `len` bytes at `base`.
    ///
    /// # Safety
    /// `[base, base + len)` must lie in `mapping`.
    pub(crate) unsafe fn from_raw(base: *mut u8, len: usize, mapping: Arc<Mapping>) -> Self {
        let writable = if mapping.access() == Access::ReadWrite { len } else { 0 };
        Window { base, len, writable, mapping }
    }

    /// Returns the mapping that the window lies in.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns a handle that keeps the mapping alive.
    pub(crate) fn mapping_handle(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }

    /// Returns whether the mapping has other holders.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }

    /// Returns the address of the first byte, for accesses of this crate that have been checked
    /// against the whole window.
    pub(crate) fn base_pointer(&self) -> *mut u8 {
        self.base
    }

    /// Returns the size in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns whether the window has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether stores are allowed.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.mapping.access() == Access::ReadWrite
    }

    /// Returns the address of the window, for identification and registration only. Dereferencing
    /// it breaks this crate's rules.
    pub fn base_address(&self) -> usize {
        self.base as usize
    }

    /// Returns the address of the sub-range `[offset, offset + len)`, for the volatile accessors of
    /// another crate. With `write`, the window must allow stores.
    ///
    /// The address is valid for as long as this window or another handle of its mapping lives. Its
    /// user must keep the rules of this crate.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    #[inline]
    pub fn volatile_pointer(&self, offset: u64, len: u64, write: bool) -> Result<*mut u8, MemoryError> {
        if write { self.at_mut(offset, len) } else { self.at(offset, len) }
    }

    /// Stores a record of one word after its header: `word` at `offset + 8`, then `header` at
    /// `offset` with *release* order.
    ///
    /// # Errors
    /// Those of the word stores.
    #[inline]
    pub fn store_record(&self, offset: u64, header: u64, word: u64) -> Result<(), MemoryError> {
        let first = self.aligned_mut(offset, 16)?.cast::<u64>();
        // SAFETY: 16 bytes at `offset` are in bounds, aligned and writable by the check; the
        // mapping lives as long as `self`.
        unsafe { AtomicU64::from_ptr(first.wrapping_add(1)) }.store(word, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(first) }.store(header, Ordering::Release);
        Ok(())
    }

    /// Loads a record as [`Window::store_record`] stores it: the header with *acquire* order, then
    /// the word, which belongs to that header or a later one. Returns the header and the word.
    ///
    /// # Errors
    /// Those of the word loads.
    #[inline]
    pub fn load_record(&self, offset: u64) -> Result<(u64, u64), MemoryError> {
        let first = self.aligned(offset, 16)?.cast::<u64>();
        // SAFETY: 16 bytes at `offset` are in bounds and aligned by the check; the mapping lives as
        // long as `self`.
        let header = unsafe { AtomicU64::from_ptr(first) }.load(Ordering::Acquire);
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(first.wrapping_add(1)) }.load(Ordering::Relaxed);
        Ok((header, word))
    }

    /// Returns whether an access has met the end of the file: see [`crate::SharedMemory::faulted`].
    #[inline]
    pub fn faulted(&self) -> bool {
        self.mapping.faulted()
    }

    /// Returns the sub-range `[offset, offset + len)`. This call checks its bounds.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn window(&self, offset: u64, len: u64) -> Result<Window, MemoryError> {
        let base = self.at(offset, len)?;
        // SAFETY: in bounds of this window by the check, hence of the mapping.
        Ok(unsafe { Window::from_raw(base, len as usize, self.mapping.clone()) })
    }

    /// Returns the 32-bit word at `offset`, aligned to 4 bytes in memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn u32(&self, offset: u64) -> Result<SharedU32, MemoryError> {
        let word = self.aligned(offset, 4)?;
        // SAFETY: in bounds and aligned by the check.
        Ok(unsafe { SharedU32::from_raw(word.cast(), self.mapping_handle()) })
    }

    /// Returns the 64-bit word at `offset`, aligned to 8 bytes in memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn u64(&self, offset: u64) -> Result<SharedU64, MemoryError> {
        let word = self.aligned(offset, 8)?;
        // SAFETY: in bounds and aligned by the check.
        Ok(unsafe { SharedU64::from_raw(word.cast(), self.mapping_handle()) })
    }

    /// Copies from the window, at any alignment. The copy is not atomic.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let source = self.at(offset, out.len() as u64)?;
        // SAFETY: the source is in bounds by the check, and the target is a private slice.
        unsafe { copy::copy_from_shared(out.as_mut_ptr(), source, out.len()) };
        Ok(())
    }

    /// Copies into the window, at any alignment. The copy is not atomic.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let target = self.at_mut(offset, data.len() as u64)?;
        // SAFETY: the target is in bounds and writable by the check, and the source is a private
        // slice.
        unsafe { copy::copy_to_shared(target, data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Copies from the window as [`Window::read`] does, with a length known at compile time. The
    /// copy is unrolled if the source is aligned to the widest vector.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn read_array<const N: usize>(&self, offset: u64, out: &mut [u8; N]) -> Result<(), MemoryError> {
        let source = self.at(offset, N as u64)?;
        // SAFETY: as in `read`.
        unsafe { copy::array_from_shared::<N>(out.as_mut_ptr(), source) };
        Ok(())
    }

    /// Copies into the window as [`Window::write`] does, with a length known at compile time. The
    /// copy is unrolled if the target is aligned to the widest vector.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    #[inline]
    pub fn write_array<const N: usize>(&self, offset: u64, data: &[u8; N]) -> Result<(), MemoryError> {
        let target = self.at_mut(offset, N as u64)?;
        // SAFETY: as in `write`.
        unsafe { copy::array_to_shared::<N>(target, data.as_ptr()) };
        Ok(())
    }

    /// Stores 16 bytes, aligned to 16 bytes in memory, with one instruction if the target has one.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`], [`MemoryError::Misaligned`].
    #[inline]
    pub fn store_16(&self, offset: u64, data: [u8; 16]) -> Result<(), MemoryError> {
        let target = self.aligned_mut(offset, 16)?;
        // SAFETY: in bounds, aligned and writable by the check.
        unsafe { copy::store_16(target, data.as_ptr()) };
        Ok(())
    }

    /// Stores 64 bytes, aligned to 64 bytes in memory, with the widest stores of the target, lowest
    /// address first.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`], [`MemoryError::Misaligned`].
    #[inline]
    pub fn store_64(&self, offset: u64, data: [u8; 64]) -> Result<(), MemoryError> {
        let target = self.aligned_mut(offset, 64)?;
        // SAFETY: in bounds, aligned and writable by the check.
        unsafe { copy::array_to_shared::<64>(target, data.as_ptr()) };
        Ok(())
    }

    /// Copies `len` bytes from this window at `offset` into `target` at `target_offset`, without a
    /// buffer.
    ///
    /// The two ranges may belong to different mappings of the same file. If they overlap, the
    /// result there is unspecified.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    #[inline]
    pub fn copy_to(
        &self,
        offset: u64,
        target: &Window,
        target_offset: u64,
        len: u64,
    ) -> Result<(), MemoryError> {
        let source = self.at(offset, len)?;
        let target = target.at_mut(target_offset, len)?;
        // SAFETY: both ranges are in bounds and the target is writable by the checks; both mappings
        // are borrowed.
        unsafe { copy::copy_shared_to_shared(target, source, len as usize) };
        Ok(())
    }

    /// Writes zeros to `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::ReadOnly`].
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let target = self.at_mut(offset, len)?;
        // SAFETY: in bounds and writable by the check.
        unsafe { copy::zero_shared(target, len as usize) };
        Ok(())
    }

    /// Returns the address of `len` bytes at `offset`, if they lie in the window.
    #[inline]
    fn at(&self, offset: u64, len: u64) -> Result<*mut u8, MemoryError> {
        let size = self.len as u64;
        if offset > size || len > size - offset {
            return Err(self.refused(offset, len));
        }
        // SAFETY: at most one past the end of the window, by the comparison.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    /// Returns the address as [`Window::at`] does, if stores are allowed, too.
    #[inline]
    fn at_mut(&self, offset: u64, len: u64) -> Result<*mut u8, MemoryError> {
        let size = self.writable as u64;
        if offset > size || len > size - offset {
            return Err(self.refused(offset, len));
        }
        // SAFETY: at most one past the end of the window, by the comparison.
        Ok(unsafe { self.base.add(offset as usize) })
    }

    /// Returns the address of `align` bytes at `offset`, if they lie in the window and are aligned
    /// to their size in memory.
    #[inline]
    fn aligned(&self, offset: u64, align: u64) -> Result<*mut u8, MemoryError> {
        let address = self.at(offset, align)?;
        if address as usize & (align as usize - 1) != 0 {
            return Err(MemoryError::Misaligned { offset, align });
        }
        Ok(address)
    }

    /// Returns the address as [`Window::aligned`] does, if stores are allowed, too.
    #[inline]
    fn aligned_mut(&self, offset: u64, align: u64) -> Result<*mut u8, MemoryError> {
        let address = self.at_mut(offset, align)?;
        if address as usize & (align as usize - 1) != 0 {
            return Err(MemoryError::Misaligned { offset, align });
        }
        Ok(address)
    }

    /// Returns the reason why an access was refused.
    #[cold]
    fn refused(&self, offset: u64, len: u64) -> MemoryError {
        let size = self.len as u64;
        if offset > size || len > size - offset {
            MemoryError::OutOfBounds { offset, len, size }
        } else {
            MemoryError::ReadOnly { offset }
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("base_address", &format_args!("0x{:x}", self.base_address()))
            .field("len", &format_args!("0x{:x}", self.len))
            .field("access", &self.mapping.access())
            .finish()
    }
}
