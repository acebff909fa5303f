//! Presence: which cores of the machine have a client.
//!
//! When a core gains or loses its client, its node floods the tree with a presence symbol. Symbols
//! travel in the virtual channels, after the packets that the core has sent. Each NIC takes a
//! symbol out, notes it and passes it on.
//!
//! A symbol without a credit for the next link waits at that port. It goes before later packets for
//! the same port and does not block packets for other ports. A port's queue holds each node at most
//! once and sends the node's latest word, so the number of nodes bounds it.

use std::collections::VecDeque;

use nicforge_hwi::tree::{CORES, PORTS, VCS};

/// Marks a presence symbol in [`nicforge_core::fabric::Contents::header`]; tree headers have 32
/// bits.
const SYMBOL: u64 = 1 << 63;
/// Bytes of a symbol on the wire.
pub(crate) const SYMBOL_BYTES: u32 = 8;

/// Returns the packet header of the symbol that carries the generations of the cores of `node`, one
/// byte for each core.
pub(crate) fn symbol(node: u32, word: u32) -> u64 {
    SYMBOL | (u64::from(node) << 32) | u64::from(word)
}

/// A presence symbol: the generations of the cores of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) node: u32,
    /// Generations of the cores, one byte for each core.
    pub(crate) presence_word: u32,
}

/// Returns the symbol that a packet header carries; `None` for any other packet.
#[inline]
pub(crate) fn parse(header: u64) -> Option<Symbol> {
    let node = ((header & !SYMBOL) >> 32) as u32;
    (header & SYMBOL != 0).then_some(Symbol { node, presence_word: header as u32 })
}

/// Nodes whose word is queued for a port.
#[derive(Default)]
struct PortQueue {
    /// The nodes, in the order in which they are sent.
    nodes: VecDeque<u16>,
    /// The nodes in the queue, one bit for each node.
    queued: Vec<u64>,
}

impl PortQueue {
    /// Adds a node to the queue, unless it is queued already.
    fn add(&mut self, node: u32) {
        let (word, bit) = ((node / 64) as usize, 1u64 << (node % 64));

        if self.queued.len() <= word {
            self.queued.resize(word + 1, 0);
        }

        if self.queued[word] & bit == 0 {
            self.queued[word] |= bit;
            self.nodes.push_back(node as u16);
        }
    }

    /// Removes the first node.
    fn pop(&mut self) {
        if let Some(node) = self.nodes.pop_front() {
            self.queued[usize::from(node) / 64] &= !(1 << (node % 64));
        }
    }
}

/// The presence words that a NIC knows, for each virtual channel separately.
///
/// `ports_waiting` has the bits of the ports whose queue is not empty, and no others.
pub(crate) struct Presence {
    /// The word of each node, one byte for each core.
    tables: [Vec<u32>; VCS],
    /// Number of changes so far.
    changes: [u32; VCS],
    /// The words queued at each port.
    queues: [[PortQueue; PORTS]; VCS],
    /// Ports with a queued word, one bit for each port.
    ports_waiting: [u8; VCS],
    /// Generations of this node's own cores.
    own: [u8; CORES as usize],
}

impl Presence {
    /// Returns the presence words of a machine of `nodes` nodes without clients.
    pub(crate) fn new(nodes: u32) -> Self {
        Self {
            tables: std::array::from_fn(|_| vec![0; nodes as usize]),
            changes: [0; VCS],
            queues: Default::default(),
            ports_waiting: [0; VCS],
            own: [0; CORES as usize],
        }
    }

    /// Returns the word of each node.
    pub(crate) fn table(&self, channel: usize) -> &[u32] {
        &self.tables[channel]
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self, channel: usize) -> u32 {
        self.changes[channel]
    }

    /// Returns the ports with a queued word, one bit for each port.
    #[inline]
    pub(crate) fn ports_waiting(&self, channel: usize) -> u8 {
        self.ports_waiting[channel]
    }

    /// Returns whether a word is queued for any port.
    #[inline]
    pub(crate) fn is_any_waiting(&self) -> bool {
        self.ports_waiting != [0; VCS]
    }

    /// Advances the generation of a core of this node by `by`. Returns the new generation; `None`
    /// if there is no such core.
    pub(crate) fn advance_own(&mut self, core: u16, by: u8) -> Option<u8> {
        let generation = self.own.get_mut(usize::from(core))?;
        *generation = generation.wrapping_add(by);
        Some(*generation)
    }

    /// Records a node's presence word and queues it for the ports in `onward`, which has one bit
    /// for each port. Returns false if the word was known already or the node does not exist.
    pub(crate) fn update_word(&mut self, channel: usize, node: u32, word: u32, onward: u8) -> bool {
        let Some(entry) = self.tables[channel].get_mut(node as usize) else { return false };
        if *entry == word {
            return false;
        }

        *entry = word;
        self.changes[channel] = self.changes[channel].wrapping_add(1);

        for (port, queue) in self.queues[channel].iter_mut().enumerate() {
            if onward & (1 << port) != 0 {
                queue.add(node);
                self.ports_waiting[channel] |= 1 << port;
            }
        }

        true
    }

    /// Returns the word of `node` with the generation of one core replaced. The table keeps the
    /// earlier word.
    pub(crate) fn with_core(&self, channel: usize, node: u32, core: u8, generation: u8) -> u32 {
        let mut bytes = self.tables[channel].get(node as usize).copied().unwrap_or(0).to_le_bytes();
        if let Some(byte) = bytes.get_mut(usize::from(core)) {
            *byte = generation;
        }
        u32::from_le_bytes(bytes)
    }

    /// Returns the symbol that is next to leave through a port.
    pub(crate) fn first(&self, channel: usize, port: usize) -> Option<u64> {
        let node = u32::from(*self.queues[channel][port].nodes.front()?);
        Some(symbol(node, self.tables[channel].get(node as usize).copied().unwrap_or(0)))
    }

    /// Removes the first symbol of a port, which was sent.
    pub(crate) fn remove_first(&mut self, channel: usize, port: usize) {
        let queue = &mut self.queues[channel][port];
        queue.pop();
        if queue.nodes.is_empty() {
            self.ports_waiting[channel] &= !(1 << port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_is_decoded_as_it_was_encoded() {
        assert_eq!(parse(symbol(1023, 0xdead_beef)), Some(Symbol { node: 1023, presence_word: 0xdead_beef }));
    }

    #[test]
    fn a_packet_header_is_no_symbol() {
        assert_eq!(parse(0xffff_ffff), None);
    }

    #[test]
    fn a_queued_symbol_is_sent_once_with_the_latest_word() {
        let mut presence = Presence::new(4);

        assert!(presence.update_word(1, 2, 0x1, 0b110));
        assert!(presence.update_word(1, 2, 0x101, 0b110));

        assert_eq!(presence.first(1, 1), Some(symbol(2, 0x101)));

        presence.remove_first(1, 1);
        assert_eq!(presence.first(1, 1), None);
        assert_eq!(presence.ports_waiting, [0, 0b100]);
    }

    #[test]
    fn a_known_word_and_an_unknown_node_are_not_forwarded() {
        let mut presence = Presence::new(2);
        presence.update_word(0, 1, 5, 0b111);

        assert!(!presence.update_word(0, 1, 5, 0b111));
        assert!(!presence.update_word(0, 2, 5, 0b111));
        assert_eq!(presence.changes(0), 1);
    }
}
