//! The subgroups that wait for barriers.
//!
//! In: subgroups that enter, and the network's counts of completed barriers. Out: changed counts
//! and those that have waited for them. May touch: its own state.

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::{mu::SUBGROUPS, mu_packet::CLASSES};
use nicforge_kit::AttachmentSet;

/// A set of subgroups, by number.
pub(crate) type Waiting = AttachmentSet<{ (SUBGROUPS as usize).div_ceil(64) }>;

/// The barriers of a node.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    /// Counts that the mirrors show.
    shown: [u64; CLASSES],
    /// Sum of the network's counts when they were looked at last.
    seen: u64,
    waiting: [Waiting; CLASSES],
}

/// A class of which a barrier has completed.
pub(crate) struct Completed {
    pub(crate) class: u8,
    pub(crate) count: u64,
    /// Subgroups that have entered it.
    pub(crate) waiting: Waiting,
}

impl Barriers {
    /// Records that a subgroup has entered a barrier for the node.
    pub(crate) fn enter(&mut self, class: u8, subgroup: u16) {
        if let Some(waiting) = self.waiting.get_mut(usize::from(class)) {
            waiting.add(AttachmentId(subgroup));
        }
    }

    /// Forgets a subgroup whose client has left. The node has still entered.
    pub(crate) fn forget(&mut self, subgroup: u16) {
        for waiting in &mut self.waiting {
            waiting.remove(AttachmentId(subgroup));
        }
    }

    /// Returns the count that the mirrors show.
    pub(crate) fn shown(&self, class: u8) -> u64 {
        self.shown.get(usize::from(class)).copied().unwrap_or(0)
    }

    /// Returns the state after a reset: none waits. The network's counts go on.
    pub(crate) fn restarted(&self) -> Self {
        Self { shown: self.shown, seen: self.seen, ..Self::default() }
    }

    /// Records the sum of the network's counts. Returns whether a barrier has completed since the
    /// last call, with or without this node.
    #[inline]
    pub(crate) fn note_sum(&mut self, sum: u64) -> bool {
        std::mem::replace(&mut self.seen, sum) != sum
    }

    /// Returns a class of which a barrier has completed. `counts` returns the network's counts.
    pub(crate) fn next_completed(&mut self, counts: impl Fn(u8) -> u64) -> Option<Completed> {
        let class = (0..CLASSES as u8).find(|&class| counts(class) != self.shown(class))?;

        let (index, count) = (usize::from(class), counts(class));
        self.shown[index] = count;
        Some(Completed { class, count, waiting: std::mem::take(&mut self.waiting[index]) })
    }
}
