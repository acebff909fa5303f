/*
 * The EXTOLL card: VELO and RMA of one VPID.
 *
 * Link with -lnicforge_extoll_c instead of the libraries of nicforge_velo.h and nicforge_rma.h: it has all their calls. A port is used by one thread at
 * a time.
 */

#ifndef NICFORGE_EXTOLL_H
#define NICFORGE_EXTOLL_H

/* Generated from src/lib.rs: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <nicforge_rma.h>
#include <nicforge_velo.h>

/*
 A VPID of a card, for VELO and RMA together.
 */
typedef struct nicforge_extoll nicforge_extoll;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Text of the calling thread's last error, of any call of this library; empty when there was none. Valid until its next error.
 */
const char *nicforge_extoll_last_error(void);

/*
 Opens the VPID at `socket` (a socket's path, vfio:BDF or shim:PATH), or the first in the environment variable NICFORGE_SOCKET when that is NULL.
 Gives 0 and the handle in `*extoll`, or a negative error number.

 # Safety
 `socket` is NULL or valid; `extoll` is valid.
 */
int32_t nicforge_extoll_open(const char *socket,
                             struct nicforge_extoll **extoll);

/*
 Closes it. Ports that were opened on it keep the device until they are closed. NULL is allowed.

 # Safety
 `extoll` is NULL or a handle that is not used any more.
 */
void nicforge_extoll_close(struct nicforge_extoll *extoll);

/*
 As velo_open, on a VPID that is open already. VELO can be open once on it: -EBUSY otherwise. It may be used by another thread than RMA.

 # Safety
 `extoll` is a handle; `options` is NULL or valid; `port` is valid.
 */
int32_t velo_open_on(const struct nicforge_extoll *extoll,
                     const velo_options *options,
                     velo_port **port);

/*
 As rma_open, on a VPID that is open already. RMA can be open once on it: an error otherwise. It may be used by another thread than VELO.

 # Safety
 `extoll` is a handle; `options` is NULL or valid; `port` is valid.
 */
int32_t rma_open_on(const struct nicforge_extoll *extoll,
                    const rma_options *options,
                    rma_port **port);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_EXTOLL_H */
