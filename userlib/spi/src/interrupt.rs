//! Interrupts of FIFOs: free space that crosses a threshold, and packets that ask for one.

use std::sync::atomic::Ordering;

use nicforge_driver::{Cancel, Deadline, Error as DriverError};
use nicforge_hwi::mu::{self, reg, vector};

use crate::{Error, Subgroup};

/// Interrupts of a subgroup's FIFOs, one bit for each FIFO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoInterrupts {
    /// Injection FIFOs whose free space has risen above the threshold: 8 bits.
    pub injection: u8,
    /// Reception FIFOs whose free space has fallen below the threshold: 4 bits.
    pub reception: u8,
    /// Reception FIFOs with the last packet of a message that asked for an interrupt: 4 bits.
    pub packets: u8,
}

/// Number of the lowest bit of the reception FIFOs' thresholds in a register.
const RECEPTION_SHIFT: u32 = mu::interrupt::RECEPTION_THRESHOLD.trailing_zeros();
/// Number of the lowest bit of the reception FIFOs' packets in a register.
const PACKETS_SHIFT: u32 = mu::interrupt::PACKET.trailing_zeros();
/// A bit for each reception FIFO.
const ALL_RECEPTION: u8 = (1 << mu::RECEPTION_FIFOS) - 1;

impl FifoInterrupts {
    /// Returns the bits of a register: injection FIFOs from bit 0 on, reception FIFOs from 8, and
    /// their packets from 12.
    pub fn bits(self) -> u64 {
        let reception = u64::from(self.reception & ALL_RECEPTION) << RECEPTION_SHIFT;
        let packets = u64::from(self.packets & ALL_RECEPTION) << PACKETS_SHIFT;
        u64::from(self.injection) | reception | packets
    }

    /// Returns the interrupts of a register's bits.
    pub fn from_bits(bits: u64) -> Self {
        Self {
            injection: bits as u8,
            reception: (bits >> RECEPTION_SHIFT) as u8 & ALL_RECEPTION,
            packets: (bits >> PACKETS_SHIFT) as u8 & ALL_RECEPTION,
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the vector of one kind of these interrupts. A sleep waits for that vector alone, and
    /// notices the others when its time limit is over.
    fn vector(self) -> u16 {
        match self {
            Self { packets: 1.., .. } => vector::PACKET,
            Self { injection: 1.., .. } => vector::INJECTION_THRESHOLD,
            _ => vector::RECEPTION_THRESHOLD,
        }
    }
}

impl Subgroup {
    /// Sets the free space in bytes above which an injection FIFO interrupts, and that below which
    /// a reception FIFO does. `None` leaves one as it is. The kernel can set them for all
    /// subgroups: [`crate::Kernel::set_thresholds`].
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_thresholds(&mut self, injection: Option<u64>, reception: Option<u64>) -> Result<(), Error> {
        let values = [(reg::INJECTION_THRESHOLD, injection), (reg::RECEPTION_THRESHOLD, reception)];
        for (register, value) in values {
            if let Some(bytes) = value {
                self.page().write(register, bytes)?;
            }
        }
        Ok(())
    }

    /// Chooses the interrupts that wake a wait. Those that have come already wake the next one.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn set_interrupts(&mut self, enabled: FifoInterrupts) -> Result<(), Error> {
        self.page().write(reg::INTERRUPT_ENABLE, enabled.bits())
    }

    /// Returns the interrupts that wake a wait.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn enabled_interrupts(&self) -> Result<FifoInterrupts, Error> {
        Ok(FifoInterrupts::from_bits(self.page().read(reg::INTERRUPT_ENABLE)?))
    }

    /// Returns the interrupts that have come since they were cleared.
    ///
    /// # Errors
    /// Only an access to memory that is gone fails.
    pub fn interrupts(&self) -> Result<FifoInterrupts, Error> {
        let status = self.page().word(reg::INTERRUPT_STATUS)?;
        Ok(FifoInterrupts::from_bits(status.load(Ordering::Acquire)))
    }

    /// Clears interrupts. An interrupt that comes later is shown again.
    ///
    /// # Errors
    /// Errors of a trapped access.
    pub fn clear_interrupts(&mut self, interrupts: FifoInterrupts) -> Result<(), Error> {
        self.page().write(reg::CLEAR_INTERRUPT, interrupts.bits())?;

        // Until the unit has updated the mirror, it still shows them.
        self.page().await_mirror(reg::INTERRUPT_STATUS)
    }

    /// Waits until one of these interrupts has come, and returns those that have. The call polls
    /// first, and sleeps then. An interrupt that is not enabled does not end the sleep, which has a
    /// time limit of its own ([`Options::sleep`](crate::Options::sleep)).
    ///
    /// # Errors
    /// [`DriverError::Timeout`], [`DriverError::Cancelled`], [`DriverError::DeviceGone`];
    /// [`Error::Reset`].
    pub fn wait_interrupts(
        &mut self,
        wanted: FifoInterrupts,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<FifoInterrupts, Error> {
        loop {
            let spin = deadline.at_most(self.options().spin);
            let polled = self.device().wait_for(spin, cancel, "an interrupt of a FIFO", || {
                let pending = FifoInterrupts::from_bits(self.interrupts()?.bits() & wanted.bits());
                self.page().check_not_reset()?;
                Ok((!pending.is_empty()).then_some(pending))
            });

            match polled {
                Err(Error::Driver(DriverError::Timeout { .. })) if !deadline.has_passed() => {}
                polled => return polled,
            }
            self.sleep_for(wanted.vector(), deadline, cancel)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_register() {
        let all = FifoInterrupts { injection: 0xff, reception: 0xff, packets: 0xff };
        assert_eq!(all.bits(), mu::interrupt::ALL);
        assert_eq!(FifoInterrupts::from_bits(mu::interrupt::PACKET << 3).packets, 0b1000);
        let some = FifoInterrupts { injection: 0x81, reception: 0b10, packets: 0b100 };
        assert_eq!(FifoInterrupts::from_bits(some.bits()), some);
        assert!(FifoInterrupts::from_bits(0).is_empty() && !some.is_empty());
    }
}
