//! The subgroups that wait for barriers.
//!
//! In: subgroups that enter, and the network's counts of completed barriers. Out: changed counts,
//! and the subgroups that have waited for them. May touch: its own state.

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::{mu::SUBGROUPS, mu_packet::CLASSES};
use nicforge_kit::AttachmentSet;

/// A set of subgroups, by number.
pub(crate) type Waiting = AttachmentSet<{ (SUBGROUPS as usize).div_ceil(64) }>;

/// The barriers of a node.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    /// Completed barriers of each class, as the mirrors show them.
    shown: [u64; CLASSES],
    /// Sum of the network's counts at the last call of [`Barriers::update_sum`].
    last_sum: u64,
    /// Subgroups that have entered the next barrier of each class.
    waiting: [Waiting; CLASSES],
}

/// A class of which a barrier has completed.
pub(crate) struct Completed {
    pub(crate) class: u8,
    /// Number of barriers of the class that have completed.
    pub(crate) count: u64,
    /// Subgroups that have entered it.
    pub(crate) waiting: Waiting,
}

impl Barriers {
    /// Records that a subgroup has entered a barrier for the node.
    pub(crate) fn enter(&mut self, class: u8, subgroup_id: u16) {
        if let Some(waiting) = self.waiting.get_mut(usize::from(class)) {
            waiting.add(AttachmentId(subgroup_id));
        }
    }

    /// Forgets a subgroup whose client has left. The node has still entered.
    pub(crate) fn forget(&mut self, subgroup_id: u16) {
        for waiting in &mut self.waiting {
            waiting.remove(AttachmentId(subgroup_id));
        }
    }

    /// Returns the count that the mirrors show.
    pub(crate) fn shown(&self, class: u8) -> u64 {
        self.shown.get(usize::from(class)).copied().unwrap_or(0)
    }

    /// Returns the state after a reset: no subgroup waits. The network's counts go on.
    pub(crate) fn after_reset(&self) -> Self {
        Self { shown: self.shown, last_sum: self.last_sum, ..Self::default() }
    }

    /// Records the sum of the network's counts. Returns whether a barrier has completed since the
    /// last call, with or without this node.
    #[inline]
    pub(crate) fn update_sum(&mut self, sum: u64) -> bool {
        std::mem::replace(&mut self.last_sum, sum) != sum
    }

    /// Returns a class whose new count the mirrors do not show yet, and takes it as shown. `counts`
    /// returns the network's count of a class.
    pub(crate) fn next_completed(&mut self, counts: impl Fn(u8) -> u64) -> Option<Completed> {
        let class = (0..CLASSES as u8).find(|&class| counts(class) != self.shown(class))?;

        let (index, count) = (usize::from(class), counts(class));
        self.shown[index] = count;
        Some(Completed { class, count, waiting: std::mem::take(&mut self.waiting[index]) })
    }
}
