//! Sets of a function's attachments.

use nicforge_core::ids::AttachmentId;

/// A set of attachments with ids below `64 * WORDS`. Other ids are never members.
///
/// A search visits no empty word. `WORDS` is at most 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachmentSet<const WORDS: usize> {
    /// A bit for each attachment.
    words: [u64; WORDS],
    /// A bit for each of `words` that is not 0.
    filled: u32,
}

impl<const WORDS: usize> Default for AttachmentSet<WORDS> {
    /// Returns the empty set.
    fn default() -> Self {
        const { assert!(WORDS < 32, "`filled` has one bit for each word, and one more to shift") };
        Self { words: [0; WORDS], filled: 0 }
    }
}

impl<const WORDS: usize> AttachmentSet<WORDS> {
    /// Adds an attachment.
    #[inline]
    pub fn add(&mut self, id: AttachmentId) {
        if let Some(word) = self.words.get_mut(usize::from(id.0 / 64)) {
            *word |= 1 << (id.0 % 64);
            self.filled |= 1 << (id.0 / 64);
        }
    }

    /// Removes an attachment.
    #[inline]
    pub fn remove(&mut self, id: AttachmentId) {
        if let Some(word) = self.words.get_mut(usize::from(id.0 / 64)) {
            *word &= !(1 << (id.0 % 64));
            if *word == 0 {
                self.filled &= !(1 << (id.0 / 64));
            }
        }
    }

    /// Returns whether an attachment is a member.
    #[inline]
    pub fn contains(&self, id: AttachmentId) -> bool {
        self.words.get(usize::from(id.0 / 64)).is_some_and(|word| word & (1 << (id.0 % 64)) != 0)
    }

    /// Returns whether there is no member.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the member with the lowest id.
    #[inline]
    pub fn first(&self) -> Option<AttachmentId> {
        self.first_from(0)
    }

    /// Returns the first member after `id`, which itself need not be a member. A loop can go
    /// through a set with it while the set changes.
    #[inline]
    pub fn next_after(&self, id: AttachmentId) -> Option<AttachmentId> {
        self.first_from(u32::from(id.0) + 1)
    }

    /// Returns the next member in round-robin order: the first from `next` on, or else the first of
    /// all.
    #[inline]
    pub fn in_turn(&self, next: AttachmentId) -> Option<AttachmentId> {
        self.first_from(next.0.into()).or_else(|| self.first())
    }

    /// Returns the first member from the id `from` on.
    #[inline]
    fn first_from(&self, from: u32) -> Option<AttachmentId> {
        // Bit 31 is never set, so that an id beyond all words finds none.
        let mut filled = self.filled & (u32::MAX << (from / 64).min(31));

        while filled != 0 {
            let index = filled.trailing_zeros();
            let mut bits = self.words.get(index as usize).copied().unwrap_or(0);
            if index == from / 64 {
                bits &= u64::MAX << (from % 64);
            }

            if bits != 0 {
                // The id fits: it is below 64 times the number of words.
                return Some(AttachmentId((index * 64 + bits.trailing_zeros()) as u16));
            }
            filled &= filled - 1;
        }
        None
    }

    /// Returns an iterator over the present members, in order of their ids.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = AttachmentId> {
        std::iter::successors(self.first(), move |last| self.next_after(*last))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const WORDS: usize = 5;

    fn ids(set: AttachmentSet<WORDS>) -> Vec<u16> {
        set.iter().map(|id| id.0).collect()
    }

    #[test]
    fn members_are_iterated_in_order_and_round_robin_from_any_id() {
        let mut set = AttachmentSet::<WORDS>::default();
        assert!(set.is_empty() && set.in_turn(AttachmentId(3)).is_none());

        for id in [256, 0, 63, 64, 200, 9999] {
            set.add(AttachmentId(id));
        }

        assert_eq!(ids(set), [0, 63, 64, 200, 256]);
        let in_turn = [0, 1, 201, 257].map(|turn| set.in_turn(AttachmentId(turn)).map(|id| id.0));
        assert_eq!(in_turn, [Some(0), Some(63), Some(256), Some(0)]);
    }

    #[test]
    fn the_last_id_of_a_one_word_set_is_a_member_and_the_next_is_not() {
        let mut set = AttachmentSet::<1>::default();
        set.add(AttachmentId(63));
        set.add(AttachmentId(64));

        assert_eq!(set.iter().collect::<Vec<_>>(), [AttachmentId(63)]);
        assert_eq!(set.next_after(AttachmentId(63)), None);
        assert_eq!(set.next_after(AttachmentId(u16::MAX)), None);
    }

    proptest! {
        #[test]
        fn attachment_set_behaves_like_a_btree_set(
            changes in proptest::collection::vec((any::<bool>(), 0..400u16), 0..200),
            probe in 0..400u16,
        ) {
            let (mut set, mut model) = (AttachmentSet::<WORDS>::default(), BTreeSet::new());
            for (adds, id) in changes {
                if adds {
                    set.add(AttachmentId(id));
                } else {
                    set.remove(AttachmentId(id));
                }
                if adds && usize::from(id) < 64 * WORDS {
                    model.insert(id);
                } else {
                    model.remove(&id);
                }
            }

            prop_assert_eq!(set.is_empty(), model.is_empty());
            prop_assert_eq!(ids(set), model.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.contains(AttachmentId(probe)), model.contains(&probe));

            let following = model.range(probe + 1..).next().copied();
            prop_assert_eq!(set.next_after(AttachmentId(probe)).map(|id| id.0), following);
            let in_turn = model.range(probe..).next().or(model.first()).copied();
            prop_assert_eq!(set.in_turn(AttachmentId(probe)).map(|id| id.0), in_turn);
        }
    }
}
