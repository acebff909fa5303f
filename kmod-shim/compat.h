/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between kernels, from 6.1 on. Each says which version changed
 * what; nothing else in this folder asks for the version.
 */
#ifndef NICFORGE_SHIM_COMPAT_H
#define NICFORGE_SHIM_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/version.h>

/* 6.3: vm_flags is changed through functions. */
#if KERNEL_VERSION(6, 3, 0) > LINUX_VERSION_CODE
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* 6.8: eventfd_signal() always adds 1. */
static inline void shim_eventfd_signal(struct eventfd_ctx *eventfd)
{
#if KERNEL_VERSION(6, 8, 0) > LINUX_VERSION_CODE
	eventfd_signal(eventfd, 1);
#else
	eventfd_signal(eventfd);
#endif
}

#endif /* NICFORGE_SHIM_COMPAT_H */
