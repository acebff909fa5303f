//! The device control registers of the unit.
//!
//! In: accesses of the kernel. Out: ranges, enables and thresholds, by which all engines work. May
//! touch: its own state, and the enables of subgroups.

use nicforge_hwi::{
    mu::{
        CHUNK, DESCRIPTOR, GROUPS, INJECTION_FIFOS, RECEPTION_FIFOS, SUBGROUPS, SUBGROUPS_OF_GROUP,
        SYSTEM_GROUP, interrupt,
    },
    mu_dcr::{
        BARRIER_INT_EN, GI_INT_EN_SHIFT, IME_ENABLE, IMFIFO_RGET, IMFIFO_SYSTEM, IMFIFO_THOLD_INT_EN,
        IMU_THOLD, RGET_THOLD, RME_ENABLE, RMFIFO_EN, RMFIFO_PACKET_INT_EN, RMFIFO_SYSTEM,
        RMFIFO_THOLD_INT_EN, RMU_THOLD, RPUTBASE_SYSTEM0, RPUTBASE_SYSTEM1, SYS_BARRIER, UPC_MU_COUNTER,
        counter,
    },
};

use super::{
    Unit,
    ranges::{Ranges, index_in},
    subgroup::{Subgroup, Thresholds},
};

/// Settings of the kernel for all subgroups.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) ranges: Ranges,
    /// Enabled injection engines, one bit for each network injection FIFO.
    pub(crate) injection_engines: u16,
    /// Enabled reception engines, one bit for each network reception FIFO.
    pub(crate) reception_engines: u16,
    /// Barrier classes of the system, one bit for each.
    pub(crate) system_barriers: u16,
    /// Barrier classes that interrupt the kernel, one bit for each.
    pub(crate) barrier_interrupts: u16,
    /// The kernel's thresholds, which new clients begin with.
    pub(crate) thresholds: Thresholds,
    /// Reception FIFOs of each subgroup that the kernel has disabled, one bit for each. No client
    /// enables them before the kernel has done so.
    pub(crate) denied_receptions: [u8; SUBGROUPS as usize],
}

impl Control {
    /// Returns the state of power-on.
    pub(crate) fn new() -> Self {
        Self {
            ranges: Ranges::new(),
            injection_engines: u16::MAX,
            reception_engines: u16::MAX,
            system_barriers: 0,
            barrier_interrupts: 0,
            thresholds: Thresholds::default(),
            denied_receptions: [0; SUBGROUPS as usize],
        }
    }
}

/// A register of a group: it has one bit for each FIFO of the group's subgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupRegister {
    /// Enables the threshold interrupts of injection FIFOs.
    InjectionInterrupts,
    /// Makes injection FIFOs those of remote gets.
    RemoteGets,
    /// Enables reception FIFOs.
    Receptions,
    /// Enables the threshold interrupts of reception FIFOs.
    ReceptionInterrupts,
    /// Enables the interrupts of packets in reception FIFOs.
    PacketInterrupts,
}

impl GroupRegister {
    /// Returns the register at an offset, and the number of its group.
    fn decode(offset: u64) -> Option<(Self, u16)> {
        let first_registers = [
            (IMFIFO_THOLD_INT_EN, Self::InjectionInterrupts),
            (IMFIFO_RGET, Self::RemoteGets),
            (RMFIFO_EN, Self::Receptions),
            (RMFIFO_THOLD_INT_EN, Self::ReceptionInterrupts),
            (RMFIFO_PACKET_INT_EN, Self::PacketInterrupts),
        ];
        first_registers.into_iter().find_map(|(first, register)| {
            let group = index_in(offset, first, GROUPS.into())?;
            Some((register, group as u16))
        })
    }

    /// Returns the number of bits of each subgroup.
    fn width(self) -> u16 {
        match self {
            Self::InjectionInterrupts | Self::RemoteGets => INJECTION_FIFOS,
            Self::Receptions | Self::ReceptionInterrupts | Self::PacketInterrupts => RECEPTION_FIFOS,
        }
    }

    /// Returns the interrupt of a subgroup that the register's lowest bit enables.
    fn first_interrupt(self) -> u64 {
        match self {
            Self::InjectionInterrupts => interrupt::INJECTION_THRESHOLD,
            Self::ReceptionInterrupts => interrupt::RECEPTION_THRESHOLD,
            _ => interrupt::PACKET,
        }
    }

    /// Returns the bits of a subgroup, the lowest one in bit 0.
    fn get(self, subgroup: &Subgroup) -> u64 {
        let bits = match self {
            Self::RemoteGets => subgroup.remote_get.into(),
            Self::Receptions => subgroup.enabled_reception(),
            // The division shifts the interrupts down to bit 0.
            _ => subgroup.interrupts.enabled / self.first_interrupt(),
        };
        bits & ((1 << self.width()) - 1)
    }
}

impl Unit {
    /// Returns the value of a device control register; `None` if there is none.
    pub(crate) fn read_control(&self, offset: u64) -> Option<u64> {
        if let Some((register, group)) = GroupRegister::decode(offset) {
            return Some(self.read_group(register, group));
        }
        if let Some(value) = self.control.ranges.value(offset) {
            return Some(value);
        }
        if let Some(index) = index_in(offset, UPC_MU_COUNTER, counter::COUNT) {
            return Some(self.counters[index]);
        }

        // Registers that say which FIFOs are the system's: all of the last group, and no others.
        let system_fifos = |first, bits| {
            index_in(offset, first, GROUPS.into())
                .map(|group| if group == usize::from(SYSTEM_GROUP) { bits } else { 0 })
        };
        let injection = system_fifos(IMFIFO_SYSTEM, u64::from(u32::MAX));
        if let Some(bits) = injection.or_else(|| system_fifos(RMFIFO_SYSTEM, u64::from(u16::MAX))) {
            return Some(bits);
        }

        let control = &self.control;
        match offset {
            IMU_THOLD => Some(control.thresholds.injection / DESCRIPTOR),
            RGET_THOLD => Some(control.thresholds.remote_get / CHUNK),
            RMU_THOLD => Some(control.thresholds.reception / CHUNK),
            RPUTBASE_SYSTEM0 => Some(0),
            RPUTBASE_SYSTEM1 => Some((1 << SUBGROUPS_OF_GROUP) - 1),
            SYS_BARRIER => Some(control.system_barriers.into()),
            BARRIER_INT_EN => {
                let barriers = u64::from(control.barrier_interrupts);
                Some(barriers | self.globals.interrupts << GI_INT_EN_SHIFT)
            }
            IME_ENABLE => Some(control.injection_engines.into()),
            RME_ENABLE => Some(control.reception_engines.into()),
            _ => self.errors.read(offset),
        }
    }

    /// Writes a device control register. Returns false if there is none that can be written.
    pub(crate) fn write_control(&mut self, offset: u64, value: u64) -> bool {
        if let Some((register, group)) = GroupRegister::decode(offset) {
            self.write_group(register, group, value);
            return true;
        }
        if let Some(register) = self.control.ranges.register(offset) {
            register.set(value);
            return true;
        }
        if let Some(index) = index_in(offset, UPC_MU_COUNTER, counter::COUNT) {
            // Bit 63 stays clear, so that no count can overflow the word.
            self.counters[index] = value & (u64::MAX >> 1);
            return true;
        }

        let control = &mut self.control;
        match offset {
            IMU_THOLD => control.thresholds.injection = value.saturating_mul(DESCRIPTOR),
            RGET_THOLD => control.thresholds.remote_get = value.saturating_mul(CHUNK),
            RMU_THOLD => control.thresholds.reception = value.saturating_mul(CHUNK),
            SYS_BARRIER => control.system_barriers = value as u16,
            BARRIER_INT_EN => {
                control.barrier_interrupts = value as u16;
                self.enable_lines(value >> GI_INT_EN_SHIFT);
            }
            IME_ENABLE => control.injection_engines = value as u16,
            RME_ENABLE => control.reception_engines = value as u16,
            _ => return self.errors.write(offset, value),
        }
        if matches!(offset, IMU_THOLD | RGET_THOLD | RMU_THOLD) {
            self.set_thresholds();
        }
        true
    }

    /// Records the reception FIFOs of a subgroup that the kernel denies its clients, from the bits
    /// that it enables. Those that it disables are denied. A FIFO that is disabled already stays as
    /// it is: the kernel writes the register of four subgroups to change one of them.
    fn deny_receptions(&mut self, subgroup_id: u16, enabled: u64) {
        let before = self.subgroups.get(subgroup_id).map_or(0, Subgroup::enabled_reception);
        if let Some(denied) = self.control.denied_receptions.get_mut(usize::from(subgroup_id)) {
            *denied = (*denied | before as u8) & !(enabled as u8);
        }
    }

    /// Sets the thresholds of all subgroups that have clients.
    fn set_thresholds(&mut self) {
        for subgroup_id in self.subgroups.present() {
            if let Some(subgroup) = self.subgroups.get_mut(subgroup_id) {
                subgroup.thresholds = self.control.thresholds;
            }
        }
    }

    /// Returns the value of a register of a group. Subgroups without a client have zeros.
    fn read_group(&self, register: GroupRegister, group: u16) -> u64 {
        let of_group = (0..SUBGROUPS_OF_GROUP).map(|index| {
            let subgroup = self.subgroups.get(group * SUBGROUPS_OF_GROUP + index);
            subgroup.map_or(0, |subgroup| register.get(subgroup)) << (index * register.width())
        });
        of_group.fold(0, |bits, of_subgroup| bits | of_subgroup)
    }

    /// Writes a register of a group. Of subgroups without a client, only their denied reception
    /// FIFOs change.
    fn write_group(&mut self, register: GroupRegister, group: u16, value: u64) {
        let mask = (1 << register.width()) - 1;
        for index in 0..SUBGROUPS_OF_GROUP {
            let subgroup_id = group * SUBGROUPS_OF_GROUP + index;
            let bits = value >> (index * register.width()) & mask;
            if register == GroupRegister::Receptions {
                self.deny_receptions(subgroup_id, bits);
            }
            let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { continue };

            match register {
                GroupRegister::RemoteGets => {
                    subgroup.remote_get = bits as u8;
                    // A packet that waits for a FIFO which is no longer for gets must be dropped.
                    self.reception_waits.wake_all();
                }
                GroupRegister::Receptions => self.enable_reception(subgroup_id, bits),
                _ => {
                    // The multiplication shifts the bits up to the interrupts of the register.
                    let first = register.first_interrupt();
                    let others = subgroup.interrupts.enabled & !(mask * first);
                    subgroup.interrupts.enable(others | (bits * first));
                }
            }
            self.subgroups.mark_changed(subgroup_id);
        }
    }
}
