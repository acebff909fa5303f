//! The addresses that a switch knows.
//!
//! The table has sets of [`WAYS`] entries, and an address belongs to one set. An operation looks at
//! one set only. A new address replaces a forgotten one. If its set has none, it replaces the one
//! of its own port that was heard of longest ago, and else that of another port. The table thus
//! never grows, and a station with many addresses displaces its own first.

use nicforge_core::time::Nanos;

use crate::MacAddress;

/// Entries of a set.
const WAYS: usize = 8;

/// An address, and the port behind which it is.
#[derive(Clone, Copy)]
struct Entry {
    address: MacAddress,
    port: u8,
    /// Time of the last frame from the address, or `None` if the entry is free.
    last_heard: Option<Nanos>,
}

/// An entry without an address.
const FREE: Entry = Entry { address: MacAddress([0; 6]), port: 0, last_heard: None };

/// The table; the module's documentation describes it.
pub(super) struct AddressTable {
    sets: Vec<[Entry; WAYS]>,
    /// Time without a frame after which an address is forgotten, in nanoseconds.
    age: u64,
    /// Number of times that an address came by another port than before.
    moved: u64,
    /// Number of known addresses that gave way to others.
    evicted: u64,
}

impl AddressTable {
    /// Returns an empty table with room for `addresses`, rounded up to whole sets.
    pub(super) fn new(addresses: usize, age: u64) -> Self {
        let sets = addresses.div_ceil(WAYS).next_power_of_two();
        Self { sets: vec![[FREE; WAYS]; sets], age, moved: 0, evicted: 0 }
    }

    /// Records that a frame of `address` came by `port`.
    pub(super) fn learn(&mut self, address: MacAddress, port: u8, now: Nanos) {
        let age = self.age;
        let index = self.set_of(address);
        let set = &mut self.sets[index];

        if let Some(entry) = set.iter_mut().find(|entry| entry.is_known(age, now) && entry.address == address)
        {
            self.moved += u64::from(entry.port != port);
            *entry = Entry { address, port, last_heard: Some(now) };
            return;
        }

        // The entry with the lowest rank is replaced: known ones of other ports rank above the
        // rest, and of each the oldest ranks lowest. A free one ranks below all, as `None` is less
        // than any time.
        let rank = |entry: &&mut Entry| (entry.is_known(age, now) && entry.port != port, entry.last_heard);
        let Some(oldest) = set.iter_mut().min_by_key(rank) else { return };
        self.evicted += u64::from(oldest.is_known(age, now));
        *oldest = Entry { address, port, last_heard: Some(now) };
    }

    /// Returns the port behind which `address` is.
    pub(super) fn find(&self, address: MacAddress, now: Nanos) -> Option<u8> {
        let set = &self.sets[self.set_of(address)];
        let entry = set.iter().find(|entry| entry.address == address && entry.is_known(self.age, now));
        entry.map(|entry| entry.port)
    }

    /// Forgets all addresses.
    pub(super) fn clear(&mut self) {
        self.sets.fill([FREE; WAYS]);
    }

    /// Returns the number of entries in use, including those that are too old.
    pub(super) fn len(&self) -> usize {
        self.sets.iter().flatten().filter(|entry| entry.last_heard.is_some()).count()
    }

    /// Returns how often an address came by another port than before.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns how often a known address gave way to another.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the number of an address's set, by a multiplicative hash.
    fn set_of(&self, MacAddress([a, b, c, d, e, f]): MacAddress) -> usize {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = u64::from_be_bytes([0, 0, a, b, c, d, e, f]).wrapping_mul(MULTIPLIER);
        // The number of sets is a power of two, at most 2^13.
        (hash >> 40) as usize & (self.sets.len() - 1)
    }
}

impl Entry {
    /// Returns whether the entry is in use and young enough.
    fn is_known(&self, age: u64, now: Nanos) -> bool {
        self.last_heard.is_some_and(|heard| now < heard.after(age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: u64 = 1_000;

    /// Returns a table of one set.
    fn table() -> AddressTable {
        AddressTable::new(1, AGE)
    }

    #[test]
    fn an_address_is_found_at_the_port_of_its_last_frame() {
        let mut table = table();
        let address = MacAddress::derived(1);

        table.learn(address, 3, Nanos(0));
        table.learn(address, 4, Nanos(10));

        assert_eq!(table.find(address, Nanos(20)), Some(4));
        assert_eq!(table.find(MacAddress::derived(2), Nanos(20)), None);
        assert_eq!((table.len(), table.moved(), table.evicted()), (1, 1, 0));
    }

    #[test]
    fn an_address_is_forgotten_after_its_age() {
        let mut table = table();
        let address = MacAddress::derived(1);
        table.learn(address, 3, Nanos(500));

        assert_eq!(table.find(address, Nanos(1_499)), Some(3));
        assert_eq!(table.find(address, Nanos(1_500)), None);
    }

    #[test]
    fn a_full_set_forgets_what_it_heard_of_longest_ago() {
        let mut table = table();
        for number in 0..=WAYS as u32 {
            table.learn(MacAddress::derived(number), number as u8, Nanos(number.into()));
        }

        assert_eq!(table.len(), WAYS);
        assert_eq!(table.evicted(), 1);
        assert_eq!(table.find(MacAddress::derived(0), Nanos(20)), None);
        for number in 1..=WAYS as u32 {
            assert_eq!(table.find(MacAddress::derived(number), Nanos(20)), Some(number as u8));
        }
    }

    #[test]
    fn a_station_with_many_addresses_displaces_its_own_first() {
        let mut table = table();
        let victim = MacAddress::derived(0);
        table.learn(victim, 0, Nanos(0));

        for number in 1..100 {
            table.learn(MacAddress::derived(number), 1, Nanos(number.into()));
        }

        assert_eq!(table.find(victim, Nanos(100)), Some(0));
        assert_eq!(table.len(), WAYS);
    }

    #[test]
    fn a_flood_of_addresses_leaves_the_table_at_its_size() {
        let mut table = AddressTable::new(64, AGE);
        for number in 0..100_000 {
            table.learn(MacAddress::derived(number), 1, Nanos(number.into()));
        }

        assert_eq!(table.len(), 64);
    }
}
