//! The members of a mask, beginning with another one each time: a round-robin over few sources.
//!
//! The caller keeps the member that comes first, and advances it by its own rule: after each round,
//! or behind the member that was served.

/// The members of a mask in a circle: each bit that is set, once.
#[derive(Clone, Copy, Debug)]
pub struct InTurn {
    /// The members that have not come yet.
    left: u64,
    /// The bits from the first member on, which come before the others.
    ahead: u64,
}

impl InTurn {
    /// Returns the members of `mask`, from number `first` on. `first` is at most 63, and need not
    /// be a member.
    #[inline]
    pub fn new(mask: u64, first: u8) -> Self {
        Self { left: mask, ahead: u64::MAX << (first & 63) }
    }
}

impl Iterator for InTurn {
    type Item = u8;

    #[inline]
    fn next(&mut self) -> Option<u8> {
        if self.left == 0 {
            return None;
        }

        let ahead = self.left & self.ahead;
        let next = if ahead != 0 { ahead } else { self.left }.trailing_zeros() as u8;
        self.left &= !(1 << next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn members_behind_the_first_come_before_the_others() {
        assert_eq!(InTurn::new(0b1101_0010, 4).collect::<Vec<_>>(), [4, 6, 7, 1]);
        assert_eq!(InTurn::new(0b1101_0010, 5).collect::<Vec<_>>(), [6, 7, 1, 4]);
        assert_eq!(InTurn::new(0, 5).next(), None);
    }

    proptest! {
        #[test]
        fn every_member_comes_once_in_the_order_of_the_circle(mask: u64, first in 0..64u8) {
            let circle = (first..64).chain(0..first).filter(|member| mask & (1 << member) != 0);
            prop_assert!(InTurn::new(mask, first).eq(circle));
        }
    }
}
