//! Values that both sides of a connection exchange, as owned Rust types.

use std::os::fd::OwnedFd;

use vfio_bindings::bindings::vfio;

use crate::socket::PeerFd;

/// `VFIO_DEVICE_FLAGS_RESET`: the device takes `DEVICE_RESET`.
pub const DEVICE_FLAGS_RESET: u32 = vfio::VFIO_DEVICE_FLAGS_RESET;
/// `VFIO_DEVICE_FLAGS_PCI`: a PCI device, the only kind of this protocol version.
pub const DEVICE_FLAGS_PCI: u32 = vfio::VFIO_DEVICE_FLAGS_PCI;

/// `VFIO_REGION_INFO_FLAG_READ`: the region can be read.
pub const REGION_FLAG_READ: u32 = vfio::VFIO_REGION_INFO_FLAG_READ;
/// `VFIO_REGION_INFO_FLAG_WRITE`: the region can be written.
pub const REGION_FLAG_WRITE: u32 = vfio::VFIO_REGION_INFO_FLAG_WRITE;
/// `VFIO_REGION_INFO_FLAG_MMAP`: the region, or its sparse areas, can be mapped.
pub const REGION_FLAG_MMAP: u32 = vfio::VFIO_REGION_INFO_FLAG_MMAP;
/// `VFIO_REGION_INFO_FLAG_CAPS`: capabilities follow the region info. Set by this crate.
pub const REGION_FLAG_CAPS: u32 = vfio::VFIO_REGION_INFO_FLAG_CAPS;

/// `VFIO_PCI_CONFIG_REGION_INDEX`: the configuration space.
pub const PCI_CONFIG_REGION: u32 = vfio::VFIO_PCI_CONFIG_REGION_INDEX;
/// `VFIO_PCI_ROM_REGION_INDEX`: the expansion ROM.
pub const PCI_ROM_REGION: u32 = vfio::VFIO_PCI_ROM_REGION_INDEX;
/// `VFIO_PCI_NUM_REGIONS`: regions that every PCI device has, of any size including zero.
pub const PCI_NUM_REGIONS: u32 = vfio::VFIO_PCI_NUM_REGIONS;

/// `VFIO_PCI_INTX_IRQ_INDEX`
pub const PCI_INTX_IRQ: u32 = vfio::VFIO_PCI_INTX_IRQ_INDEX;
/// `VFIO_PCI_MSI_IRQ_INDEX`
pub const PCI_MSI_IRQ: u32 = vfio::VFIO_PCI_MSI_IRQ_INDEX;
/// `VFIO_PCI_MSIX_IRQ_INDEX`
pub const PCI_MSIX_IRQ: u32 = vfio::VFIO_PCI_MSIX_IRQ_INDEX;
/// `VFIO_PCI_ERR_IRQ_INDEX`
pub const PCI_ERR_IRQ: u32 = vfio::VFIO_PCI_ERR_IRQ_INDEX;
/// `VFIO_PCI_REQ_IRQ_INDEX`
pub const PCI_REQ_IRQ: u32 = vfio::VFIO_PCI_REQ_IRQ_INDEX;
/// `VFIO_PCI_NUM_IRQS`: interrupt types that every PCI device has, of any count including zero.
pub const PCI_NUM_IRQS: u32 = vfio::VFIO_PCI_NUM_IRQS;

/// `VFIO_IRQ_INFO_EVENTFD`: can be signalled by an eventfd.
pub const IRQ_FLAG_EVENTFD: u32 = vfio::VFIO_IRQ_INFO_EVENTFD;
/// `VFIO_IRQ_INFO_MASKABLE`: takes mask and unmask.
pub const IRQ_FLAG_MASKABLE: u32 = vfio::VFIO_IRQ_INFO_MASKABLE;
/// `VFIO_IRQ_INFO_AUTOMASKED`: masks itself when it triggers.
pub const IRQ_FLAG_AUTOMASKED: u32 = vfio::VFIO_IRQ_INFO_AUTOMASKED;
/// `VFIO_IRQ_INFO_NORESIZE`: is set up as a whole.
pub const IRQ_FLAG_NORESIZE: u32 = vfio::VFIO_IRQ_INFO_NORESIZE;

/// `VFIO_DMA_MAP_FLAG_READ`: the device may read the range.
pub const DMA_FLAG_READ: u32 = vfio::VFIO_DMA_MAP_FLAG_READ;
/// `VFIO_DMA_MAP_FLAG_WRITE`: the device may write the range.
pub const DMA_FLAG_WRITE: u32 = vfio::VFIO_DMA_MAP_FLAG_WRITE;

/// Reply to `DEVICE_GET_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `DEVICE_FLAGS_*`.
    pub flags: u32,
    /// Number of regions; QEMU takes at most 100.
    pub num_regions: u32,
    /// Number of interrupt types; QEMU takes at most 50.
    pub num_irqs: u32,
}

/// A part of a region that can be mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparseArea {
    /// Start in the region, in bytes, a multiple of the page size.
    pub offset: u64,
    /// Size in bytes, a multiple of the page size.
    pub size: u64,
}

/// Type of a region beyond the standard ones (`VFIO_REGION_INFO_CAP_TYPE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionType {
    /// Type, global or of a bus driver.
    pub kind: u32,
    /// Type-specific number.
    pub subtype: u32,
}

/// Reply to `DEVICE_GET_REGION_INFO`.
#[derive(Debug, Default)]
pub struct RegionInfo {
    /// `REGION_FLAG_*`. A server need not set `REGION_FLAG_CAPS`.
    pub flags: u32,
    /// Size in bytes; zero for a region that does not exist.
    pub size: u64,
    /// Where the region starts in the descriptor's file, in bytes.
    pub offset: u64,
    /// The parts that can be mapped; with `REGION_FLAG_MMAP` and no areas, all of it can.
    pub areas: Vec<SparseArea>,
    /// Type of a region beyond the standard ones.
    pub region_type: Option<RegionType>,
    /// The file to map, when `REGION_FLAG_MMAP` is set.
    pub fd: Option<OwnedFd>,
}

impl RegionInfo {
    /// Returns the parts that can be mapped: the sparse areas, the whole region, or none.
    pub fn mappable(&self) -> Vec<SparseArea> {
        if self.flags & REGION_FLAG_MMAP == 0 || self.fd.is_none() || self.size == 0 {
            Vec::new()
        } else if self.areas.is_empty() {
            vec![SparseArea { offset: 0, size: self.size }]
        } else {
            self.areas.clone()
        }
    }
}

/// Reply to `DEVICE_GET_IRQ_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// `IRQ_FLAG_*`.
    pub flags: u32,
    /// Number of interrupts of the type; zero for a type that does not exist.
    pub count: u32,
}

/// A range of client memory that the device may reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmaMap {
    /// `DMA_FLAG_*`.
    pub flags: u32,
    /// Where the range starts in the descriptor's file, in bytes; zero without one.
    pub offset: u64,
    /// First DMA address, at the start of a page.
    pub address: u64,
    /// Size in bytes, whole pages, not zero; `address + size - 1` does not overflow.
    pub size: u64,
}

/// A range of client memory that the device may no longer reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaUnmap {
    /// One range of addresses.
    Range {
        /// First DMA address.
        address: u64,
        /// Size in bytes; may exceed the mapped ranges.
        size: u64,
    },
    /// All ranges (`VFIO_DMA_UNMAP_FLAG_ALL`).
    All,
}

impl DmaUnmap {
    /// Returns whether the request unmaps any of the `len` bytes at `start`.
    pub fn touches(&self, start: u64, len: usize) -> bool {
        match *self {
            Self::Range { address, size } => {
                let last = start.saturating_add(len.saturating_sub(1) as u64);
                start <= address.saturating_add(size.saturating_sub(1)) && address <= last
            }
            Self::All => true,
        }
    }
}

/// Operation on the interrupts of a [`SetIrqs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Stop all interrupts of the type; start and count are zero, and there are no data.
    Disable,
    /// With an eventfd: signal it when the device interrupts. Otherwise: interrupt now.
    Trigger,
    /// With an eventfd: signal it when the interrupt is masked. Otherwise: mask.
    Mask,
    /// With an eventfd: the client unmasks by signalling it. Otherwise: unmask.
    Unmask,
}

/// The interrupts that a [`SetIrqs`] applies to, and their eventfds.
#[derive(Debug)]
pub enum IrqData {
    /// All interrupts of the range.
    None,
    /// The interrupts of the range whose entry is true; there is one entry for each interrupt.
    Bool(Vec<bool>),
    /// One entry for each interrupt: bind it to the eventfd, or, with `None`, stop exactly that
    /// interrupt.
    EventFd(Vec<Option<PeerFd>>),
}

/// A checked `DEVICE_SET_IRQS`.
#[derive(Debug)]
pub struct SetIrqs {
    /// Index of the interrupt type.
    pub index: u32,
    /// First interrupt; `start + count` is within the type's count.
    pub start: u32,
    /// Number of interrupts.
    pub count: u32,
    /// The operation.
    pub action: IrqAction,
    /// The interrupts it applies to.
    pub data: IrqData,
}
