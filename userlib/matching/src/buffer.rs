//! Memory lent to a request.

#![allow(
    unsafe_code,
    reason = "a provider lends memory by its address; owned memory stays in place while a device may touch it"
)]

use std::{fmt, mem::ManuallyDrop, ptr::NonNull};

use crate::Memory;

/// The memory of one request: a vector that the request owns until its completion returns it, or
/// memory of the caller.
///
/// A vector is taken apart at once and reassembled at the end. While a request is outstanding only
/// an address refers to the memory, because a device may be reading or writing it.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    /// Capacity of the original vector; `None` for memory of the caller.
    owned: Option<usize>,
}

// SAFETY: a buffer is the only user of its memory, by construction from a vector or by the contract
// of `from_raw_parts`.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Lends `length` bytes of the caller's memory at `start`.
    ///
    /// # Safety
    /// Until the request has completed, or its endpoint was dropped:
    /// - for a send the memory stays valid for reads and is not written; this buffer never writes
    ///   it;
    /// - for a receive the memory is initialised, stays valid for reads and writes, and has no
    ///   other user.
    ///
    /// The thread that uses the endpoint makes these accesses. `start` may be null when `length` is
    /// 0. `length` is at most `isize::MAX`.
    pub unsafe fn from_raw_parts(start: *mut u8, length: usize) -> Self {
        match NonNull::new(start) {
            Some(start) => Self { start, length, owned: None },
            None => Self { start: NonNull::dangling(), length: 0, owned: None },
        }
    }

    /// Creates a vector of zeros to receive into.
    pub fn zeroed(length: usize) -> Self {
        vec![0; length].into()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised, valid for reads, and not written: by the caller's
        // contract, or because this buffer owns it. The bytes of a request are not read while a
        // device writes them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Returns the original vector; `None` for memory of the caller.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        let buffer = ManuallyDrop::new(self);
        buffer.owned.map(|capacity| {
            // SAFETY: these are the parts of a vector that was taken apart; this buffer does not
            // drop them.
            unsafe { Vec::from_raw_parts(buffer.start.as_ptr(), buffer.length, capacity) }
        })
    }

    /// Returns the memory to register with a transport.
    pub(crate) fn memory(&self) -> Memory {
        Memory { start: self.start, length: self.length }
    }

    /// Copies `data` to `offset`, as far as there is room, and returns the number of bytes copied.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> usize {
        let count = data.len().min(self.length.saturating_sub(offset));
        if count > 0 {
            let to = self.start.as_ptr().wrapping_add(offset);
            if let Some(quadword) = data.first_chunk::<8>().filter(|_| count == 8) {
                // The shortest messages are the most frequent ones, and a call of `memcpy` costs
                // more than a move.
                // SAFETY: as below.
                unsafe { to.cast::<[u8; 8]>().write(*quadword) };
                return count;
            }

            // SAFETY: `offset` plus `count` is within the memory, which is valid for writes and
            // used only here. The memory of `data` overlaps only if a caller has broken the
            // contract, and `copy` allows even that.
            unsafe { std::ptr::copy(data.as_ptr(), to, count) };
        }
        count
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(vector: Vec<u8>) -> Self {
        let mut vector = ManuallyDrop::new(vector);
        let capacity = vector.capacity();
        let length = vector.len();
        let start = NonNull::new(vector.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { start, length, owned: Some(capacity) }
    }
}

impl Default for Buffer {
    /// Returns a buffer without memory.
    fn default() -> Self {
        Self { start: NonNull::dangling(), length: 0, owned: None }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(capacity) = self.owned {
            // SAFETY: the parts of a vector that was taken apart; nothing uses them after this.
            drop(unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.length, capacity) });
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("length", &self.length).field("owned", &self.owned.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_returned() {
        let mut vector = Vec::with_capacity(16);
        vector.extend_from_slice(b"abc");
        let mut buffer = Buffer::from(vector);

        assert_eq!(buffer.write(1, b"XYZ"), 2);
        assert_eq!(buffer.write(4, b"X"), 0);

        let vector = buffer.into_vec().unwrap();
        assert_eq!((vector.as_slice(), vector.capacity()), (b"aXY".as_slice(), 16));
    }

    #[test]
    fn caller_memory_is_written_without_a_copy() {
        let mut memory = [0_u8; 4];
        // SAFETY: the memory outlives the buffer, which alone uses it meanwhile.
        let mut buffer = unsafe { Buffer::from_raw_parts(memory.as_mut_ptr(), 4) };

        buffer.write(2, b"ab");

        assert!(buffer.into_vec().is_none());
        assert_eq!(&memory, b"\0\0ab");
    }

    #[test]
    fn null_is_empty() {
        // SAFETY: nothing is ever accessed.
        let buffer = unsafe { Buffer::from_raw_parts(std::ptr::null_mut(), 0) };
        assert!(buffer.is_empty() && buffer.as_slice().is_empty());
    }
}
