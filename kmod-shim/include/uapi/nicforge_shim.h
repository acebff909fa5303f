/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR Apache-2.0 OR MIT) */
/*
 * The interface of the kernel module nicforge-shim: PCI functions for
 * programs in user space.
 *
 * Each function that the module binds has a character device,
 * /dev/nicforge0 and so on. One process has it open at a time: a second
 * open() fails with EBUSY, and calls from another address space than the
 * one that opened it (a child after fork()) fail with EPERM. Open it with
 * O_CLOEXEC. When the last descriptor is closed and the last mapping is
 * gone, by a call or because the process died, bus mastering is switched
 * off, the function is reset, and the DMA memory is given back.
 *
 *   info         ioctl NICFORGE_SHIM_GET_INFO, _GET_REGION, _GET_IRQ
 *   registers    pread() and pwrite() at the offset that GET_REGION gives,
 *                plus the register's offset in the region. 1, 2, 4 and 8
 *                bytes, naturally aligned, are one access. Longer transfers
 *                are a sequence of the widest aligned accesses, in order.
 *   BARs         mmap() at the offset that GET_REGION gives, MAP_SHARED.
 *   interrupts   ioctl NICFORGE_SHIM_BIND_IRQ, then either an eventfd a
 *                vector, or the device file itself: read() of 8 bytes at
 *                file position 0 (where it stays) blocks until a bound
 *                vector fired and gives the count since the last read() as
 *                a __u64. With O_NONBLOCK it fails with EAGAIN instead.
 *                ENODATA: no vector is bound to the file. poll() says
 *                POLLIN while there is a count to read.
 *   DMA          ioctl NICFORGE_SHIM_ALLOC_DMA (memory that mmap() shows),
 *                _PIN_DMA (memory that the program has), _FREE_DMA.
 *   reset        ioctl NICFORGE_SHIM_RESET.
 *
 * A function that was unplugged, or that answers all ones, is gone: each
 * call fails with ENODEV, a blocked read() ends with it, poll() says
 * POLLERR | POLLHUP, and a touch of a mapping raises SIGBUS. It does not
 * come back for descriptors that are open. A mapping of pinned memory is
 * the program's own and stays.
 *
 * A struct never changes: what is new gets a new number, and adds to the
 * version. Fields called reserved and flags that are not defined here are
 * zero, or the call fails with EINVAL. What each call writes is marked
 * "out". A call that fails writes nothing, except where said.
 */
#ifndef _UAPI_NICFORGE_SHIM_H
#define _UAPI_NICFORGE_SHIM_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* struct nicforge_shim_info.version. */
#define NICFORGE_SHIM_VERSION		1

#define NICFORGE_SHIM_IOCTL_TYPE	0xe1

/* ---- What the function is ---- */

/* The function can be reset alone; RESET and the last close do it. */
#define NICFORGE_SHIM_INFO_RESET	(1U << 0)
/*
 * An IOMMU translates what the function reaches: PIN_DMA gives one segment,
 * and the function reaches nothing but what it was given.
 */
#define NICFORGE_SHIM_INFO_IOMMU	(1U << 1)
/* It has the attachment capability (struct nicforge_pci_attachment_capability). */
#define NICFORGE_SHIM_INFO_ATTACHMENT	(1U << 2)
/* It takes DMA addresses of 64 bits; of 32 otherwise. */
#define NICFORGE_SHIM_INFO_DMA64	(1U << 3)

/**
 * struct nicforge_shim_info - what the function is
 * @version: out: %NICFORGE_SHIM_VERSION of the module
 * @flags: out: NICFORGE_SHIM_INFO_*
 * @vendor: out: PCI vendor id
 * @device: out: PCI device id
 * @subsystem_vendor: out: PCI subsystem vendor id
 * @subsystem: out: PCI subsystem id
 * @class: out: base class, subclass, programming interface (0x028000)
 * @revision: out: PCI revision
 * @domain: out: PCI domain (segment) of its address
 * @bus: out: bus of its address
 * @slot: out: device of its address
 * @function: out: function of its address
 * @reserved: out: 0
 * @numa_node: out: nearest NUMA node, -1 when unknown
 * @resets: out: resets since the module bound the function
 * @dma_quota: out: the most bytes of DMA memory that it may have at once
 * @dma_used: out: bytes of DMA memory it has
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

/* Regions 0 to 5 are the BARs, as VFIO numbers them. */
#define NICFORGE_SHIM_REGION_BARS	6
/* Configuration space; read only. */
#define NICFORGE_SHIM_REGION_CONFIG	7

/* pread() works. */
#define NICFORGE_SHIM_REGION_READ	(1U << 0)
/* pwrite() works, and mappings may be writable. */
#define NICFORGE_SHIM_REGION_WRITE	(1U << 1)
/* mmap() works in the areas, at @offset: uncached. */
#define NICFORGE_SHIM_REGION_MMAP	(1U << 2)
/* mmap() works in the areas also at @wc_offset: write-combining. */
#define NICFORGE_SHIM_REGION_WC		(1U << 3)
/*
 * What lies in it is memory: it is prefetchable, or the function says so in
 * its attachment capability. Loads have no side effect. In other regions each
 * access, mapped too, reaches a register.
 */
#define NICFORGE_SHIM_REGION_MEMORY	(1U << 4)
/* I/O ports. */
#define NICFORGE_SHIM_REGION_PORTS	(1U << 5)

#define NICFORGE_SHIM_MAX_AREAS		4

/**
 * struct nicforge_shim_area - a range of a region that mmap() takes
 * @offset: first byte in the region, a multiple of the page size
 * @len: bytes, a multiple of the page size
 */
struct nicforge_shim_area {
	__u64 offset;
	__u64 len;
};

/**
 * struct nicforge_shim_region - a region of the function
 * @index: in: 0 to 5, or %NICFORGE_SHIM_REGION_CONFIG; others: EINVAL
 * @flags: out: NICFORGE_SHIM_REGION_*
 * @size: out: bytes; 0 when the function has no such region
 * @offset: out: where the region starts in the file
 * @wc_offset: out: the same for write-combining mappings; 0 without them
 * @area_count: out: areas in @areas
 * @reserved: in: 0
 * @areas: out: what may be mapped, ascending. The pages of the MSI-X table
 *	and of its pending bits are never in it, nor accessible by pread()
 *	and pwrite(); nor mappable are BARs smaller than a page.
 *
 * All mappings of a region at a time have one kind of caching: mmap() of
 * the other one fails with EBUSY. A mapping of another kind (MAP_PRIVATE,
 * writable without NICFORGE_SHIM_REGION_WRITE, outside the areas) fails
 * with EINVAL or EACCES.
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

/* Kinds of interrupts, as VFIO numbers them. One is in use at a time. */
#define NICFORGE_SHIM_IRQ_INTX		0
#define NICFORGE_SHIM_IRQ_MSI		1
#define NICFORGE_SHIM_IRQ_MSIX		2

/* MASK_IRQ and UNMASK_IRQ work. */
#define NICFORGE_SHIM_IRQ_MASKABLE	(1U << 0)
/* A vector masks itself when it fires, until UNMASK_IRQ. */
#define NICFORGE_SHIM_IRQ_AUTOMASKED	(1U << 1)

/**
 * struct nicforge_shim_irq - the interrupts of a kind
 * @kind: in: NICFORGE_SHIM_IRQ_INTX and so on; others: EINVAL
 * @flags: out: NICFORGE_SHIM_IRQ_MASKABLE and so on
 * @count: out: vectors that the function has; 0 without this kind
 * @reserved: in: 0
 */
struct nicforge_shim_irq {
	__u32 kind;
	__u32 flags;
	__u32 count;
	__u32 reserved;
};

/* struct nicforge_shim_irq_bind.eventfd: count for read() of the file. */
#define NICFORGE_SHIM_IRQ_FILE		(-1)

/**
 * struct nicforge_shim_irq_bind - where vectors are counted
 * @kind: in: NICFORGE_SHIM_IRQ_INTX and so on
 * @start: in: first vector
 * @count: in: vectors, at least 1
 * @eventfd: in: an eventfd that each of them adds 1 to, or
 *	%NICFORGE_SHIM_IRQ_FILE
 *
 * A vector that was bound before is bound anew without losing interrupts;
 * it keeps its mask. EBUSY: another kind is in use. ENOSPC: the system has
 * no more vectors. EINVAL: the function has no such vector. After ENOSPC and
 * ENOMEM the first vectors of the range may be bound.
 */
struct nicforge_shim_irq_bind {
	__u32 kind;
	__u32 start;
	__u32 count;
	__s32 eventfd;
};

/**
 * struct nicforge_shim_irq_range - vectors
 * @kind: in: NICFORGE_SHIM_IRQ_INTX and so on
 * @start: in: first vector
 * @count: in: vectors; for UNBIND_IRQ also ~0 for all from @start on
 * @reserved: in: 0
 *
 * MASK_IRQ keeps them from being counted; what a masked vector signals is
 * kept, and counted as one when it is unmasked. EINVAL: a vector is not
 * bound. UNBIND_IRQ gives the system's vectors back when the last vector
 * of the kind is unbound, and is without effect on vectors that are not.
 */
struct nicforge_shim_irq_range {
	__u32 kind;
	__u32 start;
	__u32 count;
	__u32 reserved;
};

/* ---- DMA ---- */

/*
 * The module's parameter dma_quota_mb bounds what a function has, and so
 * does the process's RLIMIT_MEMLOCK unless it has CAP_IPC_LOCK: ENOMEM.
 */

/* The most buffers that a function has at a time; more: EMFILE. */
#define NICFORGE_SHIM_MAX_BUFFERS	65536
/* The most bytes of one buffer; more: EINVAL. */
#define NICFORGE_SHIM_MAX_BUFFER_LEN	(1ULL << 30)

/**
 * struct nicforge_shim_dma_alloc - coherent memory
 * @len: in: bytes, a multiple of the page size
 * @address: out: for the function
 * @offset: out: for mmap(), all of it or pages of it, MAP_SHARED
 * @handle: out: for FREE_DMA
 * @flags: in: 0
 *
 * The memory is zero and contiguous for the function. ENOMEM: there is no
 * such memory, which without an IOMMU happens above 4 MiB.
 */
struct nicforge_shim_dma_alloc {
	__u64 len;
	__u64 address;
	__u64 offset;
	__u32 handle;
	__u32 flags;
};

/**
 * struct nicforge_shim_dma_segment - a piece of memory as the function sees it
 * @address: for the function
 * @len: bytes
 */
struct nicforge_shim_dma_segment {
	__u64 address;
	__u64 len;
};

/* struct nicforge_shim_dma_pin.flags: the function reads the memory. */
#define NICFORGE_SHIM_DMA_READ		(1U << 0)
/* The function writes it. */
#define NICFORGE_SHIM_DMA_WRITE		(1U << 1)

/**
 * struct nicforge_shim_dma_pin - memory of the program, pinned and mapped
 * @start: in: address in the process, a multiple of the page size
 * @len: in: bytes, a multiple of the page size
 * @segments: in: address of @capacity structs nicforge_shim_dma_segment,
 *	which the call fills from the first on: out
 * @address: out: the first segment's address
 * @flags: in: NICFORGE_SHIM_DMA_READ, _WRITE or both
 * @handle: out: for FREE_DMA
 * @capacity: in: segments that there is room for; with 0, @segments is not
 *	used, and the memory must be one segment
 * @count: out: segments, also when the call fails with ENOSPC
 *
 * ENOSPC: the memory is more segments than there is room for; it was given
 * back. EFAULT: no such memory. EOPNOTSUPP: the function can only reach it
 * through a bounce buffer (its addresses are too short, or the guest's
 * memory is encrypted).
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
 * struct nicforge_shim_dma_free - memory is taken away from the function
 * @handle: in: what ALLOC_DMA or PIN_DMA gave; others: ENOENT
 * @reserved: in: 0
 *
 * The function must not use it any more. Pinned memory is unpinned when the
 * call returns, and out of the function's reach where an IOMMU says so (at
 * once in strict mode, 10 ms later otherwise). Coherent memory that is still
 * mapped lives, and counts, until its last mapping is gone.
 */
struct nicforge_shim_dma_free {
	__u32 handle;
	__u32 reserved;
};

/* ---- Calls ---- */

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
 * Resets the function. Interrupts stay bound, DMA memory and mappings stay.
 * EOPNOTSUPP: it can not be reset. EAGAIN: somebody else holds it.
 */
#define NICFORGE_SHIM_RESET \
	_IO(NICFORGE_SHIM_IOCTL_TYPE, 0x0a)

#endif /* _UAPI_NICFORGE_SHIM_H */
