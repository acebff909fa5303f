//! The standard's types and constants.

use std::ffi::{c_int, c_uint, c_void};

/// A size or an offset in bytes.
pub type ptl_size_t = u64;
/// A handle of any kind.
pub type ptl_handle_any_t = u32;
/// A handle of a network interface.
pub type ptl_handle_ni_t = ptl_handle_any_t;
/// A handle of an event queue.
pub type ptl_handle_eq_t = ptl_handle_any_t;
/// A handle of a match entry.
pub type ptl_handle_me_t = ptl_handle_any_t;
/// A handle of a memory descriptor.
pub type ptl_handle_md_t = ptl_handle_any_t;
/// Number of a portal, 0 to 63.
pub type ptl_pt_index_t = u32;
/// Number of an access control entry, 0 to 7.
pub type ptl_ac_index_t = u32;
/// Match bits, and bits that are ignored in the comparison.
pub type ptl_match_bits_t = u64;
/// Kind of an interface: PTL_IFACE_DEFAULT or NICFORGE_PORTALS_IFACE_HOST_BASED.
pub type ptl_interface_t = u32;
/// Number of a node.
pub type ptl_nid_t = u32;
/// Number of a process on its node.
pub type ptl_pid_t = u32;
/// A user id.
pub type ptl_uid_t = u32;
/// A job id.
pub type ptl_jid_t = u32;
/// Number of a status register.
pub type ptl_sr_index_t = u32;
/// Value of a status register.
pub type ptl_sr_value_t = u64;
/// PTL_RETAIN or PTL_UNLINK.
pub type ptl_unlink_t = c_uint;
/// PTL_INS_BEFORE or PTL_INS_AFTER.
pub type ptl_ins_pos_t = c_uint;
/// PTL_ACK_REQ or PTL_NOACK_REQ.
pub type ptl_ack_req_t = c_uint;
/// Kind of an event: PTL_EVENT_...
pub type ptl_event_kind_t = c_uint;
/// Reason of a failed operation: PTL_NI_OK or NICFORGE_PORTALS_FAIL_...
pub type ptl_ni_fail_t = u32;
/// A sequence number.
pub type ptl_seq_t = u32;
/// Data of a put's header.
pub type ptl_hdr_data_t = u64;
/// A time in milliseconds.
pub type ptl_time_t = u32;
/// Function that handles an event. This library calls none: PTL_EQ_HANDLER_NONE.
pub type ptl_eq_handler_t = Option<unsafe extern "C" fn(event: *mut ptl_event_t)>;

/// No handle.
pub const PTL_INVALID_HANDLE: ptl_handle_any_t = 0xffff_ffff;
/// In place of a handle: none.
pub const PTL_HANDLE_NONE: ptl_handle_any_t = 0x7fff_ffff;
/// In place of an event queue: none.
pub const PTL_EQ_NONE: ptl_handle_eq_t = 0xbfff_ffff;
/// In place of a handler of events: none.
pub const PTL_EQ_HANDLER_NONE: c_int = 0;

/// Any node.
pub const PTL_NID_ANY: ptl_nid_t = 0xffff_ffff;
/// Any process. For PtlNIInit: the first free one.
pub const PTL_PID_ANY: ptl_pid_t = 0xffff_ffff;
/// Any user.
pub const PTL_UID_ANY: ptl_uid_t = 0xffff_ffff;
/// Any job.
pub const PTL_JID_ANY: ptl_jid_t = 0xffff_ffff;
/// Any portal.
pub const PTL_PT_INDEX_ANY: ptl_pt_index_t = 0xffff_ffff;

/// The interface whose messages the card matches.
pub const PTL_IFACE_DEFAULT: ptl_interface_t = 0;
/// The interface whose messages the node's kernel matches.
pub const NICFORGE_PORTALS_IFACE_HOST_BASED: ptl_interface_t = 1;

/// Status register: messages that no descriptor took.
pub const PTL_SR_DROP_COUNT: ptl_sr_index_t = 0;
/// Status register: messages that access control refused.
pub const NICFORGE_PORTALS_SR_PERMISSIONS_VIOLATIONS: ptl_sr_index_t = 0x1_0000;

/// The object stays until a call unlinks it.
pub const PTL_RETAIN: ptl_unlink_t = 0;
/// A descriptor is unlinked when it is inactive and its last operation has ended; an entry, with
/// its descriptor.
pub const PTL_UNLINK: ptl_unlink_t = 1;

/// In front of the base, or at the head of the list.
pub const PTL_INS_BEFORE: ptl_ins_pos_t = 0;
/// After the base, or at the tail of the list.
pub const PTL_INS_AFTER: ptl_ins_pos_t = 1;

/// The target acknowledges the put, unless its descriptor disables that.
pub const PTL_ACK_REQ: ptl_ack_req_t = 0;
/// No acknowledgement.
pub const PTL_NOACK_REQ: ptl_ack_req_t = 1;
/// PTL_NOACK_REQ, as other headers spell it.
pub const PTL_NO_ACK_REQ: ptl_ack_req_t = 1;

/// Threshold of a descriptor that takes any number of operations.
pub const PTL_MD_THRESH_INF: c_int = -1;
/// Option: the descriptor takes puts.
pub const PTL_MD_OP_PUT: c_uint = 0x0001;
/// Option: the descriptor answers gets.
pub const PTL_MD_OP_GET: c_uint = 0x0002;
/// Option: the initiator's offset counts. Without it, messages follow each other in the memory.
pub const PTL_MD_MANAGE_REMOTE: c_uint = 0x0004;
/// Option: a longer message is truncated. Without it, it does not match.
pub const PTL_MD_TRUNCATE: c_uint = 0x0008;
/// Option: no acknowledgement is sent.
pub const PTL_MD_ACK_DISABLE: c_uint = 0x0010;
/// Option: `start` is a list of pieces. This library refuses it.
pub const PTL_MD_IOVEC: c_uint = 0x0020;
/// Option: `max_size` counts.
pub const PTL_MD_MAX_SIZE: c_uint = 0x0040;
/// Option: no events of starts.
pub const PTL_MD_EVENT_START_DISABLE: c_uint = 0x0080;
/// Option: no events of ends.
pub const PTL_MD_EVENT_END_DISABLE: c_uint = 0x0100;

/// A get arrives.
pub const PTL_EVENT_GET_START: ptl_event_kind_t = 0;
/// A get was answered.
pub const PTL_EVENT_GET_END: ptl_event_kind_t = 1;
/// A put arrives.
pub const PTL_EVENT_PUT_START: ptl_event_kind_t = 2;
/// A put is in memory.
pub const PTL_EVENT_PUT_END: ptl_event_kind_t = 3;
/// The reply to a get arrives.
pub const PTL_EVENT_REPLY_START: ptl_event_kind_t = 6;
/// The reply to a get is in memory.
pub const PTL_EVENT_REPLY_END: ptl_event_kind_t = 7;
/// The sending of a put begins.
pub const PTL_EVENT_SEND_START: ptl_event_kind_t = 8;
/// A put was sent and accepted.
pub const PTL_EVENT_SEND_END: ptl_event_kind_t = 9;
/// The target has acknowledged a put.
pub const PTL_EVENT_ACK: ptl_event_kind_t = 10;
/// A descriptor was unlinked automatically.
pub const PTL_EVENT_UNLINK: ptl_event_kind_t = 11;

/// `ni_fail_type` of an operation that succeeded.
pub const PTL_NI_OK: ptl_ni_fail_t = 0;
/// `ni_fail_type`: the other node is off, restarts, or was restarted.
pub const NICFORGE_PORTALS_FAIL_NODE: ptl_ni_fail_t = 1;
/// `ni_fail_type`: the data did not arrive as they were sent.
pub const NICFORGE_PORTALS_FAIL_DATA: ptl_ni_fail_t = 2;
/// `ni_fail_type`: memory of a process could not be read or written.
pub const NICFORGE_PORTALS_FAIL_MEMORY: ptl_ni_fail_t = 3;

/// Time-out of PtlEQPoll: none.
pub const PTL_TIME_FOREVER: ptl_time_t = 0xffff_ffff;

/// Success.
pub const PTL_OK: c_int = 0;
/// There is no such access control entry.
pub const PTL_AC_INDEX_INVALID: c_int = 1;
/// The call has returned an event, and events before it were lost.
pub const PTL_EQ_DROPPED: c_int = 2;
/// The event queue is empty.
pub const PTL_EQ_EMPTY: c_int = 3;
/// There is no such event queue.
pub const PTL_EQ_INVALID: c_int = 4;
/// Any other failure, which nicforge_portals_last_error describes.
pub const PTL_FAIL: c_int = 5;
/// The handle names no object.
pub const PTL_HANDLE_INVALID: c_int = 6;
/// There is no such interface.
pub const PTL_IFACE_INVALID: c_int = 7;
/// The values of a descriptor are not valid, or a range leaves its memory.
pub const PTL_MD_ILLEGAL: c_int = 8;
/// There is no such descriptor, or it is inactive.
pub const PTL_MD_INVALID: c_int = 9;
/// The descriptor has operations in progress.
pub const PTL_MD_IN_USE: c_int = 10;
/// The tested queue is not empty, so that nothing was changed.
pub const PTL_MD_NO_UPDATE: c_int = 11;
/// There is no such match entry.
pub const PTL_ME_INVALID: c_int = 12;
/// The match entry has a descriptor, or operations in progress.
pub const PTL_ME_IN_USE: c_int = 13;
/// A match list is too long. No call of this library returns it.
pub const PTL_ME_LIST_TOO_LONG: c_int = 14;
/// There is no such network interface.
pub const PTL_NI_INVALID: c_int = 15;
/// PtlInit has not been called.
pub const PTL_NO_INIT: c_int = 16;
/// No room is left.
pub const PTL_NO_SPACE: c_int = 17;
/// There is no such process on this node, or it is in use.
pub const PTL_PID_INVALID: c_int = 18;
/// There is no such process.
pub const PTL_PROCESS_INVALID: c_int = 19;
/// All portals are in use. No call of this library returns it.
pub const PTL_PT_FULL: c_int = 20;
/// There is no such portal.
pub const PTL_PT_INDEX_INVALID: c_int = 21;
/// A pointer is NULL.
pub const PTL_SEGV: c_int = 22;
/// There is no such status register.
pub const PTL_SR_INDEX_INVALID: c_int = 23;

/// The name of a process in the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ptl_process_id_t {
    /// The node.
    pub nid: ptl_nid_t,
    /// The process on that node.
    pub pid: ptl_pid_t,
}

/// Limits of a network interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ptl_ni_limits_t {
    /// Match entries.
    pub max_mes: c_int,
    /// Memory descriptors.
    pub max_mds: c_int,
    /// Event queues.
    pub max_eqs: c_int,
    /// Highest number of an access control entry.
    pub max_ac_index: c_int,
    /// Highest number of a portal.
    pub max_pt_index: c_int,
    /// Pieces of a descriptor's memory: 0, because descriptors have none.
    pub max_md_iovecs: c_int,
    /// Match entries in a list.
    pub max_me_list: c_int,
    /// Bytes of a combined get and put: 0, because there are none.
    pub max_getput_md: c_int,
}

/// A memory descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ptl_md_t {
    /// Start of its memory, in memory from nicforge_portals_allocate.
    pub start: *mut c_void,
    /// Length of its memory.
    pub length: ptl_size_t,
    /// Number of operations that it takes, or PTL_MD_THRESH_INF.
    pub threshold: c_int,
    /// With PTL_MD_MAX_SIZE: it becomes inactive when fewer bytes than these are left.
    pub max_size: ptl_size_t,
    /// PTL_MD_... bits.
    pub options: c_uint,
    /// Value that its events show.
    pub user_ptr: *mut c_void,
    /// Queue for its events, or PTL_EQ_NONE.
    pub eq_handle: ptl_handle_eq_t,
}

/// An event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ptl_event_t {
    /// Its kind.
    pub r#type: ptl_event_kind_t,
    /// The process that has started the operation.
    pub initiator: ptl_process_id_t,
    /// The initiator's user: always PTL_UID_ANY, because messages carry none.
    pub uid: ptl_uid_t,
    /// The initiator's job: always PTL_JID_ANY, because messages carry none.
    pub jid: ptl_jid_t,
    /// Portal of the target.
    pub pt_index: ptl_pt_index_t,
    /// Match bits of the message.
    pub match_bits: ptl_match_bits_t,
    /// Bytes that the initiator asked for.
    pub rlength: ptl_size_t,
    /// Bytes that were moved.
    pub mlength: ptl_size_t,
    /// Offset in the descriptor; in an acknowledgement, in the target's.
    pub offset: ptl_size_t,
    /// The descriptor, which an automatic unlink may have made invalid.
    pub md_handle: ptl_handle_md_t,
    /// The descriptor's values as the program has set them.
    pub md: ptl_md_t,
    /// Data of the put's header.
    pub hdr_data: ptl_hdr_data_t,
    /// The same value in the events of one operation.
    pub link: ptl_seq_t,
    /// PTL_NI_OK, or the reason why the operation failed.
    pub ni_fail_type: ptl_ni_fail_t,
    /// Number of the event in its queue.
    pub sequence: ptl_seq_t,
}
