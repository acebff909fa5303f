/*
 * Portals 3.3 on the Cray SeaStar: one-sided messages. Matching at the target determines where their
 * data go.
 *
 * Names and values are those of the standard (SAND2006-0420); names with nicforge_ or NICFORGE_ are
 * additions. Calls return PTL_OK or another of the standard's codes. Threads may make calls at the
 * same time.
 *
 * Compile and link with the flags of `pkg-config --cflags --libs nicforge`.
 */

#ifndef NICFORGE_PORTALS3_H
#define NICFORGE_PORTALS3_H

/* Generated from the module `portals3`: change that, then run `cargo xtask headers`. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 In place of a handler of events: none.
 */
#define PTL_EQ_HANDLER_NONE 0

/*
 Threshold of a descriptor that takes any number of operations.
 */
#define PTL_MD_THRESH_INF -1

/*
 Option: the descriptor takes puts.
 */
#define PTL_MD_OP_PUT 1

/*
 Option: the descriptor answers gets.
 */
#define PTL_MD_OP_GET 2

/*
 Option: the initiator's offset counts. Without it, messages follow each other in the memory.
 */
#define PTL_MD_MANAGE_REMOTE 4

/*
 Option: a longer message is truncated. Without it, it does not match.
 */
#define PTL_MD_TRUNCATE 8

/*
 Option: no acknowledgement is sent.
 */
#define PTL_MD_ACK_DISABLE 16

/*
 Option: `start` is a list of pieces. This library refuses it.
 */
#define PTL_MD_IOVEC 32

/*
 Option: `max_size` counts.
 */
#define PTL_MD_MAX_SIZE 64

/*
 Option: no events of starts.
 */
#define PTL_MD_EVENT_START_DISABLE 128

/*
 Option: no events of ends.
 */
#define PTL_MD_EVENT_END_DISABLE 256

/*
 Success.
 */
#define PTL_OK 0

/*
 There is no such access control entry.
 */
#define PTL_AC_INDEX_INVALID 1

/*
 The call has returned an event, and events before it were lost.
 */
#define PTL_EQ_DROPPED 2

/*
 The event queue is empty.
 */
#define PTL_EQ_EMPTY 3

/*
 There is no such event queue.
 */
#define PTL_EQ_INVALID 4

/*
 Any other failure, which nicforge_portals_last_error describes.
 */
#define PTL_FAIL 5

/*
 The handle names no object.
 */
#define PTL_HANDLE_INVALID 6

/*
 There is no such interface.
 */
#define PTL_IFACE_INVALID 7

/*
 The values of a descriptor are not valid, or a range leaves its memory.
 */
#define PTL_MD_ILLEGAL 8

/*
 There is no such descriptor, or it is inactive.
 */
#define PTL_MD_INVALID 9

/*
 The descriptor has operations in progress.
 */
#define PTL_MD_IN_USE 10

/*
 The tested queue is not empty, so that nothing was changed.
 */
#define PTL_MD_NO_UPDATE 11

/*
 There is no such match entry.
 */
#define PTL_ME_INVALID 12

/*
 The match entry has a descriptor, or operations in progress.
 */
#define PTL_ME_IN_USE 13

/*
 A match list is too long. No call of this library returns it.
 */
#define PTL_ME_LIST_TOO_LONG 14

/*
 There is no such network interface.
 */
#define PTL_NI_INVALID 15

/*
 PtlInit has not been called.
 */
#define PTL_NO_INIT 16

/*
 No room is left.
 */
#define PTL_NO_SPACE 17

/*
 There is no such process on this node, or it is in use.
 */
#define PTL_PID_INVALID 18

/*
 There is no such process.
 */
#define PTL_PROCESS_INVALID 19

/*
 All portals are in use. No call of this library returns it.
 */
#define PTL_PT_FULL 20

/*
 There is no such portal.
 */
#define PTL_PT_INDEX_INVALID 21

/*
 A pointer is NULL.
 */
#define PTL_SEGV 22

/*
 There is no such status register.
 */
#define PTL_SR_INDEX_INVALID 23

/*
 A handle of any kind.
 */
typedef uint32_t ptl_handle_any_t;

/*
 A handle of a match entry.
 */
typedef ptl_handle_any_t ptl_handle_me_t;

/*
 A size or an offset in bytes.
 */
typedef uint64_t ptl_size_t;

/*
 A handle of an event queue.
 */
typedef ptl_handle_any_t ptl_handle_eq_t;

/*
 A memory descriptor.
 */
typedef struct ptl_md_t {
  /*
   Start of its memory, in memory from nicforge_portals_allocate.
   */
  void *start;
  /*
   Length of its memory.
   */
  ptl_size_t length;
  /*
   Number of operations that it takes, or PTL_MD_THRESH_INF.
   */
  int threshold;
  /*
   With PTL_MD_MAX_SIZE: it becomes inactive when fewer bytes than these are left.
   */
  ptl_size_t max_size;
  /*
   PTL_MD_... bits.
   */
  unsigned int options;
  /*
   Value that its events show.
   */
  void *user_ptr;
  /*
   Queue for its events, or PTL_EQ_NONE.
   */
  ptl_handle_eq_t eq_handle;
} ptl_md_t;

/*
 PTL_RETAIN or PTL_UNLINK.
 */
typedef unsigned int ptl_unlink_t;

/*
 A handle of a memory descriptor.
 */
typedef ptl_handle_any_t ptl_handle_md_t;

/*
 A handle of a network interface.
 */
typedef ptl_handle_any_t ptl_handle_ni_t;

/*
 Number of a node.
 */
typedef uint32_t ptl_nid_t;

/*
 Number of a process on its node.
 */
typedef uint32_t ptl_pid_t;

/*
 The name of a process in the network.
 */
typedef struct ptl_process_id_t {
  /*
   The node.
   */
  ptl_nid_t nid;
  /*
   The process on that node.
   */
  ptl_pid_t pid;
} ptl_process_id_t;

/*
 Match bits, and bits that are ignored in the comparison.
 */
typedef uint64_t ptl_match_bits_t;

/*
 PTL_INS_BEFORE or PTL_INS_AFTER.
 */
typedef unsigned int ptl_ins_pos_t;

/*
 Number of a portal, 0 to 63.
 */
typedef uint32_t ptl_pt_index_t;

/*
 PTL_ACK_REQ or PTL_NOACK_REQ.
 */
typedef unsigned int ptl_ack_req_t;

/*
 Number of an access control entry, 0 to 7.
 */
typedef uint32_t ptl_ac_index_t;

/*
 Data of a put's header.
 */
typedef uint64_t ptl_hdr_data_t;

/*
 Kind of an interface: PTL_IFACE_DEFAULT or NICFORGE_PORTALS_IFACE_HOST_BASED.
 */
typedef uint32_t ptl_interface_t;

/*
 Limits of a network interface.
 */
typedef struct ptl_ni_limits_t {
  /*
   Match entries.
   */
  int max_mes;
  /*
   Memory descriptors.
   */
  int max_mds;
  /*
   Event queues.
   */
  int max_eqs;
  /*
   Highest number of an access control entry.
   */
  int max_ac_index;
  /*
   Highest number of a portal.
   */
  int max_pt_index;
  /*
   Pieces of a descriptor's memory: 0, because descriptors have none.
   */
  int max_md_iovecs;
  /*
   Match entries in a list.
   */
  int max_me_list;
  /*
   Bytes of a combined get and put: 0, because there are none.
   */
  int max_getput_md;
} ptl_ni_limits_t;

/*
 Number of a status register.
 */
typedef uint32_t ptl_sr_index_t;

/*
 Value of a status register.
 */
typedef uint64_t ptl_sr_value_t;

/*
 A user id.
 */
typedef uint32_t ptl_uid_t;

/*
 A job id.
 */
typedef uint32_t ptl_jid_t;

/*
 Kind of an event: PTL_EVENT_...
 */
typedef unsigned int ptl_event_kind_t;

/*
 A sequence number.
 */
typedef uint32_t ptl_seq_t;

/*
 Reason of a failed operation: PTL_NI_OK or NICFORGE_PORTALS_FAIL_...
 */
typedef uint32_t ptl_ni_fail_t;

/*
 An event.
 */
typedef struct ptl_event_t {
  /*
   Its kind.
   */
  ptl_event_kind_t type;
  /*
   The process that has started the operation.
   */
  struct ptl_process_id_t initiator;
  /*
   The initiator's user: always PTL_UID_ANY, because messages carry none.
   */
  ptl_uid_t uid;
  /*
   The initiator's job: always PTL_JID_ANY, because messages carry none.
   */
  ptl_jid_t jid;
  /*
   Portal of the target.
   */
  ptl_pt_index_t pt_index;
  /*
   Match bits of the message.
   */
  ptl_match_bits_t match_bits;
  /*
   Bytes that the initiator asked for.
   */
  ptl_size_t rlength;
  /*
   Bytes that were moved.
   */
  ptl_size_t mlength;
  /*
   Offset in the descriptor; in an acknowledgement, in the target's.
   */
  ptl_size_t offset;
  /*
   The descriptor, which an automatic unlink may have made invalid.
   */
  ptl_handle_md_t md_handle;
  /*
   The descriptor's values as the program has set them.
   */
  struct ptl_md_t md;
  /*
   Data of the put's header.
   */
  ptl_hdr_data_t hdr_data;
  /*
   The same value in the events of one operation.
   */
  ptl_seq_t link;
  /*
   PTL_NI_OK, or the reason why the operation failed.
   */
  ptl_ni_fail_t ni_fail_type;
  /*
   Number of the event in its queue.
   */
  ptl_seq_t sequence;
} ptl_event_t;

/*
 Function that handles an event. This library calls none: PTL_EQ_HANDLER_NONE.
 */
typedef void (*ptl_eq_handler_t)(struct ptl_event_t *event);

/*
 A time in milliseconds.
 */
typedef uint32_t ptl_time_t;

/*
 No handle.
 */
#define PTL_INVALID_HANDLE 4294967295

/*
 In place of a handle: none.
 */
#define PTL_HANDLE_NONE 2147483647

/*
 In place of an event queue: none.
 */
#define PTL_EQ_NONE 3221225471

/*
 Any node.
 */
#define PTL_NID_ANY 4294967295

/*
 Any process. For PtlNIInit: the first free one.
 */
#define PTL_PID_ANY 4294967295

/*
 Any user.
 */
#define PTL_UID_ANY 4294967295

/*
 Any job.
 */
#define PTL_JID_ANY 4294967295

/*
 Any portal.
 */
#define PTL_PT_INDEX_ANY 4294967295

/*
 The interface whose messages the card matches.
 */
#define PTL_IFACE_DEFAULT 0

/*
 The interface whose messages the node's kernel matches.
 */
#define NICFORGE_PORTALS_IFACE_HOST_BASED 1

/*
 Status register: messages that no descriptor took.
 */
#define PTL_SR_DROP_COUNT 0

/*
 Status register: messages that access control refused.
 */
#define NICFORGE_PORTALS_SR_PERMISSIONS_VIOLATIONS 65536

/*
 The object stays until a call unlinks it.
 */
#define PTL_RETAIN 0

/*
 A descriptor is unlinked when it is inactive and its last operation has ended; an entry, with
 its descriptor.
 */
#define PTL_UNLINK 1

/*
 In front of the base, or at the head of the list.
 */
#define PTL_INS_BEFORE 0

/*
 After the base, or at the tail of the list.
 */
#define PTL_INS_AFTER 1

/*
 The target acknowledges the put, unless its descriptor disables that.
 */
#define PTL_ACK_REQ 0

/*
 No acknowledgement.
 */
#define PTL_NOACK_REQ 1

/*
 PTL_NOACK_REQ, as other headers spell it.
 */
#define PTL_NO_ACK_REQ 1

/*
 A get arrives.
 */
#define PTL_EVENT_GET_START 0

/*
 A get was answered.
 */
#define PTL_EVENT_GET_END 1

/*
 A put arrives.
 */
#define PTL_EVENT_PUT_START 2

/*
 A put is in memory.
 */
#define PTL_EVENT_PUT_END 3

/*
 The reply to a get arrives.
 */
#define PTL_EVENT_REPLY_START 6

/*
 The reply to a get is in memory.
 */
#define PTL_EVENT_REPLY_END 7

/*
 The sending of a put begins.
 */
#define PTL_EVENT_SEND_START 8

/*
 A put was sent and accepted.
 */
#define PTL_EVENT_SEND_END 9

/*
 The target has acknowledged a put.
 */
#define PTL_EVENT_ACK 10

/*
 A descriptor was unlinked automatically.
 */
#define PTL_EVENT_UNLINK 11

/*
 `ni_fail_type` of an operation that succeeded.
 */
#define PTL_NI_OK 0

/*
 `ni_fail_type`: the other node is off, restarts, or was restarted.
 */
#define NICFORGE_PORTALS_FAIL_NODE 1

/*
 `ni_fail_type`: the data did not arrive as they were sent.
 */
#define NICFORGE_PORTALS_FAIL_DATA 2

/*
 `ni_fail_type`: memory of a process could not be read or written.
 */
#define NICFORGE_PORTALS_FAIL_MEMORY 3

/*
 Time-out of PtlEQPoll: none.
 */
#define PTL_TIME_FOREVER 4294967295

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Adds a descriptor to a match entry. With PTL_UNLINK it is removed when it is inactive and its
 last operation has ended.

 Returns PTL_OK, PTL_NO_INIT, PTL_ME_INVALID, PTL_ME_IN_USE when the entry has a descriptor,
 PTL_MD_ILLEGAL, PTL_EQ_INVALID, PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL. PTL_MD_ILLEGAL is also the
 result for memory that is not from nicforge_portals_allocate.

 # Safety
 `md_handle` is NULL or valid.
 */
int PtlMDAttach(ptl_handle_me_t me_handle,
                struct ptl_md_t md,
                ptl_unlink_t unlink_op,
                ptl_handle_md_t *md_handle);

/*
 Makes a descriptor for puts and gets of this process. With PTL_UNLINK it is removed when it is
 inactive and its last operation has ended.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_MD_ILLEGAL as PtlMDAttach, PTL_EQ_INVALID,
 PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.

 # Safety
 `md_handle` is NULL or valid.
 */
int PtlMDBind(ptl_handle_ni_t ni_handle,
              struct ptl_md_t md,
              ptl_unlink_t unlink_op,
              ptl_handle_md_t *md_handle);

/*
 Removes a descriptor, and its match entry if that has PTL_UNLINK. Gets without a reply end
 without an event.

 Returns PTL_OK, PTL_NO_INIT, PTL_MD_INVALID, PTL_MD_IN_USE while it has operations in progress,
 or PTL_FAIL.
 */
int PtlMDUnlink(ptl_handle_md_t md_handle);

/*
 Replaces the values of a descriptor if the event queue `eq_handle` is empty and no operation in
 progress will write an event there, or always for PTL_EQ_NONE. `*old_md` gets the values as the
 program has set them: its threshold does not count down. Either pointer may be NULL; without
 `new_md` nothing is changed.

 Returns PTL_OK, PTL_NO_INIT, PTL_MD_INVALID, PTL_MD_ILLEGAL as PtlMDAttach, PTL_EQ_INVALID,
 PTL_MD_NO_UPDATE when the queue is not empty or the descriptor has operations in progress, or
 PTL_FAIL.

 # Safety
 `old_md` and `new_md` are NULL or valid.
 */
int PtlMDUpdate(ptl_handle_md_t md_handle,
                struct ptl_md_t *old_md,
                const struct ptl_md_t *new_md,
                ptl_handle_eq_t eq_handle);

/*
 Adds a match entry beside the entry `base`, and its descriptor, if the event queue `eq_handle`
 is empty and no operation in progress will write an event there. `eq_handle` may be PTL_EQ_NONE.

 The call is PtlMEInsert, PtlMDAttach and PtlMDUpdate in one command of the card, as
 R. Brightwell and others describe it. The Cray XT has it as PtlMEMDPost.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_ME_INVALID, PTL_PROCESS_INVALID, PTL_MD_ILLEGAL
 as PtlMDAttach, PTL_EQ_INVALID, PTL_MD_NO_UPDATE when the queue is not empty, PTL_NO_SPACE,
 PTL_SEGV, or PTL_FAIL.

 # Safety
 `me_handle` and `md_handle` are NULL or valid.
 */
int PtlPost(ptl_handle_ni_t ni_handle,
            ptl_handle_me_t base,
            struct ptl_process_id_t match_id,
            ptl_match_bits_t match_bits,
            ptl_match_bits_t ignore_bits,
            ptl_unlink_t unlink,
            ptl_ins_pos_t position,
            struct ptl_md_t md,
            ptl_unlink_t unlink_op,
            ptl_handle_me_t *me_handle,
            ptl_handle_md_t *md_handle,
            ptl_handle_eq_t eq_handle);

/*
 Adds a match entry to a portal's list: at its head for PTL_INS_BEFORE, at its tail for
 PTL_INS_AFTER. With PTL_UNLINK it is removed with its descriptor.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_PT_INDEX_INVALID, PTL_PROCESS_INVALID,
 PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.

 # Safety
 `me_handle` is NULL or valid.
 */
int PtlMEAttach(ptl_handle_ni_t ni_handle,
                ptl_pt_index_t pt_index,
                struct ptl_process_id_t match_id,
                ptl_match_bits_t match_bits,
                ptl_match_bits_t ignore_bits,
                ptl_unlink_t unlink,
                ptl_ins_pos_t position,
                ptl_handle_me_t *me_handle);

/*
 Adds a match entry in front of the entry `base`, or after it. With PTL_UNLINK it is removed
 with its descriptor.

 Returns PTL_OK, PTL_NO_INIT, PTL_ME_INVALID, PTL_PROCESS_INVALID, PTL_NO_SPACE, PTL_SEGV, or
 PTL_FAIL.

 # Safety
 `me_handle` is NULL or valid.
 */
int PtlMEInsert(ptl_handle_me_t base,
                struct ptl_process_id_t match_id,
                ptl_match_bits_t match_bits,
                ptl_match_bits_t ignore_bits,
                ptl_unlink_t unlink,
                ptl_ins_pos_t position,
                ptl_handle_me_t *me_handle);

/*
 Removes a match entry, with its descriptor if it has one.

 Returns PTL_OK, PTL_NO_INIT, PTL_ME_INVALID, PTL_ME_IN_USE while the descriptor has operations
 in progress, or PTL_FAIL.
 */
int PtlMEUnlink(ptl_handle_me_t me_handle);

/*
 Sends all memory of a descriptor. Events report the progress and the end.

 Returns PTL_OK, PTL_NO_INIT, PTL_MD_INVALID, PTL_PROCESS_INVALID, PTL_PT_INDEX_INVALID,
 PTL_AC_INDEX_INVALID, PTL_MD_ILLEGAL for more than 2^30 bytes, PTL_NO_SPACE when too many
 operations are in progress, PTL_NI_INVALID after the program that holds the node's kernel has
 ended, or PTL_FAIL.
 */
int PtlPut(ptl_handle_md_t md_handle,
           ptl_ack_req_t ack_req,
           struct ptl_process_id_t target_id,
           ptl_pt_index_t pt_index,
           ptl_ac_index_t ac_index,
           ptl_match_bits_t match_bits,
           ptl_size_t remote_offset,
           ptl_hdr_data_t hdr_data);

/*
 Sends `length` bytes at `local_offset` of a descriptor's memory. As PtlPut otherwise;
 PTL_MD_ILLEGAL also for a range that leaves the memory.
 */
int PtlPutRegion(ptl_handle_md_t md_handle,
                 ptl_size_t local_offset,
                 ptl_size_t length,
                 ptl_ack_req_t ack_req,
                 struct ptl_process_id_t target_id,
                 ptl_pt_index_t pt_index,
                 ptl_ac_index_t ac_index,
                 ptl_match_bits_t match_bits,
                 ptl_size_t remote_offset,
                 ptl_hdr_data_t hdr_data);

/*
 Fetches data for all memory of a descriptor. A get that nothing at the target matches has no
 event: it ends when its descriptor is unlinked.

 Returns as PtlPut.
 */
int PtlGet(ptl_handle_md_t md_handle,
           struct ptl_process_id_t target_id,
           ptl_pt_index_t pt_index,
           ptl_ac_index_t ac_index,
           ptl_match_bits_t match_bits,
           ptl_size_t remote_offset);

/*
 Fetches data for `length` bytes at `local_offset` of a descriptor's memory. As PtlGet otherwise;
 PTL_MD_ILLEGAL also for a range that leaves the memory.
 */
int PtlGetRegion(ptl_handle_md_t md_handle,
                 ptl_size_t local_offset,
                 ptl_size_t length,
                 struct ptl_process_id_t target_id,
                 ptl_pt_index_t pt_index,
                 ptl_ac_index_t ac_index,
                 ptl_match_bits_t match_bits,
                 ptl_size_t remote_offset);

/*
 Returns the text of the calling thread's last failure in any call of libnicforge; an empty text
 without one. It is valid until the thread's next failure. PTL_EQ_EMPTY, PTL_EQ_DROPPED and
 PTL_MD_NO_UPDATE have no text.
 */
const char *nicforge_portals_last_error(void);

/*
 Initialises the library: boots the node on which `nicforge run` has started this program. One
 program of a node can do so at a time. Later calls are counted. Stores the number of the node's
 processes in `*max_interfaces`; the node has at most that many interfaces.

 Returns PTL_OK, PTL_SEGV, or PTL_FAIL without a node.

 # Safety
 `max_interfaces` is NULL or valid.
 */
int PtlInit(int *max_interfaces);

/*
 Initialises the library as PtlInit does, with the devices that are named here. `kernel` is the
 device of the node's kernel, and `processes` are those of its processes 0, 1 and so on. Each is
 the path of a socket, vfio:BDF, or shim:PATH. If the library is initialised already, the call is
 counted, and the devices do not matter.

 If `kernel` is NULL, another program has the node's kernel. PtlNIInit then waits for at most
 10 s until that program has granted the process, by nicforge_portals_grant() for example. Such a
 process is matched by the card.

 # Safety
 `kernel` is NULL or a C string; `processes` is NULL, or has `count` pointers, each of them NULL
 or a C string; `max_interfaces` is NULL or valid.
 */
int nicforge_portals_init(const char *kernel,
                          const char *const *processes,
                          size_t count,
                          int *max_interfaces);

/*
 Grants other programs the node's process `pid`, one after the other, until PtlFini. Each of
 them names the process's device in nicforge_portals_init(), without a kernel.

 Returns PTL_OK, PTL_NO_INIT, PTL_PID_INVALID if the process does not exist or is in use, or
 PTL_FAIL.
 */
int nicforge_portals_grant(ptl_pid_t pid);

/*
 Undoes one initialisation. When none is left, all interfaces and their memory end, and the node
 accepts no messages any more.
 */
void PtlFini(void);

/*
 Opens a network interface of the node's process `pid`, or, for PTL_PID_ANY, of the first free
 one. `interface` says where messages are matched: PTL_IFACE_DEFAULT by the card, and
 NICFORGE_PORTALS_IFACE_HOST_BASED by the node's kernel, for which this library starts a thread.
 Each process has one interface.

 The limits are those of the mode, whatever `desired` has, and are stored in `*actual`. In
 NIC-based mode the card's memory may hold fewer match entries and descriptors. `desired` and
 `actual` may be NULL.

 Returns PTL_OK, PTL_NO_INIT, PTL_IFACE_INVALID, PTL_PID_INVALID, PTL_NI_INVALID without a grant,
 PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.

 # Safety
 `actual` and `ni_handle` are NULL or valid.
 */
int PtlNIInit(ptl_interface_t interface,
              ptl_pid_t pid,
              const struct ptl_ni_limits_t *desired,
              struct ptl_ni_limits_t *actual,
              ptl_handle_ni_t *ni_handle);

/*
 Closes a network interface: its objects become invalid, its messages in flight fail, and its
 memory from nicforge_portals_allocate must not be used any more. Waits of other threads for its
 events end with PTL_EQ_INVALID.

 Returns PTL_OK, PTL_NO_INIT or PTL_NI_INVALID.
 */
int PtlNIFini(ptl_handle_ni_t ni_handle);

/*
 Stores the value of a status register in `*status`: PTL_SR_DROP_COUNT or
 NICFORGE_PORTALS_SR_PERMISSIONS_VIOLATIONS.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_SR_INDEX_INVALID, PTL_SEGV, or PTL_FAIL.

 # Safety
 `status` is NULL or valid.
 */
int PtlNIStatus(ptl_handle_ni_t ni_handle, ptl_sr_index_t status_register, ptl_sr_value_t *status);

/*
 Stores in `*distance` how far a process is: 0 for this one, 1 for another one of this node, and
 2 for one of another node.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_PROCESS_INVALID or PTL_SEGV.

 # Safety
 `distance` is NULL or valid.
 */
int PtlNIDist(ptl_handle_ni_t ni_handle, struct ptl_process_id_t process, unsigned long *distance);

/*
 Stores the network interface that an object of any kind belongs to in `*ni_handle`.

 Returns PTL_OK, PTL_NO_INIT, PTL_HANDLE_INVALID or PTL_SEGV.

 # Safety
 `ni_handle` is NULL or valid.
 */
int PtlNIHandle(ptl_handle_any_t handle, ptl_handle_ni_t *ni_handle);

/*
 Stores the name of an interface's process in `*id`.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID or PTL_SEGV.

 # Safety
 `id` is NULL or valid.
 */
int PtlGetId(ptl_handle_ni_t ni_handle, struct ptl_process_id_t *id);

/*
 Sets an access control entry: it permits messages of the initiators `match_id` to a portal.
 `pt_index` may be PTL_PT_INDEX_ANY. At first entry 0 permits everything, and the others nothing.
 Messages carry no user and no job, so `user_id` must be PTL_UID_ANY and `job_id` PTL_JID_ANY.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_AC_INDEX_INVALID, PTL_PROCESS_INVALID,
 PTL_PT_INDEX_INVALID, or PTL_FAIL.
 */
int PtlACEntry(ptl_handle_ni_t ni_handle,
               ptl_ac_index_t ac_index,
               struct ptl_process_id_t match_id,
               ptl_uid_t user_id,
               ptl_jid_t job_id,
               ptl_pt_index_t pt_index);

/*
 Allocates memory that messages come from and go to: `bytes` bytes rounded up to whole pages of
 4096, zeroed. It belongs to the interface until PtlNIFini. The memory of every descriptor must
 lie in such memory, which is contiguous for the card, as all memory of a Catamount process is.

 An interface in NIC-based mode has at most 16 such pieces, some of which its event queues take.
 Allocate a large one and divide it.

 Returns the address, or NULL. The text of nicforge_portals_last_error has the reason.
 */
void *nicforge_portals_allocate(ptl_handle_ni_t ni_handle, ptl_size_t bytes);

/*
 Allocates an event queue for at least `count` events, at most 65,535. There are no handlers:
 `eq_handler` is PTL_EQ_HANDLER_NONE.

 Returns PTL_OK, PTL_NO_INIT, PTL_NI_INVALID, PTL_NO_SPACE, PTL_SEGV, or PTL_FAIL.

 # Safety
 `eq_handle` is NULL or valid.
 */
int PtlEQAlloc(ptl_handle_ni_t ni_handle,
               ptl_size_t count,
               ptl_eq_handler_t eq_handler,
               ptl_handle_eq_t *eq_handle);

/*
 Frees an event queue. Unlink its descriptors first, or it takes room until PtlNIFini. Waits of
 other threads for its events end with PTL_EQ_INVALID.

 Returns PTL_OK, PTL_NO_INIT or PTL_EQ_INVALID.
 */
int PtlEQFree(ptl_handle_eq_t eq_handle);

/*
 Takes the next event.

 Returns PTL_OK; PTL_EQ_DROPPED with the event, when events before it were lost; PTL_EQ_EMPTY;
 PTL_NO_INIT, PTL_EQ_INVALID, PTL_SEGV, or PTL_FAIL.

 # Safety
 `event` is NULL or valid.
 */
int PtlEQGet(ptl_handle_eq_t eq_handle, struct ptl_event_t *event);

/*
 Waits for the next event and takes it.

 Returns PTL_OK; PTL_EQ_DROPPED with the event, when events before it were lost; PTL_NO_INIT,
 PTL_EQ_INVALID, PTL_SEGV, or PTL_FAIL.

 # Safety
 `event` is NULL or valid.
 */
int PtlEQWait(ptl_handle_eq_t eq_handle, struct ptl_event_t *event);

/*
 Waits for an event of any of `size` queues of one interface, and takes it. Stores the position
 of its queue in `*which_eq`. Waits for at most `timeout` milliseconds; 0 only checks, and
 PTL_TIME_FOREVER has no limit.

 Returns PTL_OK; PTL_EQ_DROPPED with the event, when events before it were lost; PTL_EQ_EMPTY
 after the time; PTL_NO_INIT, PTL_EQ_INVALID, PTL_SEGV, or PTL_FAIL.

 # Safety
 `eq_handles` is NULL or has `size` handles; `event` and `which_eq` are NULL or valid.
 */
int PtlEQPoll(const ptl_handle_eq_t *eq_handles,
              int size,
              ptl_time_t timeout,
              struct ptl_event_t *event,
              int *which_eq);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NICFORGE_PORTALS3_H */
