//! Sets of attachments.

/// Number of words of 64 attachments each: 256 VPIDs and the admin.
const WORDS: usize = 5;

/// A set of attachments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Set {
    words: [u64; WORDS],
    /// Words that are not 0, one bit for each word.
    filled: u32,
}

impl Set {
    #[inline]
    pub(crate) fn add(&mut self, who: u16) {
        if let Some(word) = self.words.get_mut(usize::from(who / 64)) {
            *word |= 1 << (who % 64);
            self.filled |= 1 << (who / 64);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, who: u16) {
        if let Some(word) = self.words.get_mut(usize::from(who / 64)) {
            *word &= !(1 << (who % 64));
            if *word == 0 {
                self.filled &= !(1 << (who / 64));
            }
        }
    }

    /// Returns the first member from `from` on, or the first member of all if there is none.
    #[inline]
    pub(crate) fn next(&self, from: u16) -> Option<u16> {
        let ahead = |word: usize| match (usize::from(from) / 64).cmp(&word) {
            std::cmp::Ordering::Less => self.words[word],
            std::cmp::Ordering::Equal => self.words[word] & (u64::MAX << (from % 64)),
            std::cmp::Ordering::Greater => 0,
        };

        let first = |bits: &dyn Fn(usize) -> u64| {
            let word = (0..self.words.len()).find(|&word| bits(word) != 0)?;
            Some((word * 64) as u16 + bits(word).trailing_zeros() as u16)
        };

        first(&ahead).or_else(|| first(&|word| self.words[word]))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the first member from `from` on. A loop can go through a set with it while the set
    /// changes.
    #[inline]
    pub(crate) fn from(&self, from: u16) -> Option<u16> {
        let mut filled = self.filled & (u32::MAX << (from / 64).min(31));

        while filled != 0 {
            let index = filled.trailing_zeros() as u16;
            let mut bits = self.words.get(usize::from(index)).copied().unwrap_or(0);
            if index == from / 64 {
                bits &= u64::MAX << (from % 64);
            }

            if bits != 0 {
                return Some(index * 64 + bits.trailing_zeros() as u16);
            }
            filled &= filled - 1;
        }
        None
    }

    /// Returns an iterator over the present members, in order.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        std::iter::successors(self.from(0), move |last| self.from(last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_in_order_and_are_found_from_any_place() {
        let mut set = Set::default();
        assert!(set.is_empty() && set.next(3).is_none());

        for who in [256, 0, 63, 64, 200, 9999] {
            set.add(who);
        }

        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 200, 256]);
        assert_eq!([set.next(0), set.next(1), set.next(201)], [Some(0), Some(63), Some(256)]);

        set.remove(256);
        assert_eq!((set.next(201), set.from(201)), (Some(0), None));

        for who in [0, 63, 64, 200] {
            set.remove(who);
        }
        assert!(set.is_empty());
    }
}
