//! Records with stable numbers.

/// The end of a list of records.
pub(super) const NONE: u32 = u32::MAX;

/// Identifies a record, also after its number was used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Number of the record.
    pub(super) index: u32,
    /// Number of records that had this number before.
    generation: u32,
}

impl Key {
    /// Returns the key as a number, which is not 0: no record has the number [`NONE`].
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index.wrapping_add(1))
    }

    /// Returns the key for a number. A number of no key gives a key that finds nothing.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self { index: (bits as u32).wrapping_sub(1), generation: (bits >> 32) as u32 }
    }
}

/// A number, with its record if it is in use.
#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// The next free number, if this one is free.
    next_free: u32,
    value: Option<T>,
}

/// A set of records. Its memory grows to the greatest number of records at a time.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    first_free: u32,
    len: usize,
}

impl<T> Slab<T> {
    /// Returns an empty set.
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), first_free: NONE, len: 0 }
    }

    /// Returns the number of records.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a record.
    pub(super) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        if let Some(entry) = self.entries.get_mut(self.first_free as usize) {
            let key = Key { index: self.first_free, generation: entry.generation };
            self.first_free = entry.next_free;
            entry.value = Some(value);
            return key;
        }

        let index = self.entries.len() as u32;
        self.entries.push(Entry { generation: 0, next_free: NONE, value: Some(value) });
        Key { index, generation: 0 }
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.first_free;
        self.first_free = index;
        self.len -= 1;
        Some(value)
    }

    /// Returns a record.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    /// Returns a record.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// Returns the key of a record.
    pub(super) fn key(&self, index: u32) -> Option<Key> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref().map(|_| Key { index, generation: entry.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_that_is_used_again_has_another_key() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!((slab.remove(first.index), slab.remove(first.index)), (Some('a'), None));

        let second = slab.insert('b');
        assert_eq!((second.index, slab.get(second.index), slab.len()), (first.index, Some(&'b'), 1));
        assert!(first != second && slab.key(second.index) == Some(second));
        assert_eq!([first, second].map(|key| Key::from_bits(key.to_bits())), [first, second]);
        assert_eq!((Key::from_bits(0).index, Key { index: 0, generation: 0 }.to_bits()), (NONE, 1));
    }
}
