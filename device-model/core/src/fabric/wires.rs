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

use super::{Traffic, schedule::Event};
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

/// The combined levels of a wire's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Levels {
    /// There are members, and all of them drive the wire high.
    and: bool,
    /// At least one member drives the wire high.
    or: bool,
}

impl WireState {
    /// Returns the levels that the members see.
    fn levels(&self) -> Levels {
        Levels { and: self.and, or: self.or }
    }

    /// Sets the levels that the members see.
    fn set_levels(&mut self, Levels { and, or }: Levels) {
        (self.and, self.or) = (and, or);
    }
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
    pub(super) coming: Option<Levels>,
    /// Levels after `coming`, and the time at which the members see them. Changes that follow each
    /// other faster than the network's delay merge.
    pub(super) later: Option<(Nanos, Levels)>,
}

impl Wire {
    /// Returns the levels that the members drive now.
    pub(super) fn driven(&self) -> Levels {
        let and = !self.members.is_empty() && self.high as usize == self.members.len();
        Levels { and, or: self.high > 0 }
    }
}

impl Traffic {
    /// Sets the level that a node drives on a wire. A high level falls by itself on the result
    /// `fire`, if there is one.
    pub(super) fn drive(&mut self, node: u32, wire: u8, level: bool, fire: Option<Combine>, now: Nanos) {
        let bit = 1u8 << wire;
        let entry = &mut self.nodes[node as usize];
        if entry.member & bit == 0 {
            return;
        }

        // The node counts among those that drive the wire high if its new level is high.
        let line = &mut self.wires[usize::from(wire)];
        line.high -= u32::from(entry.high & bit != 0);
        line.high += u32::from(level);
        set_bit(&mut entry.high, bit, level);
        set_bit(&mut entry.fired_and, bit, level && fire == Some(Combine::And));
        set_bit(&mut entry.fired_or, bit, level && fire == Some(Combine::Or));
        self.schedule_wire_change(wire, now);
    }

    /// Makes a node a member of a wire, which drives it low at first, or ends its membership.
    pub(super) fn set_member(&mut self, node: u32, wire: u8, member: bool, now: Nanos) {
        // Without effect for a node that is no member yet.
        self.drive(node, wire, false, None, now);
        let bit = 1u8 << wire;
        let entry = &mut self.nodes[node as usize];
        let line = &mut self.wires[usize::from(wire)];
        if (entry.member & bit != 0) != member {
            set_bit(&mut entry.member, bit, member);
            if member {
                line.members.push(node);
            } else {
                line.members.retain(|&other| other != node);
            }
            self.schedule_wire_change(wire, now);
        }
    }

    /// Schedules the time at which a wire's members see the levels that are driven now, if they
    /// have changed.
    fn schedule_wire_change(&mut self, wire: u8, now: Nanos) {
        self.wire_changes += 1;
        let line = &mut self.wires[usize::from(wire)];
        let driven = line.driven();
        let seen_at = now.after(self.wire_delay);
        if line.coming.is_some() {
            line.later = Some((seen_at, driven));
        } else if driven != line.shown.levels() {
            line.coming = Some(driven);
            self.show_wire_at(now, seen_at, wire);
        }
    }

    /// Shows a wire's members its levels at `due`, which may be now.
    fn show_wire_at(&mut self, now: Nanos, due: Nanos, wire: u8) {
        if due <= now {
            self.show_wire(wire, due);
        } else {
            self.schedule.add(now, due, Event::of_wire(wire));
        }
    }

    /// Shows its members the levels that are due, and lets fall the levels of those that fired.
    pub(super) fn show_wire(&mut self, wire: u8, due: Nanos) {
        let bit = 1u8 << wire;
        let line = &mut self.wires[usize::from(wire)];
        let Some(levels) = line.coming.take() else { return };
        self.wire_changes += 1;
        let and_rises = levels.and && !line.shown.and;
        let or_rises = levels.or && !line.shown.or;
        line.shown.and_rises += u64::from(and_rises);
        line.shown.or_rises += u64::from(or_rises);

        let mut fell = false;
        for &member in &line.members {
            let entry = &mut self.nodes[member as usize];
            let falls = (and_rises && entry.fired_and & bit != 0) || (or_rises && entry.fired_or & bit != 0);
            if falls {
                fell = true;
                line.high -= u32::from(entry.high & bit != 0);
                set_bit(&mut entry.high, bit, false);
                set_bit(&mut entry.fired_and, bit, false);
                set_bit(&mut entry.fired_or, bit, false);
            }
            entry.wake(member, &mut self.woken);
        }

        line.shown.set_levels(levels);
        if fell {
            // The levels that fell did so at this time: no member may see them high afterwards.
            line.shown.set_levels(line.driven());
            line.later = line.later.map(|(at, _)| (at, line.driven()));
        }

        if let Some((at, levels)) = line.later.take()
            && levels != line.shown.levels()
        {
            line.coming = Some(levels);
            self.show_wire_at(due, at, wire);
        }
    }
}

/// Sets or clears the bits of the mask `bit` in a word.
fn set_bit(word: &mut u8, bit: u8, on: bool) {
    if on {
        *word |= bit;
    } else {
        *word &= !bit;
    }
}
