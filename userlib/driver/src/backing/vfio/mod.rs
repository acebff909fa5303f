//! A PCI function of this machine, through Linux VFIO: its group is bound to `vfio-pci` and is
//! alone in a container with a type 1 IOMMU.
//!
//! The backing assumes nothing about the function beyond PCI. The kernel lets whole BARs of at
//! least a page be mapped, whether they are memory or registers. An access to a mapped area is then
//! a load or store that the hardware, or the virtual machine monitor below, executes. So a mapped
//! area may be registers here, and the device defines the effect of a copy out of it.
//!
//! The kernel does trapped accesses of at most 4 bytes. Accesses of 8 bytes go to the mapping as
//! one piece where there is a mapping. Writes are posted as PCI's are: `WriteMode::Confirmed` means
//! that the store was made, and `Device::flush` (a read) that it arrived.

mod interrupts;
mod open;
mod sys;

use std::{
    collections::BTreeMap,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use nicforge_shm::{Access, SharedMemory, SharedU64, Uninherited, Window};
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
    interrupts::{Interrupts, Masking},
    open::{Opened, open_function},
};
use super::{
    Backing, DmaAddresses, DmaMemory, DmaPermission, InterruptSource, IrqInfo, MappableArea, REGION_CONFIG,
    RegionInfo, WriteMode,
    event_source::{EventSource, eventfd},
    function::{Function, LossCause, RegionDescription, WordAccess},
};
use crate::{Error, PciAddress, device::lock};

/// The state that all clones of a [`Vfio`] share.
struct VfioFunction {
    function: Function,
    /// The container, whose IOMMU translates the device's addresses.
    container: Uninherited<OwnedFd>,
    /// Closed after the device and the container.
    _group: Uninherited<OwnedFd>,
    interrupts: Interrupts,
    /// The memory that the IOMMU maps, by address. It is kept until the IOMMU has released it.
    mapped: Mutex<BTreeMap<u64, Window>>,
    /// The device can be reset.
    can_reset: bool,
    /// Counts errors that the kernel could not correct.
    error_reported: EventFd,
    /// Counts the kernel's requests to release the device.
    release_requested: EventFd,
    /// Readable when one of the two eventfds is.
    events: Epoll,
}

/// A PCI function opened through VFIO. Clones share it, and it is closed with the last of them.
#[derive(Clone)]
pub struct Vfio(Arc<VfioFunction>);

impl Vfio {
    /// Opens the function at `address`. All functions of its IOMMU group must be bound to
    /// `vfio-pci`.
    ///
    /// # Errors
    /// Returns [`Error::Open`], whose text says what to do.
    pub fn open(address: PciAddress) -> Result<Self, Error> {
        let Opened { device, container, group } = open_function(address)?;
        // A child of `fork` that kept one of them open would keep the function busy.
        let (device, container, group) =
            (Uninherited::new(device)?, Uninherited::new(container)?, Uninherited::new(group)?);
        let failed = |operation| move |errno| Error::system(operation, errno);

        let info = sys::device_info(device.as_fd()).map_err(failed("querying the device"))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 || info.num_regions <= REGION_CONFIG {
            return Err(Error::Protocol { what: "VFIO describes no PCI function", value: info.flags.into() });
        }

        let device = Arc::new(device);
        let interrupts = Interrupts::new(device.clone());
        let (error_reported, release_requested) = (eventfd()?, eventfd()?);
        let events =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("creating an epoll descriptor"))?;

        for (index, event) in
            [(VFIO_PCI_ERR_IRQ_INDEX, &error_reported), (VFIO_PCI_REQ_IRQ_INDEX, &release_requested)]
        {
            // A device may lack this interrupt. Its loss then shows only in its registers, which
            // read as all ones.
            let _ = interrupts.bind_device_event(index, event);
            events
                .add(event, EpollEvent::new(EpollFlags::EPOLLIN, 0))
                .map_err(failed("watching a device"))?;
        }

        let duplicate = device.try_clone().map_err(|_| Error::system("opening a device", Errno::EMFILE))?;

        Ok(Self(Arc::new(VfioFunction {
            function: Function::new(duplicate.into(), describe, WordAccess::Split)?,
            container,
            _group: group,
            interrupts,
            mapped: Mutex::default(),
            can_reset: info.flags & VFIO_DEVICE_FLAGS_RESET != 0,
            error_reported,
            release_requested,
            events,
        })))
    }

    /// Checks whether the device is still there, and whether the kernel has asked for it back.
    fn check_alive(&self) -> Result<(), Error> {
        let function = &self.0.function;
        function.check_alive()?;

        // Both eventfds are read, so that neither stays readable.
        let has_fired = |event: &EventFd| event.read().is_ok_and(|count| count != 0);
        let is_release_requested = has_fired(&self.0.release_requested);

        if has_fired(&self.0.error_reported) || is_release_requested {
            return Err(function.record_loss(if function.is_all_ones() {
                LossCause::Pulled
            } else {
                LossCause::Withdrawn
            }));
        }
        Ok(())
    }
}

/// Describes a region: see [`function::Describe`].
fn describe(device: BorrowedFd<'_>, region: u32) -> Result<RegionDescription, Errno> {
    let (found, areas) = match sys::region_info(device, region) {
        // The function does not have the region.
        Err(Errno::EINVAL) => return Ok(RegionDescription::default()),
        found => found?,
    };

    let has = |flag| found.flags & flag != 0;
    let whole_region = || vec![MappableArea { offset: 0, len: found.size }];

    Ok(RegionDescription {
        size: found.size,
        readable: has(VFIO_REGION_INFO_FLAG_READ),
        writable: has(VFIO_REGION_INFO_FLAG_WRITE),
        file_offset: found.offset,
        areas: if has(VFIO_REGION_INFO_FLAG_MMAP) { areas.unwrap_or_else(whole_region) } else { vec![] },
    })
}

impl Backing for Vfio {
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
        self.0.function.checked("asking for interrupts", self.0.interrupts.info(index))
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error> {
        let event = self.0.interrupts.bind(index, vector)?;
        Ok(Arc::new(EventSource { event, backing: self.clone() }))
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), Error> {
        self.0.function.checked("unbinding interrupts", self.0.interrupts.unbind(index))
    }

    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.0.function.checked(
            "masking an interrupt",
            self.0.interrupts.set_masking(index, start, count, Masking::Mask),
        )
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.0.function.checked(
            "unmasking an interrupt",
            self.0.interrupts.set_masking(index, start, count, Masking::Unmask),
        )
    }

    fn dma_addresses(&self) -> DmaAddresses {
        let Ok(Some(ranges)) = sys::iova_ranges(self.0.container.as_fd()) else {
            return DmaAddresses::default();
        };

        let within_limits =
            |range: Range<u64>| range.start.max(DmaAddresses::FIRST)..range.end.min(DmaAddresses::END);

        DmaAddresses::Free(
            ranges.into_iter().map(within_limits).filter(|range| range.start < range.end).collect(),
        )
    }

    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error> {
        let window = memory.mapped()?;
        let flag_if = |allowed, flag| if allowed { flag } else { 0 };
        let flags = flag_if(permission.read, VFIO_DMA_MAP_FLAG_READ)
            | flag_if(permission.write, VFIO_DMA_MAP_FLAG_WRITE);

        let mut mapped = lock(&self.0.mapped);
        let (address, len) = (window.base_address() as u64, window.len());

        self.0.function.checked(
            "mapping memory for DMA (is `ulimit -l` large enough?)",
            sys::map_dma(self.0.container.as_fd(), iova, address, len, flags),
        )?;

        mapped.insert(iova, window);
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error> {
        let operation = "unmapping memory";
        // The lock keeps the list equal to the kernel's mappings. The memory is released only after
        // the kernel has unmapped it.
        let mut mapped = lock(&self.0.mapped);
        let unmapped =
            self.0.function.checked(operation, sys::unmap_dma(self.0.container.as_fd(), iova, len))?;

        let end = iova.saturating_add(len);
        mapped.retain(|&start, _| start < iova || start >= end);

        if unmapped == 0 { Err(Error::system(operation, Errno::ENOENT)) } else { Ok(()) }
    }

    fn reset(&self) -> Result<(), Error> {
        if !self.0.can_reset {
            return Err(Error::Unsupported { what: "resetting this device" });
        }
        self.0.function.checked("resetting the device", sys::reset(self.0.function.fd()))
    }

    fn set_heartbeat(&self, heartbeat: SharedU64) {
        self.0.function.set_heartbeat(heartbeat);
    }

    fn engine_is_near(&self) -> bool {
        false
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.events.0.as_fd())
    }

    fn handle_events(&self) -> Result<(), Error> {
        self.check_alive()
    }
}
