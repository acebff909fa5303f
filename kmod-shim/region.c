// SPDX-License-Identifier: GPL-2.0
/*
 * Registers and BAR mappings.
 *
 * A region is accessed by pread() and pwrite(), or mapped. What may be mapped
 * is known from the BARs' sizes, from where the MSI-X table lies (never
 * mapped, nor accessed: who writes it makes the function write anywhere), and
 * from the attachment capability, which names the BAR that only the device
 * writes.
 *
 * Caching: an address is uncached or write-combining for everybody at a time,
 * because the processors' behaviour is undefined otherwise, and because
 * vmf_insert_pfn() asks which it is. So a BAR has one kind as long as it is
 * mapped, and the kernel's own mapping follows it. Only memory can be
 * write-combining: a prefetchable BAR, or one that the attachment capability
 * calls memory. That one may have 32 bits, which PCI Express has no prefetchable
 * BARs of; the bit tells bridges what they may do, and they do not more than
 * forward what the processor has combined.
 */
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/pci.h>
#include <linux/stddef.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "nicforge_hwi.h"
#include "internal.h"

/* ---- What there is ---- */

/* Takes the pages of [offset, offset + len) out of a BAR's areas. */
static void shim_areas_cut(struct shim_bar *bar, u64 offset, u64 len)
{
	struct nicforge_shim_area old[NICFORGE_SHIM_MAX_AREAS];
	u64 from = round_down(offset, PAGE_SIZE);
	u64 to = round_up(offset + len, PAGE_SIZE);
	u32 count = bar->area_count;
	u32 i;

	memcpy(old, bar->areas, sizeof(old));
	bar->area_count = 0;
	for (i = 0; i < count; i++) {
		u64 start = old[i].offset;
		u64 end = start + old[i].len;

		if (start < min(end, from))
			bar->areas[bar->area_count++] = (struct nicforge_shim_area) {
				.offset = start,
				.len = min(end, from) - start,
			};
		if (max(start, to) < end)
			bar->areas[bar->area_count++] = (struct nicforge_shim_area) {
				.offset = max(start, to),
				.len = end - max(start, to),
			};
	}
}

static void shim_bar_is_memory(struct shim_bar *bar)
{
	bar->flags |= NICFORGE_SHIM_REGION_MEMORY;
	if (bar->flags & NICFORGE_SHIM_REGION_MMAP)
		bar->flags |= NICFORGE_SHIM_REGION_WC;
}

static void shim_bar_init(struct shim *shim, int index)
{
	struct pci_dev *pdev = shim->pdev;
	struct shim_bar *bar = &shim->bars[index];
	unsigned long flags = pci_resource_flags(pdev, index);

	bar->size = pci_resource_len(pdev, index);
	if (!bar->size || !(flags & (IORESOURCE_MEM | IORESOURCE_IO))) {
		bar->size = 0;
		return;
	}
	bar->flags = NICFORGE_SHIM_REGION_READ | NICFORGE_SHIM_REGION_WRITE;
	if (flags & IORESOURCE_IO) {
		bar->flags |= NICFORGE_SHIM_REGION_PORTS;
		return;
	}
	bar->areas[0].len = bar->size;
	bar->area_count = 1;
	/* What may share a page with another function is not mapped. */
	if (bar->size >= PAGE_SIZE && !(bar->size >> SHIM_REGION_SHIFT))
		bar->flags |= NICFORGE_SHIM_REGION_MMAP;
	if (flags & IORESOURCE_PREFETCH)
		shim_bar_is_memory(bar);
}

static void shim_cut_msix(struct shim *shim)
{
	struct pci_dev *pdev = shim->pdev;
	int at = pdev->msix_cap;
	int count = pci_msix_vec_count(pdev);
	u32 table, pending;

	if (!at || count <= 0)
		return;
	if (pci_read_config_dword(pdev, at + PCI_MSIX_TABLE, &table) ||
	    pci_read_config_dword(pdev, at + PCI_MSIX_PBA, &pending))
		return;
	if ((table & PCI_MSIX_TABLE_BIR) < NICFORGE_SHIM_REGION_BARS)
		shim_areas_cut(&shim->bars[table & PCI_MSIX_TABLE_BIR],
			       table & PCI_MSIX_TABLE_OFFSET,
			       (u64)count * PCI_MSIX_ENTRY_SIZE);
	if ((pending & PCI_MSIX_PBA_BIR) < NICFORGE_SHIM_REGION_BARS)
		shim_areas_cut(&shim->bars[pending & PCI_MSIX_PBA_BIR],
			       pending & PCI_MSIX_PBA_OFFSET,
			       round_up(count, 64) / 8);
}

#define ATTACHMENT(field) \
	offsetof(struct nicforge_pci_attachment_capability, field)

/* The BARs that are memory. The one with the mirror only the device writes. */
static void shim_find_attachment(struct shim *shim)
{
	struct pci_dev *pdev = shim->pdev;
	u8 at = pci_find_capability(pdev, PCI_CAP_ID_VNDR);
	int i;

	for (; at; at = pci_find_next_capability(pdev, at, PCI_CAP_ID_VNDR)) {
		u8 len = 0, kind = 0, version = 0, mirror = 0xff, memory = 0;

		pci_read_config_byte(pdev, at + ATTACHMENT(len), &len);
		pci_read_config_byte(pdev, at + ATTACHMENT(kind), &kind);
		pci_read_config_byte(pdev, at + ATTACHMENT(version), &version);
		pci_read_config_byte(pdev, at + ATTACHMENT(mirror_bar), &mirror);
		pci_read_config_byte(pdev, at + ATTACHMENT(memory_bars), &memory);
		if (kind != NICFORGE_PCI_CAP_KIND_ATTACHMENT ||
		    version != NICFORGE_PCI_CAP_VERSION ||
		    len < sizeof(struct nicforge_pci_attachment_capability))
			continue;
		shim->info_flags |= NICFORGE_SHIM_INFO_ATTACHMENT;
		if (mirror < NICFORGE_SHIM_REGION_BARS)
			shim->bars[mirror].flags &= ~NICFORGE_SHIM_REGION_WRITE;
		for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++)
			if (memory & BIT(i) && shim->bars[i].area_count)
				shim_bar_is_memory(&shim->bars[i]);
		return;
	}
}

void shim_regions_init(struct shim *shim)
{
	int i;

	for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++)
		shim_bar_init(shim, i);
	shim_cut_msix(shim);
	shim_find_attachment(shim);
}

int shim_get_region(struct shim *shim, struct nicforge_shim_region *region)
{
	u32 index = region->index;
	const struct shim_bar *bar;

	if (region->reserved)
		return -EINVAL;
	*region = (struct nicforge_shim_region) {
		.index = index,
		.offset = (u64)(index + 1) << SHIM_REGION_SHIFT,
	};
	if (index == NICFORGE_SHIM_REGION_CONFIG) {
		region->flags = NICFORGE_SHIM_REGION_READ;
		region->size = shim->pdev->cfg_size;
		return 0;
	}
	if (index >= NICFORGE_SHIM_REGION_BARS)
		return -EINVAL;
	bar = &shim->bars[index];
	region->flags = bar->flags;
	region->size = bar->size;
	if (bar->flags & NICFORGE_SHIM_REGION_WC)
		region->wc_offset = region->offset | SHIM_WC;
	if (bar->flags & NICFORGE_SHIM_REGION_MMAP) {
		region->area_count = bar->area_count;
		memcpy(region->areas, bar->areas, sizeof(region->areas));
	}
	return 0;
}

/* ---- Accesses ---- */

/* Whether all of [offset, offset + len) may be accessed or mapped. */
static bool shim_in_area(const struct shim_bar *bar, u64 offset, u64 len)
{
	u32 i;

	for (i = 0; i < bar->area_count; i++) {
		const struct nicforge_shim_area *area = &bar->areas[i];

		if (offset >= area->offset && len <= area->len &&
		    offset - area->offset <= area->len - len)
			return true;
	}
	return false;
}

/* The kernel's mapping of a BAR. Called with state held for writing. */
static int shim_bar_map(struct shim *shim, int index)
{
	struct shim_bar *bar = &shim->bars[index];

	if (shim->gone)
		return -ENODEV;
	if (!bar->io)
		bar->io = bar->wc ? pci_iomap_wc(shim->pdev, index, 0) :
				    pci_iomap(shim->pdev, index, 0);
	return bar->io ? 0 : -ENOMEM;
}

static void shim_bar_unmap(struct shim *shim, struct shim_bar *bar)
{
	if (bar->io)
		pci_iounmap(shim->pdev, bar->io);
	bar->io = NULL;
}

/* Takes state for reading, with the BAR's kernel mapping there. */
static int shim_bar_lock(struct shim *shim, int index)
{
	int ret;

	down_read(&shim->state);
	if (shim->gone) {
		up_read(&shim->state);
		return -ENODEV;
	}
	if (index == NICFORGE_SHIM_REGION_CONFIG || shim->bars[index].io)
		return 0;
	up_read(&shim->state);
	down_write(&shim->state);
	ret = shim_bar_map(shim, index);
	if (ret) {
		up_write(&shim->state);
		return ret;
	}
	downgrade_write(&shim->state);
	return 0;
}

/* One access of the hardware, width 1, 2, 4 or 8 and aligned. */
static u64 shim_bar_load(void __iomem *at, unsigned int width)
{
	switch (width) {
	case 1:
		return ioread8(at);
	case 2:
		return ioread16(at);
	case 4:
		return ioread32(at);
	default:
		return readq(at);
	}
}

static void shim_bar_store(void __iomem *at, unsigned int width, u64 value)
{
	switch (width) {
	case 1:
		iowrite8(value, at);
		break;
	case 2:
		iowrite16(value, at);
		break;
	case 4:
		iowrite32(value, at);
		break;
	default:
		writeq(value, at);
		break;
	}
}

static int shim_config_load(struct pci_dev *pdev, int at, unsigned int width,
			    u64 *value)
{
	u32 dword = 0;
	u16 word = 0;
	u8 byte = 0;
	int ret;

	switch (width) {
	case 1:
		ret = pci_read_config_byte(pdev, at, &byte);
		*value = byte;
		break;
	case 2:
		ret = pci_read_config_word(pdev, at, &word);
		*value = word;
		break;
	default:
		ret = pci_read_config_dword(pdev, at, &dword);
		*value = dword;
		break;
	}
	return ret ? -EIO : 0;
}

/* One access: the value read, or to be written. */
static int shim_access(struct shim *shim, int index, u64 offset,
		       unsigned int width, u64 *value, bool write)
{
	int ret = shim_bar_lock(shim, index);

	if (ret)
		return ret;
	if (index == NICFORGE_SHIM_REGION_CONFIG)
		ret = shim_config_load(shim->pdev, offset, width, value);
	else if (write)
		shim_bar_store(shim->bars[index].io + offset, width, *value);
	else
		*value = shim_bar_load(shim->bars[index].io + offset, width);
	up_read(&shim->state);
	if (ret || write)
		return ret;
	/* All ones is what an absent function answers. */
	if (*value == GENMASK_ULL(8 * width - 1, 0) && !shim_look(shim))
		return -ENODEV;
	return 0;
}

/* The widest aligned access of what is left. */
static unsigned int shim_width(u64 offset, size_t left, unsigned int most)
{
	unsigned int width = most;

	while (width > left || offset & (width - 1))
		width /= 2;
	return width;
}

/* Checks a transfer: its region, and the widest access there is in it. */
static int shim_check_transfer(struct shim *shim, loff_t at, size_t len,
			       bool write, u32 *index, unsigned int *most)
{
	u64 offset = SHIM_OFFSET_IN_REGION(at);
	const struct shim_bar *bar;

	if (at < (1LL << SHIM_REGION_SHIFT) || at >= SHIM_DMA)
		return -EINVAL;
	*index = SHIM_OFFSET_REGION(at);
	*most = 4;
	if (*index == NICFORGE_SHIM_REGION_CONFIG) {
		if (write)
			return -EPERM;
		if (len > shim->pdev->cfg_size ||
		    offset > shim->pdev->cfg_size - len)
			return -EINVAL;
		return 0;
	}
	if (*index >= NICFORGE_SHIM_REGION_BARS)
		return -EINVAL;
	bar = &shim->bars[*index];
	if (len > bar->size || offset > bar->size - len)
		return -EINVAL;
	if (!(bar->flags & NICFORGE_SHIM_REGION_PORTS) &&
	    !shim_in_area(bar, offset, len))
		return -EPERM;
	if (write && !(bar->flags & NICFORGE_SHIM_REGION_WRITE))
		return -EPERM;
	if (!(bar->flags & NICFORGE_SHIM_REGION_PORTS))
		*most = 8;
	return 0;
}

static ssize_t shim_transfer(struct shim *shim, char __user *to,
			     const char __user *from, size_t len, loff_t at)
{
	u64 offset = SHIM_OFFSET_IN_REGION(at);
	unsigned int most;
	size_t done = 0;
	u32 index;
	int ret;

	ret = shim_check_transfer(shim, at, len, from, &index, &most);
	while (!ret && done < len) {
		unsigned int width = shim_width(offset + done, len - done, most);
		__le64 bytes = 0;
		u64 value;

		if (from) {
			if (copy_from_user(&bytes, from + done, width))
				return done ?: -EFAULT;
			value = le64_to_cpu(bytes);
		}
		ret = shim_access(shim, index, offset + done, width, &value, from);
		if (ret)
			break;
		if (to) {
			bytes = cpu_to_le64(value);
			if (copy_to_user(to + done, &bytes, width))
				return done ?: -EFAULT;
		}
		done += width;
		if (fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	return done ?: ret;
}

ssize_t shim_region_read(struct shim *shim, char __user *to, size_t len,
			 loff_t at)
{
	return shim_transfer(shim, to, NULL, len, at);
}

ssize_t shim_region_write(struct shim *shim, const char __user *from,
			  size_t len, loff_t at)
{
	return shim_transfer(shim, NULL, from, len, at);
}

/* ---- Mappings ---- */

/* Called with state held for writing. */
static int shim_bar_get(struct shim *shim, struct shim_bar *bar, int index,
			bool wc)
{
	int ret;

	if (bar->users && bar->wc != wc)
		return -EBUSY;
	if (wc && !bar->wc) {
		/* Ours is uncached; the next access makes another. */
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
 * Takes the pages out of all BAR mappings; the next touch faults. Called with
 * state held for writing.
 */
void shim_regions_zap(struct shim *shim)
{
	if (shim->mapping)
		unmap_mapping_range(shim->mapping, 0, SHIM_DMA, 1);
}

/* Called with state held for writing, when the function is gone. */
void shim_regions_teardown(struct shim *shim)
{
	int i;

	for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++)
		shim_bar_uncombine(shim, &shim->bars[i], i);
}
