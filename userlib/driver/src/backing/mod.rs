//! The interface between a [`crate::Device`] and the process or kernel that has the device.
//!
//! A backing is a machine in this process, a vfio-user server, or a PCI function that the kernel
//! exposes through VFIO or the shim. It accesses VFIO regions, maps their memory, binds interrupts
//! and makes memory reachable by DMA.
//!
//! A backing may use locks and system calls. No per-packet path of a library goes through it,
//! except [`Backing::relax`].

mod client_wake;
mod event_source;
mod function;
mod server_monitor;
mod shim;
mod vfio;
mod vfio_user;

use std::{fmt, ops::Range, os::fd::BorrowedFd, sync::Arc};

use nicforge_shm::{DmaPermission, SharedMemory, SharedU64, Window};

pub(crate) use client_wake::Armed;
pub use client_wake::ClientWake;
pub use shim::Shim;
pub use vfio::Vfio;
pub use vfio_user::VfioUser;

use crate::{Cancel, Deadline, Error, Pause, Relax, interrupt::block};

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

/// Number of yielding pauses of a waiting loop between two calls of [`Backing::handle_events`].
const PAUSES_BETWEEN_EVENTS: u32 = 64;

/// A range of a region that is memory and can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappableArea {
    /// Offset of the first byte in the region, a multiple of the page size.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The size and the possible accesses of one region of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Size in bytes; 0 when the device has no such region.
    pub size: u64,
    /// Whether trapped reads are possible.
    pub readable: bool,
    /// Whether writes are possible, trapped or to mapped areas.
    pub writable: bool,
    /// The areas that are memory. Empty when the whole region is trapped.
    pub mappable: Vec<MappableArea>,
}

/// The interrupts of one VFIO index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqInfo {
    /// Number of vectors; 0 when the device has none of this kind.
    pub count: u32,
    /// Whether vectors can be masked and unmasked.
    pub maskable: bool,
    /// Whether a vector masks itself when it fires, as INTx does. The driver calls
    /// [`crate::Interrupt::unmask`] once it has handled the interrupt.
    pub automasked: bool,
}

/// Whether a trapped write waits until the device has taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// The call returns when the device has taken the write.
    Confirmed,
    /// The call returns at once, and reports no error. Later accesses of the same client take
    /// effect after it.
    Posted,
}

/// Memory that a device accesses only by DMA messages. Offsets are relative to its start.
pub trait PrivateMemory: Send + Sync {
    /// Copies the bytes from `offset` on into `out`.
    ///
    /// # Errors
    /// Returns an error when the range leaves the memory.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Copies `data` into the memory from `offset` on.
    ///
    /// # Errors
    /// Returns an error when the range leaves the memory.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error>;

    /// Returns the whole memory as a mapping of this process, or `None` if it has no mapping. A
    /// kernel backing pins this mapping.
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

/// Memory that is about to become reachable by DMA.
#[derive(Clone)]
pub enum DmaMemory {
    /// `len` bytes, from `offset` on, of memory that is shared with the device. `offset` and `len`
    /// are multiples of the page size.
    ///
    /// A vfio-user server maps the memory's file. The memory must therefore have one, and start
    /// where the file starts.
    Shared {
        /// The shared memory.
        memory: SharedMemory,
        /// Offset of the first byte in the memory and in its file.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// `len` bytes that stay with this process.
    ///
    /// A vfio-user server asks for them by DMA messages. These are answered in [`Backing::relax`],
    /// in trapped accesses and in blocking interrupt waits. A device behind the kernel reaches the
    /// memory only if it is [`PrivateMemory::mapped`].
    Private {
        /// The private memory.
        memory: Arc<dyn PrivateMemory>,
        /// Length in bytes, a multiple of the page size.
        len: u64,
    },
}

impl DmaMemory {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            DmaMemory::Shared { len, .. } | DmaMemory::Private { len, .. } => *len,
        }
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory as a mapping of this process, which a kernel can pin.
    pub(crate) fn mapped(&self) -> Result<Window, Error> {
        match self {
            DmaMemory::Shared { memory, offset, len } => Ok(memory.window(*offset, *len)?),
            DmaMemory::Private { memory, len } => {
                let not_mapped =
                    Error::Unsupported { what: "DMA to memory that is not mapped in this process" };
                Ok(memory.mapped().ok_or(not_mapped)?.window(0, *len)?)
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

/// The side that chooses the addresses at which the device reaches memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmaAddresses {
    /// The library chooses, within these ranges. The device is behind an IOMMU, or behind a server
    /// that acts as one. [`Backing::dma_map`] takes the addresses.
    Free(Vec<Range<u64>>),
    /// The backing chooses. [`Backing::dma_allocate`] and [`Backing::dma_register`] return the
    /// addresses.
    Given,
}

impl DmaAddresses {
    /// The lowest address used by default, so that no buffer lies at address 0.
    pub const FIRST: u64 = 1 << 20;
    /// The end of the addresses used by default. The smallest common IOMMU translates 39 bits.
    pub const END: u64 = 1 << 39;
}

impl Default for DmaAddresses {
    /// Returns the range that every device and IOMMU understands.
    fn default() -> Self {
        DmaAddresses::Free(std::iter::once(Self::FIRST..Self::END).collect())
    }
}

/// Memory that a backing has allocated, and its address for the device.
#[derive(Clone, Debug)]
pub struct DmaAllocation {
    /// The memory, at least as long as the requested length.
    pub memory: SharedMemory,
    /// The device's address of the first byte.
    pub iova: u64,
}

/// The destination of one interrupt vector: it counts interrupts.
pub trait InterruptSource: Send + Sync {
    /// Returns the number of interrupts since the last call, and resets it. It does not block.
    fn take(&self) -> u64;

    /// Blocks until at least one interrupt has arrived, and takes all as [`InterruptSource::take`]
    /// does. DMA messages are answered meanwhile.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error>;

    /// Returns a descriptor that is readable while an interrupt can be taken, if the source has
    /// one.
    fn raw_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A device as VFIO presents it: regions, interrupts, DMA and reset.
pub trait Backing: Send + Sync + 'static {
    /// Describes region `region`: 0 to 5 are the BARs, and the others are [`REGION_ROM`] and
    /// [`REGION_CONFIG`]. A region that the device does not have has size 0.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] or [`Error::Refused`].
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error>;

    /// Reads `out.len()` bytes at `offset` of a region, by a trapped access.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`], [`Error::OutOfRange`], [`Error::Refused`] or
    /// [`Error::Timeout`].
    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Writes `data` at `offset` of a region, by a trapped access.
    ///
    /// # Errors
    /// Returns the errors of [`Backing::read`]. In [`WriteMode::Posted`] the device's own error is
    /// not reported.
    fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), Error>;

    /// Writes `data` at `offset` of a region, as [`Backing::write`] does in [`WriteMode::Posted`],
    /// but never waits. The write is dropped if earlier ones still wait to be sent to the server.
    /// The library wakes the engine with it.
    ///
    /// # Errors
    /// Returns the errors of [`Backing::write`].
    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write(region, offset, data, WriteMode::Posted)
    }

    /// Maps a region from its first byte to at least the end of its last mappable area. Returns
    /// `None` when the whole region is trapped. Only the areas that [`RegionInfo::mappable`] lists
    /// have defined contents.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] or [`Error::Memory`].
    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error>;

    /// Maps a region for loads alone, as [`Backing::map`] does for loads and stores. The library
    /// uses it for regions that only the device writes: a kernel maps any BAR for stores, too.
    ///
    /// # Errors
    /// Returns the errors of [`Backing::map`].
    fn map_read_only(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        self.map(region)
    }

    /// Describes the interrupts of VFIO index `index`.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] or [`Error::Refused`].
    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error>;

    /// Binds a vector to a new source, which replaces an earlier one.
    ///
    /// # Errors
    /// Returns [`Error::NoSuch`], [`Error::DeviceGone`] or [`Error::Refused`].
    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error>;

    /// Unbinds every vector of an index.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] or [`Error::Refused`].
    fn unbind_interrupts(&self, index: u32) -> Result<(), Error>;

    /// Masks `count` vectors from `start` on. An interrupt that a masked vector signals stays
    /// pending until it is unmasked.
    ///
    /// # Errors
    /// Returns [`Error::NoSuch`], [`Error::DeviceGone`] or [`Error::Refused`].
    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error>;

    /// Unmasks `count` vectors from `start` on.
    ///
    /// # Errors
    /// Returns the errors of [`Backing::mask`].
    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error>;

    /// Returns the side that chooses DMA addresses. The library calls it once, when it opens the
    /// device.
    fn dma_addresses(&self) -> DmaAddresses {
        DmaAddresses::default()
    }

    /// Allocates `len` bytes of memory that the device reaches. `len` is a multiple of the page
    /// size. Returns `None` where any memory will do; the library then allocates and maps it.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] (`ENOMEM`, `EDQUOT`) or [`Error::DeviceGone`].
    fn dma_allocate(&self, _len: u64) -> Result<Option<DmaAllocation>, Error> {
        Ok(None)
    }

    /// Maps `memory` for the device, as [`Backing::dma_map`] does, and returns the address that
    /// the backing has chosen. It is called only with [`DmaAddresses::Given`].
    ///
    /// # Errors
    /// Returns the errors of [`Backing::dma_map`], and [`Error::Unsupported`] when the memory has
    /// no contiguous range of addresses.
    fn dma_register(&self, _memory: DmaMemory, _permission: DmaPermission) -> Result<u64, Error> {
        Err(Error::Unsupported { what: "DMA addresses that the backing chooses" })
    }

    /// Maps `memory` for the device at address `iova`.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] (`EEXIST` for an overlap, `ENOSPC` or `EDQUOT` for a quota) or
    /// [`Error::DeviceGone`].
    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error>;

    /// Takes `[iova, iova + len)` away from the device. The range is one that was mapped,
    /// registered or allocated. After a success, the device no longer touches the memory.
    ///
    /// Allocated memory may stay reserved until the program has dropped its last mapping of it. The
    /// backing does not reuse it before.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] or [`Error::DeviceGone`].
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error>;

    /// Resets the function, or the attachment that this client holds.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] or [`Error::DeviceGone`].
    fn reset(&self) -> Result<(), Error>;

    /// Pauses once in a waiting loop. In process, it steps the machine.
    ///
    /// The provided method is for a device that runs elsewhere. It spins, then yields, then sleeps
    /// until [`Backing::client_wake`] wakes it, or blocks for a short time on
    /// [`Backing::event_fd`]. It calls [`Backing::handle_events`] now and then when it yields, and
    /// each time if [`Backing::expects_events`].
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        let pause = relax.next_pause();
        match pause {
            Pause::Spin => pause.take(),
            Pause::Yield => {
                pause.take();
                if relax.pauses().is_multiple_of(PAUSES_BETWEEN_EVENTS) || self.expects_events() {
                    self.handle_events()?;
                }
            }
            Pause::Sleep(time) => match self.client_wake() {
                Some(wake) => wake.sleep(self, relax, time)?,
                None => {
                    relax.has_slept = true;
                    block(self, &[], Some(time), None)?;
                }
            },
        }
        Ok(())
    }

    /// Prepares the wake-up of waits by the engine behind the device, where it offers one. The
    /// library calls it once when it opens the device, unless that is a plain PCI function.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`], [`Error::Refused`] or [`Error::Memory`].
    fn prepare_client_wake(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns what wakes waits of this process, if there is something. Without it, they sleep for
    /// short times.
    fn client_wake(&self) -> Option<&ClientWake> {
        None
    }

    /// Returns whether the engine behind the device runs on the same kernel as this process. If so,
    /// it can make this processor execute a memory barrier (`membarrier`) before it sleeps. If not,
    /// writers execute a fence before they read its sleeping flag.
    fn engine_is_near(&self) -> bool {
        true
    }

    /// Takes the word in which the engine behind the device counts its heartbeat. A backing can use
    /// it to notice the engine's death sooner. The library calls it once when it opens the device,
    /// unless that is a plain PCI function.
    fn set_heartbeat(&self, _heartbeat: SharedU64) {}

    /// Limits the calls that follow together: those that wait for the device's side give up at
    /// `deadline`, also before their own time limits. `None` removes the limit. The library sets it
    /// while it opens a device.
    fn limit_calls(&self, _deadline: Option<Deadline>) {}

    /// Returns a descriptor that is readable when [`Backing::handle_events`] has work, for waits
    /// that block in the kernel. Returns `None` when time passes only in [`Backing::relax`].
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether events may arrive at any time that the device waits for, as DMA messages do.
    fn expects_events(&self) -> bool {
        false
    }

    /// Handles all events that made [`Backing::event_fd`] readable, without waiting. It is also
    /// called before each blocking wait, because events may have been read from the descriptor
    /// already.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    fn handle_events(&self) -> Result<(), Error> {
        Ok(())
    }
}
