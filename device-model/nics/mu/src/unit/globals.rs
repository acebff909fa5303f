//! Global interrupts: what the mirrors show of their lines, and who is interrupted.
//!
//! In: the lines that subgroups set, and the network's lines. Out: shown lines, and interrupts. May
//! touch: its own state, the mirrors, the network's lines of this node.

use nicforge_core::context::Context;
use nicforge_hwi::{
    mu::{USER_SUBGROUPS, reg, vector},
    mu_dcr::error,
    mu_packet::{CLASSES, LINES},
};

use super::{
    Unit,
    access::{Refusal, UNDEFINED_BITS},
    errors::Set,
};
use crate::network::NetworkUnit;

/// Bits of a class's lines.
const ALL_LINES: u64 = (1 << LINES) - 1;

/// The lines that the mirrors show.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    shown: [u8; CLASSES],
    /// Number of the network's changes when its lines were looked at last.
    seen: u64,
    /// Lines that raise an interrupt: [`LINES`] bits for each class.
    pub(crate) interrupts: u64,
}

impl Globals {
    /// Returns the state after a reset, in which no line interrupts.
    pub(crate) fn restarted(&self) -> Self {
        Self { interrupts: 0, ..*self }
    }

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
        number: u16,
        class: u8,
        value: u64,
    ) -> Result<(), Refusal> {
        let refused = (Set::Registers, error::MMREGS_BARRIER);
        let is_systems = self.control.system_barriers >> class & 1 == 1;
        if is_systems && number < USER_SUBGROUPS {
            return Err(refused);
        }
        if value > ALL_LINES {
            return Err(UNDEFINED_BITS);
        }

        network.set_lines(class, value as u8).map_err(|_| refused)?;
        context.wake_at(context.now());
        Ok(())
    }

    /// Shows changed lines in the pages, and interrupts for those that were set.
    #[inline]
    pub(crate) fn poll_lines(&mut self, network: &NetworkUnit) {
        let changes = network.line_changes();
        if changes != self.globals.seen {
            self.globals.seen = changes;
            self.show_lines(network);
        }
    }

    fn show_lines(&mut self, network: &NetworkUnit) {
        for class in 0..CLASSES as u8 {
            let lines = network.lines(class).all;
            let before = std::mem::replace(&mut self.globals.shown[usize::from(class)], lines);
            if lines == before {
                continue;
            }

            let is_systems = self.control.system_barriers >> class & 1 == 1;
            let interrupts = lines & !before & self.globals.interrupts_of(class) != 0;
            for number in self.subgroups.present() {
                let Some(subgroup) = self.subgroups.get_mut(number) else { continue };
                subgroup.page.publish(reg::GI_STATUS + 8 * u64::from(class), lines.into());
                // The system's subgroups have the interrupts of one attachment.
                let is_concerned = number <= USER_SUBGROUPS && (!is_systems || number == USER_SUBGROUPS);
                if interrupts && is_concerned {
                    subgroup.interrupts.raise(vector::GLOBAL);
                    self.subgroups.mark_changed(number);
                }
            }
        }
    }

    /// Sets the lines that interrupt. Those that are set already interrupt at once.
    pub(crate) fn enable_lines(&mut self, interrupts: u64) {
        let new = interrupts & !self.globals.interrupts;
        self.globals.interrupts = interrupts;
        for class in 0..CLASSES as u8 {
            // A line that the next look finds set counts as one that was set since.
            let lines = (new >> (LINES * class) & ALL_LINES) as u8;
            if self.globals.shown[usize::from(class)] & lines != 0 {
                self.globals.shown[usize::from(class)] &= !lines;
                self.globals.seen = u64::MAX;
            }
        }
    }
}
