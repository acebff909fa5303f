//! Tables of a fixed capacity, whose entries are named by handles with a generation.

use alloc::vec::Vec;

/// An index that names no entry.
pub(super) const NONE: u16 = u16::MAX;

/// Bytes that a table keeps for each entry, besides the entry.
const BYTES_OF_SLOT: usize = size_of::<u16>() * 2;

/// A table. A handle of an entry has its index in the lower half and its generation in the upper
/// half. The generation at an index counts up at each insertion and removal, and is odd while the
/// entry exists.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// The entry that is or was last at each index.
    items: Vec<T>,
    /// The generation at each index.
    generations: Vec<u16>,
    /// Indices below the length of `items` without an entry.
    free: Vec<u16>,
    capacity: u16,
    /// Generation of the first entry at each index.
    first: u16,
}

impl<T> Table<T> {
    /// Makes a table and allocates its memory. The capacity is at most 65,535. Generations begin at
    /// `first`, an odd number.
    pub(super) fn new(capacity: u16, first: u16) -> Self {
        let entries = usize::from(capacity);
        Self {
            items: Vec::with_capacity(entries),
            generations: Vec::with_capacity(entries),
            free: Vec::with_capacity(entries),
            capacity,
            first,
        }
    }

    /// Returns the bytes of a table for `capacity` entries.
    pub(super) const fn bytes(capacity: u16) -> usize {
        capacity as usize * (size_of::<T>() + BYTES_OF_SLOT)
    }

    /// Returns the number of entries that fit in beside those that exist.
    pub(super) fn room(&self) -> usize {
        self.free.len() + usize::from(self.capacity) - self.items.len()
    }

    /// Adds an entry and returns its index, or `None` if the table is full.
    pub(super) fn insert(&mut self, item: T) -> Option<u16> {
        if let Some(index) = self.free.pop() {
            let slot = usize::from(index);
            self.items[slot] = item;
            self.generations[slot] = self.generations[slot].wrapping_add(1);
            return Some(index);
        }

        if self.items.len() == usize::from(self.capacity) {
            return None;
        }
        let index = self.items.len() as u16;
        self.items.push(item);
        self.generations.push(self.first);
        Some(index)
    }

    /// Removes an entry that exists.
    pub(super) fn remove(&mut self, index: u16) {
        let slot = usize::from(index);
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push(index);
    }

    /// Returns the handle of an entry that exists.
    #[inline]
    pub(super) fn handle(&self, index: u16) -> u32 {
        u32::from(self.generations[usize::from(index)]) << 16 | u32::from(index)
    }

    /// Returns the index of the entry that a handle names, or `None` if the entry was removed.
    #[inline]
    pub(super) fn find(&self, handle: u32) -> Option<u16> {
        let index = handle as u16;
        let generation = (handle >> 16) as u16;
        let current = *self.generations.get(usize::from(index))?;
        (current == generation && current & 1 == 1).then_some(index)
    }

    /// Returns the number of generations that the table has used up: from the first one to the next
    /// odd one that no index has had.
    pub(super) fn used_generations(&self) -> u16 {
        let used = |generation: &u16| (generation.wrapping_add(1) | 1).wrapping_sub(self.first);
        self.generations.iter().map(used).max().unwrap_or(0)
    }

    /// Returns whether an index names an entry.
    pub(super) fn is_used(&self, index: u16) -> bool {
        self.generations.get(usize::from(index)).is_some_and(|generation| generation & 1 == 1)
    }

    /// Returns the number of indices that have ever been used. All entries lie below it.
    pub(super) fn end(&self) -> u16 {
        self.items.len() as u16
    }
}

impl<T> core::ops::Index<u16> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u16) -> &T {
        &self.items[usize::from(index)]
    }
}

impl<T> core::ops::IndexMut<u16> for Table<T> {
    #[inline]
    fn index_mut(&mut self, index: u16) -> &mut T {
        &mut self.items[usize::from(index)]
    }
}
