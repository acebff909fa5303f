// SPDX-License-Identifier: GPL-2.0
/*
 * DMA buffers of process memory, which is pinned and mapped for the function.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "buffer.h"
#include "compat.h"

/* Number of pages that are pinned between two checks for signals. */
#define SHIM_PIN_PAGES 1024

static unsigned long shim_page_count(const struct shim_buffer *buffer)
{
	return buffer->len >> PAGE_SHIFT;
}

/*
 * Pins up to @count pages from @start on and returns how many.
 *
 * Memory that the function only reads is pinned for reading, so that the
 * process needs no write access to it. The function must still see later
 * stores of the process, so the pin must break COW in private mappings.
 * Otherwise a page that was not written yet is the zero page or a page of the
 * file: the first store replaces it, and the pin keeps the old page.
 */
static long shim_pin_some(enum dma_data_direction direction,
			  unsigned long start, unsigned long count,
			  struct page **pages)
{
	if (direction == DMA_TO_DEVICE)
		return shim_pin_for_reading(start, count, pages);
	return pin_user_pages_fast(start, count, FOLL_LONGTERM | FOLL_WRITE,
				   pages);
}

/* Pins all pages of a buffer. On an error, none is left pinned. */
static int shim_pin_pages(struct shim_buffer *buffer, u64 start)
{
	unsigned long count = shim_page_count(buffer);
	unsigned long done = 0;
	long ret = 0;

	while (done < count) {
		unsigned long some = min(count - done, SHIM_PIN_PAGES + 0UL);

		if (fatal_signal_pending(current))
			ret = -EINTR;
		else
			ret = shim_pin_some(buffer->direction,
					    start + (done << PAGE_SHIFT), some,
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
 * Returns true if the DMA API needs dma_sync_*() calls, as for a bounce buffer.
 * A process cannot make them, so the function would read stale data.
 * Behind an IOMMU the API bounces partial pages only, and dma_need_sync()
 * returns true for whole pages, too.
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

/* Maps the pinned pages of a buffer for the function. */
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
 * Lists the DMA addresses of a buffer, with adjacent segments merged. Writes
 * the first @room segments to @list and returns the number of all.
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

static void shim_unmap_pages(struct shim_buffer *buffer)
{
	struct device *dev = &buffer->shim->pdev->dev;

	dma_unmap_sgtable(dev, &buffer->table, buffer->direction, 0);
	sg_free_table(&buffer->table);
}

/* Maps pinned pages and adds the buffer. Called with dma.mutex held. */
static int shim_pin_add(struct shim_buffer *buffer,
			struct nicforge_shim_dma_pin *pin,
			struct nicforge_shim_dma_segment *list, u32 room)
{
	int ret;

	if (shim_is_gone(buffer->shim))
		return -ENODEV;
	ret = shim_map_pages(buffer);
	if (ret)
		return ret;

	pin->count = shim_segments(&buffer->table, list, room);
	ret = pin->count > room ? -ENOSPC : shim_buffer_add(buffer);
	if (ret) {
		shim_unmap_pages(buffer);
		return ret;
	}
	pin->address = list[0].address;
	pin->handle = buffer->handle;
	return 0;
}

/* Unmaps and unpins the memory of a buffer. Called with dma.mutex held. */
void shim_pin_end(struct shim_buffer *buffer)
{
	bool written = buffer->direction != DMA_TO_DEVICE;

	shim_unmap_pages(buffer);
	unpin_user_pages_dirty_lock(buffer->pages, shim_page_count(buffer),
				    written);
	kvfree(buffer->pages);
}

/* Returns an error if the request is invalid. */
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

/* Returns the direction for the accesses that a request allows. */
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

/*
 * Pins memory of the process and maps it for the function. Stores the handle
 * of the buffer, and the DMA addresses of its segments in the process's list.
 */
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

	/* From here on another thread may free the buffer. */
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
