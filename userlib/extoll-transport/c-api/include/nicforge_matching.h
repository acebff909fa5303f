/*
 * Messages with tags between the ranks of a parallel program, over the EXTOLL card.
 *
 * An endpoint is used by one thread at a time. Link with -lnicforge_matching_c.
 */

#ifndef NICFORGE_MATCHING_H
#define NICFORGE_MATCHING_H

/* Generated from src/lib.rs: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 For receives: from any rank.
 */
#define MATCHING_ANY_SOURCE -1

/*
 Of a tag to receive, bits that are not compared: all.
 */
#define MATCHING_ANY_TAG 18446744073709551615ull

/*
 A rank.
 */
typedef struct matching_endpoint matching_endpoint;

/*
 How an endpoint behaves. All zero is the default.
 */
typedef struct matching_options {
  /*
   Bytes of the longest message that is sent eagerly; 0 for 2048.
   */
  uint32_t eager_threshold;
  /*
   How long a call may take, in milliseconds; 0 for ever.
   */
  uint64_t timeout_ms;
} matching_options;

/*
 A message, as its receiver sees it; of a send, what was sent.
 */
typedef struct matching_status {
  /*
   The other side's rank.
   */
  uint32_t rank;
  /*
   The context.
   */
  uint32_t context;
  /*
   The tag.
   */
  uint64_t tag;
  /*
   Bytes sent, or in the buffer.
   */
  uint64_t size;
} matching_status;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Text of the calling thread's last error; empty when there was none. Valid until its next error.
 */
const char *matching_last_error(void);

/*
 Opens the rank of this program, which `nicforge run` has started, and waits until all ranks have come. `options` may be NULL. Gives 0 and
 the handle in `*endpoint`, or a negative error number.

 # Safety
 `options` is NULL or valid; `endpoint` is valid.
 */
int32_t matching_open(const struct matching_options *options,
                      struct matching_endpoint **endpoint);

/*
 Closes it: its requests end, and the other ranks see this one gone. NULL is allowed.

 # Safety
 `endpoint` is NULL or a handle that is not used any more.
 */
void matching_close(struct matching_endpoint *endpoint);

/*
 This rank, from 0; or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_rank(const struct matching_endpoint *endpoint);

/*
 How many ranks there are; or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_size(const struct matching_endpoint *endpoint);

/*
 Starts a send of `size` bytes to rank `to`. Gives 0 and a number for it in `*request`, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle. `data` has `size` readable bytes, which nobody writes until the request is complete or the endpoint closed.
 `request` is valid.
 */
int32_t matching_isend(const struct matching_endpoint *endpoint,
                       uint32_t to,
                       uint32_t context,
                       uint64_t tag,
                       const void *data,
                       size_t size,
                       uint64_t *request);

/*
 Starts a receive of up to `size` bytes from rank `from` or MATCHING_ANY_SOURCE. Bits of the tag that are set in `ignore` are not compared. Gives
 0 and a number for it in `*request`, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle. `data` has `size` writable bytes, which nobody else touches until the request is complete or the endpoint closed.
 `request` is valid.
 */
int32_t matching_irecv(const struct matching_endpoint *endpoint,
                       int32_t from,
                       uint32_t context,
                       uint64_t tag,
                       uint64_t ignore,
                       void *data,
                       size_t size,
                       uint64_t *request);

/*
 Waits until a request is complete. Gives 0, or a negative error number.

 The request is still outstanding, its buffer in use, and it can be waited for again, after
 - -ETIMEDOUT: it took too long;
 - -EINTR: matching_interrupt has ended the wait;
 - -EBUSY: another thread is in a call for this endpoint;
 - -EIO: the endpoint as a whole has failed; buffers stay in use until matching_close.

 The request is over, and its buffer free, after
 - -EMSGSIZE: the message was longer than the buffer, which has its beginning;
 - -ECANCELED: matching_cancel has cancelled it;
 - -ECONNRESET: the other rank is gone; -EPROTO: it broke the protocol;
 - -EREMOTEIO: the data of a long message could not be fetched;
 - -ENOBUFS: too many messages of this rank to itself wait.

 Nothing was looked at after -EFAULT (`endpoint` is NULL) and -EBADF (`request` is no outstanding request of this endpoint). `status` may be NULL; it
 is written when the request is over.

 # Safety
 `endpoint` is NULL or a handle; `status` is NULL or valid.
 */
int32_t matching_wait(const struct matching_endpoint *endpoint,
                      uint64_t request,
                      struct matching_status *status);

/*
 As matching_wait, without waiting: makes some progress and gives 1 when the request is complete, 0 when it is not; errors are those of
 matching_wait, but for -ETIMEDOUT and -EINTR.

 # Safety
 As matching_wait.
 */
int32_t matching_test(const struct matching_endpoint *endpoint,
                      uint64_t request,
                      struct matching_status *status);

/*
 Cancels a receive that has no message, or a send of which nothing has left. Gives 1 when it did: the request then completes with -ECANCELED.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_cancel(const struct matching_endpoint *endpoint,
                        uint64_t request);

/*
 Sends, and waits until the data can be written again: 0, or a negative error number. -ETIMEDOUT, -EINTR: nothing was sent. -EINPROGRESS: it took too long
 or was interrupted as well, but some of it has left; the data stay in use until matching_close. -EBUSY: nothing was started. All others as
 matching_wait has them.

 # Safety
 As matching_isend.
 */
int32_t matching_send(const struct matching_endpoint *endpoint,
                      uint32_t to,
                      uint32_t context,
                      uint64_t tag,
                      const void *data,
                      size_t size);

/*
 Receives, and waits for it: 0, or a negative error number as matching_wait and matching_send have them. `status` may be NULL.

 # Safety
 As matching_irecv; `status` is NULL or valid.
 */
int32_t matching_recv(const struct matching_endpoint *endpoint,
                      int32_t from,
                      uint32_t context,
                      uint64_t tag,
                      uint64_t ignore,
                      void *data,
                      size_t size,
                      struct matching_status *status);

/*
 Ends the waits of other threads for this endpoint, and those that follow, with -EINTR (matching_barrier excepted), until it is called with false.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_interrupt(const struct matching_endpoint *endpoint,
                           bool on);

/*
 Makes progress, for programs that do something else for long. Gives 0, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_progress(const struct matching_endpoint *endpoint);

/*
 Returns when all ranks have called it: before they close, for one. Gives 0, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_barrier(const struct matching_endpoint *endpoint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_MATCHING_H */
