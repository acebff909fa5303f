/*
 * FCNP on the I/O node, with the original names of the calls (paper, IV). <fcnp_cn.h> is for
 * compute nodes. A source file includes one of them.
 *
 * `core` is 4 times the rank of the compute node in the pset, plus the core of that node. Each call
 * returns the number of bytes transferred, the lesser of both sides' sizes, or a negative number
 * from errno.h. nicforge_fcnp_last_error() then returns a text. Many threads may make calls for
 * different cores at once.
 */
#ifndef FCNP_ION_H
#define FCNP_ION_H

#ifdef FCNP_CN_H
#error "fcnp_cn.h and fcnp_ion.h name different functions alike: include one of them"
#endif

#include <nicforge/fcnp.h>

/* Serves the I/O node that NICFORGE_SOCKET names. Returns 0 or a negative error number. */
static inline int fcnp_init(bool use_interrupts)
{
    return nicforge_fcnp_ion_init(use_interrupts);
}

/* Ends the service. */
static inline int fcnp_exit(void)
{
    return nicforge_fcnp_ion_exit();
}

/* Sends to a compute core. */
static inline ptrdiff_t fcnp_write(const void *ptr, size_t size, unsigned core)
{
    return nicforge_fcnp_ion_write(ptr, size, core);
}

/* Receives from a compute core. */
static inline ptrdiff_t fcnp_read(void *ptr, size_t size, unsigned core)
{
    return nicforge_fcnp_ion_read(ptr, size, core);
}

#endif
