// SPDX-License-Identifier: GPL-2.0
/*
 * nicforge-shim: PCI functions for programs in user space.
 *
 * This file has the module, its PCI driver, and the class device of each
 * function. include/uapi/nicforge_shim.h describes the interface, internal.h
 * the locks.
 */
#include <linux/cdev.h>
#include <linux/dma-mapping.h>
#include <linux/idr.h>
#include <linux/iommu.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "nicforge_hwi.h"
#include "internal.h"

/* Number of functions that can be bound at a time. */
#define SHIM_MINORS 256

static dev_t shim_devt;
static DEFINE_IDA(shim_minors);

/* ---- The device of class nicforge ---- */

static ssize_t pci_address_show(struct device *dev,
				struct device_attribute *attribute, char *text)
{
	struct shim *shim = container_of(dev, struct shim, dev);

	return sysfs_emit(text, "%s\n", pci_name(shim->pdev));
}
static DEVICE_ATTR_RO(pci_address);

static struct attribute *shim_attrs[] = {
	&dev_attr_pci_address.attr,
	NULL,
};
ATTRIBUTE_GROUPS(shim);

static struct class shim_class = {
	.name = "nicforge",
};

static void shim_device_release(struct device *dev)
{
	struct shim *shim = container_of(dev, struct shim, dev);

	ida_free(&shim_minors, MINOR(dev->devt));
	pci_dev_put(shim->pdev);
	kfree(shim);
}

/* ---- The PCI driver ---- */

/* Returns the NICFORGE_SHIM_INFO_* flags for resets and the IOMMU. */
static u32 shim_find_info(struct shim *shim)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(&shim->pdev->dev);
	u32 flags = 0;

	if (shim_can_reset(shim))
		flags |= NICFORGE_SHIM_INFO_RESET;
	if (domain && domain->type != IOMMU_DOMAIN_IDENTITY)
		flags |= NICFORGE_SHIM_INFO_IOMMU;
	return flags;
}

/* Makes the struct of a function. Its device is not visible yet. */
static struct shim *shim_create(struct pci_dev *pdev)
{
	struct shim *shim;
	int minor;

	minor = ida_alloc_max(&shim_minors, SHIM_MINORS - 1, GFP_KERNEL);
	if (minor < 0)
		return ERR_PTR(minor);
	shim = kzalloc(sizeof(*shim), GFP_KERNEL);
	if (!shim) {
		ida_free(&shim_minors, minor);
		return ERR_PTR(-ENOMEM);
	}

	device_initialize(&shim->dev);
	shim->dev.class = &shim_class;
	shim->dev.parent = &pdev->dev;
	shim->dev.devt = MKDEV(MAJOR(shim_devt), minor);
	shim->dev.groups = shim_groups;
	shim->dev.release = shim_device_release;
	shim->pdev = pci_dev_get(pdev);

	mutex_init(&shim->open_lock);
	init_rwsem(&shim->state);
	shim->heartbeat_bar = -1;
	shim->last_check = jiffies;
	shim->last_alive = jiffies;
	/* The first open() resets: an earlier driver may have used it. */
	shim->dirty = true;
	shim_irqs_init(shim);
	shim_dma_init(shim);
	return shim;
}

static int shim_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct device *dev = &pdev->dev;
	struct shim *shim;
	u32 dma_flag = NICFORGE_SHIM_INFO_DMA64;
	int ret;

	ret = pci_enable_device(pdev);
	if (ret)
		return ret;
	/* Exclusive, so that /dev/mem and sysfs cannot map the BARs, too. */
	ret = pci_request_regions_exclusive(pdev, KBUILD_MODNAME);
	if (ret)
		goto disable;

	if (dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64))) {
		dma_flag = 0;
		ret = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(32));
		if (ret)
			goto release;
	}
	dma_set_max_seg_size(dev, UINT_MAX);
	dma_set_seg_boundary(dev, ULONG_MAX);
	pci_intx(pdev, 0);
	pci_clear_master(pdev);

	shim = shim_create(pdev);
	if (IS_ERR(shim)) {
		ret = PTR_ERR(shim);
		goto release;
	}
	shim->info_flags = shim_find_info(shim) | dma_flag;
	shim_regions_init(shim);
	pci_set_drvdata(pdev, shim);

	cdev_init(&shim->cdev, &shim_operations);
	shim->cdev.owner = THIS_MODULE;
	ret = dev_set_name(&shim->dev, "nicforge%d", MINOR(shim->dev.devt));
	if (!ret)
		ret = cdev_device_add(&shim->cdev, &shim->dev);
	if (ret)
		goto put;
	pci_info(pdev, "%s\n", dev_name(&shim->dev));
	return 0;

put:
	put_device(&shim->dev);
release:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
	return ret;
}

static void shim_remove(struct pci_dev *pdev)
{
	struct shim *shim = pci_get_drvdata(pdev);

	shim_mark_gone(shim);
	cdev_device_del(&shim->cdev, &shim->dev);

	/* A concurrent last close finds gone set and drops open_lock soon. */
	mutex_lock(&shim->open_lock);
	shim_dma_zap(shim);
	mutex_unlock(&shim->open_lock);

	shim_irqs_teardown(shim);
	pci_clear_master(pdev);
	shim_dma_teardown(shim);
	down_write(&shim->state);
	shim_regions_teardown(shim);
	up_write(&shim->state);

	pci_release_regions(pdev);
	pci_disable_device(pdev);
	put_device(&shim->dev);
}

static const struct pci_device_id shim_ids[] = {
	{ PCI_DEVICE(NICFORGE_PCI_VENDOR_ID, PCI_ANY_ID) },
	{ PCI_DEVICE(NICFORGE_PCI_VENDOR_EXTOLL, NICFORGE_PCI_DEVICE_EXTOLL) },
	{}
};
MODULE_DEVICE_TABLE(pci, shim_ids);

static struct pci_driver shim_driver = {
	.name = "nicforge-shim",
	.id_table = shim_ids,
	.probe = shim_probe,
	.remove = shim_remove,
	.err_handler = &shim_error_handlers,
};

static int __init shim_init(void)
{
	int ret;

	ret = alloc_chrdev_region(&shim_devt, 0, SHIM_MINORS, "nicforge");
	if (ret)
		return ret;
	ret = class_register(&shim_class);
	if (ret)
		goto region;
	ret = pci_register_driver(&shim_driver);
	if (ret)
		goto class;
	return 0;

class:
	class_unregister(&shim_class);
region:
	unregister_chrdev_region(shim_devt, SHIM_MINORS);
	return ret;
}

static void __exit shim_exit(void)
{
	pci_unregister_driver(&shim_driver);
	class_unregister(&shim_class);
	unregister_chrdev_region(shim_devt, SHIM_MINORS);
	ida_destroy(&shim_minors);
}

module_init(shim_init);
module_exit(shim_exit);

MODULE_DESCRIPTION("PCI functions of nicforge for programs in user space");
MODULE_AUTHOR("the nicforge maintainers");
MODULE_LICENSE("GPL");
