//! A buddy allocator for an area whose size is a power of two. Taking and returning parts allocates
//! no memory.

/// Logarithm of the smallest part's size in bytes.
const UNIT_SHIFT: u32 = 12;

/// A part that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Logarithm of the part's size in units.
    order: u8,
    /// Number of the part among those of its size.
    index: u32,
}

impl Part {
    /// Returns the offset of the part in bytes.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.index) << (u32::from(self.order) + UNIT_SHIFT)
    }
}

/// The free parts. For each order there is a bit for each part of that size: set while that part as
/// a whole is free, and was not split or merged.
pub(crate) struct Arena {
    free: Vec<Vec<u64>>,
}

impl Arena {
    /// Creates an arena of `bytes`, a power of two of at least 4,096.
    pub(crate) fn new(bytes: usize) -> Self {
        let orders = bytes.ilog2().saturating_sub(UNIT_SHIFT);
        let words = |order: u32| (1_usize << (orders - order)).div_ceil(64);
        let mut free: Vec<Vec<u64>> = (0..=orders).map(|order| vec![0; words(order)]).collect();

        if let Some(whole) = free.last_mut() {
            whole[0] = 1;
        }
        Self { free }
    }

    /// Takes a part of at least `bytes`. Returns `None` when no such part is free, or `bytes`
    /// exceeds the arena.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Part> {
        let wanted_order =
            bytes.max(1).checked_next_power_of_two()?.ilog2().saturating_sub(UNIT_SHIFT) as usize;

        let first_free = |words: &Vec<u64>| {
            let word = words.iter().position(|word| *word != 0)?;
            Some(word * 64 + words[word].trailing_zeros() as usize)
        };

        // The smallest free part that is large enough.
        let (mut order, mut index) = (wanted_order..self.free.len())
            .find_map(|order| Some((order, first_free(&self.free[order])?)))?;

        // It is halved until it has the wanted size. The upper halves become free.
        self.toggle(order, index);
        while order > wanted_order {
            (order, index) = (order - 1, index * 2);
            self.toggle(order, index + 1);
        }
        Some(Part { order: order as u8, index: index as u32 })
    }

    /// Frees a part that [`Arena::take`] has returned.
    pub(crate) fn release(&mut self, part: Part) {
        let (mut order, mut index) = (usize::from(part.order), part.index as usize);

        // While the other half is free, both merge to the part of the next order.
        while order + 1 < self.free.len() && self.is_free(order, index ^ 1) {
            self.toggle(order, index ^ 1);
            (order, index) = (order + 1, index / 2);
        }

        self.toggle(order, index);
    }

    /// Returns whether a part is free and not split or merged.
    fn is_free(&self, order: usize, index: usize) -> bool {
        self.free[order][index / 64] >> (index % 64) & 1 != 0
    }

    /// Marks a free part as not free, or the reverse.
    fn toggle(&mut self, order: usize, index: usize) {
        self.free[order][index / 64] ^= 1 << (index % 64);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const SIZE: usize = 1 << 20;

    #[test]
    fn parts_do_not_overlap_and_all_can_be_released() {
        let mut arena = Arena::new(SIZE);

        let mut state = 1_u64;
        let mut taken: Vec<(Part, usize)> = Vec::new();

        for _ in 0..5_000 {
            // A linear congruential generator.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = 1 + (state >> 40) as usize % (SIZE / 8);

            if state >> 63 == 0
                && let Some(part) = arena.take(bytes)
            {
                let (start, end) = (part.offset() as usize, part.offset() as usize + bytes);
                assert!(end <= SIZE);

                let is_disjoint = |(other, length): &(Part, usize)| {
                    end <= other.offset() as usize || other.offset() as usize + length <= start
                };

                assert!(taken.iter().all(is_disjoint));
                taken.push((part, bytes));
            } else if !taken.is_empty() {
                let (part, _) = taken.swap_remove((state >> 20) as usize % taken.len());
                arena.release(part);
            }
        }

        taken.into_iter().for_each(|(part, _)| arena.release(part));
        assert_eq!(arena.take(SIZE).map(Part::offset), Some(0));
    }

    #[test]
    fn a_part_beyond_the_arena_is_refused() {
        let mut arena = Arena::new(8192);

        assert_eq!(arena.take(8193), None);
        assert_eq!(arena.take(usize::MAX), None);

        let parts = [arena.take(4096).unwrap(), arena.take(1).unwrap()];
        assert_eq!(parts.map(Part::offset), [0, 4096]);

        assert_eq!(arena.take(1), None);
    }
}
