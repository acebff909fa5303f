//! Round-robin over the members of a mask.
//!
//! A loop serves the members of a mask in a circle: those from a first one on, and then the others.
//! The caller removes each member that it has served from the mask. It keeps the first one, and
//! advances it by its own rule: after each round, or after the member that was served.

/// Returns the next member of `mask` in round-robin order: the lowest from `first` on, or else the
/// lowest of all. Returns `None` if the mask is empty. `first` is at most 63, and need not be a
/// member.
#[inline(always)]
pub fn in_turn(mask: u64, first: u8) -> Option<u8> {
    if mask == 0 {
        return None;
    }

    let from_first = mask & (u64::MAX << (first & 63));
    let candidates = if from_first != 0 { from_first } else { mask };
    Some(candidates.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Serves all members of a mask.
    fn serve(mut mask: u64, first: u8) -> Vec<u8> {
        let mut served = Vec::new();
        while let Some(member) = in_turn(mask, first) {
            mask &= !(1 << member);
            served.push(member);
        }
        served
    }

    #[test]
    fn members_from_the_first_on_precede_the_others() {
        assert_eq!(serve(0b1101_0010, 4), [4, 6, 7, 1]);
        assert_eq!(serve(0b1101_0010, 5), [6, 7, 1, 4]);
        assert_eq!(in_turn(0, 5), None);
    }

    proptest! {
        #[test]
        fn every_member_is_served_once_in_round_robin_order(mask: u64, first in 0..64u8) {
            let circle = (first..64).chain(0..first).filter(|member| mask & (1 << member) != 0);
            prop_assert_eq!(serve(mask, first), circle.collect::<Vec<_>>());
        }
    }
}
