//! What lies where in the BARs of a function.

use nicforge_hwi::attachment::control;

use crate::{
    device::Address,
    spec::{AreaKind, FunctionSpec},
};

/// What a piece of a BAR is.
pub(super) enum Place {
    Memory,
    Mirror,
    Control(u64),
    MsixTable(u64),
    PendingBits(u64),
    Device,
}

/// What is at `at`, and how many bytes from there on until something else may begin.
pub(super) fn place(spec: &FunctionSpec, at: Address) -> (Place, u64) {
    // Everything but the device's registers starts at a multiple of 4096.
    let page_end = 4096 - at.offset % 4096;
    if let Some(bar) = spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref) {
        for area in &bar.areas {
            if (area.offset..area.offset + area.length).contains(&at.offset) {
                let left = area.offset + area.length - at.offset;
                return match area.kind {
                    AreaKind::Mapped => (Place::Memory, left),
                    AreaKind::Mirrored => (Place::Mirror, left),
                };
            }
        }
    }
    if let Some(rings) = spec.rings
        && rings.control_bar == at.bar
        && let Some(offset) = at.offset.checked_sub(rings.control_offset.into())
        && offset < control::SIZE
    {
        return (Place::Control(offset), control::SIZE - offset);
    }
    if let Some(msix) = spec.msix
        && msix.bar == at.bar
    {
        let table = u64::from(msix.vectors) * 16;
        let pending = u64::from(msix.vectors).div_ceil(64) * 8;
        if let Some(offset) = at.offset.checked_sub(msix.table.into())
            && offset < table
        {
            return (Place::MsixTable(offset), table - offset);
        }
        if let Some(offset) = at.offset.checked_sub(msix.pba.into())
            && offset < pending
        {
            return (Place::PendingBits(offset), pending - offset);
        }
    }
    (Place::Device, page_end)
}

/// Whether `length` bytes from `at` on are in a BAR, and all of them the device's registers.
pub(super) fn is_device(spec: &FunctionSpec, at: Address, length: usize) -> bool {
    let Some(bar) = spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref) else { return false };
    let Some(end) = at.offset.checked_add(length as u64).filter(|&end| end <= bar.size) else { return false };
    let mut offset = at.offset;
    while offset < end {
        let (Place::Device, left) = place(spec, Address { bar: at.bar, offset }) else { return false };
        offset += left;
    }
    true
}

/// Whether an access lies in the control page as a whole, and does not read the generation: it is answered whatever the rings
/// hold. Reading the generation is a flush, and waits.
pub(super) fn passes_rings(spec: &FunctionSpec, at: Address, length: usize, write: bool) -> bool {
    let (Place::Control(offset), left) = place(spec, at) else { return false };
    let flushes = offset < control::GENERATION + 4 && control::GENERATION < offset + length as u64;
    length as u64 <= left && (write || !flushes)
}
