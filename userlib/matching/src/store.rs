//! Storage for the data of unexpected messages: chained blocks of [`UNIT`] bytes from one pool. The
//! peers' windows bound the number of blocks in use. The pool never shrinks.

use crate::{Buffer, lists::NONE, wire::UNIT};

/// The chain of blocks of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    first: u32,
    last: u32,
    length: usize,
}

impl Chain {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, length: 0 };
}

/// The pool of blocks.
#[derive(Debug)]
pub(crate) struct Store {
    blocks: Vec<[u8; UNIT]>,
    /// The block after each block, in its chain or among the free ones.
    next: Vec<u32>,
    /// The first free block.
    free: u32,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { blocks: Vec::new(), next: Vec::new(), free: NONE }
    }

    /// Returns the number of blocks, in use or free.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Allocates memory for `count` blocks.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.blocks.reserve(count.saturating_sub(self.blocks.len()));
        self.next.reserve(count.saturating_sub(self.next.len()));
    }

    /// Appends `data` to `chain`.
    pub(crate) fn append(&mut self, chain: &mut Chain, mut data: &[u8]) {
        while !data.is_empty() {
            let used = chain.length % UNIT;
            // The chain is empty, or its last block is full.
            if used == 0 {
                let block = self.take();
                match chain.last {
                    NONE => chain.first = block,
                    last => self.next[last as usize] = block,
                }
                chain.last = block;
            }

            let (now, rest) = data.split_at(data.len().min(UNIT - used));
            self.blocks[chain.last as usize][used..used + now.len()].copy_from_slice(now);
            chain.length += now.len();
            data = rest;
        }
    }

    /// Copies the data to the beginning of `buffer`, as far as there is room.
    pub(crate) fn copy(&self, chain: &Chain, buffer: &mut Buffer) {
        let (mut block, mut offset) = (chain.first, 0);
        while block != NONE && offset < buffer.len() {
            let count = (chain.length - offset).min(UNIT);
            buffer.write(offset, &self.blocks[block as usize][..count]);
            offset += count;
            block = self.next[block as usize];
        }
    }

    /// Frees the blocks of a chain, all at once: the chain goes in front of the free blocks.
    pub(crate) fn release(&mut self, chain: Chain) {
        if chain.last != NONE {
            self.next[chain.last as usize] = self.free;
            self.free = chain.first;
        }
    }

    /// Takes a free block, or adds one.
    fn take(&mut self) -> u32 {
        let block = match self.free {
            NONE => {
                self.blocks.push([0; UNIT]);
                self.next.push(NONE);
                self.blocks.len() as u32 - 1
            }
            block => {
                self.free = self.next[block as usize];
                block
            }
        };

        self.next[block as usize] = NONE;
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_read_back_and_blocks_are_reused() {
        let mut store = Store::new();
        let data: Vec<u8> = (0..1000_u32).map(|number| number as u8).collect();
        for _ in 0..3 {
            let (mut long, mut short_chain) = (Chain::EMPTY, Chain::EMPTY);
            for piece in data.chunks(7) {
                store.append(&mut long, piece);
                store.append(&mut short_chain, &piece[..1]);
            }

            let mut buffer = Buffer::zeroed(1100);
            store.copy(&long, &mut buffer);
            assert_eq!(&buffer.as_slice()[..1000], data);

            let mut short = Buffer::zeroed(129);
            store.copy(&long, &mut short);
            assert_eq!(short.as_slice(), &data[..129]);

            store.release(long);
            store.release(short_chain);
            store.release(Chain::EMPTY);
        }
        assert_eq!(store.len(), 8 + 2);
    }
}
