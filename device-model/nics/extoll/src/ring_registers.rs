//! The registers by which a client describes a ring in its own memory: VELO's receive ring and
//! RMA's notification queue.

use std::ops::RangeInclusive;

use crate::registers::NotWritable;

/// Alignment of a ring, in bytes.
const ALIGNMENT: u64 = 4096;

/// A register of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingRegister {
    Base,
    Entries,
    Enable,
}

/// The sizes of rings that a unit can use.
#[derive(Clone, Debug)]
pub(crate) struct RingLimits {
    /// The possible numbers of entries. A number must also be a power of two.
    pub(crate) entries: RangeInclusive<u64>,
    /// Bytes of an entry.
    pub(crate) entry: u64,
}

/// The registers that describe a ring.
///
/// While the ring is enabled they don't change. The enable register is not among them, because the
/// unit enables a ring only if it can use the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingRegisters {
    /// IOVA of the first entry.
    pub(crate) base: u64,
    /// Number of entries.
    pub(crate) entries: u64,
}

impl RingRegisters {
    /// Returns the ring's length in bytes, or `None` if a ring can't have this address and size.
    pub(crate) fn length(self, limits: &RingLimits) -> Option<u64> {
        let valid = self.entries.is_power_of_two()
            && limits.entries.contains(&self.entries)
            && self.base.is_multiple_of(ALIGNMENT);
        if !valid {
            return None;
        }

        let length = self.entries * limits.entry;
        self.base.checked_add(length).map(|_| length)
    }

    /// Returns the value of a register. `is_enabled` says whether the ring is enabled.
    pub(crate) fn read(self, register: RingRegister, is_enabled: bool) -> u64 {
        match register {
            RingRegister::Base => self.base,
            RingRegister::Entries => self.entries,
            RingRegister::Enable => is_enabled.into(),
        }
    }

    /// Writes a register. `is_enabled` says whether the ring is enabled. A write to the enable
    /// register changes nothing here: the result says whether the unit should enable the ring.
    ///
    /// # Errors
    /// The register can't be written while the ring is enabled.
    pub(crate) fn write(
        &mut self,
        register: RingRegister,
        value: u64,
        is_enabled: bool,
    ) -> Result<Option<bool>, NotWritable> {
        match register {
            RingRegister::Enable => return Ok(Some(value & 1 != 0)),
            RingRegister::Base | RingRegister::Entries if is_enabled => return Err(NotWritable),
            RingRegister::Base => self.base = value,
            RingRegister::Entries => self.entries = value,
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::{extoll_rma, extoll_velo};

    use super::*;

    #[test]
    fn invalid_ring_registers_have_no_length() {
        let of_velo =
            RingLimits { entries: extoll_velo::MIN_SLOTS..=extoll_velo::MAX_SLOTS, entry: extoll_velo::SLOT };
        let of_rma = RingLimits { entries: extoll_rma::MIN_ENTRIES..=extoll_rma::MAX_ENTRIES, entry: 16 };

        for limits in [of_velo, of_rma] {
            let valid = RingRegisters { base: 0x1000, entries: 64 };
            assert_eq!(valid.length(&limits), Some(64 * limits.entry));
            let invalid = [
                RingRegisters { base: 0x1008, ..valid },
                RingRegisters { entries: 0, ..valid },
                RingRegisters { entries: 65, ..valid },
                RingRegisters { entries: 32, ..valid },
                RingRegisters { entries: 1 << 17, ..valid },
                RingRegisters { base: 0xffff_ffff_ffff_f000, entries: 1024 },
            ];
            assert!(invalid.iter().all(|registers| registers.length(&limits).is_none()));
        }
    }

    #[test]
    fn an_enabled_ring_can_only_be_disabled() {
        let mut registers = RingRegisters::default();
        assert_eq!(registers.write(RingRegister::Base, 0x1000, false), Ok(None));
        assert_eq!(registers.write(RingRegister::Entries, 64, false), Ok(None));

        assert_eq!(registers.write(RingRegister::Base, 0x2000, true), Err(NotWritable));
        assert_eq!(registers.write(RingRegister::Entries, 128, true), Err(NotWritable));
        assert_eq!(registers.write(RingRegister::Enable, 2, true), Ok(Some(false)));

        let values = [RingRegister::Base, RingRegister::Entries, RingRegister::Enable]
            .map(|register| registers.read(register, true));
        assert_eq!(values, [0x1000, 64, 1]);
    }
}
