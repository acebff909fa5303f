//! State of each other node that is kept at all times: sequence numbers and three bits.

use alloc::{boxed::Box, vec};

use crate::{
    protocol::{Judgement, Pressure, Receiver, Sequence, WIRE_MODULUS},
    scratch::{NoSpace, Scratch},
};

/// A bit for each node.
pub(super) struct Bits(Box<[u64]>);

impl Bits {
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

    /// Returns the first node with a set bit in the words from `word` on, and its word. It looks at
    /// `limit` words, and begins again after the last one.
    pub(super) fn find(&self, word: usize, limit: usize) -> Option<u32> {
        let count = self.0.len();
        (word..word + limit.min(count)).find_map(|index| {
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

/// Sequence numbers and bits of all pairs.
pub(super) struct Pairs {
    /// Number of the next message to each node.
    next: Box<[u16]>,
    /// Number of the dropped message that is expected from each node in the abnormal state.
    expected: Box<[u16]>,
    /// The node is in the abnormal state.
    abnormal: Bits,
    /// A message of the node was taken in this incarnation.
    seen: Bits,
    /// The next message to the node resynchronises it.
    resynchronize: Bits,
    pressure: Pressure,
}

impl Pairs {
    /// Bytes of scratch memory for each node, in eighths.
    const EIGHTHS: usize = 4 * 8 + 3;

    /// Allocates the state of all nodes.
    pub(super) fn new(nodes: u32, scratch: &mut Scratch) -> Result<Self, NoSpace> {
        scratch.take((nodes as usize * Self::EIGHTHS).div_ceil(8))?;
        let numbers = || vec![Sequence::<WIRE_MODULUS>::INITIAL.value(); nodes as usize].into_boxed_slice();
        Ok(Self {
            next: numbers(),
            expected: numbers(),
            abnormal: Bits::new(nodes),
            seen: Bits::new(nodes),
            resynchronize: Bits::new(nodes),
            pressure: Pressure::default(),
        })
    }

    /// Returns the number of the next message to a node and whether it resynchronises the node.
    #[inline]
    pub(super) fn take_number(&mut self, node: u32) -> Option<(Sequence<WIRE_MODULUS>, bool)> {
        let next = self.next.get_mut(node as usize)?;
        let sequence = Sequence::new(*next)?;
        *next = sequence.next().value();

        let resynchronizes = self.resynchronize.get(node);
        if resynchronizes {
            self.resynchronize.set(node, false);
        }
        Some((sequence, resynchronizes))
    }

    /// Lets the next message to a node resynchronise it.
    pub(super) fn resynchronize(&mut self, node: u32) {
        self.resynchronize.set(node, true);
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

    /// Stores the receiver's side of a pair, and counts a judgement. Returns the place in line.
    #[inline]
    pub(super) fn store(&mut self, node: u32, receiver: Receiver<WIRE_MODULUS>, judgement: Judgement) -> u16 {
        if receiver.seen {
            self.seen.set(node, true);
        }
        if judgement.changed {
            self.abnormal.set(node, receiver.expected.is_some());
        }
        if let (Some(number), Some(expected)) = (self.expected.get_mut(node as usize), receiver.expected) {
            *number = expected.value();
        }
        self.pressure.count(judgement)
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
