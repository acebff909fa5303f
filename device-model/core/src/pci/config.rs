//! Configuration space: 4096 bytes with a rule for each bit.

use std::sync::Arc;

use crate::spec::{BarKind, FunctionSpec};

use super::capabilities::{self, Places};

/// Bytes of configuration space.
pub const CONFIG_SIZE: usize = 4096;

/// Offsets in the type 0 header.
pub(super) mod header {
    pub(in crate::pci) const VENDOR: usize = 0x00;
    pub(in crate::pci) const DEVICE: usize = 0x02;
    pub(in crate::pci) const COMMAND: usize = 0x04;
    pub(in crate::pci) const STATUS: usize = 0x06;
    pub(in crate::pci) const REVISION_CLASS: usize = 0x08;
    pub(in crate::pci) const CACHE_LINE: usize = 0x0c;
    pub(in crate::pci) const BARS: usize = 0x10;
    pub(in crate::pci) const SUBSYSTEM_VENDOR: usize = 0x2c;
    pub(in crate::pci) const SUBSYSTEM: usize = 0x2e;
    pub(in crate::pci) const CAPABILITIES: usize = 0x34;
    pub(in crate::pci) const INTERRUPT_LINE: usize = 0x3c;
    pub(in crate::pci) const INTERRUPT_PIN: usize = 0x3d;
}

const COMMAND_IO: u16 = 1 << 0;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_PARITY: u16 = 1 << 6;
const COMMAND_SERR: u16 = 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS_INTERRUPT: u16 = 1 << 3;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const STATUS_RECEIVED_MASTER_ABORT: u16 = 1 << 13;
/// Master data parity error, signaled and received aborts, signaled system error, detected parity
/// error.
const STATUS_ERRORS: u16 = 0xf900;

/// Power state of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// On.
    D0,
    /// Asleep with power: the function starts no DMA. Of what a card does besides, answering at no
    /// BAR, nothing is modelled: its registers and rings go on working.
    D3Hot,
}

/// What a write to configuration space means for the rest of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigEffect {
    /// A function-level reset was asked for: reset the attachment, then answer the write.
    pub function_level_reset: bool,
    /// Some bit has another value than before.
    pub changed: bool,
    /// Among them INTx disable, MSI-X enable, or the MSI-X function mask: what is pending may be
    /// delivered now.
    pub interrupts_changed: bool,
}

/// A byte map of all of configuration space.
pub(super) type Bytes = Box<[u8]>;

/// Values and rules while they are put together.
pub(super) struct Image {
    pub(super) value: Bytes,
    /// Bits that software writes.
    pub(super) writable: Bytes,
    /// Bits that software clears by writing ones.
    pub(super) clears: Bytes,
    /// Bits that a function-level reset leaves alone.
    pub(super) sticky: Bytes,
}

impl Image {
    fn new() -> Self {
        let zeros = || vec![0; CONFIG_SIZE].into_boxed_slice();
        Self { value: zeros(), writable: zeros(), clears: zeros(), sticky: zeros() }
    }

    /// A read-only field.
    pub(super) fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.value[at..at + N].copy_from_slice(&value);
    }

    /// A field of which `writable` bits can be written.
    pub(super) fn field<const N: usize>(&mut self, at: usize, value: [u8; N], writable: [u8; N]) {
        self.put(at, value);
        self.writable[at..at + N].copy_from_slice(&writable);
    }
}

/// What configuration spaces of one function have in common: the values of power-on, and the rules.
struct Function {
    power_on: Image,
    places: Places,
}

/// Configuration space of a function as one attachment sees it. Clones are of the same function,
/// and otherwise apart.
#[derive(Clone)]
pub struct ConfigSpace {
    value: Bytes,
    function: Arc<Function>,
}

impl ConfigSpace {
    /// Configuration space at power-on. `spec` has been validated.
    pub fn new(spec: &FunctionSpec) -> Self {
        let mut image = Image::new();
        put_header(&mut image, spec);
        let places = capabilities::put(&mut image, spec);
        Self { value: image.value.clone(), function: Arc::new(Function { power_on: image, places }) }
    }

    /// Read bytes; ones where there is no configuration space.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = self.value.get(start..).unwrap_or_default();
        let count = there.len().min(data.len());
        let (inside, behind) = data.split_at_mut(count);
        inside.copy_from_slice(&there[..count]);
        behind.fill(0xff);
    }

    /// Write bytes, each by its own rules; those behind the end are ignored.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::default();
        let before = self.interrupt_controls();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, &byte) in (start..CONFIG_SIZE).zip(data) {
            let old = self.value[at];
            let mut writable = self.function.power_on.writable[at];
            if at == self.function.places.power_control && !matches!(byte & capabilities::POWER_STATE, 0 | 3)
            {
                // D1 and D2 don't exist; a write of them is completed and changes no state.
                writable &= !capabilities::POWER_STATE;
            }
            if at == self.function.places.device_control + 1 && byte & capabilities::INITIATE_RESET != 0 {
                effect.function_level_reset = true;
            }
            let new = ((old & !writable) | (byte & writable)) & !(byte & self.function.power_on.clears[at]);
            self.value[at] = new;
            effect.changed |= new != old;
        }

        effect.interrupts_changed = self.interrupt_controls() != before;

        effect
    }

    /// Whether the function may start DMA.
    pub fn bus_master(&self) -> bool {
        self.enabled(COMMAND_BUS_MASTER)
    }

    /// Whether its memory BARs answer.
    pub fn memory_enabled(&self) -> bool {
        self.enabled(COMMAND_MEMORY)
    }

    /// Whether its I/O BARs answer.
    pub fn io_enabled(&self) -> bool {
        self.enabled(COMMAND_IO)
    }

    /// Whether software forbade INTx.
    pub fn intx_disabled(&self) -> bool {
        self.command() & COMMAND_INTX_DISABLE != 0
    }

    /// Whether software enabled MSI-X. INTx is not used then.
    pub fn msix_enabled(&self) -> bool {
        self.msix_control() & capabilities::MSIX_ENABLE != 0
    }

    /// Whether software masked all MSI-X vectors.
    pub fn msix_function_masked(&self) -> bool {
        self.msix_control() & capabilities::MSIX_FUNCTION_MASK != 0
    }

    /// The power state that software set.
    pub fn power_state(&self) -> PowerState {
        match self.value[self.function.places.power_control] & capabilities::POWER_STATE {
            0 => PowerState::D0,
            _ => PowerState::D3Hot,
        }
    }

    /// Where software put a BAR: its address, or for the I/O kind its port. `None` when there is no
    /// such BAR.
    pub fn bar_address(&self, bar: u8) -> Option<u64> {
        let index = usize::from(bar);
        let wide = *self.function.places.bars.get(index)?;
        let at = header::BARS + 4 * index;
        let low = u64::from(u32::from_le_bytes(self.get(at)));
        match wide? {
            BarKind::Io => Some(low & !0x3),
            BarKind::Memory32 => Some(low & !0xf),
            BarKind::Memory64 { .. } => {
                Some(low & !0xf | u64::from(u32::from_le_bytes(self.get(at + 4))) << 32)
            }
        }
    }

    /// Show in the status register whether the function asserts INTx (which *INTx disable* does not
    /// hide).
    pub fn set_interrupt_status(&mut self, asserted: bool) {
        let status = u16::from_le_bytes(self.get(header::STATUS));
        let status = if asserted { status | STATUS_INTERRUPT } else { status & !STATUS_INTERRUPT };
        self.set(header::STATUS, status.to_le_bytes());
    }

    /// Show that nothing answered a request of the function, as with DMA to an address that is not
    /// mapped: *received master abort* in the status register, *unsupported request detected* in
    /// the device status register.
    pub fn set_master_abort(&mut self) {
        let status = u16::from_le_bytes(self.get(header::STATUS)) | STATUS_RECEIVED_MASTER_ABORT;
        self.set(header::STATUS, status.to_le_bytes());
        self.value[self.function.places.device_control + 2] |= capabilities::UNSUPPORTED_REQUEST;
    }

    /// As it was made.
    pub fn power_on(&mut self) {
        self.value.copy_from_slice(&self.function.power_on.value);
    }

    /// A function-level reset: values of power-on, but for the few fields that it leaves alone (PCI
    /// Express Base 4.0, 6.6.2): maximum payload size and the settings of the link.
    pub fn reset(&mut self) {
        for (at, value) in self.value.iter_mut().enumerate() {
            let sticky = self.function.power_on.sticky[at];
            *value = (*value & sticky) | (self.function.power_on.value[at] & !sticky);
        }
    }

    fn enabled(&self, bit: u16) -> bool {
        self.command() & bit != 0 && self.power_state() == PowerState::D0
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes(self.get(header::COMMAND))
    }

    fn msix_control(&self) -> u16 {
        self.function.places.msix_control.map_or(0, |at| u16::from_le_bytes(self.get(at)))
    }

    fn interrupt_controls(&self) -> (bool, u16) {
        (self.intx_disabled(), self.msix_control())
    }

    /// At a place that the layout fixed.
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.value[at..at + N]);
        out
    }

    fn set<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.value[at..at + N].copy_from_slice(&value);
    }
}

fn put_header(image: &mut Image, spec: &FunctionSpec) {
    let identity = &spec.identity;
    image.put(header::VENDOR, identity.vendor.to_le_bytes());
    image.put(header::DEVICE, identity.device.to_le_bytes());
    image.put(header::REVISION_CLASS, (identity.class << 8 | u32::from(identity.revision)).to_le_bytes());
    image.put(header::SUBSYSTEM_VENDOR, identity.subsystem_vendor.to_le_bytes());
    image.put(header::SUBSYSTEM, identity.subsystem.to_le_bytes());
    image.put(header::STATUS, STATUS_CAPABILITIES.to_le_bytes());
    image.clears[header::STATUS..header::STATUS + 2].copy_from_slice(&STATUS_ERRORS.to_le_bytes());
    image.field(header::CACHE_LINE, [0], [0xff]);
    image.field(header::INTERRUPT_LINE, [0], [0xff]);
    image.put(header::INTERRUPT_PIN, [spec.intx.into()]);

    let mut command = COMMAND_BUS_MASTER | COMMAND_PARITY | COMMAND_SERR | COMMAND_INTX_DISABLE;
    for (index, bar) in spec.bars.iter().enumerate() {
        let Some(bar) = bar else { continue };
        let at = header::BARS + 4 * index;
        let mask = !(bar.size - 1);
        let (kind, mask) = match bar.kind {
            BarKind::Io => (0x1, mask & !0x3),
            BarKind::Memory32 => (0x0, mask & !0xf),
            BarKind::Memory64 { prefetchable } => (0x4 | u32::from(prefetchable) << 3, mask & !0xf),
        };
        command |= if bar.kind == BarKind::Io { COMMAND_IO } else { COMMAND_MEMORY };
        image.field(at, kind.to_le_bytes(), (mask as u32).to_le_bytes());
        if matches!(bar.kind, BarKind::Memory64 { .. }) {
            image.field(at + 4, [0; 4], ((mask >> 32) as u32).to_le_bytes());
        }
    }

    image.field(header::COMMAND, [0; 2], command.to_le_bytes());
}
