//! A table of values with handles. The slot freed last is used again first, with a new generation.

use crate::lists::NONE;

/// Names one value. Once the value is removed, the handle finds nothing, even if the slot is used
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle {
    pub(crate) index: u32,
    generation: u32,
}

impl Handle {
    /// Returns the handle as a number, which is not 0.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the handle for a number. A number of no handle gives a handle that finds nothing.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A slot of the table, taken or free.
#[derive(Debug)]
struct Slot<T> {
    /// Odd while the slot is taken, so that no handle is 0.
    generation: u32,
    next_free: u32,
    value: T,
}

/// A table of `T`. A new slot holds a default value.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    slots: Vec<Slot<T>>,
    /// The first free slot.
    free: u32,
    /// Number of taken slots.
    used: usize,
}

impl<T: Default> Pool<T> {
    /// The greatest number of slots.
    pub(crate) const LIMIT: u32 = 1 << 28;

    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, used: 0 }
    }

    /// Stores `value` and returns its handle. Returns the value when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<Handle, T> {
        let Some(handle) = self.allocate() else { return Err(value) };
        self.slots[handle.index as usize].value = value;
        Ok(handle)
    }

    /// Takes a free slot and returns its handle. Its value is as [`Pool::release`] left it, or
    /// new. Returns `None` when the table is full.
    #[inline]
    pub(crate) fn allocate(&mut self) -> Option<Handle> {
        if self.free == NONE {
            self.grow()?;
        }

        let index = self.free;
        let slot = &mut self.slots[index as usize];

        self.free = slot.next_free;
        slot.generation = slot.generation.wrapping_add(1);
        self.used += 1;
        Some(Handle { index, generation: slot.generation })
    }

    /// Allocates memory for `count` slots.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.slots.reserve(count.min(Self::LIMIT as usize).saturating_sub(self.slots.len()));
    }

    /// Adds a free slot.
    #[cold]
    fn grow(&mut self) -> Option<()> {
        if self.slots.len() >= Self::LIMIT as usize {
            return None;
        }
        self.free = self.slots.len() as u32;
        self.slots.push(Slot { generation: 0, next_free: NONE, value: T::default() });
        Some(())
    }

    /// Frees a taken slot. Its value stays there, and the caller of the next [`Pool::allocate`]
    /// must set every field that differs from a new value.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.next_free = self.free;
        self.free = index;
        self.used -= 1;
    }

    /// Returns the slot that `handle` names, if its value is still there.
    pub(crate) fn find(&self, handle: Handle) -> Option<u32> {
        let slot = self.slots.get(handle.index as usize)?;
        (slot.generation == handle.generation && slot.generation & 1 == 1).then_some(handle.index)
    }

    /// Returns the handle of a taken slot.
    #[inline]
    pub(crate) fn handle(&self, index: u32) -> Handle {
        Handle { index, generation: self.slots[index as usize].generation }
    }

    /// Frees a taken slot and returns its value.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        self.release(index);
        std::mem::take(&mut self.slots[index as usize].value)
    }

    /// Returns the number of slots, taken or free.
    pub(crate) fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns whether a slot is taken.
    pub(crate) fn is_taken(&self, index: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| slot.generation & 1 == 1)
    }

    /// Returns the number of taken slots.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Iterates over the values of all taken slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter(|slot| slot.generation & 1 == 1).map(|slot| &mut slot.value)
    }
}

impl<T> std::ops::Index<u32> for Pool<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.slots[index as usize].value
    }
}

impl<T> std::ops::IndexMut<u32> for Pool<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.slots[index as usize].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_a_removed_entry_is_invalid() {
        let mut pool = Pool::new();

        let first = pool.insert(7_u32).unwrap();

        assert_eq!(pool.remove(first.index), 7);
        assert_eq!(pool.find(first), None);

        let second = pool.insert(8).unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!((pool.find(first), pool.find(second)), (None, Some(second.index)));
        assert_eq!(pool.find(Handle::from_bits(second.to_bits())), Some(second.index));
        assert_eq!(pool.find(Handle::from_bits(0)), None);
        assert_eq!(pool.len(), 1);
    }
}
