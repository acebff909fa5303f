/*
 * The EXTOLL card: VELO and RMA of one VPID. A port is used by one thread at a time.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_EXTOLL_H
#define NICFORGE_EXTOLL_H

/* Generated from the module `extoll`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <nicforge/rma.h>
#include <nicforge/velo.h>

/*
 A VPID of a card, for VELO and RMA together.
 */
typedef struct nicforge_extoll nicforge_extoll;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *nicforge_extoll_last_error(void);

/*
 Opens the VPID at `socket` (a socket's path, vfio:BDF or shim:PATH), or, when that is NULL, the
 first one in the environment variable NICFORGE_SOCKET. Returns 0 and stores the handle in
 `*extoll`, or returns a negative error number.

 # Safety
 `socket` is NULL or valid; `extoll` is valid.
 */
int32_t nicforge_extoll_open(const char *socket, struct nicforge_extoll **extoll);

/*
 Closes the VPID. Ports opened on it keep the device until they are closed. NULL is allowed.

 # Safety
 `extoll` is NULL or a handle that is not used any more.
 */
void nicforge_extoll_close(struct nicforge_extoll *extoll);

/*
 As velo_open, on an opened VPID. A VPID has at most one VELO port: a second call returns -EBUSY.
 Another thread may use the VPID's RMA.

 # Safety
 `extoll` is a handle; `options` is NULL or valid; `port` is valid.
 */
int32_t velo_open_on(const struct nicforge_extoll *extoll, const velo_options *options, velo_port **port);

/*
 As rma_open, on an opened VPID. A VPID has at most one RMA port: a second call returns -EBUSY.
 Another thread may use the VPID's VELO.

 # Safety
 `extoll` is a handle; `options` is NULL or valid; `port` is valid.
 */
int32_t rma_open_on(const struct nicforge_extoll *extoll, const rma_options *options, rma_port **port);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_EXTOLL_H */
