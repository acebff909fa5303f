// SPDX-License-Identifier: GPL-2.0
/*
 * Accesses to the function by the kernel: pread() and pwrite() of registers,
 * and reads of the heartbeat.
 */
#include <linux/io.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "internal.h"

/* Maps a BAR into the kernel. Called with state held for writing. */
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

void shim_bar_unmap(struct shim *shim, struct shim_bar *bar)
{
	if (bar->io)
		pci_iounmap(shim->pdev, bar->io);
	bar->io = NULL;
}

/*
 * Takes state for reading, with the function present and the BAR mapped into
 * the kernel. On an error, state is not held.
 */
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

/* Loads in one access. @width is 1, 2, 4 or 8, and @at is aligned to it. */
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

/* Stores in one access; the width is as in shim_bar_load(). */
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

/* Loads from the configuration space in one access of 1, 2 or 4 bytes. */
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

/*
 * Reads @value from a register, or writes it to one, in one access. A read of
 * all ones checks the function, and fails with -ENODEV if it does not answer.
 */
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

	/* A read from an absent function returns all ones. */
	if (*value == GENMASK_ULL(8 * width - 1, 0) &&
	    !shim_check_presence(shim))
		return -ENODEV;
	return 0;
}

/*
 * Returns the width of the widest aligned access at @offset that is at most
 * @max_width and touches no more than the next @left bytes.
 */
static unsigned int shim_width(u64 offset, size_t left, unsigned int max_width)
{
	unsigned int width = max_width;

	while (width > left || offset & (width - 1))
		width /= 2;
	return width;
}

/*
 * Checks a transfer at file offset @at. Stores the number of its region, and
 * the width of the widest access that the region allows.
 */
static int shim_check_transfer(struct shim *shim, loff_t at, size_t len,
			       bool write, u32 *index, unsigned int *max_width)
{
	u64 offset = SHIM_OFFSET_IN_REGION(at);
	const struct shim_bar *bar;

	if (at < (1LL << SHIM_REGION_SHIFT) || at >= SHIM_DMA)
		return -EINVAL;

	*index = SHIM_OFFSET_REGION(at);
	*max_width = 4;
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
		*max_width = 8;
	return 0;
}

/*
 * Reads registers to @to, or writes them from @from. The other one is NULL.
 * Returns the number of bytes transferred, or an error if there are none.
 */
static ssize_t shim_transfer(struct shim *shim, char __user *to,
			     const char __user *from, size_t len, loff_t at)
{
	u64 offset = SHIM_OFFSET_IN_REGION(at);
	unsigned int max_width;
	size_t done = 0;
	u32 index;
	int ret;

	ret = shim_check_transfer(shim, at, len, from, &index,
				  &max_width);
	while (!ret && done < len) {
		unsigned int width = shim_width(offset + done, len - done,
						max_width);
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

/*
 * Reads the low half of the heartbeat. It lies in a page of memory that the
 * device writes: the load has no side effects and does not wait for the device.
 * Returns false if there is no heartbeat, or if the function is gone or reads
 * as all ones.
 */
bool shim_read_heartbeat(struct shim *shim, u32 *beat)
{
	int bar = shim->heartbeat_bar;

	if (bar < 0 || shim_bar_lock(shim, bar))
		return false;
	*beat = ioread32(shim->bars[bar].io + shim->heartbeat_at);
	up_read(&shim->state);
	return *beat != U32_MAX;
}
