/*
 * The EXTOLL card: VELO and RMA of one VPID, and all that nicforge_velo.h and nicforge_rma.h have.
 *
 * Include this instead of them, and link with -lnicforge_extoll_c instead of their libraries. A port is used by one thread at a time.
 */

#ifndef NICFORGE_EXTOLL_H
#define NICFORGE_EXTOLL_H

/* Generated from src/lib.rs: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Bytes of an immediate put at most.
 */
#define RMA_MAX_IMMEDIATE 8

/*
 Bytes that one command moves at most; longer transfers are several.
 */
#define RMA_MAX_LENGTH 8388608

/*
 Who is notified: nobody, unless the command fails.
 */
#define RMA_NOTIFY_NONE 0

/*
 Who is notified: who posts the command, when it has ended.
 */
#define RMA_NOTIFY_REQUESTER 1

/*
 Who is notified: the target of a get, when its memory has been read.
 */
#define RMA_NOTIFY_RESPONDER 2

/*
 Who is notified: who has the data then. The target of a put, the requester of a get.
 */
#define RMA_NOTIFY_COMPLETER 4

/*
 What a command was: a put.
 */
#define RMA_PUT 1

/*
 What a command was: a get.
 */
#define RMA_GET 2

/*
 What a command was: an immediate put.
 */
#define RMA_IMMEDIATE_PUT 3

/*
 What became of a command: done.
 */
#define RMA_DONE 0

/*
 What became of a command: the own address is not registered, or the region ends before it.
 */
#define RMA_LOCAL_ADDRESS 1

/*
 What became of a command: the target's address is not registered, not the target's, or not for this. Nothing was moved.
 */
#define RMA_REMOTE_ADDRESS 2

/*
 What became of a command: nobody has the target VPID.
 */
#define RMA_NO_RECEIVER 3

/*
 What became of a command: memory of one side was withdrawn meanwhile. Some of it may have been moved.
 */
#define RMA_WITHDRAWN 4

/*
 What became of a command: it made no sense to the card.
 */
#define RMA_COMMAND 5

/*
 What became of a command: nothing came from its target for longer than the card's watchdog allows. It may be carried out yet, or not.
 */
#define RMA_TIMED_OUT 6

/*
 Bytes of a message at most, and of every buffer that receives one.
 */
#define VELO_MAX_MESSAGE 64

/*
 For the functions that take a tag to receive: any.
 */
#define VELO_ANY_TAG -1

/*
 What others may do with a region: get from it. Its owner may do both.
 */
#define RMA_READ 1

/*
 What others may do with a region: put to it.
 */
#define RMA_WRITE 2

/*
 A VPID of a card, for VELO and RMA together.
 */
typedef struct nicforge_extoll nicforge_extoll;

/*
 Memory that a card can reach.
 */
typedef struct rma_buffer rma_buffer;

/*
 RMA of a VPID of a card.
 */
typedef struct rma_port rma_port;

/*
 Registered memory.
 */
typedef struct rma_region rma_region;

/*
 A VPID of a card.
 */
typedef struct velo_port velo_port;

/*
 How a port behaves. All zero is the default.
 */
typedef struct velo_options {
  /*
   Without credits of connections: the card makes a sender wait whose receiver does not read. Both ends must agree.
   */
  bool no_flow_control;
  /*
   Calls that wait sleep until an interrupt when they have polled for a while. Otherwise they poll always.
   */
  bool use_interrupts;
  /*
   Slots of the receive ring, a power of two; 0 for what suits the network.
   */
  uint32_t slots;
  /*
   Messages of a connection that may be unread; 0 for 64.
   */
  uint32_t window;
  /*
   How long a call may take, in milliseconds; 0 for ever.
   */
  uint64_t timeout_ms;
} velo_options;

/*
 How a port behaves. All zero is the default.
 */
typedef struct rma_options {
  /*
   Entries of the notification queue, a power of two, 64 to 65536; 0 for 4096.
   */
  uint32_t entries;
  /*
   How long a wait polls before it sleeps, in microseconds; 0 for 50.
   */
  uint32_t poll_us;
} rma_options;

/*
 Whose memory commands reach. By rma_connect.
 */
typedef struct rma_target {
  /*
   The node.
   */
  uint32_t node;
  /*
   The VPID there.
   */
  uint16_t vpid;
} rma_target;

/*
 An entry of the notification queue.
 */
typedef struct rma_notification {
  /*
   This port's address in the command. As the requester of an immediate put: the data.
   */
  uint64_t address;
  /*
   Bytes of the command.
   */
  uint32_t length;
  /*
   The other side's node: the target's, for the requester; the requester's, for the others.
   */
  uint32_t node;
  /*
   The other side's VPID.
   */
  uint16_t vpid;
  /*
   As whom this port is told: RMA_NOTIFY_REQUESTER, RMA_NOTIFY_RESPONDER or RMA_NOTIFY_COMPLETER.
   */
  uint8_t role;
  /*
   What the command was: RMA_PUT, RMA_GET or RMA_IMMEDIATE_PUT.
   */
  uint8_t kind;
  /*
   What became of it: RMA_DONE, or one of the others.
   */
  uint8_t status;
} rma_notification;

/*
 A message that was received, without its data.
 */
typedef struct velo_message {
  /*
   The node that sent it.
   */
  uint32_t node;
  /*
   The VPID there.
   */
  uint16_t vpid;
  /*
   Its tag.
   */
  uint8_t tag;
  /*
   Its bytes, 8 to 64.
   */
  uint8_t size;
} velo_message;

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
                     const struct velo_options *options,
                     struct velo_port **port);

/*
 As rma_open, on a VPID that is open already. RMA can be open once on it: an error otherwise. It may be used by another thread than VELO.

 # Safety
 `extoll` is a handle; `options` is NULL or valid; `port` is valid.
 */
int32_t rma_open_on(const struct nicforge_extoll *extoll,
                    const struct rma_options *options,
                    struct rma_port **port);

/*
 Text of the calling thread's last error; empty when there was none. Valid until its next error.
 */
const char *rma_last_error(void);

/*
 Opens the VPID whose socket is `socket`, or the first in the environment variable NICFORGE_SOCKET when that is NULL. `options` may be
 NULL. Gives 0 and the handle in `*port`, or a negative error number.

 # Safety
 `socket` and `options` are NULL or valid; `port` is valid.
 */
int32_t rma_open(const char *socket,
                 const struct rma_options *options,
                 struct rma_port **port);

/*
 Closes it. A call that is on in another thread must have ended, or end by rma_cancel first. Buffers and regions stay until they are given
 back. NULL is allowed.

 # Safety
 `port` is NULL or a handle that is not used any more.
 */
void rma_close(struct rma_port *port);

/*
 The card's node id, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_node(const struct rma_port *port);

/*
 The VPID, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_vpid(const struct rma_port *port);

/*
 Whom to transfer with. Nothing is exchanged: whether somebody is there shows in the commands. 0 and the target in `*target`, or a negative
 error number.

 # Safety
 `port` is a handle; `target` is valid.
 */
int32_t rma_connect(const struct rma_port *port,
                    uint32_t node,
                    uint16_t vpid,
                    struct rma_target *target);

/*
 Posts a put: `length` bytes at this port's address `source` to the target's address `destination`. `who` is notified. Gives the number of commands
 that it took, one for each RMA_MAX_LENGTH, each with its notifications, or a negative error number.

 # Safety
 `port` is a handle.
 */
int64_t rma_put(const struct rma_port *port,
                struct rma_target target,
                uint64_t source,
                uint64_t destination,
                uint64_t length,
                uint32_t who);

/*
 Posts a get: `length` bytes at the target's address `source` to this port's address `destination`. As rma_put.

 # Safety
 `port` is a handle.
 */
int64_t rma_get(const struct rma_port *port,
                struct rma_target target,
                uint64_t source,
                uint64_t destination,
                uint64_t length,
                uint32_t who);

/*
 Posts an immediate put: 1 to RMA_MAX_IMMEDIATE bytes, which travel in the command, to the target's address `destination`. 0, or a negative error
 number.

 # Safety
 `port` is a handle; `data` has `size` readable bytes.
 */
int32_t rma_put_immediate(const struct rma_port *port,
                          struct rma_target target,
                          const void *data,
                          size_t size,
                          uint64_t destination,
                          uint32_t who);

/*
 Commands that were posted and have not ended, or a negative error number.

 # Safety
 `port` is a handle.
 */
int64_t rma_under_way(const struct rma_port *port);

/*
 Waits until every command that was posted has ended, well or not, for `timeout_ms` milliseconds or, with 0, for ever. 0, or a negative error
 number: -ETIMEDOUT, -ECANCELED.

 # Safety
 `port` is a handle.
 */
int32_t rma_drain(const struct rma_port *port,
                  uint64_t timeout_ms);

/*
 Looks for a notification and leaves it in the queue: 1 and the notification, 0 when there is none, or a negative error number: -EOVERFLOW, once, when
 some were lost because the queue was full, behind those that were not. `notification` may be NULL.

 # Safety
 `port` is a handle; `notification` is NULL or valid.
 */
int32_t rma_probe(const struct rma_port *port,
                  struct rma_notification *notification);

/*
 Waits for a notification and leaves it in the queue, for `timeout_ms` milliseconds or, with 0, for ever. 0 and the notification, or a negative error
 number: -ETIMEDOUT, -ECANCELED, and as rma_probe. `notification` may be NULL.

 # Safety
 As rma_probe.
 */
int32_t rma_wait(const struct rma_port *port,
                 uint64_t timeout_ms,
                 struct rma_notification *notification);

/*
 Frees the notification that rma_probe or rma_wait has shown, if there is one. 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_free(const struct rma_port *port);

/*
 Waits for a notification and takes it: rma_wait, then rma_free.

 # Safety
 As rma_probe.
 */
int32_t rma_next(const struct rma_port *port, uint64_t timeout_ms, struct rma_notification *notification);

/*
 While `on`, calls that wait end with -ECANCELED. From any thread. 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_cancel(const struct rma_port *port, bool on);

/*
 Text of the calling thread's last error; empty when there was none. Valid until its next error.
 */
const char *velo_last_error(void);

/*
 Opens the VPID at `socket` (a socket's path, vfio:BDF or shim:PATH), or the first in the environment variable
 NICFORGE_SOCKET when that is NULL. `options` may be NULL. Gives 0 and the handle in `*port`, or a negative error number.

 # Safety
 `socket` and `options` are NULL or valid; `port` is valid.
 */
int32_t velo_open(const char *socket,
                  const struct velo_options *options,
                  struct velo_port **port);

/*
 Closes it. A call that is on in another thread must have ended, or end by velo_cancel first. NULL is allowed.

 # Safety
 `port` is NULL or a handle that is not used any more.
 */
void velo_close(struct velo_port *port);

/*
 The card's node id, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_node(const struct velo_port *port);

/*
 The VPID, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_vpid(const struct velo_port *port);

/*
 Connects to a VPID of a node, and waits until somebody has it. Gives the number of the connection, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_connect(const struct velo_port *port,
                     uint32_t node,
                     uint16_t vpid);

/*
 Nothing more will be sent on a connection. 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_disconnect(const struct velo_port *port, int32_t connection);

/*
 Sends `size` bytes, a multiple of 8, 64 at most, with a tag of 0 to 14. Waits while the receiver has promised no more. 0, or a negative
 error number; -ECONNRESET when the receiver is gone.

 # Safety
 `port` is a handle; `data` has `size` readable bytes.
 */
int32_t velo_send(const struct velo_port *port,
                  int32_t connection,
                  uint8_t tag,
                  const void *data,
                  size_t size);

/*
 As velo_send, without waiting: -EAGAIN when it can't be sent now.

 # Safety
 As velo_send.
 */
int32_t velo_send_nb(const struct velo_port *port,
                     int32_t connection,
                     uint8_t tag,
                     const void *data,
                     size_t size);

/*
 Waits for the next message with a tag, or VELO_ANY_TAG. Others that arrive meanwhile are kept. Gives its size, or a negative error number.
 `message` may be NULL.

 # Safety
 `port` is a handle; `data` has VELO_MAX_MESSAGE writable bytes; `message` is NULL or valid.
 */
int32_t velo_recv(const struct velo_port *port,
                  int32_t tag,
                  void *data,
                  struct velo_message *message);

/*
 As velo_recv, without waiting: 0 when there is none.

 # Safety
 As velo_recv.
 */
int32_t velo_poll(const struct velo_port *port, int32_t tag, void *data, struct velo_message *message);

/*
 Answers those that connect, and takes credit that came. For programs that do something else for long. 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_progress(const struct velo_port *port);

/*
 While `on`, calls that wait end with -ECANCELED. From any thread. 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_cancel(const struct velo_port *port, bool on);

/*
 Memory that the card can reach: `size` bytes rounded up to whole pages of 4096, zeroed. Gives 0 and the handle in `*buffer`, or a
 negative error number.

 # Safety
 `port` is a handle; `buffer` is valid.
 */
int32_t rma_allocate(const struct rma_port *port,
                     size_t size,
                     struct rma_buffer **buffer);

/*
 Gives a buffer back. Its regions are of no use any more; commands that use them end with RMA_WITHDRAWN. NULL is allowed.

 # Safety
 `buffer` is NULL or a handle; neither it nor its memory is used any more.
 */
void rma_release(struct rma_buffer *buffer);

/*
 Where a buffer's memory is; NULL for a handle that is NULL. Others write to it by puts: read what was put when its notification has come.

 # Safety
 `buffer` is NULL or a handle.
 */
void *rma_buffer_memory(const struct rma_buffer *buffer);

/*
 Bytes of a buffer; 0 for NULL.

 # Safety
 `buffer` is NULL or a handle.
 */
size_t rma_buffer_size(const struct rma_buffer *buffer);

/*
 Registers `length` bytes at `offset` of a buffer of this port, both multiples of 4096. `access` says what others may do: RMA_READ, RMA_WRITE, both or
 neither. Gives 0 and the handle in `*region`, or a negative error number; -ENOMEM when the card refuses, with the reason in the text.

 # Safety
 `port` and `buffer` are handles; `region` is valid.
 */
int32_t rma_register(const struct rma_port *port,
                     const struct rma_buffer *buffer,
                     uint64_t offset,
                     uint64_t length,
                     uint32_t access,
                     struct rma_region **region);

/*
 Deregisters a region and gives its handle back, whatever the result: when this returns 0 nothing of it is touched any more. NULL is allowed. A
 negative error number when the card did not know it any more.

 # Safety
 `region` is NULL or a handle that is not used any more.
 */
int32_t rma_deregister(struct rma_region *region);

/*
 A region's first network address, which partners are told; 0 for NULL. Those of its other bytes follow.

 # Safety
 `region` is NULL or a handle.
 */
uint64_t rma_address(const struct rma_region *region);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_EXTOLL_H */
