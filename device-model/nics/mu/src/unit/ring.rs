//! A FIFO in client memory: a circular buffer between two pointers.
//!
//! In: the pointers that software writes. Out: where to read and write, and how much room there is.
//! May touch: its own state.
//!
//! *Invariant:* while a FIFO is enabled, [`Ring::is_valid`] holds, and every method may rely on
//! it. Equal pointers mean an empty FIFO, so a full one has a slot that is not used.

use nicforge_hwi::mu::{ADDRESS_BITS, CHUNK, DESCRIPTOR, MAX_FIFO, MIN_INJECTION_FIFO, MIN_RECEPTION_FIFO};

/// The kinds of FIFOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of descriptors.
    Injection,
    /// Of packets.
    Reception,
}

impl Kind {
    /// Returns the alignment of addresses and of the size in bytes.
    pub(crate) fn alignment(self) -> u64 {
        match self {
            Self::Injection => DESCRIPTOR,
            Self::Reception => CHUNK,
        }
    }

    /// Returns the smallest size of a FIFO in bytes.
    fn min_size(self) -> u64 {
        match self {
            Self::Injection => MIN_INJECTION_FIFO,
            Self::Reception => MIN_RECEPTION_FIFO,
        }
    }
}

/// The pointers of a FIFO, as software has written them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Address of the first byte.
    pub(crate) start: u64,
    /// Number of bytes less one, as in the register.
    pub(crate) size_minus_1: u64,
    /// Address of the oldest byte in use.
    pub(crate) head: u64,
    /// Address after the newest byte in use.
    pub(crate) tail: u64,
}

impl Ring {
    /// Returns whether an enabled FIFO may have these pointers.
    pub(crate) fn is_valid(&self, kind: Kind) -> bool {
        let fits = (kind.min_size()..=MAX_FIFO).contains(&self.size_minus_1.saturating_add(1));
        fits && self.size().is_multiple_of(kind.alignment())
            && self.start.is_multiple_of(kind.alignment())
            && self.start < 1 << ADDRESS_BITS
            && self.start + self.size() <= 1 << ADDRESS_BITS
            && self.holds(kind, self.head)
            && self.holds(kind, self.tail)
    }

    /// Returns whether a pointer is aligned and lies in the FIFO.
    pub(crate) fn holds(&self, kind: Kind, pointer: u64) -> bool {
        pointer.is_multiple_of(kind.alignment())
            && pointer >= self.start
            && pointer - self.start <= self.size_minus_1
    }

    /// Returns whether software may move the head to a pointer: it lies between head and tail.
    pub(crate) fn may_consume_to(&self, pointer: u64) -> bool {
        self.distance(self.head, pointer) <= self.used()
    }

    /// Returns the size in bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size_minus_1.wrapping_add(1)
    }

    /// Returns the number of bytes in use.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.distance(self.head, self.tail)
    }

    /// Returns the number of bytes that are not in use. It has no meaning while the pointers are
    /// invalid.
    #[inline]
    pub(crate) fn free(&self) -> u64 {
        self.size().wrapping_sub(self.used())
    }

    /// Returns whether nothing is in use.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Returns whether this many more bytes fit.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes < self.free()
    }

    /// Returns the number of bytes that can be written at the tail before the end of the memory.
    #[inline]
    pub(crate) fn contiguous_at_tail(&self) -> u64 {
        self.start + self.size() - self.tail
    }

    /// Moves the head past this many bytes.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: u64) {
        self.head = self.advanced(self.head, bytes);
    }

    /// Moves the tail past this many bytes.
    #[inline]
    pub(crate) fn produce(&mut self, bytes: u64) {
        self.tail = self.advanced(self.tail, bytes);
    }

    /// Returns a pointer moved forward by this many bytes, around the end of the memory.
    fn advanced(&self, pointer: u64, bytes: u64) -> u64 {
        let next = pointer + bytes;
        if next - self.start >= self.size() { next - self.size() } else { next }
    }

    /// Returns the number of bytes from one pointer forward to another, around the end of the
    /// memory.
    fn distance(&self, from: u64, to: u64) -> u64 {
        if to >= from { to - from } else { to.wrapping_add(self.size()).wrapping_sub(from) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ring(slots: u64, head: u64, tail: u64) -> Ring {
        Ring {
            start: 0x1000,
            size_minus_1: slots * 64 - 1,
            head: 0x1000 + head * 64,
            tail: 0x1000 + tail * 64,
        }
    }

    #[test]
    fn impossible_addresses_and_sizes_are_refused() {
        let good = ring(4, 1, 3);
        assert!(good.is_valid(Kind::Injection));

        for bad in [
            Ring { start: 0x1020, ..good },
            Ring { size_minus_1: 63, ..good },
            Ring { size_minus_1: 254, ..good },
            Ring { size_minus_1: MAX_FIFO + 63, ..good },
            Ring { size_minus_1: u64::MAX, ..good },
            Ring { head: 0x0fc0, ..good },
            Ring { tail: 0x1100, ..good },
            Ring { tail: 0x10c1, ..good },
            Ring { start: (1 << 36) - 128, head: (1 << 36) - 128, tail: (1 << 36) - 128, ..good },
            Ring { start: u64::MAX - 63, head: u64::MAX - 63, tail: u64::MAX - 63, ..good },
            Ring::default(),
        ] {
            assert!(!bad.is_valid(Kind::Injection), "{bad:?}");
        }
    }

    #[test]
    fn largest_and_smallest_fifos_are_possible() {
        for (kind, bytes) in [
            (Kind::Injection, 128),
            (Kind::Injection, MAX_FIFO),
            (Kind::Reception, 576),
            (Kind::Reception, MAX_FIFO),
        ] {
            let ring = Ring { start: 0, size_minus_1: bytes - 1, head: 0, tail: 0 };
            assert!(ring.is_valid(kind), "{bytes}");
        }
        let small = Ring { start: 0, size_minus_1: 543, head: 0, tail: 0 };
        assert!(!small.is_valid(Kind::Reception));
    }

    #[test]
    fn head_moves_as_far_as_the_tail() {
        let ring = ring(4, 3, 1);
        assert!(ring.may_consume_to(0x10c0) && ring.may_consume_to(0x1000) && ring.may_consume_to(0x1040));
        assert!(!ring.may_consume_to(0x1080));
    }

    proptest! {
        #[test]
        fn room_and_use_add_up_to_the_size(
            slots in 2..40u64,
            moves in proptest::collection::vec((any::<bool>(), 1..8u64), 0..100),
        ) {
            let mut ring = ring(slots, 0, 0);
            let mut used = 0;
            for (produces, count) in moves {
                let bytes = count * 64;
                if produces && ring.has_room(bytes) {
                    prop_assert!(used + count < slots);
                    ring.produce(bytes);
                    used += count;
                } else if produces {
                    prop_assert!(used + count >= slots);
                } else if count <= used {
                    ring.consume(bytes);
                    used -= count;
                }

                prop_assert!(ring.is_valid(Kind::Injection));
                prop_assert_eq!(ring.used(), used * 64);
                prop_assert_eq!(ring.free(), (slots - used) * 64);
                prop_assert_eq!(ring.is_empty(), used == 0);
                prop_assert!(ring.contiguous_at_tail() > 0);
            }
        }
    }
}
