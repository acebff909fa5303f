//! How a device describes itself: identity, BARs and what lies in them, attachments, interrupts.
//!
//! A description is data. The core builds configuration space, capabilities and windows from it,
//! and refuses one that does not make sense ([`FunctionSpec::validate`]) when the function is added
//! to a machine.

use nicforge_hwi::{attachment, posted};
use thiserror::Error;

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

/// What a BAR decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// 32-bit memory, which a bridge forwards by its window below 4 GiB. It is never prefetchable:
    /// PCI Express has that for BARs of 64 bits only (Base 4.0, 7.5.1.2.1), and one of 32 bits
    /// would keep the bridge's whole prefetchable window below 4 GiB. That it is memory, a driver
    /// learns from [`nicforge_hwi::pci::AttachmentCapability::memory_bars`].
    Memory32,
    /// 64-bit memory; takes this BAR and the next. If it is prefetchable, a bridge forwards it by a
    /// window of 64 bits.
    Memory64 {
        /// Reads have no side effects and writes may be combined.
        prefetchable: bool,
    },
    /// I/O ports.
    Io,
}

/// Who shares the memory behind a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each attachment has its own, new for each tenant.
    Attachment,
    /// The attachments of one [`AttachmentSpec::group`] share it; it is new when the group's first
    /// tenant comes.
    Group,
}

/// What an access to an area does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaKind {
    /// Memory that clients map and write.
    Mapped,
    /// Memory that clients map read-only and only the device writes.
    Mirrored,
}

/// Memory within a BAR. What is in no area is trapped: it reaches [`crate::device::Device::read`]
/// and `write`. VFIO protects whole regions, so the areas of one BAR are all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Start in the BAR in bytes, a multiple of 4096.
    pub offset: u64,
    /// Length in bytes, a multiple of 4096.
    pub length: u64,
    /// Who writes it.
    pub kind: AreaKind,
}

/// One base address register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarSpec {
    /// Size in bytes: a power of two; at least 16 for memory, 4 for I/O ports, 4096 with areas.
    pub size: u64,
    /// What it decodes.
    pub kind: BarKind,
    /// Who shares its memory.
    pub scope: Scope,
    /// Memory in it, ascending and disjoint.
    pub areas: Vec<Area>,
}

impl BarSpec {
    /// A BAR of which every access is trapped.
    pub fn trapped(size: u64) -> Self {
        Self { size, kind: BarKind::Memory32, scope: Scope::Attachment, areas: Vec::new() }
    }

    /// I/O ports.
    pub fn io(size: u64) -> Self {
        Self { size, kind: BarKind::Io, scope: Scope::Attachment, areas: Vec::new() }
    }

    /// A BAR that is one area from end to end.
    pub fn memory(size: u64, kind: AreaKind, scope: Scope) -> Self {
        Self { size, kind: BarKind::Memory32, scope, areas: vec![Area { offset: 0, length: size, kind }] }
    }

    /// Whether it is memory from end to end that only the device writes.
    pub(crate) fn is_mirrored(&self) -> bool {
        // The areas of a BAR are all of one kind.
        self.is_memory() && self.areas.first().is_some_and(|area| area.kind == AreaKind::Mirrored)
    }

    /// Whether it has memory from end to end and nothing that is trapped.
    pub(crate) fn is_memory(&self) -> bool {
        self.areas.iter().map(|area| area.length).sum::<u64>() == self.size
    }
}

/// The posted-write rings of each attachment, and the pages that go with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Rings, 0 to [`attachment::MAX_RINGS`].
    pub count: u8,
    /// Cells in each: a power of two, [`posted::MIN_RING_CELLS`] to [`posted::MAX_RING_CELLS`].
    pub cells: u32,
    /// BAR (mapped, attachment scope) of the rings, and the offset of ring 0 in it.
    pub bar: u8,
    /// See `bar`; a multiple of 4096. Bar and offset mean nothing when there are no rings.
    pub offset: u32,
    /// BAR (mirrored, attachment scope) whose first page is the attachment mirror.
    pub mirror_bar: u8,
    /// BAR (with trapped space) of the control page, and its offset there.
    pub control_bar: u8,
    /// See `control_bar`; a multiple of 4096.
    pub control_offset: u32,
}

/// Where the MSI-X table and pending bits lie; both trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixSpec {
    /// Vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR of both.
    pub bar: u8,
    /// Offset of the table, 16 bytes a vector; a multiple of 4096.
    pub table: u32,
    /// Offset of the pending bits; a multiple of 4096.
    pub pba: u32,
}

/// One attachment of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSpec {
    /// Name in sockets and tables: 1 to [`MAX_NAME`] letters, digits, `-`.
    pub name: String,
    /// Which memory of [`Scope::Group`] it sees.
    pub group: u8,
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// PCI identity.
    pub identity: Identity,
    /// The six BARs. The one after a 64-bit BAR is `None`.
    pub bars: [Option<BarSpec>; 6],
    /// Attachments; their index is their number.
    pub attachments: Vec<AttachmentSpec>,
    /// MSI-X, if any.
    pub msix: Option<MsixSpec>,
    /// Whether the function has an INTx pin.
    pub intx: bool,
    /// Posted-write rings, control page and mirror, if any.
    pub rings: Option<RingSpec>,
}

/// The longest name of an attachment in bytes.
pub const MAX_NAME: usize = 64;

/// Size of BAR 0's part that the core adds behind a NIC's own registers in [`FunctionSpec::nic`]:
/// control page, MSI-X table (at most 256 vectors), pending bits.
pub const CORE_REGISTERS: u64 = 0x3000;

impl FunctionSpec {
    /// The usual shape of a nicforge NIC: BAR 0 with `registers` bytes of the device's own (a
    /// multiple of 4096), then the core's control page and MSI-X (at most 256 vectors); BAR 1 the
    /// attachment's windows, a ring of `ring_cells` and `windows` bytes of the device's own from
    /// offset 0x10000 on, or behind a ring that is longer; BAR 2 the attachment mirror, its first
    /// page the core's and then `mirror` bytes of the device's. The device adds BARs 3 to 5.
    pub fn nic(
        identity: Identity,
        attachments: Vec<AttachmentSpec>,
        registers: u64,
        vectors: u16,
        ring_cells: u32,
        windows: u64,
        mirror: u64,
    ) -> Self {
        let control = registers.next_multiple_of(4096);
        let ring_bytes = u64::from(ring_cells) * posted::CELL as u64;
        let window_size =
            if windows == 0 { ring_bytes.max(4096) } else { ring_bytes.max(0x1_0000) + windows };
        let bars = [
            Some(BarSpec::trapped((control + CORE_REGISTERS).next_power_of_two())),
            Some(BarSpec::memory(window_size.next_power_of_two(), AreaKind::Mapped, Scope::Attachment)),
            Some(BarSpec::memory((4096 + mirror).next_power_of_two(), AreaKind::Mirrored, Scope::Attachment)),
            None,
            None,
            None,
        ];

        Self {
            identity,
            bars,
            attachments,
            msix: Some(MsixSpec {
                vectors,
                bar: 0,
                table: control as u32 + 0x1000,
                pba: control as u32 + 0x2000,
            }),
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
        }
    }

    /// Whether all of it makes sense together.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.attachments.is_empty() || self.attachments.len() > usize::from(u16::MAX) {
            return Err(SpecError::Attachments { count: self.attachments.len() });
        }

        for (index, attachment) in self.attachments.iter().enumerate() {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            let name = &attachment.name;
            if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(good) {
                return Err(SpecError::Name { attachment: index });
            }
        }

        for (index, bar) in self.bars.iter().enumerate() {
            if let Some(bar) = bar {
                self.validate_bar(index as u8, bar)?;
            }
        }

        if let Some(msix) = self.msix {
            if msix.vectors == 0 || msix.vectors > 2048 {
                return Err(SpecError::Vectors { vectors: msix.vectors });
            }
            self.trapped(msix.bar, msix.table.into(), u64::from(msix.vectors) * 16)?;
            self.trapped(msix.bar, msix.pba.into(), u64::from(msix.vectors).div_ceil(64) * 8)?;
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
                self.area(rings.bar, rings.offset.into(), bytes, AreaKind::Mapped)?;
            }
            self.area(rings.mirror_bar, 0, attachment::mirror::SIZE, AreaKind::Mirrored)?;
            self.trapped(rings.control_bar, rings.control_offset.into(), attachment::control::SIZE)?;
        }

        self.disjoint()
    }

    /// Whether the core's tables and pages lie apart.
    fn disjoint(&self) -> Result<(), SpecError> {
        let control = self
            .rings
            .map(|rings| (rings.control_bar, u64::from(rings.control_offset), attachment::control::SIZE));
        let msix = self.msix.map(|msix| {
            let vectors = u64::from(msix.vectors);
            (
                (msix.bar, u64::from(msix.table), vectors * 16),
                (msix.bar, u64::from(msix.pba), vectors.div_ceil(64) * 8),
            )
        });

        let places = [control, msix.map(|(table, _)| table), msix.map(|(_, pba)| pba)];
        for (index, place) in places.iter().enumerate() {
            for other in &places[index + 1..] {
                if let (&Some((bar, offset, length)), &Some((other_bar, start, size))) = (place, other)
                    && bar == other_bar
                    && offset < start + size
                    && start < offset + length
                {
                    return Err(SpecError::Place { bar, offset, length });
                }
            }
        }

        Ok(())
    }

    fn validate_bar(&self, index: u8, bar: &BarSpec) -> Result<(), SpecError> {
        let least = match (bar.kind, bar.areas.is_empty()) {
            (BarKind::Io, true) => 4,
            (BarKind::Io, false) => return Err(SpecError::Area { bar: index, offset: 0, length: bar.size }),
            (_, true) => 16,
            (_, false) => 4096,
        };

        let most = if matches!(bar.kind, BarKind::Memory64 { .. }) { 1 << 40 } else { 1 << 31 };
        if !bar.size.is_power_of_two() || bar.size < least || bar.size > most {
            return Err(SpecError::BarSize { bar: index, size: bar.size });
        }

        if matches!(bar.kind, BarKind::Memory64 { .. })
            && self.bars.get(usize::from(index) + 1).is_none_or(Option::is_some)
        {
            return Err(SpecError::Bar64 { bar: index });
        }

        let mut end = 0;
        for area in &bar.areas {
            let bad = area.offset % 4096 != 0
                || area.length % 4096 != 0
                || area.length == 0
                || area.offset < end
                || area.offset.checked_add(area.length).is_none_or(|end| end > bar.size)
                || area.kind != bar.areas[0].kind;
            if bad {
                return Err(SpecError::Area { bar: index, offset: area.offset, length: area.length });
            }
            end = area.offset + area.length;
        }

        Ok(())
    }

    fn bar(&self, index: u8) -> Option<&BarSpec> {
        self.bars.get(usize::from(index)).and_then(Option::as_ref)
    }

    fn trapped(&self, bar: u8, offset: u64, length: u64) -> Result<(), SpecError> {
        let free = self.bar(bar).is_some_and(|spec| {
            offset.is_multiple_of(4096)
                && spec.kind != BarKind::Io
                && offset + length <= spec.size
                && spec
                    .areas
                    .iter()
                    .all(|area| offset + length <= area.offset || area.offset + area.length <= offset)
        });

        if free { Ok(()) } else { Err(SpecError::Place { bar, offset, length }) }
    }

    fn area(&self, bar: u8, offset: u64, length: u64, kind: AreaKind) -> Result<(), SpecError> {
        let inside = self.bar(bar).is_some_and(|spec| {
            offset.is_multiple_of(4096)
                && spec.scope == Scope::Attachment
                && spec.areas.iter().any(|area| {
                    area.kind == kind && area.offset <= offset && offset + length <= area.offset + area.length
                })
        });

        if inside { Ok(()) } else { Err(SpecError::Place { bar, offset, length }) }
    }
}

/// Why a [`FunctionSpec`] was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// Too few or too many attachments.
    #[error("a function needs 1 to 65535 attachments, not {count}")]
    Attachments {
        /// How many there are.
        count: usize,
    },
    /// An attachment's name is empty, too long, or has other characters than letters, digits and
    /// `-`.
    #[error("attachment {attachment} needs a name of 1 to 64 letters, digits and `-`")]
    Name {
        /// Its number.
        attachment: usize,
    },
    /// A BAR's size is not a power of two or out of range.
    #[error(
        "BAR {bar} of {size} bytes: the size must be a power of two, 16 bytes or more (I/O: 4, with mapped areas: 4096)"
    )]
    BarSize {
        /// Which.
        bar: u8,
        /// Its size.
        size: u64,
    },
    /// The BAR behind a 64-bit BAR is taken or does not exist.
    #[error("BAR {bar} is 64 bits wide, so the next one must be left out")]
    Bar64 {
        /// Which.
        bar: u8,
    },
    /// An area is misaligned, out of its BAR, overlaps, or is of another kind than its neighbour.
    #[error(
        "BAR {bar}: the area at {offset:#x} of {length:#x} bytes is misaligned, outside, overlapping, or of a second kind"
    )]
    Area {
        /// Which BAR.
        bar: u8,
        /// The area's offset.
        offset: u64,
        /// The area's length.
        length: u64,
    },
    /// MSI-X vectors out of range.
    #[error("{vectors} MSI-X vectors: 1 to 2048 are possible")]
    Vectors {
        /// How many.
        vectors: u16,
    },
    /// Rings out of range.
    #[error("{count} rings of {cells} cells: at most 8 of a power of two between 64 and 65536")]
    Rings {
        /// How many rings.
        count: u8,
        /// Cells in each.
        cells: u32,
    },
    /// A table, page or ring does not lie where it must, or overlaps another.
    #[error("BAR {bar}: {length:#x} bytes at {offset:#x} do not lie in free space of the right kind")]
    Place {
        /// Which BAR.
        bar: u8,
        /// Offset in it.
        offset: u64,
        /// Length.
        length: u64,
    },
}
