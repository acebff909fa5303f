//! Reads configuration space: the identity, and the vendor-specific capability of nicforge
//! functions.
//!
//! All values of the capability are checked here once. The rest of the library relies on it.

use nicforge_hwi::{
    attachment::{MAX_RINGS, control, mirror},
    pci::{AttachmentCapability, CAP_ID_VENDOR, CAP_KIND_ATTACHMENT, CAP_VERSION},
    posted::{CELL, MAX_DATA, MAX_RING_CELLS, MIN_RING_CELLS},
};
use zerocopy::{FromZeros, IntoBytes};

use crate::{Backing, Error, REGION_CONFIG, RegionInfo, WriteMode};

/// Pages and rings begin at a multiple of this number of bytes.
const PAGE: u32 = 4096;

// Registers and bits of the header: PCI Local Bus Specification 3.0, chapter 6.
const REG_VENDOR: u64 = 0x00;
const REG_COMMAND: u64 = 0x04;
const REG_STATUS: u64 = 0x06;
const REG_REVISION: u64 = 0x08;
const REG_SUBSYSTEM: u64 = 0x2c;
const REG_CAPABILITIES: u64 = 0x34;
const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_BUS_MASTER: u16 = 1 << 2;
const STATUS_CAPABILITIES: u16 = 1 << 4;
const HEADER_SIZE: u64 = 0x40;
const CONFIG_SIZE: u64 = 0x100;
/// Bits of the offset of a capability. The others are reserved.
const CAPABILITY_OFFSET: u8 = 0xfc;
/// Maximum number of capabilities between the header and the end. A longer list contains a cycle.
const MAX_CAPABILITIES: u64 = (CONFIG_SIZE - HEADER_SIZE) / 4;

/// The identity of a PCI function, from its configuration header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
    /// Base class, subclass and programming interface: `0x02_80_00` is "network controller, other".
    pub class: u32,
    /// Revision id.
    pub revision: u8,
}

/// Reads `N` bytes of configuration space at an offset.
fn read<const N: usize>(backing: &dyn Backing, offset: u64) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    backing.read(REGION_CONFIG, offset, &mut bytes)?;
    Ok(bytes)
}

/// Reads a 16-bit register of configuration space.
fn read_u16(backing: &dyn Backing, offset: u64) -> Result<u16, Error> {
    Ok(u16::from_le_bytes(read(backing, offset)?))
}

/// Reads the identity from the header.
pub(crate) fn identity(backing: &dyn Backing) -> Result<Identity, Error> {
    // The vendor id, and the device id after it.
    let [vendor_low, vendor_high, device_low, device_high] = read(backing, REG_VENDOR)?;
    let vendor = u16::from_le_bytes([vendor_low, vendor_high]);
    if vendor == 0xffff {
        return Err(Error::Protocol {
            what: "there is no function: its vendor id is all ones",
            value: vendor.into(),
        });
    }

    let [revision, interface, subclass, base_class] = read(backing, REG_REVISION)?;
    let [subsystem_vendor @ .., id_low, id_high]: [u8; 4] = read(backing, REG_SUBSYSTEM)?;
    Ok(Identity {
        vendor,
        device: u16::from_le_bytes([device_low, device_high]),
        subsystem_vendor: u16::from_le_bytes(subsystem_vendor),
        subsystem: u16::from_le_bytes([id_low, id_high]),
        class: u32::from_le_bytes([interface, subclass, base_class, 0]),
        revision,
    })
}

/// Enables memory decoding and bus mastering.
pub(crate) fn enable(backing: &dyn Backing) -> Result<(), Error> {
    let command = read_u16(backing, REG_COMMAND)?;
    let enabled = command | COMMAND_MEMORY | COMMAND_BUS_MASTER;

    if command != enabled {
        backing.write(REGION_CONFIG, REG_COMMAND, &enabled.to_le_bytes(), WriteMode::Confirmed)?;
    }
    Ok(())
}

/// Finds and checks the attachment capability. Returns `None` for a plain PCI function.
pub(crate) fn find(
    backing: &dyn Backing,
    bars: &[RegionInfo; 6],
) -> Result<Option<AttachmentCapability>, Error> {
    if read_u16(backing, REG_STATUS)? & STATUS_CAPABILITIES == 0 {
        return Ok(None);
    }

    let [first] = read::<1>(backing, REG_CAPABILITIES)?;
    let mut at = u64::from(first & CAPABILITY_OFFSET);

    for _ in 0..MAX_CAPABILITIES {
        if at == 0 {
            return Ok(None);
        }
        if at < HEADER_SIZE {
            return Err(Error::Protocol { what: "a capability lies in the header", value: at });
        }

        // `len` and `kind` are fields of vendor-specific capabilities.
        let [id, next, len, kind] = read(backing, at)?;
        if id == CAP_ID_VENDOR
            && kind == CAP_KIND_ATTACHMENT
            && usize::from(len) >= size_of::<AttachmentCapability>()
            && let Some(found) = read_attachment(backing, at)?
        {
            return validated(found, bars).map(Some);
        }

        at = u64::from(next & CAPABILITY_OFFSET);
    }

    Err(Error::Protocol { what: "the list of capabilities has no end", value: first.into() })
}

/// Reads the attachment capability at `at` of configuration space. Returns `None` for a version
/// that this library does not know.
fn read_attachment(backing: &dyn Backing, at: u64) -> Result<Option<AttachmentCapability>, Error> {
    if at + size_of::<AttachmentCapability>() as u64 > CONFIG_SIZE {
        return Err(Error::Protocol {
            what: "the attachment capability passes the end of its space",
            value: at,
        });
    }

    let mut found = AttachmentCapability::new_zeroed();
    for (index, word) in found.as_mut_bytes().chunks_exact_mut(4).enumerate() {
        backing.read(REGION_CONFIG, at + 4 * index as u64, word)?;
    }

    // A function with an unknown version of the capability is treated as a plain one.
    Ok((found.version == CAP_VERSION).then_some(found))
}

/// Returns whether only the device writes BAR `bar`.
pub(crate) fn is_mirrored(capability: &AttachmentCapability, bar: usize) -> bool {
    usize::from(capability.mirror_bar) == bar || usize::from(capability.mirrored_bars) >> bar & 1 != 0
}

/// Returns the size of each ring in bytes.
pub(crate) fn ring_bytes(capability: &AttachmentCapability) -> u64 {
    u64::from(capability.ring_cells) * CELL as u64
}

/// Returns the maximum number of data bytes of a record.
pub(crate) fn max_data(capability: &AttachmentCapability) -> usize {
    1usize.checked_shl(capability.max_data_log2.into()).unwrap_or(MAX_DATA).min(MAX_DATA)
}

/// Checks that the pages and rings of a capability lie in the BARs, and returns the capability.
fn validated(
    capability: AttachmentCapability,
    bars: &[RegionInfo; 6],
) -> Result<AttachmentCapability, Error> {
    let check_range = |what, bar: u8, offset: u32, len: u64| {
        let end = u64::from(offset) + len;
        let is_inside = bars.get(usize::from(bar)).is_some_and(|info| end <= info.size);
        if is_inside && offset.is_multiple_of(PAGE) {
            Ok(())
        } else {
            Err(Error::Protocol { what, value: offset.into() })
        }
    };

    check_range(
        "the control page lies outside its BAR",
        capability.control_bar,
        capability.control_offset,
        control::SIZE,
    )?;
    check_range(
        "the mirror lies outside its BAR",
        capability.mirror_bar,
        capability.mirror_offset,
        mirror::SIZE,
    )?;

    if capability.ring_count != 0 {
        let cells = capability.ring_cells as usize;

        if !cells.is_power_of_two() || !(MIN_RING_CELLS..=MAX_RING_CELLS).contains(&cells) {
            return Err(Error::Protocol {
                what: "impossible number of ring cells",
                value: capability.ring_cells.into(),
            });
        }

        if usize::from(capability.ring_count) > MAX_RINGS {
            return Err(Error::Protocol {
                what: "too many posted-write rings",
                value: capability.ring_count.into(),
            });
        }

        let len = ring_bytes(&capability) * u64::from(capability.ring_count);
        check_range("the rings lie outside their BAR", capability.ring_bar, capability.ring_offset, len)?;
    }

    Ok(capability)
}
