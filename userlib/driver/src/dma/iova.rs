//! The allocator of a device's DMA addresses.

use std::{collections::BTreeMap, ops::Range};

/// Allocates ranges of the device's DMA address space, lowest address first.
pub(crate) struct IovaAllocator {
    /// Free ranges: the end of each, by its start. Ranges that touch are merged.
    free: BTreeMap<u64, u64>,
}

impl IovaAllocator {
    /// Creates an allocator in which all of `ranges` are free. The ranges must not overlap.
    pub(crate) fn new(ranges: &[Range<u64>]) -> Self {
        let free = ranges.iter().filter(|range| range.start < range.end);
        Self { free: free.map(|range| (range.start, range.end)).collect() }
    }

    /// Allocates `len` bytes (not 0) at a multiple of `align`, a power of two. Returns `None` if
    /// there is no such free range.
    pub(crate) fn allocate(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, at, end) = self.free.iter().find_map(|(&start, &end)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= end).then_some((start, at, end))
        })?;

        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at);
        }

        if at + len < end {
            self.free.insert(at + len, end);
        }

        Some(at)
    }

    /// Frees a range that [`IovaAllocator::allocate`] returned.
    pub(crate) fn free(&mut self, at: u64, len: u64) {
        let (mut start, mut end) = (at, at + len);

        if let Some((&start_before, &end_before)) = self.free.range(..at).next_back()
            && end_before == start
        {
            self.free.remove(&start_before);
            start = start_before;
        }

        if let Some(end_after) = self.free.remove(&end) {
            end = end_after;
        }

        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::DmaAddresses;

    const FIRST: u64 = DmaAddresses::FIRST;
    const END: u64 = DmaAddresses::END;
    #[allow(clippy::single_range_in_vec_init, reason = "it is a list of ranges")]
    const ALL: [Range<u64>; 1] = [FIRST..END];

    #[test]
    fn a_hole_between_two_ranges_is_never_handed_out() {
        let mut space = IovaAllocator::new(&[0x1000..0x3000, 0x5000..0x7000]);
        assert_eq!(space.allocate(0x3000, 4096), None);
        let taken: Vec<_> = std::iter::from_fn(|| space.allocate(0x1000, 4096)).collect();
        assert_eq!(taken, [0x1000, 0x2000, 0x5000, 0x6000]);
    }

    #[test]
    fn allocation_beyond_the_space_returns_none() {
        let mut space = IovaAllocator::new(&ALL);
        assert_eq!(space.allocate(END, 4096), None);
        assert_eq!(space.allocate(u64::MAX, 4096), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn ranges_never_overlap_and_all_space_is_reused(
            steps in proptest::collection::vec((1u64..64, prop::bool::ANY, any::<prop::sample::Index>()), 1..80)
        ) {
            let mut space = IovaAllocator::new(&ALL);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pages, huge, victim) in steps {
                if pages % 3 == 0 && !taken.is_empty() {
                    let (at, len) = taken.swap_remove(victim.index(taken.len()));
                    space.free(at, len);
                    continue;
                }
                let align = if huge { 1 << 21 } else { 4096 };
                let len = pages * 4096;
                let at = space.allocate(len, align).unwrap();
                prop_assert_eq!(at % align, 0);
                prop_assert!(taken.iter().all(|&(other, size)| at + len <= other || other + size <= at));
                taken.push((at, len));
            }

            for (at, len) in taken {
                space.free(at, len);
            }
            prop_assert_eq!(space.free, BTreeMap::from([(FIRST, END)]));
        }
    }
}
