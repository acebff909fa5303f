//! Memory lent to a request.

#![allow(
    unsafe_code,
    reason = "a provider lends memory by its address; owned memory stays in place while a device may touch it"
)]

use std::{fmt, mem::ManuallyDrop, ptr::NonNull};

use crate::Memory;

/// The memory of one request: a vector that the request owns until its completion gives it back, or memory of the caller's.
///
/// Vectors are taken apart at once and put together again at the end: while a request is outstanding nothing but an address
/// refers to the memory, which a device may be reading or writing.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    /// Capacity of the vector that this was; `None` for memory of the caller's.
    owned: Option<usize>,
}

// SAFETY: a buffer is the only one to use its memory, by construction from a vector or by the contract of `from_raw_parts`.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `length` bytes of the caller's memory at `start`.
    ///
    /// # Safety
    /// Until the request has been completed, or its endpoint dropped:
    /// - for a send the memory stays valid for reads and is not written; it is never written through this buffer;
    /// - for a receive it stays valid for reads and writes and nobody else accesses it; what it holds may be anything, but
    ///   must be initialised.
    ///
    /// The thread that has the endpoint may do that. `start` may be null when `length` is 0. `length` is at most `isize::MAX`.
    pub unsafe fn from_raw_parts(start: *mut u8, length: usize) -> Self {
        match NonNull::new(start) {
            Some(start) => Self { start, length, owned: None },
            None => Self { start: NonNull::dangling(), length: 0, owned: None },
        }
    }

    /// A vector of zeros to receive into.
    pub fn zeroed(length: usize) -> Self {
        vec![0; length].into()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised, valid for reads, and nobody writes it: the caller's contract, or it is ours. A
        // request's buffer is not looked at while a device writes it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The vector it was made of; `None` for memory of the caller's.
    pub fn into_vec(self) -> Option<Vec<u8>> {
        let buffer = ManuallyDrop::new(self);
        buffer.owned.map(|capacity| {
            // SAFETY: these are the parts of a vector that was taken apart; this buffer forgets them.
            unsafe { Vec::from_raw_parts(buffer.start.as_ptr(), buffer.length, capacity) }
        })
    }

    /// What to register with a transport.
    pub(crate) fn memory(&self) -> Memory {
        Memory { start: self.start, length: self.length }
    }

    /// Copies `data` to `offset`, as far as there is room, and says how much.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> usize {
        let count = data.len().min(self.length.saturating_sub(offset));
        if count > 0 {
            let to = self.start.as_ptr().wrapping_add(offset);
            if let Some(quadword) = data.first_chunk::<8>().filter(|_| count == 8) {
                // SAFETY: as below. The shortest messages are the most frequent ones, and a call costs more than the move.
                unsafe { to.cast::<[u8; 8]>().write(*quadword) };
                return count;
            }
            // SAFETY: `offset` plus `count` is within the memory, which is valid for writes and which only we access. `data` is
            // somebody else's: the two may be the same memory only if a caller broke the contract, and `copy` works even so.
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
    /// No memory.
    fn default() -> Self {
        Self { start: NonNull::dangling(), length: 0, owned: None }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(capacity) = self.owned {
            // SAFETY: the parts of a vector that was taken apart; nobody uses them after this.
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
    fn a_vector_comes_back() {
        let mut vector = Vec::with_capacity(16);
        vector.extend_from_slice(b"abc");
        let mut buffer = Buffer::from(vector);
        assert_eq!(buffer.write(1, b"XYZ"), 2);
        assert_eq!(buffer.write(4, b"X"), 0);
        let vector = buffer.into_vec().unwrap();
        assert_eq!((vector.as_slice(), vector.capacity()), (b"aXY".as_slice(), 16));
    }

    #[test]
    fn memory_of_the_caller_is_written_in_place() {
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
