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
/// The portal of the reserve, which no message names.
const RESERVE: u8 = 8;

/// Match bits of a probe.
pub(super) const PROBE: u64 = 1;
/// Match bits of requests for data, of notices, and of questions for a message. The bits of
/// [`REQUEST_KIND_BITS`] tell them apart.
pub(super) const REQUEST: u64 = 4;
pub(super) const GIVEN_UP: u64 = 5;
pub(super) const NO_LONGER_THERE: u64 = 6;
pub(super) const IS_THERE: u64 = 7;
const REQUEST_KIND_BITS: u64 = 3;

/// Values of the descriptors' user pointers. Those of receives are at least 2^32.
pub(super) const POINTER_OF_SENDS: u64 = 1;
pub(super) const POINTER_OF_REQUESTS: u64 = 2;
pub(super) const POINTER_OF_EXPOSED: u64 = 3;
pub(super) const POINTER_OF_LONG: u64 = 4;
pub(super) const POINTER_OF_OVERFLOW: u64 = 5;
/// That of the first buffer for unexpected messages.
pub(super) const POINTER_OF_BUFFERS: u64 = 16;

/// Entries that are given up when a fetch or a buffer finds no room. Posted receives could take all
/// entries of the card, and wait for messages that come only after those that are fetched.
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
    /// Buffers for unexpected messages, and after them the slots of short ones.
    bounce: Region,
    slots: MemoryDescriptor,
    /// Offset of the first slot in that region.
    slots_offset: u64,
    slot_bytes: u64,
    buffer: BufferValues,
    long: MatchEntry,
    overflow: MatchEntry,
    reserve: Vec<MemoryDescriptor>,
    /// The size of a full reserve.
    reserved: usize,
}

/// The values of the buffers for unexpected messages.
#[derive(Clone, Copy)]
struct BufferValues {
    bytes: u64,
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

        // Descriptors without memory take the header of a message.
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

    /// Lets the card answer the probes of other ranks.
    pub(super) fn answer_probes(&self) -> Result<(), Error> {
        let values = Descriptor {
            length: 0,
            options: Options::PUT | Options::TRUNCATE,
            ..Descriptor::over(&self.bounce)
        };
        let criteria = Criteria::bits(PROBE);
        self.interface.post(Position::Tail(CONTROL), criteria, Unlink::Retain, &values, None)?;
        Ok(())
    }

    /// Returns the memory that a message leaves from: the slot, into which the message is copied,
    /// or its buffer.
    pub(super) fn fill_source(&self, buffer: &Buffer, slot: Option<u16>) -> Result<Source, Error> {
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

    /// Puts `length` bytes, and asks for an acknowledgement. Returns `false` if the card has no
    /// room now.
    pub(super) fn put(&self, source: Source, length: u64, target: &Target, id: u64) -> Result<bool, Error> {
        let (descriptor, offset) = match source {
            Source::Segment { segment, offset } => (&self.segments[segment as usize], offset),
            Source::Slot(slot) => (&self.slots, self.slots_offset + u64::from(slot) * self.slot_bytes),
        };
        room(self.interface.put_region(descriptor, offset, length, Ack::Requested, target, id))
    }

    /// Puts nothing but a header to the portal [`CONTROL`].
    pub(super) fn control(&self, to: ProcessId, bits: u64, id: u64) -> Result<bool, Error> {
        let ack = if bits == PROBE { Ack::Requested } else { Ack::No };
        room(self.interface.put_region(&self.slots, 0, 0, ack, &Target::new(to, CONTROL, bits), id))
    }

    /// Gets data into a buffer, by a descriptor of its own: its end ends the get, which the target
    /// may drop in silence. Returns `None` if the card has no room. It may use the reserve.
    pub(super) fn get(
        &mut self,
        into: &Buffer,
        length: u64,
        from: ProcessId,
        id: u64,
        user_pointer: u64,
    ) -> Result<Option<MemoryDescriptor>, Error> {
        let descriptor = loop {
            let options = Options::START_DISABLE;
            let values = Descriptor { options, length, user_pointer, ..self.single_use_descriptor(into) };
            match self.interface.bind_descriptor(&values) {
                Ok(descriptor) => break descriptor,
                Err(error) if error.refusal() != Some(Refusal::NoSpace) => return Err(error.into()),
                Err(_) if self.give_up_reserve()? => {}
                Err(_) => return Ok(None),
            }
        };

        if room(self.interface.get(&descriptor, &Target::new(from, EXPOSED, id)))? {
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

    /// Offers a buffer to one put of `writer` to the portal [`REPEATED`]. It may use the reserve.
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
                None if self.give_up_reserve()? => {}
                created => return Ok(created),
            }
        }
    }

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

    /// Posts a receive, unless unexpected messages have come meanwhile.
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
                Err(_) if self.give_up_reserve()? => {}
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

    /// The values of a descriptor that takes one put.
    fn receive_descriptor(&self, buffer: &Buffer) -> Descriptor<'_> {
        let options = Options::PUT | Options::TRUNCATE | Options::START_DISABLE;
        Descriptor { options, ..self.single_use_descriptor(buffer) }
    }

    /// The values of a descriptor of a buffer for one operation.
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

    /// Frees space in the card by removing an entry of the reserve. Returns `false` if there is
    /// none.
    fn give_up_reserve(&mut self) -> Result<bool, Error> {
        match self.reserve.pop() {
            None => Ok(false),
            Some(descriptor) => self.unlink(&descriptor),
        }
    }

    /// Adds entries to the reserve while the card has space. Returns whether the reserve is full:
    /// until then neither receives nor exposed messages get space.
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

/// Returns `false` for a refusal for lack of space, which ends when operations end.
fn room(result: Result<(), PortalsError>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.refusal() == Some(Refusal::NoSpace) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Copies memory of one region to another.
fn copy(from: &Region, offset: u64, to: &Region, to_offset: u64, length: u64) -> Result<(), Error> {
    nicforge_driver::runtime::charge(nicforge_driver::runtime::Cost::CopyByte, length as usize);
    let missing = |region: &Region| PortalsError::OutOfRange { offset, length, size: region.len() };
    let source = from.buffer().ok_or_else(|| missing(from))?.window();
    let target = to.buffer().ok_or_else(|| missing(to))?.window();
    source.copy_to(offset, target, to_offset, length).map_err(PortalsError::from)?;
    Ok(())
}
