//! The injection FIFOs that have descriptors, by priority, and the choice among them.
//!
//! In: FIFOs that get and lose descriptors. Out: one of them at a time. May touch: its own state.
//!
//! A FIFO without descriptors is in no list and costs nothing.

use nicforge_hwi::mu::ALL_INJECTION_FIFOS;

/// The priorities of descriptors, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Of the system.
    System,
    /// Of a user's FIFO with high priority.
    High,
    /// Of another FIFO.
    Normal,
}

impl Priority {
    /// All priorities, highest first.
    pub(crate) const ALL: [Self; 3] = [Self::System, Self::High, Self::Normal];
}

/// A FIFO that is in no list.
const ABSENT: Position = Position { priority: Priority::Normal, index: u16::MAX };

/// The place of a FIFO in the lists.
#[derive(Clone, Copy, Debug)]
struct Position {
    priority: Priority,
    index: u16,
}

/// The active FIFOs. The order in a list has no meaning.
#[derive(Debug)]
pub(crate) struct Active {
    lists: [Vec<u16>; 3],
    positions: Vec<Position>,
}

impl Active {
    /// Returns empty lists.
    pub(crate) fn new() -> Self {
        Self { lists: [const { Vec::new() }; 3], positions: Vec::new() }
    }

    /// Allocates the memory for the FIFOs of one more subgroup, so that no later call does.
    pub(crate) fn reserve(&mut self, subgroups: usize, fifos_each: usize) {
        self.positions.resize(usize::from(ALL_INJECTION_FIFOS), ABSENT);
        for list in &mut self.lists {
            list.reserve((subgroups * fifos_each).saturating_sub(list.len()));
        }
    }

    /// Returns the number of active FIFOs of a priority.
    #[inline]
    pub(crate) fn count(&self, priority: Priority) -> usize {
        self.lists[priority as usize].len()
    }

    /// Returns the FIFO at a place of a list.
    #[inline]
    pub(crate) fn get(&self, priority: Priority, index: usize) -> Option<u16> {
        self.lists[priority as usize].get(index).copied()
    }

    /// Adds a FIFO, unless it is active.
    #[inline]
    pub(crate) fn add(&mut self, fifo: u16, priority: Priority) {
        let Some(position) = self.positions.get_mut(usize::from(fifo)) else { return };
        if position.index != u16::MAX {
            return;
        }

        let list = &mut self.lists[priority as usize];
        *position = Position { priority, index: list.len() as u16 };
        list.push(fifo);
    }

    /// Removes a FIFO, if it is active.
    pub(crate) fn remove(&mut self, fifo: u16) {
        let Some(position) = self.positions.get_mut(usize::from(fifo)) else { return };
        let Position { priority, index } = std::mem::replace(position, ABSENT);
        let list = &mut self.lists[priority as usize];
        if usize::from(index) >= list.len() {
            return;
        }

        list.swap_remove(usize::from(index));
        self.note(priority, index.into());
    }

    /// Exchanges two places of a list.
    #[inline]
    pub(crate) fn swap(&mut self, priority: Priority, a: usize, b: usize) {
        let list = &mut self.lists[priority as usize];
        if a < list.len() && b < list.len() {
            list.swap(a, b);
            self.note(priority, a);
            self.note(priority, b);
        }
    }

    /// Records the place of the FIFO that is now there.
    fn note(&mut self, priority: Priority, index: usize) {
        if let Some(&fifo) = self.lists[priority as usize].get(index) {
            self.positions[usize::from(fifo)] = Position { priority, index: index as u16 };
        }
    }
}

/// A source of pseudo-random numbers: the same ones for the same node.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns the source of a node.
    pub(crate) fn new(node: u32) -> Self {
        Self((u64::from(node) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `end`, or 0.
    #[inline]
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end < 2 {
            return 0;
        }

        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as usize * end) >> 32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_number_below_the_end_comes() {
        let mut random = Random::new(7);
        let seen: BTreeSet<_> = (0..1000).map(|_| random.below(17)).collect();
        assert_eq!(seen, (0..17).collect());
        assert_eq!((random.below(0), random.below(1)), (0, 0));
    }

    proptest! {
        #[test]
        fn lists_hold_what_was_added_and_not_removed(
            steps in proptest::collection::vec((0..3u8, 0..600u16, 0..3usize, 0..9usize), 0..200),
        ) {
            let mut active = Active::new();
            active.reserve(68, 8);
            let mut model: [BTreeSet<u16>; 3] = Default::default();

            for (what, fifo, priority, other) in steps {
                let priority = Priority::ALL[priority];
                match what {
                    0 => {
                        active.add(fifo, priority);
                        if fifo < ALL_INJECTION_FIFOS && model.iter().all(|set| !set.contains(&fifo)) {
                            model[priority as usize].insert(fifo);
                        }
                    }
                    1 => {
                        active.remove(fifo);
                        model.iter_mut().for_each(|set| { set.remove(&fifo); });
                    }
                    _ => active.swap(priority, usize::from(fifo) % 9, other),
                }
            }

            for priority in Priority::ALL {
                let listed: BTreeSet<_> =
                    (0..active.count(priority)).filter_map(|index| active.get(priority, index)).collect();
                prop_assert_eq!(&listed, &model[priority as usize]);
                prop_assert_eq!(active.count(priority), listed.len());
            }
        }
    }
}
