/*
 * VELO of the EXTOLL card: messages of 1 to 8 quadwords between processes.
 *
 * A port is used by one thread at a time.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_VELO_H
#define NICFORGE_VELO_H

/* Generated from the module `velo`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Length of the longest message in bytes, and minimum size of a buffer that receives one.
 */
#define VELO_MAX_MESSAGE 64

/*
 In place of a tag, for the functions that receive: any tag.
 */
#define VELO_ANY_TAG -1

/*
 An opened VPID of a card.
 */
typedef struct velo_port velo_port;

/*
 Options of a port. All zero is the default.
 */
typedef struct velo_options {
  /*
   Disables the credits of connections. The card then blocks a sender whose receiver does not
   read. Both ends must agree.
   */
  bool no_flow_control;
  /*
   A call that waits polls for a while, then sleeps until an interrupt. Otherwise it only
   polls.
   */
  bool use_interrupts;
  /*
   Slots of the receive ring, a power of two; 0 for a size that suits the network.
   */
  uint32_t slots;
  /*
   Messages of a connection that may be unread; 0 for 64.
   */
  uint32_t window;
  /*
   Time limit of each call in milliseconds; 0 for no limit.
   */
  uint64_t timeout_ms;
} velo_options;

/*
 Description of a received message.
 */
typedef struct velo_message {
  /*
   The node that sent it.
   */
  uint32_t node;
  /*
   The sender's VPID on that node.
   */
  uint16_t vpid;
  /*
   The tag.
   */
  uint8_t tag;
  /*
   Length in bytes, 8 to 64.
   */
  uint8_t size;
} velo_message;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the text of the calling thread's last error in any call of libnicforge; an empty text
 without one. It is valid until the thread's next error.
 */
const char *velo_last_error(void);

/*
 Opens the VPID at `socket` (a socket's path, vfio:BDF or shim:PATH), or, when that is NULL, the
 first one in the environment variable NICFORGE_SOCKET. `options` may be NULL. Returns 0 and
 stores the handle in `*port`, or returns a negative error number.

 # Safety
 `socket` and `options` are NULL or valid; `port` is valid.
 */
int32_t velo_open(const char *socket, const struct velo_options *options, struct velo_port **port);

/*
 Closes a port. Calls of other threads must have ended; `velo_cancel` ends those that wait. NULL
 is allowed.

 # Safety
 `port` is NULL or a handle that is not used any more.
 */
void velo_close(struct velo_port *port);

/*
 Returns the card's node id, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_node(const struct velo_port *port);

/*
 Returns the VPID, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_vpid(const struct velo_port *port);

/*
 Connects to a VPID of a node, and waits until a process receives messages there. Returns the
 number of the connection, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_connect(const struct velo_port *port, uint32_t node, uint16_t vpid);

/*
 Closes the sending direction of a connection. Returns 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_disconnect(const struct velo_port *port, int32_t connection);

/*
 Sends `size` bytes with a tag of 0 to 14. `size` is a multiple of 8, 8 to 64. Waits while the
 connection has no credit. Returns 0, or a negative error number:
 - -ECONNRESET: the receiver is gone;
 - -ENOBUFS: the library can't keep more received messages, and the credit may arrive after them.
   The caller must receive some.

 # Safety
 `port` is a handle; `data` has `size` readable bytes.
 */
int32_t velo_send(const struct velo_port *port,
                  int32_t connection,
                  uint8_t tag,
                  const void *data,
                  size_t size);

/*
 As velo_send, without waiting. Returns -EAGAIN when the message can't be sent now.

 # Safety
 As velo_send.
 */
int32_t velo_send_nb(const struct velo_port *port,
                     int32_t connection,
                     uint8_t tag,
                     const void *data,
                     size_t size);

/*
 Waits for the next message with a tag, or with any tag for VELO_ANY_TAG. Other messages that
 arrive meanwhile are kept. Returns the message's size, or a negative error number. `message` may
 be NULL.

 # Safety
 `port` is a handle; `data` has VELO_MAX_MESSAGE writable bytes; `message` is NULL or valid.
 */
int32_t velo_recv(const struct velo_port *port, int32_t tag, void *data, struct velo_message *message);

/*
 As velo_recv, without waiting. Returns 0 when no such message has arrived.

 # Safety
 As velo_recv.
 */
int32_t velo_poll(const struct velo_port *port, int32_t tag, void *data, struct velo_message *message);

/*
 Handles connects and credit returns of peers. A program that makes no other call for long should
 call it. Returns 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_progress(const struct velo_port *port);

/*
 Sets or clears cancellation: while `on`, calls that wait end with -ECANCELED. Any thread may
 call it. Returns 0, or a negative error number.

 # Safety
 `port` is a handle.
 */
int32_t velo_cancel(const struct velo_port *port, bool on);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_VELO_H */
