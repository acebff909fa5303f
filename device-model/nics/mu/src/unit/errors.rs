//! The error registers: the errors that have come, and their interrupts.
//!
//! In: errors, and accesses of the kernel. Out: interrupts for the kernel, at the end of a step.
//! May touch: its own state.

use nicforge_hwi::{
    mu::vector,
    mu_dcr::{
        ICSRAM_RGET_FIFO_FULL, IMFIFO, IMFIFO_ACCESS_ERROR_ID, MCSRAM_ERR_FIFO_ID, RMFIFO,
        RMFIFO_ACCESS_ERROR_ID, XM0_ERR_INFO, XS_ERR_INFO, errors, severity,
    },
};

/// The sets of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    MasterPort,
    SlavePort,
    Registers,
    Fifo,
    Descriptor,
    Reception,
    Put,
    Header0,
    Header1,
    Injection,
    Get,
}

/// First registers of the sets, in the order of [`Set`].
const SETS: [u64; 11] = [
    errors::MASTER_PORT0,
    errors::SLAVE_PORT,
    errors::MMREGS,
    errors::FIFO,
    errors::MCSRAM,
    errors::RCSRAM,
    errors::RPUTSRAM,
    errors::RME0,
    errors::RME1,
    errors::ICSRAM,
    errors::MISC,
];

/// Registers that tell more about the last error of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Info {
    Memory,
    Access,
    FullReception,
    Descriptor,
    SystemFifo,
    Reception,
    FullInjection,
    Get,
}

/// Offsets of the registers of [`Info`], in its order.
const INFOS: [u64; 8] = [
    XM0_ERR_INFO,
    XS_ERR_INFO,
    RMFIFO,
    MCSRAM_ERR_FIFO_ID,
    IMFIFO,
    RMFIFO_ACCESS_ERROR_ID,
    ICSRAM_RGET_FIFO_FULL,
    IMFIFO_ACCESS_ERROR_ID,
];

/// The registers of one set.
#[derive(Clone, Copy, Debug, Default)]
struct Registers {
    state: u64,
    first: u64,
    /// Severities of errors 0 to 31, and of 32 to 63.
    control: [u64; 2],
}

impl Registers {
    fn severity(&self, error: u8) -> u64 {
        self.control[usize::from(error / 32) % 2] >> (2 * (error % 32)) & 0b11
    }

    /// Returns the errors that have come and have this severity.
    fn with_severity(&self, severity: u64) -> u64 {
        let is_it = |&error: &u8| self.state >> error & 1 == 1 && self.severity(error) == severity;
        (0..64).filter(is_it).fold(0, |bits, error| bits | 1 << error)
    }
}

/// The error registers of a node.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    sets: [Registers; SETS.len()],
    infos: [u64; INFOS.len()],
    /// Interrupts for the kernel, one bit for each vector.
    vectors: u32,
}

impl Errors {
    /// Records an error. An error that has come already raises no further interrupt.
    pub(crate) fn report(&mut self, set: Set, error: u8) {
        self.note(set as usize, 1 << (error % 64));
    }

    /// Records an error, and what it is about.
    pub(crate) fn report_about(&mut self, set: Set, error: u8, info: Info, about: u64) {
        self.infos[info as usize] = about;
        self.report(set, error);
    }

    fn note(&mut self, set: usize, bits: u64) {
        let registers = &mut self.sets[set];
        if registers.state == 0 {
            registers.first = bits;
        }

        let new = bits & !registers.state;
        registers.state |= bits;
        for error in (0..64).filter(|error| new >> error & 1 == 1) {
            self.vectors |= match registers.severity(error) {
                severity::NONCRITICAL => 1 << vector::NON_CRITICAL,
                severity::CRITICAL => 1 << vector::CRITICAL,
                severity::MACHINE_CHECK => 1 << vector::MACHINE_CHECK,
                _ => 0,
            };
        }
    }

    /// Records an interrupt for the kernel that no register of these is the reason of.
    pub(crate) fn interrupt(&mut self, vector: u16) {
        self.vectors |= 1 << vector;
    }

    /// Returns the kernel's interrupts since the last call, one bit for each vector.
    #[inline]
    pub(crate) fn take_vectors(&mut self) -> u32 {
        std::mem::take(&mut self.vectors)
    }

    /// Returns the value of a register; `None` if there is none at the offset.
    pub(crate) fn read(&self, offset: u64) -> Option<u64> {
        if let Some(info) = INFOS.iter().position(|&register| register == offset) {
            return Some(self.infos[info]);
        }

        let (set, register) = locate(offset)?;
        let registers = &self.sets[set];
        match register {
            errors::STATE => Some(registers.state),
            errors::CONTROL_LOW => Some(registers.control[0]),
            errors::CONTROL_HIGH => Some(registers.control[1]),
            errors::FIRST => Some(registers.first),
            errors::MACHINE_CHECK => Some(registers.with_severity(severity::MACHINE_CHECK)),
            errors::CRITICAL => Some(registers.with_severity(severity::CRITICAL)),
            errors::NONCRITICAL => Some(registers.with_severity(severity::NONCRITICAL)),
            _ => None,
        }
    }

    /// Writes a register. Returns false if there is none at the offset that can be written.
    pub(crate) fn write(&mut self, offset: u64, value: u64) -> bool {
        if let Some(info) = INFOS.iter().position(|&register| register == offset) {
            self.infos[info] = value;
            return true;
        }

        let Some((set, register)) = locate(offset) else { return false };
        let registers = &mut self.sets[set];
        match register {
            errors::STATE => registers.clear(value),
            errors::CONTROL_LOW => registers.control[0] = value,
            errors::CONTROL_HIGH => registers.control[1] = value,
            errors::FORCE => self.note(set, value),
            _ => return false,
        }
        true
    }
}

impl Registers {
    fn clear(&mut self, bits: u64) {
        self.state &= !bits;
        if self.state == 0 {
            self.first = 0;
        }
    }
}

/// Returns the set and the register at an offset.
fn locate(offset: u64) -> Option<(usize, u64)> {
    SETS.iter().enumerate().find_map(|(set, &first)| {
        let register = offset.checked_sub(first)?;
        (register < errors::SIZE).then_some((set, register))
    })
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::mu_dcr::error;

    use super::*;

    #[test]
    fn an_error_interrupts_once_by_its_severity_until_it_is_cleared() {
        let mut registers = Errors::default();
        let control = severity::CRITICAL << (2 * error::XM_READ_RANGE);
        assert!(registers.write(errors::MASTER_PORT0 + errors::CONTROL_LOW, control));

        registers.report(Set::MasterPort, error::XM_READ_RANGE);
        registers.report(Set::MasterPort, error::XM_READ_RANGE);
        assert_eq!(registers.take_vectors(), 1 << vector::CRITICAL);
        assert_eq!(registers.take_vectors(), 0);

        let bit = 1 << error::XM_READ_RANGE;
        assert_eq!(registers.read(errors::MASTER_PORT0 + errors::CRITICAL), Some(bit));
        assert_eq!(registers.read(errors::MASTER_PORT0 + errors::NONCRITICAL), Some(0));

        assert!(registers.write(errors::MASTER_PORT0, bit));
        registers.report(Set::MasterPort, error::XM_READ_RANGE);
        assert_eq!(registers.take_vectors(), 1 << vector::CRITICAL);
    }

    #[test]
    fn a_masked_error_is_noted_and_raises_nothing() {
        let mut registers = Errors::default();
        registers.report_about(Set::Descriptor, error::MCSRAM_OFFSET, Info::Descriptor, 77);

        assert_eq!(registers.take_vectors(), 0);
        assert_eq!(registers.read(errors::MCSRAM), Some(1 << 32));
        assert_eq!(registers.read(errors::MCSRAM + errors::FIRST), Some(1 << 32));
        assert_eq!(registers.read(MCSRAM_ERR_FIFO_ID), Some(77));
    }

    #[test]
    fn the_first_error_stays_until_all_are_cleared() {
        let mut registers = Errors::default();
        for error in [3, 4] {
            registers.report(Set::Get, error);
        }
        assert_eq!(registers.read(errors::MISC + errors::FIRST), Some(1 << 3));
        registers.write(errors::MISC, 1 << 3);
        assert_eq!(registers.read(errors::MISC + errors::FIRST), Some(1 << 3));
        registers.write(errors::MISC, u64::MAX);
        assert_eq!(registers.read(errors::MISC + errors::FIRST), Some(0));
    }

    #[test]
    fn forced_errors_count_as_real_ones() {
        let mut registers = Errors::default();
        registers.write(errors::RME1 + errors::CONTROL_HIGH, severity::MACHINE_CHECK << (2 * 14));
        registers.write(errors::RME1 + errors::FORCE, 1 << 46);
        assert_eq!(registers.take_vectors(), 1 << vector::MACHINE_CHECK);
        assert_eq!(registers.read(errors::RME1 + errors::MACHINE_CHECK), Some(1 << 46));
        assert!(!registers.write(errors::RME1 + errors::FIRST, 0));
    }
}
