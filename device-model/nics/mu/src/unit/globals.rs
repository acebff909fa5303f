//! Global interrupts: their lines in the mirrors, and the subgroups that they interrupt.
//!
//! In: the lines that subgroups set, and the network's lines. Out: shown lines, and interrupts. May
//! touch: its own state, the mirrors, the network's lines of this node.

use nicforge_core::context::Context;
use nicforge_hwi::{
    mu::{USER_SUBGROUPS, reg, vector},
    mu_packet::{CLASSES, LINES},
};

use super::{
    Unit,
    access::{BARRIER_REFUSED, Refusal, UNDEFINED_BITS},
};
use crate::network::NetworkUnit;

/// Bits of a class's lines.
const ALL_LINES: u64 = (1 << LINES) - 1;

/// The state of a node's global interrupts.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    /// Lines of each class that the mirrors show as set. [`Unit::enable_lines`] also clears bits
    /// here, so that a line counts as newly set.
    shown: [u8; CLASSES],
    /// Value of [`NetworkUnit::line_changes`] at the last [`Unit::poll_lines`], or `u64::MAX` if
    /// the next poll must look at all lines.
    last_changes: u64,
    /// Lines that raise an interrupt: [`LINES`] bits for each class.
    pub(crate) interrupts: u64,
}

impl Globals {
    /// Returns the state after a reset, in which no line interrupts.
    pub(crate) fn after_reset(&self) -> Self {
        Self { interrupts: 0, ..*self }
    }

    /// Returns the lines of a class that raise an interrupt.
    fn interrupts_of(&self, class: u8) -> u8 {
        (self.interrupts >> (LINES * class) & ALL_LINES) as u8
    }
}

impl Unit {
    /// Sets the lines of a class that this node sets, on behalf of a subgroup.
    pub(crate) fn set_lines(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        subgroup_id: u16,
        class: u8,
        value: u64,
    ) -> Result<(), Refusal> {
        let is_system_class = self.control.system_barriers >> class & 1 == 1;
        if is_system_class && subgroup_id < USER_SUBGROUPS {
            return Err(BARRIER_REFUSED);
        }
        if value > ALL_LINES {
            return Err(UNDEFINED_BITS);
        }

        network.set_lines(class, value as u8).map_err(|_| BARRIER_REFUSED)?;
        context.wake_at(context.now());
        Ok(())
    }

    /// Publishes changed lines in the pages, and interrupts for those that were set.
    #[inline]
    pub(crate) fn poll_lines(&mut self, network: &NetworkUnit) {
        let changes = network.line_changes();
        if changes != self.globals.last_changes {
            self.globals.last_changes = changes;
            self.publish_lines(network);
        }
    }

    /// Publishes the lines of all classes whose lines have changed.
    fn publish_lines(&mut self, network: &NetworkUnit) {
        for class in 0..CLASSES as u8 {
            let lines = network.lines(class).all;
            let before = std::mem::replace(&mut self.globals.shown[usize::from(class)], lines);
            if lines == before {
                continue;
            }

            let is_system_class = self.control.system_barriers >> class & 1 == 1;
            let interrupts = lines & !before & self.globals.interrupts_of(class) != 0;
            for subgroup_id in self.subgroups.present() {
                let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { continue };
                subgroup.page.publish(reg::GI_STATUS + 8 * u64::from(class), lines.into());
                // The system's subgroups share the interrupts of one attachment; the first raises
                // them. Users get no interrupts of a class of the system.
                let is_concerned =
                    subgroup_id <= USER_SUBGROUPS && (!is_system_class || subgroup_id == USER_SUBGROUPS);
                if interrupts && is_concerned {
                    subgroup.interrupts.raise(vector::GLOBAL);
                    self.subgroups.mark_changed(subgroup_id);
                }
            }
        }
    }

    /// Sets the lines that interrupt. Those that are set already interrupt at once.
    pub(crate) fn enable_lines(&mut self, interrupts: u64) {
        let new = interrupts & !self.globals.interrupts;
        self.globals.interrupts = interrupts;
        for class in 0..CLASSES as u8 {
            // The next poll then finds these lines newly set, and interrupts for them.
            let lines = (new >> (LINES * class) & ALL_LINES) as u8;
            if self.globals.shown[usize::from(class)] & lines != 0 {
                self.globals.shown[usize::from(class)] &= !lines;
                self.globals.last_changes = u64::MAX;
            }
        }
    }
}
