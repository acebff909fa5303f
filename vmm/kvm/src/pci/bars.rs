//! The BARs of a plugged function: their registers, and what they decode.

use std::{
    fs::File,
    ops::{Range, RangeInclusive},
    sync::Arc,
};

use nix::libc;
use vm_memory::{FileOffset, MmapRegion};

use crate::{
    function::{Area, Bar, BarKind, Doorbell, FunctionError},
    hypervisor::{ExitAddress, MemoryAccess},
    layout::{WINDOW_32, WINDOW_64, WINDOW_IO},
    memory::PAGE,
    slots::{Slot, Slots},
};

/// Bits of the command register that enable the decoding of BARs.
pub(crate) const COMMAND_IO: u16 = 1 << 0;
pub(crate) const COMMAND_MEMORY: u16 = 1 << 1;

/// Number of BAR registers.
const REGISTERS: usize = 6;
/// Sizes that a function may give a BAR. The largest ones exceed the windows: such a BAR is never
/// decoded.
const SIZES_IO: RangeInclusive<u64> = 4..=1 << 12;
const SIZES_MEMORY_32: RangeInclusive<u64> = 16..=1 << 31;
const SIZES_MEMORY_64: RangeInclusive<u64> = 16..=1 << 40;

/// The space in which a BAR has addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Memory,
    Io,
}

/// The BARs of a function.
pub(crate) struct Bars {
    bars: Vec<PluggedBar>,
}

/// A BAR, its register, and what of it is in the guest now.
struct PluggedBar {
    bar: Bar,
    /// Bits 3 to 0 of the register, which describe the BAR.
    flags: u32,
    /// The areas that are memory.
    areas: Vec<MappedArea>,
    /// The address in the register.
    address: u64,
    /// The address that is decoded now, if one is.
    decoded: Option<u64>,
    doorbells: Vec<PluggedDoorbell>,
}

/// An area that this process has mapped. KVM gives the guest memory of this process only.
struct MappedArea {
    offset: u64,
    memory: Arc<MmapRegion>,
    access: MemoryAccess,
    /// The memory slot by which the guest has the area: none while its BAR is not decoded, or while
    /// another BAR's memory has the addresses.
    slot: Option<Slot>,
}

/// A doorbell of a BAR.
struct PluggedDoorbell {
    doorbell: Doorbell,
    /// Its address in the guest while it is connected.
    connected: Option<ExitAddress>,
}

/// Addresses that a BAR decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) space: Space,
    pub(crate) addresses: Range<u64>,
    pub(crate) bar: u8,
}

impl Bars {
    /// Checks and maps the BARs of a function. `flags` are bits 3 to 0 of each BAR's register.
    pub(crate) fn new(
        bars: Vec<Bar>,
        doorbells: &[Doorbell],
        flags: impl Fn(u8) -> Result<u32, FunctionError>,
    ) -> Result<Self, FunctionError> {
        let mut used = [false; REGISTERS];
        let mut plugged = Vec::new();

        for bar in bars {
            check_bar(&bar)?;
            for register in register_numbers(&bar) {
                match used.get_mut(register) {
                    Some(used) if !*used => *used = true,
                    _ => return Err(malformed(&bar, "shares a register with another BAR")),
                }
            }

            let areas = bar.areas.iter().map(MappedArea::new).collect::<Result<_, _>>()?;
            let flags = flags(bar.index)?;
            let doorbells = doorbells
                .iter()
                .filter(|doorbell| doorbell.bar == bar.index && doorbell.offset < bar.size)
                .map(|doorbell| PluggedDoorbell { doorbell: doorbell.clone(), connected: None })
                .collect();
            plugged.push(PluggedBar { flags, areas, address: 0, decoded: None, doorbells, bar });
        }
        Ok(Self { bars: plugged })
    }

    /// Returns the value of BAR register number `register`. A BAR of 64 bits has its flags and the
    /// lower half of its address in the first of its two registers. Others read as 0.
    pub(crate) fn register(&self, register: usize) -> u32 {
        let found = self.bars.iter().find(|plugged| register_numbers(&plugged.bar).contains(&register));
        match found {
            Some(plugged) if usize::from(plugged.bar.index) == register => {
                plugged.address as u32 | plugged.flags
            }
            Some(plugged) => (plugged.address >> 32) as u32,
            None => 0,
        }
    }

    /// Writes BAR register number `register`. Address bits below the BAR's size stay 0, by which a
    /// guest finds the size out.
    pub(crate) fn set_register(&mut self, register: usize, value: u32) {
        let found = self.bars.iter_mut().find(|plugged| register_numbers(&plugged.bar).contains(&register));
        let Some(plugged) = found else { return };

        let (low, high) = (plugged.address & 0xffff_ffff, plugged.address & !0xffff_ffff);
        let is_lower_half = usize::from(plugged.bar.index) == register;
        let address = match is_lower_half {
            true => high | u64::from(value),
            false => u64::from(value) << 32 | low,
        };
        plugged.address = address & !(plugged.bar.size - 1);
    }

    /// Sets all registers to their values after a reset.
    pub(crate) fn reset(&mut self) {
        self.bars.iter_mut().for_each(|plugged| plugged.address = 0);
    }

    /// Makes the decoded addresses follow the BARs' registers and the command register. Returns
    /// whether any have changed.
    pub(crate) fn decode(&mut self, command: u16, slots: &Slots) -> bool {
        let mut changed = false;
        for plugged in &mut self.bars {
            let address = plugged.address_to_decode(command);
            if address != plugged.decoded {
                plugged.unmap(slots);
                plugged.decoded = address;
                plugged.map(slots);
                changed = true;
            }
        }
        changed
    }

    /// Maps what a decoded BAR has not got, because another BAR had the addresses or no memory slot
    /// was left.
    pub(crate) fn map_rest(&mut self, bar: u8, slots: &Slots) {
        if let Some(plugged) = self.bars.iter_mut().find(|plugged| plugged.bar.index == bar) {
            plugged.map(slots);
        }
    }

    /// Returns the addresses that are decoded.
    pub(crate) fn decoded(&self) -> impl Iterator<Item = Decoded> {
        self.bars.iter().filter_map(|plugged| {
            let start = plugged.decoded?;
            let addresses = start..start + plugged.bar.size;
            Some(Decoded { space: space(&plugged.bar), addresses, bar: plugged.bar.index })
        })
    }
}

impl PluggedBar {
    /// Returns the address to decode: that in the register, if the command register enables this
    /// kind of BAR and the whole BAR is in a window.
    fn address_to_decode(&self, command: u16) -> Option<u64> {
        let (enable, windows) = match self.bar.kind {
            BarKind::Io => (COMMAND_IO, [WINDOW_IO, 0..0]),
            BarKind::Memory32 => (COMMAND_MEMORY, [WINDOW_32, 0..0]),
            BarKind::Memory64 => (COMMAND_MEMORY, [WINDOW_32, WINDOW_64]),
        };

        let end = self.address.checked_add(self.bar.size)?;
        let in_window = windows.iter().any(|window| self.address >= window.start && end <= window.end);
        (command & enable != 0 && in_window).then_some(self.address)
    }

    /// Removes the areas from the guest, and disconnects the doorbells.
    fn unmap(&mut self, slots: &Slots) {
        let mapped = self.areas.iter_mut().filter_map(|area| area.slot.take());
        mapped.for_each(|slot| slots.unmap(slot));

        for PluggedDoorbell { doorbell, connected } in &mut self.doorbells {
            if let Some(address) = connected.take()
                && let Err(error) = slots.disconnect_doorbell(address, &doorbell.event)
            {
                tracing::warn!(%error, bar = self.bar.index, "a doorbell cannot be disconnected");
            }
        }
    }

    /// Maps the areas into the guest that are not mapped, and connects the doorbells. Accesses to a
    /// part that KVM refuses, because another BAR has its addresses, continue to cause exits. A
    /// guest can move BARs as often as it likes, so a refusal is not in the log by default.
    fn map(&mut self, slots: &Slots) {
        let Some(address) = self.decoded else { return };
        for area in self.areas.iter_mut().filter(|area| area.slot.is_none()) {
            match slots.map(address + area.offset, area.memory.clone(), area.access) {
                Ok(slot) => area.slot = Some(slot),
                Err(error) => tracing::debug!(%error, bar = self.bar.index, "an area is not mapped"),
            }
        }

        let space = space(&self.bar);
        for PluggedDoorbell { doorbell, connected } in &mut self.doorbells {
            if connected.is_some() {
                continue;
            }
            let at = match space {
                Space::Io => ExitAddress::Port(address + doorbell.offset),
                Space::Memory => ExitAddress::Memory(address + doorbell.offset),
            };
            match slots.connect_doorbell(at, &doorbell.event) {
                Ok(()) => *connected = Some(at),
                Err(error) => {
                    tracing::debug!(%error, bar = self.bar.index, "writes of a doorbell cause exits")
                }
            }
        }
    }
}

impl MappedArea {
    /// Maps an area of a function's file into this process.
    fn new(area: &Area) -> Result<Self, FunctionError> {
        let access = if area.writable { MemoryAccess::ReadWrite } else { MemoryAccess::ReadOnly };
        let protection = match access {
            MemoryAccess::ReadOnly => libc::PROT_READ,
            MemoryAccess::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };

        let file = FileOffset::from_arc(Arc::<File>::clone(&area.file), area.file_offset);
        let memory = MmapRegion::build(Some(file), area.size as usize, protection, libc::MAP_SHARED)
            .map_err(|error| FunctionError::Map(error.to_string()))?;
        Ok(Self { offset: area.offset, memory: Arc::new(memory), access, slot: None })
    }
}

/// Returns the numbers of a BAR's registers.
fn register_numbers(bar: &Bar) -> Range<usize> {
    let index = usize::from(bar.index);
    let count = if bar.kind == BarKind::Memory64 { 2 } else { 1 };
    index..index + count
}

/// Returns the space in which a BAR has addresses.
fn space(bar: &Bar) -> Space {
    if bar.kind == BarKind::Io { Space::Io } else { Space::Memory }
}

/// Checks a function's description of a BAR: the size, and areas of whole pages without overlaps.
fn check_bar(bar: &Bar) -> Result<(), FunctionError> {
    let sizes = match bar.kind {
        BarKind::Io => SIZES_IO,
        BarKind::Memory32 => SIZES_MEMORY_32,
        BarKind::Memory64 => SIZES_MEMORY_64,
    };
    if !bar.size.is_power_of_two() || !sizes.contains(&bar.size) {
        return Err(malformed(bar, &format!("has {} bytes", bar.size)));
    }

    let mut areas: Vec<_> = bar.areas.iter().collect();
    areas.sort_by_key(|area| area.offset);
    let mut end_before = 0;
    for area in areas {
        let is_aligned = [area.offset, area.size, area.file_offset].iter().all(|value| value % PAGE == 0);
        let end = area.offset.checked_add(area.size).filter(|end| *end <= bar.size);
        match end {
            Some(end) if is_aligned && area.offset >= end_before && area.size > 0 => end_before = end,
            _ => return Err(malformed(bar, &format!("has an area at {:#x}", area.offset))),
        }
    }
    Ok(())
}

/// Returns the error for a BAR's description that makes no sense.
fn malformed(bar: &Bar, problem: &str) -> FunctionError {
    FunctionError::Malformed(format!("BAR {} {problem}", bar.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(index: u8, kind: BarKind, size: u64) -> Bar {
        Bar { index, kind, size, areas: Vec::new() }
    }

    fn bars(bars: Vec<Bar>) -> Result<Bars, FunctionError> {
        Bars::new(bars, &[], |_| Ok(4))
    }

    #[test]
    fn all_ones_read_back_as_the_size() {
        let mut bars =
            bars(vec![bar(0, BarKind::Memory64, 1 << 16), bar(2, BarKind::Memory32, 4096)]).unwrap();
        for register in 0..6 {
            bars.set_register(register, u32::MAX);
        }
        let values: Vec<_> = (0..6).map(|register| bars.register(register)).collect();
        assert_eq!(values, [0xffff_0004, 0xffff_ffff, 0xffff_f004, 0, 0, 0]);
    }

    #[test]
    fn bars_outside_the_windows_are_not_decoded() {
        let mut bars = bars(vec![bar(0, BarKind::Memory32, 4096)]).unwrap();
        let mut wanted = |address: u64, command| {
            bars.set_register(0, address as u32);
            bars.bars[0].address_to_decode(command)
        };

        assert_eq!(wanted(WINDOW_32.start, COMMAND_MEMORY), Some(WINDOW_32.start));
        assert_eq!(wanted(WINDOW_32.start, COMMAND_IO), None);
        assert_eq!(wanted(WINDOW_32.end - 4096, COMMAND_MEMORY), Some(WINDOW_32.end - 4096));
        assert_eq!(wanted(WINDOW_32.end, COMMAND_MEMORY), None);
        assert_eq!(wanted(0, COMMAND_MEMORY), None);
    }

    #[test]
    fn functions_that_make_no_sense_are_refused() {
        let file = || Arc::new(tempfile::tempfile().unwrap());
        let area = |offset, size| Area { offset, size, file: file(), file_offset: 0, writable: true };
        let with = |areas| Bar { areas, ..bar(0, BarKind::Memory32, 8192) };

        for bad in [
            vec![bar(0, BarKind::Memory32, 4095)],
            vec![bar(5, BarKind::Memory64, 4096)],
            vec![bar(0, BarKind::Memory64, 4096), bar(1, BarKind::Memory32, 4096)],
            vec![with(vec![area(4096, 8192)])],
            vec![with(vec![area(0, 8192), area(4096, 4096)])],
            vec![with(vec![area(100, 4096)])],
            vec![with(vec![area(u64::MAX - 4095, 4096)])],
        ] {
            assert!(matches!(bars(bad.clone()), Err(FunctionError::Malformed(_))), "{bad:?}");
        }
    }
}
