//! The ioctls of Linux VFIO: groups, containers with a type 1 IOMMU, devices.
//!
//! The module takes descriptors and values, and returns the structs of `linux/vfio.h`, owned. It
//! parses answers of variable length, and checks every length in them.
//!
//! UNSAFETY: the module calls `ioctl`, which reads and writes the struct behind its argument. Each
//! struct has the size that its `argsz` says, or the type that `linux/vfio.h` names for the call.
#![allow(unsafe_code)]

use std::{
    ffi::CString,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    libc::{c_ulong, ioctl},
};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_REGION_INFO_CAP_SPARSE_MMAP, VFIO_REGION_INFO_FLAG_CAPS, VFIO_TYPE,
    vfio_device_info, vfio_group_status, vfio_info_cap_header, vfio_iommu_type1_dma_map,
    vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info, vfio_irq_info, vfio_irq_set, vfio_region_info,
};

use crate::MappableArea;

/// The longest answer of variable length that is accepted, in bytes.
const MAX_ANSWER: u32 = 1 << 16;
/// Bytes of the header of a capability in an answer.
const CAPABILITY_HEADER: usize = size_of::<vfio_info_cap_header>();

/// Returns the ioctl's request code for a request of `linux/vfio.h`, by its number after
/// `VFIO_BASE`.
const fn request(number: u32) -> c_ulong {
    nix::request_code_none!(VFIO_TYPE, VFIO_BASE + number) as c_ulong
}

const GET_API_VERSION: c_ulong = request(0);
const CHECK_EXTENSION: c_ulong = request(1);
const SET_IOMMU: c_ulong = request(2);
const GROUP_GET_STATUS: c_ulong = request(3);
const GROUP_SET_CONTAINER: c_ulong = request(4);
const GROUP_GET_DEVICE_FD: c_ulong = request(6);
const DEVICE_GET_INFO: c_ulong = request(7);
const DEVICE_GET_REGION_INFO: c_ulong = request(8);
const DEVICE_GET_IRQ_INFO: c_ulong = request(9);
const DEVICE_SET_IRQS: c_ulong = request(10);
const DEVICE_RESET: c_ulong = request(11);
const IOMMU_GET_INFO: c_ulong = request(12);
const IOMMU_MAP_DMA: c_ulong = request(13);
const IOMMU_UNMAP_DMA: c_ulong = request(14);

/// Makes a request whose argument is a number.
fn with_value(fd: BorrowedFd<'_>, request: c_ulong, value: c_ulong) -> Result<i32, Errno> {
    // SAFETY: the callers' requests take a plain number.
    Errno::result(unsafe { ioctl(fd.as_raw_fd(), request, value) })
}

/// Makes a request whose argument is a struct, which the kernel may change.
fn with_struct<T>(fd: BorrowedFd<'_>, request: c_ulong, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: `argument` is the struct that the request takes, or a buffer of the length in its
    // `argsz`.
    Errno::result(unsafe { ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) })
}

/// Returns the version of the interface.
pub(super) fn api_version(container: BorrowedFd<'_>) -> Result<u32, Errno> {
    with_value(container, GET_API_VERSION, 0).map(|version| version as u32)
}

/// Returns whether the container supports this kind of IOMMU.
pub(super) fn has_iommu(container: BorrowedFd<'_>, kind: u32) -> Result<bool, Errno> {
    with_value(container, CHECK_EXTENSION, kind.into()).map(|answer| answer > 0)
}

/// Attaches an IOMMU of this kind to the container.
pub(super) fn set_iommu(container: BorrowedFd<'_>, kind: u32) -> Result<(), Errno> {
    with_value(container, SET_IOMMU, kind.into()).map(drop)
}

/// Returns the group's flags (`VFIO_GROUP_FLAGS_*`).
pub(super) fn group_flags(group: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut status = vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, flags: 0 };
    with_struct(group, GROUP_GET_STATUS, &mut status)?;
    Ok(status.flags)
}

/// Attaches a group to a container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> Result<(), Errno> {
    with_struct(group, GROUP_SET_CONTAINER, &mut container.as_raw_fd()).map(drop)
}

/// Opens the device of this name in a group.
pub(super) fn device(group: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the request takes a string that ends with a NUL.
    let fd = Errno::result(unsafe { ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel has just opened this descriptor for the caller, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the device's flags (`VFIO_DEVICE_FLAGS_*`), and the numbers of its regions and of its
/// interrupt indices.
pub(super) fn device_info(device: BorrowedFd<'_>) -> Result<vfio_device_info, Errno> {
    let mut info = vfio_device_info { argsz: size_of::<vfio_device_info>() as u32, ..Default::default() };
    with_struct(device, DEVICE_GET_INFO, &mut info)?;
    Ok(info)
}

/// Resets the function.
pub(super) fn reset(device: BorrowedFd<'_>) -> Result<(), Errno> {
    with_value(device, DEVICE_RESET, 0).map(drop)
}

/// An answer whose length the kernel chooses: a fixed part, and capabilities after it.
struct Answer {
    /// The bytes of the answer, in aligned words.
    words: Vec<u64>,
    /// Length of the answer in bytes.
    argsz: usize,
}

impl Answer {
    /// Makes the request, and repeats it with a larger buffer if the kernel wants one.
    fn ask<T: Copy>(fd: BorrowedFd<'_>, request: c_ulong, fixed: T) -> Result<Self, Errno> {
        let mut argsz = size_of::<T>();
        loop {
            let mut words = vec![0u64; argsz.div_ceil(8)];

            // SAFETY: the buffer is at least as long as the struct, and aligned to 8 bytes. No
            // struct needs more.
            unsafe { words.as_mut_ptr().cast::<T>().write(fixed) };
            // SAFETY: every one of these structs starts with a 32-bit `argsz`.
            unsafe { words.as_mut_ptr().cast::<u32>().write(argsz as u32) };
            // SAFETY: the buffer has the length that `argsz` says.
            Errno::result(unsafe { ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) })?;

            let expected = words[0] as u32;
            if expected > MAX_ANSWER {
                return Err(Errno::EOVERFLOW);
            }

            if expected as usize <= argsz {
                return Ok(Self { words, argsz });
            }

            argsz = expected as usize;
        }
    }

    /// Returns the 32-bit number at byte `at`, a multiple of 4.
    fn u32(&self, at: usize) -> Option<u32> {
        if !at.is_multiple_of(4) || at + 4 > self.argsz {
            return None;
        }
        self.words.get(at / 8).map(|word| (word.to_le() >> (8 * (at % 8))) as u32)
    }

    /// Returns the 64-bit number at byte `at`, a multiple of 4.
    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from(self.u32(at)?) | u64::from(self.u32(at + 4)?) << 32)
    }

    /// Returns the fixed part.
    fn fixed<T: Copy>(&self) -> T {
        // SAFETY: the buffer is at least as long as the struct, aligned and initialised. The
        // structs are plain numbers.
        unsafe { self.words.as_ptr().cast::<T>().read() }
    }

    /// Returns the offset of the capability `id` in the list that starts at `first`.
    fn capability(&self, first: u32, id: u32) -> Option<usize> {
        let mut at = first as usize;
        // Each capability has an offset of its own, which bounds the length of the list.
        for _ in 0..self.argsz / CAPABILITY_HEADER {
            if at == 0 {
                return None;
            }
            // A header is the id in 16 bits, the version in 16 bits, and the offset of the next
            // one.
            if self.u32(at)? & 0xffff == id {
                return Some(at);
            }
            at = self.u32(at + 4)? as usize;
        }
        None
    }

    /// Reads a list of pairs of 64-bit numbers. Its length is at byte `at`, and the first pair lies
    /// 8 bytes further.
    fn pairs(&self, at: usize) -> Option<Vec<(u64, u64)>> {
        const PAIR: usize = 2 * size_of::<u64>();
        let count = self.u32(at)? as usize;
        let first = at + 8;
        (0..count)
            .map(|index| Some((self.u64(first + PAIR * index)?, self.u64(first + PAIR * index + 8)?)))
            .collect()
    }
}

/// Describes a region and its mappable areas. `None` means that either all or nothing of the region
/// is mappable.
pub(super) fn region_info(
    device: BorrowedFd<'_>,
    index: u32,
) -> Result<(vfio_region_info, Option<Vec<MappableArea>>), Errno> {
    let answer =
        Answer::ask(device, DEVICE_GET_REGION_INFO, vfio_region_info { index, ..Default::default() })?;
    let info: vfio_region_info = answer.fixed();
    if info.flags & VFIO_REGION_INFO_FLAG_CAPS == 0 {
        return Ok((info, None));
    }

    let sparse = answer.capability(info.cap_offset, VFIO_REGION_INFO_CAP_SPARSE_MMAP);
    // The list of areas follows the capability's header.
    let pairs = sparse.map(|at| answer.pairs(at + CAPABILITY_HEADER).ok_or(Errno::EPROTO)).transpose()?;
    let areas =
        pairs.map(|pairs| pairs.into_iter().map(|(offset, len)| MappableArea { offset, len }).collect());
    Ok((info, areas))
}

/// Returns the addresses that the IOMMU translates for devices, or `None` when the kernel does not
/// say.
pub(super) fn iova_ranges(container: BorrowedFd<'_>) -> Result<Option<Vec<Range<u64>>>, Errno> {
    let answer = Answer::ask(container, IOMMU_GET_INFO, vfio_iommu_type1_info::default())?;
    let info: vfio_iommu_type1_info = answer.fixed();
    if info.flags & VFIO_IOMMU_INFO_CAPS == 0 {
        return Ok(None);
    }

    let Some(at) = answer.capability(info.cap_offset, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) else {
        return Ok(None);
    };

    let ranges = answer.pairs(at + CAPABILITY_HEADER).ok_or(Errno::EPROTO)?;
    Ok(Some(ranges.into_iter().map(|(first, last)| first..last.saturating_add(1)).collect()))
}

/// Describes the interrupts of an index.
pub(super) fn irq_info(device: BorrowedFd<'_>, index: u32) -> Result<vfio_irq_info, Errno> {
    let argsz = size_of::<vfio_irq_info>() as u32;
    let mut info = vfio_irq_info { argsz, index, ..Default::default() };
    with_struct(device, DEVICE_GET_IRQ_INFO, &mut info)?;
    Ok(info)
}

/// The fixed part of the request for interrupts, besides its length (`vfio_irq_set`).
struct IrqSet {
    /// `VFIO_IRQ_SET_DATA_*` and `VFIO_IRQ_SET_ACTION_*`.
    flags: u32,
    /// The VFIO index.
    index: u32,
    /// The first vector.
    start: u32,
    /// Number of vectors.
    count: u32,
}

/// Makes the request for interrupts. `data` has a descriptor for each vector, or is empty.
fn set_irqs(device: BorrowedFd<'_>, set: IrqSet, data: &[i32]) -> Result<i32, Errno> {
    const FIXED: usize = size_of::<vfio_irq_set>();
    let argsz = FIXED + size_of_val(data);
    let IrqSet { flags, index, start, count } = set;

    let mut words = vec![argsz as u32, flags, index, start, count];
    words.extend(data.iter().map(|&fd| fd as u32));
    // SAFETY: the buffer has the length that `argsz` says.
    Errno::result(unsafe { ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, words.as_mut_ptr()) })
}

/// Applies `action` (`VFIO_IRQ_SET_ACTION_*`) to interrupts without data. The action *trigger* with
/// a count of 0 disables all of them.
pub(super) fn act_on_irqs(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    count: u32,
    action: u32,
) -> Result<(), Errno> {
    let set = IrqSet { flags: VFIO_IRQ_SET_DATA_NONE | action, index, start, count };
    set_irqs(device, set, &[]).map(drop)
}

/// Applies `action` to interrupts from `start` on, with one optional descriptor for each. A
/// positive result is the number of vectors that the kernel could set up instead.
pub(super) fn bind_irqs(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    fds: &[Option<BorrowedFd<'_>>],
    action: u32,
) -> Result<i32, Errno> {
    // -1 stands for no descriptor.
    let data: Vec<i32> = fds.iter().map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd())).collect();
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | action;
    set_irqs(device, IrqSet { flags, index, start, count: data.len() as u32 }, &data)
}

/// Maps `[vaddr, vaddr + size)` of this process for the devices of a container at `iova`. The
/// kernel pins the pages.
pub(super) fn map_dma(
    container: BorrowedFd<'_>,
    iova: u64,
    vaddr: u64,
    size: u64,
    flags: u32,
) -> Result<(), Errno> {
    let argsz = size_of::<vfio_iommu_type1_dma_map>() as u32;
    let mut map = vfio_iommu_type1_dma_map { argsz, flags, vaddr, iova, size };
    with_struct(container.as_fd(), IOMMU_MAP_DMA, &mut map).map(drop)
}

/// Unmaps `[iova, iova + size)`, and returns the number of bytes that were mapped.
pub(super) fn unmap_dma(container: BorrowedFd<'_>, iova: u64, size: u64) -> Result<u64, Errno> {
    let argsz = size_of::<vfio_iommu_type1_dma_unmap>() as u32;
    let mut unmap = vfio_iommu_type1_dma_unmap { argsz, iova, size, ..Default::default() };
    with_struct(container, IOMMU_UNMAP_DMA, &mut unmap)?;
    Ok(unmap.size)
}
