//! The injection FIFOs that have descriptors, by priority, and the choice among them.
//!
//! In: FIFOs that get and lose descriptors. Out: one of them at a time. May touch: its own state.
//!
//! A FIFO without descriptors is in no list and costs nothing. One whose message waits for room in
//! the network costs nothing until there is room.

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

/// The position of a FIFO that is in no list.
const ABSENT: Position = Position { priority: Priority::Normal, index: u16::MAX };

/// The position of a FIFO in the lists.
#[derive(Clone, Copy, Debug)]
struct Position {
    priority: Priority,
    index: u16,
}

/// The active FIFOs of a priority: the ready ones, and then the parked ones. The order in each part
/// has no meaning.
#[derive(Debug)]
struct PriorityList {
    fifos: Vec<u16>,
    /// Number of parked FIFOs, at the end of `fifos`.
    parked: usize,
    /// Network FIFOs that the messages of the parked FIFOs wait for, one bit for each.
    awaited: u16,
}

impl PriorityList {
    /// Returns an empty list.
    const fn new() -> Self {
        Self { fifos: Vec::new(), parked: 0, awaited: 0 }
    }

    /// Returns the number of FIFOs that are not parked.
    #[inline]
    fn ready(&self) -> usize {
        self.fifos.len() - self.parked
    }
}

/// The active FIFOs.
///
/// FIFOs whose messages wait for room in the same network FIFOs are *parked* together. They all
/// proceed when one of these has room, and until then a step looks at none of them.
#[derive(Debug)]
pub(crate) struct ActiveFifos {
    /// By [`Priority`].
    lists: [PriorityList; 3],
    /// By the number of the FIFO.
    positions: Vec<Position>,
}

impl ActiveFifos {
    /// Returns empty lists.
    pub(crate) fn new() -> Self {
        Self { lists: [const { PriorityList::new() }; 3], positions: Vec::new() }
    }

    /// Allocates the memory for the FIFOs of this many subgroups, so that no other method
    /// allocates.
    pub(crate) fn reserve(&mut self, subgroups: usize, fifos_each: usize) {
        self.positions.resize(usize::from(ALL_INJECTION_FIFOS), ABSENT);
        // All FIFOs can have the same priority, so each list has room for all.
        for PriorityList { fifos, .. } in &mut self.lists {
            fifos.reserve((subgroups * fifos_each).saturating_sub(fifos.len()));
        }
    }

    /// Returns whether no FIFO is active.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.fifos.is_empty())
    }

    /// Returns whether no FIFO of a priority is active.
    #[inline]
    pub(crate) fn has_none(&self, priority: Priority) -> bool {
        self.lists[priority as usize].fifos.is_empty()
    }

    /// Returns the number of active FIFOs of a priority that are not parked.
    #[inline]
    pub(crate) fn count_ready(&self, priority: Priority) -> usize {
        self.lists[priority as usize].ready()
    }

    /// Returns the number of parked FIFOs of a priority.
    #[inline]
    pub(crate) fn count_parked(&self, priority: Priority) -> usize {
        self.lists[priority as usize].parked
    }

    /// Returns the network FIFOs that the parked FIFOs of a priority wait for, one bit for each.
    #[inline]
    pub(crate) fn awaited_fifos(&self, priority: Priority) -> u16 {
        self.lists[priority as usize].awaited
    }

    /// Returns the FIFO at an index of a priority's list.
    #[inline]
    pub(crate) fn get(&self, priority: Priority, index: usize) -> Option<u16> {
        self.lists[priority as usize].fifos.get(index).copied()
    }

    /// Adds a FIFO, unless it is active.
    #[inline]
    pub(crate) fn add(&mut self, fifo: u16, priority: Priority) {
        let Some(position) = self.positions.get_mut(usize::from(fifo)) else { return };
        if position.index != u16::MAX {
            return;
        }

        let list = &mut self.lists[priority as usize];
        let last = list.fifos.len();
        *position = Position { priority, index: last as u16 };
        list.fifos.push(fifo);
        if list.parked > 0 {
            // The new FIFO is ready: it changes places with the first parked one.
            let first_parked = last - list.parked;
            self.swap(priority, first_parked, last);
        }
    }

    /// Removes a FIFO, if it is active.
    pub(crate) fn remove(&mut self, fifo: u16) {
        let Some(position) = self.positions.get_mut(usize::from(fifo)) else { return };
        let Position { priority, index } = std::mem::replace(position, ABSENT);
        let list = &mut self.lists[priority as usize];
        let mut index = usize::from(index);
        if index >= list.fifos.len() {
            return;
        }

        let ready = list.ready();
        if index >= ready {
            list.parked -= 1;
        } else if list.parked > 0 {
            // The last ready FIFO moves to the place of the removed one, and the last parked FIFO
            // (below) to the place of the last ready one.
            let last_ready = list.fifos[ready - 1];
            list.fifos[index] = last_ready;
            self.positions[usize::from(last_ready)].index = index as u16;
            index = ready - 1;
        }

        self.lists[priority as usize].fifos.swap_remove(index);
        self.record_position(priority, index);
        self.positions[usize::from(fifo)] = ABSENT;
    }

    /// Exchanges the FIFOs at two indices of the same part of a list.
    #[inline]
    pub(crate) fn swap(&mut self, priority: Priority, a: usize, b: usize) {
        let list = &mut self.lists[priority as usize].fifos;
        if a < list.len() && b < list.len() {
            list.swap(a, b);
            self.record_position(priority, a);
            self.record_position(priority, b);
        }
    }

    /// Parks the last ready FIFO of a list, whose message waits for room in the network FIFOs of
    /// `awaited`. Returns false, and changes nothing, if the parked FIFOs wait for other ones.
    pub(crate) fn park_last(&mut self, priority: Priority, awaited: u16) -> bool {
        let list = &mut self.lists[priority as usize];
        let is_possible = list.ready() > 0 && (list.parked == 0 || list.awaited == awaited);
        if is_possible {
            list.parked += 1;
            list.awaited = awaited;
        }
        is_possible
    }

    /// Makes the parked FIFO at an index of a list the last ready one.
    pub(crate) fn unpark(&mut self, priority: Priority, index: usize) {
        let ready = self.lists[priority as usize].ready();
        if (ready..self.lists[priority as usize].fifos.len()).contains(&index) {
            self.swap(priority, index, ready);
            self.lists[priority as usize].parked -= 1;
        }
    }

    /// Records the position of the FIFO that is at an index of a list now.
    fn record_position(&mut self, priority: Priority, index: usize) {
        if let Some(fifo) = self.get(priority, index) {
            self.positions[usize::from(fifo)] = Position { priority, index: index as u16 };
        }
    }
}

/// A source of pseudo-random numbers, the same ones for the same node: Marsaglia's xorshift
/// generator with the shifts 13, 7 and 17.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns the source of a node.
    pub(crate) fn new(node: u32) -> Self {
        // The golden ratio spreads the node numbers over all bits. The state must not be 0.
        Self((u64::from(node) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    #[inline]
    pub(crate) fn below(&mut self, end: usize) -> usize {
        if end < 2 {
            return 0;
        }

        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of the state is a fraction of 2^32, which scales `end`.
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
            steps in proptest::collection::vec((0..5u8, 0..600u16, 0..3usize, 0..9usize), 0..200),
        ) {
            let mut active = ActiveFifos::new();
            active.reserve(68, 8);
            let mut model: [BTreeSet<u16>; 3] = Default::default();
            let mut parked: [BTreeSet<u16>; 3] = Default::default();

            for (what, fifo, priority, other) in steps {
                let priority = Priority::ALL[priority];
                let (ready, at) = (active.count_ready(priority), priority as usize);
                match what {
                    0 => {
                        active.add(fifo, priority);
                        if fifo < ALL_INJECTION_FIFOS && model.iter().all(|set| !set.contains(&fifo)) {
                            model[at].insert(fifo);
                        }
                    }
                    1 => {
                        active.remove(fifo);
                        model.iter_mut().chain(&mut parked).for_each(|set| { set.remove(&fifo); });
                    }
                    2 if ready > 0 => active.swap(priority, usize::from(fifo) % ready, other % ready),
                    3 if ready > 0 => {
                        let last = active.get(priority, ready - 1).unwrap();
                        let map = u16::from(other > 0);
                        let is_possible = parked[at].is_empty() || active.awaited_fifos(priority) == map;
                        prop_assert_eq!(active.park_last(priority, map), is_possible);
                        if is_possible {
                            parked[at].insert(last);
                        }
                    }
                    _ => {
                        if let Some(fifo) = active.get(priority, ready + other) {
                            active.unpark(priority, ready + other);
                            parked[at].remove(&fifo);
                        }
                    }
                }
            }

            for priority in Priority::ALL {
                let (ready, count) = (active.count_ready(priority), active.count_parked(priority));
                let listed = |range: std::ops::Range<usize>| -> BTreeSet<_> {
                    range.filter_map(|index| active.get(priority, index)).collect()
                };
                prop_assert_eq!(&listed(0..ready + count), &model[priority as usize]);
                prop_assert_eq!(&listed(ready..ready + count), &parked[priority as usize]);
                prop_assert_eq!(ready + count, model[priority as usize].len());
            }
        }
    }
}
