// SPDX-License-Identifier: GPL-2.0
/*
 * File operations of the character device.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "internal.h"

/* Sets or clears bus mastering, without which the function does no DMA. */
static int shim_set_master(struct shim *shim, bool on)
{
	int ret = 0;

	down_read(&shim->state);
	if (shim->gone)
		ret = -ENODEV;
	else if (on)
		pci_set_master(shim->pdev);
	else
		pci_clear_master(shim->pdev);
	up_read(&shim->state);
	return ret;
}

/* Opens the device for the calling process. Called with open_lock held. */
static int shim_open_locked(struct shim *shim, struct file *file)
{
	int ret;

	if (shim_is_gone(shim))
		return -ENODEV;
	if (shim->mm)
		return -EBUSY;

	if (shim->dirty) {
		ret = shim_reset(shim);
		if (ret && ret != -EOPNOTSUPP)
			return ret;
	}
	ret = shim_set_master(shim, true);
	if (ret)
		return ret;

	mmgrab(current->mm);
	shim->mm = current->mm;
	down_write(&shim->state);
	shim->dirty = true;
	shim->mapping = file->f_mapping;
	up_write(&shim->state);
	get_device(&shim->dev);
	file->private_data = shim;
	return 0;
}

static int shim_open(struct inode *inode, struct file *file)
{
	struct shim *shim = container_of(inode->i_cdev, struct shim, cdev);
	int ret;

	/* The user is an address space, and a kernel thread has none. */
	if (!current->mm)
		return -EPERM;
	ret = mutex_lock_interruptible(&shim->open_lock);
	if (ret)
		return ret;
	ret = shim_open_locked(shim, file);
	mutex_unlock(&shim->open_lock);
	return ret;
}

/*
 * The last close. No mapping is left, because each holds a reference to the
 * file. Interrupts and DMA must end before the memory is freed: a later write
 * of the function would hit memory that another user has got.
 */
static int shim_release(struct inode *inode, struct file *file)
{
	struct shim *shim = file->private_data;
	int ret;

	mutex_lock(&shim->open_lock);
	/* The function may have been used since RESET, which clears dirty. */
	down_write(&shim->state);
	shim->dirty = true;
	up_write(&shim->state);

	shim_irqs_teardown(shim);
	ret = shim_set_master(shim, false);
	if (!ret)
		ret = shim_reset(shim);
	/* The next open() resets a function that is still dirty. */
	if (ret && ret != -EOPNOTSUPP && ret != -ENODEV)
		pci_warn(shim->pdev, "not reset at close: %d\n", ret);
	shim_dma_teardown(shim);

	down_write(&shim->state);
	shim->mapping = NULL;
	up_write(&shim->state);
	mmdrop(shim->mm);
	shim->mm = NULL;
	mutex_unlock(&shim->open_lock);
	put_device(&shim->dev);
	return 0;
}

/*
 * Returns -EPERM in another address space than the one that opened the device,
 * and -ENODEV if the function is gone.
 */
static int shim_check_caller(struct shim *shim)
{
	if (current->mm != shim->mm)
		return -EPERM;
	return shim_is_gone(shim) ? -ENODEV : 0;
}

static ssize_t shim_read(struct file *file, char __user *to, size_t len,
			 loff_t *at)
{
	struct shim *shim = file->private_data;
	int ret = shim_check_caller(shim);

	if (ret)
		return ret;
	if (*at)
		return shim_region_read(shim, to, len, *at);
	return shim_irq_read(shim, to, len, file->f_flags & O_NONBLOCK);
}

static ssize_t shim_write(struct file *file, const char __user *from,
			  size_t len, loff_t *at)
{
	struct shim *shim = file->private_data;
	int ret = shim_check_caller(shim);

	if (ret)
		return ret;
	return shim_region_write(shim, from, len, *at);
}

static __poll_t shim_poll(struct file *file, poll_table *table)
{
	struct shim *shim = file->private_data;
	__poll_t events = 0;

	poll_wait(file, &shim->irqs.wait, table);
	shim_check_presence_rarely(shim);
	spin_lock_irq(&shim->irqs.lock);
	if (shim->irqs.count)
		events |= EPOLLIN | EPOLLRDNORM;
	spin_unlock_irq(&shim->irqs.lock);
	if (shim_is_gone(shim))
		events = EPOLLERR | EPOLLHUP;
	return events;
}

static int shim_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct shim *shim = file->private_data;
	int ret = shim_check_caller(shim);

	if (ret)
		return ret;
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;

	vm_flags_clear(vma, VM_MAYEXEC);
	if ((u64)vma->vm_pgoff << PAGE_SHIFT >= SHIM_DMA)
		return shim_dma_mmap(shim, vma);
	return shim_region_mmap(shim, vma);
}

static int shim_get_info(struct shim *shim, struct nicforge_shim_info *info)
{
	struct pci_dev *pdev = shim->pdev;

	*info = (struct nicforge_shim_info) {
		.version = NICFORGE_SHIM_VERSION,
		.flags = shim->info_flags,
		.vendor = pdev->vendor,
		.device = pdev->device,
		.subsystem_vendor = pdev->subsystem_vendor,
		.subsystem = pdev->subsystem_device,
		.class = pdev->class,
		.revision = pdev->revision,
		.domain = pci_domain_nr(pdev->bus),
		.bus = pdev->bus->number,
		.slot = PCI_SLOT(pdev->devfn),
		.function = PCI_FUNC(pdev->devfn),
		.numa_node = dev_to_node(&pdev->dev),
		.dma_quota = shim_dma_quota(),
	};
	down_read(&shim->state);
	info->resets = shim->resets;
	up_read(&shim->state);
	mutex_lock(&shim->dma.mutex);
	info->dma_used = shim->dma.used;
	mutex_unlock(&shim->dma.mutex);
	return 0;
}

/* Arguments of all ioctl() requests. */
union shim_argument {
	struct nicforge_shim_info info;
	struct nicforge_shim_region region;
	struct nicforge_shim_irq irq;
	struct nicforge_shim_irq_bind bind;
	struct nicforge_shim_irq_range range;
	struct nicforge_shim_dma_alloc alloc;
	struct nicforge_shim_dma_pin pin;
	struct nicforge_shim_dma_free free;
};

/* Carries out an ioctl() request on the kernel's copy of its argument. */
static int shim_call(struct shim *shim, unsigned int number,
		     union shim_argument *argument)
{
	switch (number) {
	case NICFORGE_SHIM_GET_INFO:
		return shim_get_info(shim, &argument->info);
	case NICFORGE_SHIM_GET_REGION:
		return shim_get_region(shim, &argument->region);
	case NICFORGE_SHIM_GET_IRQ:
		return shim_get_irq(shim, &argument->irq);
	case NICFORGE_SHIM_BIND_IRQ:
		return shim_bind_irq(shim, &argument->bind);
	case NICFORGE_SHIM_UNBIND_IRQ:
		return shim_unbind_irq(shim, &argument->range);
	case NICFORGE_SHIM_MASK_IRQ:
		return shim_mask_irq(shim, &argument->range, true);
	case NICFORGE_SHIM_UNMASK_IRQ:
		return shim_mask_irq(shim, &argument->range, false);
	case NICFORGE_SHIM_ALLOC_DMA:
		return shim_dma_alloc(shim, &argument->alloc);
	case NICFORGE_SHIM_PIN_DMA:
		return shim_dma_pin(shim, &argument->pin);
	case NICFORGE_SHIM_FREE_DMA:
		if (argument->free.reserved)
			return -EINVAL;
		return shim_dma_free(shim, argument->free.handle);
	case NICFORGE_SHIM_RESET:
		return shim_reset(shim);
	default:
		return -ENOTTY;
	}
}

static long shim_ioctl(struct file *file, unsigned int number,
		       unsigned long argument)
{
	struct shim *shim = file->private_data;
	void __user *user = (void __user *)argument;
	size_t size = _IOC_SIZE(number);
	union shim_argument copy = {};
	int ret = shim_check_caller(shim);

	if (ret)
		return ret;
	if (_IOC_TYPE(number) != NICFORGE_SHIM_IOCTL_TYPE || size > sizeof(copy))
		return -ENOTTY;
	if (_IOC_DIR(number) & _IOC_WRITE && copy_from_user(&copy, user, size))
		return -EFAULT;

	ret = shim_call(shim, number, &copy);
	/* PIN_DMA returns the number of segments also with -ENOSPC. */
	if (ret && !(ret == -ENOSPC && number == NICFORGE_SHIM_PIN_DMA))
		return ret;
	if (_IOC_DIR(number) & _IOC_READ && copy_to_user(user, &copy, size)) {
		if (!ret && number == NICFORGE_SHIM_ALLOC_DMA)
			shim_dma_free(shim, copy.alloc.handle);
		if (!ret && number == NICFORGE_SHIM_PIN_DMA)
			shim_dma_free(shim, copy.pin.handle);
		return -EFAULT;
	}
	return ret;
}

const struct file_operations shim_operations = {
	.owner = THIS_MODULE,
	.open = shim_open,
	.release = shim_release,
	.read = shim_read,
	.write = shim_write,
	.poll = shim_poll,
	.mmap = shim_mmap,
	.unlocked_ioctl = shim_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
