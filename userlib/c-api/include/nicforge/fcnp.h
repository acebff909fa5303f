/*
 * FCNP, the Fast Collective Network Protocol of the Blue Gene/P, on nicforge's tree devices.
 *
 * Programs written for the machine include <fcnp_cn.h> (compute node) or <fcnp_ion.h> (I/O node)
 * instead, which give the calls their original names.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_FCNP_H
#define NICFORGE_FCNP_H

/* Generated from the module `fcnp`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 An endpoint of FCNP on a compute core.
 */
typedef struct nicforge_fcnp_compute nicforge_fcnp_compute;

/*
 An endpoint of FCNP on an I/O node.
 */
typedef struct nicforge_fcnp_io nicforge_fcnp_io;

/*
 Options of an endpoint. All fields 0 are the defaults.
 */
typedef struct nicforge_fcnp_options {
  /*
   I/O node: the daemon thread polls for a while, then sleeps until an interrupt. Otherwise it
   polls always.
   */
  bool use_interrupts;
  /*
   How long the daemon polls before it sleeps, in microseconds; 0 means 50.
   */
  uint64_t poll_us;
  /*
   How long a call may take, in milliseconds; 0 means no limit. On a compute core, a call that
   timed out or was cancelled continues for up to 100 ms to withdraw its request.
   */
  uint64_t timeout_ms;
  /*
   How long opening may take, in milliseconds; 0 means 10,000.
   */
  uint64_t open_timeout_ms;
} nicforge_fcnp_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *nicforge_fcnp_last_error(void);

/*
 Opens FCNP on the compute core at `socket` (a socket's path, vfio:BDF or shim:PATH). NULL means
 the first address in the environment variable NICFORGE_SOCKET. The call waits for the I/O node's
 process. `options` may be NULL. Returns 0 and the handle in `*compute`, or a negative error
 number.

 # Safety
 `socket` and `options` are NULL or valid; `compute` is valid.
 */
int32_t nicforge_fcnp_open_compute(const char *socket,
                                   const struct nicforge_fcnp_options *options,
                                   struct nicforge_fcnp_compute **compute);

/*
 Closes the endpoint. No other thread may be in a call: end such calls by
 nicforge_fcnp_compute_cancel, and wait until they have returned. NULL is allowed.

 # Safety
 `compute` is NULL or a handle that is not used any more.
 */
void nicforge_fcnp_close_compute(struct nicforge_fcnp_compute *compute);

/*
 Sends `size` bytes to the I/O node. Returns the number of bytes that both sides agreed on, or a
 negative error number. It returns -ECONNRESET once in each direction when the process on the I/O
 node was replaced since the last call.

 # Safety
 `compute` is a handle; `ptr` has `size` readable bytes.
 */
ptrdiff_t nicforge_fcnp_compute_write(const struct nicforge_fcnp_compute *compute,
                                      const void *ptr,
                                      size_t size);

/*
 Receives up to `size` bytes from the I/O node. Returns the number of bytes that both sides
 agreed on, or a negative error number. It returns -ECONNRESET as nicforge_fcnp_compute_write
 does.

 # Safety
 `compute` is a handle; `ptr` has `size` writable bytes.
 */
ptrdiff_t nicforge_fcnp_compute_read(const struct nicforge_fcnp_compute *compute, void *ptr, size_t size);

/*
 Returns the core's rank in its pset, by which the I/O node names it, or a negative error number.

 # Safety
 `compute` is a handle.
 */
ptrdiff_t nicforge_fcnp_compute_rank(const struct nicforge_fcnp_compute *compute);

/*
 Ends running and later calls with -ECANCELED while `on`. Returns 0 or a negative error number.

 # Safety
 `compute` is a handle.
 */
int32_t nicforge_fcnp_compute_cancel(const struct nicforge_fcnp_compute *compute, bool on);

/*
 Serves FCNP on the I/O node at `socket` (a socket's path, vfio:BDF or shim:PATH). NULL means the
 first address in the environment variable NICFORGE_SOCKET. `options` may be NULL. Returns 0 and
 the handle in `*io`, or a negative error number.

 # Safety
 `socket` and `options` are NULL or valid; `io` is valid.
 */
int32_t nicforge_fcnp_open_io(const char *socket,
                              const struct nicforge_fcnp_options *options,
                              struct nicforge_fcnp_io **io);

/*
 Closes the endpoint, as nicforge_fcnp_close_compute does. NULL is allowed.

 # Safety
 `io` is NULL or a handle that is not used any more.
 */
void nicforge_fcnp_close_io(struct nicforge_fcnp_io *io);

/*
 Sends `size` bytes to compute core `core`: 4 times its node's rank in the pset, plus the core of
 the node. Returns the number of bytes that both sides agreed on, or a negative error number.

 # Safety
 `io` is a handle; `ptr` has `size` readable bytes.
 */
ptrdiff_t nicforge_fcnp_io_write(const struct nicforge_fcnp_io *io,
                                 const void *ptr,
                                 size_t size,
                                 uint32_t core);

/*
 Receives up to `size` bytes from compute core `core`. Returns the number of bytes that both
 sides agreed on, or a negative error number.

 # Safety
 `io` is a handle; `ptr` has `size` writable bytes.
 */
ptrdiff_t nicforge_fcnp_io_read(const struct nicforge_fcnp_io *io, void *ptr, size_t size, uint32_t core);

/*
 Returns the number of compute cores in the pset, or a negative error number.

 # Safety
 `io` is a handle.
 */
ptrdiff_t nicforge_fcnp_io_cores(const struct nicforge_fcnp_io *io);

/*
 Ends running and later calls with -ECANCELED while `on`. Returns 0 or a negative error number.

 # Safety
 `io` is a handle.
 */
int32_t nicforge_fcnp_io_cancel(const struct nicforge_fcnp_io *io, bool on);

/*
 The paper's fcnp_init on a compute node: opens the core that NICFORGE_SOCKET names. Compute
 cores poll in either case.
 */
int32_t nicforge_fcnp_cn_init(bool use_interrupts);

/*
 The paper's fcnp_exit on a compute node. Running calls end with -ECANCELED.
 */
int32_t nicforge_fcnp_cn_exit(void);

/*
 The paper's fcnp_write on a compute node.

 # Safety
 `ptr` has `size` readable bytes.
 */
ptrdiff_t nicforge_fcnp_cn_write(const void *ptr, size_t size);

/*
 The paper's fcnp_read on a compute node.

 # Safety
 `ptr` has `size` writable bytes.
 */
ptrdiff_t nicforge_fcnp_cn_read(void *ptr, size_t size);

/*
 The paper's fcnp_init on an I/O node: serves the node that NICFORGE_SOCKET names.
 */
int32_t nicforge_fcnp_ion_init(bool use_interrupts);

/*
 The paper's fcnp_exit on an I/O node. Running calls end with -ECANCELED.
 */
int32_t nicforge_fcnp_ion_exit(void);

/*
 The paper's fcnp_write on an I/O node.

 # Safety
 `ptr` has `size` readable bytes.
 */
ptrdiff_t nicforge_fcnp_ion_write(const void *ptr, size_t size, uint32_t core);

/*
 The paper's fcnp_read on an I/O node.

 # Safety
 `ptr` has `size` writable bytes.
 */
ptrdiff_t nicforge_fcnp_ion_read(void *ptr, size_t size, uint32_t core);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_FCNP_H */
