//! The registers of VELO.

use nicforge_core::ids::AttachmentId;
use nicforge_kit::WatchdogLimit;

use super::Velo;
use crate::{registers::NotWritable, ring_registers::RingRegister, unit::UnitContext};

/// A register of VELO, as [`nicforge_hwi::extoll::reg`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Ring(RingRegister),
    Taken,
    Watchdog,
}

impl Velo {
    /// Returns the value of an attachment's register; `None` if the attachment does not exist.
    pub(crate) fn register(&self, attachment: AttachmentId, register: Register) -> Option<u64> {
        let client = self.clients.get(attachment)?;
        Some(match register {
            Register::Ring(register) => client.registers.read(register, client.ring.is_some()),
            Register::Taken => client.counts.finished(),
            Register::Watchdog => self.watchdog.nanoseconds(),
        })
    }

    /// Writes an attachment's register.
    ///
    /// # Errors
    /// The register can't be written, or not while the ring is enabled.
    pub(crate) fn write_register(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        register: Register,
        value: u64,
    ) -> Result<(), NotWritable> {
        let client = self.client(attachment).ok_or(NotWritable)?;

        match register {
            Register::Ring(register) => {
                let is_enabled = client.ring.is_some();
                if let Some(on) = client.registers.write(register, value, is_enabled)? {
                    self.set_ring_enabled(unit, attachment, on);
                }
            }
            Register::Taken => return Err(NotWritable),
            Register::Watchdog => self.watchdog = WatchdogLimit::new(value),
        }
        Ok(())
    }
}
