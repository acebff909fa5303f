//! Tables of objects that C names by numbers.
//!
//! A handle consists of the kind of its table, the generation of a slot, and the slot's index, from
//! the highest bits to the lowest. A slot is used again only when many others have become free
//! after it, so that outdated handles are recognised.

use std::collections::VecDeque;

use super::types::ptl_handle_any_t;

/// Number of bits of a slot's index in a handle.
const INDEX_BITS: u32 = 18;
/// Position of the two bits of the kind in a handle.
const KIND_SHIFT: u32 = 30;
/// Number of generations that a handle can tell apart.
const GENERATIONS: u32 = 1 << (KIND_SHIFT - INDEX_BITS);
/// The highest index is left out: `PTL_INVALID_HANDLE`, `PTL_HANDLE_NONE` and `PTL_EQ_NONE` have
/// it.
const MAX_SLOTS: usize = (1 << INDEX_BITS) - 1;
/// Number of slots that stay free before the oldest one is used again.
const MIN_FREE_SLOTS: usize = 16_384;

/// The kind of an object, in the upper bits of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Interface,
    Queue,
    Entry,
    Descriptor,
}

impl Kind {
    /// Returns the kind that a handle has.
    pub(super) fn of(handle: ptl_handle_any_t) -> Self {
        match handle >> KIND_SHIFT {
            0 => Self::Interface,
            1 => Self::Queue,
            2 => Self::Entry,
            _ => Self::Descriptor,
        }
    }
}

/// The place of one object at a time.
struct Slot<T> {
    /// Number of the object that the slot holds or held. It wraps around to 1, so that no handle is
    /// 0.
    generation: u32,
    /// Whether the handle is valid. The value of a retired object stays until the slot is used
    /// again.
    is_live: bool,
    value: Option<T>,
}

/// A table of objects of one kind.
pub(super) struct Table<T> {
    kind: Kind,
    slots: Vec<Slot<T>>,
    /// Free slots, the oldest first.
    free: VecDeque<u32>,
}

impl<T> Table<T> {
    /// Returns a table without objects.
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, slots: Vec::new(), free: VecDeque::new() }
    }

    /// Adds an object, and returns its handle, or `None` when the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<ptl_handle_any_t> {
        // A new slot is preferred, so that freed ones stay unused for long.
        let is_full = self.slots.len() == MAX_SLOTS;
        if self.free.len() <= MIN_FREE_SLOTS && !is_full {
            self.slots.push(Slot { generation: 1, is_live: true, value: Some(value) });
            return Some(self.handle(self.slots.len() - 1, 1));
        }

        let index = self.free.pop_front()? as usize;
        let slot = self.slots.get_mut(index)?;
        let generation = (slot.generation + 1) % GENERATIONS;
        *slot = Slot { generation: generation.max(1), is_live: true, value: Some(value) };
        let generation = slot.generation;
        Some(self.handle(index, generation))
    }

    /// Returns the handle of an object in a slot.
    fn handle(&self, index: usize, generation: u32) -> ptl_handle_any_t {
        ((self.kind as u32) << KIND_SHIFT) | (generation << INDEX_BITS) | index as u32
    }

    /// Returns the index of a handle's slot, if the slot holds or held the handle's object last.
    fn index(&self, handle: ptl_handle_any_t) -> Option<usize> {
        let index = handle as usize % (1 << INDEX_BITS);
        let slot = self.slots.get(index)?;
        let is_same = self.handle(index, slot.generation) == handle;
        is_same.then_some(index)
    }

    /// Returns the object of a valid handle.
    pub(super) fn find(&self, handle: ptl_handle_any_t) -> Option<&T> {
        let slot = &self.slots[self.index(handle)?];
        if slot.is_live { slot.value.as_ref() } else { None }
    }

    /// Returns the object of a valid handle, to change it.
    pub(super) fn find_mut(&mut self, handle: ptl_handle_any_t) -> Option<&mut T> {
        let index = self.index(handle)?;
        let slot = &mut self.slots[index];
        if slot.is_live { slot.value.as_mut() } else { None }
    }

    /// Returns the object of a handle, also after it was retired, until its slot is used again.
    pub(super) fn find_even_retired(&self, handle: ptl_handle_any_t) -> Option<&T> {
        self.slots[self.index(handle)?].value.as_ref()
    }

    /// Makes a handle invalid, and returns the object, which stays for
    /// [`Table::find_even_retired`].
    pub(super) fn retire(&mut self, handle: ptl_handle_any_t) -> Option<&mut T> {
        let index = self.index(handle)?;
        let slot = &mut self.slots[index];
        if !slot.is_live {
            return None;
        }

        slot.is_live = false;
        self.free.push_back(index as u32);
        slot.value.as_mut()
    }

    /// Removes an object and returns it.
    pub(super) fn remove(&mut self, handle: ptl_handle_any_t) -> Option<T> {
        self.retire(handle)?;
        let index = self.index(handle)?;
        self.slots[index].value.take()
    }

    /// Removes all valid objects for which `is_chosen` holds, and returns them.
    pub(super) fn remove_all(&mut self, is_chosen: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for (index, slot) in (0_u32..).zip(&mut self.slots) {
            if slot.is_live && slot.value.as_ref().is_some_and(&is_chosen) {
                slot.is_live = false;
                removed.extend(slot.value.take());
                self.free.push_back(index);
            }
        }
        removed
    }

    /// Returns the valid objects.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter(|slot| slot.is_live).filter_map(|slot| slot.value.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portals3::types::{PTL_EQ_NONE, PTL_HANDLE_NONE, PTL_INVALID_HANDLE};

    #[test]
    fn a_handle_is_valid_until_its_object_is_removed() {
        let mut table = Table::new(Kind::Entry);
        let (first, second) = (table.insert(1).unwrap(), table.insert(2).unwrap());
        assert_eq!((table.find(first), table.find(second)), (Some(&1), Some(&2)));
        assert_eq!(Kind::of(first), Kind::Entry);

        assert_eq!((table.remove(first), table.remove(first)), (Some(1), None));
        assert_eq!(
            (table.find(first), table.find_even_retired(first), table.find(second)),
            (None, None, Some(&2))
        );
    }

    #[test]
    fn a_retired_object_can_be_recalled() {
        let mut table = Table::new(Kind::Descriptor);
        let handle = table.insert(7).unwrap();
        assert_eq!(table.retire(handle), Some(&mut 7));

        assert_eq!((table.find(handle), table.find_even_retired(handle)), (None, Some(&7)));
        assert!(table.retire(handle).is_none());
    }

    #[test]
    fn a_slot_is_used_again_under_another_handle() {
        let mut table = Table::new(Kind::Queue);
        let first = table.insert(0).unwrap();
        table.remove(first);
        let others: Vec<_> = (0..2 * MIN_FREE_SLOTS).map(|number| table.insert(number).unwrap()).collect();
        for handle in &others {
            table.remove(*handle);
        }
        let reinserted: Vec<_> =
            (0..2 * MIN_FREE_SLOTS).map(|number| table.insert(number).unwrap()).collect();

        assert!(table.slots.len() < 4 * MIN_FREE_SLOTS);
        assert!(reinserted.iter().all(|handle| *handle != first && !others.contains(handle)));
        assert_eq!(table.find(first), None);
    }

    #[test]
    fn handles_of_other_kinds_and_constants_name_nothing() {
        let mut table = Table::new(Kind::Interface);
        let handle = table.insert(()).unwrap();
        assert_ne!(handle, 0);
        for foreign in
            [0, handle | (1 << KIND_SHIFT), handle + 1, PTL_INVALID_HANDLE, PTL_HANDLE_NONE, PTL_EQ_NONE]
        {
            assert_eq!(table.find(foreign), None, "{foreign:#x}");
        }
    }

    #[test]
    fn a_full_table_refuses_objects() {
        let mut table = Table::new(Kind::Entry);
        for _ in 0..MAX_SLOTS {
            table.insert(()).unwrap();
        }
        assert_eq!(table.insert(()), None);
        assert_eq!(table.remove_all(|()| true).len(), MAX_SLOTS);
        assert!(table.insert(()).is_some());
    }
}
