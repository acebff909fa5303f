/* SPDX-License-Identifier: GPL-2.0 */
/*
 * nicforge-shim: what its files share.
 *
 *   main.c    the module, its PCI driver, the device of each function
 *   file.c    the character device: who has it open, what is done with it
 *   reset.c   the end of a function, looking for it, and resets
 *   region.c  what regions there are
 *   access.c  registers, the heartbeat
 *   mapping.c BARs mapped into processes
 *   irq.c     interrupts
 *   buffer.c  DMA memory; pin.c that of processes
 *
 * Locks, in the order in which they are taken:
 *
 *   open_lock     mutex: who has the function open (mm). Held over all of
 *                 open() and of the last close.
 *   mm->mmap_lock of the process; the kernel holds it around mmap(), page
 *                 faults, and the open and close of a mapping.
 *   irqs.mutex    binding, masking, freeing of interrupts.
 *   dma.mutex     buffers and their quota.
 *   state         rw_semaphore: gone, mapping, bars[].io and their caching.
 *                 Whoever touches the hardware holds it for reading and has
 *                 seen that gone is not set; a reset and the end of the
 *                 function hold it for writing.
 *   irqs.lock     spinlock: counts and eventfds; also in interrupts.
 *
 * irqs.mutex and dma.mutex are never held together. Nothing touches user
 * memory (copy_to_user(), pinning) with any of these but open_lock held,
 * because mmap_lock comes before them.
 *
 * gone is set once, under state. What ends a function (shim_end(), then the
 * teardown of interrupts and DMA) finds everything that was made before,
 * because each maker looks at gone under the mutex that the teardown takes
 * afterwards.
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
 * The file's offsets. 0 is the dummy read(); region i starts at
 * (i + 1) << SHIM_REGION_SHIFT, its write-combining twin SHIM_WC further;
 * buffer h at SHIM_DMA + (h << SHIM_BUFFER_SHIFT).
 */
#define SHIM_REGION_SHIFT	40
#define SHIM_WC			BIT_ULL(44)
#define SHIM_DMA		BIT_ULL(50)
#define SHIM_BUFFER_SHIFT	30
#define SHIM_END		BIT_ULL(51)

/* The region's number, and where in it, of an offset below SHIM_DMA. */
#define SHIM_OFFSET_REGION(offset) \
	((u32)(((offset) & ~SHIM_WC) >> SHIM_REGION_SHIFT) - 1)
#define SHIM_OFFSET_IN_REGION(offset) \
	((offset) & ((1ULL << SHIM_REGION_SHIFT) - 1))

/**
 * struct shim_bar - a BAR
 * @flags: NICFORGE_SHIM_REGION_*; 0 when there is none
 * @size: bytes
 * @area_count: areas in @areas; 0 for ports
 * @areas: what may be accessed, and mapped if it has whole pages
 * @io: the kernel's mapping, made by the first access
 * @wc: the mappings of @users, and @io, are write-combining
 * @users: mappings in processes
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
 * @shim: whose
 * @eventfd: where it is counted; NULL: in irqs.count
 * @irq: Linux's number
 * @bound: it has a handler
 * @masked: it is masked
 * @pending: it came while it was masked (not INTx)
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
 * struct shim_irqs - the interrupts
 * @mutex: see the head of this file
 * @lock: see there
 * @kind: kind of @vectors
 * @vectors: the vectors that the system gave; NULL: no kind is in use
 * @vector_count: how many
 * @bound: of them, those that are bound
 * @file_bound: of them, those that are counted in @count
 * @count: interrupts that read() did not tell yet
 * @wait: who waits for @count
 */
struct shim_irqs {
	struct mutex mutex; /* binding, masking, freeing */
	spinlock_t lock; /* counts and eventfds */
	u32 kind;
	struct shim_vector *vectors;
	unsigned int vector_count;
	unsigned int bound;
	unsigned int file_bound;
	u64 count;
	wait_queue_head_t wait;
};

/**
 * struct shim_dma - the DMA memory
 * @mutex: see the head of this file
 * @handles: buffers by handle
 * @buffers: all of them, also those that only a mapping keeps
 * @count: how many
 * @used: their bytes
 */
struct shim_dma {
	struct mutex mutex; /* all of this */
	struct xarray handles;
	struct list_head buffers;
	unsigned int count;
	u64 used;
};

/**
 * struct shim - a function
 * @dev: its device of class nicforge, which owns this struct
 * @cdev: its character device
 * @pdev: the PCI function; not to be touched when @gone is set
 * @open_lock: see the head of this file
 * @mm: address space that has it open
 * @state: see the head of this file
 * @gone: it was unplugged or unbound, or answers no more
 * @dirty: it was used since its last reset
 * @mapping: of the open file
 * @resetter: the task that resets it through shim_reset()
 * @resets: resets so far
 * @heartbeat_bar: BAR of the heartbeat; -1 without one
 * @heartbeat_at: its offset there
 * @heartbeat: its value when it was last looked at
 * @last_look: when somebody last looked whether it is there, in jiffies
 * @last_sign: when it last gave a sign of life, in jiffies
 * @info_flags: NICFORGE_SHIM_INFO_*
 * @bars: the BARs
 * @irqs: the interrupts
 * @dma: the DMA memory
 */
struct shim {
	struct device dev;
	struct cdev cdev;
	struct pci_dev *pdev;

	struct mutex open_lock; /* mm */
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
	unsigned long last_look;
	unsigned long last_sign;

	u32 info_flags;
	struct shim_bar bars[NICFORGE_SHIM_REGION_BARS];
	struct shim_irqs irqs;
	struct shim_dma dma;
};

/* Between two looks at a function's heartbeat, in jiffies. */
#define SHIM_LOOK	(HZ / 4)

static inline bool shim_is_gone(const struct shim *shim)
{
	return READ_ONCE(shim->gone);
}

/* file.c */
extern const struct file_operations shim_operations;

/* reset.c */
extern const struct pci_error_handlers shim_error_handlers;

void shim_end(struct shim *shim);
bool shim_can_reset(const struct shim *shim);
int shim_reset(struct shim *shim);
bool shim_look(struct shim *shim);
void shim_look_rarely(struct shim *shim);

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
