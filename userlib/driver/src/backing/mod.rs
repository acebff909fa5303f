//! What is behind a [`crate::Device`]: a machine in this process, a server behind a vfio-user socket, or a PCI function that the
//! kernel hands out, through VFIO or the shim.
//!
//! In: accesses to VFIO regions, interrupts to bind, memory to make reachable by DMA. Out: register values, mapped memory,
//! interrupt sources. A backing may use locks and system calls; nothing on the per-packet path of a library goes through
//! it except [`Backing::relax`].

mod function;
mod shim;
mod vfio;
mod vfio_user;
mod watch;

use std::{fmt, ops::Range, os::fd::BorrowedFd, sync::Arc};

use nicforge_shm::{SharedMemory, SharedU64, Window};

pub use shim::Shim;
pub use vfio::Vfio;
pub use vfio_user::VfioUser;

use crate::{Cancel, Deadline, Error, Relax};

/// VFIO index of the expansion ROM's region.
pub const REGION_ROM: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_ROM_REGION_INDEX;
/// VFIO index of the configuration space's region. Regions 0 to 5 are the BARs.
pub const REGION_CONFIG: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
/// VFIO index of the INTx interrupt.
pub const IRQ_INTX: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_INTX_IRQ_INDEX;
/// VFIO index of the MSI interrupts.
pub const IRQ_MSI: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_MSI_IRQ_INDEX;
/// VFIO index of the MSI-X interrupts.
pub const IRQ_MSIX: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_MSIX_IRQ_INDEX;

/// A range of a region that is memory and may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappableArea {
    /// First byte in the region, a multiple of the page size.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A region of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Bytes; 0 when the device has no such region.
    pub size: u64,
    /// Trapped reads are possible.
    pub readable: bool,
    /// Writes are possible, trapped or to mapped areas.
    pub writable: bool,
    /// What of it is memory. Empty when all of it is trapped.
    pub mappable: Vec<MappableArea>,
}

/// The interrupts of one VFIO index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// Vectors; 0 when the device has none of this kind.
    pub count: u32,
    /// Vectors can be masked and unmasked.
    pub maskable: bool,
    /// A vector masks itself when it fires ([`crate::Interrupt::unmask`] when it was dealt with), as INTx does.
    pub automasked: bool,
}

/// Whether a trapped write waits until the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// The call returns when the device has taken the write.
    Confirmed,
    /// The call returns at once; later accesses of the same client stay behind it. An error is not reported.
    Posted,
}

/// What a device may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaPermission {
    /// The device may read it.
    pub read: bool,
    /// The device may write it.
    pub write: bool,
}

impl DmaPermission {
    /// Both ways.
    pub const READ_WRITE: Self = Self { read: true, write: true };
    /// The device only reads it.
    pub const READ_ONLY: Self = Self { read: true, write: false };
}

/// Memory that a device can reach by messages only. Offsets are relative to its start.
pub trait PrivateMemory: Send + Sync {
    /// Copies from it.
    ///
    /// # Errors
    /// When the range leaves the memory.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Copies into it.
    ///
    /// # Errors
    /// When the range leaves the memory.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// All of it as mapped memory of this process, if it is that. A kernel that lets a device reach it pins it there.
    fn mapped(&self) -> Option<&Window> {
        None
    }
}

impl PrivateMemory for Window {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        Ok(Window::read(self, offset, out)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        Ok(Window::write(self, offset, data)?)
    }

    fn mapped(&self) -> Option<&Window> {
        Some(self)
    }
}

/// Memory to be made reachable by DMA.
#[derive(Clone)]
pub enum DmaMemory {
    /// `len` bytes from `offset` on of memory that is shared with the device. A vfio-user server maps its file, which it
    /// therefore must have, and which starts where the memory does. Both numbers are multiples of the page size.
    Shared {
        /// The memory.
        memory: SharedMemory,
        /// First byte in it and in its file.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// `len` bytes that stay with this process. A vfio-user server asks for them by messages, which are answered whenever
    /// somebody waits for or talks to the device ([`Backing::relax`], trapped accesses, blocking interrupt waits). A device
    /// behind the kernel reaches them if they are [`PrivateMemory::mapped`].
    Private {
        /// The memory.
        memory: Arc<dyn PrivateMemory>,
        /// Bytes, a multiple of the page size.
        len: u64,
    },
}

impl DmaMemory {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            DmaMemory::Shared { len, .. } | DmaMemory::Private { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// It as memory that is mapped in this process: what a kernel pins.
    pub(crate) fn mapped(&self) -> Result<Window, Error> {
        match self {
            DmaMemory::Shared { memory, offset, len } => Ok(memory.window(*offset, *len)?),
            DmaMemory::Private { memory, len } => {
                let unknown = Error::Unsupported { what: "DMA to memory that is not mapped in this process" };
                Ok(memory.mapped().ok_or(unknown)?.window(0, *len)?)
            }
        }
    }
}

impl fmt::Debug for DmaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DmaMemory::Shared { offset, len, .. } => write!(f, "Shared[{offset:#x}, +{len:#x})"),
            DmaMemory::Private { len, .. } => write!(f, "Private[{len:#x}]"),
        }
    }
}

/// Who chooses the addresses by which the device reaches memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmaAddresses {
    /// The library, within these ranges: there is an IOMMU, or a server that plays one. [`Backing::dma_map`] takes them.
    Free(Vec<Range<u64>>),
    /// The backing: [`Backing::dma_allocate`] and [`Backing::dma_register`] give them.
    Given,
}

impl DmaAddresses {
    /// The lowest address handed out by default, so that no buffer lies at 0.
    pub const FIRST: u64 = 1 << 20;
    /// The end of the addresses handed out by default: what the smallest common IOMMU reaches (39 bits).
    pub const END: u64 = 1 << 39;
}

impl Default for DmaAddresses {
    /// All that every device and IOMMU understand.
    fn default() -> Self {
        DmaAddresses::Free(std::iter::once(Self::FIRST..Self::END).collect())
    }
}

/// Memory that a backing made, and where the device finds it.
#[derive(Clone, Debug)]
pub struct DmaAllocation {
    /// The memory, of at least the length asked for.
    pub memory: SharedMemory,
    /// Its first byte's address for the device.
    pub iova: u64,
}

/// Where an interrupt arrives.
pub trait InterruptSource: Send + Sync {
    /// Interrupts since the last call. Does not block.
    fn take(&self) -> u64;

    /// Blocks until there is at least one interrupt, and takes as [`InterruptSource::take`] does. DMA messages are
    /// answered meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error>;

    /// A descriptor that is readable while there is an interrupt to take, if it has one.
    fn raw_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A device as VFIO shows it.
pub trait Backing: Send + Sync + 'static {
    /// What region `region` is: 0 to 5 are the BARs, [`REGION_ROM`], [`REGION_CONFIG`]. A region that the device does not
    /// have has size 0.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::Refused`].
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error>;

    /// A trapped read.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::OutOfRange`], [`Error::Refused`], [`Error::Timeout`].
    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error>;

    /// A trapped write.
    ///
    /// # Errors
    /// As [`Backing::read`].
    fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), Error>;

    /// The memory behind a region, from its first byte on and at least as far as its last mappable area; `None` when it
    /// is all trapped. Only what [`RegionInfo::mappable`] names means anything.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::Memory`].
    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error>;

    /// As [`Backing::map`], for a region that only the device writes: mapped for loads alone, also where the backing does not
    /// know that (a kernel maps any BAR for stores).
    ///
    /// # Errors
    /// As [`Backing::map`].
    fn map_read_only(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        self.map(region)
    }

    /// The interrupts of VFIO index `index`.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::Refused`].
    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error>;

    /// Binds a vector to a new source, which replaces one that was bound before.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::DeviceGone`], [`Error::Refused`].
    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error>;

    /// Unbinds every vector of an index.
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::Refused`].
    fn unbind_interrupts(&self, index: u32) -> Result<(), Error>;

    /// Masks `count` vectors from `start` on: what they signal is kept until they are unmasked.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::DeviceGone`], [`Error::Refused`].
    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error>;

    /// Unmasks them.
    ///
    /// # Errors
    /// As [`Backing::mask`].
    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error>;

    /// Who chooses DMA addresses. Asked once, when the device is opened.
    fn dma_addresses(&self) -> DmaAddresses {
        DmaAddresses::default()
    }

    /// Makes `len` bytes of memory that the device reaches, a multiple of the page size. `None` where any memory will do:
    /// then the library makes some, and maps it.
    ///
    /// # Errors
    /// [`Error::Refused`] (`ENOMEM`, `EDQUOT`), [`Error::DeviceGone`].
    fn dma_allocate(&self, _len: u64) -> Result<Option<DmaAllocation>, Error> {
        Ok(None)
    }

    /// As [`Backing::dma_map`], at an address that the backing chooses and gives back. Only with [`DmaAddresses::Given`].
    ///
    /// # Errors
    /// As [`Backing::dma_map`]; [`Error::Unsupported`] when there is no one address for all of it.
    fn dma_register(&self, _memory: DmaMemory, _permission: DmaPermission) -> Result<u64, Error> {
        Err(Error::Unsupported { what: "DMA addresses that the backing chooses" })
    }

    /// Lets the device reach `memory` at `iova`.
    ///
    /// # Errors
    /// [`Error::Refused`] (`EEXIST` for an overlap, `ENOSPC`/`EDQUOT` for a quota), [`Error::DeviceGone`].
    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error>;

    /// Takes `[iova, iova + len)`, as it was mapped, registered or allocated, away from the device. When it returns without an error the
    /// device does not touch the memory any more. What was allocated may stay the device's until the program's last mapping of it is
    /// gone, but is given to nobody else before.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::DeviceGone`].
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error>;

    /// Resets the function, or the attachment that this client holds.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::DeviceGone`].
    fn reset(&self) -> Result<(), Error>;

    /// One turn of a waiting loop: in process, steps the machine; on a host, spins, then yields, then sleeps shortly.
    /// Answers DMA messages, and notices in its slow part that the server is gone.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    fn relax(&self, relax: &mut Relax) -> Result<(), Error>;

    /// Whether the engine behind the device can make this processor execute a memory barrier (`membarrier`): it is in the same
    /// kernel. Where it is not, writers fence before they look whether it sleeps.
    fn engine_is_near(&self) -> bool {
        true
    }

    /// Tells where the engine behind the device counts its heartbeat, for a backing that can make use of it to notice sooner
    /// that the engine died. Called once, when the device is opened; not for a plain PCI function.
    fn set_heartbeat(&self, _heartbeat: SharedU64) {}

    /// A descriptor that is readable when [`Backing::attend`] has something to do, for waits that block in the kernel.
    /// `None` when time only passes in [`Backing::relax`].
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Deals with all that made [`Backing::event_fd`] readable, without waiting. Also called before each wait that blocks, for
    /// what was read already.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    fn attend(&self) -> Result<(), Error> {
        Ok(())
    }
}
