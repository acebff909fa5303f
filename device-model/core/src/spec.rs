//! The description that a device gives of itself: identity, BARs and their contents, attachments,
//! interrupts.
//!
//! A description is data. The core builds configuration space, capabilities and windows from it.
//! [`FunctionSpec::validate`] refuses an inconsistent description when the function is added to a
//! machine.

mod capability;
mod error;
mod registers;

use std::collections::HashSet;

use nicforge_hwi::{attachment, posted};

pub(crate) use self::registers::validate as validate_registers;
pub use self::{
    capability::{BarWindow, MAX_CAPABILITY, VendorCapability},
    error::SpecError,
    registers::RegisterRule,
};

/// PCI identity of a function.
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
    /// Base class, subclass and programming interface, as in `0x02_80_00` for "network controller,
    /// other".
    pub class: u32,
    /// Revision.
    pub revision: u8,
}

/// The address space that a BAR decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// 32-bit memory, which a bridge forwards by its window below 4 GiB.
    ///
    /// It is never prefetchable, because PCI Express permits that only for 64-bit BARs (Base 4.0,
    /// 7.5.1.2.1). A prefetchable 32-bit BAR would also keep the bridge's whole prefetchable window
    /// below 4 GiB. A driver learns from [`nicforge_hwi::pci::AttachmentCapability::memory_bars`]
    /// that the BAR is memory.
    Memory32,
    /// 64-bit memory, which takes this BAR and the next. A bridge forwards it by a 64-bit window if
    /// it is prefetchable.
    Memory64 {
        /// Reads have no side effects and writes may be combined.
        prefetchable: bool,
    },
    /// I/O ports.
    Io,
}

/// The attachments that share the memory behind a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each attachment has memory of its own, new for each tenant.
    Attachment,
    /// The attachments of one [`AttachmentSpec::group`] share the memory. It is new when the
    /// group's first tenant comes.
    Group,
}

/// The access that clients have to an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaKind {
    /// Memory that clients map and write.
    Mapped,
    /// Memory that clients map read-only. Only the device writes it.
    Mirrored,
}

/// Memory within a BAR. An offset outside all areas is trapped: its accesses reach
/// [`crate::device::Device::read`] and `write`. VFIO protects whole regions, so the areas of one
/// BAR are all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Start in the BAR in bytes, a multiple of 4096.
    pub offset: u64,
    /// Length in bytes, a multiple of 4096.
    pub length: u64,
    /// The access that clients have to it.
    pub kind: AreaKind,
}

/// One base address register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarSpec {
    /// Size in bytes: a power of two; at least 16 for memory, 4096 with areas, and 4 to 256 for I/O
    /// ports.
    pub size: u64,
    /// The address space that it decodes.
    pub kind: BarKind,
    /// The attachments that share its memory.
    pub scope: Scope,
    /// Memory in the BAR, in ascending order and disjoint.
    pub areas: Vec<Area>,
}

impl BarSpec {
    /// Returns a 32-bit memory BAR whose accesses are all trapped.
    pub fn trapped(size: u64) -> Self {
        Self { size, kind: BarKind::Memory32, scope: Scope::Attachment, areas: Vec::new() }
    }

    /// Returns a BAR of I/O ports.
    pub fn io(size: u64) -> Self {
        Self { size, kind: BarKind::Io, scope: Scope::Attachment, areas: Vec::new() }
    }

    /// Returns a 32-bit memory BAR that is one area from end to end.
    pub fn memory(size: u64, kind: AreaKind, scope: Scope) -> Self {
        Self { size, kind: BarKind::Memory32, scope, areas: vec![Area { offset: 0, length: size, kind }] }
    }

    /// Returns whether the whole BAR is memory that only the device writes.
    pub(crate) fn is_mirrored(&self) -> bool {
        // The areas of a BAR are all of one kind.
        self.is_memory() && self.areas.first().is_some_and(|area| area.kind == AreaKind::Mirrored)
    }

    /// Returns whether the whole BAR is memory, so that no access is trapped.
    pub(crate) fn is_memory(&self) -> bool {
        self.areas.iter().map(|area| area.length).sum::<u64>() == self.size
    }
}

/// The posted-write rings of each attachment, and the pages that belong to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Number of rings, 0 to [`attachment::MAX_RINGS`].
    pub count: u8,
    /// Cells in each ring: a power of two, [`posted::MIN_RING_CELLS`] to
    /// [`posted::MAX_RING_CELLS`].
    pub cells: u32,
    /// BAR of the rings: mapped, attachment scope. Ignored when there are no rings.
    pub bar: u8,
    /// Offset of ring 0 in `bar`, a multiple of 4096. Ignored when there are no rings.
    pub offset: u32,
    /// BAR whose first page is the attachment mirror: mirrored, attachment scope.
    pub mirror_bar: u8,
    /// BAR of the control page. The page lies in trapped space.
    pub control_bar: u8,
    /// Offset of the control page in `control_bar`, a multiple of 4096.
    pub control_offset: u32,
}

/// Location of the MSI-X table and of the pending bits. Both are trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixSpec {
    /// Number of vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR of the table and of the pending bits.
    pub bar: u8,
    /// Offset of the table, a multiple of 4096. Each vector takes 16 bytes.
    pub table: u32,
    /// Offset of the pending bits; a multiple of 4096.
    pub pba: u32,
}

/// One attachment of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSpec {
    /// Name in sockets and tables: 1 to [`MAX_NAME`] letters, digits and `-`. No other attachment
    /// of the function has it.
    pub name: String,
    /// Number of its group, whose memory of [`Scope::Group`] it sees.
    pub group: u8,
}

/// Description of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// PCI identity.
    pub identity: Identity,
    /// The six BARs. The one after a 64-bit BAR is `None`.
    pub bars: [Option<BarSpec>; 6],
    /// The attachments. The index is the [`crate::ids::AttachmentId`]. A hub that is no PCI
    /// function has none: no client reaches it, and it lives on its links alone.
    pub attachments: Vec<AttachmentSpec>,
    /// MSI-X, if any.
    pub msix: Option<MsixSpec>,
    /// Whether the function has an INTx pin.
    pub intx: bool,
    /// Posted-write rings, control page and mirror, if any.
    pub rings: Option<RingSpec>,
    /// Vendor-specific capabilities of the device's own, in the order of the list. They follow
    /// those of the core, and all together fit before 0x100.
    pub capabilities: Vec<VendorCapability>,
}

impl MsixSpec {
    /// Returns the size of the table in bytes: 16 for each vector.
    pub(crate) fn table_bytes(&self) -> u64 {
        u64::from(self.vectors) * 16
    }

    /// Returns the size of the pending bits in bytes: a 64-bit word for each 64 vectors.
    pub(crate) fn pending_bytes(&self) -> u64 {
        u64::from(self.vectors).div_ceil(64) * 8
    }
}

/// Longest name of an attachment in bytes.
pub const MAX_NAME: usize = 64;
/// Largest number of MSI-X vectors of a function, which PCI sets.
const MAX_VECTORS: u16 = 2048;
/// Size of the largest BAR of I/O ports in bytes.
const MAX_BAR_IO: u64 = 256;
/// Size of the largest 32-bit BAR of memory in bytes.
const MAX_BAR_32: u64 = 1 << 31;
/// Size of the largest 64-bit BAR in bytes.
const MAX_BAR_64: u64 = 1 << 40;
/// Offset of a NIC's own windows in BAR 1 of [`FunctionSpec::nic`], unless its ring is longer.
const NIC_WINDOWS: u64 = 0x1_0000;

/// The sizes of a NIC of the usual shape, for [`FunctionSpec::nic`]. The default has none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicSizes {
    /// Bytes of the device's registers, from the start of BAR 0 on. They are rounded up to 4096.
    pub register_bytes: u64,
    /// Number of MSI-X vectors, at most 256.
    pub vectors: u16,
    /// Number of cells of each attachment's posted-write ring.
    pub ring_cells: u32,
    /// Bytes of the device's windows in BAR 1.
    pub window_bytes: u64,
    /// Bytes of the device's mirror in BAR 2, after the core's page.
    pub mirror_bytes: u64,
}

/// Bytes that the core adds to BAR 0 after a NIC's own registers in [`FunctionSpec::nic`]: control
/// page, MSI-X table (at most 256 vectors), pending bits.
pub const CORE_REGISTERS: u64 = 0x3000;

/// A range of a BAR.
#[derive(Clone, Copy)]
struct BarRange {
    bar: u8,
    /// Offset in the BAR in bytes.
    offset: u64,
    /// Length in bytes.
    length: u64,
}

impl BarRange {
    /// Returns whether two ranges have a byte in common.
    fn overlaps(&self, other: &Self) -> bool {
        self.bar == other.bar
            && self.offset < other.offset + other.length
            && other.offset < self.offset + self.length
    }
}

impl FunctionSpec {
    /// Returns a description without BARs, attachments and interrupts. It is that of a hub, which
    /// is no PCI function and lives on its links alone; its identity is seen by no client.
    pub const fn hub(identity: Identity) -> Self {
        Self {
            identity,
            bars: [const { None }; 6],
            attachments: Vec::new(),
            msix: None,
            intx: false,
            rings: None,
            capabilities: Vec::new(),
        }
    }

    /// Returns the description of a NIC of the usual shape.
    ///
    /// | BAR | contents |
    /// | --- | --- |
    /// | 0 | the device's registers; then control page and MSI-X |
    /// | 1 | the posted-write ring, and from 0x10000 on the device's windows |
    /// | 2 | the attachment mirror: the core's page, then the device's mirror |
    ///
    /// The device can add BARs 3 to 5. If the ring of BAR 1 is longer than 0x10000 bytes, the
    /// device's windows begin after it.
    pub fn nic(identity: Identity, attachments: Vec<AttachmentSpec>, sizes: NicSizes) -> Self {
        let NicSizes { register_bytes, vectors, ring_cells, window_bytes, mirror_bytes } = sizes;
        // The control page, the MSI-X table and the pending bits have a page each.
        let control = register_bytes.next_multiple_of(4096);
        let (msix_table, pending_bits) = (control + 0x1000, control + 0x2000);

        let ring_bytes = u64::from(ring_cells) * posted::CELL as u64;
        let bar_1_bytes = match window_bytes {
            0 => ring_bytes.max(4096),
            _ => ring_bytes.max(NIC_WINDOWS) + window_bytes,
        };

        let bars = [
            Some(BarSpec::trapped((control + CORE_REGISTERS).next_power_of_two())),
            Some(BarSpec::memory(bar_1_bytes.next_power_of_two(), AreaKind::Mapped, Scope::Attachment)),
            Some(BarSpec::memory(
                (4096 + mirror_bytes).next_power_of_two(),
                AreaKind::Mirrored,
                Scope::Attachment,
            )),
            None,
            None,
            None,
        ];

        Self {
            identity,
            bars,
            attachments,
            msix: Some(MsixSpec { vectors, bar: 0, table: msix_table as u32, pba: pending_bits as u32 }),
            intx: true,
            rings: Some(RingSpec {
                count: 1,
                cells: ring_cells,
                bar: 1,
                offset: 0,
                mirror_bar: 2,
                control_bar: 0,
                control_offset: control as u32,
            }),
            capabilities: Vec::new(),
        }
    }

    /// Checks that the parts of the description are valid and fit together.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.attachments.len() > usize::from(u16::MAX) {
            return Err(SpecError::Attachments { count: self.attachments.len() });
        }

        let mut names = HashSet::with_capacity(self.attachments.len());
        for (index, attachment) in self.attachments.iter().enumerate() {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            let name = &attachment.name;
            if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_allowed) {
                return Err(SpecError::Name { attachment: index });
            }
            if !names.insert(name) {
                return Err(SpecError::SameName { attachment: index });
            }
        }

        for (index, bar) in self.bars.iter().enumerate() {
            if let Some(bar) = bar {
                self.validate_bar(index as u8, bar)?;
            }
        }

        if let Some(msix) = self.msix {
            if msix.vectors == 0 || msix.vectors > MAX_VECTORS {
                return Err(SpecError::Vectors { vectors: msix.vectors });
            }
            self.check_trapped(msix.bar, msix.table.into(), msix.table_bytes())?;
            self.check_trapped(msix.bar, msix.pba.into(), msix.pending_bytes())?;
        }

        if let Some(rings) = self.rings {
            let cells = rings.cells as usize;
            if !cells.is_power_of_two()
                || !(posted::MIN_RING_CELLS..=posted::MAX_RING_CELLS).contains(&cells)
                || usize::from(rings.count) > attachment::MAX_RINGS
            {
                return Err(SpecError::Rings { count: rings.count, cells: rings.cells });
            }

            let bytes = u64::from(rings.count) * u64::from(rings.cells) * posted::CELL as u64;
            if bytes > 0 {
                self.check_area(rings.bar, rings.offset.into(), bytes, AreaKind::Mapped)?;
            }

            self.check_area(rings.mirror_bar, 0, attachment::mirror::SIZE, AreaKind::Mirrored)?;
            self.check_trapped(rings.control_bar, rings.control_offset.into(), attachment::control::SIZE)?;
        }

        capability::validate(&self.capabilities, self.rings.is_some())?;
        self.check_disjoint()
    }

    /// Checks that the control page, the MSI-X table and the pending bits do not overlap.
    fn check_disjoint(&self) -> Result<(), SpecError> {
        let ranges = self.core_pages();
        for (index, range) in ranges.iter().enumerate() {
            for other in &ranges[index + 1..] {
                if let (Some(range), Some(other)) = (range, other)
                    && range.overlaps(other)
                {
                    let &BarRange { bar, offset, length } = range;
                    return Err(SpecError::Place { bar, offset, length });
                }
            }
        }

        Ok(())
    }

    /// Checks one BAR: its size, its areas, and the free BAR after one of 64 bits.
    fn validate_bar(&self, index: u8, bar: &BarSpec) -> Result<(), SpecError> {
        let is_64_bit = matches!(bar.kind, BarKind::Memory64 { .. });
        let minimum = match (bar.kind, bar.areas.is_empty()) {
            (BarKind::Io, true) => 4,
            (BarKind::Io, false) => return Err(SpecError::Area { bar: index, offset: 0, length: bar.size }),
            (_, true) => 16,
            (_, false) => 4096,
        };

        if bar.kind == BarKind::Io && bar.size > MAX_BAR_IO {
            return Err(SpecError::IoBarSize { bar: index, size: bar.size });
        }
        let maximum = if is_64_bit { MAX_BAR_64 } else { MAX_BAR_32 };
        if !bar.size.is_power_of_two() || bar.size < minimum || bar.size > maximum {
            return Err(SpecError::BarSize { bar: index, size: bar.size });
        }

        if is_64_bit && self.bars.get(usize::from(index) + 1).is_none_or(Option::is_some) {
            return Err(SpecError::Bar64 { bar: index });
        }

        let mut previous_end = 0;
        for area in &bar.areas {
            let is_refused = area.offset % 4096 != 0
                || area.length % 4096 != 0
                || area.length == 0
                || area.offset < previous_end
                || area.offset.checked_add(area.length).is_none_or(|end| end > bar.size)
                || area.kind != bar.areas[0].kind;
            if is_refused {
                return Err(SpecError::Area { bar: index, offset: area.offset, length: area.length });
            }

            previous_end = area.offset + area.length;
        }

        Ok(())
    }

    /// Returns the description of a BAR, if it exists.
    fn bar(&self, index: u8) -> Option<&BarSpec> {
        self.bars.get(usize::from(index)).and_then(Option::as_ref)
    }

    /// Checks that a range is page-aligned, lies in a memory BAR, and is trapped.
    fn check_trapped(&self, bar: u8, offset: u64, length: u64) -> Result<(), SpecError> {
        let is_trapped = self.bar(bar).is_some_and(|spec| {
            offset.is_multiple_of(4096)
                && spec.kind != BarKind::Io
                && offset + length <= spec.size
                && spec
                    .areas
                    .iter()
                    .all(|area| offset + length <= area.offset || area.offset + area.length <= offset)
        });

        if is_trapped { Ok(()) } else { Err(SpecError::Place { bar, offset, length }) }
    }

    /// Checks that a range is page-aligned and lies in one area of `kind`, in a BAR of which each
    /// attachment has memory of its own.
    fn check_area(&self, bar: u8, offset: u64, length: u64, kind: AreaKind) -> Result<(), SpecError> {
        let is_inside = self.bar(bar).is_some_and(|spec| {
            offset.is_multiple_of(4096)
                && spec.scope == Scope::Attachment
                && spec.areas.iter().any(|area| {
                    area.kind == kind && area.offset <= offset && offset + length <= area.offset + area.length
                })
        });

        if is_inside { Ok(()) } else { Err(SpecError::Place { bar, offset, length }) }
    }
}
