//! Configuration space: 4096 bytes with a rule for each bit.

use std::sync::Arc;

use crate::spec::{BarKind, FunctionSpec};

use super::capabilities::{self, RegisterOffsets};

/// Size of configuration space in bytes.
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
/// The error bits: master data parity error, signaled and received aborts, signaled system error,
/// detected parity error.
const STATUS_ERRORS: u16 = 0xf900;

// Bits of a BAR register.
const BAR_IS_IO: u32 = 1 << 0;
const BAR_IS_64_BIT: u32 = 1 << 2;
const BAR_PREFETCHABLE: u32 = 1 << 3;
/// The bits of an I/O BAR that are no address.
const BAR_IO_FLAGS: u64 = 0x3;
/// The bits of a memory BAR that are no address.
const BAR_MEMORY_FLAGS: u64 = 0xf;

/// Power state of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// Full power.
    D0,
    /// Sleep with power. The function starts no DMA. Its registers and rings continue to work,
    /// unlike those of a card, which answers at no BAR.
    D3Hot,
}

/// Effect of a write to configuration space on the rest of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigEffect {
    /// The write requested a function-level reset. The caller must reset the attachment, then
    /// answer the write.
    pub function_level_reset: bool,
    /// A bit has changed its value.
    pub changed: bool,
    /// INTx disable, MSI-X enable or the MSI-X function mask has changed. Pending interrupts may be
    /// deliverable now.
    pub interrupts_changed: bool,
}

/// The access to a BAR that an access to configuration space stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowAccess {
    /// Number of the BAR, which may not exist.
    pub(crate) bar: u8,
    /// Offset in the BAR, which may lie outside.
    pub(crate) offset: u64,
    /// Bytes of the access: 1, 2 or 4.
    pub(crate) length: usize,
}

/// One byte for each byte of configuration space.
pub(super) type Bytes = Box<[u8]>;

/// Configuration space at power-on: the value of each bit, and what may change it.
#[derive(PartialEq)]
pub(super) struct Image {
    /// Values at power-on.
    pub(super) value: Bytes,
    /// Bits that software can write.
    pub(super) writable: Bytes,
    /// Bits that software clears by writing ones.
    pub(super) clears: Bytes,
    /// Bits that a function-level reset keeps.
    pub(super) sticky: Bytes,
}

impl Image {
    /// Returns an image whose bits are all zero and read-only.
    fn new() -> Self {
        let zeros = || vec![0; CONFIG_SIZE].into_boxed_slice();
        Self { value: zeros(), writable: zeros(), clears: zeros(), sticky: zeros() }
    }

    /// Sets a read-only field.
    pub(super) fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.value[at..at + N].copy_from_slice(&value);
    }

    /// Sets a field of which software can write the bits in `writable`.
    pub(super) fn field<const N: usize>(&mut self, at: usize, value: [u8; N], writable: [u8; N]) {
        self.put(at, value);
        self.writable[at..at + N].copy_from_slice(&writable);
    }
}

/// State shared by the configuration spaces of equal functions: the power-on values and the rules.
#[derive(PartialEq)]
struct ConfigLayout {
    power_on: Image,
    offsets: RegisterOffsets,
}

impl ConfigLayout {
    /// Returns the layout of a function's configuration space. The caller has validated `spec`.
    fn new(spec: &FunctionSpec) -> Self {
        let mut image = Image::new();
        put_header(&mut image, spec);
        let offsets = capabilities::put(&mut image, spec);
        Self { power_on: image, offsets }
    }
}

/// The layouts of a machine's functions, which equal functions share.
#[derive(Default)]
pub(crate) struct ConfigLayouts(Vec<Arc<ConfigLayout>>);

impl ConfigLayouts {
    /// Maximum number of layouts that a new function is compared with. Machines have few kinds of
    /// functions.
    const MAX: usize = 32;

    /// Returns the configuration space of a function without a client. It reads as the power-on
    /// values of the layout, and has no others.
    pub(crate) fn config_space(&mut self, spec: &FunctionSpec) -> ConfigSpace {
        let layout = ConfigLayout::new(spec);
        let shared = self.0.iter().find(|known| ***known == layout).cloned();
        let layout = shared.unwrap_or_else(|| {
            let layout = Arc::new(layout);
            if self.0.len() < Self::MAX {
                self.0.push(Arc::clone(&layout));
            }
            layout
        });

        ConfigSpace { value: Bytes::default(), layout }
    }
}

/// Configuration space of a function as one attachment sees it. A clone belongs to the same
/// function and has its own values.
///
/// Without a client it has the power-on values, and ignores changes.
#[derive(Clone)]
pub struct ConfigSpace {
    /// The values, or nothing without a client.
    value: Bytes,
    layout: Arc<ConfigLayout>,
}

impl ConfigSpace {
    /// Returns configuration space at power-on, for a client. The caller has validated `spec`.
    pub fn new(spec: &FunctionSpec) -> Self {
        let layout = ConfigLayout::new(spec);
        Self { value: layout.power_on.value.clone(), layout: Arc::new(layout) }
    }

    /// Returns the values.
    fn values(&self) -> &[u8] {
        if self.value.is_empty() { &self.layout.power_on.value } else { &self.value }
    }

    /// Reads bytes. Bytes beyond configuration space read as ones.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let available = self.values().get(start..).unwrap_or_default();
        let count = available.len().min(data.len());
        let (inside, beyond) = data.split_at_mut(count);
        inside.copy_from_slice(&available[..count]);
        beyond.fill(0xff);
    }

    /// Writes bytes, each by its own rules. Bytes beyond the end are ignored.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::default();
        let interrupt_controls_before = self.interrupt_controls();

        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, &byte) in (start..self.value.len()).zip(data) {
            let old = self.value[at];
            let mut writable = self.layout.power_on.writable[at];
            if at == self.layout.offsets.power_control
                && !matches!(byte & capabilities::POWER_STATE, capabilities::D0 | capabilities::D3_HOT)
            {
                // The function has no D1 and D2. A write of them completes and changes no state.
                writable &= !capabilities::POWER_STATE;
            }

            // The bit is in the high byte of the device control register.
            if at == self.layout.offsets.device_control + 1 && byte & capabilities::INITIATE_RESET != 0 {
                effect.function_level_reset = true;
            }

            let new = ((old & !writable) | (byte & writable)) & !(byte & self.layout.power_on.clears[at]);
            self.value[at] = new;
            effect.changed |= new != old;
        }

        effect.interrupts_changed = self.interrupt_controls() != interrupt_controls_before;

        effect
    }

    /// Returns whether the function may start DMA.
    pub fn bus_master(&self) -> bool {
        self.enabled(COMMAND_BUS_MASTER)
    }

    /// Returns whether the memory BARs answer.
    pub fn memory_enabled(&self) -> bool {
        self.enabled(COMMAND_MEMORY)
    }

    /// Returns whether the I/O BARs answer.
    pub fn io_enabled(&self) -> bool {
        self.enabled(COMMAND_IO)
    }

    /// Returns whether software disabled INTx.
    pub fn intx_disabled(&self) -> bool {
        self.command() & COMMAND_INTX_DISABLE != 0
    }

    /// Returns whether software enabled MSI-X. INTx is not used then.
    pub fn msix_enabled(&self) -> bool {
        self.msix_control() & capabilities::MSIX_ENABLE != 0
    }

    /// Returns whether software masked all MSI-X vectors.
    pub fn msix_function_masked(&self) -> bool {
        self.msix_control() & capabilities::MSIX_FUNCTION_MASK != 0
    }

    /// Returns the power state that software set.
    pub fn power_state(&self) -> PowerState {
        match self.get::<1>(self.layout.offsets.power_control)[0] & capabilities::POWER_STATE {
            capabilities::D0 => PowerState::D0,
            _ => PowerState::D3Hot,
        }
    }

    /// Returns the address of a BAR that software set, or its port for the I/O kind. Returns `None`
    /// if there is no such BAR.
    pub fn bar_address(&self, bar: u8) -> Option<u64> {
        let index = usize::from(bar);
        let kind = *self.layout.offsets.bars.get(index)?;
        let at = header::BARS + 4 * index;
        let low = u64::from(u32::from_le_bytes(self.get(at)));
        match kind? {
            BarKind::Io => Some(low & !BAR_IO_FLAGS),
            BarKind::Memory32 => Some(low & !BAR_MEMORY_FLAGS),
            BarKind::Memory64 { .. } => {
                let high = u64::from(u32::from_le_bytes(self.get(at + 4)));
                Some(low & !BAR_MEMORY_FLAGS | high << 32)
            }
        }
    }

    /// Returns the access to a BAR that an access of `length` bytes at `offset` of configuration
    /// space performs through the device's BAR window ([`crate::spec::BarWindow`]). Returns `None`
    /// if the access does not lie in the window's data register, or the window's other registers
    /// name no valid access. An access that also covers other registers does not reach the BAR.
    pub(crate) fn window_access(&self, offset: u64, length: usize) -> Option<WindowAccess> {
        let window = self.layout.offsets.window?;
        let data = window.data as u64;
        if length == 0 || offset < data || offset.saturating_add(length as u64) > data + 4 {
            return None;
        }

        let [bar] = self.get(window.bar);
        let bar_offset = u32::from_le_bytes(self.get(window.offset));
        let width = u32::from_le_bytes(self.get(window.length));
        let is_valid = usize::from(bar) < self.layout.offsets.bars.len()
            && matches!(width, 1 | 2 | 4)
            && bar_offset.is_multiple_of(width);

        is_valid.then_some(WindowAccess { bar, offset: bar_offset.into(), length: width as usize })
    }

    /// Returns the data register of the window.
    pub(crate) fn window_data(&self) -> [u8; 4] {
        self.layout.offsets.window.map_or([0xff; 4], |window| self.get(window.data))
    }

    /// Sets the data register of the window to the value that a BAR returned.
    pub(crate) fn set_window_data(&mut self, data: [u8; 4]) {
        if let Some(window) = self.layout.offsets.window {
            self.set(window.data, data);
        }
    }

    /// Sets the bit of the status register that says whether the function asserts INTx. *INTx
    /// disable* has no effect on this bit.
    pub fn set_interrupt_status(&mut self, asserted: bool) {
        let status = u16::from_le_bytes(self.get(header::STATUS));
        let status = if asserted { status | STATUS_INTERRUPT } else { status & !STATUS_INTERRUPT };
        self.set(header::STATUS, status.to_le_bytes());
    }

    /// Records a request of the function without an answer, such as DMA to an unmapped address. It
    /// sets *received master abort* in the status register and *unsupported request detected* in
    /// the device status register.
    pub fn set_master_abort(&mut self) {
        let status = u16::from_le_bytes(self.get(header::STATUS)) | STATUS_RECEIVED_MASTER_ABORT;
        self.set(header::STATUS, status.to_le_bytes());

        // The device status register follows the device control register.
        let device_status = self.layout.offsets.device_control + 2;
        let [value] = self.get(device_status);
        self.set(device_status, [value | capabilities::UNSUPPORTED_REQUEST]);
    }

    /// Sets the power-on values, for a client.
    pub fn power_on(&mut self) {
        self.value.clone_from(&self.layout.power_on.value);
    }

    /// Drops the values after the client's end.
    pub(crate) fn power_off(&mut self) {
        self.value = Bytes::default();
    }

    /// Carries out a function-level reset. It restores the power-on values except maximum payload
    /// size and the link settings, which it keeps (PCI Express Base 4.0, 6.6.2).
    pub fn reset(&mut self) {
        for (at, value) in self.value.iter_mut().enumerate() {
            let sticky = self.layout.power_on.sticky[at];
            *value = (*value & sticky) | (self.layout.power_on.value[at] & !sticky);
        }
    }

    /// Returns whether a command bit is set in power state D0.
    fn enabled(&self, bit: u16) -> bool {
        self.command() & bit != 0 && self.power_state() == PowerState::D0
    }

    /// Returns the command register.
    fn command(&self) -> u16 {
        u16::from_le_bytes(self.get(header::COMMAND))
    }

    /// Returns the message control word of MSI-X, 0 without MSI-X.
    fn msix_control(&self) -> u16 {
        self.layout.offsets.msix_control.map_or(0, |at| u16::from_le_bytes(self.get(at)))
    }

    /// Returns the values whose change may make interrupts deliverable.
    fn interrupt_controls(&self) -> (bool, u16) {
        (self.intx_disabled(), self.msix_control())
    }

    /// Returns a field, which must lie in configuration space.
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        match self.value.get(at..at + N) {
            Some(field) => out.copy_from_slice(field),
            None => out.copy_from_slice(self.power_on_value(at, N)),
        }
        out
    }

    /// Returns the power-on value of a field.
    #[cold]
    fn power_on_value(&self, at: usize, length: usize) -> &[u8] {
        &self.layout.power_on.value[at..at + length]
    }

    /// Sets a field, whatever bits software can write. Without a client, it does nothing.
    fn set<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        if let Some(field) = self.value.get_mut(at..at + N) {
            field.copy_from_slice(&value);
        }
    }
}

/// Fills in the type 0 header.
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
        // Software sizes a BAR by its writable address bits: those above the size.
        let flags = match bar.kind {
            BarKind::Io => BAR_IS_IO,
            BarKind::Memory32 => 0,
            BarKind::Memory64 { prefetchable: false } => BAR_IS_64_BIT,
            BarKind::Memory64 { prefetchable: true } => BAR_IS_64_BIT | BAR_PREFETCHABLE,
        };
        let flag_bits = if bar.kind == BarKind::Io { BAR_IO_FLAGS } else { BAR_MEMORY_FLAGS };
        let address_bits = !(bar.size - 1) & !flag_bits;

        command |= if bar.kind == BarKind::Io { COMMAND_IO } else { COMMAND_MEMORY };
        image.field(at, flags.to_le_bytes(), (address_bits as u32).to_le_bytes());
        if matches!(bar.kind, BarKind::Memory64 { .. }) {
            image.field(at + 4, [0; 4], ((address_bits >> 32) as u32).to_le_bytes());
        }
    }

    image.field(header::COMMAND, [0; 2], command.to_le_bytes());
}
