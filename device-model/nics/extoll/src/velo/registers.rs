//! The registers of VELO.

use nicforge_core::ids::AttachmentId;

use super::Velo;
use crate::{registers::NotWritable, unit::UnitContext};

/// A register of VELO, as [`nicforge_hwi::extoll::reg`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    RingBase,
    RingSlots,
    RingEnable,
    Taken,
    Watchdog,
}

impl Velo {
    /// Returns the value of an attachment's register; `None` if the attachment does not exist.
    pub(crate) fn read_register(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        who: AttachmentId,
        register: Register,
    ) -> Option<u64> {
        if register == Register::Taken {
            // All earlier stores have arrived, so an incomplete message can no longer become
            // complete.
            self.give_up_split(unit, who);
        }

        let client = self.client(who)?;
        Some(match register {
            Register::RingBase => client.registers.base,
            Register::RingSlots => client.registers.slots,
            Register::RingEnable => client.ring.is_some().into(),
            Register::Taken => client.counts.finished(),
            Register::Watchdog => self.watchdog,
        })
    }

    /// Writes an attachment's register.
    ///
    /// # Errors
    /// The register can't be written, or not while the ring is enabled.
    pub(crate) fn write_register(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        who: AttachmentId,
        register: Register,
        value: u64,
    ) -> Result<(), NotWritable> {
        let client = self.client(who).ok_or(NotWritable)?;

        match register {
            Register::RingBase | Register::RingSlots if client.ring.is_some() => return Err(NotWritable),
            Register::RingBase => client.registers.base = value,
            Register::RingSlots => client.registers.slots = value,
            Register::RingEnable => self.enable_ring(unit, who, value & 1 != 0),
            Register::Taken => return Err(NotWritable),
            Register::Watchdog => self.watchdog = value,
        }
        Ok(())
    }
}
