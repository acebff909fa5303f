// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of BARs in processes.
 *
 * All mappings of a BAR have the same caching mode, uncached or
 * write-combining. The behaviour of a processor is undefined if an address
 * has both, and on x86 vmf_insert_pfn() takes the mode from the reserved
 * memory type of the address. A BAR keeps its mode while a process has it
 * mapped. The kernel's mapping has the same mode.
 *
 * Only memory can be write-combining: a prefetchable BAR, or one that the
 * attachment capability lists as memory. The latter kind exists because PCI
 * Express has no prefetchable 32-bit BARs. Write-combining is safe without the
 * prefetchable bit. The bit concerns bridges, which do not merge writes to
 * other BARs, and which forward the writes that the processor has combined
 * unchanged.
 */
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/pci.h>

#include "compat.h"
#include "internal.h"

/* Adds a mapping of a BAR. Called with state held for writing. */
static int shim_bar_get(struct shim *shim, struct shim_bar *bar, int index,
			bool wc)
{
	int ret;

	if (bar->users && bar->wc != wc)
		return -EBUSY;
	if (wc && !bar->wc) {
		/* The kernel's mapping is uncached. Its next access remaps. */
		shim_bar_unmap(shim, bar);
		ret = arch_io_reserve_memtype_wc(pci_resource_start(shim->pdev, index),
						 bar->size);
		if (ret)
			return ret;
		bar->wc = true;
	}
	bar->users++;
	return 0;
}

/* Ends the kernel's mapping and the write-combining mode of a BAR. */
static void shim_bar_uncombine(struct shim *shim, struct shim_bar *bar,
			       int index)
{
	shim_bar_unmap(shim, bar);
	if (bar->wc)
		arch_io_free_memtype_wc(pci_resource_start(shim->pdev, index),
					bar->size);
	bar->wc = false;
}

static u32 shim_vma_bar(const struct vm_area_struct *vma)
{
	return SHIM_OFFSET_REGION((u64)vma->vm_pgoff << PAGE_SHIFT);
}

static void shim_bar_opened(struct vm_area_struct *vma)
{
	struct shim *shim = vma->vm_private_data;

	down_write(&shim->state);
	shim->bars[shim_vma_bar(vma)].users++;
	up_write(&shim->state);
}

static void shim_bar_closed(struct vm_area_struct *vma)
{
	struct shim *shim = vma->vm_private_data;
	u32 index = shim_vma_bar(vma);
	struct shim_bar *bar = &shim->bars[index];

	down_write(&shim->state);
	bar->users--;
	if (!bar->users && bar->wc)
		shim_bar_uncombine(shim, bar, index);
	up_write(&shim->state);
}

static vm_fault_t shim_bar_fault(struct vm_fault *vmf)
{
	struct shim *shim = vmf->vma->vm_private_data;
	u64 at = (u64)vmf->pgoff << PAGE_SHIFT;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	resource_size_t start;

	down_read(&shim->state);
	if (!shim->gone) {
		start = pci_resource_start(shim->pdev, SHIM_OFFSET_REGION(at));
		ret = vmf_insert_pfn(vmf->vma, vmf->address,
				     (start + SHIM_OFFSET_IN_REGION(at)) >> PAGE_SHIFT);
	}
	up_read(&shim->state);
	return ret;
}

static const struct vm_operations_struct shim_bar_mapping = {
	.open = shim_bar_opened,
	.close = shim_bar_closed,
	.fault = shim_bar_fault,
};

/* Prepares a mapping of a BAR; page faults insert its pages. */
int shim_region_mmap(struct shim *shim, struct vm_area_struct *vma)
{
	u64 at = (u64)vma->vm_pgoff << PAGE_SHIFT;
	u64 len = vma->vm_end - vma->vm_start;
	bool wc = at & SHIM_WC;
	u32 index = SHIM_OFFSET_REGION(at);
	struct shim_bar *bar;
	int ret;

	if (index >= NICFORGE_SHIM_REGION_BARS)
		return -EINVAL;

	bar = &shim->bars[index];
	if (!(bar->flags & (wc ? NICFORGE_SHIM_REGION_WC :
				 NICFORGE_SHIM_REGION_MMAP)))
		return -EINVAL;
	if (!shim_in_area(bar, SHIM_OFFSET_IN_REGION(at), len))
		return -EINVAL;
	if (!(bar->flags & NICFORGE_SHIM_REGION_WRITE)) {
		if (vma->vm_flags & VM_WRITE)
			return -EACCES;
		vm_flags_clear(vma, VM_MAYWRITE);
	}

	down_write(&shim->state);
	ret = shim->gone ? -ENODEV : shim_bar_get(shim, bar, index, wc);
	up_write(&shim->state);
	if (ret)
		return ret;

	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP |
			  VM_DONTCOPY);
	vma->vm_page_prot = wc ? pgprot_writecombine(vma->vm_page_prot) :
				 pgprot_noncached(vma->vm_page_prot);
	vma->vm_private_data = shim;
	vma->vm_ops = &shim_bar_mapping;
	return 0;
}

/*
 * Removes the pages from all BAR mappings, so that the next access faults.
 * Called with state held for writing.
 */
void shim_regions_zap(struct shim *shim)
{
	if (shim->mapping)
		unmap_mapping_range(shim->mapping, 0, SHIM_DMA, 1);
}

/*
 * Ends the kernel's mappings of all BARs. Called with state held for writing
 * and gone set.
 */
void shim_regions_teardown(struct shim *shim)
{
	int i;

	for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++)
		shim_bar_uncombine(shim, &shim->bars[i], i);
}
