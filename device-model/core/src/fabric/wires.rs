//! The global interrupt and barrier network: a few wires that run through all nodes beside the
//! links.
//!
//! Each member of a wire drives a level. The network forms the AND of all levels, which makes a
//! barrier (all members have arrived). It also forms their OR, which makes a notification (at least
//! one member has called). Members see a change after the network's delay.
//!
//! A member can also *fire*. Its level is high until the AND, or the OR, has been seen high. Then
//! the levels of all members that fired fall at the same time. One barrier can thus follow another
//! without a race: a member that fires again belongs to the next one.

use crate::time::Nanos;

/// Number of wires. Blue Gene/L has four.
pub const GI_WIRES: u8 = 4;

/// The result that ends a firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// The AND: a barrier of all members.
    And,
    /// The OR: a notification by any member.
    Or,
}

/// State of a wire that its members see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireState {
    /// There are members, and all of them drive the wire high.
    pub and: bool,
    /// At least one member drives the wire high.
    pub or: bool,
    /// Times that `and` became true. If all members fire, these are completed barriers.
    pub and_rises: u64,
    /// Times that `or` became true.
    pub or_rises: u64,
}

/// One wire.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Members, as indices into the fabric's table.
    pub(super) members: Vec<u32>,
    /// Number of members that drive the wire high.
    pub(super) high: u32,
    /// State that the members see.
    pub(super) shown: WireState,
    /// Levels that the members see next. An event for them is scheduled.
    pub(super) coming: Option<(bool, bool)>,
    /// Levels after `coming`, and the time at which the members see them. Changes that follow each
    /// other faster than the network's delay merge.
    pub(super) later: Option<(Nanos, (bool, bool))>,
}

impl Wire {
    /// Returns the AND and the OR of the levels driven now.
    pub(super) fn driven(&self) -> (bool, bool) {
        (!self.members.is_empty() && self.high as usize == self.members.len(), self.high > 0)
    }
}
