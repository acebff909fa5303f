//! A PCI function of this machine, through the kernel shim (`kmod-shim/`), which makes one
//! character device for each function.
//!
//! The kernel chooses DMA addresses. It allocates buffers as coherent memory, and pins memory of
//! the program. Pinned memory must be contiguous for the device: any memory behind an IOMMU, one
//! page or huge page without an IOMMU.
//!
//! As with VFIO, mapped memory may be registers. Writes are posted as PCI's are, and
//! `Device::flush` waits for them.

mod sys;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex},
};

use nicforge_hwi::shim;
use nicforge_shm::{Access, SharedMemory, SharedU64, Window};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::Mode,
};

use super::{
    Backing, DmaAddresses, DmaAllocation, DmaMemory, DmaPermission, InterruptSource, IrqInfo, MappableArea,
    REGION_CONFIG, RegionInfo, WriteMode,
    event_source::{EventSource, eventfd},
    function::{Function, LossCause, RegionDescription, WordAccess},
};
use crate::{Error, OpenProblem, PciAddress, device::lock};

/// A range of memory that the device can reach.
struct Reachable {
    /// The kernel's handle of the range.
    handle: u32,
    len: u64,
    /// The program's memory, kept as long as the kernel has it pinned.
    _pinned: Option<Window>,
}

/// The state that all clones of a [`Shim`] share.
struct ShimFunction {
    function: Function,
    /// The module's description of the function.
    info: shim::Info,
    /// The reachable ranges, by address for the device. Without an IOMMU, memory that was mapped
    /// several times has the same address each time.
    reachable: Mutex<BTreeMap<u64, Vec<Reachable>>>,
}

/// A PCI function opened through the shim. Clones share it, and it is closed with the last of them.
#[derive(Clone)]
pub struct Shim(Arc<ShimFunction>);

impl Shim {
    /// Opens the character device at `path`.
    ///
    /// # Errors
    /// Returns [`Error::Open`], whose text says what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let (file, info) = Self::try_open(path)
            .map_err(|problem| Error::Open { device: format!("shim:{}", path.display()), problem })?;

        let function = Function::new(OwnedFd::into(file), describe, WordAccess::Whole)?;
        Ok(Self(Arc::new(ShimFunction { function, info, reachable: Mutex::default() })))
    }

    /// Opens a device file of the kernel module, and checks the module's version.
    fn try_open(path: &Path) -> Result<(OwnedFd, shim::Info), OpenProblem> {
        let refused = |advice| {
            move |errno| match errno {
                Errno::EBUSY => OpenProblem::Busy,
                errno => OpenProblem::File { path: path.display().to_string(), errno: errno as i32, advice },
            }
        };

        let advice = "load the module nicforge-shim, and see which functions it has in /sys/class/nicforge";
        let file = open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(refused(advice))?;
        let answer = sys::info(file.as_fd(), shim::Info::default());
        let info = answer.map_err(refused("is it a device of the module nicforge-shim?"))?;
        if info.version < shim::VERSION {
            return Err(OpenProblem::Version { found: info.version, wanted: shim::VERSION });
        }

        Ok((file, info))
    }

    /// Returns the function's address on its bus.
    pub fn address(&self) -> PciAddress {
        let shim::Info { domain, bus, slot, function, .. } = self.0.info;
        PciAddress { domain, bus, slot, function }
    }

    /// Returns the device file.
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.function.fd()
    }

    /// Converts the result of an ioctl: see [`Function::checked`].
    fn checked<T>(&self, operation: &'static str, result: Result<T, Errno>) -> Result<T, Error> {
        self.0.function.checked(operation, result)
    }

    /// Checks whether the device is still there.
    fn check_alive(&self) -> Result<(), Error> {
        let function = &self.0.function;
        function.check_alive()?;

        // The kernel reports these events for a device file whose function is gone.
        let mut polled = [PollFd::new(function.fd(), PollFlags::empty())];
        let ends = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;

        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(1..) if polled[0].revents().is_none_or(|events| events.intersects(ends)) => {
                Err(function.record_loss(LossCause::Pulled))
            }
            _ => Ok(()),
        }
    }
}

/// Describes a region: see [`super::function::Describe`].
fn describe(file: BorrowedFd<'_>, region: u32) -> Result<RegionDescription, Errno> {
    if region >= shim::REGION_BARS && region != REGION_CONFIG {
        return Ok(RegionDescription::default());
    }

    let found = sys::region(file, shim::Region { index: region, ..Default::default() })?;
    let has = |flag| found.flags & flag != 0;
    let areas = found.areas.iter().take(if has(shim::REGION_MMAP) { found.area_count as usize } else { 0 });

    Ok(RegionDescription {
        size: found.size,
        readable: has(shim::REGION_READ),
        writable: has(shim::REGION_WRITE),
        file_offset: found.offset,
        areas: areas.map(|area| MappableArea { offset: area.offset, len: area.len }).collect(),
    })
}

impl Backing for Shim {
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error> {
        self.0.function.info(region)
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.0.function.read(region, offset, out)
    }

    fn write(&self, region: u32, offset: u64, data: &[u8], _mode: WriteMode) -> Result<(), Error> {
        self.0.function.write(region, offset, data)
    }

    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        self.0.function.map(region, Access::ReadWrite)
    }

    fn map_read_only(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        self.0.function.map(region, Access::ReadOnly)
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error> {
        if index > shim::IRQ_MSIX {
            return Ok(IrqInfo::default());
        }

        let found = sys::irq(self.fd(), shim::Irq { kind: index, ..Default::default() });
        let found = self.checked("asking for interrupts", found)?;

        Ok(IrqInfo {
            count: found.count,
            maskable: found.flags & shim::IRQ_MASKABLE != 0,
            automasked: found.flags & shim::IRQ_AUTOMASKED != 0,
        })
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error> {
        let event = Arc::new(eventfd()?);
        let bind = shim::IrqBind { kind: index, start: vector, count: 1, eventfd: event.as_fd().as_raw_fd() };

        match sys::bind(self.fd(), bind) {
            Err(Errno::EBUSY) => Err(Error::Unsupported {
                what: "interrupts of two kinds at once through the kernel: drop the others first",
            }),
            bound => {
                self.checked("binding an interrupt", bound)?;
                Ok(Arc::new(EventSource { event, backing: self.clone() }))
            }
        }
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), Error> {
        let all = shim::IrqRange { kind: index, start: 0, count: u32::MAX, reserved: 0 };
        self.checked("unbinding interrupts", sys::unbind(self.fd(), all)).map(drop)
    }

    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        let range = shim::IrqRange { kind: index, start, count, reserved: 0 };
        self.checked("masking an interrupt", sys::mask(self.fd(), range)).map(drop)
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        let range = shim::IrqRange { kind: index, start, count, reserved: 0 };
        self.checked("unmasking an interrupt", sys::unmask(self.fd(), range)).map(drop)
    }

    fn dma_addresses(&self) -> DmaAddresses {
        DmaAddresses::Given
    }

    fn dma_allocate(&self, len: u64) -> Result<Option<DmaAllocation>, Error> {
        let operation = "allocating memory for DMA (is `ulimit -l` large enough?)";
        let bytes = usize::try_from(len).map_err(|_| Error::AddressSpace { len })?;
        let created = sys::allocate(self.fd(), shim::DmaAlloc { len, ..Default::default() });
        let created = self.checked(operation, created)?;

        match SharedMemory::map(self.fd(), created.offset, bytes, Access::ReadWrite) {
            Ok(memory) => {
                // The kernel does not copy this mapping either, which also has the file open.
                memory.keep_from_children()?;
                let entry = Reachable { handle: created.handle, len, _pinned: None };
                lock(&self.0.reachable).entry(created.address).or_default().push(entry);
                Ok(Some(DmaAllocation { memory, iova: created.address }))
            }
            Err(error) => {
                // This error is the one to report. If the memory cannot be freed, the kernel frees
                // it when the file is closed.
                let _ = sys::free(self.fd(), shim::DmaFree { handle: created.handle, reserved: 0 });
                Err(error.into())
            }
        }
    }

    fn dma_register(&self, memory: DmaMemory, permission: DmaPermission) -> Result<u64, Error> {
        let window = memory.mapped()?;
        let flag_if = |allowed, flag| if allowed { flag } else { 0 };
        let len = window.len();

        let pin = shim::DmaPin {
            start: window.base_address() as u64,
            len,
            flags: flag_if(permission.read, shim::DMA_READ) | flag_if(permission.write, shim::DMA_WRITE),
            ..Default::default()
        };

        let mut reachable = lock(&self.0.reachable);
        let pinned = match sys::pin(self.fd(), pin) {
            Err(Errno::ENOSPC) => {
                return Err(Error::Unsupported {
                    what: "DMA to memory in several pieces without an IOMMU: use Device::dma_buffer",
                });
            }
            pinned => self.checked("pinning memory for DMA (is `ulimit -l` large enough?)", pinned)?,
        };

        let entry = Reachable { handle: pinned.handle, len, _pinned: Some(window) };
        reachable.entry(pinned.address).or_default().push(entry);
        Ok(pinned.address)
    }

    fn dma_map(&self, _iova: u64, _memory: DmaMemory, _permission: DmaPermission) -> Result<(), Error> {
        Err(Error::Unsupported { what: "choosing DMA addresses: the kernel does" })
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error> {
        let operation = "unmapping memory";
        let mut reachable = lock(&self.0.reachable);

        let none = Error::system(operation, Errno::ENOENT);
        let Entry::Occupied(mut at) = reachable.entry(iova) else { return Err(none) };
        let index = at.get().iter().position(|range| range.len == len).ok_or(none)?;
        let handle = at.get()[index].handle;

        self.checked(operation, sys::free(self.fd(), shim::DmaFree { handle, reserved: 0 }))?;
        at.get_mut().swap_remove(index);
        if at.get().is_empty() {
            at.remove();
        }
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        if self.0.info.flags & shim::INFO_RESET == 0 {
            return Err(Error::Unsupported { what: "resetting this device" });
        }
        self.checked("resetting the device", sys::reset(self.fd()))
    }

    fn set_heartbeat(&self, heartbeat: SharedU64) {
        self.0.function.set_heartbeat(heartbeat);
    }

    fn engine_is_near(&self) -> bool {
        false
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd())
    }

    fn handle_events(&self) -> Result<(), Error> {
        self.check_alive()
    }
}
