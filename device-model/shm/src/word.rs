//! Atomic words in shared memory.
//!
//! UNSAFETY: makes references to atomics from addresses in a mapping. The address was checked for
//! bounds and alignment when the word was made, and the word keeps the mapping alive.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::{Access, Mapping};

macro_rules! shared_word {
    ($(#[$doc:meta])* $name:ident, $atomic:ty, $value:ty) => {
        $(#[$doc])*
        ///
        /// It keeps its mapping alive. In memory that is mapped read-only it can be loaded; stores
        /// have no effect, as with a read-only register ([`Self::is_writable`] tells), and a
        /// compare-exchange fails.
        #[derive(Clone)]
        pub struct $name {
            word: *mut $value,
            writable: bool,
            _mapping: Arc<Mapping>,
        }

        // SAFETY: the address points into the mapping, which is `Send` and `Sync`, and is only
        // accessed atomically.
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

            /// Whether stores have an effect.
            #[inline]
            pub fn is_writable(&self) -> bool {
                self.writable
            }

            /// Loads the word.
            ///
            /// # Panics
            /// When `order` is `Release` or `AcqRel`, which no load can have.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                self.atomic().load(order)
            }

            /// Stores the word.
            ///
            /// # Panics
            /// When `order` is `Acquire` or `AcqRel`, which no store can have.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                if self.writable {
                    self.atomic().store(value, order);
                }
            }

            /// Stores `new` if the word is `current`. Gives the word found: `Ok` when it was
            /// stored.
            ///
            /// # Errors
            /// The word found, when it was not `current` or the memory is read-only.
            ///
            /// # Panics
            /// When `failure` is `Release` or `AcqRel`, which no load can have.
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

            /// Adds with wrap-around and gives the value before.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().fetch_add(value, order) } else { self.load(Ordering::SeqCst) }
            }

            /// Sets the bits of `value` and gives the value before.
            #[inline]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().fetch_or(value, order) } else { self.load(Ordering::SeqCst) }
            }

            /// Keeps only the bits of `value` and gives the value before.
            #[inline]
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                if self.writable { self.atomic().fetch_and(value, order) } else { self.load(Ordering::SeqCst) }
            }

            /// Stores `value` and gives the value before.
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
