//! Entries of a process's tables, and the values that a process gives for them.

use nicforge_hwi::seastar::{ANY_NODE, ANY_PROCESS, Event as EventRecord, THRESHOLD_INFINITE, option};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);
    };
}

handle!(
    /// Names a match entry of a process (`ptl_handle_me_t`).
    EntryHandle
);
handle!(
    /// Names a memory descriptor of a process (`ptl_handle_md_t`).
    DescriptorHandle
);
handle!(
    /// Names an event queue of a process (`ptl_handle_eq_t`).
    QueueHandle
);
handle!(
    /// Names an operation in progress. It names none any more after the operation's end.
    OperationHandle
);

/// The messages that a match entry takes (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criteria {
    /// Match bits.
    pub match_bits: u64,
    /// Bits that do not count in the comparison.
    pub ignore_bits: u64,
    /// The initiator's node, or [`ANY_NODE`].
    pub node: u32,
    /// The initiator's process, or [`ANY_PROCESS`].
    pub process: u16,
}

impl Criteria {
    /// Returns whether a message meets the criteria.
    #[inline]
    pub(super) fn accept(&self, match_bits: u64, node: u32, process: u16) -> bool {
        (self.match_bits ^ match_bits) & !self.ignore_bits == 0
            && (self.node == ANY_NODE || self.node == node)
            && (self.process == ANY_PROCESS || self.process == process)
    }
}

/// Where a new match entry goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// To the head of a portal's list (`PtlMEAttach`, `PTL_INS_BEFORE`).
    Head(u8),
    /// To the tail of a portal's list (`PtlMEAttach`, `PTL_INS_AFTER`).
    Tail(u8),
    /// In front of an entry (`PtlMEInsert`, `PTL_INS_BEFORE`).
    Before(EntryHandle),
    /// After an entry (`PtlMEInsert`, `PTL_INS_AFTER`).
    After(EntryHandle),
}

/// The values of a memory descriptor (`ptl_md_t`, section 3.10.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryDescriptor {
    /// Device address of its memory.
    pub start: u64,
    /// Bytes of its memory.
    pub length: u64,
    /// Number of operations until it is inactive, or [`THRESHOLD_INFINITE`].
    pub threshold: i32,
    /// With [`option::MAX_SIZE`]: it becomes inactive when fewer bytes than these are left.
    pub max_size: u64,
    /// Bits of [`option`] for descriptors.
    pub options: u16,
    /// Value that its events show.
    pub user_pointer: u64,
    /// Queue for its events.
    pub queue: Option<QueueHandle>,
}

/// The condition of an update: this queue must be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTest {
    /// The queue.
    pub queue: QueueHandle,
    /// Number of events that the process has taken from it, modulo 2^32.
    pub taken: u32,
}

/// A match entry.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) criteria: Criteria,
    /// Index of its descriptor, or [`NONE`].
    pub(super) descriptor: u16,
    /// The entry in front of it in its portal's list, or [`NONE`].
    pub(super) previous: u16,
    /// The entry after it in its portal's list, or [`NONE`].
    pub(super) next: u16,
    pub(super) portal: u8,
    /// It is unlinked with its descriptor.
    pub(super) unlinks: bool,
}

/// A memory descriptor.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) start: u64,
    pub(super) length: u64,
    /// Locally managed offset: where the next message goes.
    pub(super) offset: u64,
    pub(super) max_size: u64,
    pub(super) user_pointer: u64,
    pub(super) threshold: i32,
    pub(super) options: u16,
    /// Index of its entry, or [`NONE`].
    pub(super) entry: u16,
    /// Index of its queue, or [`NONE`].
    pub(super) queue: u16,
    /// Operations in progress.
    pub(super) in_progress: u16,
    /// Gets that wait for a reply.
    pub(super) waiting: u16,
    /// It takes no more operations: its threshold is 0, or its space is used up.
    pub(super) inactive: bool,
}

/// The range of a descriptor's memory that a message uses.
pub(super) struct DescriptorRange {
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Descriptor {
    /// Makes a descriptor. `queue` is the index of its queue.
    pub(super) fn new(values: &MemoryDescriptor, queue: u16, entry: u16) -> Self {
        Self {
            start: values.start,
            length: values.length,
            offset: 0,
            max_size: values.max_size,
            user_pointer: values.user_pointer,
            threshold: values.threshold,
            options: values.options,
            entry,
            queue,
            in_progress: 0,
            waiting: 0,
            inactive: values.threshold == 0,
        }
    }

    /// Returns whether all bits of `options` are set.
    #[inline]
    pub(super) fn has(&self, options: u16) -> bool {
        self.options & options == options
    }

    /// Counts an operation at the threshold. The last one makes the descriptor inactive.
    #[inline]
    pub(super) fn count_operation(&mut self) {
        if self.threshold != THRESHOLD_INFINITE {
            self.threshold -= 1;
            self.inactive |= self.threshold == 0;
        }
    }

    /// Returns the range for a message of `requested` bytes, or `None` if the descriptor does not
    /// accept it. `remote_offset` is the offset that the initiator asks for.
    #[inline]
    pub(super) fn range_for(&self, requested: u64, remote_offset: u64) -> Option<DescriptorRange> {
        let offset = if self.has(option::MANAGE_REMOTE) { remote_offset } else { self.offset };
        let available = self.length.checked_sub(offset)?;

        if requested <= available {
            Some(DescriptorRange { offset, length: requested })
        } else if self.has(option::TRUNCATE) {
            Some(DescriptorRange { offset, length: available })
        } else {
            None
        }
    }

    /// Moves the locally managed offset to the end of a message that was taken. The descriptor
    /// becomes inactive if too few bytes are left.
    #[inline]
    pub(super) fn advance_offset(&mut self, end: u64) {
        if self.has(option::MANAGE_REMOTE) {
            return;
        }
        self.offset = end;
        self.inactive |= self.has(option::MAX_SIZE) && self.length - end < self.max_size;
    }

    /// Returns whether the descriptor is used up and has no operation in progress, so that it is
    /// unlinked.
    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.inactive && self.has(option::UNLINK) && self.in_progress == 0 && self.waiting == 0
    }
}

/// An event queue in the process's memory.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) start: u64,
    /// Number of its slots less one; the number is a power of two.
    pub(super) mask: u32,
    /// Number of events written, modulo 2^32.
    pub(super) written: u32,
    /// Operations in progress that will write events to it.
    pub(super) in_progress: u32,
    /// Descriptors that use it.
    pub(super) users: u32,
}

/// The slot of an event in the process's memory.
pub(super) struct QueueSlot {
    /// Number of the event, from 1, modulo 2^32.
    pub(super) number: u32,
    /// Device address of the slot.
    pub(super) address: u64,
}

impl Queue {
    /// Takes the slot of the next event.
    #[inline]
    pub(super) fn take_slot(&mut self) -> QueueSlot {
        let index = self.written;
        self.written = index.wrapping_add(1);
        let slot = u64::from(index & self.mask);
        QueueSlot {
            number: index.wrapping_add(1),
            address: self.start + slot * size_of::<EventRecord>() as u64,
        }
    }
}

/// Kind of an operation, and for a get its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The process's put is being sent.
    Put,
    /// The process's get has no reply yet.
    Get,
    /// The reply to the process's get is being received.
    Reply,
    /// A put to the process is being received.
    IncomingPut,
    /// The reply to a get from the process is being sent.
    IncomingGet,
}

impl Kind {
    /// Returns whether the process has started the operation.
    pub(super) fn is_outgoing(self) -> bool {
        matches!(self, Self::Put | Self::Get | Self::Reply)
    }
}

/// An operation between its begin and its end.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) match_bits: u64,
    pub(super) header_data: u64,
    /// Offset in the descriptor.
    pub(super) offset: u64,
    /// Bytes that the initiator asks for.
    pub(super) requested: u32,
    /// Bytes that are moved: fewer than requested if the message is truncated.
    pub(super) moved: u32,
    /// Node of the other process.
    pub(super) node: u32,
    /// Value that all its events share.
    pub(super) link: u32,
    /// Number of the other process on its node.
    pub(super) process: u16,
    /// Index of its descriptor, which exists as long as the operation.
    pub(super) descriptor: u16,
    pub(super) portal: u8,
    pub(super) kind: Kind,
    /// It is a get to which no reply comes, because the target's incarnation has ended.
    pub(super) is_lost: bool,
}
