/* SPDX-License-Identifier: GPL-2.0 */
/*
 * nicforge-shim: internal declarations.
 *
 *   main.c    the module, its PCI driver, the class device of each function
 *   file.c    the file operations of the character device
 *   reset.c   presence checks, the transition to gone, resets
 *   region.c  sizes, flags and accessible areas of the regions
 *   access.c  register accesses by the kernel, the heartbeat
 *   mapping.c mappings of BARs in processes
 *   irq.c     interrupts
 *   buffer.c  DMA buffers, coherent memory
 *   pin.c     pinned memory of processes
 *
 * Locks, in the order in which they are taken:
 *
 *   open_lock     mutex. Protects mm. open() and the last close hold it from
 *                 beginning to end.
 *   mm->mmap_lock The kernel holds it during mmap(), page faults, and the
 *                 open and close of a mapping.
 *   irqs.mutex    mutex. Serialises binding, masking and freeing of vectors.
 *   dma.mutex     mutex. Protects the buffers and their quota.
 *   state         rw_semaphore. Protects gone, dirty, mapping, resets, and
 *                 io, wc and users of each BAR. Code that accesses the
 *                 function holds it for reading and checks gone first. A
 *                 reset, and the removal of the function, hold it for
 *                 writing.
 *   irqs.lock     spinlock, also taken in interrupt handlers. Protects the
 *                 count, and eventfd, masked and pending of each vector.
 *
 * irq.c accesses the function without state. irqs.mutex serialises it with
 * resets and with the removal, which take that mutex, too. The INTx handler
 * runs without the mutex; free_irq() waits for it.
 *
 * irqs.mutex and dma.mutex are never held together. A task that accesses
 * user memory (copy_to_user(), pinning) holds none of the locks that follow
 * mmap_lock in this list, because a page fault takes mmap_lock.
 *
 * gone is set once, with state held for writing, and never cleared. The
 * teardown that follows misses no vector and no buffer: the code that makes
 * them checks gone under irqs.mutex or dma.mutex, and the teardown takes
 * these mutexes after gone is set.
 */
#ifndef NICFORGE_SHIM_H
#define NICFORGE_SHIM_H

#include <linux/bits.h>
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "nicforge_shim.h"

/*
 * Layout of the file. read() at offset 0 waits for interrupts. Region i
 * starts at (i + 1) << SHIM_REGION_SHIFT. For write-combining mappings,
 * SHIM_WC is added. The buffer with handle h starts at
 * SHIM_DMA + (h << SHIM_BUFFER_SHIFT).
 */
#define SHIM_REGION_SHIFT	40
#define SHIM_WC			BIT_ULL(44)
#define SHIM_DMA		BIT_ULL(50)
#define SHIM_BUFFER_SHIFT	30
#define SHIM_END		BIT_ULL(51)

/* Region of a file offset below SHIM_DMA, and the offset in the region. */
#define SHIM_OFFSET_REGION(offset) \
	((u32)(((offset) & ~SHIM_WC) >> SHIM_REGION_SHIFT) - 1)
#define SHIM_OFFSET_IN_REGION(offset) \
	((offset) & ((1ULL << SHIM_REGION_SHIFT) - 1))

/**
 * struct shim_bar - a BAR
 * @flags: NICFORGE_SHIM_REGION_*; 0 if the function lacks this BAR
 * @size: size in bytes
 * @area_count: number of entries in @areas; 0 for I/O ports
 * @areas: ranges that may be accessed, and mapped if @flags has
 *	NICFORGE_SHIM_REGION_MMAP
 * @io: the kernel's mapping; NULL before the first access
 * @wc: true if all mappings, those of processes and @io, are write-combining
 * @users: number of mappings in processes
 */
struct shim_bar {
	u32 flags;
	u64 size;
	u32 area_count;
	struct nicforge_shim_area areas[NICFORGE_SHIM_MAX_AREAS];
	void __iomem *io;
	bool wc;
	unsigned int users;
};

/**
 * struct shim_vector - an interrupt vector
 * @shim: function of the vector
 * @eventfd: counts the interrupts; if NULL, irqs.count does
 * @irq: Linux interrupt number
 * @bound: true if a handler is installed
 * @masked: true if interrupts are not counted
 * @pending: true if an interrupt arrived while @masked was set (MSI and MSI-X
 *	only)
 */
struct shim_vector {
	struct shim *shim;
	struct eventfd_ctx *eventfd;
	int irq;
	bool bound;
	bool masked;
	bool pending;
};

/**
 * struct shim_irqs - the interrupts of a function
 * @mutex: see the head of this file
 * @lock: see the head of this file
 * @kind: kind of @vectors, NICFORGE_SHIM_IRQ_*
 * @vectors: allocated vectors; NULL if no kind is in use
 * @vector_count: number of @vectors
 * @bound: number of bound vectors
 * @file_bound: number of bound vectors without an eventfd
 * @count: interrupts of vectors without an eventfd since the last read()
 * @wait: wait queue of read() and poll()
 */
struct shim_irqs {
	struct mutex mutex; /* serialises binding, masking, freeing */
	spinlock_t lock; /* protects delivery */
	u32 kind;
	struct shim_vector *vectors;
	unsigned int vector_count;
	unsigned int bound;
	unsigned int file_bound;
	u64 count;
	wait_queue_head_t wait;
};

/**
 * struct shim_dma - the DMA memory of a function
 * @mutex: see the head of this file
 * @handles: buffers by handle
 * @buffers: all buffers, also those without a handle that are still mapped
 * @count: number of buffers
 * @used: total length of the buffers, in bytes
 */
struct shim_dma {
	struct mutex mutex; /* protects all members */
	struct xarray handles;
	struct list_head buffers;
	unsigned int count;
	u64 used;
};

/**
 * struct shim - a bound PCI function
 * @dev: device of class nicforge; its release frees this struct
 * @cdev: character device
 * @pdev: PCI device; no access to the hardware once @gone is set
 * @open_lock: see the head of this file
 * @mm: address space that has the function open; NULL while it is closed
 * @state: see the head of this file
 * @gone: true if the function was unplugged, was unbound, or reads as all ones
 * @dirty: true if the function may have been used since its last reset
 * @mapping: address_space of the open file
 * @resetter: task in shim_try_reset(); NULL if there is none
 * @resets: number of resets since the function was bound
 * @heartbeat_bar: BAR of the heartbeat, a counter that advances while the
 *	device is alive; -1 without a heartbeat
 * @heartbeat_at: offset of the heartbeat in its BAR
 * @heartbeat: last value read from the heartbeat
 * @last_check: time of the last shim_check_presence_rarely() that read the
 *	heartbeat, in jiffies
 * @last_alive: time of the last heartbeat change or presence check, in jiffies
 * @info_flags: NICFORGE_SHIM_INFO_*
 * @bars: BARs
 * @irqs: interrupts
 * @dma: DMA memory
 */
struct shim {
	struct device dev;
	struct cdev cdev;
	struct pci_dev *pdev;

	struct mutex open_lock; /* protects mm */
	struct mm_struct *mm;

	struct rw_semaphore state;
	bool gone;
	bool dirty;
	struct address_space *mapping;
	struct task_struct *resetter;
	u32 resets;

	int heartbeat_bar;
	u64 heartbeat_at;
	u32 heartbeat;
	unsigned long last_check;
	unsigned long last_alive;

	u32 info_flags;
	struct shim_bar bars[NICFORGE_SHIM_REGION_BARS];
	struct shim_irqs irqs;
	struct shim_dma dma;
};

/* Shortest time between two checks of a heartbeat, in jiffies. */
#define SHIM_CHECK_INTERVAL	(HZ / 4)

static inline bool shim_is_gone(const struct shim *shim)
{
	return READ_ONCE(shim->gone);
}

/* file.c */
extern const struct file_operations shim_operations;

/* reset.c */
extern const struct pci_error_handlers shim_error_handlers;

void shim_mark_gone(struct shim *shim);
bool shim_can_reset(const struct shim *shim);
int shim_reset(struct shim *shim);
bool shim_check_presence(struct shim *shim);
void shim_check_presence_rarely(struct shim *shim);

/* region.c */
void shim_regions_init(struct shim *shim);
int shim_get_region(struct shim *shim, struct nicforge_shim_region *region);
bool shim_in_area(const struct shim_bar *bar, u64 offset, u64 len);

/* access.c */
void shim_bar_unmap(struct shim *shim, struct shim_bar *bar);
ssize_t shim_region_read(struct shim *shim, char __user *to, size_t len,
			 loff_t at);
ssize_t shim_region_write(struct shim *shim, const char __user *from,
			  size_t len, loff_t at);
bool shim_read_heartbeat(struct shim *shim, u32 *beat);

/* mapping.c */
int shim_region_mmap(struct shim *shim, struct vm_area_struct *vma);
void shim_regions_zap(struct shim *shim);
void shim_regions_teardown(struct shim *shim);

/* irq.c */
void shim_irqs_init(struct shim *shim);
void shim_irqs_teardown(struct shim *shim);
void shim_intx_restore(struct shim *shim);
int shim_get_irq(struct shim *shim, struct nicforge_shim_irq *irq);
int shim_bind_irq(struct shim *shim, const struct nicforge_shim_irq_bind *bind);
int shim_unbind_irq(struct shim *shim,
		    const struct nicforge_shim_irq_range *range);
int shim_mask_irq(struct shim *shim,
		  const struct nicforge_shim_irq_range *range, bool mask);
ssize_t shim_irq_read(struct shim *shim, char __user *to, size_t len,
		      bool nonblock);

/* buffer.c */
void shim_dma_init(struct shim *shim);
void shim_dma_zap(struct shim *shim);
void shim_dma_teardown(struct shim *shim);
u64 shim_dma_quota(void);
int shim_dma_alloc(struct shim *shim, struct nicforge_shim_dma_alloc *alloc);
int shim_dma_free(struct shim *shim, u32 handle);
int shim_dma_mmap(struct shim *shim, struct vm_area_struct *vma);

/* pin.c */
int shim_dma_pin(struct shim *shim, struct nicforge_shim_dma_pin *pin);

#endif /* NICFORGE_SHIM_H */
