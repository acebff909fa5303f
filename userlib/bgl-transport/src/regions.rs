//! Registered memory.

#![allow(unsafe_code, reason = "copies between buffers and memory that was registered by address")]

use nicforge_driver::runtime::random;
use nicforge_matching::{Access, Memory, Region, RemoteRegion};

/// Bits of a key that are the number of its entry.
const NUMBER_BITS: u32 = 20;
/// Greatest number of entries.
const MAX_ENTRIES: usize = 1 << NUMBER_BITS;

/// An entry of the table.
#[derive(Debug, Default)]
struct Entry {
    key: u64,
    memory: Option<(Memory, Access)>,
}

/// The table of registered memory.
///
/// A key is an entry's number in its lower bits, and 44 random bits above them, drawn at each
/// registration. So a rank reaches only memory whose key it was told.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

// SAFETY: the pointers in the table are addresses of memory that the contract of
// `Transport::register` makes valid in any thread; only the transport's owner uses them.
unsafe impl Send for Regions {}

impl Regions {
    /// Adds memory. Returns `None` if the table is full, or if a source would take its last entry,
    /// which is for a destination.
    pub(crate) fn add(&mut self, memory: Memory, access: Access) -> Option<Region> {
        let used = self.entries.len().saturating_sub(self.free.len());
        if access == Access::Source && used >= MAX_ENTRIES - 1 {
            return None;
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.entries.len() < MAX_ENTRIES => {
                self.entries.push(Entry::default());
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        let key = random() << NUMBER_BITS | u64::from(number);
        *self.entries.get_mut(number as usize)? = Entry { key, memory: Some((memory, access)) };
        Some(Region { handle: key, remote: RemoteRegion { key, offset: 0 } })
    }

    /// Removes memory.
    pub(crate) fn remove(&mut self, handle: u64) {
        let number = number_of(handle);
        if self.find(handle).is_some()
            && let Some(entry) = self.entries.get_mut(number as usize)
        {
            entry.memory = None;
            self.free.push(number);
        }
    }

    /// Returns the memory with a key.
    fn find(&self, key: u64) -> Option<(Memory, Access)> {
        let entry = self.entries.get(number_of(key) as usize)?;
        if entry.key == key { entry.memory } else { None }
    }

    /// Returns the memory with a key, if it is for `access` and has `length` bytes from `offset`
    /// on.
    fn check(&self, key: u64, access: Access, offset: u64, length: usize) -> Option<Memory> {
        let (memory, registered_for) = self.find(key)?;
        let end = usize::try_from(offset).ok()?.checked_add(length)?;
        (registered_for == access && end <= memory.length).then_some(memory)
    }

    /// Returns whether a range is in registered memory for `access`.
    pub(crate) fn contains(&self, key: u64, access: Access, offset: u64, length: usize) -> bool {
        self.check(key, access, offset, length).is_some()
    }

    /// Copies a range of a source into `target`, which it replaces. Returns whether the source has
    /// the range.
    pub(crate) fn read(&self, key: u64, offset: u64, length: usize, target: &mut Vec<u8>) -> bool {
        let Some(memory) = self.check(key, Access::Source, offset, length) else { return false };
        target.clear();
        target.reserve(length);
        let start = memory.start.as_ptr().wrapping_add(offset as usize);
        // SAFETY: the range lies in a source, which by the contract of `Transport::register` is
        // valid for reads and not written. The target has room for it, and is memory of its own.
        unsafe { start.copy_to_nonoverlapping(target.as_mut_ptr(), length) };
        // SAFETY: the target has room for `length` bytes, which were just written.
        unsafe { target.set_len(length) };
        true
    }

    /// Copies bytes into a destination. Returns whether the destination has the range.
    pub(crate) fn write(&self, key: u64, offset: u64, bytes: &[u8]) -> bool {
        let Some(memory) = self.check(key, Access::Destination, offset, bytes.len()) else { return false };
        let start = memory.start.as_ptr().wrapping_add(offset as usize);
        // SAFETY: the range lies in a destination, which by the contract of `Transport::register`
        // is valid for writes and not accessed otherwise while a get is in flight.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(start, bytes.len()) };
        true
    }
}

/// Returns the number of the entry of a key.
fn number_of(key: u64) -> u32 {
    key as u32 & (MAX_ENTRIES as u32 - 1)
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    fn memory(bytes: &mut [u8]) -> Memory {
        Memory { start: NonNull::from(&mut *bytes).cast(), length: bytes.len() }
    }

    #[test]
    fn only_registered_ranges_are_reached() {
        let (mut source, mut destination) = ([1, 2, 3, 4], [0; 4]);
        let mut regions = Regions::default();
        let from = regions.add(memory(&mut source), Access::Source).unwrap().handle;
        let to = regions.add(memory(&mut destination), Access::Destination).unwrap().handle;

        let mut read = Vec::new();
        assert!(regions.read(from, 1, 3, &mut read) && read == [2, 3, 4]);
        assert!(regions.write(to, 2, &[7, 8]));
        assert!(!regions.read(from, 2, 3, &mut read) && !regions.read(from, u64::MAX, 1, &mut read));
        assert!(!regions.read(to, 0, 1, &mut read) && !regions.write(from, 0, &[1]));
        assert!(!regions.write(to, 3, &[7, 8]) && !regions.read(99, 0, 1, &mut read));

        regions.remove(from);
        regions.remove(from);
        assert!(!regions.read(from, 0, 1, &mut read));
        let again = regions.add(memory(&mut source), Access::Source).unwrap().handle;
        assert!(again != from && regions.contains(again, Access::Source, 0, 4));
        assert_eq!(destination, [0, 0, 7, 8]);
    }

    #[test]
    fn keys_have_nothing_in_common_but_the_entry() {
        let (mut bytes, mut regions) = ([0], Regions::default());
        let keys: Vec<_> = (0..64)
            .map(|_| {
                let region = regions.add(memory(&mut bytes), Access::Source).unwrap();
                regions.remove(region.handle);
                region.remote.key
            })
            .collect();

        for (index, key) in keys.iter().enumerate() {
            assert_eq!(number_of(*key), 0);
            assert!(!keys[..index].contains(key));
        }
        // Each random bit takes both values; one that does not has a chance of 2^-63.
        let (ones, zeros) = keys.iter().fold((0, 0), |(ones, zeros), key| (ones | key, zeros | !key));
        assert_eq!((ones & zeros) >> NUMBER_BITS, u64::MAX >> NUMBER_BITS);
    }

    #[test]
    fn sources_leave_an_entry_for_a_destination() {
        let mut bytes = [0];
        let mut regions = Regions::default();
        let sources: Vec<_> = std::iter::repeat_with(|| regions.add(memory(&mut bytes), Access::Source))
            .map_while(|a| a)
            .collect();
        assert_eq!(sources.len(), MAX_ENTRIES - 1);

        let destination = regions.add(memory(&mut bytes), Access::Destination).unwrap();
        assert!(regions.add(memory(&mut bytes), Access::Destination).is_none());
        regions.remove(destination.handle);
        assert!(regions.add(memory(&mut bytes), Access::Source).is_none());
        regions.remove(sources[7].handle);
        assert!(regions.add(memory(&mut bytes), Access::Source).is_some());
        assert!(regions.add(memory(&mut bytes), Access::Destination).is_some());
    }
}
