/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 OR MIT) */
/*
 * User-space interface of the kernel module nicforge-shim, which lets a
 * process drive a PCI function.
 *
 * Each function that the module binds has a character device,
 * /dev/nicforge0 and so on. One process at a time has it open: a second
 * open() fails with EBUSY. read(), write(), mmap() and ioctl() fail with
 * EPERM in another address space than the one that opened the device, as
 * in a child after fork(). Programs should open it with O_CLOEXEC.
 *
 * The last close happens when neither a descriptor nor a mapping is left,
 * for instance because the process died. The module then frees the
 * interrupts, clears bus mastering, resets the function and frees the DMA
 * memory, in this order.
 *
 *   info         ioctl() NICFORGE_SHIM_GET_INFO, _GET_REGION, _GET_IRQ.
 *   registers    pread() and pwrite() at the offset from GET_REGION plus
 *                the register's offset in the region. A naturally aligned
 *                transfer of 1, 2 or 4 bytes is one access. So is one of
 *                8 bytes, except in configuration space and I/O ports.
 *                Other transfers are a sequence of the widest aligned
 *                accesses, in order.
 *   BARs         mmap() with MAP_SHARED at the offset from GET_REGION.
 *   interrupts   ioctl() NICFORGE_SHIM_BIND_IRQ binds vectors to an
 *                eventfd or to the device file. read() of 8 bytes at file
 *                position 0 serves the vectors bound to the file. It
 *                blocks until one of them fires, and returns the number
 *                of interrupts since the last read() as a __u64. The file
 *                position stays 0. If the number is 0, read() fails with
 *                ENODATA when no vector is bound to the file, and with
 *                EAGAIN when O_NONBLOCK is set. poll() reports POLLIN
 *                while the number is not 0.
 *   DMA          ioctl() NICFORGE_SHIM_ALLOC_DMA allocates coherent
 *                memory for mmap(), _PIN_DMA pins memory of the process,
 *                and _FREE_DMA ends either.
 *   reset        ioctl() NICFORGE_SHIM_RESET.
 *
 * A function is gone when the module is unbound from it, as by an unplug,
 * or when its vendor id reads as all ones. Then all calls fail with ENODEV,
 * blocked read() calls included, and poll() reports POLLERR | POLLHUP. An
 * access to a mapped BAR raises SIGBUS; after an unbind, so does one to
 * mapped coherent memory. Pinned memory stays accessible. Open descriptors
 * never leave this state. A function that returns gets a new character
 * device when the module binds it again.
 *
 * The structs are fixed. A later version adds requests with new numbers
 * and increments %NICFORGE_SHIM_VERSION. Reserved fields and undefined
 * flags must be 0; otherwise the call fails with EINVAL. Fields that the
 * caller sets are marked "in", fields that the call sets "out". A call
 * that fails sets no field, except where its struct says so.
 */
#ifndef _UAPI_NICFORGE_SHIM_H
#define _UAPI_NICFORGE_SHIM_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Value of @version in struct nicforge_shim_info. */
#define NICFORGE_SHIM_VERSION		1

#define NICFORGE_SHIM_IOCTL_TYPE	0xe1

/* ---- Identity of the function ---- */

/*
 * The function can be reset without resetting others. RESET works, and the
 * last close resets the function.
 */
#define NICFORGE_SHIM_INFO_RESET	(1U << 0)
/*
 * An IOMMU translates the function's DMA addresses. PIN_DMA returns a single
 * segment, and the function reaches no memory but the file's DMA buffers.
 */
#define NICFORGE_SHIM_INFO_IOMMU	(1U << 1)
/*
 * The function has the attachment capability, see
 * struct nicforge_pci_attachment_capability in nicforge_hwi.h.
 */
#define NICFORGE_SHIM_INFO_ATTACHMENT	(1U << 2)
/* DMA addresses have up to 64 bits; without the flag, up to 32. */
#define NICFORGE_SHIM_INFO_DMA64	(1U << 3)

/**
 * struct nicforge_shim_info - identity and state of the function
 * @version: out: %NICFORGE_SHIM_VERSION of the module
 * @flags: out: NICFORGE_SHIM_INFO_*
 * @vendor: out: PCI vendor id
 * @device: out: PCI device id
 * @subsystem_vendor: out: PCI subsystem vendor id
 * @subsystem: out: PCI subsystem id
 * @class: out: base class, subclass, programming interface (as in 0x028000)
 * @revision: out: PCI revision
 * @domain: out: domain (segment) of the PCI address
 * @bus: out: bus of the PCI address
 * @slot: out: device of the PCI address
 * @function: out: function of the PCI address
 * @reserved: out: 0
 * @numa_node: out: nearest NUMA node, -1 if unknown
 * @resets: out: number of resets since the module bound the function
 * @dma_quota: out: limit of @dma_used, in bytes
 * @dma_used: out: DMA memory of the function, in bytes
 */
struct nicforge_shim_info {
	__u32 version;
	__u32 flags;
	__u16 vendor;
	__u16 device;
	__u16 subsystem_vendor;
	__u16 subsystem;
	__u32 class;
	__u32 revision;
	__u32 domain;
	__u8 bus;
	__u8 slot;
	__u8 function;
	__u8 reserved;
	__s32 numa_node;
	__u32 resets;
	__u64 dma_quota;
	__u64 dma_used;
};

/* ---- Regions ---- */

/* Number of BAR regions. Regions 0 to 5 are the BARs, as in VFIO. */
#define NICFORGE_SHIM_REGION_BARS	6
/* Configuration space, read-only. VFIO uses the same number. */
#define NICFORGE_SHIM_REGION_CONFIG	7

/* pread() works. */
#define NICFORGE_SHIM_REGION_READ	(1U << 0)
/* pwrite() works, and mappings may be writable. */
#define NICFORGE_SHIM_REGION_WRITE	(1U << 1)
/* mmap() of the areas works at @offset, and maps them uncached. */
#define NICFORGE_SHIM_REGION_MMAP	(1U << 2)
/* mmap() of the areas also works at @wc_offset, and maps write-combining. */
#define NICFORGE_SHIM_REGION_WC		(1U << 3)
/*
 * The region is memory, because it is prefetchable or the attachment
 * capability says so. Loads have no side effects. In a region without this
 * flag every access may have side effects, also through a mapping.
 */
#define NICFORGE_SHIM_REGION_MEMORY	(1U << 4)
/* The region is an I/O port range. */
#define NICFORGE_SHIM_REGION_PORTS	(1U << 5)

/* Capacity of @areas in struct nicforge_shim_region. */
#define NICFORGE_SHIM_MAX_AREAS		4

/**
 * struct nicforge_shim_area - a range of a region that mmap() accepts
 * @offset: offset in the region, a multiple of the page size
 * @len: length in bytes, a multiple of the page size
 */
struct nicforge_shim_area {
	__u64 offset;
	__u64 len;
};

/**
 * struct nicforge_shim_region - a region of the function
 * @index: in: 0 to 5, or %NICFORGE_SHIM_REGION_CONFIG
 * @flags: out: NICFORGE_SHIM_REGION_*
 * @size: out: size in bytes, 0 if the function has no such region
 * @offset: out: offset of the region in the file
 * @wc_offset: out: the same for write-combining mappings, 0 without them
 * @area_count: out: number of entries in @areas
 * @reserved: in: 0
 * @areas: out: ranges that can be mapped, in ascending order
 *
 * GET_REGION fails with EINVAL for any other @index.
 *
 * A BAR smaller than a page cannot be mapped. No area contains the pages of
 * the MSI-X table and of the pending bit array; pread() and pwrite() of
 * those fail with EPERM.
 *
 * mmap() fails with:
 *   EBUSY   the region has mappings of the other caching mode
 *   EINVAL  the mapping is MAP_PRIVATE or not inside an area
 *   EACCES  it is executable, or it is writable and the region lacks
 *           NICFORGE_SHIM_REGION_WRITE
 */
struct nicforge_shim_region {
	__u32 index;
	__u32 flags;
	__u64 size;
	__u64 offset;
	__u64 wc_offset;
	__u32 area_count;
	__u32 reserved;
	struct nicforge_shim_area areas[NICFORGE_SHIM_MAX_AREAS];
};

/* ---- Interrupts ---- */

/* Kinds of interrupts, as in VFIO. Only one kind is in use at a time. */
#define NICFORGE_SHIM_IRQ_INTX		0
#define NICFORGE_SHIM_IRQ_MSI		1
#define NICFORGE_SHIM_IRQ_MSIX		2

/* MASK_IRQ and UNMASK_IRQ work. */
#define NICFORGE_SHIM_IRQ_MASKABLE	(1U << 0)
/* A vector is masked when it fires, until UNMASK_IRQ. */
#define NICFORGE_SHIM_IRQ_AUTOMASKED	(1U << 1)

/**
 * struct nicforge_shim_irq - interrupts of one kind
 * @kind: in: %NICFORGE_SHIM_IRQ_INTX, _MSI or _MSIX
 * @flags: out: %NICFORGE_SHIM_IRQ_MASKABLE, _AUTOMASKED
 * @count: out: number of vectors, 0 if the function lacks this kind
 * @reserved: in: 0
 *
 * GET_IRQ fails with EINVAL for any other @kind.
 */
struct nicforge_shim_irq {
	__u32 kind;
	__u32 flags;
	__u32 count;
	__u32 reserved;
};

/* Value of @eventfd in struct nicforge_shim_irq_bind: the device file. */
#define NICFORGE_SHIM_IRQ_FILE		(-1)

/**
 * struct nicforge_shim_irq_bind - destination of vectors
 * @kind: in: %NICFORGE_SHIM_IRQ_INTX, _MSI or _MSIX
 * @start: in: first vector
 * @count: in: number of vectors, at least 1
 * @eventfd: in: eventfd to which each interrupt adds 1, or
 *	%NICFORGE_SHIM_IRQ_FILE for read() of the device file
 *
 * A bound vector can be bound again, to another destination. This loses no
 * interrupt, and a masked vector stays masked.
 *
 * BIND_IRQ fails with:
 *   EBUSY   another kind is in use
 *   EINVAL  the function has no such vector
 *   ENOSPC  the system cannot provide that many vectors
 *
 * After ENOSPC or ENOMEM the first vectors of the range may be bound.
 */
struct nicforge_shim_irq_bind {
	__u32 kind;
	__u32 start;
	__u32 count;
	__s32 eventfd;
};

/**
 * struct nicforge_shim_irq_range - a range of vectors
 * @kind: in: %NICFORGE_SHIM_IRQ_INTX, _MSI or _MSIX
 * @start: in: first vector
 * @count: in: number of vectors; UNBIND_IRQ also accepts ~0 for all vectors
 *	from @start on
 * @reserved: in: 0
 *
 * Interrupts that arrive while a vector is masked are not counted before
 * UNMASK_IRQ, and then count as one. MASK_IRQ and UNMASK_IRQ fail with
 * EINVAL if a vector of the range is not bound.
 *
 * UNBIND_IRQ ignores vectors that are not bound. The system's vectors are
 * freed with the last bound vector, and another kind can then be bound.
 */
struct nicforge_shim_irq_range {
	__u32 kind;
	__u32 start;
	__u32 count;
	__u32 reserved;
};

/* ---- DMA ---- */

/*
 * The module parameter dma_quota_mb limits the DMA memory of a function.
 * RLIMIT_MEMLOCK limits that of a process without CAP_IPC_LOCK. ALLOC_DMA
 * and PIN_DMA fail with ENOMEM above either limit. Without an IOMMU, a buffer
 * of ALLOC_DMA counts as the power of two of pages that the kernel allocates.
 */

/* Number of buffers that a function can have; more fail with EMFILE. */
#define NICFORGE_SHIM_MAX_BUFFERS	65536
/* Largest length of a buffer in bytes; a longer one fails with EINVAL. */
#define NICFORGE_SHIM_MAX_BUFFER_LEN	(1ULL << 30)

/**
 * struct nicforge_shim_dma_alloc - a buffer of coherent memory
 * @len: in: length in bytes, a multiple of the page size
 * @address: out: DMA address
 * @offset: out: file offset for mmap() of all or some of the pages, with
 *	MAP_SHARED
 * @handle: out: argument of FREE_DMA
 * @flags: in: 0
 *
 * The memory is zeroed and has consecutive DMA addresses. ALLOC_DMA fails
 * with ENOMEM if there is no such memory; without an IOMMU it may fail for
 * any length above 4 MiB.
 */
struct nicforge_shim_dma_alloc {
	__u64 len;
	__u64 address;
	__u64 offset;
	__u32 handle;
	__u32 flags;
};

/**
 * struct nicforge_shim_dma_segment - a range of DMA addresses
 * @address: first DMA address
 * @len: length in bytes
 */
struct nicforge_shim_dma_segment {
	__u64 address;
	__u64 len;
};

/* Flags of struct nicforge_shim_dma_pin: the function reads the memory. */
#define NICFORGE_SHIM_DMA_READ		(1U << 0)
/* The function writes the memory. */
#define NICFORGE_SHIM_DMA_WRITE		(1U << 1)

/**
 * struct nicforge_shim_dma_pin - memory of the process, pinned and mapped
 * @start: in: address in the process, a multiple of the page size
 * @len: in: length in bytes, a multiple of the page size
 * @segments: in: address of an array of struct nicforge_shim_dma_segment,
 *	which the call fills
 * @address: out: DMA address of the first segment
 * @flags: in: %NICFORGE_SHIM_DMA_READ, _WRITE or both
 * @handle: out: argument of FREE_DMA
 * @capacity: in: entries of @segments; with 0, the call does not use
 *	@segments, and the memory must be a single segment
 * @count: out: number of segments, also if the call fails with ENOSPC
 *
 * PIN_DMA fails with:
 *   EFAULT      the range is not mapped in the process, or the mapping
 *               does not permit the accesses in @flags
 *   ENOSPC      the memory has more segments than @capacity allows; it is
 *               not pinned
 *   EOPNOTSUPP  the function reaches the memory only through a bounce
 *               buffer, because its DMA addresses are too short or because
 *               the guest's memory is encrypted
 */
struct nicforge_shim_dma_pin {
	__u64 start;
	__u64 len;
	__u64 segments;
	__u64 address;
	__u32 flags;
	__u32 handle;
	__u32 capacity;
	__u32 count;
};

/**
 * struct nicforge_shim_dma_free - a buffer to be freed
 * @handle: in: handle from ALLOC_DMA or PIN_DMA
 * @reserved: in: 0
 *
 * The program must end the function's accesses to the buffer before the
 * call. FREE_DMA fails with ENOENT if there is no such handle.
 *
 * Pinned memory is unpinned when the call returns. An IOMMU then refuses
 * the function's accesses to it: at once in strict mode, about 10 ms later
 * in lazy mode. Coherent memory that is still mapped is freed, and leaves
 * the quota, with its last mapping.
 */
struct nicforge_shim_dma_free {
	__u32 handle;
	__u32 reserved;
};

/* ---- ioctl() requests ---- */

#define NICFORGE_SHIM_GET_INFO \
	_IOR(NICFORGE_SHIM_IOCTL_TYPE, 0x00, struct nicforge_shim_info)
#define NICFORGE_SHIM_GET_REGION \
	_IOWR(NICFORGE_SHIM_IOCTL_TYPE, 0x01, struct nicforge_shim_region)
#define NICFORGE_SHIM_GET_IRQ \
	_IOWR(NICFORGE_SHIM_IOCTL_TYPE, 0x02, struct nicforge_shim_irq)
#define NICFORGE_SHIM_BIND_IRQ \
	_IOW(NICFORGE_SHIM_IOCTL_TYPE, 0x03, struct nicforge_shim_irq_bind)
#define NICFORGE_SHIM_UNBIND_IRQ \
	_IOW(NICFORGE_SHIM_IOCTL_TYPE, 0x04, struct nicforge_shim_irq_range)
#define NICFORGE_SHIM_MASK_IRQ \
	_IOW(NICFORGE_SHIM_IOCTL_TYPE, 0x05, struct nicforge_shim_irq_range)
#define NICFORGE_SHIM_UNMASK_IRQ \
	_IOW(NICFORGE_SHIM_IOCTL_TYPE, 0x06, struct nicforge_shim_irq_range)
#define NICFORGE_SHIM_ALLOC_DMA \
	_IOWR(NICFORGE_SHIM_IOCTL_TYPE, 0x07, struct nicforge_shim_dma_alloc)
#define NICFORGE_SHIM_PIN_DMA \
	_IOWR(NICFORGE_SHIM_IOCTL_TYPE, 0x08, struct nicforge_shim_dma_pin)
#define NICFORGE_SHIM_FREE_DMA \
	_IOW(NICFORGE_SHIM_IOCTL_TYPE, 0x09, struct nicforge_shim_dma_free)
/*
 * Resets the function. Bound interrupts, DMA memory and mappings stay valid.
 * RESET fails with EOPNOTSUPP without %NICFORGE_SHIM_INFO_RESET, and with
 * EAGAIN if another task holds the device lock for about two seconds.
 */
#define NICFORGE_SHIM_RESET \
	_IO(NICFORGE_SHIM_IOCTL_TYPE, 0x0a)

#endif /* _UAPI_NICFORGE_SHIM_H */
