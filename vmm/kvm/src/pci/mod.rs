//! The PCI Express bus: configuration space, and the addresses that BARs decode.

mod bars;
mod capability;
mod msix;
mod reset;

use std::{
    ops::Range,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use crate::{
    error::VmError,
    event::Event,
    function::{Function, FunctionError},
    interrupts::Interrupts,
    layout::{PCI_SLOTS, interrupt_line},
    slots::Slots,
};
pub(crate) use bars::Space;
use bars::{Bars, Decoded};
use msix::{Msix, MsixLocation};
use reset::ResetControl;

/// Number of slots of the bus. Each has one function.
const SLOTS: usize = PCI_SLOTS as usize;
/// Size of a function's configuration space in the ECAM.
const CONFIG_SIZE: u64 = 4096;
/// Number of configuration spaces of a slot in the ECAM. Only function 0 of a slot exists.
const FUNCTIONS: u64 = 8;

/// Registers of the configuration space.
const COMMAND: u16 = 0x04;
const BARS: Range<u16> = 0x10..0x28;
const ROM: Range<u16> = 0x30..0x34;
const INTERRUPT_PIN: u16 = 0x3d;

/// The bit of a BAR's register for I/O ports, and the bits that describe a BAR of either space.
const BAR_IO: u8 = 1;
const BAR_IO_FLAGS: u8 = 0b11;
const BAR_MEMORY_FLAGS: u8 = 0b1111;

/// The bus.
pub(crate) struct PciBus {
    memory: Arc<Slots>,
    interrupts: Arc<Interrupts>,
    slots: [Option<Plugged>; SLOTS],
    /// The addresses that functions decode, with their slots. The guest's writes to configuration
    /// spaces change them.
    windows: RwLock<Vec<(usize, Decoded)>>,
}

/// The register that an access to the ECAM reaches.
struct ConfigTarget<'a> {
    plugged: &'a Plugged,
    slot: usize,
    register: u16,
}

/// The part of a BAR that an access to an address reaches.
struct BarTarget<'a> {
    plugged: &'a Plugged,
    bar: u8,
    offset: u64,
}

/// A function in a slot.
struct Plugged {
    function: Arc<dyn Function>,
    /// The place of the MSI-X capability and table, if the function has them.
    msix: Option<MsixLocation>,
    /// The place of the bit that resets the function, if it has one.
    reset: Option<ResetControl>,
    state: Mutex<State>,
    /// The eventfds of the interrupt line, if the function has one.
    line: Option<InterruptLine>,
}

/// The eventfds of an interrupt line.
struct InterruptLine {
    /// The function signals it when it asserts the line.
    raised: Event,
    /// KVM signals it when the guest has serviced the interrupt.
    serviced: Event,
}

/// State that the guest sets in a function's configuration space and MSI-X table.
struct State {
    command: u16,
    bars: Bars,
    msix: Option<Msix>,
}

impl PciBus {
    /// Makes a bus without functions.
    pub(crate) fn new(memory: Arc<Slots>, interrupts: Arc<Interrupts>) -> Self {
        Self { memory, interrupts, slots: Default::default(), windows: RwLock::default() }
    }

    /// Puts a function into a slot.
    pub(crate) fn plug(&mut self, slot: u8, function: Arc<dyn Function>) -> Result<(), VmError> {
        self.check_free(slot)?;
        let failed = |error| VmError::Function { slot, error };
        let mut plugged = Plugged::new(function, &self.interrupts).map_err(failed)?;
        if plugged.has_line().map_err(failed)? {
            plugged.connect_line(&self.interrupts, interrupt_line(slot))?;
        }
        self.slots[usize::from(slot)] = Some(plugged);
        Ok(())
    }

    /// Checks that a slot exists and has no function.
    pub(crate) fn check_free(&self, slot: u8) -> Result<(), VmError> {
        let is_free = self.slots.get(usize::from(slot)).is_some_and(Option::is_none);
        if is_free { Ok(()) } else { Err(VmError::Request(format!("slot {slot} is not free"))) }
    }

    /// Returns the functions, with their slots.
    pub(crate) fn functions(&self) -> Vec<(u8, Arc<dyn Function>)> {
        let plugged = (0..).zip(&self.slots);
        plugged.filter_map(|(slot, plugged)| Some((slot, plugged.as_ref()?.function.clone()))).collect()
    }

    /// Reads from the ECAM, at an offset from its start. Functions that do not exist read as ones.
    pub(crate) fn config_read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some(target) = self.find_register(offset, data.len()) {
            target.plugged.config_read(target.register, data);
        }
    }

    /// Writes to the ECAM, at an offset from its start.
    pub(crate) fn config_write(&self, offset: u64, data: &[u8]) {
        let target = self.find_register(offset, data.len());
        let Some(ConfigTarget { plugged, slot, register }) = target else { return };
        let state = plugged.config_write(register, data, &self.memory);

        // The function's state stays locked meanwhile, so that the changes of two processors reach
        // the table in their order.
        if let Some(state) = state {
            self.update_windows(slot, state.bars.decoded().collect());
            drop(state);
            self.map_rest();
        }
    }

    /// Sets the addresses that the function in a slot decodes. BARs that stay keep their places in
    /// the table: of two at one address, the first answers, as it has the memory.
    fn update_windows(&self, slot: usize, mut decoded: Vec<Decoded>) {
        let mut windows = self.windows.write().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|(owner, window)| *owner != slot || decoded.contains(window));
        decoded.retain(|new| !windows.iter().any(|(owner, window)| *owner == slot && window == new));
        windows.extend(decoded.into_iter().map(|decoded| (slot, decoded)));
    }

    /// Maps what BARs have not got, now that the addresses of another one have changed. The first
    /// BARs of the table come first.
    fn map_rest(&self) {
        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner).clone();
        // One function's state is locked at a time, so that two processors cannot wait for each
        // other.
        for (slot, decoded) in windows {
            if let Some(plugged) = &self.slots[slot] {
                plugged.state().bars.map_rest(decoded.bar, &self.memory);
            }
        }
    }

    /// Reads at an address that is no memory. Addresses that nothing decodes read as ones.
    pub(crate) fn read(&self, space: Space, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let Some(target) = self.find(space, address, data.len()) {
            target.plugged.bar_read(target.bar, target.offset, data);
        }
    }

    /// Writes at an address that is no memory.
    pub(crate) fn write(&self, space: Space, address: u64, data: &[u8]) {
        if let Some(target) = self.find(space, address, data.len()) {
            target.plugged.bar_write(target.bar, target.offset, data);
        }
    }

    /// Returns what an access to the ECAM reaches: nothing if it is not aligned to its length, or
    /// if there is no such function.
    fn find_register(&self, offset: u64, length: usize) -> Option<ConfigTarget<'_>> {
        let (function, register) = (offset / CONFIG_SIZE, offset % CONFIG_SIZE);
        let is_aligned = matches!(length, 1 | 2 | 4) && register.is_multiple_of(length as u64);
        if !is_aligned || function % FUNCTIONS != 0 {
            return None;
        }

        let slot = (function / FUNCTIONS) as usize;
        let plugged = self.slots.get(slot)?.as_ref()?;
        Some(ConfigTarget { plugged, slot, register: register as u16 })
    }

    /// Returns what an access to an address reaches: nothing if no BAR decodes all of its bytes.
    fn find(&self, space: Space, address: u64, length: usize) -> Option<BarTarget<'_>> {
        // Functions get accesses of these lengths only.
        if !matches!(length, 1 | 2 | 4 | 8) {
            return None;
        }

        let windows = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        let (slot, decoded) = windows
            .iter()
            .find(|(_, decoded)| decoded.space == space && decoded.addresses.contains(&address))?;

        let fits = decoded.addresses.end - address >= length as u64;
        let plugged = self.slots[*slot].as_ref().filter(|_| fits)?;
        Some(BarTarget { plugged, bar: decoded.bar, offset: address - decoded.addresses.start })
    }
}

impl State {
    /// Sets the state after a reset of the function.
    fn reset(&mut self) {
        self.command = 0;
        self.bars.reset();
        if let Some(msix) = &mut self.msix {
            msix.reset();
        }
    }
}

impl Plugged {
    /// Reads a function's description and capabilities.
    fn new(function: Arc<dyn Function>, interrupts: &Arc<Interrupts>) -> Result<Self, FunctionError> {
        let flags = |bar: u8| {
            let mut register = [0; 4];
            function.config_read(BARS.start + 4 * u16::from(bar), &mut register)?;
            let is_io = register[0] & BAR_IO != 0;
            Ok(u32::from(register[0] & if is_io { BAR_IO_FLAGS } else { BAR_MEMORY_FLAGS }))
        };
        let bars = Bars::new(function.bars(), &function.doorbells(), flags)?;

        let msix = MsixLocation::find(&*function)?;
        let reset = ResetControl::find(&*function)?;
        let state = State {
            command: 0,
            bars,
            msix: msix.clone().map(|found| Msix::new(function.clone(), interrupts.clone(), found)),
        };
        Ok(Self { function, msix, reset, state: Mutex::new(state), line: None })
    }

    /// Returns whether the function has an interrupt line.
    fn has_line(&self) -> Result<bool, FunctionError> {
        let mut pin = [0];
        self.function.config_read(INTERRUPT_PIN, &mut pin)?;
        Ok(pin[0] != 0)
    }

    /// Connects the interrupt line to an input of the I/O APIC.
    fn connect_line(&mut self, interrupts: &Interrupts, input: u32) -> Result<(), VmError> {
        let event = || Event::new().map_err(VmError::system("an eventfd"));
        let line = InterruptLine { raised: event()?, serviced: event()? };
        let InterruptLine { raised, serviced } = self.line.insert(line);
        interrupts.connect_line(raised, serviced, input)?;
        Ok(self.function.bind_line(raised.as_fd(), serviced.as_fd())?)
    }

    /// Locks the state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the configuration space: BARs from the bus's own registers, and the rest from the
    /// function.
    fn config_read(&self, register: u16, data: &mut [u8]) {
        if BARS.contains(&register) {
            let value = self.state().bars.register(usize::from(register - BARS.start) / 4);
            let bytes = value.to_le_bytes();
            let at = usize::from(register % 4);
            return data.copy_from_slice(&bytes[at..at + data.len()]);
        }

        if let Err(error) = self.function.config_read(register, data) {
            tracing::debug!(%error, register, "a read of the configuration space");
            data.fill(0xff);
        }
        for (at, byte) in (register..).zip(data) {
            match at {
                // There are no expansion ROMs.
                _ if ROM.contains(&at) => *byte = 0,
                // Pin A (1) of the slot is the only one with a route, whatever the function says.
                INTERRUPT_PIN => *byte = self.line.is_some().into(),
                _ => {}
            }
        }
    }

    /// Writes to the configuration space of the function, and to the bus's own registers. Returns
    /// the locked state if the decoded addresses have changed.
    fn config_write(&self, register: u16, data: &[u8], memory: &Slots) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        if let Err(error) = self.function.config_write(register, data) {
            tracing::debug!(%error, register, "a write to the configuration space");
        }

        if self.reset.is_some_and(|reset| reset.is_requested(register, data)) {
            state.reset();
        } else {
            self.write_own_registers(&mut state, register, data);
        }
        let command = state.command;
        state.bars.decode(command, memory).then_some(state)
    }

    /// Writes to the registers that the bus keeps itself: command, BARs, and MSI-X control.
    fn write_own_registers(&self, state: &mut State, register: u16, data: &[u8]) {
        if BARS.contains(&register) {
            // The write may reach some bytes of the register only.
            let number = usize::from(register - BARS.start) / 4;
            let mut bytes = state.bars.register(number).to_le_bytes();
            let at = usize::from(register % 4);
            bytes[at..at + data.len()].copy_from_slice(data);
            state.bars.set_register(number, u32::from_le_bytes(bytes));
        }

        state.command = merged(state.command, COMMAND, register, data);
        if let (Some(location), Some(msix)) = (&self.msix, state.msix.as_mut()) {
            // The bits that the guest sets are in the register's upper byte. The lower one is the
            // size of the table, so its value here does not count.
            let written = register..register + data.len() as u16;
            if written.contains(&(location.control + 1)) {
                msix.set_control(merged(0, location.control, register, data));
            }
        }
    }

    /// Reads from a BAR: the MSI-X table of the bus, or the function. Pending bits are those of
    /// both.
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        let table = self.msix.as_ref().filter(|location| location.contains(bar, offset));
        // An access to the function takes no lock, so that a slow answer of its server delays no
        // other access.
        if let Some(location) = table
            && let Some(msix) = &self.state().msix
        {
            return msix.read_table(offset - location.table.start, data);
        }

        if let Err(error) = self.function.bar_read(bar, offset, data) {
            tracing::debug!(%error, bar, offset, "a read");
            return data.fill(0xff);
        }

        let location = self.msix.as_ref();
        if location.is_some_and(|location| location.reaches_pending(bar, offset, data.len()))
            && let Some(msix) = &self.state().msix
        {
            msix.add_pending(offset, data);
        }
    }

    /// Writes to a BAR: to the MSI-X table, whose writes the function gets too, or to the function.
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) {
        let table = self.msix.as_ref().filter(|location| location.contains(bar, offset));
        if let Some(location) = table
            && let Some(msix) = &mut self.state().msix
        {
            return msix.write_table(offset - location.table.start, data);
        }

        if let Err(error) = self.function.bar_write(bar, offset, data) {
            tracing::debug!(%error, bar, offset, "a write");
        }
    }
}

/// Returns the value of a 16-bit register at offset `register`, which was `value`, after a write of
/// `data` at offset `written`. The write may reach both of its bytes, one, or none.
fn merged(value: u16, register: u16, written: u16, data: &[u8]) -> u16 {
    let mut bytes = value.to_le_bytes();
    for (at, byte) in (written..).zip(data) {
        if let Some(own) = at.checked_sub(register).and_then(|index| bytes.get_mut(usize::from(index))) {
            *own = *byte;
        }
    }
    u16::from_le_bytes(bytes)
}
