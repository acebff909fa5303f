//! Decoding of offsets in the BARs of a function.

use nicforge_hwi::attachment::control;

use crate::{
    ids::Address,
    spec::{AreaKind, FunctionSpec},
};

/// Kind of space at an offset of a BAR. The number is the offset in the table or page.
pub(crate) enum BarSpace {
    /// Memory that clients map and write.
    Memory,
    /// Memory that clients only read.
    Mirror,
    /// The control page.
    Control(u64),
    /// The MSI-X table.
    MsixTable(u64),
    /// The pending bits of MSI-X.
    PendingBits(u64),
    /// The device's registers.
    Device,
}

/// Returns the kind of space at `at`, and the number of bytes up to the next offset that may be of
/// another kind.
pub(crate) fn decode(spec: &FunctionSpec, at: Address) -> (BarSpace, u64) {
    if let Some(bar) = spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref) {
        for area in &bar.areas {
            if (area.offset..area.offset + area.length).contains(&at.offset) {
                let remaining = area.offset + area.length - at.offset;
                return match area.kind {
                    AreaKind::Mapped => (BarSpace::Memory, remaining),
                    AreaKind::Mirrored => (BarSpace::Mirror, remaining),
                };
            }
        }
    }

    if let Some(rings) = spec.rings
        && rings.control_bar == at.bar
        && let Some(offset) = at.offset.checked_sub(rings.control_offset.into())
        && offset < control::SIZE
    {
        return (BarSpace::Control(offset), control::SIZE - offset);
    }

    if let Some(msix) = spec.msix
        && msix.bar == at.bar
    {
        let (table_bytes, pending_bytes) = (msix.table_bytes(), msix.pending_bytes());
        if let Some(offset) = at.offset.checked_sub(msix.table.into())
            && offset < table_bytes
        {
            return (BarSpace::MsixTable(offset), table_bytes - offset);
        }
        if let Some(offset) = at.offset.checked_sub(msix.pba.into())
            && offset < pending_bytes
        {
            return (BarSpace::PendingBits(offset), pending_bytes - offset);
        }
    }

    // All space of another kind starts at a multiple of 4096.
    let rest_of_page = 4096 - at.offset % 4096;
    (BarSpace::Device, rest_of_page)
}

/// Returns whether `length` bytes at `at` lie in a BAR, and all of them are the device's registers.
pub(crate) fn is_device(spec: &FunctionSpec, at: Address, length: usize) -> bool {
    let Some(bar) = spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref) else { return false };
    let Some(end) = at.offset.checked_add(length as u64).filter(|&end| end <= bar.size) else { return false };

    if is_all_device(spec, at.bar) {
        return true;
    }

    let mut offset = at.offset;
    while offset < end {
        let (BarSpace::Device, remaining) = decode(spec, Address { bar: at.bar, offset }) else {
            return false;
        };
        offset += remaining;
    }

    true
}

/// Returns whether a whole BAR consists of the device's registers.
fn is_all_device(spec: &FunctionSpec, bar: u8) -> bool {
    spec.bars.get(usize::from(bar)).and_then(Option::as_ref).is_some_and(|bar| bar.areas.is_empty())
        && spec.rings.is_none_or(|rings| rings.control_bar != bar)
        && spec.msix.is_none_or(|msix| msix.bar != bar)
}

/// A range of a BAR that holds only the device's registers. It caches one lookup, because most
/// accesses go where the last one went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterRange {
    bar: u8,
    /// First offset of the range.
    start: u64,
    /// Offset behind the range.
    end: u64,
}

impl RegisterRange {
    /// The empty range, before the first lookup.
    pub(crate) const NONE: Self = Self { bar: u8::MAX, start: 0, end: 0 };

    /// Returns whether `length` bytes at `at` lie in the range. Bytes outside it may be the
    /// device's registers too: [`RegisterRange::look_up`] finds out.
    #[inline]
    pub(crate) fn contains(&self, at: Address, length: usize) -> bool {
        at.bar == self.bar
            && at.offset >= self.start
            && at.offset.checked_add(length as u64).is_some_and(|end| end <= self.end)
    }

    /// Does the check of [`is_device`], and caches its answer: the range becomes the whole BAR, or
    /// else the page of 4096 bytes, if that holds only registers.
    #[cold]
    pub(crate) fn look_up(&mut self, spec: &FunctionSpec, at: Address, length: usize) -> bool {
        let page = Address { bar: at.bar, offset: at.offset & !4095 };
        let bar_size = spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref).map_or(0, |bar| bar.size);
        if is_all_device(spec, at.bar) {
            *self = Self { bar: at.bar, start: 0, end: bar_size };
        } else if is_device(spec, page, 4096) {
            *self = Self { bar: at.bar, start: page.offset, end: page.offset + 4096 };
        }

        self.contains(at, length) || is_device(spec, at, length)
    }
}

/// Returns whether a read need not wait for the records in the rings: all of it lies in the control
/// page, and it does not cover the generation word. A read of that word is a flush, and waits.
pub(crate) fn read_bypasses_rings(spec: &FunctionSpec, at: Address, length: usize) -> bool {
    let (BarSpace::Control(offset), remaining) = decode(spec, at) else { return false };
    let is_flush = offset < control::GENERATION + 4 && control::GENERATION < offset + length as u64;
    length as u64 <= remaining && !is_flush
}

/// Returns whether a write need not wait for the records in the rings: all of it lies in the
/// control page.
pub(crate) fn write_bypasses_rings(spec: &FunctionSpec, at: Address, length: usize) -> bool {
    matches!(decode(spec, at), (BarSpace::Control(_), remaining) if length as u64 <= remaining)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{AttachmentSpec, Identity, NicSizes};

    fn spec() -> FunctionSpec {
        // Two pages of registers, then the control page and MSI-X.
        let identity =
            Identity { vendor: 1, device: 1, subsystem_vendor: 1, subsystem: 1, class: 0, revision: 0 };
        let user = AttachmentSpec { name: "user".into(), group: 0 };
        FunctionSpec::nic(
            identity,
            vec![user],
            NicSizes { register_bytes: 0x2000, vectors: 1, ring_cells: 64, ..NicSizes::default() },
        )
    }

    fn at(offset: u64) -> Address {
        Address { bar: 0, offset }
    }

    #[test]
    fn a_page_of_registers_is_known_after_the_first_access() {
        let (spec, mut known) = (spec(), RegisterRange::NONE);
        assert!(!known.contains(at(0x1ffc), 4));
        assert!(known.look_up(&spec, at(0x1ffc), 4));
        assert_eq!(known, RegisterRange { bar: 0, start: 0x1000, end: 0x2000 });

        assert!(known.contains(at(0x1000), 8));
    }

    #[test]
    fn an_access_across_pages_or_to_the_control_page_is_not_found_by_page() {
        let (spec, mut known) = (spec(), RegisterRange { bar: 0, start: 0x1000, end: 0x2000 });
        assert!(!known.contains(at(0xffc), 8));
        assert!(known.look_up(&spec, at(0xffc), 8));

        assert!(!known.contains(at(0x2000), 4) && !known.look_up(&spec, at(0x2000), 4));
        let nowhere = Address { bar: 7, offset: 0x1000 };
        assert!(!known.contains(nowhere, 4) && !known.look_up(&spec, nowhere, 4));

        assert!(!known.contains(at(u64::MAX), 4) && !known.look_up(&spec, at(u64::MAX), 4));
    }

    #[test]
    fn a_bar_that_is_all_registers_is_known_as_a_whole() {
        let (mut spec, mut known) = (spec(), RegisterRange::NONE);
        spec.bars[4] = Some(crate::spec::BarSpec::trapped(0x10000));
        let at = |offset| Address { bar: 4, offset };

        assert!(known.look_up(&spec, at(0xfff8), 8));
        assert!(known.contains(at(0), 8) && known.contains(at(0xffc), 8));
        assert!(!known.contains(at(0xfffc), 8) && !known.look_up(&spec, at(0xfffc), 8));
    }
}
