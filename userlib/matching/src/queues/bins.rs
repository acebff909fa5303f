//! A hash table of lists: each bin holds the nodes with one key, in the order of their arrival.
//!
//! Peers choose the tags of unexpected messages. Therefore the hash is strongly universal, with a
//! secret key (multilinear: D. Lemire and O. Kaser, *Strongly universal string hashing is fast*,
//! 2014). Two tags that a peer chooses without knowing the secret share a chain only by chance. The
//! expected length of a chain is the load of the table, at most 1.
//!
//! A peer might learn the secret by measuring times. When a chain becomes longer than chance
//! explains, the table changes the secret. It does so at most once for as many new bins as it has
//! chains. Even without that, the peer's window would limit the damage.

use nicforge_driver::runtime::random;

use crate::lists::{List, Lists, NONE};

/// The key of a bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) class: u8,
    pub(super) source: u32,
    pub(super) context: u32,
    pub(super) tag: u64,
}

/// The nodes with one key, and the bin's neighbours in its chain.
#[derive(Clone, Copy, Debug)]
struct Bin {
    key: Key,
    hash: u32,
    nodes: List,
    previous: u32,
    next: u32,
}

/// Initial number of chains.
const CHAINS: usize = 64;
/// Chain length that indicates a known secret. By chance one table in about 10^30 has such a chain.
const SUSPICIOUS_LENGTH: u32 = 32;

/// The result of a search for the bin of a key.
struct Search {
    /// The bin, if there is one.
    bin: Option<u32>,
    /// Number of other bins that were compared: those before the bin in its chain, or all of the
    /// chain.
    compared: u32,
}

/// The hash table.
#[derive(Debug)]
pub(super) struct Bins {
    secret: Secret,
    /// First bin of each chain. The number of chains is a power of two.
    chains: Vec<u32>,
    /// Shift that yields the chain of a hash from the upper bits.
    shift: u32,
    bins: Vec<Bin>,
    /// The first free bin.
    free: u32,
    /// Number of bins in use.
    used: usize,
    /// Number of bins made since the last change of the secret.
    new_bins: usize,
    /// Number of changes of the secret because of a long chain.
    rekeyed: u64,
    /// The links of the nodes in their bins.
    nodes: Lists,
    /// Bin of each node.
    bin_of_node: Vec<u32>,
    /// The bin used last. The next key is often the same.
    recent: u32,
}

impl Bins {
    /// Returns an empty table.
    pub(super) fn new() -> Self {
        Self {
            secret: Secret::new(),
            chains: vec![NONE; CHAINS],
            shift: shift(CHAINS),
            bins: Vec::new(),
            free: NONE,
            used: 0,
            new_bins: 0,
            rekeyed: 0,
            nodes: Lists::default(),
            bin_of_node: Vec::new(),
            recent: NONE,
        }
    }

    /// Returns the number of changes of the secret because of a long chain.
    pub(super) fn rekeyed(&self) -> u64 {
        self.rekeyed
    }

    /// Allocates memory for `bins` bins, and nodes with numbers below `nodes`.
    pub(super) fn reserve(&mut self, bins: usize, nodes: usize) {
        self.bins.reserve(bins.saturating_sub(self.bins.len()));
        self.nodes.reserve(nodes);
        self.bin_of_node.reserve(nodes.saturating_sub(self.bin_of_node.len()));
        if bins > self.chains.len() {
            self.rebuild(bins.next_power_of_two());
        }
    }

    /// Returns the oldest node with `key`.
    #[inline]
    pub(super) fn first(&self, key: &Key) -> Option<u32> {
        let bin = self.find(key, self.secret.hash(key)).bin?;
        self.bins[bin as usize].nodes.first()
    }

    /// Iterates over all nodes with `key`, the oldest first.
    pub(super) fn iter(&self, key: &Key) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(key), |&node| self.nodes.next(node))
    }

    /// Appends `node` to the bin of `key`.
    pub(super) fn push(&mut self, node: u32, key: Key) {
        let bin = if self.is_recent(&key) {
            self.recent
        } else {
            let hash = self.secret.hash(&key);
            match self.find(&key, hash) {
                Search { bin: Some(bin), .. } => bin,
                Search { bin: None, compared: chain_length } => self.new_bin(key, hash, chain_length),
            }
        };

        self.recent = bin;

        if node as usize >= self.bin_of_node.len() {
            self.bin_of_node.resize(node as usize + 1, NONE);
        }

        self.bin_of_node[node as usize] = bin;
        self.nodes.push(&mut self.bins[bin as usize].nodes, node);
    }

    /// Removes and returns the oldest node with `key`.
    #[inline]
    pub(super) fn pop(&mut self, key: &Key) -> Option<u32> {
        if !self.is_recent(key) {
            self.recent = self.find(key, self.secret.hash(key)).bin?;
        }

        let index = self.recent;
        let bin = &mut self.bins[index as usize];
        let node = self.nodes.pop(&mut bin.nodes)?;

        if bin.nodes.is_empty() {
            self.free_bin(index);
        }
        Some(node)
    }

    /// Removes a node from its bin.
    pub(super) fn remove(&mut self, node: u32) {
        let index = self.bin_of_node[node as usize];

        let bin = &mut self.bins[index as usize];
        self.nodes.remove(&mut bin.nodes, node);

        if bin.nodes.is_empty() {
            self.free_bin(index);
        }
    }

    /// Takes an empty bin out of its chain, and frees it.
    fn free_bin(&mut self, index: u32) {
        let bin = &mut self.bins[index as usize];
        let Bin { hash, previous, next, .. } = *bin;

        bin.next = self.free;
        self.free = index;
        self.used -= 1;

        match previous {
            NONE => self.chains[(hash >> self.shift) as usize] = next,
            previous => self.bins[previous as usize].next = next,
        }
        if next != NONE {
            self.bins[next as usize].previous = previous;
        }
    }

    /// Returns whether the bin used last is that of `key`. A freed bin has no nodes.
    #[inline]
    fn is_recent(&self, key: &Key) -> bool {
        let bin = self.bins.get(self.recent as usize);
        bin.is_some_and(|bin| bin.key == *key && !bin.nodes.is_empty())
    }

    /// Searches for the bin of `key`, whose hash is `hash`.
    #[inline]
    fn find(&self, key: &Key, hash: u32) -> Search {
        let (mut index, mut compared) = (self.chains[(hash >> self.shift) as usize], 0);
        while index != NONE {
            let bin = &self.bins[index as usize];
            if bin.key == *key {
                return Search { bin: Some(index), compared };
            }
            index = bin.next;
            compared += 1;
        }
        Search { bin: None, compared }
    }

    /// Makes a bin for `key`, whose chain has `chain_length` bins so far. Doubles the number of
    /// chains when there are as many bins, and changes the secret when the chain is too long.
    fn new_bin(&mut self, key: Key, mut hash: u32, chain_length: u32) -> u32 {
        self.new_bins += 1;
        if self.used >= self.chains.len() {
            self.rebuild(self.chains.len() * 2);
            hash = self.secret.hash(&key);
        } else if chain_length >= SUSPICIOUS_LENGTH && self.new_bins > self.chains.len() {
            self.rekeyed += 1;
            self.rebuild(self.chains.len());
            hash = self.secret.hash(&key);
        }

        self.used += 1;
        let bin = Bin { key, hash, nodes: List::EMPTY, previous: NONE, next: NONE };

        let index = match self.free {
            NONE => {
                self.bins.push(bin);
                self.bins.len() as u32 - 1
            }
            free => {
                self.free = self.bins[free as usize].next;
                self.bins[free as usize] = bin;
                free
            }
        };

        self.push_to_chain(index);
        index
    }

    /// Puts a bin at the beginning of its chain.
    fn push_to_chain(&mut self, index: u32) {
        let chain = &mut self.chains[(self.bins[index as usize].hash >> self.shift) as usize];
        let next = std::mem::replace(chain, index);
        self.bins[index as usize].next = next;
        self.bins[index as usize].previous = NONE;
        if next != NONE {
            self.bins[next as usize].previous = index;
        }
    }

    /// Distributes all bins over `count` chains, with a new secret.
    #[cold]
    fn rebuild(&mut self, count: usize) {
        let old = std::mem::replace(&mut self.chains, vec![NONE; count]);
        self.shift = shift(count);
        self.secret = Secret::new();
        self.new_bins = 0;

        for first in old {
            let mut index = first;
            while index != NONE {
                let next = self.bins[index as usize].next;
                self.bins[index as usize].hash = self.secret.hash(&self.bins[index as usize].key);
                self.push_to_chain(index);
                index = next;
            }
        }
    }
}

/// Returns the shift for a number of chains: a power of two from 2 to 2^31.
fn shift(chains: usize) -> u32 {
    32 - chains.trailing_zeros()
}

/// The secret of a table's hash.
#[derive(Debug)]
struct Secret {
    base: u64,
    factors: [u64; 5],
}

impl Secret {
    /// Returns a random secret.
    fn new() -> Self {
        Self { base: random(), factors: std::array::from_fn(|_| random()) }
    }

    /// Multilinear hash: the upper half of a sum of 32-bit words times 64-bit factors.
    #[inline]
    fn hash(&self, key: &Key) -> u32 {
        let words = [
            u64::from(key.class),
            u64::from(key.source),
            u64::from(key.context),
            key.tag >> 32,
            key.tag & 0xffff_ffff,
        ];

        let sum = words
            .iter()
            .zip(&self.factors)
            .fold(self.base, |sum, (&word, &factor)| sum.wrapping_add(word.wrapping_mul(factor)));

        (sum >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: u64) -> Key {
        Key { class: 0, source: 1, context: 2, tag }
    }

    #[test]
    fn ten_thousand_keys_have_short_chains_and_their_own_bins() {
        let mut bins = Bins::new();
        for node in 0..10_000 {
            bins.push(node, key(u64::from(node) << 20));
        }

        assert_eq!(bins.rekeyed(), 0);

        assert!(bins.chains.len() >= 10_000);
        for node in 0..10_000 {
            assert_eq!(bins.first(&key(u64::from(node) << 20)), Some(node));
        }

        for node in 0..10_000 {
            bins.remove(node);
        }

        assert_eq!(bins.used, 0);
        assert!(bins.chains.iter().all(|&chain| chain == NONE));
    }

    #[test]
    fn nodes_of_a_key_leave_in_their_order() {
        let mut bins = Bins::new();
        for node in [3, 1, 2] {
            bins.push(node, key(7));
        }
        bins.push(9, key(8));

        assert_eq!(bins.iter(&key(7)).collect::<Vec<_>>(), [3, 1, 2]);

        bins.remove(3);
        assert_eq!(bins.first(&key(7)), Some(1));
    }

    #[test]
    fn collisions_chosen_by_a_peer_change_the_hash_key() {
        let mut bins = Bins::new();
        // Tags that all hash to chain 0, as a peer that has learned the secret would choose them.
        let mut node = 0;
        for tag in 0..1_000_000 {
            if bins.secret.hash(&key(tag)) >> bins.shift == 0 {
                bins.push(node, key(tag));
                node += 1;
            }

            if node == 2 * SUSPICIOUS_LENGTH || bins.rekeyed() > 0 {
                break;
            }

            // Entries of other peers come and go meanwhile.
            bins.push(100_000, Key { class: 1, ..key(tag) });
            bins.remove(100_000);
        }

        assert_eq!(bins.rekeyed(), 1);
        assert_eq!(bins.used as u32, node);
        assert!(bins.find(&key(u64::MAX), 0).compared < SUSPICIOUS_LENGTH);
    }
}
