//! All-to-all: each rank sends a block to each other rank (`MPI_Alltoall`), with the data checked.
//!
//! Each rank visits the others in a random order of its own, because ranks that all send in the
//! same order meet at the same destination.

use nicforge_matching::{Envelope, Kind, Rank, Selector};

use crate::{Buffer, Endpoint, Error, ErrorOf, Program, succeeded};

/// Number of blocks that a rank has in flight at most.
const SENDS: usize = 4;
/// Bytes of a word of a block's pattern.
const WORD: usize = size_of::<u64>();

/// Parameters of an all-to-all, the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Bytes of a block.
    pub bytes: usize,
    /// Number of rounds. A rank begins a round when it has sent its blocks of the one before.
    pub rounds: u32,
    /// The matching context of the blocks.
    pub context: u32,
}

/// Spreads the bits of a number (the finalizer of SplitMix64).
fn spread(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns word `index` of the block that rank `from` sends to rank `to` in a round.
fn pattern_word(from: Rank, to: Rank, round: u32, index: usize) -> u64 {
    let pair = u64::from(from) << 32 | u64::from(to);
    spread(spread(pair ^ 0x9e37_79b9_7f4a_7c15) ^ u64::from(round) << 40 ^ index as u64)
}

/// One rank's part of an all-to-all.
pub struct Blocks<'a, E: Endpoint> {
    endpoint: &'a mut E,
    parameters: Parameters,
    /// The other ranks, in the order in which blocks are sent to them.
    order: Vec<Rank>,
    /// Number of blocks whose sends were started, in all rounds.
    started: usize,
    /// Number of sends that are not complete.
    sending: usize,
    /// Buffers for further sends.
    free: Vec<E::Buffer>,
    /// Number of blocks that have not arrived.
    missing: usize,
}

impl<'a, E: Endpoint> Blocks<'a, E> {
    /// Creates a rank's part, and posts all receives of the first round.
    ///
    /// # Errors
    /// Errors of the endpoint.
    pub fn new(endpoint: &'a mut E, parameters: Parameters) -> Result<Self, ErrorOf<E>> {
        let (own_rank, size) = (endpoint.rank(), endpoint.size());
        let mut order: Vec<_> = (0..size).filter(|rank| *rank != own_rank).collect();
        // The pattern of a round that does not exist serves as a random number for each pair.
        order.sort_by_key(|rank| pattern_word(own_rank, *rank, u32::MAX, 0));

        let free = (0..SENDS).map(|_| endpoint.buffer(parameters.bytes)).collect::<Result<_, _>>()?;
        let missing = order.len() * parameters.rounds as usize;
        let mut blocks = Self { endpoint, parameters, order, started: 0, sending: 0, free, missing };
        if parameters.rounds > 0 {
            for from in blocks.order.clone() {
                let buffer = blocks.endpoint.buffer(parameters.bytes)?;
                blocks.receive(from, 0, buffer)?;
            }
        }
        Ok(blocks)
    }

    /// Posts the receive of a block. A block's tag is its round.
    fn receive(&mut self, from: Rank, round: u32, buffer: E::Buffer) -> Result<(), ErrorOf<E>> {
        let from = Selector::exact(from, self.parameters.context, round.into());
        self.endpoint.irecv(from, buffer, 0)?;
        Ok(())
    }

    /// Sends the next block, if there is one and a buffer is free. Returns the number of blocks
    /// sent.
    fn send(&mut self) -> Result<usize, ErrorOf<E>> {
        if self.started >= self.order.len() * self.parameters.rounds as usize {
            return Ok(0);
        }
        let Some(mut buffer) = self.free.pop() else { return Ok(0) };

        let (round, index) = (self.started / self.order.len(), self.started % self.order.len());
        let (own_rank, to, round) = (self.endpoint.rank(), self.order[index], round as u32);
        buffer.clear();
        for index in 0..self.parameters.bytes.div_ceil(WORD) {
            let bytes = pattern_word(own_rank, to, round, index).to_le_bytes();
            buffer.append(&bytes[..WORD.min(self.parameters.bytes - index * WORD)]);
        }

        self.started += 1;
        self.sending += 1;
        self.endpoint.isend(Envelope::new(to, self.parameters.context, round.into()), buffer, 0)?;
        Ok(1)
    }

    /// Checks the length and the data of a block that has arrived.
    fn check_block(
        &self,
        from: Rank,
        round: u32,
        length: usize,
        block: &E::Buffer,
    ) -> Result<(), ErrorOf<E>> {
        let mismatch = |what, found, expected| Err(Error::Wrong { what, found, expected });
        if length != self.parameters.bytes {
            return mismatch("the length of a block", length as u64, self.parameters.bytes as u64);
        }

        let own_rank = self.endpoint.rank();
        for index in 0..length.div_ceil(WORD) {
            let count = WORD.min(length - index * WORD);
            let (mut found, mut expected) =
                ([0; WORD], pattern_word(from, own_rank, round, index).to_le_bytes());
            expected[count..].fill(0);
            if !block.read(index * WORD, &mut found[..count]) || found != expected {
                return mismatch("a block's data", u64::from_le_bytes(found), u64::from_le_bytes(expected));
            }
        }
        Ok(())
    }
}

impl<E: Endpoint> Program for Blocks<'_, E> {
    type Endpoint = E;

    fn step(&mut self) -> Result<usize, ErrorOf<E>> {
        let mut steps = self.send()?;
        steps += self.endpoint.progress()?;

        while let Some(done) = self.endpoint.next_completion() {
            steps += 1;
            let done = succeeded(done)?;
            if done.kind == Kind::Send {
                self.sending -= 1;
                self.free.push(done.buffer);
                continue;
            }

            let (from, round) = (done.envelope.peer, done.envelope.tag as u32);
            self.check_block(from, round, done.length, &done.buffer)?;
            self.missing -= 1;
            if round + 1 < self.parameters.rounds {
                self.receive(from, round + 1, done.buffer)?;
            }
        }
        Ok(steps)
    }

    fn is_done(&self) -> bool {
        let all = self.order.len() * self.parameters.rounds as usize;
        self.started == all && self.sending == 0 && self.missing == 0
    }

    fn endpoint(&mut self) -> &mut E {
        self.endpoint
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use nicforge_driver::{Deadline, Relax};
    use nicforge_matching::{
        Config, Endpoint,
        memory::{Fabric, FabricConfig, FabricPort},
    };

    use super::*;
    use crate::drive;

    /// Returns the endpoints of `size` ranks, connected by memory.
    fn endpoints(size: u32) -> Vec<Endpoint<FabricPort>> {
        let ports = Fabric::new(size, FabricConfig::default()).1;
        ports.into_iter().map(|port| Endpoint::new(port, Config::default()).unwrap()).collect()
    }

    #[test]
    fn every_rank_gets_every_block() {
        for (size, bytes) in [(1, 8), (2, 0), (5, 13), (8, 4096)] {
            let mut endpoints = endpoints(size);
            let parameters = Parameters { bytes, rounds: 3, context: 1 };
            let mut ranks: Vec<_> =
                endpoints.iter_mut().map(|endpoint| Blocks::new(endpoint, parameters).unwrap()).collect();

            drive(&mut ranks, Deadline::after(Duration::from_secs(60)), &mut Relax::new()).unwrap();
            drop(ranks);
            assert!(endpoints.iter().all(|endpoint| endpoint.outstanding() == 0));
        }
    }

    #[test]
    fn a_wrong_block_is_found() {
        let mut endpoints = endpoints(2);
        let (first, second) = endpoints.split_at_mut(1);
        second[0].isend(Envelope::new(0, 1, 0), nicforge_matching::Mode::Standard, vec![7; 16], 0).unwrap();

        let parameters = Parameters { bytes: 16, rounds: 1, context: 1 };
        let mut ranks = [Blocks::new(&mut first[0], parameters).unwrap()];
        let found = loop {
            second[0].progress().unwrap();
            if let Err(error) = ranks[0].step() {
                break error;
            }
        };
        assert!(matches!(found, Error::Wrong { what: "a block's data", .. }), "{found}");
    }
}
