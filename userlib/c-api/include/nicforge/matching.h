/*
 * Messages with tags between the ranks of a parallel program, over the EXTOLL card, the Message Unit
 * of Blue Gene/Q or the torus of Blue Gene/L.
 *
 * An endpoint is used by one thread at a time.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_MATCHING_H
#define NICFORGE_MATCHING_H

/* Generated from the module `matching`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 In place of a source, for receives: any rank.
 */
#define MATCHING_ANY_SOURCE -1

/*
 In place of `ignore`, for receives: any tag.
 */
#define MATCHING_ANY_TAG 18446744073709551615ull

/*
 The context of the messages of matching_barrier. Sends and receives of it fail with -EINVAL.
 */
#define MATCHING_BARRIER_CONTEXT 16383

/*
 An opened rank.
 */
typedef struct matching_endpoint matching_endpoint;

/*
 Options of an endpoint. All zero is the default.
 */
typedef struct matching_options {
  /*
   Length in bytes of the longest message that is sent eagerly; 0 for 2048.
   */
  uint32_t eager_threshold;
  /*
   Bytes that messages without a receive may take, for each other rank; 0 for 65536, or 32
   times eager_threshold if that is more. A message takes 128 bytes and those of its data,
   rounded up to 128. All ranks need the same value.
   */
  uint32_t window;
  /*
   Time limit of each call in milliseconds; 0 for no limit.
   */
  uint64_t timeout_ms;
  /*
   Bytes by which the windows of all ranks together grow while a receive waits for a message
   that stands behind others; 0 for 64 MiB. One rank has half of them at most. Without room
   there, all that wait get -ENOBUFS.
   */
  uint64_t window_pool;
} matching_options;

/*
 Description of a message that was received or sent.
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
   Bytes sent, or bytes in the buffer.
   */
  uint64_t size;
} matching_status;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *matching_last_error(void);

/*
 Opens the rank of this program, which `nicforge run` has started, and waits until all ranks have
 come. The program's device decides whether messages go over the EXTOLL card, the Message Unit of
 Blue Gene/Q or the torus of Blue Gene/L. `options` may be NULL. Returns 0 and stores the handle
 in `*endpoint`, or returns a negative error number.

 # Safety
 `options` is NULL or valid; `endpoint` is valid.
 */
int32_t matching_open(const struct matching_options *options, struct matching_endpoint **endpoint);

/*
 Closes an endpoint: its requests end, and it is gone for the other ranks. NULL is allowed.

 # Safety
 `endpoint` is NULL or a handle that is not used any more.
 */
void matching_close(struct matching_endpoint *endpoint);

/*
 Returns this rank, from 0, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_rank(const struct matching_endpoint *endpoint);

/*
 Returns the number of ranks, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_size(const struct matching_endpoint *endpoint);

/*
 Starts a send of `size` bytes to rank `to`. Returns 0 and stores a number for the request in
 `*request`, or returns a negative error number. MATCHING_BARRIER_CONTEXT gives -EINVAL.

 # Safety
 `endpoint` is NULL or a handle. `data` has `size` readable bytes, which are not written until
 the request is complete or the endpoint closed. `request` is valid.
 */
int32_t matching_isend(const struct matching_endpoint *endpoint,
                       uint32_t to,
                       uint32_t context,
                       uint64_t tag,
                       const void *data,
                       size_t size,
                       uint64_t *request);

/*
 Starts a receive of up to `size` bytes from rank `from` or MATCHING_ANY_SOURCE. Bits of the tag
 that are set in `ignore` are not compared; MATCHING_ANY_TAG sets all of them. Returns 0 and
 stores a number for the request in `*request`, or returns a negative error number.
 MATCHING_BARRIER_CONTEXT gives -EINVAL.

 # Safety
 `endpoint` is NULL or a handle. `data` has `size` writable bytes, which nothing else accesses
 until the request is complete or the endpoint closed. `request` is valid.
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
 Waits until a request is complete. Returns 0, or a negative error number.

 After these errors the request is still outstanding and its buffer in use. The caller can wait
 for it again:
 - -ETIMEDOUT: the time limit has passed;
 - -EINTR: matching_interrupt has ended the wait;
 - -EBUSY: another thread is in a call for this endpoint;
 - -EIO: the endpoint as a whole has failed; buffers stay in use until matching_close.

 After these errors the request is over and its buffer free:
 - -EMSGSIZE: the message was longer than the buffer, which holds the beginning of the message;
 - -ECANCELED: matching_cancel has cancelled the request;
 - -ECONNRESET: the other rank is gone;
 - -EPROTO: the other rank has violated the protocol;
 - -EREMOTEIO: the data of a rendezvous message could not be fetched;
 - -ENOBUFS: the window is full, and its pool too (the options window and window_pool): the
   message that a receive waits for stands behind too many others. Or too many messages of this
   rank to itself wait.

 These errors leave every request as it is:
 - -EFAULT: `endpoint` is NULL;
 - -EBADF: `request` is no outstanding request of this endpoint.

 `status` may be NULL; it is written when the request is over.

 # Safety
 `endpoint` is NULL or a handle; `status` is NULL or valid.
 */
int32_t matching_wait(const struct matching_endpoint *endpoint,
                      uint64_t request,
                      struct matching_status *status);

/*
 As matching_wait, without waiting: makes some progress, and returns 1 when the request is
 complete, else 0. Errors are those of matching_wait, except -ETIMEDOUT and -EINTR.

 # Safety
 As matching_wait.
 */
int32_t matching_test(const struct matching_endpoint *endpoint,
                      uint64_t request,
                      struct matching_status *status);

/*
 Cancels a receive that has not matched, or a send of which nothing has left. Returns 1 when it
 has cancelled the request, which then completes with -ECANCELED; else 0, or a negative error
 number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_cancel(const struct matching_endpoint *endpoint, uint64_t request);

/*
 Sends, and waits until the data can be written again. Returns 0, or a negative error number:
 - -ETIMEDOUT, -EINTR: nothing was sent;
 - -EINPROGRESS: the time limit has passed or the wait was interrupted, but a part has left; the
   data stays in use until matching_close;
 - -EBUSY: nothing was started;
 - -EADDRNOTAVAIL: there is no rank `to`; nothing was sent;
 - -EINVAL: `context` is MATCHING_BARRIER_CONTEXT, or no memory has `size` bytes;
 - -EFAULT: `endpoint` is NULL, or `data` is NULL and `size` is not 0;
 - all others as for matching_wait.

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
 Receives a message, and waits for it. Returns 0, or a negative error number:
 - -EADDRNOTAVAIL: there is no rank `from`;
 - -EINVAL: `from` is negative but not MATCHING_ANY_SOURCE, `context` is
   MATCHING_BARRIER_CONTEXT, or no memory has `size` bytes;
 - all others as for matching_wait and matching_send.

 `status` may be NULL.

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
 Sets or clears interruption. While `on`, present and later waits for this endpoint end with
 -EINTR, those of matching_barrier within a tenth of a second. Any thread may call it. Returns 0,
 or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_interrupt(const struct matching_endpoint *endpoint, bool on);

/*
 Makes progress. A program that makes no other call for long should call it. Returns 0, or a
 negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_progress(const struct matching_endpoint *endpoint);

/*
 Waits until all ranks have called it, for example before they close. After a time-out
 (-ETIMEDOUT) or an interruption (-EINTR), the next call continues the same barrier. After any
 other error, every later call fails. Returns 0, or a negative error number.

 # Safety
 `endpoint` is NULL or a handle.
 */
int32_t matching_barrier(const struct matching_endpoint *endpoint);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_MATCHING_H */
