//! A PCI function of this machine, through Linux VFIO: the group bound to `vfio-pci`, a container with a type 1 IOMMU of its own.
//!
//! Nothing is assumed of the function beyond PCI. BARs are mapped where the kernel allows it, which it does for whole BARs of at
//! least a page: what a vfio-user server would call trapped is then a load or store that the hardware, or the virtual machine
//! monitor below, takes. So a mapped area here may be registers, and a copy out of one means what the device makes of it.
//!
//! The kernel does trapped accesses of at most 4 bytes; those of 8 go to the mapping where there is one, whole. Writes are posted
//! as PCI's are: `WriteMode::Confirmed` means that the store was made, and `Device::flush` (a read) that it arrived.

mod interrupts;
mod open;
mod sys;

use std::{
    collections::BTreeMap,
    fs::File,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use nicforge_shm::{Access, SharedMemory, Window};
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        eventfd::EventFd,
    },
};
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE,
    VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX, VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};

use self::{
    interrupts::{Interrupts, eventfd},
    open::{Opened, open_function},
};
use super::{
    Backing, DmaAddresses, DmaMemory, DmaPermission, InterruptSource, IrqInfo, MappableArea, REGION_CONFIG,
    RegionInfo, WriteMode,
};
use crate::{
    Cancel, Deadline, Error, GoneCause, PciAddress, Relax, Turn,
    device::lock,
    interrupt::{block, wait_source},
};

/// Regions that a PCI function has.
const REGIONS: usize = 9;
/// Turns of yielding between two looks whether the device is there.
const LOOK_EVERY: u32 = 64;
/// How often waits look at the function itself.
const LOOK: Duration = Duration::from_millis(100);
const PAGE: u64 = 4096;

/// A region as the kernel described it.
struct KernelRegion {
    info: RegionInfo,
    /// Where it starts in the device's file.
    at: u64,
    memory: OnceLock<Window>,
}

struct Link {
    device: File,
    container: OwnedFd,
    /// Closed behind the device and the container.
    _group: OwnedFd,
    regions: [OnceLock<KernelRegion>; REGIONS],
    interrupts: Interrupts,
    /// What the IOMMU was told, by address: kept as long as it has it.
    mapped: Mutex<BTreeMap<u64, Window>>,
    can_reset: bool,
    /// Counts errors that the kernel could not mend.
    failed: EventFd,
    /// Counts the kernel's requests to let go of the device.
    wanted: EventFd,
    /// Readable when one of the two is.
    news: Epoll,
    /// A look that found the device lost is the last one.
    gone: AtomicU8,
    looked: Mutex<Instant>,
}

/// A PCI function opened through VFIO. Clones stand for the same one, which is closed with the last of them.
#[derive(Clone)]
pub struct Vfio(Arc<Link>);

const HERE: u8 = 0;
const PULLED: u8 = 1;
const WITHDRAWN: u8 = 2;

impl Vfio {
    /// Opens the function at `address`, which must be bound to `vfio-pci`, as must all of its IOMMU group.
    ///
    /// # Errors
    /// [`Error::Open`], which says what to do.
    pub fn open(address: PciAddress) -> Result<Self, Error> {
        let Opened { device, container, group } = open_function(address)?;
        let failed = |what| move |errno| Error::system(what, errno);
        let info = sys::device_info(device.as_fd()).map_err(failed("asking about the device"))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 || info.num_regions <= REGION_CONFIG {
            return Err(Error::Protocol { what: "VFIO gives no PCI function", value: info.flags.into() });
        }
        let device = Arc::new(device);
        let interrupts = Interrupts::new(device.clone());
        let (broken, wanted) = (eventfd()?, eventfd()?);
        let news =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("creating an epoll descriptor"))?;
        for (index, event) in [(VFIO_PCI_ERR_IRQ_INDEX, &broken), (VFIO_PCI_REQ_IRQ_INDEX, &wanted)] {
            // Without them a device that goes away is noticed by what its registers read.
            let _ = interrupts.watch(index, event);
            news.add(event, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed("watching a device"))?;
        }
        let file = device.try_clone().map_err(|error| Error::system("opening a device", errno_of(&error)))?;
        Ok(Self(Arc::new(Link {
            device: file.into(),
            container,
            _group: group,
            regions: Default::default(),
            interrupts,
            mapped: Mutex::default(),
            can_reset: info.flags & VFIO_DEVICE_FLAGS_RESET != 0,
            failed: broken,
            wanted,
            news,
            gone: AtomicU8::new(HERE),
            looked: Mutex::new(Instant::now()),
        })))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.device.as_fd()
    }

    fn region(&self, region: u32) -> Result<&KernelRegion, Error> {
        let none = Error::NoSuch { what: "region", index: region, count: REGIONS as u32 };
        let slot = self.0.regions.get(region as usize).ok_or(none)?;
        if let Some(known) = slot.get() {
            return Ok(known);
        }
        let (told, areas) = match sys::region_info(self.fd(), region) {
            // A region that this kind of function does not have.
            Err(Errno::EINVAL) => Default::default(),
            told => self.done("asking for a region", told)?,
        };
        let has = |flag| told.flags & flag != 0;
        let whole = || vec![(0, told.size)];
        let areas = if has(VFIO_REGION_INFO_FLAG_MMAP) { areas.unwrap_or_else(whole) } else { vec![] };
        let fits = |&(offset, len): &(u64, u64)| {
            len != 0
                && offset % PAGE == 0
                && len % PAGE == 0
                && offset.checked_add(len).is_some_and(|end| end <= told.size)
        };
        let mappable =
            areas.into_iter().filter(fits).map(|(offset, len)| MappableArea { offset, len }).collect();
        let info = RegionInfo {
            size: told.size,
            readable: has(VFIO_REGION_INFO_FLAG_READ),
            writable: has(VFIO_REGION_INFO_FLAG_WRITE),
            mappable,
        };
        Ok(slot.get_or_init(|| KernelRegion { info, at: told.offset, memory: OnceLock::new() }))
    }

    /// The mapping of `[offset, offset + 8)`, for accesses that the kernel would split.
    fn mapped_word(&self, region: u32, offset: u64, len: usize) -> Option<Window> {
        if len != 8 || !offset.is_multiple_of(8) {
            return None;
        }
        let known = self.region(region).ok()?;
        let inside = |area: &MappableArea| {
            offset >= area.offset && area.len >= 8 && offset - area.offset <= area.len - 8
        };
        if !known.info.mappable.iter().any(inside) {
            return None;
        }
        if known.memory.get().is_none() {
            let memory = self.map_region(region).ok()??;
            let _ = known.memory.set(memory.whole());
        }
        known.memory.get()?.window(offset, 8).ok()
    }

    fn map_region(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        let known = self.region(region)?;
        let areas: Vec<_> = known.info.mappable.iter().map(|area| (area.offset, area.len)).collect();
        let Some(end) = areas.iter().map(|(offset, len)| offset + len).max() else { return Ok(None) };
        let len = usize::try_from(end).map_err(|_| Error::AddressSpace { len: end })?;
        let access = if known.info.writable { Access::ReadWrite } else { Access::ReadOnly };
        Ok(Some(SharedMemory::map_device(self.fd(), known.at, len, &areas, access)?))
    }

    /// Where `[offset, offset + len)` of a region lies in the device's file.
    fn place(&self, region: u32, offset: u64, len: usize) -> Result<u64, Error> {
        let known = self.region(region)?;
        let (size, len) = (known.info.size, len as u64);
        if offset > size || len > size - offset {
            return Err(Error::OutOfRange { what: "region", index: region, offset, len, size });
        }
        Ok(known.at + offset)
    }

    /// The result of a call. The kernel says in several ways that a device is not there any more.
    fn done<T>(&self, what: &'static str, result: Result<T, Errno>) -> Result<T, Error> {
        result.map_err(|errno| match errno {
            Errno::ENODEV | Errno::ENXIO => self.lost(PULLED),
            Errno::EIO if self.is_all_ones() => self.lost(PULLED),
            errno => Error::system(what, errno),
        })
    }

    fn lost(&self, how: u8) -> Error {
        let _ = self.0.gone.compare_exchange(HERE, how, Ordering::AcqRel, Ordering::Acquire);
        let cause = match self.0.gone.load(Ordering::Acquire) {
            WITHDRAWN => GoneCause::Withdrawn,
            _ => GoneCause::HungUp,
        };
        Error::DeviceGone { cause }
    }

    /// Whether the function's identity reads as nothing that PCI has: nobody answers.
    fn is_all_ones(&self) -> bool {
        let Ok(known) = self.region(REGION_CONFIG) else { return true };
        let mut id = [0; 4];
        match self.0.device.read_at(&mut id, known.at) {
            Ok(4) => id == [0xff; 4],
            _ => true,
        }
    }

    /// Looks for what would end the use of the device.
    fn look(&self) -> Result<(), Error> {
        let counted = |event: &EventFd| event.read().is_ok_and(|count| count != 0);
        if self.0.gone.load(Ordering::Acquire) != HERE {
            return Err(self.lost(PULLED));
        }
        let asked = counted(&self.0.wanted);
        if counted(&self.0.failed) || asked {
            return Err(self.lost(if self.is_all_ones() { PULLED } else { WITHDRAWN }));
        }
        {
            let mut looked = lock(&self.0.looked);
            if looked.elapsed() < LOOK {
                return Ok(());
            }
            *looked = Instant::now();
        }
        if self.is_all_ones() { Err(self.lost(PULLED)) } else { Ok(()) }
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

/// A vector bound to an eventfd.
struct EventSource {
    event: Arc<EventFd>,
    link: Vfio,
}

impl InterruptSource for EventSource {
    fn take(&self) -> u64 {
        self.event.read().unwrap_or(0)
    }

    fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error> {
        wait_source(&self.link, self, deadline, cancel)
    }

    fn raw_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }
}

impl Backing for Vfio {
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error> {
        Ok(self.region(region)?.info.clone())
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let at = self.place(region, offset, out.len())?;
        if let Some(word) = self.mapped_word(region, offset, out.len()) {
            out.copy_from_slice(&word.load_u64_acquire(0)?.to_ne_bytes());
        } else {
            let read = self.0.device.read_exact_at(out, at).map_err(|error| errno_of(&error));
            self.done("a trapped read", read)?;
        }
        // What a function that is not there any more reads as.
        if out.len() >= 4 && out.iter().all(|&byte| byte == 0xff) && self.is_all_ones() {
            return Err(self.lost(PULLED));
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8], _mode: WriteMode) -> Result<(), Error> {
        let at = self.place(region, offset, data.len())?;
        if let (Some(word), Ok(value)) = (self.mapped_word(region, offset, data.len()), data.try_into()) {
            return Ok(word.store_u64_release(0, u64::from_ne_bytes(value))?);
        }
        let written = self.0.device.write_all_at(data, at).map_err(|error| errno_of(&error));
        self.done("a trapped write", written)
    }

    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        self.map_region(region)
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error> {
        self.done("asking for interrupts", self.0.interrupts.info(index))
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error> {
        let event = self.0.interrupts.bind(index, vector)?;
        Ok(Arc::new(EventSource { event, link: self.clone() }))
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), Error> {
        self.done("unbinding interrupts", self.0.interrupts.unbind(index))
    }

    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.done("masking an interrupt", self.0.interrupts.set_masked(index, start, count, true))
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.done("unmasking an interrupt", self.0.interrupts.set_masked(index, start, count, false))
    }

    fn dma_addresses(&self) -> DmaAddresses {
        let Ok(Some(ranges)) = sys::iova_ranges(self.0.container.as_fd()) else {
            return DmaAddresses::default();
        };
        let low = |range: Range<u64>| range.start.max(DmaAddresses::FIRST)..range.end.min(DmaAddresses::END);
        DmaAddresses::Free(ranges.into_iter().map(low).filter(|range| range.start < range.end).collect())
    }

    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error> {
        let window = memory.mapped()?;
        let may = |allowed, flag| if allowed { flag } else { 0 };
        let flags =
            may(permission.read, VFIO_DMA_MAP_FLAG_READ) | may(permission.write, VFIO_DMA_MAP_FLAG_WRITE);
        let mut mapped = lock(&self.0.mapped);
        let (at, len) = (window.base_address() as u64, window.len());
        self.done(
            "mapping memory for DMA (is `ulimit -l` large enough?)",
            sys::map_dma(self.0.container.as_fd(), iova, at, len, flags),
        )?;
        mapped.insert(iova, window);
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error> {
        let what = "unmapping memory";
        let mut mapped = lock(&self.0.mapped);
        let unmapped = self.done(what, sys::unmap_dma(self.0.container.as_fd(), iova, len))?;
        let end = iova.saturating_add(len);
        mapped.retain(|&at, _| at < iova || at >= end);
        if unmapped == 0 { Err(Error::system(what, Errno::ENOENT)) } else { Ok(()) }
    }

    fn reset(&self) -> Result<(), Error> {
        if !self.0.can_reset {
            return Err(Error::Unsupported { what: "resetting this device" });
        }
        self.done("resetting the device", sys::reset(self.fd()))
    }

    fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        let turn = relax.turn();
        match turn {
            Turn::Spin => turn.take(),
            Turn::Yield => {
                turn.take();
                if relax.turns().is_multiple_of(LOOK_EVERY) {
                    self.look()?;
                }
            }
            Turn::Sleep(time) => block(self, &[], Some(time), None)?,
        }
        Ok(())
    }

    fn engine_is_near(&self) -> bool {
        false
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.news.0.as_fd())
    }

    fn attend(&self) -> Result<(), Error> {
        self.look()
    }
}
