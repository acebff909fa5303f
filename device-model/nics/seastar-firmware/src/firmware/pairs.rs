//! State of each other node that is kept at all times: sequence numbers and four bits.

use alloc::{boxed::Box, vec};

use crate::{
    protocol::{Judgement, Pressure, Receiver, Sequence, WIRE_MODULUS},
    scratch::{NoSpace, Scratch},
};

/// A set of nodes, as a bit for each node of the network.
pub(super) struct Bits(Box<[u64]>);

impl Bits {
    /// Makes a set without nodes, for a network of `nodes` nodes.
    pub(super) fn new(nodes: u32) -> Self {
        Self(vec![0; nodes.div_ceil(64) as usize].into_boxed_slice())
    }

    #[inline]
    pub(super) fn get(&self, node: u32) -> bool {
        self.0.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 != 0)
    }

    #[inline]
    pub(super) fn set(&mut self, node: u32, value: bool) {
        if let Some(word) = self.0.get_mut(node as usize / 64) {
            *word = *word & !(1 << (node % 64)) | u64::from(value) << (node % 64);
        }
    }

    /// Returns the first node with a set bit, in at most `limit` words from `start` on. The search
    /// wraps around after the last word.
    pub(super) fn find(&self, start: usize, limit: usize) -> Option<u32> {
        let count = self.0.len();
        (start..start + limit.min(count)).find_map(|index| {
            let index = index % count;
            let bits = *self.0.get(index)?;
            (bits != 0).then(|| index as u32 * 64 + bits.trailing_zeros())
        })
    }

    /// Returns the number of words.
    pub(super) fn words(&self) -> usize {
        self.0.len()
    }
}

/// The sequence number of a new message.
pub(super) struct MessageNumber {
    pub(super) sequence: Sequence<WIRE_MODULUS>,
    /// The message resynchronises the receiver.
    pub(super) resynchronizes: bool,
}

/// Sequence numbers and bits of all pairs.
pub(super) struct Pairs {
    /// Number of the next message to each node.
    next: Box<[u16]>,
    /// Number of the dropped message that is expected from each node in the abnormal state.
    expected: Box<[u16]>,
    /// Nodes in the abnormal state: a message of theirs was dropped, and is not repeated yet.
    abnormal: Bits,
    /// Nodes of which a message was taken in this incarnation.
    seen: Bits,
    /// Nodes that the next message to them resynchronises.
    resynchronize: Bits,
    /// Nodes whose puts and gets the kernel does not take at present.
    refused: Bits,
    /// The state of the receiver that all nodes share.
    pressure: Pressure,
}

impl Pairs {
    /// Bits of scratch memory for each node: two sequence numbers, and a bit in each of four sets.
    const BITS_PER_NODE: usize = 2 * 16 + 4;

    /// Allocates the state of all nodes.
    pub(super) fn new(nodes: u32, scratch: &mut Scratch) -> Result<Self, NoSpace> {
        scratch.take((nodes as usize * Self::BITS_PER_NODE).div_ceil(8))?;
        let initial_numbers =
            || vec![Sequence::<WIRE_MODULUS>::INITIAL.value(); nodes as usize].into_boxed_slice();
        Ok(Self {
            next: initial_numbers(),
            expected: initial_numbers(),
            abnormal: Bits::new(nodes),
            seen: Bits::new(nodes),
            resynchronize: Bits::new(nodes),
            refused: Bits::new(nodes),
            pressure: Pressure::default(),
        })
    }

    /// Takes the number of the next message to a node.
    #[inline]
    pub(super) fn take_number(&mut self, node: u32) -> Option<MessageNumber> {
        let next = self.next.get_mut(node as usize)?;
        let sequence = Sequence::new(*next)?;
        *next = sequence.next().value();

        let resynchronizes = self.resynchronize.get(node);
        if resynchronizes {
            self.resynchronize.set(node, false);
        }
        Some(MessageNumber { sequence, resynchronizes })
    }

    /// Lets the next message to a node resynchronise it: the node then takes the message, whatever
    /// number it expects.
    pub(super) fn resynchronize(&mut self, node: u32) {
        self.resynchronize.set(node, true);
    }

    /// Records whether the kernel takes puts and gets of a node.
    pub(super) fn set_refused(&mut self, node: u32, is_refused: bool) {
        self.refused.set(node, is_refused);
    }

    /// Returns whether the kernel takes no puts and gets of a node at present.
    pub(super) fn is_refused(&self, node: u32) -> bool {
        self.refused.get(node)
    }

    /// Returns the receiver's side of a pair.
    #[inline]
    pub(super) fn receiver(&self, node: u32) -> Receiver<WIRE_MODULUS> {
        let mut receiver = Receiver { expected: None, seen: self.seen.get(node) };
        if self.pressure.is_abnormal() && self.abnormal.get(node) {
            receiver.expected = self.expected.get(node as usize).and_then(|number| Sequence::new(*number));
        }
        receiver
    }

    /// Stores the receiver's side of a pair after a judgement, and counts the judgement. Returns
    /// the place in line that a negative acknowledgement names.
    #[inline]
    pub(super) fn store(&mut self, node: u32, receiver: Receiver<WIRE_MODULUS>, judgement: Judgement) -> u16 {
        if receiver.seen {
            self.seen.set(node, true);
        }
        if judgement.changes_state {
            self.abnormal.set(node, receiver.expected.is_some());
        }
        if let (Some(number), Some(expected)) = (self.expected.get_mut(node as usize), receiver.expected) {
            *number = expected.value();
        }
        self.pressure.record(judgement)
    }

    /// Forgets the sequence number that is expected from a node whose incarnation has ended.
    pub(super) fn forget(&mut self, node: u32) {
        let mut receiver = self.receiver(node);
        if receiver.forget() {
            self.abnormal.set(node, false);
            self.pressure.forget();
        }
    }
}
