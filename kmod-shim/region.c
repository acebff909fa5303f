// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: sizes, flags, and the areas that may be accessed and mapped.
 *
 * They follow from three sources: the BARs' sizes; the place of the MSI-X
 * table; and the attachment capability, which lists the BARs that are memory
 * and the BARs that only the device writes. The MSI-X table is excluded from
 * all areas, because a write to it can direct the function's MSI-X writes to
 * any address.
 */
#include <linux/pci.h>
#include <linux/stddef.h>

#include "nicforge_hwi.h"
#include "internal.h"

/* Returns true if [offset, offset + len) lies inside an area of the BAR. */
bool shim_in_area(const struct shim_bar *bar, u64 offset, u64 len)
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

/* Removes the pages of [offset, offset + len) from a BAR's areas. */
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

/* Marks a BAR as memory, which may be mapped write-combining. */
static void shim_bar_set_memory(struct shim_bar *bar)
{
	bar->flags |= NICFORGE_SHIM_REGION_MEMORY;
	if (bar->flags & NICFORGE_SHIM_REGION_MMAP)
		bar->flags |= NICFORGE_SHIM_REGION_WC;
}

/* Sets size, flags and areas of a BAR by what the PCI core knows of it. */
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
	/*
	 * A BAR smaller than a page may share its page with other functions.
	 * The layout of the file has 1 TiB for each region.
	 */
	if (bar->size >= PAGE_SIZE && !(bar->size >> SHIM_REGION_SHIFT))
		bar->flags |= NICFORGE_SHIM_REGION_MMAP;
	if (flags & IORESOURCE_PREFETCH)
		shim_bar_set_memory(bar);
}

/* Removes the MSI-X table and the pending bits from the areas of their BARs. */
static void shim_cut_msix(struct shim *shim)
{
	struct pci_dev *pdev = shim->pdev;
	int cap = pdev->msix_cap;
	int count = pci_msix_vec_count(pdev);
	u32 table, pending;

	if (!cap || count <= 0)
		return;
	if (pci_read_config_dword(pdev, cap + PCI_MSIX_TABLE, &table) ||
	    pci_read_config_dword(pdev, cap + PCI_MSIX_PBA, &pending))
		return;

	if ((table & PCI_MSIX_TABLE_BIR) < NICFORGE_SHIM_REGION_BARS)
		shim_areas_cut(&shim->bars[table & PCI_MSIX_TABLE_BIR],
			       table & PCI_MSIX_TABLE_OFFSET,
			       (u64)count * PCI_MSIX_ENTRY_SIZE);
	if ((pending & PCI_MSIX_PBA_BIR) < NICFORGE_SHIM_REGION_BARS)
		shim_areas_cut(&shim->bars[pending & PCI_MSIX_PBA_BIR],
			       pending & PCI_MSIX_PBA_OFFSET,
			       round_up(count, 64) / BITS_PER_BYTE);
}

#define ATTACHMENT(field) \
	offsetof(struct nicforge_pci_attachment_capability, field)

/*
 * Reads the attachment capability at @at: the BARs that are memory, the BARs
 * that only the device writes, and the place of the heartbeat.
 */
static void shim_read_attachment(struct shim *shim, u8 at)
{
	struct pci_dev *pdev = shim->pdev;
	/* A BAR that does not exist, and no BARs, if a read fails. */
	u8 mirror = 0xff, memory = 0, mirrored = 0;
	u32 page = 0;
	u64 beat;
	int i;

	pci_read_config_byte(pdev, at + ATTACHMENT(mirror_bar), &mirror);
	pci_read_config_dword(pdev, at + ATTACHMENT(mirror_offset), &page);
	pci_read_config_byte(pdev, at + ATTACHMENT(memory_bars), &memory);
	pci_read_config_byte(pdev, at + ATTACHMENT(mirrored_bars), &mirrored);
	shim->info_flags |= NICFORGE_SHIM_INFO_ATTACHMENT;

	for (i = 0; i < NICFORGE_SHIM_REGION_BARS; i++) {
		if (memory & BIT(i) && shim->bars[i].area_count)
			shim_bar_set_memory(&shim->bars[i]);
		if (mirrored & BIT(i) || i == mirror)
			shim->bars[i].flags &= ~NICFORGE_SHIM_REGION_WRITE;
	}

	if (mirror >= NICFORGE_SHIM_REGION_BARS)
		return;
	beat = (u64)page + NICFORGE_ATTACHMENT_MIRROR_HEARTBEAT;
	if (IS_ALIGNED(beat, sizeof(u64)) &&
	    shim_in_area(&shim->bars[mirror], beat, sizeof(u64))) {
		shim->heartbeat_bar = mirror;
		shim->heartbeat_at = beat;
	}
}

/* Looks for the attachment capability of nicforge's functions, and reads it. */
static void shim_find_attachment(struct shim *shim)
{
	struct pci_dev *pdev = shim->pdev;
	u8 at = pci_find_capability(pdev, PCI_CAP_ID_VNDR);

	for (; at; at = pci_find_next_capability(pdev, at, PCI_CAP_ID_VNDR)) {
		u8 len = 0, kind = 0, version = 0;

		pci_read_config_byte(pdev, at + ATTACHMENT(len), &len);
		pci_read_config_byte(pdev, at + ATTACHMENT(kind), &kind);
		pci_read_config_byte(pdev, at + ATTACHMENT(version), &version);
		if (kind == NICFORGE_PCI_CAP_KIND_ATTACHMENT &&
		    version == NICFORGE_PCI_CAP_VERSION &&
		    len >= sizeof(struct nicforge_pci_attachment_capability)) {
			shim_read_attachment(shim, at);
			return;
		}
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
