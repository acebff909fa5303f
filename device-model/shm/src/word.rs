//! Atomic words in shared memory.
//!
//! UNSAFETY: creates references to atomics from addresses in a mapping. The constructor requires a
//! checked address, and the word keeps the mapping alive.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::{Access, Mapping};

macro_rules! shared_word {
    ($(#[$doc:meta])* $name:ident, $atomic:ty, $value:ty) => {
        $(#[$doc])*
        ///
        /// It keeps its mapping alive. In memory that is mapped read-only, loads work, stores have
        /// no effect, and a compare-exchange fails. [`Self::is_writable`] tells the cases apart.
        #[derive(Clone)]
        pub struct $name {
            word: *mut $value,
            writable: bool,
            _mapping: Arc<Mapping>,
        }

        // SAFETY: the address points into the mapping, which is `Send` and `Sync`. All accesses to
        // it are atomic.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// # Safety
            /// `word` must lie in `mapping` and be aligned to its size.
            pub(crate) unsafe fn from_raw(word: *mut $value, mapping: Arc<Mapping>) -> Self {
                $name { word, writable: mapping.access() == Access::ReadWrite, _mapping: mapping }
            }

            #[inline]
            fn atomic(&self) -> &$atomic {
                // SAFETY: in bounds and aligned by `from_raw`; the mapping lives as long as `self`.
                unsafe { <$atomic>::from_ptr(self.word) }
            }

            /// Returns whether stores have an effect.
            #[inline]
            pub fn is_writable(&self) -> bool {
                self.writable
            }

            /// Loads the word.
            ///
            /// # Panics
            /// If `order` is `Release` or `AcqRel`, which loads can't have.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                self.atomic().load(order)
            }

            /// Stores the word.
            ///
            /// # Panics
            /// If `order` is `Acquire` or `AcqRel`, which stores can't have.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                if self.writable {
                    self.atomic().store(value, order);
                }
            }

            /// Stores `new` if the word is `current`. Returns the word found: in `Ok` if `new` was
            /// stored.
            ///
            /// # Errors
            /// The word found, if it was not `current` or the memory is read-only.
            ///
            /// # Panics
            /// If `failure` is `Release` or `AcqRel`, which loads can't have.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if self.writable {
                    self.atomic().compare_exchange(current, new, success, failure)
                } else {
                    Err(self.load(failure))
                }
            }

            /// Adds with wrap-around. Returns the previous value.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().fetch_add(value, order) } else { self.load(Ordering::SeqCst) }
            }

            /// Sets the bits of `value`. Returns the previous value.
            #[inline]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().fetch_or(value, order) } else { self.load(Ordering::SeqCst) }
            }

            /// Clears all bits except those of `value`. Returns the previous value.
            #[inline]
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().fetch_and(value, order) } else { self.load(Ordering::SeqCst) }
            }

            /// Stores `value`. Returns the previous value.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().swap(value, order) } else { self.load(Ordering::SeqCst) }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(0x{:x})"), self.load(Ordering::Relaxed))
            }
        }
    };
}

shared_word! {
    /// An aligned 32-bit word in shared memory.
    SharedU32, AtomicU32, u32
}
shared_word! {
    /// An aligned 64-bit word in shared memory.
    SharedU64, AtomicU64, u64
}
