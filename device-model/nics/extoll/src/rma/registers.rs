//! The registers of RMA.

use nicforge_core::ids::AttachmentId;

use super::Rma;
use crate::{registers::NotWritable, ring_registers::RingRegister, unit::UnitContext};

/// A register of RMA, as [`nicforge_hwi::extoll::reg`] names them. The command register is not one
/// of them: its write is as long as a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Queue(RingRegister),
    Watchdog,
}

impl Rma {
    /// Returns the value of an attachment's register; `None` if the attachment does not exist.
    pub(crate) fn register(&self, attachment: AttachmentId, register: Register) -> Option<u64> {
        let notifications = &self.clients.get(attachment)?.notifications;
        Some(match register {
            Register::Queue(register) => notifications.registers.read(register, notifications.is_enabled()),
            Register::Watchdog => self.watchdog.limit(),
        })
    }

    /// Writes an attachment's register.
    ///
    /// # Errors
    /// The register can't be written while the queue is enabled.
    pub(crate) fn write_register(
        &mut self,
        unit: &mut UnitContext<'_, '_>,
        attachment: AttachmentId,
        register: Register,
        value: u64,
    ) -> Result<(), NotWritable> {
        let notifications = &mut self.client(attachment).ok_or(NotWritable)?.notifications;

        match register {
            Register::Queue(register) => {
                let is_enabled = notifications.is_enabled();
                if let Some(on) = notifications.registers.write(register, value, is_enabled)? {
                    self.set_queue_enabled(unit, attachment, on);
                }
            }
            Register::Watchdog => self.watchdog.set_limit(unit.context, value),
        }
        Ok(())
    }
}
