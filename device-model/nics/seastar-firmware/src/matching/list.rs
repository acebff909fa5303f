//! The match list of each portal.

use nicforge_hwi::seastar::code;

use super::objects::{Criteria, Entry, EntryHandle, Position};
use super::process::{Process, Refusal};
use super::table::NONE;

/// First and last entry of a portal's list, or [`NONE`] if it is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchList {
    pub(super) head: u16,
    pub(super) tail: u16,
}

/// A place in a portal's list: between two entries, either of which may be missing.
#[derive(Clone, Copy)]
pub(super) struct Neighbours {
    portal: u8,
    previous: u16,
    next: u16,
}

impl Process {
    /// Returns the neighbours of a new entry at a position.
    pub(super) fn neighbours(&self, position: Position) -> Result<Neighbours, Refusal> {
        let base = |entry: EntryHandle| self.entries.find(entry.0).ok_or(Refusal(code::ENTRY_INVALID));
        let list = |portal: u8| self.portals.get(usize::from(portal)).ok_or(Refusal(code::PORTAL_INVALID));

        Ok(match position {
            Position::Head(portal) => Neighbours { portal, previous: NONE, next: list(portal)?.head },
            Position::Tail(portal) => Neighbours { portal, previous: list(portal)?.tail, next: NONE },
            Position::Before(entry) => {
                let next = base(entry)?;
                let Entry { portal, previous, .. } = self.entries[next];
                Neighbours { portal, previous, next }
            }
            Position::After(entry) => {
                let previous = base(entry)?;
                let Entry { portal, next, .. } = self.entries[previous];
                Neighbours { portal, previous, next }
            }
        })
    }

    /// Adds a match entry between its neighbours, and returns its index.
    pub(super) fn insert_at(
        &mut self,
        neighbours: Neighbours,
        criteria: Criteria,
        unlinks: bool,
    ) -> Result<u16, Refusal> {
        let Neighbours { portal, previous, next } = neighbours;
        let entry = Entry { criteria, descriptor: NONE, previous, next, portal, unlinks };
        let index = self.entries.insert(entry).ok_or(Refusal(code::NO_SPACE))?;

        self.join(portal, previous, index);
        self.join(portal, index, next);
        Ok(index)
    }

    /// Removes a match entry from its list. It has no descriptor any more.
    pub(super) fn remove_entry(&mut self, index: u16) {
        let Entry { portal, previous, next, .. } = self.entries[index];
        self.join(portal, previous, next);
        self.entries.remove(index);
    }

    /// Makes two entries neighbours in a list. With [`NONE`] as `previous`, `next` becomes the
    /// head; with [`NONE`] as `next`, `previous` becomes the tail.
    fn join(&mut self, portal: u8, previous: u16, next: u16) {
        let list = &mut self.portals[usize::from(portal)];
        match previous {
            NONE => list.head = next,
            _ => self.entries[previous].next = next,
        }
        match next {
            NONE => list.tail = previous,
            _ => self.entries[next].previous = previous,
        }
    }
}
