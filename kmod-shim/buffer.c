// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers: their lifetime, accounting, and coherent memory. pin.c adds
 * pinned memory of processes. Both kinds use the DMA API, which returns the
 * right addresses with and without an IOMMU.
 *
 * A handle and each mapping hold a reference to a buffer. The last close frees
 * the memory of all buffers, and so does the unbind of the driver. After an
 * unbind, struct shim_buffer stays allocated until its mappings, which were
 * zapped, are closed.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>

#include "buffer.h"
#include "compat.h"

static unsigned int dma_quota_mb = 1024;
module_param(dma_quota_mb, uint, 0644);
MODULE_PARM_DESC(dma_quota_mb, "MiB of DMA memory that a function may have (1024)");

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

/* ---- Lifetime and accounting of buffers ---- */

/*
 * Accounts a buffer of @len bytes to the function's quota and to pinned_vm of
 * the process. Returns an error if it exceeds a limit.
 */
int shim_charge(struct shim *shim, u64 len)
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

void shim_uncharge(struct shim *shim, u64 len)
{
	atomic64_sub(len >> PAGE_SHIFT, &shim->mm->pinned_vm);
	shim->dma.used -= len;
	shim->dma.count--;
}

struct shim_buffer *shim_buffer_new(struct shim *shim, u64 len)
{
	struct shim_buffer *buffer;

	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL_ACCOUNT);
	if (!buffer)
		return NULL;
	INIT_LIST_HEAD(&buffer->node);
	buffer->shim = shim;
	buffer->len = len;
	buffer->charged = len;
	buffer->references = 1;
	return buffer;
}

/* Gives a buffer a handle. Its memory is allocated or pinned already. */
int shim_buffer_add(struct shim_buffer *buffer)
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

/* Frees or unpins the memory of a buffer, if it still has any. */
static void shim_buffer_end(struct shim_buffer *buffer)
{
	struct shim *shim = buffer->shim;
	struct device *dev = &shim->pdev->dev;

	if (!buffer->live)
		return;
	buffer->live = false;
	list_del_init(&buffer->node);
	if (buffer->cpu)
		dma_free_coherent(dev, buffer->len, buffer->cpu, buffer->address);
	else
		shim_pin_end(buffer);
	shim_uncharge(shim, buffer->charged);
}

/* Drops a reference; the last one frees the buffer. */
static void shim_buffer_put(struct shim_buffer *buffer)
{
	if (--buffer->references)
		return;
	shim_buffer_end(buffer);
	kfree(buffer);
}

/* Frees the handle of a buffer and drops its reference. */
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

/* Frees the memory and the handles of all buffers. */
void shim_dma_teardown(struct shim *shim)
{
	struct shim_buffer *buffer, *next;
	unsigned long handle;

	mutex_lock(&shim->dma.mutex);
	/* An unbind also finds mapped buffers without a handle. */
	list_for_each_entry_safe(buffer, next, &shim->dma.buffers, node)
		shim_buffer_end(buffer);
	xa_for_each(&shim->dma.handles, handle, buffer)
		shim_buffer_free(buffer);
	mutex_unlock(&shim->dma.mutex);
}

int shim_check_len(u64 len)
{
	if (!len || !PAGE_ALIGNED(len) || len > NICFORGE_SHIM_MAX_BUFFER_LEN)
		return -EINVAL;
	return 0;
}

/* ---- Coherent memory ---- */

/*
 * Returns the number of bytes that the DMA API allocates for a coherent
 * buffer. Without an IOMMU that is a power of two of pages.
 */
static u64 shim_coherent_size(struct shim *shim, u64 len)
{
	if (shim->info_flags & NICFORGE_SHIM_INFO_IOMMU)
		return len;
	return (u64)PAGE_SIZE << get_order(len);
}

/* Allocates a buffer of coherent memory. */
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
	buffer->charged = shim_coherent_size(shim, buffer->len);

	mutex_lock(&shim->dma.mutex);
	ret = shim_charge(shim, buffer->charged);
	if (ret)
		goto unlock;
	/*
	 * The DMA API zeroes the memory. __GFP_NOWARN, because a process
	 * could fill the log otherwise.
	 */
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
	shim_uncharge(shim, buffer->charged);
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

/* mmap() inserts all pages, so a fault means that they were zapped. */
static vm_fault_t shim_dma_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGBUS;
}

static const struct vm_operations_struct shim_dma_mapping = {
	.open = shim_dma_opened,
	.close = shim_dma_closed,
	.fault = shim_dma_fault,
};

/* Maps a buffer of coherent memory. Called with dma.mutex held. */
static int shim_dma_insert(struct shim *shim, struct vm_area_struct *vma)
{
	unsigned long pgoff = vma->vm_pgoff;
	u64 offset = ((u64)pgoff << PAGE_SHIFT) - SHIM_DMA;
	struct shim_buffer *buffer;
	int ret;

	if (shim_is_gone(shim))
		return -ENODEV;
	buffer = xa_load(&shim->dma.handles, offset >> SHIM_BUFFER_SHIFT);
	if (!buffer || !buffer->cpu)
		return -EINVAL;

	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	/* dma_mmap_coherent() takes vm_pgoff as the offset in the buffer. */
	vma->vm_pgoff = (offset & ((1ULL << SHIM_BUFFER_SHIFT) - 1)) >> PAGE_SHIFT;
	ret = dma_mmap_coherent(&shim->pdev->dev, vma, buffer->cpu,
				buffer->address, buffer->len);
	vma->vm_pgoff = pgoff;
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
 * Removes the pages from all mappings of coherent memory. Called with
 * open_lock held and gone set, so that no new mapping gets pages.
 *
 * An mmap() that found gone clear may have inserted pages into a mapping that
 * unmap_mapping_range() does not find yet. mmap() holds mmap_lock until the
 * mapping is linked, so taking mmap_lock once waits for it.
 */
void shim_dma_zap(struct shim *shim)
{
	if (!shim->mm)
		return;
	mmap_read_lock(shim->mm);
	mmap_read_unlock(shim->mm);
	unmap_mapping_range(shim->mapping, SHIM_DMA, SHIM_END - SHIM_DMA, 1);
}
