//! The interface of the kernel module `nicforge-shim` (`kmod-shim/`), as programs see it.
//!
//! The C side is written by hand: `kmod-shim/include/uapi/nicforge_shim.h`. That header describes
//! each call and its errors. A test compiles it and compares sizes, offsets and values with these.
//! Unlike the rest of this crate, all fields here have the byte order of the processor, because
//! they never cross a bus.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the interface described here ([`Info::version`]).
pub const VERSION: u32 = 1;
/// Type byte of all ioctl numbers.
pub const IOCTL_TYPE: u8 = 0xe1;

/// [`Info::flags`]: the function can be reset alone.
pub const INFO_RESET: u32 = 1 << 0;
/// [`Info::flags`]: an IOMMU translates the function's DMA addresses.
pub const INFO_IOMMU: u32 = 1 << 1;
/// [`Info::flags`]: the function has the attachment capability
/// ([`crate::pci::AttachmentCapability`]).
pub const INFO_ATTACHMENT: u32 = 1 << 2;
/// [`Info::flags`]: the function takes 64-bit DMA addresses.
pub const INFO_DMA64: u32 = 1 << 3;

/// Identity and state of the function.
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
    /// Nearest NUMA node, or -1 if unknown.
    pub numa_node: i32,
    /// Number of resets since the module bound the function.
    pub resets: u32,
    /// Largest amount of DMA memory for the function, in bytes.
    pub dma_quota: u64,
    /// DMA memory of the function, in bytes.
    pub dma_used: u64,
}

/// Number of BAR regions: regions 0 to 5 are the BARs, as in VFIO.
pub const REGION_BARS: u32 = 6;
/// Region of configuration space, read-only. VFIO uses the same number.
pub const REGION_CONFIG: u32 = 7;

/// [`Region::flags`]: `pread` works.
pub const REGION_READ: u32 = 1 << 0;
/// [`Region::flags`]: `pwrite` works, and mappings may be writable.
pub const REGION_WRITE: u32 = 1 << 1;
/// [`Region::flags`]: `mmap` works in the areas at [`Region::offset`], uncached.
pub const REGION_MMAP: u32 = 1 << 2;
/// [`Region::flags`]: `mmap` works in the areas also at [`Region::wc_offset`], write-combining.
pub const REGION_WC: u32 = 1 << 3;
/// [`Region::flags`]: the region is memory, because it is prefetchable or the attachment capability
/// says so. Loads have no side effects.
pub const REGION_MEMORY: u32 = 1 << 4;
/// [`Region::flags`]: the region consists of I/O ports.
pub const REGION_PORTS: u32 = 1 << 5;

/// Capacity of [`Region::areas`].
pub const MAX_AREAS: usize = 4;

/// A range of a region that can be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Area {
    /// Offset in the region, a multiple of the page size.
    pub offset: u64,
    /// Length in bytes, a multiple of the page size.
    pub len: u64,
}

/// A region of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Region {
    /// Number of the region, 0 to 5 or [`REGION_CONFIG`]. The caller sets it.
    pub index: u32,
    /// [`REGION_READ`] and so on.
    pub flags: u32,
    /// Size in bytes, 0 if the function has no such region.
    pub size: u64,
    /// Offset of the region in the file, for `pread`, `pwrite` and `mmap`.
    pub offset: u64,
    /// The same for write-combining mappings, 0 if there are none.
    pub wc_offset: u64,
    /// Number of entries in [`Region::areas`].
    pub area_count: u32,
    /// Zero.
    pub reserved: u32,
    /// The ranges that can be mapped, in ascending order.
    pub areas: [Area; MAX_AREAS],
}

/// The INTx line. VFIO uses the same number.
pub const IRQ_INTX: u32 = 0;
/// MSI vectors.
pub const IRQ_MSI: u32 = 1;
/// MSI-X vectors.
pub const IRQ_MSIX: u32 = 2;

/// [`Irq::flags`]: [`MASK_IRQ`] and [`UNMASK_IRQ`] work.
pub const IRQ_MASKABLE: u32 = 1 << 0;
/// [`Irq::flags`]: a vector is masked when it is raised, until [`UNMASK_IRQ`].
pub const IRQ_AUTOMASKED: u32 = 1 << 1;

/// The interrupts of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Irq {
    /// Kind: [`IRQ_INTX`] and so on. The caller sets it.
    pub kind: u32,
    /// Flags: [`IRQ_MASKABLE`] and so on.
    pub flags: u32,
    /// Number of vectors, 0 if the function has none of this kind.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// [`IrqBind::eventfd`]: `read` of the device file returns the count.
pub const IRQ_FILE: i32 = -1;

/// Destination of vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqBind {
    /// Kind: [`IRQ_INTX`] and so on.
    pub kind: u32,
    /// First vector.
    pub start: u32,
    /// Number of vectors, at least 1.
    pub count: u32,
    /// An eventfd to which each of them adds 1, or [`IRQ_FILE`].
    pub eventfd: i32,
}

/// Vectors to unbind, mask or unmask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IrqRange {
    /// Kind: [`IRQ_INTX`] and so on.
    pub kind: u32,
    /// First vector.
    pub start: u32,
    /// Number of vectors. For [`UNBIND_IRQ`], `u32::MAX` means all from `start` on.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Largest number of buffers of a function at a time.
pub const MAX_BUFFERS: u32 = 65536;
/// Largest size of one buffer in bytes.
pub const MAX_BUFFER_LEN: u64 = 1 << 30;

/// Request for coherent memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaAlloc {
    /// Length in bytes, a multiple of the page size. The caller sets it.
    pub len: u64,
    /// Address for the function's DMA.
    pub address: u64,
    /// Offset in the file, for `mmap`.
    pub offset: u64,
    /// Handle for [`FREE_DMA`].
    pub handle: u32,
    /// Zero.
    pub flags: u32,
}

/// A contiguous range of memory in the function's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaSegment {
    /// Address for the function's DMA.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
}

/// [`DmaPin::flags`]: the function reads the memory.
pub const DMA_READ: u32 = 1 << 0;
/// [`DmaPin::flags`]: the function writes the memory.
pub const DMA_WRITE: u32 = 1 << 1;

/// Request to pin memory of the program and map it for DMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaPin {
    /// Address in the process, a multiple of the page size. The caller sets it.
    pub start: u64,
    /// Length in bytes, a multiple of the page size. The caller sets it.
    pub len: u64,
    /// Address of [`DmaPin::capacity`] [`DmaSegment`]s that the module fills. The caller sets it.
    pub segments: u64,
    /// Address of the first segment.
    pub address: u64,
    /// Flags: [`DMA_READ`], [`DMA_WRITE`] or both. The caller sets it.
    pub flags: u32,
    /// Handle for [`FREE_DMA`].
    pub handle: u32,
    /// Capacity of the segment array, or 0 if the memory must be one segment. The caller sets it.
    pub capacity: u32,
    /// Number of segments, also if the call fails with `ENOSPC`.
    pub count: u32,
}

/// Request to unmap memory from the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DmaFree {
    /// Handle returned by [`ALLOC_DMA`] or [`PIN_DMA`].
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
}

/// Direction of an ioctl whose struct the caller fills in, as Linux encodes it on most processors.
const IN: u32 = 1;
/// Direction of an ioctl whose struct the module fills in.
const OUT: u32 = 2;

/// Returns the code of ioctl `number` with a struct of `size` bytes, as Linux's `_IOC` does.
const fn ioctl_code(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (IOCTL_TYPE as u32) << 8 | number
}

/// ioctl with [`Info`].
pub const GET_INFO: u32 = ioctl_code(OUT, 0x00, size_of::<Info>());
/// ioctl with [`Region`].
pub const GET_REGION: u32 = ioctl_code(IN | OUT, 0x01, size_of::<Region>());
/// ioctl with [`Irq`].
pub const GET_IRQ: u32 = ioctl_code(IN | OUT, 0x02, size_of::<Irq>());
/// ioctl with [`IrqBind`].
pub const BIND_IRQ: u32 = ioctl_code(IN, 0x03, size_of::<IrqBind>());
/// ioctl with [`IrqRange`].
pub const UNBIND_IRQ: u32 = ioctl_code(IN, 0x04, size_of::<IrqRange>());
/// ioctl with [`IrqRange`].
pub const MASK_IRQ: u32 = ioctl_code(IN, 0x05, size_of::<IrqRange>());
/// ioctl with [`IrqRange`].
pub const UNMASK_IRQ: u32 = ioctl_code(IN, 0x06, size_of::<IrqRange>());
/// ioctl with [`DmaAlloc`].
pub const ALLOC_DMA: u32 = ioctl_code(IN | OUT, 0x07, size_of::<DmaAlloc>());
/// ioctl with [`DmaPin`].
pub const PIN_DMA: u32 = ioctl_code(IN | OUT, 0x08, size_of::<DmaPin>());
/// ioctl with [`DmaFree`].
pub const FREE_DMA: u32 = ioctl_code(IN, 0x09, size_of::<DmaFree>());
/// ioctl without an argument.
pub const RESET: u32 = ioctl_code(0, 0x0a, 0);
