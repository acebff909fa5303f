/*
 * The message layer of Blue Gene/L on a core of the torus: active messages of any length between ranks.
 *
 * Names are those of the paper (G. Almási and others, "MPI on BlueGene/L: Designing an Efficient General
 * Purpose Messaging Solution for a Large Cellular System", 2003). A rank is a core of the machine: twice
 * the number of its node, plus the core. One thread at a time uses a layer; a second one
 * gets -EBUSY, and so does a callback.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_BGL_H
#define NICFORGE_BGL_H

/* Generated from the module `bgl`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Length of the longest message in bytes.
 */
#define BGL_MAX_MESSAGE 268435456

/*
 Number of bytes of the match information.
 */
#define BGL_INFORMATION 16

/*
 Action of a decision: the message is discarded.
 */
#define BGL_DISCARD 0

/*
 Action of a decision: the message is received into memory of the program.
 */
#define BGL_RECEIVE 1

/*
 Action of a decision: the program decides later, by bgl_decide.
 */
#define BGL_LATER 2

/*
 The message layer of an opened core.
 */
typedef struct bgl_layer bgl_layer;

/*
 Options of a layer. All zero is the default.
 */
typedef struct bgl_options {
  /*
   Length in bytes of the longest message with the eager protocol, at least 224; 0 for 1024.
   */
  uint32_t eager;
  /*
   Length in bytes of the longest message with the mid-size protocol, at least `eager`; 0 for
   16384, or `eager` if that is more.
   */
  uint32_t mid_size;
} bgl_options;

/*
 A message that has begun to arrive.
 */
typedef struct bgl_arrival {
  /*
   Number that identifies the message until its recvdone. It is not 0.
   */
  uint64_t message;
  /*
   Length of the message in bytes.
   */
  size_t length;
  /*
   The sender's rank.
   */
  uint32_t source;
  /*
   The sender's match information.
   */
  uint8_t information[BGL_INFORMATION];
} bgl_arrival;

/*
 A program's decision about a message.
 */
typedef struct bgl_disposition {
  /*
   For BGL_RECEIVE: the memory that the message is copied to, just before recvdone. It must be
   valid until recvdone or bgl_close. NULL is allowed if `capacity` is 0.
   */
  void *memory;
  /*
   For BGL_RECEIVE: bytes of the memory. The rest of a longer message is discarded.
   */
  size_t capacity;
  /*
   BGL_DISCARD, BGL_RECEIVE or BGL_LATER.
   */
  uint32_t action;
} bgl_disposition;

/*
 The end of a message that was presented by recvnew.
 */
typedef struct bgl_received {
  /*
   The number of its bgl_arrival, which is not valid any more.
   */
  uint64_t message;
  /*
   Length of the message in bytes.
   */
  size_t length;
  /*
   Bytes of the message that are in the memory: fewer than `length` if the memory was shorter.
   0 if the message was discarded or has failed.
   */
  size_t stored;
  /*
   The memory of the decision, or NULL if there is none.
   */
  void *memory;
  /*
   The sender's rank.
   */
  uint32_t source;
  /*
   0, or a negative error number:
   - -ECONNRESET: the sender's process has ended.

   After these errors the message was discarded, because recvnew's decision was impossible:
   - -EINVAL: it had an unknown action, or a capacity that no memory has;
   - -EFAULT: its memory was NULL, and its capacity was not 0;
   - -ENOMEM: the library has no memory for the message.
   */
  int32_t error;
  /*
   The sender's match information.
   */
  uint8_t information[BGL_INFORMATION];
} bgl_received;

/*
 The end of a message that was posted.
 */
typedef struct bgl_sent {
  /*
   The cookie of bgl_postsend.
   */
  uint64_t cookie;
  /*
   The receiver's rank.
   */
  uint32_t destination;
  /*
   0, or -ECONNRESET if the receiver's process has ended. 0 means that the card has all
   packets, not that they have arrived.
   */
  int32_t error;
} bgl_sent;

/*
 The callbacks of a program: the paper's three. None of the functions may be NULL.

 bgl_advance, bgl_wait, bgl_check_peers and bgl_decide call them in the calling thread. A
 callback must return: it must neither jump out nor throw an exception. What it is given is valid
 until it returns. A call for the layer from a callback returns -EBUSY, except bgl_interrupt. A
 program that answers a message notes the answer, and posts it after the call.
 */
typedef struct bgl_callbacks {
  /*
   The first argument of each callback. The library does not access it.
   */
  void *user;
  /*
   A message has begun to arrive. The callback stores its decision in `*disposition`, whose
   action is BGL_DISCARD at first. Messages of a sender are presented in the order in which
   they were posted.
   */
  void (*recvnew)(void *user, const struct bgl_arrival *arrival, struct bgl_disposition *disposition);
  /*
   A message has ended that was presented by recvnew: it was received or discarded, or it has
   failed.
   */
  void (*recvdone)(void *user, const struct bgl_received *received);
  /*
   A message has ended that was posted.
   */
  void (*senddone)(void *user, const struct bgl_sent *sent);
} bgl_callbacks;

/*
 Counters of a layer, since it was opened.
 */
typedef struct bgl_counters {
  /*
   Messages whose packets have all been sent.
   */
  uint64_t messages_sent;
  /*
   Messages that were received or discarded completely.
   */
  uint64_t messages_received;
  /*
   Packets that were sent, of all kinds.
   */
  uint64_t packets_sent;
  /*
   Packets that were received, with those that were dropped.
   */
  uint64_t packets_received;
  /*
   Packets that were stored until their message could be received.
   */
  uint64_t packets_stored;
  /*
   Packets that carried nothing but credit.
   */
  uint64_t credits_sent;
  /*
   Acknowledgements that were sent.
   */
  uint64_t acknowledgements_sent;
  /*
   Packets that violate the protocol. They were dropped.
   */
  uint64_t malformed;
  /*
   Packets from processes that had ended. They were dropped.
   */
  uint64_t stale;
  /*
   Times that the card had no room for a packet.
   */
  uint64_t stalls;
  /*
   Connections that ended because the peer's process was gone.
   */
  uint64_t peers_lost;
} bgl_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *bgl_last_error(void);

/*
 Opens the message layer of the core at `socket` (a socket's path, vfio:BDF or shim:PATH), or,
 when that is NULL, of the first one in the environment variable NICFORGE_SOCKET: the paper's
 Init. It contacts no peer. `options` may be NULL. `*callbacks` is copied. Returns 0 and stores
 the handle in `*layer`, or returns a negative error number:
 - -EFAULT: `callbacks`, one of its functions or `layer` is NULL;
 - -EINVAL: the options contradict each other;
 - -ENXIO: the device is not a core of a torus;
 - others as the device gives them, for example -ENOENT without a socket.

 # Safety
 `socket` and `options` are NULL or valid; `callbacks` and `layer` are valid. The functions of
 `*callbacks` do what bgl_callbacks says, and can be called until bgl_close.
 */
int32_t bgl_open(const char *socket,
                 const struct bgl_options *options,
                 const struct bgl_callbacks *callbacks,
                 struct bgl_layer **layer);

/*
 Closes a layer. Messages that are in progress end without a callback. Packets of others may be
 lost, unless bgl_has_sent_all has returned 1 after the last bgl_postsend. Returns 0, or -EBUSY
 during a call for this layer, for example in a callback: the layer then remains open. NULL is
 allowed.

 # Safety
 `layer` is NULL or a handle. After 0 it is not used any more.
 */
int32_t bgl_close(struct bgl_layer *layer);

/*
 Returns this rank, which is twice the number of its node plus the core, or a negative error
 number.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_rank(const struct bgl_layer *layer);

/*
 Returns the number of ranks of the machine, two for each node, or a negative error number.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_ranks(const struct bgl_layer *layer);

/*
 Returns 1 if a rank's core has a process, 0 if it has none, or a negative error number:
 -EADDRNOTAVAIL if there is no such rank. The call makes a slow access to the card.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_is_up(const struct bgl_layer *layer, uint32_t rank);

/*
 Waits until a rank's core has a process, for at most `timeout_ms` milliseconds; 0 means no
 limit. The layer does not advance meanwhile, so the call belongs before the first message.
 Returns 0, or a negative error number:
 - -ETIMEDOUT: the time limit has passed;
 - -EINTR: bgl_interrupt has ended the wait;
 - -EADDRNOTAVAIL: there is no such rank.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_wait_for_peer(const struct bgl_layer *layer, uint32_t rank, uint64_t timeout_ms);

/*
 Posts a message of `length` bytes to rank `destination`, with BGL_INFORMATION bytes of match
 information. Its first packets are sent at once if there is room. The data are copied, so their
 memory is free when the call returns. `data` may be NULL if `length` is 0. Calls no callback.

 On success it returns 0, and senddone is called with `cookie` later. On failure nothing was
 posted, and it returns a negative error number:
 - -EADDRNOTAVAIL: there is no such rank;
 - -ECONNREFUSED: the rank has no process now;
 - -EMSGSIZE: the message is longer than BGL_MAX_MESSAGE;
 - -ENOMEM: there is no memory for the copy;
 - -EFAULT: a pointer is NULL;
 - -EBUSY: a call for this layer is in progress.

 # Safety
 `layer` is NULL or a handle; `information` has BGL_INFORMATION readable bytes, and `data` has
 `length`.
 */
int32_t bgl_postsend(const struct bgl_layer *layer,
                     uint32_t destination,
                     const uint8_t *information,
                     const void *data,
                     size_t length,
                     uint64_t cookie);

/*
 Takes the packets that have arrived, and sends what can be sent. It does a bounded amount of
 work, and calls the callbacks of what has happened. A program calls it often, also while it only
 sends: acknowledgements and credits move there. Returns the number of packets that were taken or
 sent, or a negative error number: -ENODEV if the device is gone.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_advance(const struct bgl_layer *layer);

/*
 Advances until a callback was called in this call, for at most `timeout_ms` milliseconds; 0
 means no limit. Now and then it checks for peers that are gone, as bgl_check_peers. Returns the
 number of callbacks that were called, at least 1, or a negative error number:
 - -ETIMEDOUT: the time limit has passed;
 - -EINTR: bgl_interrupt has ended the wait;
 - as bgl_advance.

 An error of this call ends no message.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_wait(const struct bgl_layer *layer, uint64_t timeout_ms);

/*
 Sets or clears interruption. While `on`, present and later calls of bgl_wait and
 bgl_wait_for_peer for this layer end with -EINTR. Any thread and any callback may call it.
 Returns 0, or -EFAULT if `layer` is NULL.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_interrupt(const struct bgl_layer *layer, bool on);

/*
 Decides about a message for which recvnew has decided BGL_LATER. What has arrived of it is
 received at once, so recvdone may be called before this call returns. BGL_LATER leaves the
 message postponed. Returns 0, or a negative error number:
 - -EBADF: no such message is postponed: its number is wrong, it was decided about, or it has
   failed;
 - -EINVAL: the decision has an unknown action, or a capacity that no memory has;
 - -EFAULT: a pointer is NULL;
 - -ENOMEM: there is no memory for the message.

 After an error a postponed message remains postponed.

 # Safety
 `layer` is NULL or a handle. `disposition` is valid, and its memory does what bgl_disposition
 says.
 */
int32_t bgl_decide(const struct bgl_layer *layer,
                   uint64_t message,
                   const struct bgl_disposition *disposition);

/*
 Ends the connections with processes that are gone. Messages in progress with them end with
 -ECONNRESET, after all that these processes had sent was received. The call makes a slow access
 to the card. Returns the number of connections that were ended, or a negative error number.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_check_peers(const struct bgl_layer *layer);

/*
 Returns 1 if all posted messages have ended, nothing is due to any peer, and the torus has all
 packets; else 0, or a negative error number. A program calls bgl_advance until it returns 1
 before it closes the layer.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_has_sent_all(const struct bgl_layer *layer);

/*
 Begins to drain the connections, for a checkpoint: messages that have begun are completed, and
 no others begin until bgl_end_drain. Messages may still be posted. Returns 0, or a negative
 error number.

 All ranks take part in a checkpoint:
 - Each rank calls this function, and then bgl_advance until bgl_is_drained returns 1. It decides
   about the messages that it has postponed, because their senders wait for them.
 - Each rank enters a barrier by other means than this layer, and advances until it leaves it.
   Then no packet is on its way that any rank needs, and the rank takes its checkpoint.
 - Each rank calls bgl_end_drain after another barrier.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_begin_drain(const struct bgl_layer *layer);

/*
 Returns 1 if all messages that had begun are complete at their receivers, else 0, or a negative
 error number.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_is_drained(const struct bgl_layer *layer);

/*
 Lets messages begin again after bgl_begin_drain. Returns 0, or a negative error number.

 # Safety
 `layer` is NULL or a handle.
 */
int32_t bgl_end_drain(const struct bgl_layer *layer);

/*
 Stores the counters of a layer in `*counters`. Returns 0, or a negative error number.

 # Safety
 `layer` is NULL or a handle; `counters` is valid.
 */
int32_t bgl_statistics(const struct bgl_layer *layer, struct bgl_counters *counters);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_BGL_H */
