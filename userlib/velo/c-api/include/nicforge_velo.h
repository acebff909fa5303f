/*
 * VELO of the EXTOLL card: messages of 1 to 8 quadwords between processes.
 *
 * A port is used by one thread at a time. Link with -lnicforge_velo_c.
 */

#ifndef NICFORGE_VELO_H
#define NICFORGE_VELO_H

/* Generated from src/lib.rs: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Bytes of a message at most, and of every buffer that receives one.
 */
#define VELO_MAX_MESSAGE 64

/*
 For the functions that take a tag to receive: any.
 */
#define VELO_ANY_TAG -1

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
 error number; -ECONNRESET when the receiver is gone; -ENOBUFS when as many messages are kept as may be, and the promise may be behind another one: receive some.

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_VELO_H */
