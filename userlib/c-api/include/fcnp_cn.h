/*
 * FCNP on a compute node, with the original names of the calls (paper, IV). <fcnp_ion.h> is for
 * the I/O node. A source file includes one of them.
 *
 * Each call returns the number of bytes transferred, the lesser of both sides' sizes, or a negative
 * number from errno.h. nicforge_fcnp_last_error() then returns a text. Buffers and sizes that are
 * multiples of 16 are the fastest.
 */
#ifndef FCNP_CN_H
#define FCNP_CN_H

#ifdef FCNP_ION_H
#error "fcnp_cn.h and fcnp_ion.h name different functions alike: include one of them"
#endif

#include <nicforge/fcnp.h>

/* Opens the core that NICFORGE_SOCKET names. Returns 0 or a negative error number. */
static inline int fcnp_init(bool use_interrupts)
{
    return nicforge_fcnp_cn_init(use_interrupts);
}

/* Closes the core. */
static inline int fcnp_exit(void)
{
    return nicforge_fcnp_cn_exit();
}

/* Sends to the I/O node. */
static inline ptrdiff_t fcnp_write(const void *ptr, size_t size)
{
    return nicforge_fcnp_cn_write(ptr, size);
}

/* Receives from the I/O node. */
static inline ptrdiff_t fcnp_read(void *ptr, size_t size)
{
    return nicforge_fcnp_cn_read(ptr, size);
}

#endif
