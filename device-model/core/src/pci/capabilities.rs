//! The capability lists.

use nicforge_hwi::{
    pci::{AttachmentCapability, CAP_ID_VENDOR, CAP_KIND_ATTACHMENT, CAP_VERSION},
    posted,
};
use zerocopy::IntoBytes;

use crate::spec::{BarKind, BarSpec, FunctionSpec, Identity, MsixSpec, RingSpec, VendorCapability};

use super::config::{Image, header};

// Capability IDs (PCI Code and ID Assignment).
const ID_POWER: u8 = 0x01;
const ID_EXPRESS: u8 = 0x10;
const ID_MSIX: u8 = 0x11;
/// ID of an extended capability.
const ID_SERIAL_NUMBER: u16 = 0x0003;

/// Offset of the first capability, after the header.
const FIRST_CAPABILITY: usize = 0x40;
/// Offset of extended configuration space.
const EXTENDED_SPACE: usize = 0x100;

/// Low byte of the power management control and status register: the power state.
pub(super) const POWER_STATE: u8 = 0x3;
/// Value of [`POWER_STATE`]: full power.
pub(super) const D0: u8 = 0;
/// Value of [`POWER_STATE`]: D3hot.
pub(super) const D3_HOT: u8 = 3;
/// High byte of the device control register: initiate function-level reset. Reads as zero.
pub(super) const INITIATE_RESET: u8 = 0x80;
/// Low byte of the device status register: unsupported request detected.
pub(super) const UNSUPPORTED_REQUEST: u8 = 0x08;
/// MSI-X message control: enable.
pub(super) const MSIX_ENABLE: u16 = 1 << 15;
/// MSI-X message control: mask all vectors.
pub(super) const MSIX_FUNCTION_MASK: u16 = 1 << 14;

/// Offsets of the registers that affect the rest of the function, and the kinds of its BARs.
#[derive(PartialEq)]
pub(super) struct RegisterOffsets {
    /// Low byte of the power management control and status register.
    pub(super) power_control: usize,
    /// Device control register of the PCI Express capability.
    pub(super) device_control: usize,
    /// Message control register of the MSI-X capability.
    pub(super) msix_control: Option<usize>,
    /// Kinds of the BARs that exist.
    pub(super) bars: [Option<BarKind>; 6],
    /// Registers of the device's BAR window.
    pub(super) window: Option<WindowOffsets>,
}

/// Offsets of the registers through which software reaches BARs ([`crate::spec::BarWindow`]).
#[derive(Clone, Copy, PartialEq)]
pub(super) struct WindowOffsets {
    pub(super) bar: usize,
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) data: usize,
}

/// Builder of a linked list of capabilities.
struct List<'a> {
    image: &'a mut Image,
    /// Offset of the pointer to the next capability.
    link: usize,
    /// Offset of the next capability.
    free: usize,
}

impl List<'_> {
    /// Reserves room for a capability of `length` bytes, links it, and returns its offset.
    fn add(&mut self, id: u8, length: usize) -> usize {
        let at = self.free;
        self.image.put(self.link, [at as u8]);
        self.image.put(at, [id, 0]);
        self.link = at + 1;
        self.free = (at + length).next_multiple_of(4);
        at
    }
}

/// Writes all capabilities, and returns where their registers are. Those of the core take at most
/// 0x40 to 0xac, and 0x100 to 0x10c. Those of the device lie between.
pub(super) fn put(image: &mut Image, spec: &FunctionSpec) -> RegisterOffsets {
    let mut list = List { image, link: header::CAPABILITIES, free: FIRST_CAPABILITY };
    let power_control = put_power(&mut list);
    let has_io_bar = spec.bars.iter().flatten().any(|bar| bar.kind == BarKind::Io);
    let device_control = put_express(&mut list, has_io_bar);
    let msix_control = spec.msix.map(|msix| put_msix(&mut list, msix));
    if let Some(rings) = spec.rings {
        put_attachment(&mut list, rings, spec);
    }

    let mut window = None;
    for capability in &spec.capabilities {
        window = put_vendor(&mut list, capability).or(window);
    }

    put_serial_number(image, &spec.identity);

    RegisterOffsets {
        power_control,
        device_control,
        msix_control,
        bars: std::array::from_fn(|index| spec.bars[index].as_ref().map(|bar| bar.kind)),
        window,
    }
}

/// Writes power management, version 3: D0 and D3hot, no PME, no soft reset between the states.
/// Returns the offset of the control register.
fn put_power(list: &mut List<'_>) -> usize {
    const VERSION: u16 = 3;
    const CONTROL: usize = 4;
    const NO_SOFT_RESET: u8 = 0x08;

    let at = list.add(ID_POWER, 8);
    list.image.put(at + 2, VERSION.to_le_bytes());
    list.image.field(at + CONTROL, [NO_SOFT_RESET], [POWER_STATE]);
    at + CONTROL
}

/// Writes PCI Express, version 2: an endpoint behind a link of eight lanes at 5 GT/s that is up,
/// without ASPM. Only a *legacy* endpoint may request I/O ports (PCI Express Base 4.0, 1.3.2).
/// Returns the offset of the device control register.
fn put_express(list: &mut List<'_>, has_io_bar: bool) -> usize {
    const VERSION: u16 = 2;
    const LEGACY_ENDPOINT: u16 = 1 << 4;
    const DEVICE_CAPABILITIES: usize = 0x04;
    const DEVICE_CONTROL: usize = 0x08;
    const DEVICE_STATUS: usize = 0x0a;
    const LINK_CAPABILITIES: usize = 0x0c;
    const LINK_CONTROL: usize = 0x10;
    const LINK_STATUS: usize = 0x12;
    const DEVICE_CAPABILITIES_2: usize = 0x24;
    const DEVICE_CONTROL_2: usize = 0x28;
    const LINK_CAPABILITIES_2: usize = 0x2c;
    const LINK_CONTROL_2: usize = 0x30;
    const LINK_STATUS_2: usize = 0x32;
    const LENGTH: usize = 0x3c;

    /// Maximum payload of 256 bytes, 8-bit tags, role-based error reporting, function-level reset.
    const DEVICE: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 28;

    /// Relaxed ordering and no snoop enabled, read requests of at most 512 bytes.
    const CONTROL: u16 = 1 << 4 | 1 << 11 | 2 << 12;

    /// All bits except phantom functions and auxiliary power, which do not exist, and the reset
    /// bit, which reads as zero.
    const CONTROL_WRITABLE: u16 = 0x79ff;
    const CONTROL_PAYLOAD: u8 = 0xe0;
    const STATUS_ERRORS: u8 = 0x0f;
    const SPEED_5GT: u16 = 2;
    const WIDTH_8: u16 = 8 << 4;

    /// ASPM optionality compliance.
    const LINK: u32 = (SPEED_5GT | WIDTH_8) as u32 | 1 << 22;

    /// Slot clock.
    const LINK_STATE: u16 = SPEED_5GT | WIDTH_8 | 1 << 12;

    /// ASPM control, read completion boundary, common clock, extended synch.
    const LINK_WRITABLE: u16 = 0x00cb;
    const TIMEOUT_DISABLE: u32 = 1 << 4;

    /// 2.5 and 5 GT/s.
    const SPEEDS: u32 = 0x06;

    /// Target speed and autonomous speed disable.
    const LINK_2_WRITABLE: u16 = 0x002f;

    /// De-emphasis of -3.5 dB.
    const LINK_2_STATE: u16 = 1;

    let at = list.add(ID_EXPRESS, LENGTH);
    let image = &mut *list.image;
    image.put(at + 2, (VERSION | if has_io_bar { LEGACY_ENDPOINT } else { 0 }).to_le_bytes());
    image.put(at + DEVICE_CAPABILITIES, DEVICE.to_le_bytes());
    image.field(at + DEVICE_CONTROL, CONTROL.to_le_bytes(), CONTROL_WRITABLE.to_le_bytes());
    image.sticky[at + DEVICE_CONTROL] = CONTROL_PAYLOAD;
    image.clears[at + DEVICE_STATUS] = STATUS_ERRORS;
    image.put(at + LINK_CAPABILITIES, LINK.to_le_bytes());
    image.field(at + LINK_CONTROL, [0; 2], LINK_WRITABLE.to_le_bytes());
    image.sticky[at + LINK_CONTROL] = LINK_WRITABLE as u8;
    image.put(at + LINK_STATUS, LINK_STATE.to_le_bytes());
    image.put(at + DEVICE_CAPABILITIES_2, TIMEOUT_DISABLE.to_le_bytes());
    image.field(at + DEVICE_CONTROL_2, [0; 2], (TIMEOUT_DISABLE as u16).to_le_bytes());
    image.put(at + LINK_CAPABILITIES_2, SPEEDS.to_le_bytes());
    image.field(at + LINK_CONTROL_2, SPEED_5GT.to_le_bytes(), LINK_2_WRITABLE.to_le_bytes());
    image.sticky[at + LINK_CONTROL_2] = LINK_2_WRITABLE as u8;
    image.put(at + LINK_STATUS_2, LINK_2_STATE.to_le_bytes());

    at + DEVICE_CONTROL
}

/// Writes MSI-X: table size, and the locations of the table and of the pending bits. Returns the
/// offset of the message control register.
fn put_msix(list: &mut List<'_>, msix: MsixSpec) -> usize {
    let at = list.add(ID_MSIX, 12);
    // The 11-bit field holds the number of vectors minus one.
    let size = msix.vectors.saturating_sub(1) & 0x7ff;
    list.image.field(at + 2, size.to_le_bytes(), (MSIX_ENABLE | MSIX_FUNCTION_MASK).to_le_bytes());
    list.image.put(at + 4, (msix.table | u32::from(msix.bar)).to_le_bytes());
    list.image.put(at + 8, (msix.pba | u32::from(msix.bar)).to_le_bytes());
    at + 2
}

/// Returns a bit mask of the BARs for which `holds` returns true.
fn bars_that(spec: &FunctionSpec, holds: impl Fn(&BarSpec) -> bool) -> u8 {
    let bit = |(index, bar): (usize, &Option<BarSpec>)| u8::from(bar.as_ref().is_some_and(&holds)) << index;
    spec.bars.iter().enumerate().map(bit).sum()
}

/// Writes the vendor capability that locates rings, control page and mirror for a driver.
fn put_attachment(list: &mut List<'_>, rings: RingSpec, spec: &FunctionSpec) {
    const LENGTH: usize = size_of::<AttachmentCapability>();

    let at = list.add(CAP_ID_VENDOR, LENGTH);
    let capability = AttachmentCapability {
        cap_id: CAP_ID_VENDOR,
        next: 0,
        len: LENGTH as u8,
        kind: CAP_KIND_ATTACHMENT,
        version: CAP_VERSION,
        control_bar: rings.control_bar,
        mirror_bar: rings.mirror_bar,
        ring_bar: rings.bar,
        control_offset: rings.control_offset,
        mirror_offset: 0,
        ring_offset: rings.offset,
        ring_cells: rings.cells,
        ring_count: rings.count,
        max_data_log2: posted::MAX_DATA.ilog2() as u8,
        memory_bars: bars_that(spec, BarSpec::is_memory),
        mirrored_bars: bars_that(spec, BarSpec::is_mirrored),
    };

    list.image.value[at..at + LENGTH].copy_from_slice(capability.as_bytes());
}

/// Writes a capability of the device. Returns the offsets of its window's registers, if it has a
/// window.
fn put_vendor(list: &mut List<'_>, capability: &VendorCapability) -> Option<WindowOffsets> {
    // The header has the id, the link to the next capability, and the length.
    const HEADER: usize = 3;

    let length = HEADER + capability.content.len();
    let at = list.add(CAP_ID_VENDOR, length);
    list.image.put(at + 2, [length as u8]);
    list.image.value[at + HEADER..at + length].copy_from_slice(&capability.content);

    let window = capability.window?;
    let [bar, offset, length, data] =
        [window.bar, window.offset, window.length, window.data].map(|register| at + usize::from(register));
    list.image.writable[bar] = 0xff;
    for word in [offset, length, data] {
        list.image.writable[word..word + 4].fill(0xff);
    }

    Some(WindowOffsets { bar, offset, length, data })
}

/// Writes the device serial number. It is the only extended capability, and ends that list.
///
/// The number is a locally administered EUI-64 made from the identity. Every function with the same
/// identity has the same number.
fn put_serial_number(image: &mut Image, identity: &Identity) {
    const VERSION: u32 = 1 << 16;
    /// First byte of an EUI-64: it is locally administered.
    const LOCAL: u8 = 0x02;

    let [device_high, device_low] = identity.device.to_be_bytes();
    let [vendor_high, vendor_low] = identity.vendor.to_be_bytes();
    let number = u64::from_be_bytes([
        LOCAL,
        vendor_high,
        vendor_low,
        0xff,
        0xfe,
        device_high,
        device_low,
        identity.revision,
    ]);

    // The pointer to the next capability, bits 20 to 31, is 0.
    image.put(EXTENDED_SPACE, (u32::from(ID_SERIAL_NUMBER) | VERSION).to_le_bytes());
    image.put(EXTENDED_SPACE + 4, number.to_le_bytes());
}
