//! Who is up: the news of cores that come and go.
//!
//! The news travels as symbols in the virtual channels themselves, behind the packets that the core had sent, and floods the
//! tree. Each NIC takes a symbol out, notes it and passes it on. A symbol that can't be passed on for want of a credit waits at
//! the port, in front of later packets, and does not stand in the way of packets for other ports. What waits is a
//! set of nodes whose latest word is sent when it goes, so it is bounded by the number of nodes.

use std::collections::VecDeque;

use nicforge_hwi::tree::{PORTS, VCS};

/// Marks a presence symbol in [`nicforge_core::fabric::Contents::header`]; tree headers have 32 bits.
const SYMBOL: u64 = 1 << 63;
/// Bytes of a symbol on the wire.
pub(crate) const SYMBOL_BYTES: u32 = 8;

/// The packet header of the symbol "the cores of `node` have the generations in `word`".
pub(crate) fn symbol(node: u32, word: u32) -> u64 {
    SYMBOL | (u64::from(node) << 32) | u64::from(word)
}

/// The node and word of a symbol; `None` for any other packet.
#[inline]
pub(crate) fn parse(header: u64) -> Option<(u32, u32)> {
    (header & SYMBOL != 0).then_some((((header & !SYMBOL) >> 32) as u32, header as u32))
}

/// Nodes whose word is to be sent through a port.
#[derive(Default)]
struct Waiting {
    queue: VecDeque<u16>,
    queued: Vec<u64>,
}

impl Waiting {
    fn add(&mut self, node: u32) {
        let (word, bit) = ((node / 64) as usize, 1u64 << (node % 64));
        if self.queued.len() <= word {
            self.queued.resize(word + 1, 0);
        }
        if self.queued[word] & bit == 0 {
            self.queued[word] |= bit;
            self.queue.push_back(node as u16);
        }
    }

    fn pop(&mut self) {
        if let Some(node) = self.queue.pop_front() {
            self.queued[usize::from(node) / 64] &= !(1 << (node % 64));
        }
    }
}

/// What a NIC knows, for each virtual channel on its own.
pub(crate) struct Presence {
    tables: [Vec<u32>; VCS],
    changes: [u32; VCS],
    waiting: [[Waiting; PORTS]; VCS],
    /// Ports for which something waits, a bit a port.
    pub(crate) ports_waiting: [u8; VCS],
    /// Generations of this node's own cores.
    pub(crate) own: [u8; 4],
}

impl Presence {
    pub(crate) fn new(nodes: u32) -> Self {
        Self {
            tables: std::array::from_fn(|_| vec![0; nodes as usize]),
            changes: [0; VCS],
            waiting: Default::default(),
            ports_waiting: [0; VCS],
            own: [0; 4],
        }
    }

    pub(crate) fn table(&self, channel: usize) -> &[u32] {
        &self.tables[channel]
    }

    /// Changes so far.
    pub(crate) fn changes(&self, channel: usize) -> u32 {
        self.changes[channel]
    }

    /// Notes a node's word and queues it for the ports in `onward`. False if it was known, or the node does not exist.
    pub(crate) fn learn(&mut self, channel: usize, node: u32, word: u32, onward: u8) -> bool {
        let Some(entry) = self.tables[channel].get_mut(node as usize) else { return false };
        if *entry == word {
            return false;
        }
        *entry = word;
        self.changes[channel] = self.changes[channel].wrapping_add(1);
        for (port, waiting) in self.waiting[channel].iter_mut().enumerate() {
            if onward & (1 << port) != 0 {
                waiting.add(node);
                self.ports_waiting[channel] |= 1 << port;
            }
        }
        true
    }

    /// The word of `node` with the generation of one core replaced.
    pub(crate) fn with_core(&self, channel: usize, node: u32, core: u8, generation: u8) -> u32 {
        let mut bytes = self.tables[channel].get(node as usize).copied().unwrap_or(0).to_le_bytes();
        if let Some(byte) = bytes.get_mut(usize::from(core)) {
            *byte = generation;
        }
        u32::from_le_bytes(bytes)
    }

    /// The symbol that is to be sent through a port first.
    pub(crate) fn first(&self, channel: usize, port: usize) -> Option<u64> {
        let node = u32::from(*self.waiting[channel][port].queue.front()?);
        Some(symbol(node, self.tables[channel].get(node as usize).copied().unwrap_or(0)))
    }

    /// The first symbol was sent.
    pub(crate) fn sent(&mut self, channel: usize, port: usize) {
        let waiting = &mut self.waiting[channel][port];
        waiting.pop();
        if waiting.queue.is_empty() {
            self.ports_waiting[channel] &= !(1 << port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_survives_its_header() {
        assert_eq!(parse(symbol(1023, 0xdead_beef)), Some((1023, 0xdead_beef)));
    }

    #[test]
    fn a_packet_header_is_no_symbol() {
        assert_eq!(parse(0xffff_ffff), None);
    }

    #[test]
    fn news_that_wait_are_sent_once_with_the_latest_word() {
        let mut presence = Presence::new(4);
        assert!(presence.learn(1, 2, 0x1, 0b110));
        assert!(presence.learn(1, 2, 0x101, 0b110));

        assert_eq!(presence.first(1, 1), Some(symbol(2, 0x101)));
        presence.sent(1, 1);
        assert_eq!(presence.first(1, 1), None);
        assert_eq!(presence.ports_waiting, [0, 0b100]);
    }

    #[test]
    fn known_news_and_unknown_nodes_go_no_further() {
        let mut presence = Presence::new(2);
        presence.learn(0, 1, 5, 0b111);

        assert!(!presence.learn(0, 1, 5, 0b111));
        assert!(!presence.learn(0, 2, 5, 0b111));
        assert_eq!(presence.changes(0), 1);
    }
}
