/*
 * RMA of the EXTOLL card: puts and gets between registered memory of processes, and notifications.
 *
 * A port is used by one thread at a time.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_RMA_H
#define NICFORGE_RMA_H

/* Generated from the module `rma`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Longest immediate put in bytes.
 */
#define RMA_MAX_IMMEDIATE 8

/*
 Maximum number of bytes that one command moves. Longer transfers take several commands.
 */
#define RMA_MAX_LENGTH 8388608

/*
 Access of other processes to a region: they may get from it. The owner may both read and write.
 */
#define RMA_READ 1

/*
 Access of other processes to a region: they may put to it.
 */
#define RMA_WRITE 2

/*
 Notifies no process, unless the command fails.
 */
#define RMA_NOTIFY_NONE 0

/*
 Notifies the process that posts the command, when the command has ended.
 */
#define RMA_NOTIFY_REQUESTER 1

/*
 Notifies the target of a get, when its memory has been read.
 */
#define RMA_NOTIFY_RESPONDER 2

/*
 Notifies the process that receives the data: the target of a put, the requester of a get.
 */
#define RMA_NOTIFY_COMPLETER 4

/*
 Kind of a command: put.
 */
#define RMA_PUT 1

/*
 Kind of a command: get.
 */
#define RMA_GET 2

/*
 Kind of a command: immediate put.
 */
#define RMA_IMMEDIATE_PUT 3

/*
 Status of a command: carried out.
 */
#define RMA_DONE 0

/*
 Status of a command: the requester's own address is not registered, or the region ends before
 the end of the command.
 */
#define RMA_LOCAL_ADDRESS 1

/*
 Status of a command: the target's address is not registered, belongs to another VPID, or is not
 registered for this access. Nothing was moved.
 */
#define RMA_REMOTE_ADDRESS 2

/*
 Status of a command: no process has opened the target VPID.
 */
#define RMA_NO_RECEIVER 3

/*
 Status of a command: memory of one side was deregistered or unmapped before the command ended.
 Some of the data may have been moved.
 */
#define RMA_WITHDRAWN 4

/*
 Status of a command: the card rejected it as invalid.
 */
#define RMA_COMMAND 5

/*
 Status of a command: its target sent nothing for longer than the card's watchdog allows. The
 command may still be carried out, or not.
 */
#define RMA_TIMED_OUT 6

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
 Options of a port. All zero is the default.
 */
typedef struct rma_options {
  /*
   Entries of the notification queue, a power of two, 64 to 65536; 0 for 4096.
   */
  uint32_t entries;
  /*
   Time that a call polls before it sleeps, in microseconds; 0 for 50.
   */
  uint32_t poll_us;
} rma_options;

/*
 The other side of commands, from rma_connect.
 */
typedef struct rma_target {
  /*
   The node.
   */
  uint32_t node;
  /*
   The VPID on that node.
   */
  uint16_t vpid;
} rma_target;

/*
 An entry of the notification queue.
 */
typedef struct rma_notification {
  /*
   This port's address in the command. For the requester of an immediate put, the data instead.
   */
  uint64_t address;
  /*
   Length of the command in bytes.
   */
  uint32_t length;
  /*
   The other side's node: the target's for the requester, the requester's for the other roles.
   */
  uint32_t node;
  /*
   The other side's VPID.
   */
  uint16_t vpid;
  /*
   This port's part in the command: RMA_NOTIFY_REQUESTER, RMA_NOTIFY_RESPONDER or
   RMA_NOTIFY_COMPLETER.
   */
  uint8_t role;
  /*
   Kind of the command: RMA_PUT, RMA_GET or RMA_IMMEDIATE_PUT.
   */
  uint8_t kind;
  /*
   Result of the command: RMA_DONE, or one of the other statuses.
   */
  uint8_t status;
} rma_notification;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *rma_last_error(void);

/*
 Opens the VPID whose socket is `socket`, or, when that is NULL, the first one in the environment
 variable NICFORGE_SOCKET. `options` may be NULL. Returns 0 and stores the handle in `*port`, or
 returns a negative error number.

 # Safety
 `socket` and `options` are NULL or valid; `port` is valid.
 */
int32_t rma_open(const char *socket, const struct rma_options *options, struct rma_port **port);

/*
 Closes a port. Calls of other threads must have ended; rma_cancel ends those that wait. Buffers
 and regions stay until they are released. NULL is allowed.

 # Safety
 `port` is NULL or a handle that is not used any more.
 */
void rma_close(struct rma_port *port);

/*
 Returns the card's node id, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_node(const struct rma_port *port);

/*
 Returns the VPID, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_vpid(const struct rma_port *port);

/*
 Determines the target for a VPID. Nothing is exchanged with the VPID; only a command shows
 whether a process has opened it. Returns 0 and stores the target in `*target`, or returns a
 negative error number.

 # Safety
 `port` is a handle; `target` is valid.
 */
int32_t rma_connect(const struct rma_port *port, uint32_t node, uint16_t vpid, struct rma_target *target);

/*
 Posts a put: `length` bytes from this port's address `source` to the target's address
 `destination`. `notify` is a mask of RMA_NOTIFY_... bits. Returns the number of commands, one
 for each RMA_MAX_LENGTH, or a negative error number. Each command has its own notifications.

 The call waits while 64 commands are in flight, or the posted-write ring is full. After 5 s
 without room for a command it returns -ETIMEDOUT, and -ECANCELED when rma_cancel ends it. The
 commands that it has posted before stay posted.

 # Safety
 `port` is a handle.
 */
int64_t rma_put(const struct rma_port *port,
                struct rma_target target,
                uint64_t source,
                uint64_t destination,
                uint64_t length,
                uint32_t notify);

/*
 Posts a get: `length` bytes from the target's address `source` to this port's address
 `destination`. As rma_put otherwise.

 # Safety
 `port` is a handle.
 */
int64_t rma_get(const struct rma_port *port,
                struct rma_target target,
                uint64_t source,
                uint64_t destination,
                uint64_t length,
                uint32_t notify);

/*
 Posts an immediate put: 1 to RMA_MAX_IMMEDIATE bytes, which the command itself carries, to the
 target's address `destination`. Returns 0, or a negative error number. Waits as rma_put does.

 # Safety
 `port` is a handle; `data` has `size` readable bytes.
 */
int32_t rma_put_immediate(const struct rma_port *port,
                          struct rma_target target,
                          const void *data,
                          size_t size,
                          uint64_t destination,
                          uint32_t notify);

/*
 Returns the number of commands in flight (posted, and not ended), or a negative error number.

 # Safety
 `port` is a handle.
 */
int64_t rma_in_flight(const struct rma_port *port);

/*
 Waits until every posted command has ended, successfully or not. Waits for at most `timeout_ms`
 milliseconds; 0 means no limit. Returns 0, or a negative error number: -ETIMEDOUT, -ECANCELED.

 # Safety
 `port` is a handle.
 */
int32_t rma_drain(const struct rma_port *port, uint64_t timeout_ms);

/*
 Looks for a notification, and leaves it in the queue. Returns 1 and stores the notification, 0
 without one, or a negative error number. -EOVERFLOW reports once that notifications were lost
 because the queue was full; those in the queue come first. `notification` may be NULL.

 # Safety
 `port` is a handle; `notification` is NULL or valid.
 */
int32_t rma_probe(const struct rma_port *port, struct rma_notification *notification);

/*
 Waits for a notification, and leaves it in the queue. Waits for at most `timeout_ms`
 milliseconds; 0 means no limit. Returns 0 and stores the notification, or a negative error
 number: -ETIMEDOUT, -ECANCELED, and as rma_probe. `notification` may be NULL.

 # Safety
 As rma_probe.
 */
int32_t rma_wait(const struct rma_port *port, uint64_t timeout_ms, struct rma_notification *notification);

/*
 Frees the notification that rma_probe or rma_wait has returned since the last rma_free, if any.
 A notification that neither has returned stays in the queue. Returns 0, or a negative error
 number.

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
 Sets or clears cancellation: while `on`, calls that wait end with -ECANCELED. Any thread may
 call it. Returns 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t rma_cancel(const struct rma_port *port, bool on);

/*
 Allocates memory that the card can reach: `size` bytes rounded up to whole pages, zeroed. The
 pages have 2 MiB if the system has enough of them and the memory fills half of them or more,
 otherwise 4096 bytes. Returns 0 and stores the handle in `*buffer`, or returns a negative error
 number.

 # Safety
 `port` is a handle; `buffer` is valid.
 */
int32_t rma_allocate(const struct rma_port *port, size_t size, struct rma_buffer **buffer);

/*
 Releases a buffer. Its regions become invalid; commands that use them end with RMA_WITHDRAWN.
 NULL is allowed.

 # Safety
 `buffer` is NULL or a handle; neither it nor its memory is used any more.
 */
void rma_release(struct rma_buffer *buffer);

/*
 Returns the address of a buffer's memory; NULL for NULL. Other processes write to the memory by
 puts. The data of a put is valid after the put's notification.

 # Safety
 `buffer` is NULL or a handle.
 */
void *rma_buffer_memory(const struct rma_buffer *buffer);

/*
 Returns the length of a buffer in bytes; 0 for NULL.

 # Safety
 `buffer` is NULL or a handle.
 */
size_t rma_buffer_size(const struct rma_buffer *buffer);

/*
 Registers `length` bytes at `offset` of a buffer of this port, both multiples of 4096. `access`
 selects what other processes may do: RMA_READ, RMA_WRITE, both or neither. Returns 0 and stores
 the handle in `*region`, or returns a negative error number. -ENOMEM means that the card
 refused; the text has the reason.

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
 Deregisters a region, and releases its handle whatever the result. After a result of 0 no card
 accesses the memory any more. NULL is allowed. Returns a negative error number when the card did
 not know the region any more.

 # Safety
 `region` is NULL or a handle that is not used any more.
 */
int32_t rma_deregister(struct rma_region *region);

/*
 Returns a region's first network address, which the owner passes to its partners; 0 for NULL.
 The addresses of the other bytes follow.

 # Safety
 `region` is NULL or a handle.
 */
uint64_t rma_address(const struct rma_region *region);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_RMA_H */
