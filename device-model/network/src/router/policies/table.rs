//! Routes by a table for each node.

use crate::router::{Decision, Exit, Policy, Room, Source};

/// A route word for [`TablePolicy`]: the target's number.
///
/// | bits | contents |
/// | --- | --- |
/// | 0 to 23 | number of the target |
/// | 24, 25 | class of the packet, 0 to 3 |
/// | 26 to 63 | free for the NIC |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TableWord(pub u64);

impl TableWord {
    /// Returns the word of a packet of a class to a target. Only the lowest 24 bits of the target
    /// and the lowest two of the class count.
    #[inline]
    pub fn new(target: u32, class: u8) -> Self {
        Self(u64::from(target & 0xff_ffff) | u64::from(class & 0b11) << 24)
    }

    /// Returns the number of the target.
    #[inline]
    pub fn target(self) -> u32 {
        self.0 as u32 & 0xff_ffff
    }

    /// Returns the class of the packet.
    #[inline]
    pub fn class(self) -> u8 {
        (self.0 >> 24) as u8 & 0b11
    }
}

/// Virtual channels of the packets of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableRules {
    /// First virtual channel of each class. An entry of the table adds its own number to it.
    pub first_vcs: [u8; 4],
}

/// An entry of a table, in a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u8);

impl Entry {
    const NONE: Self = Self(0xff);
    const LOCAL: Self = Self(0xfe);

    /// Returns the entry of a port, 0 to 61, and of a virtual channel of the class, 0 to 3.
    fn exit(port: u8, vc: u8) -> Option<Self> {
        (port < 62 && vc < 4).then_some(Self(port | vc << 6))
    }
}

/// The policy of a node that has a table with an exit for each target.
///
/// There is one path between two nodes, so packets of one class stay in order. The table takes a
/// byte for each target.
#[derive(Clone, Debug)]
pub struct TablePolicy {
    rules: TableRules,
    entries: Box<[Entry]>,
}

impl TablePolicy {
    /// Returns a table for `targets` targets without entries. Packets to a target without an entry
    /// are dropped.
    pub fn new(targets: u32, rules: TableRules) -> Self {
        Self { rules, entries: vec![Entry::NONE; targets as usize].into_boxed_slice() }
    }

    /// Sets the exit for a target: a port, 0 to 61, and a virtual channel of the packet's class, 0
    /// to 3. Returns false, and changes nothing, if the target or the exit does not exist.
    pub fn set_exit(&mut self, target: u32, port: u8, vc: u8) -> bool {
        match (self.entries.get_mut(target as usize), Entry::exit(port, vc)) {
            (Some(entry), Some(exit)) => {
                *entry = exit;
                true
            }
            _ => false,
        }
    }

    /// Delivers packets for a target here. Returns false if the target does not exist.
    pub fn set_local(&mut self, target: u32) -> bool {
        let entry = self.entries.get_mut(target as usize);
        entry.map(|entry| *entry = Entry::LOCAL).is_some()
    }

    /// Returns the number of targets.
    pub fn targets(&self) -> u32 {
        self.entries.len() as u32
    }
}

impl Policy for TablePolicy {
    #[inline]
    fn decide(&self, word: u64, _: Source) -> Decision {
        let word = TableWord(word);
        match self.entries.get(word.target() as usize).copied().unwrap_or(Entry::NONE) {
            Entry::NONE => Decision::Drop,
            Entry::LOCAL => Decision::Local,
            Entry(exit) => {
                let first = self.rules.first_vcs[usize::from(word.class())];
                Decision::One(Exit { port: exit & 0x3f, vc: first + (exit >> 6), room: Room::One })
            }
        }
    }

    #[inline]
    fn has_candidates(&self) -> bool {
        false
    }
}
