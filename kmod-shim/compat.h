/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between kernel versions, from 6.1 on. All checks of the version
 * in this module are here; each names the version that made the change.
 */
#ifndef NICFORGE_SHIM_COMPAT_H
#define NICFORGE_SHIM_COMPAT_H

#include <linux/eventfd.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/version.h>

/*
 * 6.2: FOLL_LONGTERM without FOLL_WRITE breaks COW of private mappings before
 * it pins. Earlier kernels need FOLL_WRITE for that, and FOLL_FORCE, because
 * the process may have mapped the memory read-only.
 */
#if KERNEL_VERSION(6, 2, 0) > LINUX_VERSION_CODE
static inline long shim_pin_for_reading(unsigned long start,
					unsigned long count,
					struct page **pages)
{
	unsigned int flags = FOLL_LONGTERM;
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	long ret;

	ret = mmap_read_lock_killable(mm);
	if (ret)
		return ret;
	ret = -EFAULT;
	start = untagged_addr(start);
	vma = vma_lookup(mm, start);
	if (vma && vma->vm_flags & VM_READ) {
		if (is_cow_mapping(vma->vm_flags))
			flags |= FOLL_WRITE | FOLL_FORCE;
		/* The next mapping may need other flags. */
		count = min(count, (vma->vm_end - start) >> PAGE_SHIFT);
		ret = pin_user_pages(start, count, flags, pages, NULL);
	}
	mmap_read_unlock(mm);
	return ret;
}
#else
static inline long shim_pin_for_reading(unsigned long start,
					unsigned long count,
					struct page **pages)
{
	return pin_user_pages_fast(start, count, FOLL_LONGTERM, pages);
}
#endif

/* 6.3: vm_flags is const; functions change it. */
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
