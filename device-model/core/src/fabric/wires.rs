//! The global interrupt and barrier network: a few wires that run through all nodes beside the
//! links.
//!
//! Each member of a wire drives a level. The network forms the AND of all levels, which makes a
//! barrier (everybody has arrived), and their OR, which makes a notification (anybody has called).
//! Members see a change after the network's delay.
//!
//! A member can also *fire*: its level is high until the AND, or the OR, has been seen high, and
//! falls by itself for all who fired at that moment. So one barrier can follow the other without a
//! race: whoever fires again belongs to the next one.

use crate::time::Nanos;

/// Wires there are (Blue Gene/L has four).
pub const GI_WIRES: u8 = 4;

/// How a member that fires waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// For every member: a barrier.
    And,
    /// For any member: a notification.
    Or,
}

/// What a wire shows its members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireState {
    /// Every member drives it high, and there is one.
    pub and: bool,
    /// A member drives it high.
    pub or: bool,
    /// How often `and` has become true: barriers completed, if everybody fires.
    pub and_rises: u64,
    /// How often `or` has become true.
    pub or_rises: u64,
}

/// One wire.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Nodes that take part, as indices into the fabric's table.
    pub(super) members: Vec<u32>,
    pub(super) high: u32,
    /// What the members see.
    pub(super) shown: WireState,
    /// The levels that will be seen next: an event for them is scheduled.
    pub(super) coming: Option<(bool, bool)>,
    /// Levels that changed again meanwhile, and when they will be seen. Changes that follow each
    /// other faster than the network's delay run together.
    pub(super) later: Option<(Nanos, (bool, bool))>,
}

impl Wire {
    /// AND and OR of what is driven now.
    pub(super) fn driven(&self) -> (bool, bool) {
        (!self.members.is_empty() && self.high as usize == self.members.len(), self.high > 0)
    }
}
