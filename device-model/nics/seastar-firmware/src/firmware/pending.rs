//! The pool of messages that are being sent.

use alloc::{boxed::Box, vec, vec::Vec};

use nicforge_hwi::seastar::{HeaderPacket, INLINE, MessageHeader, message};

use crate::{
    chip::Pieces,
    matching::OperationHandle,
    protocol::{Flight, Flights, Sequence, Slot, WIRE_MODULUS},
    scratch::{NoSpace, Scratch},
};

/// The end of a chain of a hash table.
pub(super) const NONE: u16 = u16::MAX;
/// Number of chains of a hash table: a power of two.
const CHAINS: usize = 256;

/// The part of the firmware that waits for the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// None: the process has ended.
    Gone,
    /// The kernel, which knows the message by this name.
    Kernel { token: u32 },
    /// A process. Its operation ends with the message.
    Operation { process: u16, operation: OperationHandle },
    /// A process that has sent a Portals acknowledgement. It does not wait for the end.
    Acknowledgement { process: u16 },
}

/// A message that is being sent.
#[derive(Debug)]
pub(super) struct Pending {
    flight: Flight<WIRE_MODULUS>,
    /// The target node.
    pub(super) node: u32,
    pub(super) packet: HeaderPacket,
    pub(super) pieces: Pieces,
    pub(super) owner: Owner,
    /// The quota that it counts in.
    pub(super) quota: Quota,
    /// Its memory could not be read.
    pub(super) has_fault: bool,
    /// The process that sends it has ended. Further transmissions carry no data: they would have
    /// those of the process's successor.
    pub(super) process_has_ended: bool,
    /// The next entry of its chain in the hash table.
    chain: u16,
}

/// A message that was removed from the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Removed {
    pub(super) owner: Owner,
    pub(super) quota: Quota,
    /// Kind of the message as it was last sent: [`message::VOID`] if its process had ended by then.
    pub(super) kind: u8,
    /// Its memory could not be read.
    pub(super) has_fault: bool,
}

/// The quotas of the pool, one of which each message counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quota {
    /// Messages of the kernel.
    Kernel,
    /// Commands of this process, and of those that had its number before.
    Process(u16),
    /// Replies and Portals acknowledgements.
    Answer,
}

impl Pending {
    /// Returns the state of the message's flow control.
    #[inline]
    pub(super) fn flight(&self) -> &Flight<WIRE_MODULUS> {
        &self.flight
    }

    /// Returns whether the message answers one of its target.
    fn is_answer(&self) -> bool {
        matches!(self.packet.trusted.kind, message::REPLY | message::PORTALS_ACK)
    }

    /// Returns whether the message is complete when it has been transmitted.
    pub(super) fn is_implicit(&self) -> bool {
        self.flight.is_implicit()
    }

    /// Turns the message into one without data, which only keeps its place in the send queue.
    pub(super) fn make_void(&mut self) {
        self.packet.trusted.kind = message::VOID;
        self.packet.trusted.length = 0;
        self.packet.message = MessageHeader::default();
        self.packet.inline = [0; INLINE];
        self.pieces = Pieces::None;
    }
}

/// The pool, with a hash table of its messages by node and sequence number.
pub(super) struct Pendings {
    entries: Vec<Option<Pending>>,
    /// Indices of the free entries.
    free: Vec<u16>,
    /// The first entry of each chain of the hash table.
    chains: Box<[u16]>,
}

impl Pendings {
    /// Allocates the pool.
    pub(super) fn new(capacity: u16, scratch: &mut Scratch) -> Result<Self, NoSpace> {
        let bytes_each = size_of::<Option<Pending>>() + size_of::<u16>();
        scratch.take(usize::from(capacity) * bytes_each + CHAINS * size_of::<u16>())?;

        let mut entries = Vec::with_capacity(usize::from(capacity));
        entries.resize_with(usize::from(capacity), || None);
        Ok(Self {
            entries,
            free: (0..capacity).rev().collect(),
            chains: vec![NONE; CHAINS].into_boxed_slice(),
        })
    }

    /// Adds a message. Returns `None` if the pool is full.
    pub(super) fn insert(
        &mut self,
        flight: Flight<WIRE_MODULUS>,
        node: u32,
        packet: HeaderPacket,
        pieces: Pieces,
        owner: Owner,
        quota: Quota,
    ) -> Option<Slot> {
        let index = self.free.pop()?;
        let head = self.chains.get_mut(chain_of(node, flight.sequence()))?;
        let chain = core::mem::replace(head, index);
        let entry = self.entries.get_mut(usize::from(index))?;
        let (has_fault, process_has_ended) = (false, false);
        *entry =
            Some(Pending { flight, node, packet, pieces, owner, quota, has_fault, process_has_ended, chain });
        Some(Slot(index))
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot) -> Option<&Pending> {
        self.entries.get(usize::from(slot.0))?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Pending> {
        self.entries.get_mut(usize::from(slot.0))?.as_mut()
    }

    /// Returns the state of a message's flow control.
    pub(super) fn flight(&self, slot: Slot) -> Option<&Flight<WIRE_MODULUS>> {
        self.get(slot).map(|pending| &pending.flight)
    }

    /// Removes a message. Returns the few fields that a report of its end needs: its header and
    /// pieces are not copied.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<Removed> {
        let entry = self.entries.get_mut(usize::from(slot.0))?;
        let pending = entry.as_ref()?;
        let Pending { owner, quota, has_fault, chain: following, .. } = *pending;
        let removed = Removed { owner, quota, kind: pending.packet.trusted.kind, has_fault };
        let chain = chain_of(pending.node, pending.flight.sequence());
        *entry = None;
        self.free.push(slot.0);
        self.unchain(slot, chain, following);
        Some(removed)
    }

    /// Takes a message out of a chain of the hash table. `following` is the next one there.
    fn unchain(&mut self, slot: Slot, chain: usize, following: u16) {
        let Some(head) = self.chains.get_mut(chain) else { return };
        if *head == slot.0 {
            *head = following;
            return;
        }
        let mut next = *head;
        while let Some(other) = self.get_mut(Slot(next)) {
            if other.chain == slot.0 {
                other.chain = following;
                return;
            }
            next = other.chain;
        }
    }

    /// Gives a message another sequence number.
    fn renumber(&mut self, slot: Slot, sequence: Sequence<WIRE_MODULUS>) {
        let Some(pending) = self.get(slot) else { return };
        let (node, following) = (pending.node, pending.chain);
        self.unchain(slot, chain_of(node, pending.flight.sequence()), following);

        let Some(head) = self.chains.get_mut(chain_of(node, sequence)) else { return };
        let following = core::mem::replace(head, slot.0);
        if let Some(pending) = self.get_mut(slot) {
            pending.flight.set_sequence(sequence);
            pending.packet.trusted.sequence = sequence.value();
            pending.chain = following;
        }
    }

    /// Returns all messages.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.entries.iter_mut().flatten()
    }

    /// Returns the number of entries.
    pub(super) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of free entries.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the messages to a node, for calls of its [`crate::protocol::Sender`].
    pub(super) fn to(&mut self, node: u32) -> ToNode<'_> {
        ToNode { pendings: self, node }
    }
}

/// Returns the index of the chain that has a message.
#[inline]
fn chain_of(node: u32, sequence: Sequence<WIRE_MODULUS>) -> usize {
    (node.wrapping_mul(31).wrapping_add(u32::from(sequence.value()))) as usize % CHAINS
}

impl ToNode<'_> {
    /// Returns whether a message answers one of the node.
    pub(super) fn is_answer(&self, slot: Slot) -> bool {
        self.pendings.get(slot).is_some_and(Pending::is_answer)
    }
}

/// The messages to a node.
pub(super) struct ToNode<'a> {
    pendings: &'a mut Pendings,
    node: u32,
}

impl Flights<WIRE_MODULUS> for ToNode<'_> {
    #[inline]
    fn flight(&self, slot: Slot) -> Option<&Flight<WIRE_MODULUS>> {
        self.pendings.flight(slot)
    }

    #[inline]
    fn flight_mut(&mut self, slot: Slot) -> Option<&mut Flight<WIRE_MODULUS>> {
        self.pendings.get_mut(slot).map(|pending| &mut pending.flight)
    }

    fn renumber(&mut self, slot: Slot, sequence: Sequence<WIRE_MODULUS>) {
        self.pendings.renumber(slot, sequence);
    }

    fn find(&self, sequence: Sequence<WIRE_MODULUS>) -> Option<Slot> {
        let mut next = *self.pendings.chains.get(chain_of(self.node, sequence))?;
        while let Some(pending) = self.pendings.get(Slot(next)) {
            if pending.node == self.node && pending.flight.sequence() == sequence {
                return Some(Slot(next));
            }
            next = pending.chain;
        }
        None
    }
}
