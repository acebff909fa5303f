//! Flags of the companions for their machine: which of them have work, and which have an unreported
//! event for their device.
//!
//! A machine can have thousands of companions, few of which have anything in a step. Each has a bit
//! in a word that it shares with others, so that the machine looks at a word for 64 of them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::signal::{self, Signal, Word};

/// Number of companions that share a word of flags.
const GROUP: usize = u64::BITS as usize;

/// The flags of up to [`GROUP`] companions.
struct Group {
    /// One bit for each companion that the machine should poll, or end.
    work: AtomicU64,
    /// One [`Signal`] for each companion that has an unreported event for its device.
    signals: Word,
}

/// The flags of all companions of a machine.
#[derive(Default)]
pub(super) struct FlagGroups {
    groups: Vec<Arc<Group>>,
}

/// The flags of one companion, which all its incarnations share.
#[derive(Clone)]
pub(super) struct CompanionFlags {
    group: Arc<Group>,
    bit: u64,
}

impl CompanionFlags {
    /// Sets the companion's work flag: the machine polls the companion in its next step, or ends
    /// it.
    #[inline]
    pub(super) fn note_work(&self) {
        // Release: the machine's poll sees what was sent before.
        self.group.work.fetch_or(self.bit, Ordering::Release);
    }

    /// Returns the companion's signal.
    pub(super) fn signal(&self) -> Signal {
        Signal::new(&self.group.signals, self.bit)
    }
}

impl FlagGroups {
    /// Returns the flags of companion `index`, and allocates its group if necessary.
    pub(super) fn flags_of(&mut self, index: usize) -> CompanionFlags {
        let group = index / GROUP;
        if group >= self.groups.len() {
            let new = || Arc::new(Group { work: AtomicU64::new(0), signals: signal::new_word() });
            self.groups.resize_with(group + 1, new);
        }
        CompanionFlags { group: Arc::clone(&self.groups[group]), bit: 1 << (index % GROUP) }
    }

    /// Returns whether a companion has work, or an unreported event for its device.
    pub(super) fn has_any(&self) -> bool {
        self.groups.iter().any(|group| group.work.load(Ordering::Relaxed) != 0) || self.has_signal()
    }

    /// Returns whether a companion has an unreported event for its device.
    pub(super) fn has_signal(&self) -> bool {
        self.groups.iter().any(|group| signal::is_any_raised(&group.signals))
    }

    /// Calls `take` with each companion that has work, in ascending order, and clears the work
    /// flags.
    #[inline]
    pub(super) fn take_work(&self, take: impl FnMut(usize)) {
        // The load spares most groups the swap.
        let has_work = |group: &Group| group.work.load(Ordering::Relaxed) != 0;
        self.for_each_taken(
            |group| if has_work(group) { group.work.swap(0, Ordering::Acquire) } else { 0 },
            take,
        );
    }

    /// Calls `take` with each companion that has an unreported event for its device, in ascending
    /// order, and lowers the signals.
    #[inline]
    pub(super) fn take_signals(&self, take: impl FnMut(usize)) {
        self.for_each_taken(|group| signal::take_all(&group.signals), take);
    }

    /// Calls `take` with the index of each companion whose bit `take_bits` returns for its group.
    #[inline]
    fn for_each_taken(&self, take_bits: impl Fn(&Group) -> u64, mut take: impl FnMut(usize)) {
        for (number, group) in self.groups.iter().enumerate() {
            let mut bits = take_bits(group);
            while bits != 0 {
                take(number * GROUP + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the indices with which `take` calls the function that it is passed.
    fn taken(take: impl FnOnce(&mut dyn FnMut(usize))) -> Vec<usize> {
        let mut taken = Vec::new();
        take(&mut |index| taken.push(index));
        taken
    }

    #[test]
    fn work_flags_of_several_groups_are_taken_once_in_ascending_order() {
        let mut signals = FlagGroups::default();
        let flags = [200, 64, 63, 0].map(|index| signals.flags_of(index));
        assert!(!signals.has_any());

        flags.iter().for_each(CompanionFlags::note_work);
        flags[1].note_work();
        assert!(signals.has_any() && !signals.has_signal());
        assert_eq!(taken(|take| signals.take_work(take)), [0, 63, 64, 200]);
        assert!(taken(|take| signals.take_work(take)).is_empty());
    }

    #[test]
    fn raised_signals_are_taken_once() {
        let mut signals = FlagGroups::default();
        let (first, other) = (signals.flags_of(3).signal(), signals.flags_of(70).signal());
        let awake = signal::Awake::new();
        assert!(!first.raise(&awake) && !other.raise(&awake));

        assert!(signals.has_signal());
        assert_eq!(taken(|take| signals.take_signals(take)), [3, 70]);
        assert!(!signals.has_any());
    }
}
