// SPDX-License-Identifier: GPL-2.0
/*
 * DMA memory: coherent memory that processes map, and processes' memory that
 * is pinned. Both go through the DMA API, so both have the addresses that
 * the function must use, with and without an IOMMU.
 *
 * A buffer lives as long as its handle or a mapping of it does. All of them
 * end with the last close, or when the driver leaves the function, whichever
 * comes first; then the struct stays for its mappings, which were zapped.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "compat.h"
#include "internal.h"

static unsigned int dma_quota_mb = 1024;
module_param(dma_quota_mb, uint, 0644);
MODULE_PARM_DESC(dma_quota_mb, "MiB of DMA memory that a function may have (1024)");

/* Pages pinned in one go, between looks for signals. */
#define SHIM_PIN_PAGES 1024

/**
 * struct shim_buffer - a buffer
 * @shim: whose
 * @node: in dma.buffers, until the memory is given back
 * @handle: its handle; 0 when it is freed
 * @references: the handle and each mapping
 * @len: bytes
 * @live: the memory was not given back yet
 * @cpu: coherent memory; NULL for pinned memory
 * @address: coherent memory, for the function
 * @pages: pinned pages
 * @table: pinned pages, as mapped
 * @direction: what the function may do with pinned pages
 */
struct shim_buffer {
	struct shim *shim;
	struct list_head node;
	u32 handle;
	unsigned int references;
	u64 len;
	bool live;
	void *cpu;
	dma_addr_t address;
	struct page **pages;
	struct sg_table table;
	enum dma_data_direction direction;
};

void shim_dma_init(struct shim *shim)
{
	mutex_init(&shim->dma.mutex);
	xa_init_flags(&shim->dma.handles, XA_FLAGS_ALLOC1);
	INIT_LIST_HEAD(&shim->dma.buffers);
}

u64 shim_dma_quota(void)
{
	return (u64)READ_ONCE(dma_quota_mb) << 20;
}

static unsigned long shim_page_count(const struct shim_buffer *buffer)
{
	return buffer->len >> PAGE_SHIFT;
}

/* ---- Making and ending buffers; with dma.mutex held ---- */

/* Puts a buffer on the account of the function and of its process. */
static int shim_charge(struct shim *shim, u64 len)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	long pages = len >> PAGE_SHIFT;

	if (shim_is_gone(shim))
		return -ENODEV;
	if (shim->dma.count >= NICFORGE_SHIM_MAX_BUFFERS)
		return -EMFILE;
	if (shim->dma.used + len > shim_dma_quota())
		return -ENOMEM;
	if (atomic64_add_return(pages, &shim->mm->pinned_vm) > limit &&
	    !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &shim->mm->pinned_vm);
		return -ENOMEM;
	}
	shim->dma.used += len;
	shim->dma.count++;
	return 0;
}

static void shim_uncharge(struct shim *shim, u64 len)
{
	atomic64_sub(len >> PAGE_SHIFT, &shim->mm->pinned_vm);
	shim->dma.used -= len;
	shim->dma.count--;
}

static struct shim_buffer *shim_buffer_new(struct shim *shim, u64 len)
{
	struct shim_buffer *buffer;

	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer)
		return NULL;
	INIT_LIST_HEAD(&buffer->node);
	buffer->shim = shim;
	buffer->len = len;
	buffer->references = 1;
	return buffer;
}

/* Gives it a handle, when its memory is there. */
static int shim_buffer_add(struct shim_buffer *buffer)
{
	struct shim_dma *dma = &buffer->shim->dma;
	int ret;

	ret = xa_alloc(&dma->handles, &buffer->handle, buffer,
		       XA_LIMIT(1, NICFORGE_SHIM_MAX_BUFFERS), GFP_KERNEL);
	if (ret)
		return ret == -EBUSY ? -EMFILE : ret;
	buffer->live = true;
	list_add(&buffer->node, &dma->buffers);
	return 0;
}

static void shim_unpin(struct shim_buffer *buffer)
{
	bool written = buffer->direction != DMA_TO_DEVICE;

	unpin_user_pages_dirty_lock(buffer->pages, shim_page_count(buffer),
				    written);
	kvfree(buffer->pages);
}

/* Takes the memory away from the function. */
static void shim_buffer_end(struct shim_buffer *buffer)
{
	struct shim *shim = buffer->shim;
	struct device *dev = &shim->pdev->dev;

	if (!buffer->live)
		return;
	buffer->live = false;
	list_del_init(&buffer->node);
	if (buffer->cpu) {
		dma_free_coherent(dev, buffer->len, buffer->cpu, buffer->address);
	} else {
		dma_unmap_sgtable(dev, &buffer->table, buffer->direction, 0);
		sg_free_table(&buffer->table);
		shim_unpin(buffer);
	}
	shim_uncharge(shim, buffer->len);
}

static void shim_buffer_put(struct shim_buffer *buffer)
{
	if (--buffer->references)
		return;
	shim_buffer_end(buffer);
	kfree(buffer);
}

static void shim_buffer_free(struct shim_buffer *buffer)
{
	xa_erase(&buffer->shim->dma.handles, buffer->handle);
	buffer->handle = 0;
	shim_buffer_put(buffer);
}

int shim_dma_free(struct shim *shim, u32 handle)
{
	struct shim_buffer *buffer;

	mutex_lock(&shim->dma.mutex);
	buffer = xa_load(&shim->dma.handles, handle);
	if (buffer)
		shim_buffer_free(buffer);
	mutex_unlock(&shim->dma.mutex);
	return buffer ? 0 : -ENOENT;
}

void shim_dma_teardown(struct shim *shim)
{
	struct shim_buffer *buffer, *next;
	unsigned long handle;

	mutex_lock(&shim->dma.mutex);
	/* Those that only a mapping keeps, when the function is removed. */
	list_for_each_entry_safe(buffer, next, &shim->dma.buffers, node)
		shim_buffer_end(buffer);
	xa_for_each(&shim->dma.handles, handle, buffer)
		shim_buffer_free(buffer);
	mutex_unlock(&shim->dma.mutex);
}

static int shim_check_len(u64 len)
{
	if (!len || !PAGE_ALIGNED(len) || len > NICFORGE_SHIM_MAX_BUFFER_LEN)
		return -EINVAL;
	return 0;
}

/* ---- Coherent memory ---- */

int shim_dma_alloc(struct shim *shim, struct nicforge_shim_dma_alloc *alloc)
{
	struct device *dev = &shim->pdev->dev;
	struct shim_buffer *buffer;
	int ret;

	ret = shim_check_len(alloc->len);
	if (ret || alloc->flags)
		return -EINVAL;
	buffer = shim_buffer_new(shim, alloc->len);
	if (!buffer)
		return -ENOMEM;
	mutex_lock(&shim->dma.mutex);
	ret = shim_charge(shim, buffer->len);
	if (ret)
		goto unlock;
	/* Zeroed by the DMA API. A process asks; no news in the log. */
	buffer->cpu = dma_alloc_coherent(dev, buffer->len, &buffer->address,
					 GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	ret = -ENOMEM;
	if (!buffer->cpu)
		goto uncharge;
	ret = shim_buffer_add(buffer);
	if (ret)
		goto memory;
	alloc->address = buffer->address;
	alloc->offset = SHIM_DMA + ((u64)buffer->handle << SHIM_BUFFER_SHIFT);
	alloc->handle = buffer->handle;
	mutex_unlock(&shim->dma.mutex);
	return 0;

memory:
	dma_free_coherent(dev, buffer->len, buffer->cpu, buffer->address);
uncharge:
	shim_uncharge(shim, buffer->len);
unlock:
	mutex_unlock(&shim->dma.mutex);
	kfree(buffer);
	return ret;
}

static void shim_dma_opened(struct vm_area_struct *vma)
{
	struct shim_buffer *buffer = vma->vm_private_data;
	struct shim *shim = buffer->shim;

	mutex_lock(&shim->dma.mutex);
	buffer->references++;
	mutex_unlock(&shim->dma.mutex);
}

static void shim_dma_closed(struct vm_area_struct *vma)
{
	struct shim_buffer *buffer = vma->vm_private_data;
	struct shim *shim = buffer->shim;

	mutex_lock(&shim->dma.mutex);
	shim_buffer_put(buffer);
	mutex_unlock(&shim->dma.mutex);
}

/* All pages are there from the start: those that are not were zapped. */
static vm_fault_t shim_dma_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct shim_dma_mapping = {
	.open = shim_dma_opened,
	.close = shim_dma_closed,
	.fault = shim_dma_fault,
};

/* Called with dma.mutex held. */
static int shim_dma_insert(struct shim *shim, struct vm_area_struct *vma)
{
	unsigned long at = vma->vm_pgoff;
	u64 offset = ((u64)at << PAGE_SHIFT) - SHIM_DMA;
	struct shim_buffer *buffer;
	int ret;

	if (shim_is_gone(shim))
		return -ENODEV;
	buffer = xa_load(&shim->dma.handles, offset >> SHIM_BUFFER_SHIFT);
	if (!buffer || !buffer->cpu)
		return -EINVAL;
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	/* The DMA API wants to find the offset in the buffer there. */
	vma->vm_pgoff = (offset & ((1ULL << SHIM_BUFFER_SHIFT) - 1)) >> PAGE_SHIFT;
	ret = dma_mmap_coherent(&shim->pdev->dev, vma, buffer->cpu,
				buffer->address, buffer->len);
	vma->vm_pgoff = at;
	if (ret)
		return ret == -ENXIO ? -EINVAL : ret;
	buffer->references++;
	vma->vm_private_data = buffer;
	vma->vm_ops = &shim_dma_mapping;
	return 0;
}

int shim_dma_mmap(struct shim *shim, struct vm_area_struct *vma)
{
	int ret;

	if ((u64)vma->vm_pgoff << PAGE_SHIFT >= SHIM_END)
		return -EINVAL;
	mutex_lock(&shim->dma.mutex);
	ret = shim_dma_insert(shim, vma);
	mutex_unlock(&shim->dma.mutex);
	return ret;
}

/*
 * Takes the pages out of all mappings of coherent memory, for good. Called
 * with open_lock held, when the function is gone.
 *
 * An mmap() that saw that it was not gone may have inserted pages into a
 * mapping that the file does not know yet. It holds mmap_lock until it does.
 */
void shim_dma_zap(struct shim *shim)
{
	if (!shim->mm)
		return;
	mmap_read_lock(shim->mm);
	mmap_read_unlock(shim->mm);
	unmap_mapping_range(shim->mapping, SHIM_DMA, SHIM_END - SHIM_DMA, 1);
}

/* ---- Pinned memory ---- */

/* Pins all pages, or none. */
static int shim_pin_pages(struct shim_buffer *buffer, u64 start)
{
	unsigned long count = shim_page_count(buffer);
	unsigned int flags = FOLL_LONGTERM;
	unsigned long done = 0;
	long ret = 0;

	if (buffer->direction != DMA_TO_DEVICE)
		flags |= FOLL_WRITE;
	while (done < count) {
		unsigned long some = min(count - done, SHIM_PIN_PAGES + 0UL);

		if (fatal_signal_pending(current))
			ret = -EINTR;
		else
			ret = pin_user_pages_fast(start + (done << PAGE_SHIFT),
						  some, flags,
						  buffer->pages + done);
		if (ret <= 0)
			break;
		done += ret;
		cond_resched();
	}
	if (done == count)
		return 0;
	unpin_user_pages(buffer->pages, done);
	return ret ?: -EFAULT;
}

/*
 * Whether the DMA API would copy: then the function sees old bytes. Behind an
 * IOMMU it does so only for less than pages, and dma_need_sync() says nothing.
 */
static bool shim_is_bounced(struct shim *shim, struct sg_table *table)
{
	struct device *dev = &shim->pdev->dev;
	struct scatterlist *sg;
	int i;

	if (shim->info_flags & NICFORGE_SHIM_INFO_IOMMU)
		return false;
	for_each_sgtable_dma_sg(table, sg, i)
		if (dma_need_sync(dev, sg_dma_address(sg)))
			return true;
	return false;
}

static int shim_map_pages(struct shim_buffer *buffer)
{
	struct device *dev = &buffer->shim->pdev->dev;
	int ret;

	ret = sg_alloc_table_from_pages_segment(&buffer->table, buffer->pages,
						shim_page_count(buffer), 0,
						buffer->len,
						dma_get_max_seg_size(dev) & PAGE_MASK,
						GFP_KERNEL_ACCOUNT);
	if (ret)
		return ret;
	ret = dma_map_sgtable(dev, &buffer->table, buffer->direction, 0);
	if (ret)
		goto table;
	ret = -EOPNOTSUPP;
	if (shim_is_bounced(buffer->shim, &buffer->table))
		goto unmap;
	return 0;

unmap:
	dma_unmap_sgtable(dev, &buffer->table, buffer->direction, 0);
table:
	sg_free_table(&buffer->table);
	return ret;
}

/*
 * The segments as the function sees them, neighbours merged: fills @list as
 * far as it goes and counts all.
 */
static u32 shim_segments(struct sg_table *table,
			 struct nicforge_shim_dma_segment *list, u32 room)
{
	u64 start = 0, end = 0;
	struct scatterlist *sg;
	u32 count = 0;
	int i;

	for_each_sgtable_dma_sg(table, sg, i) {
		if (!count || sg_dma_address(sg) != end) {
			start = sg_dma_address(sg);
			end = start;
			count++;
		}
		end += sg_dma_len(sg);
		if (count <= room)
			list[count - 1] = (struct nicforge_shim_dma_segment) {
				.address = start,
				.len = end - start,
			};
	}
	return count;
}

/* With dma.mutex held, the pages pinned. */
static int shim_pin_add(struct shim_buffer *buffer,
			struct nicforge_shim_dma_pin *pin,
			struct nicforge_shim_dma_segment *list, u32 room)
{
	struct device *dev = &buffer->shim->pdev->dev;
	int ret;

	if (shim_is_gone(buffer->shim))
		return -ENODEV;
	ret = shim_map_pages(buffer);
	if (ret)
		return ret;
	pin->count = shim_segments(&buffer->table, list, room);
	pin->address = list[0].address;
	ret = pin->count > room ? -ENOSPC : shim_buffer_add(buffer);
	if (ret) {
		dma_unmap_sgtable(dev, &buffer->table, buffer->direction, 0);
		sg_free_table(&buffer->table);
		return ret;
	}
	pin->handle = buffer->handle;
	return 0;
}

static int shim_pin_check(const struct nicforge_shim_dma_pin *pin)
{
	u32 known = NICFORGE_SHIM_DMA_READ | NICFORGE_SHIM_DMA_WRITE;

	if (shim_check_len(pin->len) || !PAGE_ALIGNED(pin->start) ||
	    pin->start + pin->len < pin->start)
		return -EINVAL;
	if (!pin->flags || pin->flags & ~known)
		return -EINVAL;
	return 0;
}

static enum dma_data_direction shim_direction(u32 flags)
{
	switch (flags) {
	case NICFORGE_SHIM_DMA_READ:
		return DMA_TO_DEVICE;
	case NICFORGE_SHIM_DMA_WRITE:
		return DMA_FROM_DEVICE;
	default:
		return DMA_BIDIRECTIONAL;
	}
}

int shim_dma_pin(struct shim *shim, struct nicforge_shim_dma_pin *pin)
{
	struct nicforge_shim_dma_segment *list;
	struct shim_buffer *buffer;
	u32 room;
	int ret;

	ret = shim_pin_check(pin);
	if (ret)
		return ret;
	room = clamp_t(u64, pin->capacity, 1, pin->len >> PAGE_SHIFT);
	buffer = shim_buffer_new(shim, pin->len);
	if (!buffer)
		return -ENOMEM;
	buffer->direction = shim_direction(pin->flags);

	mutex_lock(&shim->dma.mutex);
	ret = shim_charge(shim, buffer->len);
	mutex_unlock(&shim->dma.mutex);
	if (ret)
		goto buffer;
	ret = -ENOMEM;
	list = kvmalloc_array(room, sizeof(*list), GFP_KERNEL_ACCOUNT);
	if (!list)
		goto uncharge;
	buffer->pages = kvmalloc_array(shim_page_count(buffer),
				       sizeof(*buffer->pages), GFP_KERNEL_ACCOUNT);
	if (!buffer->pages)
		goto list;
	ret = shim_pin_pages(buffer, pin->start);
	if (ret)
		goto pages;
	mutex_lock(&shim->dma.mutex);
	ret = shim_pin_add(buffer, pin, list, room);
	mutex_unlock(&shim->dma.mutex);
	if (ret) {
		unpin_user_pages(buffer->pages, shim_page_count(buffer));
		goto pages;
	}
	/* From here on another thread may free it. */
	if (pin->capacity &&
	    copy_to_user(u64_to_user_ptr(pin->segments), list,
			 pin->count * sizeof(*list))) {
		shim_dma_free(shim, pin->handle);
		ret = -EFAULT;
	}
	kvfree(list);
	return ret;

pages:
	kvfree(buffer->pages);
list:
	kvfree(list);
uncharge:
	mutex_lock(&shim->dma.mutex);
	shim_uncharge(shim, buffer->len);
	mutex_unlock(&shim->dma.mutex);
buffer:
	kfree(buffer);
	return ret;
}
