//! The values of the interface.

use std::fmt;

use bitflags::bitflags;
use nicforge_hwi::seastar::{
    ANY_NODE, ANY_PORTAL, ANY_PROCESS, Event as EventRecord, THRESHOLD_INFINITE, event, failure, option,
};

use crate::{EventQueue, Region};

/// Bit of an event record's flags: its operation has unlinked the descriptor.
const UNLINKED: u16 = 1;

/// The name of a process in the network (`ptl_process_id_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Its node (`nid`).
    pub node: u32,
    /// Its number on the node (`pid`).
    pub process: u16,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of node {}", self.process, self.node)
    }
}

/// The processes that a match entry or an access control entry concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Initiator {
    /// A node, or any (`PTL_NID_ANY`).
    pub node: Option<u32>,
    /// A process of it, or any (`PTL_PID_ANY`).
    pub process: Option<u16>,
}

impl Initiator {
    /// Any process of any node.
    pub const ANY: Self = Self { node: None, process: None };

    /// Returns the node and the process as a command names them.
    pub(crate) fn encode(self) -> (u32, u16) {
        (self.node.unwrap_or(ANY_NODE), self.process.unwrap_or(ANY_PROCESS))
    }
}

impl From<ProcessId> for Initiator {
    fn from(id: ProcessId) -> Self {
        Self { node: Some(id.node), process: Some(id.process) }
    }
}

/// The messages that a match entry takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Criteria {
    /// The initiators.
    pub initiator: Initiator,
    /// Match bits.
    pub match_bits: u64,
    /// Bits that do not count in the comparison.
    pub ignore_bits: u64,
}

impl Criteria {
    /// Messages of any initiator with exactly these match bits.
    pub const fn bits(match_bits: u64) -> Self {
        Self { initiator: Initiator::ANY, match_bits, ignore_bits: 0 }
    }

    /// All messages.
    pub const ALL: Self = Self { initiator: Initiator::ANY, match_bits: 0, ignore_bits: u64::MAX };
}

/// Where a new match entry goes (`ptl_ins_pos_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// To the head of a portal's list.
    Head(u8),
    /// To the tail of a portal's list.
    Tail(u8),
    /// In front of an entry.
    Before(MatchEntry),
    /// After an entry.
    After(MatchEntry),
}

/// Whether an object is removed automatically (`ptl_unlink_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unlink {
    /// It stays until it is unlinked by a call (`PTL_RETAIN`).
    #[default]
    Retain,
    /// A descriptor is removed when it is inactive and its last operation has ended. An entry is
    /// removed with its descriptor (`PTL_UNLINK`).
    Automatic,
}

/// Names a match entry of an interface (`ptl_handle_me_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatchEntry(pub(crate) u32);

/// Names a memory descriptor of an interface, also in events (`ptl_handle_md_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DescriptorId(pub(crate) u32);

/// How many operations a descriptor takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// Any number (`PTL_MD_THRESH_INF`).
    #[default]
    Infinite,
    /// This number, at most 2^31 - 1. With 0 the descriptor is inactive.
    Operations(u32),
}

impl Threshold {
    /// Returns the threshold as a command names it.
    pub(crate) fn encode(self) -> i32 {
        match self {
            Self::Infinite => THRESHOLD_INFINITE,
            Self::Operations(count) => i32::try_from(count).unwrap_or(i32::MAX),
        }
    }
}

bitflags! {
    /// Options of a memory descriptor.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Options: u16 {
        /// It takes puts (`PTL_MD_OP_PUT`).
        const PUT = option::OP_PUT;
        /// It answers gets (`PTL_MD_OP_GET`).
        const GET = option::OP_GET;
        /// The initiator's offset counts (`PTL_MD_MANAGE_REMOTE`). Without it, messages follow
        /// each other in the memory.
        const MANAGE_REMOTE = option::MANAGE_REMOTE;
        /// A longer message is truncated (`PTL_MD_TRUNCATE`). Without it, it does not match.
        const TRUNCATE = option::TRUNCATE;
        /// No acknowledgement is sent (`PTL_MD_ACK_DISABLE`).
        const ACK_DISABLE = option::ACK_DISABLE;
        /// No events of starts (`PTL_MD_EVENT_START_DISABLE`).
        const START_DISABLE = option::START_DISABLE;
        /// No events of ends (`PTL_MD_EVENT_END_DISABLE`).
        const END_DISABLE = option::END_DISABLE;
    }
}

/// The values of a memory descriptor (`ptl_md_t`).
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// The region that its memory lies in.
    pub region: &'a Region,
    /// Start of its memory in the region.
    pub offset: u64,
    /// Length of its memory.
    pub length: u64,
    /// How many operations it takes.
    pub threshold: Threshold,
    /// It becomes inactive when fewer bytes than these are left (`PTL_MD_MAX_SIZE`).
    pub max_size: Option<u64>,
    /// Its options.
    pub options: Options,
    /// Whether it is removed automatically.
    pub unlink: Unlink,
    /// Value that its events show.
    pub user_pointer: u64,
    /// The queue for its events.
    pub queue: Option<&'a EventQueue>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor of a whole region, without options, that takes any number of operations.
    pub fn over(region: &'a Region) -> Self {
        Self {
            region,
            offset: 0,
            length: region.len(),
            threshold: Threshold::Infinite,
            max_size: None,
            options: Options::empty(),
            unlink: Unlink::Retain,
            user_pointer: 0,
            queue: None,
        }
    }
}

/// Whether a put asks for an acknowledgement (`ptl_ack_req_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// `PTL_NOACK_REQ`.
    No,
    /// `PTL_ACK_REQ`.
    Requested,
}

/// The part of a target process that a put or get addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The process.
    pub process: ProcessId,
    /// Its portal.
    pub portal: u8,
    /// Its access control entry.
    pub access: u8,
    /// Match bits.
    pub match_bits: u64,
    /// Offset in the target's descriptor, if that has [`Options::MANAGE_REMOTE`]; otherwise
    /// ignored.
    pub offset: u64,
}

impl Target {
    /// A portal of a process, with match bits, access control entry 0 and offset 0.
    pub const fn new(process: ProcessId, portal: u8, match_bits: u64) -> Self {
        Self { process, portal, access: 0, match_bits, offset: 0 }
    }
}

/// An access control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The initiators that it permits.
    pub initiator: Initiator,
    /// The portal that they may use, or any (`PTL_PT_INDEX_ANY`).
    pub portal: Option<u8>,
}

impl Access {
    /// Returns the portal as a command names it.
    pub(crate) fn portal(self) -> u8 {
        self.portal.unwrap_or(ANY_PORTAL)
    }
}

/// A status register of an interface (`ptl_sr_index_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Messages that no descriptor took (`PTL_SR_DROP_COUNT`).
    DropCount,
    /// Messages that access control refused (`PTL_SR_PERMISSIONS_VIOLATIONS`).
    PermissionViolations,
}

/// Kinds of events (`ptl_event_kind_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A get arrives.
    GetStart,
    /// A get was answered.
    GetEnd,
    /// A put arrives.
    PutStart,
    /// A put is in memory.
    PutEnd,
    /// The reply to a get arrives.
    ReplyStart,
    /// The reply to a get is in memory.
    ReplyEnd,
    /// The sending of a put begins.
    SendStart,
    /// A put was sent and accepted.
    SendEnd,
    /// The target has acknowledged a put.
    Ack,
    /// A descriptor was unlinked automatically.
    Unlink,
}

impl EventKind {
    /// Returns the kind with one of the codes of [`event`].
    fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            event::GET_START => Self::GetStart,
            event::GET_END => Self::GetEnd,
            event::PUT_START => Self::PutStart,
            event::PUT_END => Self::PutEnd,
            event::REPLY_START => Self::ReplyStart,
            event::REPLY_END => Self::ReplyEnd,
            event::SEND_START => Self::SendStart,
            event::SEND_END => Self::SendEnd,
            event::ACK => Self::Ack,
            event::UNLINK => Self::Unlink,
            _ => return None,
        })
    }
}

/// Reason why an operation failed (`ptl_ni_fail_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The other node is off, restarts, or was restarted.
    Node,
    /// The data did not arrive as they were sent, or the sender stopped in the middle.
    Data,
    /// Memory of a process could not be read or written.
    Memory,
    /// A code that this version does not know.
    Other(u16),
}

impl Failure {
    /// Returns the failure with one of the codes of [`failure`], or `None` for success.
    fn of_code(code: u16) -> Option<Self> {
        match code {
            0 => None,
            failure::NODE => Some(Self::Node),
            failure::DATA => Some(Self::Data),
            failure::MEMORY => Some(Self::Memory),
            other => Some(Self::Other(other)),
        }
    }
}

/// An event (`ptl_event_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// The other process: the initiator of a put or get, or the target of this process's one.
    pub peer: ProcessId,
    /// The descriptor.
    pub descriptor: DescriptorId,
    /// Value that the descriptor was given.
    pub user_pointer: u64,
    /// The addressed part of the target, and the bytes that were moved.
    pub message: Transfer,
    /// Why the operation failed, if it did.
    pub failure: Option<Failure>,
    /// Whether the operation has unlinked the descriptor.
    pub unlinked: bool,
    /// The same value in the events of one operation.
    pub link: u32,
    /// Number of the event in its queue.
    pub sequence: u32,
}

/// The message of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Portal of the target.
    pub portal: u8,
    /// Match bits.
    pub match_bits: u64,
    /// Data of the put's header.
    pub header_data: u64,
    /// Bytes that the initiator asked for (`rlength`).
    pub requested: u32,
    /// Bytes that were moved (`mlength`).
    pub moved: u32,
    /// Offset in the descriptor; in an acknowledgement, in the target's.
    pub offset: u64,
}

impl Event {
    /// Decodes an event, or returns `None` for a kind that does not exist.
    pub(crate) fn decode(record: &EventRecord) -> Option<Self> {
        Some(Self {
            kind: EventKind::of_code(record.kind)?,
            peer: ProcessId { node: record.node, process: record.process },
            descriptor: DescriptorId(record.descriptor),
            user_pointer: record.user_pointer,
            message: Transfer {
                portal: record.portal,
                match_bits: record.match_bits,
                header_data: record.header_data,
                requested: record.requested,
                moved: record.moved,
                offset: record.offset,
            },
            failure: Failure::of_code(record.failure),
            unlinked: record.flags & UNLINKED != 0,
            link: record.link,
            sequence: record.number.wrapping_sub(1),
        })
    }
}
