//! The interface of the kernel module `nicforge-shim` (`kmod-shim/`), as programs see it.
//!
//! The C side is written by hand: `kmod-shim/include/uapi/nicforge_shim.h`, which says what each
//! call does and fails with. A test compiles it and compares sizes, offsets and values with these.
//! Unlike the rest of this crate, everything here has the byte order of the processor: it never
//! crosses a bus.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the interface described here ([`Info::version`]).
pub const VERSION: u32 = 1;
/// The type byte of all ioctl numbers.
pub const IOCTL_TYPE: u8 = 0xe1;

/// [`Info::flags`]: the function can be reset alone.
pub const INFO_RESET: u32 = 1 << 0;
/// [`Info::flags`]: an IOMMU translates what the function reaches.
pub const INFO_IOMMU: u32 = 1 << 1;
/// [`Info::flags`]: it has the attachment capability ([`crate::pci::AttachmentCapability`]).
pub const INFO_ATTACHMENT: u32 = 1 << 2;
/// [`Info::flags`]: it takes DMA addresses of 64 bits.
pub const INFO_DMA64: u32 = 1 << 3;

/// What the function is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Info {
    /// [`VERSION`] of the module.
    pub version: u32,
    /// [`INFO_RESET`] and so on.
    pub flags: u32,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// PCI subsystem vendor id.
    pub subsystem_vendor: u16,
    /// PCI subsystem id.
    pub subsystem: u16,
    /// Base class, subclass and programming interface, as in `0x02_80_00`.
    pub class: u32,
    /// PCI revision.
    pub revision: u32,
    /// PCI domain (segment) of its address.
    pub domain: u32,
    /// Bus of its address.
    pub bus: u8,
    /// Device of its address.
    pub slot: u8,
    /// Function of its address.
    pub function: u8,
    /// Zero.
    pub reserved: u8,
    /// Nearest NUMA node, -1 when unknown.
    pub numa_node: i32,
    /// Resets since the module bound the function.
    pub resets: u32,
    /// The most bytes of DMA memory that it may have at once.
    pub dma_quota: u64,
    /// Bytes of DMA memory it has.
    pub dma_used: u64,
}

/// Regions 0 to 5 are the BARs, as VFIO numbers them.
pub const REGION_BARS: u32 = 6;
/// Configuration space, read only; VFIO's number too.
pub const REGION_CONFIG: u32 = 7;

/// [`Region::flags`]: `pread` works.
pub const REGION_READ: u32 = 1 << 0;
/// [`Region::flags`]: `pwrite` works, and mappings may be writable.
pub const REGION_WRITE: u32 = 1 << 1;
/// [`Region::flags`]: `mmap` works in the areas at [`Region::offset`], uncached.
pub const REGION_MMAP: u32 = 1 << 2;
/// [`Region::flags`]: `mmap` works in the areas also at [`Region::wc_offset`], write-combining.
pub const REGION_WC: u32 = 1 << 3;
/// [`Region::flags`]: memory, because it is prefetchable or the attachment capability says so;
/// loads have no side effects.
pub const REGION_MEMORY: u32 = 1 << 4;
/// [`Region::flags`]: I/O ports.
pub const REGION_PORTS: u32 = 1 << 5;

/// Room in [`Region::areas`].
pub const MAX_AREAS: usize = 4;

/// A range of a region that `mmap` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Area {
    /// First byte in the region, a multiple of the page size.
    pub offset: u64,
    /// Bytes, a multiple of the page size.
    pub len: u64,
}

/// A region of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Region {
    /// Which one: 0 to 5, or [`REGION_CONFIG`]. The caller says it.
    pub index: u32,
    /// [`REGION_READ`] and so on.
    pub flags: u32,
    /// Bytes; 0 when the function has no such region.
    pub size: u64,
    /// Where the region starts in the file, for `pread`, `pwrite` and `mmap`.
    pub offset: u64,
    /// The same for write-combining mappings; 0 without them.
    pub wc_offset: u64,
    /// Areas in [`Region::areas`].
    pub area_count: u32,
    /// Zero.
    pub reserved: u32,
    /// What may be mapped, ascending.
    pub areas: [Area; MAX_AREAS],
}

/// The INTx line: VFIO's number too.
pub const IRQ_INTX: u32 = 0;
/// MSI vectors.
pub const IRQ_MSI: u32 = 1;
/// MSI-X vectors.
pub const IRQ_MSIX: u32 = 2;

/// [`Irq::flags`]: [`MASK_IRQ`] and [`UNMASK_IRQ`] work.
pub const IRQ_MASKABLE: u32 = 1 << 0;
/// [`Irq::flags`]: a vector masks itself when it fires, until [`UNMASK_IRQ`].
pub const IRQ_AUTOMASKED: u32 = 1 << 1;

/// The interrupts of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Irq {
    /// [`IRQ_INTX`] and so on. The caller says it.
    pub kind: u32,
    /// [`IRQ_MASKABLE`] and so on.
    pub flags: u32,
    /// Vectors that the function has; 0 without this kind.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// [`IrqBind::eventfd`]: count for `read` of the device file.
pub const IRQ_FILE: i32 = -1;

/// Where vectors are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqBind {
    /// [`IRQ_INTX`] and so on.
    pub kind: u32,
    /// First vector.
    pub start: u32,
    /// Vectors, at least 1.
    pub count: u32,
    /// An eventfd that each of them adds 1 to, or [`IRQ_FILE`].
    pub eventfd: i32,
}

/// Vectors to unbind, mask or unmask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqRange {
    /// [`IRQ_INTX`] and so on.
    pub kind: u32,
    /// First vector.
    pub start: u32,
    /// Vectors; for [`UNBIND_IRQ`] also `u32::MAX` for all from `start` on.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// The most buffers that a function has at a time.
pub const MAX_BUFFERS: u32 = 65536;
/// The most bytes of one buffer.
pub const MAX_BUFFER_LEN: u64 = 1 << 30;

/// Coherent memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAlloc {
    /// Bytes, a multiple of the page size. The caller says it.
    pub len: u64,
    /// Its address for the function.
    pub address: u64,
    /// Where it lies in the file, for `mmap`.
    pub offset: u64,
    /// For [`FREE_DMA`].
    pub handle: u32,
    /// Zero.
    pub flags: u32,
}

/// A piece of memory as the function sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaSegment {
    /// Its address for the function.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

/// [`DmaPin::flags`]: the function reads the memory.
pub const DMA_READ: u32 = 1 << 0;
/// [`DmaPin::flags`]: the function writes it.
pub const DMA_WRITE: u32 = 1 << 1;

/// Memory of the program, to be pinned and mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaPin {
    /// Address in the process, a multiple of the page size. The caller says it.
    pub start: u64,
    /// Bytes, a multiple of the page size. The caller says it.
    pub len: u64,
    /// Address of [`DmaPin::capacity`] [`DmaSegment`]s to be filled. The caller says it.
    pub segments: u64,
    /// The first segment's address.
    pub address: u64,
    /// [`DMA_READ`], [`DMA_WRITE`] or both. The caller says it.
    pub flags: u32,
    /// For [`FREE_DMA`].
    pub handle: u32,
    /// Segments that there is room for; 0 when the memory must be one segment. The caller says it.
    pub capacity: u32,
    /// Segments, also when the call fails with `ENOSPC`.
    pub count: u32,
}

/// Memory to be taken away from the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaFree {
    /// What [`ALLOC_DMA`] or [`PIN_DMA`] gave.
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
}

/// Directions of an ioctl, as Linux encodes them on most processors: the caller writes the struct,
/// and reads it.
const IN: u32 = 1;
const OUT: u32 = 2;

const fn number(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (IOCTL_TYPE as u32) << 8 | number
}

/// ioctl with [`Info`].
pub const GET_INFO: u32 = number(OUT, 0x00, size_of::<Info>());
/// ioctl with [`Region`].
pub const GET_REGION: u32 = number(IN | OUT, 0x01, size_of::<Region>());
/// ioctl with [`Irq`].
pub const GET_IRQ: u32 = number(IN | OUT, 0x02, size_of::<Irq>());
/// ioctl with [`IrqBind`].
pub const BIND_IRQ: u32 = number(IN, 0x03, size_of::<IrqBind>());
/// ioctl with [`IrqRange`].
pub const UNBIND_IRQ: u32 = number(IN, 0x04, size_of::<IrqRange>());
/// ioctl with [`IrqRange`].
pub const MASK_IRQ: u32 = number(IN, 0x05, size_of::<IrqRange>());
/// ioctl with [`IrqRange`].
pub const UNMASK_IRQ: u32 = number(IN, 0x06, size_of::<IrqRange>());
/// ioctl with [`DmaAlloc`].
pub const ALLOC_DMA: u32 = number(IN | OUT, 0x07, size_of::<DmaAlloc>());
/// ioctl with [`DmaPin`].
pub const PIN_DMA: u32 = number(IN | OUT, 0x08, size_of::<DmaPin>());
/// ioctl with [`DmaFree`].
pub const FREE_DMA: u32 = number(IN, 0x09, size_of::<DmaFree>());
/// ioctl without an argument.
pub const RESET: u32 = number(0, 0x0a, 0);
