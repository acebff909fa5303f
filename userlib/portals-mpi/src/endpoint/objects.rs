//! The process's objects of Portals.
//!
//! The match list of the portal of messages:
//!
//! | entries | take | data |
//! | --- | --- | --- |
//! | posted receives | context, source, tag | into their buffer |
//! | one for long messages | all long ones | dropped |
//! | buffers for unexpected messages | all short and medium ones | into the buffer |
//! | one for the overflow | all short and medium ones | dropped |
//!
//! The last three have the queue that `PtlPost` tests. The entries that drop data send no
//! acknowledgement: the sender keeps the data until they were fetched.

use std::sync::Arc;

use nicforge_portals::{
    Ack, Criteria, Descriptor, Error as PortalsError, EventQueue, Initiator, Interface, MatchEntry,
    MemoryDescriptor, Options, Position, ProcessId, Refusal, Region, Target, Threshold, Unlink,
};

use crate::{
    Buffer, Config, Error, Segment,
    bits::{self, Protocol},
    memory::Space,
};

/// The portal of messages.
pub(super) const MESSAGES: u8 = 4;
/// The portal of long messages that wait for a get.
pub(super) const EXPOSED: u8 = 5;
/// The portal of data that are sent again.
pub(super) const REPEATED: u8 = 6;
/// The portal of requests for data, of notices, and of probes whether a rank is there.
pub(super) const CONTROL: u8 = 7;
/// The portal of the reserve's entries, to which no message is sent.
const RESERVE: u8 = 8;

/// Match bits of a probe.
pub(super) const PROBE: u64 = 1;
/// Match bits of a receiver's request for the data of a message.
pub(super) const REQUEST: u64 = 4;
/// Match bits of the notice [`super::notices::Notice::GivenUp`].
pub(super) const GIVEN_UP: u64 = 5;
/// Match bits of the notice [`super::notices::Notice::NoLongerThere`].
pub(super) const NO_LONGER_THERE: u64 = 6;
/// Match bits of the notice [`super::notices::Notice::IsThere`].
pub(super) const IS_THERE: u64 = 7;
/// Match bits of the notice [`super::notices::Notice::Kept`].
pub(super) const KEPT: u64 = 12;
/// Match bits of the notice [`super::notices::Notice::Full`].
pub(super) const WINDOW_FULL: u64 = 13;
/// Match bits of the notice [`super::notices::Notice::Blocked`].
pub(super) const BLOCKED: u64 = 14;
/// The bits in which the seven values above differ: one match entry takes all of them.
const REQUEST_KIND_BITS: u64 = 0b1011;

// Values of the descriptors' user pointers, by which events tell what their descriptor is for.
// Those of receives are their handles, which are at least 2^32.
/// User pointer of the descriptors that messages leave from.
pub(super) const POINTER_OF_SENDS: u64 = 1;
/// User pointer of the descriptor that takes control messages.
pub(super) const POINTER_OF_REQUESTS: u64 = 2;
/// User pointer of the descriptors of exposed messages.
pub(super) const POINTER_OF_EXPOSED: u64 = 3;
/// User pointer of the descriptor that takes the headers of long messages.
pub(super) const POINTER_OF_LONG: u64 = 4;
/// User pointer of the descriptor that takes the headers of messages that find no buffer.
pub(super) const POINTER_OF_OVERFLOW: u64 = 5;
/// User pointer of the first buffer for unexpected messages. The others follow it.
pub(super) const POINTER_OF_BUFFERS: u64 = 16;

/// Number of unused match entries that are held in reserve, and freed when a fetch or a buffer
/// finds no room on the card. Without them, posted receives could take all entries of the card, and
/// wait for messages that come only after those that are fetched.
const RESERVED: usize = 8;

/// Memory that a message leaves from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A part of a segment.
    Segment { segment: Segment, offset: u64 },
    /// A slot of the library.
    Slot(u16),
}

/// The Portals objects of a process: event queues, descriptors and match entries.
pub(super) struct PortalsObjects {
    pub(super) interface: Interface,
    /// Events of unexpected messages.
    pub(super) unexpected: EventQueue,
    /// Events of all else.
    pub(super) events: EventQueue,
    /// Descriptors of the data, the heap and the stack.
    segments: [MemoryDescriptor; 3],
    /// Memory of the library: buffers for unexpected messages, and after them slots for short ones.
    bounce: Region,
    /// Descriptor of that memory, from which short messages leave.
    slots: MemoryDescriptor,
    /// Offset of the first slot in that memory.
    slots_offset: u64,
    /// Bytes of a slot.
    slot_bytes: u64,
    buffer: BufferValues,
    /// The entry for long messages. Posted receives stand in front of it.
    long: MatchEntry,
    /// The entry for messages that find no buffer. The buffers stand in front of it.
    overflow: MatchEntry,
    /// Descriptors of the entries held in reserve.
    reserve: Vec<MemoryDescriptor>,
    /// The size of a full reserve: fewer than [`RESERVED`] on a card with little room.
    reserved: usize,
}

/// The properties that all buffers for unexpected messages have.
#[derive(Clone, Copy)]
struct BufferValues {
    /// Bytes of a buffer.
    bytes: u64,
    /// Maximum number of messages in a buffer.
    messages: u32,
    /// The longest message.
    longest: u64,
}

impl PortalsObjects {
    /// Creates the queues, the descriptors and the fixed match entries. The buffers for unexpected
    /// messages are posted later.
    pub(super) fn open(
        interface: Interface,
        space: &Arc<Space>,
        config: &Config,
        ranks: u32,
    ) -> Result<Self, Error> {
        let buffer = BufferValues {
            bytes: config.unexpected.bytes,
            messages: config.unexpected.messages,
            longest: config.medium as u64,
        };
        let slots_offset = u64::from(config.unexpected.buffers) * buffer.bytes;
        let slot_bytes = (config.short as u64).max(1).next_multiple_of(64);
        let slots_bytes = slot_bytes * u64::from(config.slots.max(1));
        let bounce = interface.allocate(slots_offset + slots_bytes)?;

        let unexpected = interface.allocate_queue(config.unexpected_events(ranks))?;
        let events = interface.allocate_queue(config.other_events(ranks))?;
        let source = |region| {
            let (queue, options) = (Some(&events), Options::START_DISABLE);
            let values =
                Descriptor { options, queue, user_pointer: POINTER_OF_SENDS, ..Descriptor::over(region) };
            interface.bind_descriptor(&values)
        };
        let [data, heap, stack] = Segment::ALL.map(|segment| source(space.region(segment)));
        let (segments, slots) = ([data?, heap?, stack?], source(&bounce)?);

        // A descriptor without memory takes the header of a message, and drops its data.
        let header_only = |user_pointer, queue| Descriptor {
            length: 0,
            options: Options::PUT | Options::TRUNCATE | Options::ACK_DISABLE,
            user_pointer,
            queue: Some(queue),
            ..Descriptor::over(&bounce)
        };
        let attach = |portal, criteria, values: &Descriptor<'_>| {
            let entry = interface.attach_entry(Position::Tail(portal), criteria, Unlink::Retain)?;
            interface.attach_descriptor(entry, values).map(|_| entry)
        };
        let long =
            attach(MESSAGES, bits::of_protocol(Protocol::Long), &header_only(POINTER_OF_LONG, &unexpected))?;
        let overflow = attach(
            MESSAGES,
            bits::of_protocol(Protocol::Eager),
            &header_only(POINTER_OF_OVERFLOW, &unexpected),
        )?;
        let requests = header_only(POINTER_OF_REQUESTS, &events);
        let requests = Descriptor { options: requests.options | Options::START_DISABLE, ..requests };
        let criteria = Criteria { ignore_bits: REQUEST_KIND_BITS, ..Criteria::bits(REQUEST) };
        attach(CONTROL, criteria, &requests)?;

        let mut objects = Self {
            interface,
            unexpected,
            events,
            segments,
            bounce,
            slots,
            slots_offset,
            slot_bytes,
            buffer,
            long,
            overflow,
            reserve: Vec::with_capacity(RESERVED),
            reserved: RESERVED,
        };
        objects.refill_reserve()?;
        objects.reserved = objects.reserve.len();
        Ok(objects)
    }

    /// Posts the entry whose acknowledgements answer the probes of other ranks.
    pub(super) fn post_probe_entry(&self) -> Result<(), Error> {
        let values = Descriptor {
            length: 0,
            options: Options::PUT | Options::TRUNCATE,
            ..Descriptor::over(&self.bounce)
        };
        let criteria = Criteria::bits(PROBE);
        self.interface.post(Position::Tail(CONTROL), criteria, Unlink::Retain, &values, None)?;
        Ok(())
    }

    /// Returns the memory that a message leaves from: a slot, into which this call copies the
    /// message, or its buffer if `slot` is `None`.
    pub(super) fn prepare_source(&self, buffer: &Buffer, slot: Option<u16>) -> Result<Source, Error> {
        match slot {
            Some(slot) => {
                self.fill_slot(slot, buffer)?;
                Ok(Source::Slot(slot))
            }
            None => Ok(Source::Segment { segment: buffer.segment(), offset: buffer.start() }),
        }
    }

    /// Copies a short message into a slot.
    fn fill_slot(&self, slot: u16, from: &Buffer) -> Result<(), Error> {
        let to = self.slots_offset + u64::from(slot) * self.slot_bytes;
        copy(from.region(), from.start(), &self.bounce, to, from.len() as u64)
    }

    /// Copies a part of a buffer for unexpected messages into the buffer of a receive.
    pub(super) fn copy_out(&self, buffer: u8, offset: u64, to: &Buffer, length: u64) -> Result<(), Error> {
        let from = u64::from(buffer) * self.buffer.bytes + offset;
        copy(&self.bounce, from, to.region(), to.start(), length)
    }

    /// Puts `length` bytes of a message with the header data `id`, and asks for an acknowledgement.
    /// Returns `false` if the card has no room now.
    pub(super) fn put(&self, source: Source, length: u64, target: &Target, id: u64) -> Result<bool, Error> {
        let (descriptor, offset) = match source {
            Source::Segment { segment, offset } => (&self.segments[segment as usize], offset),
            Source::Slot(slot) => (&self.slots, self.slots_offset + u64::from(slot) * self.slot_bytes),
        };
        has_found_room(self.interface.put_region(descriptor, offset, length, Ack::Requested, target, id))
    }

    /// Puts a control message to the portal [`CONTROL`]: a header without data. `id` is that of the
    /// message that it concerns. Returns `false` if the card has no room now.
    pub(super) fn put_control(&self, to: ProcessId, bits: u64, id: u64) -> Result<bool, Error> {
        let ack = if bits == PROBE { Ack::Requested } else { Ack::No };
        has_found_room(self.interface.put_region(&self.slots, 0, 0, ack, &Target::new(to, CONTROL, bits), id))
    }

    /// Gets the data of an exposed message into a buffer. The get has a descriptor of its own,
    /// which is returned: unlinking it ends a get that the target has dropped without an answer.
    /// Returns `None` if the card has no room. It may use the reserve.
    pub(super) fn get(
        &mut self,
        into: &Buffer,
        length: u64,
        from: ProcessId,
        id: u64,
        user_pointer: u64,
    ) -> Result<Option<MemoryDescriptor>, Error> {
        // Entries of the reserve are freed until the descriptor finds room.
        let descriptor = loop {
            let options = Options::START_DISABLE;
            let values = Descriptor { options, length, user_pointer, ..self.single_use_descriptor(into) };
            match self.interface.bind_descriptor(&values) {
                Ok(descriptor) => break descriptor,
                Err(error) if error.refusal() != Some(Refusal::NoSpace) => return Err(error.into()),
                Err(_) if self.free_reserved()? => {}
                Err(_) => return Ok(None),
            }
        };

        if has_found_room(self.interface.get(&descriptor, &Target::new(from, EXPOSED, id)))? {
            return Ok(Some(descriptor));
        }
        self.unlink(&descriptor)?;
        Ok(None)
    }

    /// Exposes a buffer for one get of `reader`. Returns `None` if the card has no room.
    pub(super) fn expose(
        &mut self,
        buffer: &Buffer,
        reader: ProcessId,
        id: u64,
    ) -> Result<Option<MemoryDescriptor>, Error> {
        if !self.refill_reserve()? {
            return Ok(None);
        }
        let values = Descriptor {
            options: Options::GET | Options::START_DISABLE,
            user_pointer: POINTER_OF_EXPOSED,
            ..self.single_use_descriptor(buffer)
        };
        self.post_for(EXPOSED, reader, id, &values)
    }

    /// Offers a buffer to one put of `writer` to the portal [`REPEATED`]. Returns `None` if the
    /// card has no room. It may use the reserve.
    pub(super) fn offer(
        &mut self,
        buffer: &Buffer,
        writer: ProcessId,
        id: u64,
        user_pointer: u64,
    ) -> Result<Option<MemoryDescriptor>, Error> {
        loop {
            let values = Descriptor { user_pointer, ..self.receive_descriptor(buffer) };
            match self.post_for(REPEATED, writer, id, &values)? {
                None if self.free_reserved()? => {}
                created => return Ok(created),
            }
        }
    }

    /// Posts a match entry that takes messages of one process with the match bits `id`. Returns its
    /// descriptor, or `None` if the card has no room.
    fn post_for(
        &self,
        portal: u8,
        peer: ProcessId,
        id: u64,
        values: &Descriptor<'_>,
    ) -> Result<Option<MemoryDescriptor>, Error> {
        let criteria = Criteria { initiator: Initiator::from(peer), ..Criteria::bits(id) };
        match self.interface.post(Position::Tail(portal), criteria, Unlink::Automatic, values, None) {
            Ok(created) => Ok(created.map(|(_, descriptor)| descriptor)),
            Err(error) if error.refusal() == Some(Refusal::NoSpace) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Posts a receive, unless there are events of unexpected messages, which may match it.
    pub(super) fn post_receive(
        &self,
        criteria: Criteria,
        buffer: &Buffer,
        user_pointer: u64,
    ) -> Result<Posting, Error> {
        let (position, test) = (Position::Before(self.long), Some(&self.unexpected));
        let values = Descriptor { user_pointer, ..self.receive_descriptor(buffer) };
        match self.interface.post(position, criteria, Unlink::Automatic, &values, test) {
            Ok(Some((_, descriptor))) => Ok(Posting::Posted(descriptor)),
            Ok(None) => Ok(Posting::Unexpected),
            Err(error) if error.refusal() == Some(Refusal::NoSpace) => Ok(Posting::NoRoom),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends a buffer for unexpected messages to the match list. Returns `false` if the card has
    /// no space. It may use the reserve.
    pub(super) fn post_buffer(&mut self, buffer: u8) -> Result<bool, Error> {
        let BufferValues { bytes, messages, longest } = self.buffer;
        loop {
            let values = Descriptor {
                offset: u64::from(buffer) * bytes,
                length: bytes,
                threshold: Threshold::Operations(messages),
                max_size: Some(longest),
                options: Options::PUT,
                unlink: Unlink::Automatic,
                user_pointer: POINTER_OF_BUFFERS + u64::from(buffer),
                queue: Some(&self.unexpected),
                ..Descriptor::over(&self.bounce)
            };
            let (position, criteria) = (Position::Before(self.overflow), bits::of_protocol(Protocol::Eager));

            match self.interface.post(position, criteria, Unlink::Automatic, &values, None) {
                Ok(_) => return Ok(true),
                Err(error) if error.refusal() != Some(Refusal::NoSpace) => return Err(error.into()),
                Err(_) if self.free_reserved()? => {}
                Err(_) => return Ok(false),
            }
        }
    }

    /// Removes a descriptor with its entry. Returns `false` if an operation has taken it.
    pub(super) fn unlink(&self, descriptor: &MemoryDescriptor) -> Result<bool, Error> {
        match self.interface.unlink_descriptor(descriptor) {
            Ok(()) => Ok(true),
            Err(error) => match error.refusal() {
                Some(Refusal::Descriptor | Refusal::DescriptorInUse) => Ok(false),
                _ => Err(error.into()),
            },
        }
    }

    /// Returns the values of a descriptor of a buffer that takes one put.
    fn receive_descriptor(&self, buffer: &Buffer) -> Descriptor<'_> {
        let options = Options::PUT | Options::TRUNCATE | Options::START_DISABLE;
        Descriptor { options, ..self.single_use_descriptor(buffer) }
    }

    /// Returns the values of a descriptor of a buffer for one operation, without options.
    fn single_use_descriptor<'a>(&'a self, buffer: &Buffer) -> Descriptor<'a> {
        Descriptor {
            offset: buffer.start(),
            length: buffer.len() as u64,
            threshold: Threshold::Operations(1),
            unlink: Unlink::Automatic,
            queue: Some(&self.events),
            ..Descriptor::over(self.segments[buffer.segment() as usize].region())
        }
    }

    /// Frees space on the card by removing an entry of the reserve. Returns `false` if the reserve
    /// is empty.
    fn free_reserved(&mut self) -> Result<bool, Error> {
        match self.reserve.pop() {
            None => Ok(false),
            Some(descriptor) => self.unlink(&descriptor),
        }
    }

    /// Adds entries to the reserve while the card has space. Returns whether the reserve is full.
    /// Until then, callers neither post receives nor expose messages.
    pub(super) fn refill_reserve(&mut self) -> Result<bool, Error> {
        while self.reserve.len() < self.reserved {
            let values = Descriptor { length: 0, ..Descriptor::over(&self.bounce) };
            let posted = self.interface.post(
                Position::Tail(RESERVE),
                Criteria::bits(0),
                Unlink::Automatic,
                &values,
                None,
            );
            match posted {
                Ok(Some((_, descriptor))) => self.reserve.push(descriptor),
                Ok(None) => return Ok(false),
                Err(error) if error.refusal() == Some(Refusal::NoSpace) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

/// Outcome of posting a receive.
pub(super) enum Posting {
    /// It is posted.
    Posted(MemoryDescriptor),
    /// It is not posted, because the queue of unexpected messages is not empty, or will not be.
    Unexpected,
    /// It is not posted, because the card has no room.
    NoRoom,
}

/// Returns whether an operation was started, or `false` if the card had no room for it. There will
/// be room when other operations have ended.
fn has_found_room(result: Result<(), PortalsError>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.refusal() == Some(Refusal::NoSpace) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Copies memory of one region to another.
fn copy(from: &Region, offset: u64, to: &Region, to_offset: u64, length: u64) -> Result<(), Error> {
    nicforge_driver::runtime::charge(nicforge_driver::runtime::Cost::CopyByte, length as usize);
    let not_contiguous = |region: &Region| PortalsError::OutOfRange { offset, length, size: region.len() };
    let source = from.buffer().ok_or_else(|| not_contiguous(from))?.window();
    let target = to.buffer().ok_or_else(|| not_contiguous(to))?.window();
    source.copy_to(offset, target, to_offset, length).map_err(PortalsError::from)?;
    Ok(())
}
