//! A table whose entries are named by handles with a generation.

/// Names an entry of a pool. It finds nothing after the entry was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle {
    index: u32,
    /// It is odd, so that no handle is 0 as a number.
    generation: u32,
}

impl Handle {
    /// Returns the handle as a number of at least 2^32.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the handle for a number of [`Handle::to_bits`]. Any other number finds nothing.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A place for an entry.
#[derive(Debug)]
struct Slot<T> {
    /// Generation of the present entry, or of the last one.
    generation: u32,
    value: Option<T>,
}

/// A table that never shrinks: it allocates only when it reaches a new maximum.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    slots: Vec<Slot<T>>,
    /// Indices of the slots without an entry.
    free: Vec<u32>,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Pool<T> {
    /// Adds an entry, and returns its handle.
    pub(crate) fn insert(&mut self, value: T) -> Handle {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.generation = slot.generation.wrapping_add(2);
            slot.value = Some(value);
            return Handle { index, generation: slot.generation };
        }

        let index = self.slots.len() as u32;
        self.slots.push(Slot { generation: 1, value: Some(value) });
        Handle { index, generation: 1 }
    }

    /// Returns an entry, unless it was removed.
    pub(crate) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        slot.value.as_mut().filter(|_| slot.generation == handle.generation)
    }

    /// Returns an entry, unless it was removed.
    pub(crate) fn get(&self, handle: Handle) -> Option<&T> {
        let slot = self.slots.get(handle.index as usize)?;
        slot.value.as_ref().filter(|_| slot.generation == handle.generation)
    }

    /// Removes an entry and returns it, or `None` if it was removed before.
    pub(crate) fn remove(&mut self, handle: Handle) -> Option<T> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation != handle.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(handle.index);
        Some(value)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the handles of all entries.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Handle> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.value.is_some());
        used.map(|(index, slot)| Handle { index: index as u32, generation: slot.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_a_removed_entry_is_invalid() {
        let mut pool = Pool::default();
        let first = pool.insert('a');
        assert_eq!((pool.get(first), pool.len()), (Some(&'a'), 1));

        assert_eq!(pool.remove(first), Some('a'));
        let second = pool.insert('b');

        assert_ne!(first, second);
        assert_eq!((pool.get(first), pool.get(second)), (None, Some(&'b')));
        assert_eq!(pool.remove(first), None);
        assert_eq!(Handle::from_bits(second.to_bits()), second);
        assert_eq!(pool.handles().collect::<Vec<_>>(), [second]);
    }
}
